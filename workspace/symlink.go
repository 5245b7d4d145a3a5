package workspace

import (
	"strings"

	bolt "go.etcd.io/bbolt"
)

// Resolve follows symlinks, the last component included, and returns the path
// that is finally meant and its node. Everything happens within the image, and
// in one snapshot of it.
//
// Errors: ErrNotFound, ErrNotDirectory, ErrSymlinkLoop (more than MaxSymlinks),
// ErrPathEscape (a target outside of /workspace), ErrReservedPath, ErrCorrupt.
func (im *Image) Resolve(p Path) (Path, Node, error) {
	var node Node
	err := im.view("resolve", func(tx *bolt.Tx) error {
		r := resolver{get: im.tree(tx).get, asked: p}
		n, err := r.resolve()
		if err == nil {
			p, node = r.at, *n
		}
		return err
	})
	if err != nil {
		return Path{}, Node{}, err
	}
	return p, node, nil
}

// ResolveParent follows symlinks in all components but the last, which is
// what creating and removing act on. From the first component on that does not
// exist the path is kept as given.
//
// Errors: as for Resolve, without ErrNotFound.
func (im *Image) ResolveParent(p Path) (Path, error) {
	err := im.view("resolve", func(tx *bolt.Tx) error {
		if p.IsRoot() {
			return nil
		}
		r := resolver{get: im.tree(tx).get, asked: p, lenient: true}
		if err := r.follow(p.Dir().Components()); err != nil {
			return err
		}
		if n, err := r.get(r.at); err != nil {
			return err
		} else if n != nil && n.Kind != KindDir {
			return pathError("resolve", r.at, ErrNotDirectory, "")
		}
		last, err := r.at.Join(p.Base())
		p = last
		return err
	})
	return p, err
}

// resolver walks one path from the root, in the tree of today or in one of
// the past.
type resolver struct {
	get     lookup
	asked   Path // for errors
	at      Path // where it has come to; never a symlink
	hops    int
	missing bool // at does not exist
	lenient bool // go on behind what does not exist
}

// resolve follows the path that was asked for to the end.
func (r *resolver) resolve() (*Node, error) {
	if err := r.follow(r.asked.Components()); err != nil {
		return nil, err
	}
	return r.get.must("resolve", r.at)
}

// follow takes the components one by one. A symlink puts those of its target
// in front of the ones that are left.
func (r *resolver) follow(todo []string) error {
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..": // only targets have it
			if r.at.IsRoot() {
				return pathError("resolve", r.asked, ErrPathEscape, "a symlink on the way climbs above the root")
			}
			r.at, r.missing = r.at.Dir(), false
			continue
		}
		next, err := r.at.Join(name)
		if err != nil {
			return err
		}
		n, err := r.lookup(next, len(todo) > 0)
		if err != nil {
			return err
		}
		if n == nil || n.Kind != KindSymlink {
			r.at, r.missing = next, n == nil
			continue
		}
		if todo, err = r.link(next, n.Target, todo); err != nil {
			return err
		}
	}
	return nil
}

// lookup gets the node at p. more says that components are left, for which it
// has to be a directory or a symlink.
func (r *resolver) lookup(p Path, more bool) (*Node, error) {
	if r.missing {
		return nil, nil
	}
	if r.lenient {
		n, err := r.get(p)
		if err == nil && more && n != nil && n.Kind == KindFile {
			err = pathError("resolve", p, ErrNotDirectory, "")
		}
		return n, err
	}
	n, err := r.get.must("resolve", p)
	if err == nil && more && n.Kind == KindFile {
		err = pathError("resolve", p, ErrNotDirectory, "")
	}
	return n, err
}

// link expands a symlink: its target, then what is left to do.
func (r *resolver) link(at Path, target string, rest []string) ([]string, error) {
	if r.hops++; r.hops > MaxSymlinks {
		return nil, pathError("resolve", r.asked, ErrSymlinkLoop, "")
	}
	parts := strings.Split(target, "/")
	if strings.HasPrefix(target, "/") {
		for len(parts) > 0 && (parts[0] == "" || parts[0] == ".") {
			parts = parts[1:]
		}
		if len(parts) == 0 || parts[0] != Mount[1:] {
			return nil, pathError("resolve", at, ErrPathEscape, "it is a symlink to a place outside of "+Mount)
		}
		parts, r.at = parts[1:], Path{}
	}
	return append(parts, rest...), nil
}
