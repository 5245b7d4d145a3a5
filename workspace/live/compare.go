package live

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// What differs says of a directory that is not there at all.
const (
	isMissing = "is missing"
	isOther   = "is of another kind"
)

// differs says in what the host's file at name is not the node of the image; ""
// means in nothing. A nil node means that there is to be none. Contents are
// compared only when deep. An error means that it cannot be told.
func differs(ctx context.Context, d *os.Root, name string, n *workspace.Node, deep bool) (string, error) {
	st, err := d.Lstat(name)
	switch {
	case missing(err) && n == nil:
		return "", nil
	case missing(err):
		return isMissing, nil
	case err != nil:
		return "", err
	case n == nil:
		return "is not on the disk", nil
	case st.Mode().Type() != hostType(n.Kind):
		return isOther, nil
	}
	if n.Kind == workspace.KindSymlink {
		target, err := d.Readlink(name)
		if err == nil && target != n.Target {
			return "has another target", nil
		}
		return "", err
	}
	if st.Mode()&special != 0 || st.Mode().Perm() != fs.FileMode(n.Mode) {
		return fmt.Sprintf("has mode %v instead of %v", st.Mode(), fs.FileMode(n.Mode)|st.Mode().Type()), nil
	}
	if n.Kind == workspace.KindDir {
		return "", nil
	}
	switch {
	case st.Size() != n.Size:
		return "has another size", nil
	case !st.ModTime().Equal(n.ModTime):
		return "has another time", nil
	case !deep:
		return "", nil
	}
	return differentBytes(ctx, d, name, n)
}

// missing counts a path that goes through a file.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

func hostType(k workspace.Kind) fs.FileMode {
	switch k {
	case workspace.KindDir:
		return fs.ModeDir
	case workspace.KindSymlink:
		return fs.ModeSymlink
	}
	return 0
}

// differentBytes compares contents by hash. A file of mode 0000 cannot be read.
func differentBytes(ctx context.Context, d *os.Root, name string, n *workspace.Node) (string, error) {
	f, err := d.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(until{ctx, sum}, f); err != nil {
		return "", err
	}
	if [32]byte(sum.Sum(nil)) != n.SHA256 {
		return "has other bytes", nil
	}
	return "", nil
}
