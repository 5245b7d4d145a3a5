package live

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// tempName is where a file is written before it is renamed: in its own
// directory, under a name that nothing else has. What a killed process leaves
// there is not in the image, so the next comparison removes it.
func tempName() string { return ".mcp-vdisk-" + rand.Text() }

// errDrift says that the directory is not what it was believed to be.
var errDrift = errors.New("the live directory was changed from outside")

const special = fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

// isDir looks, without following links, whether name is a directory.
func isDir(d *os.Root, name string) (bool, error) {
	st, err := d.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && st.IsDir(), err
}

// enter opens a directory after a look that it is one. One that its owner may
// not use is opened up first; narrowed says so, and leave has to be called with
// the mode that it should have.
func enter(d *os.Root, name string) (sub *os.Root, mode fs.FileMode, narrowed bool, err error) {
	st, err := d.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, 0, false, errDrift
	case err != nil:
		return nil, 0, false, err
	case !st.IsDir():
		return nil, 0, false, errDrift
	}
	mode = st.Mode().Perm()
	if narrowed = mode&0o700 != 0o700; narrowed {
		if err := d.Chmod(name, mode|0o700); err != nil {
			return nil, 0, false, err
		}
		hostos.Failpoint("live.opened")
	}
	sub, err = d.OpenRoot(name)
	return sub, mode, narrowed, err
}

// removeTree removes whatever name is, without following links. Directories
// are opened up first: a script may have made ones that nobody can read.
func removeTree(d *os.Root, name string) error {
	dir, err := isDir(d, name)
	if err != nil {
		return err
	}
	if dir {
		if err := emptyDir(d, name); err != nil {
			return err
		}
	}
	switch err := d.Remove(name); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	hostos.Failpoint("live.removed")
	return nil
}

func emptyDir(d *os.Root, name string) error {
	sub, _, _, err := enter(d, name)
	if err != nil {
		return err
	}
	defer sub.Close()
	names, err := list(sub)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := removeTree(sub, n); err != nil {
			return err
		}
	}
	return nil
}

// list returns the names in a directory, in no order.
func list(d *os.Root) ([]string, error) {
	f, err := d.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// setMode gives a directory its permission bits.
func setMode(d *os.Root, name string, mode uint32) error {
	return d.Chmod(name, fs.FileMode(mode&0o777))
}
