package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// The history of a disk, for its person: image log, checkpoint, restore and
// undo. No tool of an agent reaches any of it.

type logArgs struct {
	Paths   []string
	Call    string
	Limit   int
	Changes bool
	JSON    bool
}

func (a *app) imageLogCmd() *cobra.Command {
	var q logArgs
	cmd := &cobra.Command{
		Use:   "log [PATH…]",
		Short: "Show the commits of a disk, or those that changed a path, newest first",
		Long: `log shows the commits of a disk, newest first: version, time, who, the id of the call
behind it (audit query call=ID tells more of that), and what changed. With paths
it shows the commits that changed them or anything below them.`,
		Example: "  mcp-vdisk image log\n  mcp-vdisk image log /workspace/notes.md --changes",
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Paths, q.JSON = args, a.json
			if q.Limit < 1 {
				return exit.Fail(exit.Usage, "", "--limit: must be at least 1, is %d", q.Limit)
			}
			if err := pathArgsOf(args); err != nil {
				return err
			}
			return a.simple(cmd, "image.log", q, front.OpenRead)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().IntVarP(&q.Limit, "limit", "n", 20, "at most so many commits")
	cmd.Flags().StringVar(&q.Call, "call", "", "the commit of the call with this `ID`")
	cmd.Flags().BoolVar(&q.Changes, "changes", false, "list the paths that each commit changed")
	return cmd
}

func pathArgsOf(paths []string) error {
	for _, p := range paths {
		if err := pathArg(p); err != nil {
			return err
		}
	}
	return nil
}

// cleanPaths turns what a person typed into paths of the disk.
func cleanPaths(texts []string) ([]workspace.Path, error) {
	paths := make([]workspace.Path, 0, len(texts))
	for _, text := range texts {
		p, err := workspace.Clean(text)
		if err != nil {
			return nil, err
		}
		paths = append(paths, p)
	}
	return paths, nil
}

// commitFacts is what `image log --json` tells of a commit.
type commitFacts struct {
	Version string       `json:"version"`
	Commit  string       `json:"commit"`
	Parent  string       `json:"parent"`
	Time    time.Time    `json:"time"`
	Actor   string       `json:"actor,omitempty"`
	Call    string       `json:"call,omitempty"`
	Message string       `json:"message,omitempty"`
	Changes []changeFact `json:"changes"`
}

type changeFact struct {
	Path   string `json:"path"`
	What   string `json:"what"`
	Before string `json:"before,omitempty"` // version
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256,omitempty"`
}

func factsOfCommit(c workspace.Commit) commitFacts {
	return commitFacts{
		Version: versionText(c.Seq), Commit: c.ID, Parent: c.Parent, Time: c.Time,
		Actor: c.Actor, Call: c.Call, Message: c.Message, Changes: factsOfEffects(c.Effects),
	}
}

func factsOfEffects(effects []workspace.Effect) []changeFact {
	facts := make([]changeFact, 0, len(effects))
	for _, e := range effects {
		facts = append(facts, factsOfEffect(e))
	}
	return facts
}

func factsOfEffect(e workspace.Effect) changeFact {
	f := changeFact{Path: e.Path.String(), What: e.What.String()}
	if e.Before != nil {
		f.Before = versionText(e.Before.Version)
	}
	if e.After != nil && e.After.Kind == workspace.KindFile {
		f.Bytes, f.SHA256 = e.After.Size, fmt.Sprintf("%x", e.After.SHA256)
	}
	return f
}

func versionText(seq uint64) string { return fmt.Sprintf("v%d", seq) }

func backLog(ctx context.Context, b *back) error {
	var q logArgs
	if err := b.args(&q); err != nil {
		return err
	}
	under, err := cleanPaths(q.Paths)
	if err != nil {
		return err
	}
	d, err := b.open(ctx, want{readOnly: true})
	if err != nil {
		return err
	}
	defer d.release()
	im := d.image
	log, err := im.History(ctx, workspace.LogQuery{Under: under, Call: q.Call, Limit: q.Limit})
	if err != nil {
		return err
	}
	if len(log) == 0 && (len(under) > 0 || q.Call != "") {
		return exit.Fail(exit.NotFound, "mcp-vdisk image log shows all commits", "no commit of this disk matches")
	}
	if q.JSON {
		facts := make([]commitFacts, 0, len(log))
		for _, c := range log {
			facts = append(facts, factsOfCommit(c))
		}
		return b.printJSON(facts)
	}
	marks, err := checkpointsBySeq(im)
	if err != nil {
		return err
	}
	if len(under) == 0 && q.Call == "" {
		for _, j := range d.jobList() {
			if j.Ended.IsZero() {
				b.printf("running %s  %-14s  %-26s  %s, %s\n", j.Began.Local().Format(time.DateTime), "run_script", j.ID, j.Language, lasted(j))
			}
		}
	}
	for _, c := range log {
		b.printf("%-7s %s  %-14s  %-26s  %s%s\n", versionText(c.Seq), c.Time.Local().Format(time.DateTime), safe(c.Actor), safe(c.Call),
			safe(aboutCommit(c)), marks[c.Seq])
		if q.Changes {
			b.printChanges(c.Effects, "        ")
		}
	}
	return nil
}

// checkpointsBySeq is what to show behind a commit that checkpoints name.
func checkpointsBySeq(im *workspace.Image) (map[uint64]string, error) {
	all, err := im.Checkpoints()
	if err != nil {
		return nil, err
	}
	marks := map[uint64]string{}
	for _, c := range all {
		marks[c.Seq] += "  [" + c.Name + "]"
	}
	return marks, nil
}

// aboutCommit is a commit in a few words: its message, the path if it is one,
// and how much changed.
func aboutCommit(c workspace.Commit) string {
	switch len(c.Effects) {
	case 0:
		return c.Message
	case 1:
		return fmt.Sprintf("%s: %s %s", c.Message, c.Effects[0].What, c.Effects[0].Path)
	}
	return fmt.Sprintf("%s: %s", c.Message, countEffects(c.Effects))
}

// countEffects is "3 created, 1 modified".
func countEffects(effects []workspace.Effect) string {
	var parts []string
	for _, kind := range []workspace.EffectKind{workspace.Created, workspace.Modified, workspace.Deleted, workspace.Mode, workspace.Touched} {
		n := 0
		for i := range effects {
			if effects[i].What == kind {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, kind))
		}
	}
	return strings.Join(parts, ", ")
}

