package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/live"
)

func (a *app) imageCmd() *cobra.Command {
	cmd := group(cobra.Command{
		Use:   "image",
		Short: "Make, look into, copy to and from, and take back disks",
	})
	a.imageFlag(cmd.PersistentFlags())
	cmd.AddCommand(a.imageCreateCmd(), a.imageListCmd(), a.imageShowCmd(), a.imagePutCmd(), a.imageGetCmd(),
		a.imageCatCmd(), a.imageTreeCmd(), a.imageRmCmd(), a.imageLogCmd(), a.imageCheckpointCmd(), a.imageDiffCmd(),
		a.imageRestoreCmd(), a.imageUndoCmd(), a.imageFsckCmd(), a.imageGCCmd(), a.imageExportCmd(), a.imageImportCmd(), a.imageForkCmd())
	return cmd
}

// simple is a command that asks the back for one thing and prints the answer.
func (a *app) simple(cmd *cobra.Command, verb string, args any, mode front.OpenMode) error {
	r, err := a.NewRequest(verb, args)
	if err != nil {
		return err
	}
	if mode == front.NoImage {
		r.Image = front.ImageRef{}
	}
	return a.Ask(cmd.Context(), r, mode, nil, a.Stdout)
}

type createArgs struct {
	Label          string
	Bytes, Entries int64
	JSON           bool
}

func (a *app) imageCreateCmd() *cobra.Command {
	var q createArgs
	var quota string
	cmd := &cobra.Command{
		Use:     "create [NAME|PATH]",
		Short:   "Make a new, empty disk; an existing file is never touched",
		Example: "  mcp-vdisk image create project --quota 1GiB\n  mcp-vdisk image create ./project.vdisk",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.imageArg(args); err != nil {
				return err
			}
			if err := q.limits(cmd, quota); err != nil {
				return exit.BadUsage(err)
			}
			q.JSON = a.json
			return a.simple(cmd, "image.create", q, front.OpenNew)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().StringVar(&q.Label, "label", "", "a `TEXT` for people")
	cmd.Flags().StringVar(&quota, "quota", "", "`SIZE` the disk may hold (default: the setting image.bytes)")
	cmd.Flags().Int64Var(&q.Entries, "entries", 0, "files, directories and links it may hold (default: the setting image.entries)")
	return cmd
}

// limits checks the limits that were given; a limit that was not stays zero.
func (q *createArgs) limits(cmd *cobra.Command, quota string) error {
	if cmd.Flags().Changed("quota") {
		n, err := parseSize(quota)
		if err == nil && n == 0 {
			err = errors.New("a disk must be able to hold something")
		}
		if err != nil {
			return fmt.Errorf("--quota: %w", err)
		}
		q.Bytes = n
	}
	if cmd.Flags().Changed("entries") && q.Entries < 1 {
		return fmt.Errorf("--entries: must be at least 1, is %d", q.Entries)
	}
	return nil
}

// imageArg takes the disk that a command names by its argument, if it does.
func (a *app) imageArg(args []string) error {
	if len(args) == 0 {
		return nil
	}
	if args[0] == "" {
		return exit.Fail(exit.Usage, "leave it out for the disk "+front.DefaultImage, "the name of the disk is empty")
	}
	a.Image = args[0]
	return nil
}

func backCreate(ctx context.Context, b *back) error {
	var q createArgs
	if err := b.args(&q); err != nil {
		return err
	}
	if q.Bytes > 0 {
		b.set.imageBytes = q.Bytes
	}
	if q.Entries > 0 {
		b.set.imageEntries = q.Entries
	}
	d, err := b.open(ctx, want{create: true, fresh: true, label: q.Label})
	if err != nil {
		return err
	}
	defer d.release()
	return b.showImage(ctx, d, q.JSON)
}

func (a *app) imageListCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the disks of the state directory",
		Example: "  mcp-vdisk image list",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.simple(cmd, "image.list", jsonArgs{a.json}, front.NoImage)
		},
	}
	a.jsonFlag(cmd.Flags())
	return cmd
}

type jsonArgs struct{ JSON bool }

// imageFacts is what `image show` and `list` tell of a disk.
type imageFacts struct {
	Name         string    `json:"name"`
	UUID         string    `json:"uuid,omitempty"`
	Label        string    `json:"label,omitempty"`
	Created      time.Time `json:"created"`
	Version      string    `json:"version"`
	Commit       string    `json:"commit"`
	Bytes        int64     `json:"bytes"`
	QuotaBytes   int64     `json:"quota_bytes"`
	Entries      int64     `json:"entries"`
	QuotaEntries int64     `json:"quota_entries"`
	FileBytes    int64     `json:"file_bytes"`
	LiveBytes    int64     `json:"live_bytes"` // of the directory that scripts see
	LiveFiles    int64     `json:"live_files"`
	Error        string    `json:"error,omitempty"`

	Sizes *sizeFacts `json:"sizes,omitempty"` // of show only: it takes a look at everything
}

