package workspace

import (
	"bytes"
	"fmt"
	"slices"
)

// later is what commits behind a base did to a path.
type later struct {
	gone bool // it is no directory any more, if it ever was one
}

// readLater collects what changed since the base of the commit. Its cost is
// that of reading the commits in between.
func (w *writer) readLater() error {
	base := w.txn.Base
	if base == 0 || base == w.head.seq {
		return nil
	}
	if base > w.head.seq {
		return imageError("commit", ErrVersionConflict, fmt.Sprintf("commit %d, on which the changes are based, does not exist", base))
	}
	w.later = map[Path]later{}
	for seq := base + 1; seq <= w.head.seq; seq++ {
		r, err := readRecord(w.tx, seq)
		if err != nil {
			return err
		}
		if r == nil {
			return imageError("commit", ErrVersionConflict, fmt.Sprintf("its history no longer reaches back to commit %d", base))
		}
		for i := range r.changes {
			e := &r.changes[i]
			w.later[e.Path] = later{gone: e.After == nil || e.After.Kind != KindDir}
		}
	}
	return nil
}

// goneLater says whether a later commit took dir away, or a directory above
// it: then a change in it has no place any more.
func (w *writer) goneLater(dir Path) bool {
	if len(w.later) == 0 {
		return false
	}
	for ; !dir.IsRoot(); dir = dir.Dir() {
		if w.later[dir].gone {
			return true
		}
	}
	return false
}

// checkBase refuses effects on paths that a later commit changed too. Since
// removing a directory has an effect for all that is in it, this covers what
// a later commit put below a directory that this one removes.
func (w *writer) checkBase() error {
	if len(w.later) == 0 {
		return nil
	}
	var both []Path
	for i := range w.result.changes {
		if _, ok := w.later[w.result.changes[i].Path]; ok {
			both = append(both, w.result.changes[i].Path)
		}
	}
	if len(both) == 0 {
		return nil
	}
	return w.conflict(both)
}

func (w *writer) conflict(paths []Path) error {
	return pathError("commit", paths[0], ErrVersionConflict, "changed since v"+fmt.Sprint(w.txn.Base)+": "+listed(paths))
}

// sortEffects puts effects in the order of the tree: a directory, what is in
// it, then its next sibling.
func sortEffects(effects []Effect) {
	type keyed struct {
		key []byte
		Effect
	}
	all := make([]keyed, len(effects))
	for i, e := range effects {
		all[i] = keyed{treeKey(e.Path), e}
	}
	slices.SortFunc(all, func(a, b keyed) int { return bytes.Compare(a.key, b.key) })
	for i := range all {
		effects[i] = all[i].Effect
	}
}
