package hostcopy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Whole is a file of the caller that is there whole or not at all, mode 0600: it has no
// name before Keep, where the file system can do that, and one that tells what it is where
// it cannot. It is for one goroutine.
type Whole struct {
	f     *os.File
	named bool   // f has a name already, that of a part
	dir   string // where it will lie
	name  string
	force bool
}

// CreateWhole begins a file of this name. One that is there already is replaced only by
// force, and then only a regular file. A link is not gone through without force; by force
// what it leads to is replaced.
//
// Errors: *exit.Failure.
func CreateWhole(name string, force bool) (*Whole, error) {
	path, err := writable(name, force)
	if err != nil {
		return nil, err
	}
	w := &Whole{dir: filepath.Dir(path), name: path, force: force}
	if w.f, err = unnamed(w.dir); err != nil {
		w.named = true
		w.f, err = os.OpenFile(w.part(), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if err != nil {
		return nil, exit.Fail(exit.Failed, "", "write into %s: %s", w.dir, front.ErrText(err))
	}
	return w, nil
}

// writable says where a file of this name would lie, or why it must not.
func writable(name string, force bool) (string, error) {
	info, err := os.Lstat(name)
	if err == nil && info.Mode().Type() == fs.ModeSymlink {
		if !force {
			return "", exit.Fail(exit.Refused, "pass --force to write where it leads", "%s is a link", name)
		}
		real, err := filepath.EvalSymlinks(name)
		if err != nil {
			return "", exit.Fail(exit.Refused, "choose another place", "%s is a link that leads to nothing", name)
		}
		name = real
		info, err = os.Lstat(name)
		if err != nil {
			return "", exit.Fail(exit.Failed, "", "%s: %s", name, front.ErrText(err))
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if dir, derr := os.Stat(filepath.Dir(name)); derr != nil || !dir.IsDir() {
			return "", exit.Fail(exit.NotFound, "make the folder first", "there is no folder %s", filepath.Dir(name))
		}
	case err != nil:
		return "", exit.Fail(exit.Failed, "", "%s: %s", name, front.ErrText(err))
	case !info.Mode().IsRegular():
		return "", exit.Fail(exit.Refused, "choose another place", "%s is not a regular file; it is not replaced", name)
	case !force:
		return "", exit.Fail(exit.Refused, "pass --force to overwrite, or another name", "%s is there already", name)
	}
	return name, nil
}

func (w *Whole) part() string { return fmt.Sprintf("%s.%d.part", w.name, os.Getpid()) }

// Write writes to the file.
func (w *Whole) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	if err != nil {
		err = w.failed(err)
	}
	return n, err
}

func (w *Whole) failed(err error) error {
	hint := ""
	if hostos.IsNoSpace(err) {
		hint = "make room there; nothing was left behind"
	}
	return exit.Fail(exit.Failed, hint, "write %s: %s", w.name, front.ErrText(err))
}

// Keep makes the file durable and gives it its name.
func (w *Whole) Keep() error {
	err := w.f.Sync()
	if err == nil {
		err = w.publish()
	}
	if err == nil {
		err = hostos.SyncDir(w.dir)
	}
	w.Drop()
	switch {
	case errors.Is(err, fs.ErrExist):
		return exit.Fail(exit.Refused, "pass --force to overwrite, or another name", "%s is there already", w.name)
	case err != nil:
		return w.failed(err)
	}
	return nil
}

// publish gives the file its name. A name that is taken is replaced in one step, for which
// the file has to have one of its own first.
func (w *Whole) publish() error {
	if w.force && !w.named {
		if err := nameIt(w.f, w.part()); err != nil {
			return err
		}
		w.named = true
	}
	switch {
	case w.force:
		// It may be something else by now.
		if info, err := os.Lstat(w.name); err == nil && !info.Mode().IsRegular() {
			return fs.ErrExist
		}
		return os.Rename(w.part(), w.name)
	case w.named:
		err := os.Link(w.part(), w.name)
		if _, there := os.Lstat(w.name); err != nil && errors.Is(there, fs.ErrNotExist) {
			return os.Rename(w.part(), w.name) // not every file system has links
		}
		return err
	}
	return nameIt(w.f, w.name)
}

// Drop ends the use of the file, and removes it unless it was kept.
func (w *Whole) Drop() {
	w.f.Close()
	if w.named {
		os.Remove(w.part())
	}
}