// sizeFacts is what takes the room in the file of a disk, in bytes.
type sizeFacts struct {
	Head    int64  `json:"head"`
	History int64  `json:"history"`
	Held    int64  `json:"held"` // of the history, by checkpoints
	Budget  int64  `json:"history_budget"`
	Commits int64  `json:"commits"`
	Oldest  string `json:"oldest"`
	Pending int64  `json:"pending"`
	Unused  int64  `json:"unused"`
	Free    int64  `json:"free"`
}

func sizeFactsOf(s workspace.Sizes) *sizeFacts {
	return &sizeFacts{Head: s.Head, History: s.History, Held: s.Pinned, Budget: s.Budget, Commits: s.Commits, Oldest: versionText(s.Oldest),
		Pending: s.Pending, Unused: s.Unused, Free: s.Free}
}

func factsOf(name string, i workspace.Info) imageFacts {
	return imageFacts{Name: name, UUID: i.UUID, Label: i.Label, Created: i.Created, Version: versionText(i.Seq), Commit: i.Commit,
		Bytes: i.Bytes, QuotaBytes: i.QuotaBytes, Entries: i.Entries, QuotaEntries: i.QuotaEntries, FileBytes: i.FileSize}
}

func backList(_ context.Context, b *back) error {
	var q jsonArgs
	if err := b.args(&q); err != nil {
		return err
	}
	names, err := b.st.imageNames()
	if err != nil {
		return err
	}
	list := make([]imageFacts, 0, len(names))
	for _, name := range names {
		list = append(list, b.hub.factsOf(name))
	}
	if q.JSON {
		return b.printJSON(list)
	}
	if len(list) == 0 {
		b.printf("no disks yet; `mcp-vdisk serve` or `mcp-vdisk image create` makes one\n")
	}
	for _, f := range list {
		if f.Error != "" {
			b.printf("%-20s  %s\n", f.Name, f.Error)
			continue
		}
		b.printf("%-20s  %6s  %10s of %-8s  %7d entries  made %s  %s\n", f.Name, f.Version, showBytes(f.Bytes), showSize(f.QuotaBytes),
			f.Entries, f.Created.Local().Format(time.DateTime), safe(f.Label))
	}
	return nil
}

// factsOf reads one disk; a damaged one is told as such and hides no other.
func (h *hub) factsOf(name string) imageFacts {
	d, err := h.open(context.Background(), want{ref: front.ImageRef{Name: name}, readOnly: true})
	if err != nil {
		return imageFacts{Name: name, Error: err.Error()}
	}
	defer d.release()
	info, err := d.image.Info()
	if err != nil {
		return imageFacts{Name: name, Error: err.Error()}
	}
	return factsOf(name, info)
}

func (a *app) imageShowCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show [NAME|PATH]",
		Short:   "Show what a disk holds and may hold",
		Example: "  mcp-vdisk image show --image project",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.imageArg(args); err != nil {
				return err
			}
			return a.simple(cmd, "image.show", jsonArgs{a.json}, front.OpenRead)
		},
	}
	a.jsonFlag(cmd.Flags())
	return cmd
}

func backShow(ctx context.Context, b *back) error {
	var q jsonArgs
	d, err := b.begin(ctx, &q, true)
	if err != nil {
		return err
	}
	defer d.release()
	return b.showImage(ctx, d, q.JSON)
}

