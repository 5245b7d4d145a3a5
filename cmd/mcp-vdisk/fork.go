package main

import (
	"cmp"
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

type forkArgs struct {
	New     string
	Ref     string
	Columns int // of the terminal that progress is shown on, 0 for none
	JSON    bool
}

func (a *app) imageForkCmd() *cobra.Command {
	var q forkArgs
	cmd := &cobra.Command{
		Use:   "fork NEW [REF]",
		Short: "Make a new disk that begins as another, or as that was at REF",
		Long: `fork makes the disk NEW, which must not exist, of the one that --image names: with its
history and checkpoints up to REF, its label, its limits and its Python packages. From
then on the two have nothing to do with each other. Sessions and scripts go on meanwhile.`,
		Example: "  mcp-vdisk image fork attempt --image project\n  mcp-vdisk image fork attempt release --image project",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := newDisk(args[0]); err != nil {
				return err
			}
			q.New, q.JSON, q.Columns = args[0], a.json, columnsOf(a.Stderr)
			if len(args) == 2 {
				if err := pathArg(args[1]); err != nil {
					return err
				}
				q.Ref = args[1]
			}
			r, err := a.NewRequest("image.fork", q)
			if err != nil {
				return err
			}
			r.Long = true
			return a.Ask(cmd.Context(), r, front.OpenRead, nil, a.Stdout)
		},
	}
	a.jsonFlag(cmd.Flags())
	return cmd
}

// forkFacts is what `image fork --json` prints.
type forkFacts struct {
	imageFacts
	From     string   `json:"from"` // uuid
	Content  string   `json:"content"`
	Packages []string `json:"layers,omitempty"` // of Python packages that it has from the other
}

func backFork(ctx context.Context, b *back) error {
	var q forkArgs
	d, err := b.begin(ctx, &q, true)
	if err != nil {
		return err
	}
	defer d.release()
	source := b.req.Image.String()
	ref, err := newDisk(q.New)
	if err != nil {
		return err
	}
	about := b.operator(audit.Facts{"from": source, "image": q.New, "ref": cmp.Or(q.Ref, "head"), "from_uuid": d.info.UUID})
	rec := audit.Record{Ev: audit.EvImageFork, Img: d.info.UUID, Args: about}
	if err := b.st.record(ctx, d.info.UUID, rec); err != nil {
		return err
	}
	b.req.Image = ref
	f, err := b.fork(ctx, d, q, rec)
	rec.Out = &audit.Out{OK: err == nil}
	if err != nil {
		rec.Reason = err.Error()
	} else {
		rec.Args["version"], rec.Args["uuid"] = f.Version, f.UUID
	}
	if err := cmp.Or(err, b.st.record(context.WithoutCancel(ctx), d.info.UUID, rec)); err != nil {
		return err
	}
	if q.JSON {
		return b.printJSON(f)
	}
	b.printf("forked %s at %s: disk %s, %s, %s\nuuid %s\n", source, f.Version, f.Name, entries(int(f.Entries)), showBytes(f.Bytes), f.UUID)
	if n := len(f.Packages); n > 0 {
		b.printf("it has the Python packages of %s: %s\n", source, plainCount(n, "layer"))
	}
	return nil
}

// fork makes the disk. It gets its packages before it gets its name: it is never there
// without them.
func (b *back) fork(ctx context.Context, d *disk, q forkArgs, rec audit.Record) (f forkFacts, err error) {
	if err := b.nameIsFree(); err != nil {
		return f, err
	}
	seq, err := versionAt(d.image, q.Ref)
	if err != nil {
		return f, err
	}
	path, err := b.copyDisk(ctx, d.image, workspace.CopyOptions{Seq: seq, Fresh: true}, q.Columns)
	if err != nil {
		return f, err
	}
	defer os.Remove(path)
	made, err := b.describe(ctx, path)
	if err != nil {
		return f, err
	}
	f = forkFacts{imageFacts: made.imageFacts, From: d.info.UUID, Content: made.Content}
	bound, forget, err := b.inherit(ctx, d.info.UUID, f.UUID)
	if err != nil {
		return f, err
	}
	if f.Packages = bound.Layers; bound.Iso != "" {
		f.Packages = append(f.Packages, bound.Iso)
	}
	rec.Hb, rec.Ha, rec.Out = f.Commit, f.Commit, &audit.Out{OK: true}
	if err := b.place(ctx, path, f.UUID, audit.Entry{Record: rec}); err != nil {
		return f, errors.Join(err, forget(context.WithoutCancel(ctx)))
	}
	return f, nil
}

// inherit gives a new disk the packages of another. forget takes that back.
func (b *back) inherit(ctx context.Context, from, to string) (bound queue.Binding, forget func(context.Context) error, err error) {
	forget = func(context.Context) error { return nil }
	q := b.hub.requests()
	if q == nil {
		return bound, forget, exit.Fail(exit.State, "mcp-vdisk env doctor says why", "whether the disk has Python packages of its own cannot be read")
	}
	if bound, err = q.Binding(from); err != nil || bound.Rev == 0 {
		return bound, forget, err
	}
	_, env, err := b.hub.sandbox(ctx)
	if err != nil {
		return bound, forget, err
	}
	if bound, err = env.Inherit(ctx, from, to); err != nil {
		return bound, forget, b.envFailure(ctx, err)
	}
	return bound, func(ctx context.Context) error {
		_, err := env.Forget(ctx, to)
		return err
	}, nil
}
