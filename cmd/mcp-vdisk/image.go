package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

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
		a.imageRestoreCmd(), a.imageUndoCmd(), a.imageFsckCmd())
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

// pathArg refuses a path inside the disk that would not reach the back as it is.
func pathArg(path string) error {
	if !utf8.ValidString(path) {
		return exit.Fail(exit.Usage, "such a name is reached in the quoted form, as mcp-vdisk image tree shows it",
			"the path %q is not valid UTF-8, and requests travel as JSON", path)
	}
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
	return b.showImage(d, q.JSON)
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
	return b.showImage(d, q.JSON)
}

func (b *back) showImage(d *disk, asJSON bool) error {
	info, err := d.image.Info()
	if err != nil {
		return err
	}
	f := factsOf(b.req.Image.String(), info)
	if f.LiveFiles, f.LiveBytes, err = live.Size(b.st.path("live"), info.UUID); err != nil {
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
	if f.LiveBytes > 0 {
		b.printf("scripts  %s in %d files of the directory that they see, a cache\n", showBytes(f.LiveBytes), f.LiveFiles)
	}
	if f.Error != "" {
		b.printf("DAMAGED  %s\n", safe(f.Error))
	}
	return nil
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

type pathArgs struct {
	Path      string
	Recursive bool
	JSON      bool
}

// onPath is simple for a command about a path inside the disk.
func (a *app) onPath(cmd *cobra.Command, verb string, q pathArgs, mode front.OpenMode) error {
	if err := pathArg(q.Path); err != nil {
		return err
	}
	return a.simple(cmd, verb, q, mode)
}

func (a *app) imageCatCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "cat PATH",
		Short:   "Print a file of the disk, byte for byte",
		Example: "  mcp-vdisk image cat /workspace/notes.md",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onPath(cmd, "image.cat", pathArgs{Path: args[0]}, front.OpenRead)
		},
	}
}

func backCat(ctx context.Context, b *back) error {
	q, p, d, err := b.openPath(ctx)
	if err != nil {
		return err
	}
	defer d.release()
	f, err := d.image.Open(p)
	if err != nil {
		return err
	}
	if err := b.recordGet(ctx, d.image, "cat", q.Path); err != nil {
		return err
	}
	_, err = io.Copy(b.stdout, f.Reader())
	return err
}

// begin decodes the arguments of a verb and opens its disk.
func (b *back) begin(ctx context.Context, args any, readOnly bool) (*disk, error) {
	if err := b.args(args); err != nil {
		return nil, err
	}
	return b.open(ctx, want{readOnly: readOnly})
}

// openPath opens the disk for a command that reads a path, and cleans the path.
func (b *back) openPath(ctx context.Context) (q pathArgs, p workspace.Path, d *disk, err error) {
	if err = b.args(&q); err != nil {
		return q, p, nil, err
	}
	if p, err = workspace.Clean(q.Path); err != nil {
		return q, p, nil, err
	}
	d, err = b.open(ctx, want{readOnly: true})
	return q, p, d, err
}

// recordGet records that a command is about to take something out of the disk.
func (b *back) recordGet(ctx context.Context, im *workspace.Image, command, path string) error {
	info, err := im.Info()
	if err != nil {
		return err
	}
	return b.st.record(ctx, info.UUID, audit.Record{Ev: audit.EvImageGet, Img: info.UUID, Args: audit.Facts{"command": command, "path": path}, Hb: info.Commit, Ha: info.Commit})
}

func (a *app) imageTreeCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "tree [PATH]",
		Short:   "Show a directory of the disk with everything in it",
		Example: "  mcp-vdisk image tree",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := pathArgs{Path: workspace.Mount}
			if len(args) == 1 {
				q.Path = args[0]
			}
			return a.onPath(cmd, "image.tree", q, front.OpenRead)
		},
	}
}

func backTree(ctx context.Context, b *back) error {
	_, p, d, err := b.openPath(ctx)
	if err != nil {
		return err
	}
	defer d.release()
	im := d.image
	p, n, err := im.Resolve(p)
	if err != nil {
		return err
	}
	b.printf("%s\n", p)
	if n.Kind != workspace.KindDir {
		return nil
	}
	return im.Walk(ctx, p, func(e workspace.Entry) error {
		indent := strings.Repeat("  ", e.Path.Depth()-p.Depth())
		switch e.Node.Kind {
		case workspace.KindDir:
			b.printf("%s%s/\n", indent, shownName(e.Path))
		case workspace.KindSymlink:
			b.printf("%s%s -> %q\n", indent, shownName(e.Path), e.Node.Target)
		default:
			b.printf("%s%s  %s\n", indent, shownName(e.Path), showBytes(e.Node.Size))
		}
		return nil
	})
}

// shownName is a name that is safe to print: odd ones are quoted.
func shownName(p workspace.Path) string {
	if s := p.String(); s[0] != '"' {
		return p.Base()
	}
	return fmt.Sprintf("%q", p.Base())
}

func (a *app) imageRmCmd() *cobra.Command {
	var q pathArgs
	cmd := &cobra.Command{
		Use:     "rm PATH",
		Short:   "Remove a file, a link or, with -r, a directory from the disk",
		Example: "  mcp-vdisk image rm -r /workspace/old",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Path = args[0]
			return a.onPath(cmd, "image.rm", q, front.OpenWrite)
		},
	}
	cmd.Flags().BoolVarP(&q.Recursive, "recursive", "r", false, "remove a directory with everything in it")
	return cmd
}

func backRemove(ctx context.Context, b *back) error {
	var q pathArgs
	if err := b.args(&q); err != nil {
		return err
	}
	p, refused := workspace.Clean(q.Path)
	d, err := b.open(ctx, want{})
	if err != nil {
		return cmp.Or(refused, err)
	}
	defer d.release()
	about := audit.Facts{"path": q.Path, "recursive": q.Recursive}
	done, err := b.change(ctx, d, audit.EvImageRm, about, func() (txn workspace.Txn, err error) {
		if refused != nil {
			return txn, refused
		}
		if p, err = d.image.ResolveParent(p); err != nil {
			return txn, err
		}
		return workspace.Txn{
			Message: "image rm", Changes: []workspace.Change{{Op: workspace.OpRemove, Path: p, Recursive: q.Recursive}},
		}, nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(b.stderr, "removed %s (%d)\n", p, len(done.Effects))
	return nil
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
	entry.Fence = fence.Token
	_, logErr := b.st.log.Note(context.WithoutCancel(ctx), info.UUID, entry)
	return done, cmp.Or(err, logErr)
}
