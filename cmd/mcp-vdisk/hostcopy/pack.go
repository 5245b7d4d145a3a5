package hostcopy

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
)

// Packer writes files and folders of the host to a stream. It is for one stream, and
// for one goroutine.
type Packer struct {
	Warn  io.Writer         // is told what is left out, and what tools run by themselves
	Entry func(name string) // is told each entry when it begins; may be nil
	Bytes io.Writer         // gets the content of files once more; may be nil
	Told  bool              // somebody else tells what tools run by themselves
	Dest  string            // where the stream goes, as far as that makes a difference to those

	Left int // entries that were left out

	t       *tar.Writer
	buf     []byte
	left    tally
	autorun tally
}

// Pack is Run of a Packer that tells warn alone.
func Pack(w io.Writer, sources, names []string, warn io.Writer) error {
	return (&Packer{Warn: warn}).Run(w, sources, names)
}

// SourceName is the name of a source in the stream: its last element, and "." for what
// has none of its own, such as "..": cp -R copies what is in those.
func SourceName(source string) string {
	switch name := filepath.Base(source); name {
	case "..", string(filepath.Separator):
		return "."
	default:
		return name
	}
}

// Run writes the sources to w as one tar stream, each under its name of names. A source
// that is a link is followed; links below a folder are stored as links. What is neither
// a file, a folder nor a link is left out, and so is what goes away or is replaced while
// it is copied. A file that grows meanwhile is cut at the length that it had.
//
// The bits of a mode beyond the nine permissions are dropped. Hard links become files.
//
// Errors: an *exit.Failure for what cannot be read, or shrank while it was; those of w.
// The stream is cut off then, without the end that tar has.
func (a *Packer) Run(w io.Writer, sources, names []string) error {
	a.t, a.buf = tar.NewWriter(w), make([]byte, copyBuffer)
	a.left = tally{w: a.Warn, what: "more were left out"}
	a.autorun = tally{w: a.Warn, what: "more files that tools run by themselves"}
	for i, s := range sources {
		if err := a.source(s, names[i]); err != nil {
			return err
		}
	}
	a.left.end()
	a.autorun.end()
	a.Left = a.left.count
	return a.t.Close()
}

// copyBuffer is how much of a file is read at a time.
const copyBuffer = 256 << 10

func (a *Packer) source(source, name string) error {
	info, err := os.Stat(source)
	if err != nil {
		return unreadable(source, err)
	}
	if info.IsDir() {
		root, err := os.OpenRoot(source)
		if err != nil {
			return unreadable(source, err)
		}
		defer root.Close()
		return a.dir(root, name)
	}
	// Not to wait for the writer of a pipe.
	f, err := os.OpenFile(source, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return unreadable(source, err)
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return unreadable(source, err)
	}
	if !info.Mode().IsRegular() {
		return NotRegular(source)
	}
	return a.file(f, info, name)
}

// NotRegular refuses a source that is neither a file nor a folder.
func NotRegular(source string) error {
	return exit.Fail(exit.Failed, "nothing was copied", "%s is not a regular file", Shown(source))
}

func unreadable(name string, err error) error {
	var said *exit.Failure
	if errors.As(err, &said) {
		return said
	}
	return exit.Fail(exit.Failed, "nothing was copied", "read %s: %s", Shown(name), front.ErrText(err))
}

// dir writes a folder that is open, and what is in it, in the order of names.
func (a *Packer) dir(root *os.Root, name string) error {
	info, names, err := look(root)
	if err != nil {
		return unreadable(name, err)
	}
	if a.Entry != nil {
		a.Entry(name)
	}
	if err := a.header(info, tar.TypeDir, name+"/", ""); err != nil {
		return err
	}
	for _, n := range names {
		if err := a.entry(root, n, name+"/"+n); err != nil {
			return err
		}
	}
	return nil
}

// look reads a directory that is open.
func look(root *os.Root) (fs.FileInfo, []string, error) {
	f, err := root.Open(".")
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return info, names, err
}

