package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

type gcArgs struct {
	Keep    string // as it was given
	For     time.Duration
	Commits uint64
	DryRun  bool
	Compact bool
	JSON    bool
}

func (a *app) imageGCCmd() *cobra.Command {
	var q gcArgs
	cmd := &cobra.Command{
		Use:   "gc [NAME|PATH]",
		Short: "Drop old versions of a disk that no checkpoint needs, and free their room",
		Long: `gc drops the oldest versions of a disk, up to the first that a checkpoint or --keep
needs, and frees the contents that only they had. The newest version always stays, and
without --keep those of the last 30 days do. What is dropped cannot be restored. Sessions
may use the disk meanwhile.

The room is free inside the file, which does not become smaller by itself; --compact
writes it anew without that, when nobody uses the disk.`,
		Example: "  mcp-vdisk image gc --keep 30d --dry-run\n  mcp-vdisk image gc project --keep 100 --compact",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.imageArg(args); err != nil {
				return err
			}
			if err := q.keep(); err != nil {
				return exit.BadUsage(fmt.Errorf("--keep: %w", err))
			}
			if q.DryRun && q.Compact {
				return exit.Fail(exit.Usage, "leave one of them out", "--compact does something, and does not go with --dry-run")
			}
			q.JSON = a.json
			mode := front.OpenWrite
			if q.DryRun {
				mode = front.OpenRead
			}
			return a.simple(cmd, "image.gc", q, mode)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().StringVar(&q.Keep, "keep", "30d", "keep the versions of the last `30d|N`: a time (12h, 30d, 8w), or that many of the newest")
	cmd.Flags().BoolVar(&q.DryRun, "dry-run", false, "only tell what would be dropped")
	cmd.Flags().BoolVar(&q.Compact, "compact", false, "make the file as small as it can be; nobody may use the disk")
	return cmd
}

// keep reads what is to be kept: a number of versions, or a time.
func (q *gcArgs) keep() error {
	if n, err := strconv.ParseUint(q.Keep, 10, 64); err == nil {
		if n == 0 {
			return errors.New("the newest version always stays, so it must be at least 1")
		}
		q.Commits = n
		return nil
	}
	var err error
	q.For, err = parseAge(q.Keep)
	return err
}

// parseAge reads "30d", "8w", "12h" or "1h30m".
func parseAge(s string) (time.Duration, error) {
	bad := fmt.Errorf("must be a time such as \"30d\", \"8w\" or \"12h\", or a number of versions, is %q", s)
	for unit, of := range map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour} {
		if digits, ok := strings.CutSuffix(s, unit); ok {
			n, err := strconv.ParseUint(digits, 10, 32)
			if err != nil || n == 0 || n > uint64(math.MaxInt64/of) {
				return 0, bad
			}
			return time.Duration(n) * of, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, bad
	}
	return d, nil
}

// gcReport is what `image gc --json` prints.
type gcReport struct {
	DryRun    bool       `json:"dry_run"`
	Commits   int64      `json:"commits"` // dropped
	Chunks    int64      `json:"chunks"`  // freed
	Bytes     int64      `json:"bytes"`   // freed inside the file
	Sizes     *sizeFacts `json:"sizes"`   // afterwards
	FileBytes int64      `json:"file_bytes"`
	Compacted bool       `json:"compacted"`
}

// backGC cuts the history of a disk. Like any operator's change it is in the log before
// it happens, and what came of it afterwards.
func backGC(ctx context.Context, b *back) error {
	var q gcArgs
	if err := b.args(&q); err != nil {
		return err
	}
	if q.Compact {
		if err := b.mayCompact(); err != nil {
			return b.recordRefused(ctx, q, err)
		}
	}
	g, r, err := b.collect(ctx, q)
	if err == nil && q.Compact {
		g.size, err = b.compact(ctx)
	}
	if g != nil {
		err = g.end(ctx, r, err)
	}
	if err != nil {
		return err
	}
	rep := gcReport{DryRun: q.DryRun, Commits: r.Commits, Chunks: r.Chunks, Bytes: r.Bytes, Sizes: sizeFactsOf(r.Sizes), FileBytes: r.Sizes.File}
	if q.Compact {
		rep.Compacted, rep.FileBytes, rep.Sizes.Free = true, g.size, 0
	}
	if q.JSON {
		return b.printJSON(rep)
	}
	b.printCollected(rep)
	return nil
}

// mayCompact refuses early what would fail after the history was cut.
func (b *back) mayCompact() error {
	if !b.mayUsePath() {
		return exit.Fail(exit.Refused, "put it into the state directory, or run the command as the owner of its folder", "the file of disk %s cannot be replaced here", b.req.Image)
	}
	return b.hub.aside(want{ref: b.req.Image, file: b.image}, func() error { return nil })
}

// recordRefused has the log tell of a gc that was refused before it began.
func (b *back) recordRefused(ctx context.Context, q gcArgs, refused error) error {
	d, err := b.open(ctx, want{})
	if err != nil {
		return refused
	}
	defer d.release()
	g := b.collection(d, q)
	if err := g.begin(ctx, workspace.GCResult{}); err != nil {
		return err
	}
	return g.end(ctx, workspace.GCResult{}, refused)
}

func (b *back) collection(d *disk, q gcArgs) *collection {
	return &collection{d: d, act: "operator", about: b.operator(audit.Facts{"keep": q.Keep, "compact": q.Compact})}
}

// compact writes the file of the disk anew, which nobody uses.
func (b *back) compact(ctx context.Context) (size int64, err error) {
	err = b.hub.aside(want{ref: b.req.Image}, func() error {
		_, size, err = workspace.Compact(ctx, b.hub.pathOf(b.req.Image), workspace.CompactOptions{Reserve: b.hub.reserve(b.req.Image)})
		return err
	})
	return size, err
}

// collect cuts the history; the collection is nil when nothing is recorded.
func (b *back) collect(ctx context.Context, q gcArgs) (g *collection, r workspace.GCResult, err error) {
	d, err := b.open(ctx, want{readOnly: q.DryRun})
	if err != nil {
		return nil, r, err
	}
	defer d.release()
	o := workspace.GCOptions{KeepCommits: q.Commits, DryRun: q.DryRun}
	if q.For > 0 {
		o.KeepSince = time.Now().Add(-q.For)
	}
	if q.DryRun {
		r, err = d.image.GC(ctx, o)
		return nil, r, err
	}
	g = b.collection(d, q)
	plan, err := d.image.GC(ctx, workspace.GCOptions{KeepCommits: o.KeepCommits, KeepSince: o.KeepSince, DryRun: true})
	if err != nil {
		return nil, r, err
	}
	if err := g.begin(ctx, plan); err != nil {
		return nil, r, err
	}
	if _, err = b.admit(d); err == nil {
		r, err = d.image.GC(ctx, o)
	}
	return g, r, err
}

func (b *back) printCollected(rep gcReport) {
	did, freed := "dropped", "freed"
	if rep.DryRun {
		did, freed = "would drop", "would free"
	}
	b.printf("%s %s, %s %s inside the file\n", did, plainCount(int(rep.Commits), "version"), freed, showBytes(rep.Bytes))
	b.printf("history  %s of %s, %s from %s on\n", showBytes(rep.Sizes.History), showSize(rep.Sizes.Budget), plainCount(int(rep.Sizes.Commits), "commit"), rep.Sizes.Oldest)
	if rep.Sizes.Held > 0 {
		b.printf("held     %s of it by checkpoints\n", showBytes(rep.Sizes.Held))
	}
	b.printf("file     %s\n", showBytes(rep.FileBytes))
	if !rep.DryRun && !rep.Compacted && rep.Bytes > 0 {
		b.printf("hint: what was freed is written to before the file grows; --compact gives it back to the host\n")
	}
}
