package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"

	bolt "go.etcd.io/bbolt"
)

// Entry is a path and what is there.
type Entry struct {
	Path Path
	Node Node
}

// Lstat returns the node at p itself, a symlink included.
//
// Errors: ErrNotFound; ErrNotDirectory when something else than a directory
// stands on the way; ErrCorrupt.
func (im *Image) Lstat(p Path) (Node, error) {
	var node Node
	err := im.view("stat", func(tx *bolt.Tx) error {
		n, err := im.tree(tx).mustGet("stat", p)
		if err == nil {
			node = *n
		}
		return err
	})
	return node, err
}

// List returns up to limit entries of one directory whose names come behind
// after in the order of raw bytes, and whether there are more. Symlinks are
// not followed, dir itself included; reserved names are left out.
//
// Errors: ErrNotFound, ErrNotDirectory, ErrCorrupt.
func (im *Image) List(dir Path, after string, limit int) (entries []Entry, more bool, err error) {
	err = im.view("list", func(tx *bolt.Tx) error {
		t := im.tree(tx)
		if err := t.mustBeDir("list", dir); err != nil {
			return err
		}
		return t.children(dir, after, func(name string, key, stored []byte) (bool, error) {
			if len(entries) >= limit {
				more = true
				return false, nil
			}
			n, err := openNode(key, stored)
			if err != nil {
				return false, err
			}
			entries = append(entries, Entry{Path: dir.join(name), Node: *n})
			return true, nil
		})
	})
	if err != nil {
		return nil, false, err
	}
	return entries, more, nil
}

// Count counts the entries of one directory behind after, up to most.
//
// Errors: as for List.
func (im *Image) Count(dir Path, after string, most int) (n int, err error) {
	err = im.view("list", func(tx *bolt.Tx) error {
		t := im.tree(tx)
		if err := t.mustBeDir("list", dir); err != nil {
			return err
		}
		return t.children(dir, after, func(string, []byte, []byte) (bool, error) {
			if n < most {
				n++
			}
			return n < most, nil
		})
	})
	return n, err
}

// walkBatch is how many entries one read transaction of Walk takes along.
const walkBatch = 512

// Walk calls fn for everything below dir, not for dir itself: depth first, in
// the order of names, symlinks not followed. fn runs outside of transactions;
// every 512 entries the walk looks at the newest commit again, so what changes
// meanwhile may or may not be seen. fs.SkipDir leaves the subtree of the entry
// out, fs.SkipAll ends the walk.
//
// Errors: ErrNotFound, ErrNotDirectory, ErrCorrupt, the cause of ctx, and what
// fn returns.
func (im *Image) Walk(ctx context.Context, dir Path, fn func(Entry) error) error {
	return walkBatches(ctx, dir, fn, func(from []byte) ([]Entry, []byte, error) {
		batch, next, _, err := im.walkBatch(dir, from, true)
		return batch, next, err
	})
}

// walkBatches is Walk over batches; read gives the one that begins with a key, and where the
// following begins, nil at the end.
func walkBatches(ctx context.Context, dir Path, fn func(Entry) error, read func(from []byte) ([]Entry, []byte, error)) error {
	for next, more := childPrefix(dir), true; more; {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("walk: %w", err)
		}
		batch, following, err := read(next)
		if err != nil {
			return err
		}
		next, more = following, following != nil
		skip, err := visit(batch, fn)
		switch {
		case errors.Is(err, fs.SkipAll):
			return nil
		case err != nil:
			return err
		case more && !skip.IsRoot() && keyPath(next).isBelow(skip):
			next = afterSubtree(treeKey(skip))
		}
	}
	return nil
}

// visit calls fn for a batch of entries. skip is the entry whose subtree fn
// last asked to leave out; it may go on behind the batch.
func visit(batch []Entry, fn func(Entry) error) (skip Path, err error) {
	for _, e := range batch {
		if !skip.IsRoot() && e.Path.isBelow(skip) {
			continue
		}
		if err := fn(e); errors.Is(err, fs.SkipDir) {
			skip = e.Path
		} else if err != nil {
			return skip, err
		}
	}
	return skip, nil
}

// walkBatch reads entries from the key from on. next is where the following
// batch starts, nil at the end; seq is the commit that it read. strict says that dir is a
// directory, or an error.
func (im *Image) walkBatch(dir Path, from []byte, strict bool) (batch []Entry, next []byte, seq uint64, err error) {
	prefix := childPrefix(dir)
	err = im.view("walk", func(tx *bolt.Tx) error {
		h, err := readHead(tx)
		if err != nil {
			return err
		}
		seq = h.seq
		t := im.tree(tx)
		if strict && bytes.Equal(from, prefix) {
			if err := t.mustBeDir("walk", dir); err != nil {
				return err
			}
		}
		c := t.b.Cursor()
		for k, v := c.Seek(from); k != nil && bytes.HasPrefix(k, prefix); k, v = c.Next() {
			if len(batch) == walkBatch {
				next = bytes.Clone(k)
				return nil
			}
			n, err := openNode(k, v)
			if err != nil {
				return err
			}
			p, err := FromBytes([]byte(keyPath(k).rel))
			if errors.Is(err, ErrReservedPath) {
				continue
			} else if err != nil {
				return pathError("walk", dir, ErrCorrupt, "it has an entry with an impossible name")
			}
			batch = append(batch, Entry{Path: p, Node: *n})
		}
		return nil
	})
	return batch, next, seq, err
}
