package attach

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// env is an environment root that was opened and looked at. Names in it are
// relative, with "/".
type env struct {
	root *os.Root
	dir  string // absolute
	safe map[string]bool
}

func openEnv(dir string) (*env, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	e := &env{root: root, dir: dir, safe: map[string]bool{}}
	if err := e.look("."); err != nil {
		root.Close()
		return nil, err
	}
	return e, nil
}

func (e *env) close() { e.root.Close() }

func (e *env) path(name string) string { return filepath.Join(e.dir, name) }

// name is the name in the root of a path of the host.
func (e *env) name(path string) (string, error) {
	name, err := filepath.Rel(e.dir, path)
	if err != nil || !filepath.IsAbs(path) || name == "." || !filepath.IsLocal(name) {
		return "", fmt.Errorf("%w: %q is not below %s", ErrUnsafe, path, e.dir)
	}
	return filepath.ToSlash(name), nil
}

// check opens a file or directory, and refuses it if it, or a directory on the way
// to it, is a link, belongs to another user, or can be written by others.
func (e *env) check(name string) error {
	for i, c := range name {
		if c == '/' {
			if err := e.look(name[:i]); err != nil {
				return err
			}
		}
	}
	return e.look(name)
}

func (e *env) look(name string) error {
	if e.safe[name] {
		return nil
	}
	info, err := e.root.Lstat(name)
	if err != nil {
		return err
	}
	owner, known := hostos.Owner(info)
	switch mode := info.Mode(); {
	case !mode.IsDir() && !mode.IsRegular():
		return fmt.Errorf("%w: %s is neither a directory nor a file", ErrUnsafe, e.path(name))
	case known && owner != os.Geteuid():
		return fmt.Errorf("%w: %s belongs to uid %d", ErrUnsafe, e.path(name), owner)
	case mode.Perm()&0o022 != 0:
		return fmt.Errorf("%w: %s can be written by others (mode %04o)", ErrUnsafe, e.path(name), mode.Perm())
	}
	f, err := e.root.OpenFile(name, os.O_RDONLY|hostos.NonBlock, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	// It is the one that was looked at, and no link that was put there since.
	if opened, err := f.Stat(); err != nil || !os.SameFile(info, opened) {
		return fmt.Errorf("%w: %s changed meanwhile (%v)", ErrUnsafe, e.path(name), err)
	}
	e.safe[name] = true
	return nil
}

// hasDir says whether a directory is there. It is checked then.
func (e *env) hasDir(name string) (bool, error) {
	info, err := e.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !info.IsDir() {
		return false, fmt.Errorf("%w: %s is no directory", ErrUnsafe, e.path(name))
	}
	return true, e.check(name)
}

// list returns the names in a directory, sorted.
func (e *env) list(name string) ([]string, error) {
	f, err := e.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// Names of what is made for mounting.
const (
	bootDir = "boot"
	shimDir = bootDir + "/shim"
	pthDir  = bootDir + "/pth"
)

// keep returns the name of a file with this text, which it writes if need be. The
// name is made of the text, so that runs with the same layers share it.
func (e *env) keep(text string) (name string, err error) {
	sum := sha256.Sum256([]byte(text))
	name = pthDir + "/" + hex.EncodeToString(sum[:8]) + ".pth"
	if err := e.root.MkdirAll(pthDir, 0o700); err != nil {
		return "", err
	}
	return name, e.put(name, []byte(text), 0o444)
}

// put makes a file have a content and a mode. What is there and right stays: another run
// may be about to mount it.
func (e *env) put(name string, content []byte, mode fs.FileMode) error {
	if e.right(name, content, mode) {
		return nil
	}
	tmp := filepath.ToSlash(filepath.Join(filepath.Dir(name), tmpPrefix+rand.Text()))
	f, err := e.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = e.root.Link(tmp, name)
	}
	if errors.Is(err, fs.ErrExist) && !e.right(name, content, mode) {
		return e.root.Rename(tmp, name)
	}
	if errors.Is(err, fs.ErrExist) { // another one was first
		err = nil
	}
	return errors.Join(err, e.root.Remove(tmp))
}

// right says whether a file has a content and a mode.
func (e *env) right(name string, content []byte, mode fs.FileMode) bool {
	info, err := e.root.Lstat(name)
	if err != nil || info.Mode() != mode {
		return false
	}
	have, err := e.root.ReadFile(name)
	return err == nil && bytes.Equal(have, content)
}

// tmpPrefix begins the names of files that are being written.
const tmpPrefix = ".tmp-"

// oldTmp says whether a file is what a killed process was writing: who writes
// takes no second.
func oldTmp(info fs.FileInfo, now int64) bool {
	return strings.HasPrefix(info.Name(), tmpPrefix) && now-info.ModTime().Unix() > 3600
}
