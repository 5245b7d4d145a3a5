package live

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// scanner compares a tree with the image and rewrites what differs.
type scanner struct {
	b    *builder
	deep bool // compare contents too
}

// listPage is how many entries of the image are asked for at once.
const listPage = 1000

func (b *builder) scan(deep bool) error {
	if err := b.makeDir(b.root, treeName); err != nil {
		return err
	}
	root, err := b.im.Lstat(workspace.Path{})
	if err != nil {
		return err
	}
	return (&scanner{b: b, deep: deep}).descend(b.root, treeName, workspace.Path{}, &root)
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
	return setMode(d, name, n.Mode)
}

// children merges the names of the host's directory with the entries of the
// image's, both sorted.
func (s *scanner) children(d *os.Root, p workspace.Path) error {
	if err := context.Cause(s.b.ctx); err != nil {
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
		page, more, err = s.b.im.List(p, after, listPage)
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
		if err := s.b.makeDir(d, name); err != nil {
			return err
		}
		return s.descend(d, name, e.Path, &e.Node)
	}
	if text, err := differs(s.b.ctx, d, name, &e.Node, s.deep); text == "" && err == nil {
		return nil
	}
	return s.b.place(d, name, e.Path, &e.Node)
}
