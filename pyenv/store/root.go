package store

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Root is an environment root. Its methods may be called by many goroutines, and
// many processes may have one root open, also for different state directories.
type Root struct {
	dir  string
	root *os.Root

	mu    sync.Mutex
	known map[string]known // layers by id
}

// The directories of a root that are the store's.
const (
	layersDir = "layers"
	wheelsDir = "wheelhouse"
	locksDir  = "locks"
	jobsDir   = "jobs"
)

// What begins so is not finished, or going away, and never looked at.
const (
	tmpPrefix   = ".tmp-"
	trashPrefix = ".trash-"
)

// Open opens the environment root at dir, and makes it (mode 0700) if it is not
// there. It removes what killed builds left; never what a living process is
// working on.
//
// Errors: ErrNoRoot when dir is no directory and cannot become one, or nothing can be
// put into it; ErrUnsafe when it belongs to another user, others than the owner may
// write to it, or it is the root of the file system; ErrDiskFull; those of the file
// system.
func Open(dir string) (*Root, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open environments: %w", err)
	}
	if filepath.Dir(dir) == dir {
		return nil, refuse(ErrUnsafe, "", "the directory of the environments is the root of the file system").
			suggest("choose another env.root")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, noRoot(dir, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, noRoot(dir, err)
	}
	r := &Root{dir: dir, root: root, known: map[string]known{}}
	if err := r.prepare(); err != nil {
		root.Close()
		return nil, err
	}
	// What cannot be removed now does no harm, and GC tells of it.
	_, _ = r.sweep(false)
	return r, nil
}

// Dir is the root's absolute path.
func (r *Root) Dir() string { return r.dir }

// Close releases the root. Layers stay usable, and locks held by Use stay held.
func (r *Root) Close() error { return r.root.Close() }

// prepare makes the directories.
func (r *Root) prepare() error {
	st, err := r.root.Stat(".")
	if err != nil {
		return fmt.Errorf("open environments: %w", err)
	}
	if owner, known := hostos.Owner(st); known && owner != os.Geteuid() {
		return refuse(ErrUnsafe, "", "the directory of the environments belongs to uid %d, and this is uid %d", owner, os.Geteuid()).
			suggest("choose another env.root, or run the server as the user that it belongs to")
	}
	if runtime.GOOS != "windows" && st.Mode().Perm()&0o022 != 0 {
		return refuse(ErrUnsafe, "", "the directory of the environments can be written to by others than its owner").
			suggest("take the right to write from group and others, or choose another env.root")
	}
	for _, name := range []string{layersDir, wheelsDir, locksDir, jobsDir} {
		if err := r.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return noRoot(r.dir, err)
		}
	}
	return nil
}

// noRoot says why there can be no root at dir. Its text has no path.
func noRoot(dir string, err error) error {
	var why string
	info, serr := os.Stat(dir)
	switch {
	case hostos.IsNoSpace(err):
		return full(fmt.Errorf("open environments: %w", err))
	case serr == nil && !info.IsDir():
		why = "is not a directory"
	case hostos.IsReadOnly(err):
		why = "is on a read-only file system"
	case errors.Is(err, fs.ErrPermission):
		why = fmt.Sprintf("cannot be used by uid %d: permission denied", os.Geteuid())
	default:
		why = "cannot be made: " + reason(err)
	}
	return refuse(ErrNoRoot, "", "the directory of the environments %s", why).because(err).suggest("choose another env.root")
}

// reason is an error of the file system without the path.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return "the file system refuses it"
}

// path is the host path of what has a name in the root.
func (r *Root) path(name string) string { return filepath.Join(r.dir, filepath.FromSlash(name)) }

// put makes or replaces the file at name: whoever opens it gets the old bytes or
// the new ones, also after a crash.
func (r *Root) put(name string, mode fs.FileMode, fill func(io.Writer) error) (err error) {
	at := path.Dir(name)
	if at == "." { // the top belongs to others, too: nothing is swept there
		at = locksDir
	}
	f, tmp, err := r.temp(at)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = r.root.Remove(tmp)
		}
		f.Close() // and with it the lock, when the name is gone
	}()
	if err := fill(f); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := r.root.Rename(tmp, name); err != nil {
		return err
	}
	return hostos.SyncDir(r.path(path.Dir(name)))
}

// temp makes a file in a directory of the root and locks it, by which a sweep
// knows that somebody is at work on it.
func (r *Root) temp(dir string) (*os.File, string, error) {
	for {
		name := dir + "/" + tmpPrefix + rand.Text()
		f, err := r.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, "", err
		}
		locked, err := hostos.TryLock(f, true)
		if err == nil && locked && r.same(f, name) {
			return f, name, nil
		}
		f.Close()
		_ = r.root.Remove(name)
		if err != nil {
			return nil, "", err
		}
		// A sweep was there between the two calls.
	}
}

// same says whether a name still is that of the open file.
func (r *Root) same(f *os.File, name string) bool {
	have, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := r.root.Lstat(name)
	return err == nil && os.SameFile(have, now)
}

// touch notes that something was used: what was used lately is not collected.
func (r *Root) touch(name string) {
	now := time.Now()
	// On a read-only disk nothing is collected either.
	_ = r.root.Chtimes(name, now, now)
}

// names lists a directory of the root, sorted.
func (r *Root) names(dir string) ([]fs.DirEntry, error) {
	list, err := fs.ReadDir(r.root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return list, err
}