func (b *back) showImage(ctx context.Context, d *disk, asJSON bool) error {
	info, err := d.image.Info()
	if err != nil {
		return err
	}
	f := factsOf(b.req.Image.String(), info)
	if f.LiveFiles, f.LiveBytes, err = live.Size(b.st.path("live"), info.UUID); err != nil {
		return err
	}
	sizes, err := d.image.Sizes(ctx)
	switch {
	case err == nil:
		f.Sizes = sizeFactsOf(sizes)
	case errors.Is(err, workspace.ErrCorrupt):
		f.Error = err.Error()
	default:
		return err
	}
	if damage := d.image.Damage(); damage != nil {
		f.Error = damage.Error()
	}
	if asJSON {
		return b.printJSON(f)
	}
	b.printf("disk     %s\nuuid     %s\n", f.Name, f.UUID)
	if f.Label != "" {
		b.printf("label    %s\n", safe(f.Label))
	}
	b.printf("made     %s\nversion  %s, commit %.12s\nholds    %s of %s, %d of %d entries\nfile     %s\n",
		f.Created.Local().Format(time.DateTime), f.Version, f.Commit, showBytes(f.Bytes), showSize(f.QuotaBytes), f.Entries, f.QuotaEntries, showBytes(f.FileBytes))
	if s := f.Sizes; s != nil {
		b.showSizes(s)
	}
	if f.LiveBytes > 0 {
		b.printf("scripts  %s in %d files of the directory that they see, a cache\n", showBytes(f.LiveBytes), f.LiveFiles)
	}
	if f.Error != "" {
		b.printf("DAMAGED  %s\n", safe(f.Error))
	}
	return nil
}

// worthCompacting is so many free bytes that they are told: every file has some pages.
const worthCompacting = 64 << 10

// showSizes tells what is in the file.
func (b *back) showSizes(s *sizeFacts) {
	b.printf("head     %s stored\nhistory  %s of %s, %s from %s on", showBytes(s.Head), showBytes(s.History), showSize(s.Budget), plainCount(int(s.Commits), "commit"), s.Oldest)
	if s.Held > 0 {
		b.printf(", %s of it held by checkpoints", showBytes(s.Held))
	}
	b.printf("\n")
	for _, part := range []struct {
		name string
		n    int64
		what string
	}{
		{"pending", s.Pending, "of changes that are not saved yet"},
		{"unused", s.Unused, "that mcp-vdisk image gc frees"},
		{"free", s.Free, "of the file, which mcp-vdisk image gc --compact gives back"},
	} {
		if part.n > 0 && (part.name != "free" || part.n >= worthCompacting) {
			b.printf("%-8s %s %s\n", part.name, showBytes(part.n), part.what)
		}
	}
}

// showBytes is a size for people: exact up to a kilobyte, then rounded.
func showBytes(n int64) string {
	for _, u := range units[:4] {
		if n >= u.n {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.n), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// begin decodes the arguments of a verb and opens its disk.
func (b *back) begin(ctx context.Context, args any, readOnly bool) (*disk, error) {
	if err := b.args(args); err != nil {
		return nil, err
	}
	return b.open(ctx, want{readOnly: readOnly})
}

// admit is the right to change the disk now.
func (b *back) admit(d *disk) (workspace.Fence, error) {
	f, err := holder{r: d.right, who: b.operator(audit.Facts{})}.Admit()
	return f, d.refusal(err)
}

// change commits an operator's change: its record first, then the effect, then
// what came of it. The right to change the disk is asked for, and what is to be
// committed is found out by prepare, after the first record, so that a change which
// is refused there is in the log as well.
func (b *back) change(ctx context.Context, d *disk, ev audit.Event, args audit.Facts, prepare func() (workspace.Txn, error)) (workspace.Commit, error) {
	info := d.info
	rec := audit.Record{Ev: ev, Call: ulid.Make().String(), Img: info.UUID, Args: args}
	if err := b.st.record(ctx, info.UUID, rec); err != nil {
		return workspace.Commit{}, err
	}
	var done workspace.Commit
	var txn workspace.Txn
	fence, err := b.admit(d)
	if err == nil {
		txn, err = prepare()
	}
	if err == nil {
		txn.Call, txn.Actor, txn.Fence = rec.Call, "operator", fence
		done, err = d.image.Commit(ctx, txn)
	}
	rec.Out = &audit.Out{OK: err == nil, Changed: int64(len(done.Effects))}
	if err == nil {
		rec.Hb, rec.Ha = done.Heads()
	} else {
		rec.Reason = err.Error()
	}
	entry := audit.Entry{Record: rec, Changes: tools.ChangeFacts(done.Effects)}
	entry.Act, entry.Dec = "operator", "allow"
	if isRefusal(ctx, err) {
		entry.Dec, entry.Err = "deny", refusedErr
	}
	entry.Fence = fence.Token
	_, logErr := b.st.log.Note(context.WithoutCancel(ctx), info.UUID, entry)
	return done, cmp.Or(err, logErr)
}

// refusedErr is the error of a record of what an operator asked for and was refused.
const refusedErr = "REFUSED"

// isRefusal says that something was not done because it must not be.
func isRefusal(ctx context.Context, err error) bool {
	f := asFailure(ctx, err)
	return f != nil && f.Code == exit.Refused
}