func (b *back) printChanges(effects []workspace.Effect, indent string) {
	for _, e := range effects {
		b.printf("%s%-12s %s\n", indent, e.What, e.Path)
	}
}

type checkpointArgs struct {
	Name, Message string
	Drop, JSON    bool
}

func (a *app) imageCheckpointCmd() *cobra.Command {
	var q checkpointArgs
	cmd := &cobra.Command{
		Use:   "checkpoint [NAME]",
		Short: "Give the present state of a disk a name, or list the names",
		Long: `checkpoint gives the newest version of a disk a name, under which diff and restore
find it, and notes a digest of every path, by which fsck can prove the disk. Without
a name it lists the checkpoints.`,
		Example: "  mcp-vdisk image checkpoint before-cleanup\n  mcp-vdisk image checkpoint",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.JSON = a.json
			if len(args) == 0 {
				if q.Drop || q.Message != "" {
					return exit.Fail(exit.Usage, "mcp-vdisk image checkpoint NAME", "--drop and --message need the name of a checkpoint")
				}
				return a.simple(cmd, "image.checkpoints", q, front.OpenRead)
			}
			if q.Name = args[0]; q.Name == "" {
				return exit.Fail(exit.Usage, "", "the name of the checkpoint is empty")
			}
			return a.simple(cmd, "image.checkpoint", q, front.OpenWrite)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().StringVarP(&q.Message, "message", "m", "", "a `TEXT` for people")
	cmd.Flags().BoolVar(&q.Drop, "drop", false, "forget the name; the history stays")
	return cmd
}

// checkpointFacts is what `image checkpoint --json` tells.
type checkpointFacts struct {
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Commit  string    `json:"commit"`
	Digest  string    `json:"digest"`
	Time    time.Time `json:"time"`
	Bytes   int64     `json:"bytes"`
	Entries int64     `json:"entries"`
	Message string    `json:"message,omitempty"`
}

func factsOfCheckpoint(c workspace.Checkpoint) checkpointFacts {
	return checkpointFacts{Name: c.Name, Version: versionText(c.Seq), Commit: c.Commit, Digest: c.Digest, Time: c.Time,
		Bytes: c.Bytes, Entries: c.Entries, Message: c.Message}
}

func backCheckpoints(ctx context.Context, b *back) error {
	var q checkpointArgs
	d, err := b.begin(ctx, &q, true)
	if err != nil {
		return err
	}
	defer d.release()
	all, err := d.image.Checkpoints()
	if err != nil {
		return err
	}
	facts := make([]checkpointFacts, 0, len(all))
	for _, c := range all {
		facts = append(facts, factsOfCheckpoint(c))
	}
	if q.JSON {
		return b.printJSON(facts)
	}
	if len(facts) == 0 {
		b.printf("no checkpoints yet; mcp-vdisk image checkpoint NAME makes one\n")
	}
	for _, c := range facts {
		b.printf("%-24s %-7s %s  %10s in %d entries  %s\n", c.Name, c.Version, c.Time.Local().Format(time.DateTime), showBytes(c.Bytes), c.Entries, safe(c.Message))
	}
	return nil
}

// backCheckpoint makes or drops a checkpoint. Like any operator's change it is in
// the log before it happens.
func backCheckpoint(ctx context.Context, b *back) error {
	var q checkpointArgs
	d, err := b.begin(ctx, &q, false)
	if err != nil {
		return err
	}
	defer d.release()
	if _, err := b.admit(d); err != nil {
		return err
	}
	im := d.image
	info, err := im.Info()
	if err != nil {
		return err
	}
	rec := audit.Record{Ev: audit.EvImageCheckpoint, Img: info.UUID, Args: audit.Facts{"name": q.Name, "drop": q.Drop}, Hb: info.Commit, Ha: info.Commit}
	if err := b.st.record(ctx, info.UUID, rec); err != nil {
		return err
	}
	if q.Drop {
		if err := im.DropCheckpoint(q.Name); err != nil {
			return err
		}
		fmt.Fprintf(b.stderr, "dropped the checkpoint %s\n", q.Name)
		return nil
	}
	c, err := im.Checkpoint(ctx, q.Name, q.Message)
	if err != nil {
		return err
	}
	if q.JSON {
		return b.printJSON(factsOfCheckpoint(c))
	}
	b.printf("checkpoint %s is %s, %s in %d entries, digest %s\n", c.Name, versionText(c.Seq), showBytes(c.Bytes), c.Entries, c.Digest)
	return nil
}

type restoreArgs struct {
	Revision string // of restore; the call or version of undo
	Paths    []string
	DryRun   bool
	JSON     bool
}

func (a *app) imageRestoreCmd() *cobra.Command {
	var q restoreArgs
	cmd := &cobra.Command{
		Use:   "restore REF [PATH…]",
		Short: "Bring paths, or everything, back to an earlier version",
		Long: `restore makes the given paths what they were at REF, a checkpoint or a version such as
v12; without paths, everything. It is a new commit: history is never rewritten, and
a restore can be undone.`,
		Example: "  mcp-vdisk image restore v12 /workspace/notes.md\n  mcp-vdisk image restore before-cleanup",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Revision, q.Paths, q.JSON = args[0], args[1:], a.json
			if err := pathArgsOf(args); err != nil {
				return err
			}
			return a.simple(cmd, "image.restore", q, front.OpenWrite)
		},
	}
	a.jsonFlag(cmd.Flags())
	dryRunFlag(cmd, &q.DryRun)
	return cmd
}

