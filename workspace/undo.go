package workspace

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// Undoing returns a commit that takes back exactly what commit seq changed.
// The caller adds Call and Actor, and commits; Base is the head, as for
// Restoring.
//
// It is ErrVersionConflict, with a list, when a later commit changed one of
// the same paths (were it back to what it was), when a directory that would be
// needed is gone, and when something is now below a directory that would go.
//
// Errors: also ErrInvalid for the commit that made the image, ErrNotFound when
// there is no such commit or the history no longer reaches back to it,
// ErrCorrupt, the cause of ctx.
func (im *Image) Undoing(ctx context.Context, seq uint64) (Txn, error) {
	if seq == 1 {
		return Txn{}, subjectError("undo", "undoing v1", ErrInvalid, "it is the commit that made the disk")
	}
	u := undo{seq: seq, at: seq}
	if err := im.readHistory(ctx, "undo", u.step); err != nil {
		return Txn{}, err
	}
	if err := u.conflict(); err != nil {
		return Txn{}, err
	}
	return Txn{Base: u.head, Message: fmt.Sprintf("undo v%d", seq), Changes: changesFor(u.effects)}, nil
}

// undo is one Undoing at work: it reads the commit, then all behind it.
type undo struct {
	seq, at, head uint64
	effects       []Effect // what has to happen, in the order of the tree

	own   map[Path]bool // what the commit changed
	above map[Path]bool // directories above that
	made  subtrees      // directories that the commit made

	changed map[Path]bool // of own, by a later commit
	gone    map[Path]bool // of above: a later commit took it away
	added   map[Path]bool // below made, by a later commit: exists
}

func (u *undo) step(tx *bolt.Tx) (cost int, more bool, err error) {
	if u.own == nil {
		return u.begin(tx)
	}
	if u.at == u.head {
		return 0, false, nil
	}
	u.at++
	r, err := scanRecord(tx, u.at, func(c rawChange) error {
		cost++
		return u.later(c)
	})
	if err == nil && r == nil {
		err = notReached("undo", u.seq)
	}
	return cost, true, err
}

// begin reads the commit itself.
func (u *undo) begin(tx *bolt.Tx) (cost int, more bool, err error) {
	h, err := checkVersion(tx, "undo", u.seq)
	if err != nil {
		return 0, false, err
	}
	r, err := readRecord(tx, u.seq)
	if err == nil && r == nil {
		err = notReached("undo", u.seq)
	}
	if err != nil {
		return 0, false, err
	}
	u.head = h.seq
	u.own, u.above, u.made = map[Path]bool{}, map[Path]bool{}, subtrees{}
	u.changed, u.gone, u.added = map[Path]bool{}, map[Path]bool{}, map[Path]bool{}
	for i := range r.changes {
		e := &r.changes[i]
		u.own[e.Path] = true
		for dir := e.Path.Dir(); !u.above[dir]; dir = dir.Dir() {
			u.above[dir] = true
		}
		if e.After != nil && e.After.Kind == KindDir && (e.Before == nil || e.Before.Kind != KindDir) {
			u.made[e.Path.rel] = true
		}
		back, _ := newEffect(e.Path, e.After, e.Before)
		u.effects = append(u.effects, back)
	}
	return len(r.changes), true, nil
}

// later looks at one change of a later commit.
func (u *undo) later(c rawChange) error {
	p := Path{string(c.path)}
	switch {
	case !u.own[p] && !u.above[p] && !u.made.hasAbove(c.path):
		return nil
	case u.own[p]:
		u.changed[p] = true
		return nil
	}
	e, err := c.effect()
	if err != nil {
		return err
	}
	if u.above[p] {
		u.gone[p] = e.After == nil || e.After.Kind != KindDir
	}
	if u.made.hasAbove(c.path) {
		u.added[p] = e.After != nil
	}
	return nil
}

// conflict lists what stands against it.
func (u *undo) conflict() error {
	all := map[Path]bool{}
	for _, paths := range []map[Path]bool{u.changed, u.gone, u.added} {
		for p, yes := range paths {
			if yes {
				all[p] = true
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	paths := slices.SortedFunc(maps.Keys(all), func(a, b Path) int { return bytes.Compare(treeKey(a), treeKey(b)) })
	return pathError("undo", paths[0], ErrVersionConflict, fmt.Sprintf("changed since v%d: %s", u.seq, listed(paths)))
}