// entry writes what a folder has under a name.
func (a *Packer) entry(dir *os.Root, n, name string) error {
	info, err := dir.Lstat(n)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		a.leave(name, "it went away while it was copied")
		return nil
	case err != nil:
		return unreadable(name, err)
	case info.IsDir():
		return a.subdir(dir, n, name, info)
	case info.Mode()&fs.ModeSymlink != 0:
		return a.link(dir, n, name, info)
	case !info.Mode().IsRegular():
		a.leave(name, "neither a file, a folder nor a link")
		return nil
	}
	f, err := dir.OpenFile(n, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if gone, err := a.replaced(dir, n, name, info, err); gone || err != nil {
		return err
	}
	defer f.Close()
	now, err := f.Stat()
	if err != nil {
		return unreadable(name, err)
	}
	if !os.SameFile(info, now) || !now.Mode().IsRegular() {
		a.leave(name, "it was replaced while it was copied")
		return nil
	}
	return a.file(f, now, name)
}

func (a *Packer) subdir(dir *os.Root, n, name string, info fs.FileInfo) error {
	sub, err := dir.OpenRoot(n)
	if gone, err := a.replaced(dir, n, name, info, err); gone || err != nil {
		return err
	}
	defer sub.Close()
	if now, err := sub.Stat("."); err != nil || !os.SameFile(info, now) {
		a.leave(name, "it was replaced while it was copied")
		return nil
	}
	return a.dir(sub, name)
}

// replaced says of an error of opening whether that is because something else has the
// name by now, or had it when it was opened: a link where a file was, or a file where a
// link was. Any other is returned.
func (a *Packer) replaced(dir *os.Root, n, name string, info fs.FileInfo, err error) (bool, error) {
	if err == nil {
		return false, nil
	}
	other := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTDIR)
	if now, e := dir.Lstat(n); other || e != nil || !os.SameFile(info, now) {
		a.leave(name, "it was replaced while it was copied")
		return true, nil
	}
	return false, unreadable(name, err)
}

func (a *Packer) link(dir *os.Root, n, name string, info fs.FileInfo) error {
	to, err := dir.Readlink(n)
	if err != nil {
		_, err = a.replaced(dir, n, name, info, err)
		return err
	}
	a.begin(name)
	return a.header(info, tar.TypeSymlink, name, to)
}

func (a *Packer) leave(name, why string) {
	a.left.add("left out %s: %s", Shown(strings.TrimPrefix(name, "./")), why)
}

// begin notes that a file or a link is written.
func (a *Packer) begin(name string) {
	if a.Entry != nil {
		a.Entry(name)
	}
	if a.Told {
		return
	}
	_, rest, _ := strings.Cut(name, "/")
	for _, at := range []string{name, a.Dest + "/" + name, a.Dest + "/" + rest} {
		if why, ok := AutoRun(at); ok {
			a.autorun.add("note: %s: %s", Shown(strings.TrimPrefix(name, "./")), why)
			return
		}
	}
}

func (a *Packer) header(info fs.FileInfo, typ byte, name, to string) error {
	return a.t.WriteHeader(Header(&tar.Header{Typeflag: typ, Name: name, Linkname: to, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()}))
}

// file writes a file that is open.
func (a *Packer) file(f *os.File, info fs.FileInfo, name string) error {
	a.begin(name)
	h := Header(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()})
	if err := a.t.WriteHeader(h); err != nil {
		return err
	}
	var in io.Reader = f
	if a.Bytes != nil {
		in = io.TeeReader(f, a.Bytes)
	}
	n, err := io.CopyBuffer(onlyWriter{a.t}, io.LimitReader(in, info.Size()), a.buf)
	switch {
	case err != nil:
		return unreadable(name, err)
	case n < info.Size():
		return exit.Fail(exit.Failed, "nothing was copied; copy it again when nobody writes it", "%s became shorter while it was copied", Shown(name))
	}
	if now, err := f.Stat(); err == nil && now.Size() > n {
		fmt.Fprintf(a.Warn, "mcp-vdisk: %s grew while it was copied; its first %d bytes were\n", Shown(name), n)
	}
	return nil
}

// onlyWriter hides ReadFrom, so that a copy goes through the buffer.
type onlyWriter struct{ io.Writer }

// Measure tells how many bytes the files of some sources have, for a person who
// waits: what changes or cannot be read does not count, and is no error.
func Measure(sources []string) (bytes int64) {
	for _, s := range sources {
		if info, err := os.Stat(s); err == nil && info.Mode().IsRegular() {
			bytes += info.Size()
			continue
		}
		_ = filepath.WalkDir(s+string(filepath.Separator), func(_ string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil
			}
			if info, err := d.Info(); err == nil {
				bytes += info.Size()
			}
			return nil
		})
	}
	return bytes
}