func dryRunFlag(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVar(to, "dry-run", false, "show what would change, and change nothing")
}

func (a *app) imageUndoCmd() *cobra.Command {
	var q restoreArgs
	cmd := &cobra.Command{
		Use:   "undo CALL|VERSION",
		Short: "Take back what one call changed",
		Long: `undo takes back what one call, named by its id or by the version that it made, changed
on the disk. It is refused when a later commit changed one of the same paths.`,
		Example: "  mcp-vdisk image undo v17",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Revision, q.JSON = args[0], a.json
			if err := pathArg(q.Revision); err != nil {
				return err
			}
			return a.simple(cmd, "image.undo", q, front.OpenWrite)
		},
	}
	a.jsonFlag(cmd.Flags())
	dryRunFlag(cmd, &q.DryRun)
	return cmd
}

func backRestore(ctx context.Context, b *back) error {
	return b.takeBack(ctx, audit.EvImageRestore, func(im *workspace.Image, q restoreArgs) (txn workspace.Txn, err error) {
		paths, err := cleanPaths(q.Paths)
		if err != nil {
			return txn, err
		}
		seq, err := revisionOf(im, q.Revision)
		if err != nil {
			return txn, err
		}
		return im.Restoring(ctx, seq, paths)
	})
}

func backUndo(ctx context.Context, b *back) error {
	return b.takeBack(ctx, audit.EvImageUndo, func(im *workspace.Image, q restoreArgs) (txn workspace.Txn, err error) {
		c, found, err := im.FindCommit(q.Revision)
		switch {
		case err != nil:
			return txn, err
		case found:
			return im.Undoing(ctx, c.Seq)
		}
		seq, err := im.Revision(q.Revision)
		if errors.Is(err, workspace.ErrNotFound) {
			return txn, exit.Fail(exit.NotFound, "mcp-vdisk image log shows calls and versions", "no call or version %q changed this disk", q.Revision)
		}
		if err != nil {
			return txn, err
		}
		return im.Undoing(ctx, seq)
	})
}

