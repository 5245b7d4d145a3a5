package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/hostcopy"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/archive"
)

type importDiskArgs struct {
	Source   string // for the log
	Label    string
	HasLabel bool
	Bytes    int64 // 0 is the setting
	Entries  int64
	Columns  int // of the terminal that progress is shown on, 0 for none
	JSON     bool
}

func (a *app) imageImportCmd() *cobra.Command {
	var q importDiskArgs
	var quota string
	cmd := &cobra.Command{
		Use:   "import FILE|FOLDER|- NAME",
		Short: "Make a disk of an exported disk, an archive or a folder",
		Long: `import makes the disk NAME, which must not exist, of one of these, whole or not at all:

  a .vdisk file   with its history and checkpoints. All of it is checked first. It keeps
                  its uuid, unless a disk of this state directory has that
  an archive      tar, plain or in zstd or gzip, of image export or any other program
  a folder        of this computer; links in it are stored and never followed

- is standard input. What the file is, its first bytes say. An archive is refused for
one entry that a disk cannot hold: a name with "..", two entries of one name, a device.
Setuid, setgid and sticky bits are dropped. Its files may be as large as image.bytes
and image.entries say, or --quota and --entries.`,
		Example: "  mcp-vdisk image import project.vdisk project\n  mcp-vdisk image import sources.tar.gz sources --quota 8GiB\n  mcp-vdisk image import ./folder folder",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			limits := createArgs{Entries: q.Entries}
			if err := limits.limits(cmd, quota); err != nil {
				return exit.BadUsage(err)
			}
			if _, err := newDisk(args[1]); err != nil {
				return err
			}
			a.Image = args[1]
			q.Bytes, q.JSON, q.HasLabel = limits.Bytes, a.json, cmd.Flags().Changed("label")
			q.Source, q.Columns = strings.ToValidUTF8(args[0], "\uFFFD"), columnsOf(a.Stderr)
			return a.importDisk(cmd.Context(), q, args[0])
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().StringVar(&q.Label, "label", "", "a `TEXT` for people (default: that of the exported disk)")
	cmd.Flags().StringVar(&quota, "quota", "", "`SIZE` the disk may hold (default: the setting image.bytes)")
	cmd.Flags().Int64Var(&q.Entries, "entries", 0, "files, directories and links it may hold (default: the setting image.entries)")
	return cmd
}

// newDisk takes the name of a disk that is going to be made in the state directory.
func newDisk(name string) (front.ImageRef, error) {
	ref, err := front.ParseImage(name)
	if err == nil && ref.Path != "" {
		err = exit.Fail(exit.Usage, "choose a name; mcp-vdisk image export FILE makes a file elsewhere", "%s is a path, and the disk is made in the state directory", name)
	}
	return ref, err
}

func (a *app) importDisk(ctx context.Context, q importDiskArgs, source string) error {
	r, err := a.NewRequest("image.import", q)
	if err != nil {
		return err
	}
	in, size, err := a.importSource(source)
	if err != nil {
		return err
	}
	defer in.Close()
	r.Long = true
	bar := newMeter(a.Stderr, "import", size)
	err = a.Ask(ctx, r, front.NoImage, io.TeeReader(in, bar), a.Stdout)
	bar.end()
	return err
}

// importSource opens what is imported; size is 0 when it is not known.
func (a *app) importSource(source string) (in io.ReadCloser, size int64, err error) {
	if source == "-" {
		if f, ok := a.Stdin.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			return nil, 0, exit.Fail(exit.Usage, "name a file, or send it by < or |", "standard input is a terminal")
		}
		return io.NopCloser(a.Stdin), 0, nil
	}
	info, err := os.Stat(source)
	if err != nil {
		return nil, 0, exit.Fail(exit.NotFound, "", "%s: %s", source, front.ErrText(err))
	}
	if info.IsDir() {
		pr, pw := io.Pipe()
		p := &hostcopy.Packer{Warn: a.Stderr, Told: true}
		go func() { pw.CloseWithError(p.Run(pw, []string{source}, []string{"."})) }()
		return pr, 0, nil
	}
	f, err := os.OpenFile(source, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not keep us waiting
	if err != nil {
		return nil, 0, exit.Fail(exit.Failed, "", "open %s: %s", source, front.ErrText(err))
	}
	if info, err = f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, 0, exit.Fail(exit.Refused, "send what it gives to standard input, and name -", "%s is neither a regular file nor a folder", source)
	}
	return f, info.Size(), nil
}

