package sandboxrun

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// scratchPrefix begins the names of the directories of runs on disk.
const scratchPrefix = "run-"

// scratch makes the directory for one run on disk, "" when it stays in memory.
// What is large goes to disk if there is a place.
func (r *Runner) scratch(large bool) (dir string, drop func(), err error) {
	if !r.onDisk() && (!large || r.cfg.Scratch == "") {
		return "", func() {}, nil
	}
	dir, remove, err := makeLocked(r.cfg.Scratch, scratchPrefix)
	return dir, func() { _ = remove() }, err
}

// TempDir makes a directory in parent, or in os.TempDir if that is empty, whose
// name begins with prefix, for this user only. It is locked (flock) until drop
// removes it with all that is in it, or this process ends.
//
// First it removes the directories of that prefix that belong to this user and
// that no process holds: those of processes that were killed. It follows no link,
// and whatever it cannot remove it leaves.
func TempDir(parent, prefix string) (dir string, drop func() error, err error) {
	if parent == "" {
		parent = os.TempDir()
	}
	list, _ := os.ReadDir(parent) // one may make a directory where one may not list
	for _, e := range list {
		if info, err := e.Info(); err == nil && e.IsDir() && strings.HasPrefix(e.Name(), prefix) && isOurs(info) {
			_ = sweepRun(filepath.Join(parent, e.Name()))
		}
	}
	return makeLocked(parent, prefix)
}

func isOurs(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// makeLocked makes a directory in base. drop removes it, and may be called again
// if it could not. Until then the directory is locked, so that no other process
// takes it for one that was left.
func makeLocked(base, prefix string) (dir string, drop func() error, err error) {
	for {
		dir, err = os.MkdirTemp(base, prefix)
		if err != nil {
			return "", nil, err
		}
		lock, err := lockDir(dir)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.ENOENT) {
			continue // a sweep was faster
		}
		if err != nil {
			return "", nil, err
		}
		unlock := sync.OnceFunc(func() { unix.Close(lock) })
		return dir, func() error {
			defer unlock()
			if err := removeTree(dir); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
			return nil
		}, nil
	}
}

// lockDir takes the lock of a directory that exists, without waiting.
func lockDir(dir string) (fd int, err error) {
	fd, err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("open", err)
	}
	err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = unix.Access(dir, unix.F_OK) // it may have been removed meanwhile
	}
	if err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("flock", err)
	}
	return fd, nil
}

// sweepScratch removes what killed processes left in the scratch directory.
func sweepScratch(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		if e.IsDir() && strings.HasPrefix(e.Name(), scratchPrefix) {
			err = errors.Join(err, sweepRun(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// sweepRun removes the directory of a run unless the run still goes on.
func sweepRun(dir string) error {
	lock, err := lockDir(dir)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(lock)
	return removeTree(dir)
}

// removeTree removes a directory that a script filled: however deep, with
// directories of any mode, without following a link. It holds one descriptor.
func removeTree(path string) error {
	dir, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	defer func() { unix.Close(dir) }()
	for depth := 0; ; {
		child, err := clearDir(dir)
		if err != nil {
			return err
		}
		if child >= 0 {
			unix.Close(dir)
			dir = child
			depth++
			continue
		}
		if depth == 0 {
			return os.Remove(path)
		}
		up, err := unix.Openat(dir, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("open", err)
		}
		unix.Close(dir)
		dir = up
		depth--
	}
}

// clearDir removes what it can in a directory and opens the first directory
// that is not empty; -1 if there is none.
func clearDir(dir int) (int, error) {
	names, err := readNames(dir)
	if err != nil {
		return -1, err
	}
	for _, name := range names {
		err := unix.Unlinkat(dir, name, 0)
		if err == unix.EISDIR || err == unix.EPERM {
			err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
		}
		if err == unix.ENOTEMPTY || err == unix.EACCES {
			_ = unix.Fchmodat(dir, name, 0o700, 0)
			return unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		}
		if err != nil {
			return -1, os.NewSyscallError("unlink", err)
		}
	}
	return -1, nil
}