// takeBack commits what plan makes of the history.
func (b *back) takeBack(ctx context.Context, ev audit.Event, plan func(*workspace.Image, restoreArgs) (workspace.Txn, error)) error {
	var q restoreArgs
	d, err := b.begin(ctx, &q, false)
	if err != nil {
		return err
	}
	defer d.release()
	im := d.image
	if q.DryRun {
		return b.wouldTakeBack(ctx, im, q, plan)
	}
	about := audit.Facts{"revision": q.Revision}
	if len(q.Paths) > 0 {
		about["paths"] = q.Paths
	}
	done, err := b.change(ctx, d, ev, about, func() (workspace.Txn, error) { return plan(im, q) })
	if err != nil {
		return err
	}
	if q.JSON {
		return b.printJSON(factsOfCommit(done))
	}
	if len(done.Effects) == 0 {
		b.printf("nothing to change\n")
		return nil
	}
	b.printf("%s: %s\n", versionText(done.Seq), countEffects(done.Effects))
	return nil
}

// wouldTakeBack shows what a plan would change.
func (b *back) wouldTakeBack(ctx context.Context, im *workspace.Image, q restoreArgs, plan func(*workspace.Image, restoreArgs) (workspace.Txn, error)) error {
	txn, err := plan(im, q)
	if err != nil {
		return err
	}
	txn.DryRun = true
	would, err := im.Commit(ctx, txn)
	if err != nil {
		return err
	}
	if q.JSON {
		return b.printJSON(factsOfCommit(would))
	}
	if len(would.Effects) == 0 {
		b.printf("nothing to change\n")
		return nil
	}
	b.printChanges(would.Effects, "")
	b.printf("would change: %s\n", countEffects(would.Effects))
	return nil
}
