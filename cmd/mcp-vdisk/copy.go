package main

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// Folders travel between front and back as a tar stream (archive/tar): the
// front touches the caller's files, the back the disk, and neither the other's.

type putArgs struct {
	Dest  string
	Names []string // top-level names in the stream
	Into  bool     // Dest is a directory to put them into
	Force bool
}

func (a *app) imagePutCmd() *cobra.Command {
	var q putArgs
	cmd := &cobra.Command{
		Use:     "put SOURCE… DEST",
		Short:   "Copy files and folders of this computer into the disk",
		Long:    "put copies into the disk as one commit, all or nothing. Links inside a folder are stored as links and never followed.",
		Example: "  mcp-vdisk image put report.csv /workspace/\n  mcp-vdisk image put ./data /workspace/data",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			sources := args[:len(args)-1]
			q.Dest = args[len(args)-1]
			if err := pathArg(q.Dest); err != nil {
				return err
			}
			q.Into = len(sources) > 1 || strings.HasSuffix(q.Dest, "/")
			for _, s := range sources {
				abs, err := filepath.Abs(s)
				if err != nil {
					return exit.BadUsage(err)
				}
				if _, err := os.Stat(abs); err != nil {
					return exit.Fail(exit.NotFound, "", "%s: %s", s, front.ErrText(err))
				}
				name := filepath.Base(abs)
				if slices.Contains(q.Names, name) {
					return exit.Fail(exit.Usage, "copy them one after the other, to different names", "two of the sources are called %s", name)
				}
				q.Names = append(q.Names, name)
			}
			return a.put(cmd.Context(), q, sources)
		},
	}
	cmd.Flags().BoolVar(&q.Force, "force", false, "overwrite files that are there")
	return cmd
}

func (a *app) put(ctx context.Context, q putArgs, sources []string) error {
	r, err := a.NewRequest("image.put", q)
	if err != nil {
		return err
	}
	pr, pw := io.Pipe()
	defer pr.Close()
	go func() { pw.CloseWithError(a.packAll(pw, sources, q.Names)) }()
	return a.Ask(ctx, r, front.OpenCreate, pr, a.Stdout)
}

func (a *app) packAll(w io.Writer, sources, names []string) error {
	t := tar.NewWriter(w)
	for i, s := range sources {
		if err := a.pack(t, s, names[i]); err != nil {
			return err
		}
	}
	return t.Close()
}

// pack writes a file or a folder of the host to the stream. Links below it are
// not followed, which os.Root holds against a link that is swapped in.
func (a *app) pack(t *tar.Writer, source, name string) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		// Not to wait for the writer of a pipe; packFile refuses one.
		f, err := os.OpenFile(source, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		return packFile(t, f, name)
	}
	root, err := os.OpenRoot(source)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return a.packEntry(t, root, p, path.Join(name, p), d)
	})
}

func (a *app) packEntry(t *tar.Writer, root *os.Root, p, name string, d fs.DirEntry) error {
	info, err := root.Lstat(p)
	if err != nil {
		return err
	}
	switch {
	case info.IsDir():
		return t.WriteHeader(header(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()}))
	case info.Mode()&fs.ModeSymlink != 0:
		to, err := root.Readlink(p)
		if err != nil {
			return err
		}
		return t.WriteHeader(header(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777, ModTime: info.ModTime()}))
	case !info.Mode().IsRegular():
		fmt.Fprintf(a.Stderr, "mcp-vdisk: left out %s: neither a file, a folder nor a link\n", name)
		return nil
	}
	f, err := root.OpenFile(p, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return packFile(t, f, name)
}

func packFile(t *tar.Writer, f *os.File, name string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", name)
	}
	h := header(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()})
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	// A file that grows meanwhile is cut, one that shrinks fails the copy.
	if _, err := io.CopyN(t, f, info.Size()); err != nil {
		return fmt.Errorf("%s changed while it was copied: %w", name, err)
	}
	return nil
}

