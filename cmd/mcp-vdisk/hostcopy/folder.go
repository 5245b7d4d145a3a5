package hostcopy

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// folder is a directory of the host that is held open while it is filled.
type folder struct {
	root   *os.Root // what is in it is reached through this; nil: it is not there yet
	handle *os.File // the same directory
	rel    string   // its name below the directory that all began in, "" for that one

	made  bool        // by us: it gets a mode and a time when it is full
	mode  fs.FileMode // permissions
	mtime time.Time
}

// opened makes a folder of a directory that is open.
func opened(root *os.Root, rel string) (*folder, error) {
	handle, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, err
	}
	return &folder{root: root, handle: handle, rel: rel}, nil
}

func (f *folder) join(name string) string { return path.Join(f.rel, name) }

// open opens a directory in it: that one, and not what a link leads to.
//
// Errors: errNoFolder when something else is there.
func (f *folder) open(name string) (*folder, error) {
	info, err := f.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, errNoFolder
	}
	root, err := f.root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	if now, err := root.Stat("."); err != nil || !os.SameFile(info, now) {
		root.Close()
		return nil, errNoFolder // a link got in its place
	}
	return opened(root, f.join(name))
}

// finish lets write make a file or a link under a name that nobody else has, gives it its
// time, and then its name: in place of what is there if that may be replaced, else only
// where nothing is.
func (f *folder) finish(name string, mtime time.Time, replace bool, write func(tmp string) error) error {
	tmp := ".mcp-vdisk-" + rand.Text()[:16] + ".part"
	defer f.root.Remove(tmp)
	if err := write(tmp); err != nil {
		return err
	}
	if err := f.setTime(tmp, mtime); err != nil {
		return err
	}
	if replace {
		return f.root.Rename(tmp, name)
	}
	err := f.root.Link(tmp, name)
	if !noLinks(err) {
		return err
	}
	// The file system has no hard links. Whoever makes the name just now loses it.
	if _, err := f.root.Lstat(name); err == nil {
		return fs.ErrExist
	}
	return f.root.Rename(tmp, name)
}

func noLinks(err error) bool {
	return errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EMLINK)
}

// setTime sets when an entry was modified, a link itself.
func (f *folder) setTime(name string, t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	if err := unix.UtimesNanoAt(int(f.handle.Fd()), name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "set the time of", Path: name, Err: err}
	}
	return nil
}

// close leaves the folder, and gives one that was made its time and mode.
func (f *folder) close() error {
	if f.root == nil {
		return nil
	}
	var err error
	if f.made {
		err = f.settle()
	}
	return errors.Join(err, f.handle.Close(), f.root.Close())
}

func (f *folder) settle() error {
	if err := f.setTime(".", f.mtime); err != nil {
		return err
	}
	info, err := f.handle.Stat()
	if err != nil {
		return err
	}
	// What the mask of modes took away when it was made stays away.
	return f.handle.Chmod(info.Mode().Perm() & f.mode)
}
