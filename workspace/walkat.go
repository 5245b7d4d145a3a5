package workspace

import (
	"bytes"
	"context"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"
)

// WalkAt is Walk over the tree as it was when commit seq was the newest, whatever is
// committed meanwhile: it reads what is there now, and puts right what later commits
// changed, for which it keeps one entry for each path that they did. dir is not resolved
// (see ResolveAt); contents are read by OpenNode.
//
// Errors: as for Walk; ErrNotFound also when there is no such commit or the history no
// longer reaches back to it, also in the middle of it.
func (im *Image) WalkAt(ctx context.Context, dir Path, seq uint64, fn func(Entry) error) error {
	n, err := im.NodeAt(dir, seq)
	if err != nil {
		return err
	}
	if n.Kind != KindDir {
		return pathError("walk", dir, ErrNotDirectory, "")
	}
	w := walkAt{im: im, ctx: ctx, prefix: childPrefix(dir), seq: seq, read: seq, was: map[string]*Node{}}
	return walkBatches(ctx, dir, fn, w.batch)
}

// walkAt is one WalkAt at work.
type walkAt struct {
	im     *Image
	ctx    context.Context
	prefix []byte // of the keys that are walked over
	seq    uint64 // the commit that is asked for
	read   uint64 // records up to this one are in was

	was  map[string]*Node // keys that were changed behind seq, as of seq; nil: was absent
	keys []string         // of was, sorted
}

// batch reads the entries from the key from on, all from one state of the tree. More of
// the history than one transaction should read is read in several before it.
func (w *walkAt) batch(from []byte) (batch []Entry, next []byte, err error) {
	for whole := false; !whole; {
		if err := context.Cause(w.ctx); err != nil {
			return nil, nil, err
		}
		err := w.im.view("walk", func(tx *bolt.Tx) (err error) {
			if whole, err = w.catchUp(tx); err == nil && whole {
				batch, next, err = w.merge(w.im.tree(tx), from)
			}
			return err
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return batch, next, nil
}

// catchUp reads what was committed since the last batch.
func (w *walkAt) catchUp(tx *bolt.Tx) (whole bool, err error) {
	h, err := checkVersion(tx, "walk", w.seq)
	if err != nil {
		return false, err
	}
	if w.read == h.seq {
		return true, nil
	}
	for left := historyBatch; w.read < h.seq && left > 0; left-- {
		r, err := scanRecord(tx, w.read+1, func(c rawChange) error {
			left--
			return w.take(c)
		})
		if err == nil && r == nil {
			err = notReached("walk", w.seq)
		}
		if err != nil {
			return false, err
		}
		w.read++
	}
	slices.Sort(w.keys)
	return w.read == h.seq, nil
}

// take notes what a path was before it was first changed behind the commit.
func (w *walkAt) take(c rawChange) error {
	key := strings.ReplaceAll(string(c.path), "/", "\x00")
	if _, known := w.was[key]; known || !strings.HasPrefix(key, string(w.prefix)) {
		return nil
	}
	e, err := c.effect()
	if err != nil {
		return err
	}
	w.was[key] = e.Before
	w.keys = append(w.keys, key)
	return nil
}

// merge goes on through the tree and what was changed, side by side.
func (w *walkAt) merge(t tree, from []byte) (batch []Entry, next []byte, err error) {
	c := t.b.Cursor()
	k, v := c.Seek(from)
	i, _ := slices.BinarySearch(w.keys, string(from))
	for {
		for k != nil && w.changed(k) {
			k, v = c.Next()
		}
		if !bytes.HasPrefix(k, w.prefix) {
			k = nil
		}
		var key []byte
		var n *Node
		switch {
		case k == nil && i == len(w.keys):
			return batch, nil, nil
		case i < len(w.keys) && (k == nil || w.keys[i] < string(k)):
			key, n = []byte(w.keys[i]), w.was[w.keys[i]]
			i++
		default:
			if n, err = openNode(k, v); err != nil {
				return nil, nil, err
			}
			key = bytes.Clone(k)
			k, v = c.Next()
		}
		if n == nil {
			continue
		}
		p, err := FromBytes([]byte(keyPath(key).rel))
		if err != nil {
			return nil, nil, imageError("walk", ErrCorrupt, "it has an entry with an impossible name")
		}
		if batch = append(batch, Entry{Path: p, Node: *n}); len(batch) == walkBatch {
			return batch, append(key, 0), nil // the least key behind it
		}
	}
}

func (w *walkAt) changed(key []byte) bool {
	_, yes := w.was[string(key)]
	return yes
}