// header chooses a tar format that holds the names as they are: PAX has times
// to the nanosecond but only UTF-8 names, GNU has any bytes.
func header(h *tar.Header) *tar.Header {
	h.Format = tar.FormatPAX
	if !utf8.ValidString(h.Name) || !utf8.ValidString(h.Linkname) {
		h.Format = tar.FormatGNU
	}
	return h
}

func backPut(ctx context.Context, b *back) error {
	var q putArgs
	if err := b.args(&q); err != nil {
		return err
	}
	dest, refused := workspace.Clean(q.Dest)
	// A refusal goes into the disk's log, but no disk is made for it.
	d, err := b.open(ctx, want{create: refused == nil})
	if err != nil {
		return cmp.Or(refused, err)
	}
	defer d.release()
	im := d.image
	stage := im.Stage(ctx)
	defer stage.Discard()
	about := audit.Facts{"path": q.Dest, "names": q.Names, "force": q.Force}
	done, err := b.change(ctx, d, audit.EvImagePut, about, func() (txn workspace.Txn, err error) {
		if refused != nil {
			return txn, refused
		}
		if dest, err = resolveDest(im, dest, &q); err != nil {
			return txn, err
		}
		changes, err := unpackChanges(tar.NewReader(b.stdin), stage, dest, q)
		return workspace.Txn{Message: "image put", Stage: stage, Changes: changes, Admit: q.admit}, err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(b.stderr, "put %s into %s (%d changed)\n", safe(strings.Join(q.Names, ", ")), dest, len(done.Effects))
	return nil
}

// resolveDest follows links to the destination and, as cp does, takes one that
// is a directory as the place to put things into.
func resolveDest(im *workspace.Image, dest workspace.Path, q *putArgs) (workspace.Path, error) {
	p, n, err := im.Resolve(dest)
	switch {
	case err == nil && n.Kind == workspace.KindDir:
		q.Into = true
		return p, nil
	case err == nil:
		if q.Into {
			return p, &workspace.Error{Op: "put", Path: p, Kind: workspace.ErrNotDirectory}
		}
		return p, nil
	case errors.Is(err, workspace.ErrNotFound):
		return im.ResolveParent(dest)
	}
	return p, err
}

// admit refuses to overwrite files unless the person said so.
func (q putArgs) admit(effects []workspace.Effect) error {
	for _, e := range effects {
		if !q.Force && e.Before != nil && e.Before.Kind != workspace.KindDir && (e.What == workspace.Modified || e.What == workspace.Deleted) {
			return exit.Fail(exit.Refused, "pass --force to overwrite", "%s is there already and differs; nothing was copied", e.Path)
		}
	}
	return nil
}

// unpackChanges reads the stream into the stage and makes changes of it.
func unpackChanges(t *tar.Reader, stage *workspace.Stage, dest workspace.Path, q putArgs) ([]workspace.Change, error) {
	var changes []workspace.Change
	for {
		h, err := t.Next()
		if err == io.EOF {
			return changes, nil
		}
		if err != nil {
			return nil, exit.Fail(exit.Failed, "nothing was copied", "the copy broke off: %s", err)
		}
		p, err := q.place(dest, h.Name)
		if err != nil {
			return nil, err
		}
		c := workspace.Change{Path: p, Mode: uint32(h.Mode) & 0o777, ModTime: h.ModTime, Parents: true}
		switch h.Typeflag {
		case tar.TypeDir:
			c.Op = workspace.OpMkdir
		case tar.TypeSymlink:
			c.Op, c.Target = workspace.OpSymlink, h.Linkname
		case tar.TypeReg:
			c.Op = workspace.OpPut
			if c.Content, err = stage.Add(t); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("unexpected type %q in the stream", h.Typeflag)
		}
		if !p.IsRoot() {
			changes = append(changes, c)
		}
	}
}

// place is where an entry of the stream goes: below dest under its own name, or
// in place of it.
func (q putArgs) place(dest workspace.Path, name string) (workspace.Path, error) {
	name = strings.TrimSuffix(name, "/")
	if !q.Into {
		_, name, _ = strings.Cut(name, "/")
	}
	full := strings.TrimPrefix(dest.Rel()+"/"+name, "/")
	return workspace.FromBytes([]byte(strings.TrimSuffix(full, "/")))
}

type getArgs struct{ Path string }

func (a *app) imageGetCmd() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "get PATH [DEST]",
		Short:   "Copy a file or folder of the disk to this computer",
		Long:    "get copies out of the disk. It never follows a link of this computer, never makes one that leads out of what is copied, and overwrites only with --force.",
		Example: "  mcp-vdisk image get /workspace/chart.svg .\n  mcp-vdisk image get /workspace/out ./results",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := pathArg(args[0]); err != nil {
				return err
			}
			dest := "."
			if len(args) == 2 {
				dest = args[1]
			}
			return a.get(cmd.Context(), args[0], dest, force)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "overwrite files that are there")
	return cmd
}

