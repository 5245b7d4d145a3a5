package attach

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
)

// shims are the names under which scripts look for what installs packages. Each
// says which call of python_env does what its command line asks for, and fails.
var shims = [...]string{"pip", "pip3", "pipx", "uv", "uvx"}

// Prepare writes what all runs have in common below boot/ in root, the environment
// root, which it makes for this user alone if it is not there. It may be called at
// any time, by several processes at once, and changes nothing where all is as it
// has to be. (What `python3 -m pip` finds is part of the interpreter.)
//
// Errors: ErrUnsafe, and those of the disk.
func Prepare(root string) error {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	e, err := openEnv(root)
	if err != nil {
		return err
	}
	defer e.close()
	for _, dir := range []string{shimDir, pthDir} {
		if err := e.root.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := e.check(dir); err != nil {
			return err
		}
		if err := e.tidy(dir); err != nil {
			return err
		}
	}
	for _, name := range shims {
		if err := e.put(shimDir+"/"+name, shim(python.Executable), 0o555); err != nil {
			return err
		}
	}
	return nil
}

// shim is the script that stands in the place of pip, for an interpreter.
func shim(path string) []byte { return fmt.Appendf(nil, "#!%s -I\n%s", path, python.Stub()) }

// tidy removes what is no shim from their directory, for it is first in the PATH,
// and what killed processes left.
func (e *env) tidy(dir string) error {
	names, err := e.list(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		path := filepath.ToSlash(filepath.Join(dir, name))
		info, err := e.root.Lstat(path)
		if err != nil {
			continue // another process was faster
		}
		stray := dir == shimDir && !slices.Contains(shims[:], name) && !strings.HasPrefix(name, tmpPrefix)
		if stray || oldTmp(info, time.Now().Unix()) {
			if err := e.root.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}
