package live

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// linkFrom gives an empty tree the directories of another, and its files by hard
// links. The other one is only read, so a directory that its owner may not search
// is filled from the image instead, and so is a file that cannot be linked: the
// tree then has that at a later commit, which follow settles.
//
// Errors: errDrift when the other one turns out not to be what a tree is.
func (b *builder) linkFrom(from *tree) error {
	return b.linkDir(from.root, b.root, treeName, workspace.Path{})
}

func (b *builder) linkDir(from, to *os.Root, name string, p workspace.Path) error {
	st, err := from.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !st.IsDir():
		return errDrift
	case err != nil:
		return err
	}
	if err := b.makeDir(to, name); err != nil {
		return err
	}
	mode := st.Mode().Perm()
	if mode&0o500 != 0o500 {
		return b.fillClosed(to, name, p)
	}
	if err := b.linkInto(from, to, name, p); err != nil {
		return err
	}
	return setMode(to, name, uint32(mode))
}

// fillClosed writes a directory from the image. One that the image no longer
// has stays empty; the commit that took it is still to be applied.
func (b *builder) fillClosed(to *os.Root, name string, p workspace.Path) error {
	n, err := b.im.Lstat(p)
	if gone(err) || err == nil && n.Kind != workspace.KindDir {
		return nil
	} else if err != nil {
		return err
	}
	return (&scanner{b: b}).descend(to, name, p, &n)
}

func (b *builder) linkInto(from, to *os.Root, name string, p workspace.Path) error {
	src, err := from.OpenRoot(name)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := to.OpenRoot(name)
	if err != nil {
		return err
	}
	defer dst.Close()
	dirs, err := b.linkFiles(src, dst, p)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		child, err := p.Join(dir)
		if err != nil {
			return errDrift // the image cannot have it
		}
		if err := b.linkDir(src, dst, dir, child); err != nil {
			return err
		}
	}
	return nil
}

// linkFiles links what is in a directory and returns the names of the
// directories there.
func (b *builder) linkFiles(src, dst *os.Root, p workspace.Path) (dirs []string, err error) {
	in, err := src.Open(".")
	if err != nil {
		return nil, err
	}
	defer in.Close()
	out, err := dst.Open(".")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	names, err := in.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := context.Cause(b.ctx); err != nil {
			return nil, err
		}
		st, err := src.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, errDrift
		case err != nil:
			return nil, err
		case st.IsDir():
			dirs = append(dirs, name)
			continue
		case !st.Mode().IsRegular() && st.Mode().Type() != fs.ModeSymlink:
			return nil, errDrift
		}
		if err := b.room.take(entrySize); err != nil {
			return nil, err
		}
		if err := b.linkFile(in, out, dst, name, p); err != nil {
			return nil, err
		}
	}
	return dirs, nil
}

func (b *builder) linkFile(in, out *os.File, dst *os.Root, name string, dir workspace.Path) error {
	err := b.link(in, out, name)
	if err == nil {
		hostos.Failpoint("live.linked")
		return nil
	}
	if !unlinkable(err) {
		return err
	}
	p, err := dir.Join(name)
	if err != nil {
		return errDrift
	}
	n, err := b.im.Lstat(p)
	if gone(err) || err == nil && n.Kind == workspace.KindDir {
		return nil // that commit is still to be applied
	} else if err != nil {
		return err
	}
	return b.place(dst, name, p, &n)
}

// unlinkable says whether the file system cannot make this link, or no link at
// all (link(2): EMLINK, EPERM, EXDEV).
func unlinkable(err error) bool {
	return errors.Is(err, syscall.EMLINK) || errors.Is(err, syscall.EXDEV) ||
		errors.Is(err, syscall.EPERM) || errors.Is(err, errors.ErrUnsupported)
}