func (a *app) get(ctx context.Context, from, dest string, force bool) error {
	r, err := a.NewRequest("image.get", getArgs{from})
	if err != nil {
		return err
	}
	pr, pw := io.Pipe()
	u := &unpacker{dest: dest, force: force, warn: a.Stderr}
	done := make(chan error, 1)
	go func() {
		err := u.run(tar.NewReader(pr))
		pr.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
		done <- err
	}()
	err = a.Ask(ctx, r, front.OpenRead, nil, pw)
	pw.CloseWithError(cmp.Or(err, io.EOF))
	if unpackErr := <-done; unpackErr != nil && (err == nil || errors.Is(err, unpackErr)) {
		return unpackErr
	}
	if err == nil {
		fmt.Fprintf(a.Stderr, "got %s (%s)\n", u.shown, entries(u.count))
	}
	return err
}

func entries(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}

// unpacker writes a stream to the host, below one directory, through os.Root.
type unpacker struct {
	dest  string
	force bool
	warn  io.Writer

	root  *os.Root
	name  string // in root, in place of the stream's top-level name
	shown string
	count int
}

func (u *unpacker) run(t *tar.Reader) error {
	for {
		h, err := t.Next()
		if err == io.EOF {
			if u.root != nil {
				u.root.Close()
			}
			return nil
		}
		if err != nil {
			return err
		}
		top, rest, _ := strings.Cut(strings.TrimSuffix(h.Name, "/"), "/")
		if u.root == nil {
			if err := u.open(top); err != nil {
				return err
			}
		}
		if err := u.entry(t, h, path.Join(u.name, rest)); err != nil {
			return err
		}
		u.count++
	}
}

// open finds the directory to write below: dest itself if it is one, else the
// directory that dest is to be made in.
func (u *unpacker) open(top string) error {
	dir, name := u.dest, top
	if info, err := os.Stat(u.dest); err != nil || !info.IsDir() {
		dir, name = filepath.Dir(u.dest), filepath.Base(u.dest)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return exit.Fail(exit.NotFound, "", "%s: %s", dir, front.ErrText(err))
	}
	u.root, u.name, u.shown = root, name, filepath.Join(dir, name)
	return nil
}

func (u *unpacker) entry(t *tar.Reader, h *tar.Header, name string) error {
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.root.Mkdir(name, 0o755)
		if info, lerr := u.root.Lstat(name); errors.Is(err, fs.ErrExist) && lerr == nil && info.IsDir() {
			err = nil
		}
	case tar.TypeSymlink:
		err = u.link(h.Linkname, name)
	default:
		err = u.file(t, h, name)
	}
	var said *exit.Failure
	if errors.As(err, &said) {
		return said
	}
	if errors.Is(err, fs.ErrExist) {
		return exit.Fail(exit.Refused, "pass --force to overwrite, or another place", "%s is there already", filepath.Join(u.root.Name(), name))
	}
	if err != nil {
		return exit.Fail(exit.Failed, "", "write %s: %s", filepath.Join(u.root.Name(), name), front.ErrText(err))
	}
	return nil
}

