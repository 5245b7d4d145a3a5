package sandboxrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// workTree is a directory that the changes of runs are applied to. All of it belongs
// to this process; it is used by one goroutine at a time.
type workTree struct {
	path string
	root *os.Root // with the tree and what is to become part of it
}

const (
	treeDir = "tree"
	newDir  = "new"
)

// newWorkTree makes a tree in dir, with the content of source, "" for none.
func newWorkTree(ctx context.Context, dir, source string) (*workTree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, setupFailed("the scratch directory cannot be used: "+errnoText(err), "", "")
	}
	t := &workTree{path: dir, root: root}
	err = root.Mkdir(treeDir, 0o755)
	if err == nil && source != "" {
		err = t.copy(ctx, source)
	}
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("sandboxrun: copy of the workspace: %w", err)
	}
	return t, nil
}

func (t *workTree) dir() string { return filepath.Join(t.path, treeDir) }

func (t *workTree) close() { t.root.Close() }

// copy fills the tree from a directory of the host: regular files, directories
// and links. It follows no link, whatever happens to the source meanwhile.
func (t *workTree) copy(ctx context.Context, source string) error {
	from, err := os.OpenRoot(source)
	if err != nil {
		return err
	}
	defer from.Close()
	c, err := t.collect(1<<63 - 1)
	if err != nil {
		return err
	}
	if err := copyDir(ctx, from, ".", c); err != nil {
		return errors.Join(err, c.drop())
	}
	return c.apply()
}

func copyDir(ctx context.Context, from *os.Root, dir string, c *collection) error {
	list, err := listDir(from, dir)
	if err != nil {
		return err
	}
	for _, d := range list {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		name := path.Join(dir, d.Name())
		if err := copyEntry(from, name, d, c); err != nil {
			return err
		}
		if d.IsDir() {
			if err := copyDir(ctx, from, name, c); err != nil {
				return err
			}
		}
	}
	return nil
}

func copyEntry(from *os.Root, name string, d fs.DirEntry, c *collection) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	ch := Change{Path: []byte(name), Mode: uint32(info.Mode().Perm()), ModTime: info.ModTime()}
	switch d.Type() {
	case fs.ModeDir:
		ch.Kind = Dir
	case fs.ModeSymlink:
		target, err := from.Readlink(name)
		if err != nil {
			return err
		}
		ch.Kind, ch.Target = Symlink, []byte(target)
	case 0:
		f, info, err := openRegular(from, name)
		if err != nil {
			return err
		}
		defer f.Close()
		ch.Kind, ch.Size, ch.Body = File, info.Size(), f
	default:
		return nil
	}
	return c.add(ch)
}

// listDir lists a directory in the order of the bytes of its names. Paths are
// not for io/fs here, which takes only those that are UTF-8.
func listDir(root *os.Root, name string) ([]fs.DirEntry, error) {
	d, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	list, err := d.ReadDir(-1)
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return list, err
}

// openRegular opens a file, and nothing else that took its place.
func openRegular(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// collection is what one run has changed, kept beside the tree until it is
// known that the run has a result.
type collection struct {
	t       *workTree
	changes []Change
	room    int64 // bytes of files that may still come
}

// collect begins a collection of at most so many bytes.
func (t *workTree) collect(room int64) (*collection, error) {
	return &collection{t: t, room: room}, t.root.Mkdir(newDir, 0o700)
}

// add keeps a change. It is the callback of Runner.Run.
func (c *collection) add(ch Change) error {
	if ch.Kind == File {
		if c.room -= ch.Size; c.room < 0 {
			return fmt.Errorf("%w: the files that the command left are larger than it may write", ErrPolicy)
		}
		if err := c.keep(len(c.changes), ch); err != nil {
			return err
		}
	}
	ch.Path, ch.Target, ch.Body = clone(ch.Path), clone(ch.Target), nil
	c.changes = append(c.changes, ch)
	return nil
}

func (c *collection) name(i int) string { return path.Join(newDir, strconv.Itoa(i)) }

func (c *collection) keep(i int, ch Change) error {
	f, err := c.t.root.OpenFile(c.name(i), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, ch.Body)
	if err == nil {
		err = f.Chmod(fs.FileMode(ch.Mode))
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = c.t.root.Chtimes(c.name(i), ch.ModTime, ch.ModTime)
	}
	return err
}

// drop forgets the changes.
func (c *collection) drop() error { return c.t.root.RemoveAll(newDir) }

// apply makes the changes. Directories are open to this process meanwhile, and
// get their modes and times last, the deepest first.
func (c *collection) apply() error {
	for i, ch := range c.changes {
		if err := c.one(i, ch); err != nil {
			return err
		}
	}
	for i := len(c.changes) - 1; i >= 0; i-- {
		ch := c.changes[i]
		if ch.Kind != Dir && ch.Kind != OpaqueDir {
			continue
		}
		at := c.t.at(ch)
		if err := errors.Join(c.t.root.Chtimes(at, time.Time{}, ch.ModTime), c.t.root.Chmod(at, fs.FileMode(ch.Mode))); err != nil {
			return err
		}
	}
	return c.drop()
}

func (t *workTree) at(ch Change) string { return path.Join(treeDir, string(ch.Path)) }

func (c *collection) one(i int, ch Change) error {
	root, at := c.t.root, c.t.at(ch)
	info, err := root.Lstat(at)
	there := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if there && ch.Kind == Dir && info.IsDir() {
		return root.Chmod(at, ch.open())
	}
	if there {
		if err := c.t.remove(at, info.IsDir()); err != nil {
			return err
		}
	}
	switch ch.Kind {
	case Dir, OpaqueDir:
		return root.Mkdir(at, ch.open())
	case File:
		return root.Rename(c.name(i), at)
	case Symlink:
		return root.Symlink(string(ch.Target), at)
	}
	return nil
}

// open is the mode of a directory while work goes on in it.
func (ch Change) open() fs.FileMode { return fs.FileMode(ch.Mode) | 0o700 }

// remove removes what stands at a path. Directories that their mode closes are
// opened up on the way down.
func (t *workTree) remove(at string, dir bool) error {
	if !dir {
		return t.root.Remove(at)
	}
	if err := t.root.Chmod(at, 0o700); err != nil {
		return err
	}
	list, err := listDir(t.root, at)
	if err != nil {
		return err
	}
	for _, d := range list {
		if err := t.remove(at+"/"+d.Name(), d.IsDir()); err != nil {
			return err
		}
	}
	return t.root.Remove(at)
}
