package live

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// scanner compares the directory with the image.
type scanner struct {
	v    *View
	ctx  context.Context
	deep bool // compare contents too
}

// listPage is how many entries of the image are asked for at once.
const listPage = 1000

func (v *View) scan(ctx context.Context, deep bool) error {
	if err := makeDir(v.root, treeName); err != nil {
		return err
	}
	s := &scanner{v: v, ctx: ctx, deep: deep}
	root, err := v.im.Lstat(workspace.Path{})
	if err != nil {
		return err
	}
	return s.descend(v.root, treeName, workspace.Path{}, &root)
}

// descend makes a directory's children, then its mode, what they should be.
func (s *scanner) descend(d *os.Root, name string, p workspace.Path, n *workspace.Node) error {
	sub, _, _, err := enter(d, name)
	if err != nil {
		return err
	}
	defer sub.Close()
	if err := s.children(sub, p); err != nil {
		return err
	}
	st, err := d.Lstat(name)
	if err != nil {
		return err
	}
	if st.Mode().Perm() == fs.FileMode(n.Mode) && st.Mode()&special == 0 {
		return nil
	}
	return setMode(d, name, n)
}

// children merges the names of the host's directory with the entries of the
// image's, both sorted.
func (s *scanner) children(d *os.Root, p workspace.Path) error {
	if err := context.Cause(s.ctx); err != nil {
		return err
	}
	names, err := list(d)
	if err != nil {
		return err
	}
	slices.Sort(names)
	after, more := "", true
	for more {
		var page []workspace.Entry
		page, more, err = s.v.im.List(p, after, listPage)
		if gone(err) {
			return nil // a commit made meanwhile took it; advance will too
		} else if err != nil {
			return err
		}
		for i := range page {
			after = page[i].Path.Base()
			if names, err = dropBefore(d, names, after); err != nil {
				return err
			}
			if err := s.entry(d, &page[i]); err != nil {
				return err
			}
		}
	}
	for _, name := range names {
		if err := removeTree(d, name); err != nil {
			return err
		}
	}
	return nil
}

func gone(err error) bool {
	return errors.Is(err, workspace.ErrNotFound) || errors.Is(err, workspace.ErrNotDirectory)
}

// dropBefore removes what the image does not have: the names in front of
// next. It returns the names behind it.
func dropBefore(d *os.Root, names []string, next string) ([]string, error) {
	for len(names) > 0 && names[0] < next {
		if err := removeTree(d, names[0]); err != nil {
			return nil, err
		}
		names = names[1:]
	}
	if len(names) > 0 && names[0] == next {
		names = names[1:]
	}
	return names, nil
}

// entry makes one entry what it should be.
func (s *scanner) entry(d *os.Root, e *workspace.Entry) error {
	name := e.Path.Base()
	if e.Node.Kind == workspace.KindDir {
		if err := makeDir(d, name); err != nil {
			return err
		}
		return s.descend(d, name, e.Path, &e.Node)
	}
	same, err := s.same(d, name, &e.Node)
	if err != nil || same {
		return err
	}
	return s.v.place(d, name, e.Path, &e.Node)
}

// same says whether a file or symlink is what the image has.
func (s *scanner) same(d *os.Root, name string, n *workspace.Node) (bool, error) {
	st, err := d.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if n.Kind == workspace.KindSymlink {
		if st.Mode().Type() != fs.ModeSymlink {
			return false, nil
		}
		target, err := d.Readlink(name)
		return target == n.Target, err
	}
	if !st.Mode().IsRegular() || st.Mode()&special != 0 || st.Mode().Perm() != fs.FileMode(n.Mode) ||
		st.Size() != n.Size || !st.ModTime().Equal(n.ModTime) {
		return false, nil
	}
	if !s.deep {
		return true, nil
	}
	return sameBytes(d, name, n), nil
}

// sameBytes compares contents by hash. One that cannot be read, such as a file
// of mode 0000, counts as different.
func sameBytes(d *os.Root, name string, n *workspace.Node) bool {
	f, err := d.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return false
	}
	return [32]byte(sum.Sum(nil)) == n.SHA256
}