// link makes a link that stays within what is copied; another is left out.
func (u *unpacker) link(to, name string) error {
	inside := path.Join(path.Dir(name), to)
	if path.IsAbs(to) || inside != u.name && !strings.HasPrefix(inside, u.name+"/") {
		fmt.Fprintf(u.warn, "mcp-vdisk: left out the link %q: it leads to %q, out of what is copied\n", name, to)
		return nil
	}
	if err := u.replaceable(name); err != nil {
		return err
	}
	if u.force {
		u.root.Remove(name)
	}
	return u.root.Symlink(to, name)
}

// replaceable says whether name may be written: it is free or, by force, a file
// or a link. Whoever names a device or a pipe means to write to it, and would
// lose it to a file of the same name.
func (u *unpacker) replaceable(name string) error {
	info, err := u.root.Lstat(name)
	switch {
	case err != nil:
		return nil // it is not there, or writing tells why not
	case !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeSymlink:
		return exit.Fail(exit.Refused, "choose another place", "%s is neither a file nor a link; it is not replaced", filepath.Join(u.root.Name(), name))
	case !u.force:
		return fs.ErrExist
	}
	return nil
}

// file writes a file whole or not at all: under another name first, then in
// place of what is there if that may be overwritten.
func (u *unpacker) file(t *tar.Reader, h *tar.Header, name string) error {
	if err := u.replaceable(name); err != nil {
		return err
	}
	tmp := fmt.Sprintf("%s.%d.part", name, os.Getpid())
	f, err := u.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, os.FileMode(h.Mode)&0o777)
	if err != nil {
		return err
	}
	defer u.root.Remove(tmp)
	_, err = io.Copy(f, t)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := u.root.Chtimes(tmp, h.ModTime, h.ModTime); err != nil {
		return err
	}
	if u.force {
		return u.root.Rename(tmp, name)
	}
	return u.root.Link(tmp, name)
}

func backGet(ctx context.Context, b *back) error {
	var q getArgs
	if err := b.args(&q); err != nil {
		return err
	}
	p, err := workspace.Clean(q.Path)
	if err != nil {
		return err
	}
	d, err := b.open(ctx, want{readOnly: true})
	if err != nil {
		return err
	}
	defer d.release()
	im := d.image
	p, n, err := im.Resolve(p)
	if err != nil {
		return err
	}
	if err := b.recordGet(ctx, im, "get", q.Path); err != nil {
		return err
	}
	t := tar.NewWriter(b.stdout)
	top := p.Base()
	if p.IsRoot() {
		top = "workspace"
	}
	if err := packNode(t, im, p, n, top); err != nil {
		return err
	}
	if n.Kind == workspace.KindDir {
		err = im.Walk(ctx, p, func(e workspace.Entry) error {
			rest := strings.TrimPrefix(strings.TrimPrefix(e.Path.Rel(), p.Rel()), "/")
			return packNode(t, im, e.Path, e.Node, path.Join(top, rest))
		})
	}
	return cmp.Or(err, t.Close())
}

func packNode(t *tar.Writer, im *workspace.Image, p workspace.Path, n workspace.Node, name string) error {
	h := &tar.Header{Name: name, Mode: int64(n.Mode), ModTime: n.ModTime, Typeflag: tar.TypeReg, Size: n.Size}
	switch n.Kind {
	case workspace.KindDir:
		h.Typeflag, h.Size, h.Name = tar.TypeDir, 0, name+"/"
	case workspace.KindSymlink:
		h.Typeflag, h.Size, h.Linkname = tar.TypeSymlink, 0, n.Target
	}
	if err := t.WriteHeader(header(h)); err != nil || n.Kind != workspace.KindFile {
		return err
	}
	f, err := im.Open(p)
	if err != nil {
		return err
	}
	_, err = io.Copy(t, f.Reader())
	return err
}
