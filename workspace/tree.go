package workspace

import (
	"bytes"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// tree is the bucket of nodes within one transaction.
type tree struct {
	b    *bolt.Bucket
	root Node
}

func (im *Image) tree(tx *bolt.Tx) tree {
	return tree{b: tx.Bucket(bucketTree), root: im.root()}
}

// root is the node of the root, which is stored nowhere since it never changes.
func (im *Image) root() Node {
	return Node{Kind: KindDir, Mode: 0o755, ModTime: im.identity.created}
}

// get returns the node at p itself; nil when there is none.
func (t tree) get(p Path) (*Node, error) {
	if p.IsRoot() {
		root := t.root
		return &root, nil
	}
	key := treeKey(p)
	stored := t.b.Get(key)
	if stored == nil {
		return nil, nil
	}
	return openNode(key, stored)
}

func openNode(key, stored []byte) (*Node, error) {
	if len(key) > MaxPath { // a damaged key may seem to be as long as the file
		return nil, imageError("read", ErrCorrupt, "one of its paths is too long")
	}
	value, err := unseal(key, stored)
	if err != nil {
		return nil, pathError("read", keyPath(key), ErrCorrupt, err.Error())
	}
	n, err := decodeNode(value)
	if err != nil {
		return nil, pathError("read", keyPath(key), ErrCorrupt, err.Error())
	}
	return n, nil
}

// lookup returns the node at a path itself; nil when there is none.
type lookup func(Path) (*Node, error)

// mustGet is get with an error that says why there is nothing.
func (t tree) mustGet(op string, p Path) (*Node, error) { return lookup(t.get).must(op, p) }

// must is a lookup with an error that says why there is nothing: ErrNotFound,
// or ErrNotDirectory when a part of the path is something else.
func (get lookup) must(op string, p Path) (*Node, error) {
	n, err := get(p)
	if err != nil || n != nil {
		return n, err
	}
	for dir := p.Dir(); ; dir = dir.Dir() {
		n, err := get(dir)
		switch {
		case err != nil:
			return nil, err
		case n == nil:
			continue
		case n.Kind != KindDir:
			return nil, pathError(op, dir, ErrNotDirectory, "")
		}
		return nil, pathError(op, p, ErrNotFound, "")
	}
}

// mustBeDir is mustGet for a path that has to be a directory.
func (t tree) mustBeDir(op string, p Path) error {
	n, err := t.mustGet(op, p)
	if err == nil && n.Kind != KindDir {
		err = pathError(op, p, ErrNotDirectory, "")
	}
	return err
}

func (t tree) put(p Path, n *Node) error {
	key := treeKey(p)
	if err := t.b.Put(key, seal(key, appendNode(nil, n))); err != nil {
		return fmt.Errorf("write node: %w", err)
	}
	return nil
}

func (t tree) delete(p Path) error {
	if err := t.b.Delete(treeKey(p)); err != nil {
		return fmt.Errorf("delete node: %w", err)
	}
	return nil
}

// children visits the entries of one directory in the order of their names,
// from the first name behind after, until visit says no. Subtrees are stepped
// over by one seek each. key and stored are valid during the call only.
func (t tree) children(dir Path, after string, visit func(name string, key, stored []byte) (bool, error)) error {
	prefix := childPrefix(dir)
	c := t.b.Cursor()
	k, v := c.Seek(append(prefix[:len(prefix):len(prefix)], startAfter(after)...))
	for k != nil && bytes.HasPrefix(k, prefix) {
		name, _, nested := bytes.Cut(k[len(prefix):], []byte{0})
		if nested { // the subtree of the entry visited before
			k, v = c.Seek(afterSubtree(k[:len(prefix)+len(name)]))
			continue
		}
		if !validName(name) {
			return pathError("list", dir, ErrCorrupt, "it has an entry with an impossible name")
		}
		if !dir.IsRoot() || !reserved[string(name)] {
			more, err := visit(string(name), k, v)
			if err != nil || !more {
				return err
			}
		}
		k, v = c.Next()
	}
	return nil
}

// startAfter is the part of a key at which the names behind after begin.
func startAfter(after string) string {
	if after == "" {
		return ""
	}
	return after + "\x01"
}

// validName says whether a name found in the image could have got there by a
// commit. An image from elsewhere may hold anything.
func validName(name []byte) bool {
	switch string(name) {
	case "", ".", "..":
		return false
	}
	return len(name) <= MaxName && bytes.IndexByte(name, '/') < 0
}

// subtree returns the keys of everything below a directory, in order.
func (t tree) subtree(dir Path) [][]byte {
	var keys [][]byte
	prefix := childPrefix(dir)
	c := t.b.Cursor()
	for k, _ := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		keys = append(keys, bytes.Clone(k))
	}
	return keys
}

// hasChildren says whether a directory has any entry.
func (t tree) hasChildren(dir Path) bool {
	prefix := childPrefix(dir)
	k, _ := t.b.Cursor().Seek(prefix)
	return k != nil && bytes.HasPrefix(k, prefix)
}