// importedFacts is what `image import --json` prints.
type importedFacts struct {
	imageFacts
	Format   archive.Format `json:"format"`
	Content  string         `json:"content"`            // digest
	Was      string         `json:"was_uuid,omitempty"` // of the file, when it is another
	Special  int64          `json:"special_bits_dropped,omitempty"`
	Copied   int64          `json:"hard_links_copied,omitempty"`
	Clashes  int64          `json:"case_clashes,omitempty"`
	NotNFC   int64          `json:"names_not_nfc,omitempty"`
	AutoRun  int            `json:"auto_run,omitempty"`
	warnings []string
}

func backImport(ctx context.Context, b *back) error {
	var q importDiskArgs
	if err := b.args(&q); err != nil {
		return err
	}
	q.Bytes, q.Entries = cmp.Or(q.Bytes, b.set.imageBytes), cmp.Or(q.Entries, b.set.imageEntries)
	about := b.operator(audit.Facts{"image": b.req.Image.String(), "source": q.Source, "bytes": q.Bytes, "entries": q.Entries})
	rec := audit.Record{Ev: audit.EvImageImport, Args: about}
	if err := b.st.record(ctx, audit.StreamSystem, rec); err != nil {
		return err
	}
	f, err := b.importAny(ctx, q, rec)
	if err != nil {
		// The stream of the disk has what came of it when it was made, which it was not.
		rec.Out, rec.Reason = &audit.Out{}, err.Error()
		return cmp.Or(err, b.st.record(context.WithoutCancel(ctx), audit.StreamSystem, rec))
	}
	for _, w := range f.warnings {
		fmt.Fprintf(b.stderr, "mcp-vdisk: %s\n", w)
	}
	if q.JSON {
		return b.printJSON(f)
	}
	b.printf("imported %s: disk %s at %s, %s, %s\nuuid %s\ncontent digest %s\n",
		safe(q.Source), f.Name, f.Version, entries(int(f.Entries)), showBytes(f.Bytes), f.UUID, f.Content)
	return nil
}

// importAny makes the disk. It is made beside the others under a name that no disk has,
// which the next start removes.
func (b *back) importAny(ctx context.Context, q importDiskArgs, rec audit.Record) (f importedFacts, err error) {
	if err := b.nameIsFree(); err != nil {
		return f, err
	}
	in := bufio.NewReaderSize(b.stdin, archive.SniffBytes)
	head, err := in.Peek(archive.SniffBytes)
	if err != nil && err != io.EOF {
		return f, brokeOff(ctx, err)
	}
	tmp, err := workspace.Temp(b.st.path("images"))
	if err != nil {
		return f, err
	}
	defer os.Remove(tmp.Name())
	if archive.Sniff(head) == archive.Vdisk {
		f, err = b.importVdisk(ctx, q, rec, in, tmp)
	} else {
		f, err = b.importTree(ctx, q, rec, in, tmp)
	}
	return f, err
}

// nameIsFree refuses the name of a disk that is there.
func (b *back) nameIsFree() error {
	if _, err := os.Lstat(b.hub.pathOf(b.req.Image)); err == nil {
		return b.nameIsTaken()
	}
	return nil
}

func (b *back) nameIsTaken() error {
	return exit.Fail(exit.Refused, "choose another name; an existing disk is never overwritten", "there is a disk %s already", b.req.Image)
}

// brokeOff is why what the front sends ended early.
func brokeOff(ctx context.Context, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) && ctx.Err() == nil {
		return exit.Fail(exit.Failed, "nothing was imported", "the copy broke off: %s", err)
	}
	return err
}

// place gives a disk that was made in a file its name. What is recorded in its stream
// before is what the disk then is.
func (b *back) place(ctx context.Context, tmp, uuid string, e audit.Entry) error {
	e.Act, e.Dec, e.Img = "operator", "allow", uuid
	if _, err := b.st.log.Append(ctx, uuid, e); err != nil {
		return err
	}
	err := workspace.Place(tmp, b.hub.pathOf(b.req.Image))
	if errors.Is(err, workspace.ErrExists) {
		err = b.nameIsTaken()
	}
	if err != nil {
		e.Changes, e.Call, e.Ha, e.Hb = nil, "", "", ""
		e.Out, e.Reason = &audit.Out{}, err.Error()
		_, logErr := b.st.log.Append(context.WithoutCancel(ctx), uuid, e)
		return cmp.Or(err, logErr)
	}
	return nil
}

// importTree makes a disk of an archive, by one commit.
func (b *back) importTree(ctx context.Context, q importDiskArgs, rec audit.Record, r io.Reader, tmp *os.File) (f importedFacts, err error) {
	a, err := archive.Open(ctx, r, archive.Limits{Bytes: q.Bytes, Entries: q.Entries})
	if err != nil {
		tmp.Close()
		return f, importError(ctx, err)
	}
	defer a.Close()
	if !q.HasLabel && a.Stated != nil {
		q.Label = a.Stated.Label
	}
	im, err := workspace.Create(tmp.Name(), workspace.CreateOptions{File: tmp, Label: q.Label, QuotaBytes: q.Bytes, QuotaEntries: q.Entries, Reserve: uint64(b.set.minFree)})
	if err != nil {
		return f, err
	}
	defer im.Close()
	stage := im.Stage(ctx)
	defer stage.Discard()
	changes, rep, err := a.Import(stage)
	if err != nil {
		return f, importError(ctx, err)
	}
	rec.Call = ulid.Make().String()
	done, err := im.Commit(ctx, workspace.Txn{Call: rec.Call, Actor: "operator", Message: "image import", Stage: stage, Changes: changes})
	if err != nil {
		return f, importError(ctx, err)
	}
	if f, err = b.madeFacts(ctx, im, rep.Format); err != nil {
		return f, err
	}
	f.tell(rep, changes)
	if err := im.Close(); err != nil {
		return f, err
	}
	rec.Hb, rec.Ha = done.Heads()
	rec.Out = &audit.Out{OK: true, Changed: int64(len(done.Effects))}
	return f, b.place(ctx, tmp.Name(), f.UUID, audit.Entry{Record: rec, Changes: tools.ChangeFacts(done.Effects)})
}

// madeFacts describes a disk that has no name yet.
func (b *back) madeFacts(ctx context.Context, im *workspace.Image, format archive.Format) (f importedFacts, err error) {
	info, err := im.Info()
	if err != nil {
		return f, err
	}
	digest, _, err := im.ContentDigest(ctx)
	return importedFacts{imageFacts: factsOf(b.req.Image.String(), info), Format: format, Content: hex.EncodeToString(digest[:])}, err
}

// importError gives what is wrong with an archive its exit code.
func importError(ctx context.Context, err error) error {
	var e *archive.Error
	switch {
	case !errors.As(err, &e):
		return brokeOff(ctx, err)
	case e.Kind == archive.ErrTooLarge && e.OfDisk:
		return exit.Because(err, exit.Refused, "--quota and --entries let in more; nothing was imported", "%s", e)
	case e.Kind == archive.ErrEntry, e.Kind == archive.ErrTooLarge:
		return exit.Because(err, exit.Refused, "nothing was imported", "%s", e)
	}
	return exit.Because(err, exit.Verify, "nothing was imported", "%s", e)
}

// tell adds what the person should know of an archive.
func (f *importedFacts) tell(rep archive.Report, changes []workspace.Change) {
	f.Special, f.Copied, f.Clashes, f.NotNFC = rep.Special, rep.Copied, rep.ClashCount, rep.NFCCount
	if rep.Special > 0 {
		f.warn("%s had a setuid, setgid or sticky bit, which was dropped", entries(int(rep.Special)))
	}
	if rep.Copied > 0 {
		f.warn("%s: each became a file of its own", plainCount(int(rep.Copied), "hard link"))
	}
	for _, c := range rep.Clashes[:min(len(rep.Clashes), shownNames)] {
		f.warn("%s and %s differ only in how their letters are written: a computer that does not tell that cannot hold both", c[0], c[1])
	}
	f.more(rep.ClashCount, "such pair")
	for _, p := range rep.NotNFC[:min(len(rep.NotNFC), shownNames)] {
		f.warn("%s is not in Unicode form NFC: it may not be found by a name that looks the same", p)
	}
	f.more(rep.NFCCount, "such name")
	names := autoRun(changes)
	f.AutoRun = len(names)
	for _, p := range names[:min(len(names), shownNames)] {
		why, _ := hostcopy.AutoRun(p.Rel())
		f.warn("%s: %s; look at it before you copy it out", p, why)
	}
	f.more(int64(len(names)), "such file")
}

// shownNames is how many names a warning lists.
const shownNames = 10

func (f *importedFacts) warn(format string, a ...any) {
	f.warnings = append(f.warnings, harmless(fmt.Sprintf(format, a...)))
}

func (f *importedFacts) more(n int64, what string) {
	if n > shownNames {
		f.warn("… and %s more", plainCount(int(n-shownNames), what))
	}
}

// autoRun are the paths of files that tools of programmers run by themselves.
func autoRun(changes []workspace.Change) (paths []workspace.Path) {
	for _, c := range changes {
		if _, ok := hostcopy.AutoRun(c.Path.Rel()); ok && c.Op != workspace.OpMkdir {
			paths = append(paths, c.Path)
		}
	}
	return paths
}
