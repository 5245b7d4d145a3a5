package workspace

import (
	"context"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// Restoring returns a commit that makes paths, and everything below them, what
// they were at commit seq: kind, mode, time, content, target; what did not
// exist then is removed. No paths means everything. Directories on the way
// that are missing now are made as they were then. History is not rewritten:
// the caller adds Call and Actor, and commits.
//
// Its Base is the head: when a commit in between changed one of the same paths,
// Commit returns ErrVersionConflict; what one changed elsewhere stays. Since
// contents are referred to and not stored again, it costs no free space.
//
// Errors: ErrNotFound for a path that exists neither now nor then, when there
// is no such commit, or the history no longer reaches back to it;
// ErrNotDirectory when a directory on the way is something else now and is not
// itself among the paths; ErrCorrupt; the cause of ctx.
func (im *Image) Restoring(ctx context.Context, seq uint64, paths []Path) (Txn, error) {
	r := restore{im: im, seq: seq, paths: paths, scope: newSubtrees(paths)}
	if err := r.look(); err != nil {
		return Txn{}, err
	}
	effects, err := im.between(ctx, "restore", r.head, seq, r.wanted)
	if err != nil {
		return Txn{}, err
	}
	if effects, err = r.settle(effects); err != nil {
		return Txn{}, err
	}
	return Txn{Base: r.head, Message: fmt.Sprintf("restore v%d", seq), Changes: changesFor(effects)}, nil
}

// restore is one Restoring at work.
type restore struct {
	im    *Image
	seq   uint64
	head  uint64
	paths []Path
	scope subtrees

	there map[Path]bool // of paths: exists now or did then
	above map[Path]bool // directories above paths, outside of the scope
}

// look finds where the head is and which of the paths exist.
func (r *restore) look() error {
	r.there, r.above = map[Path]bool{{}: true}, map[Path]bool{}
	return r.im.view("restore", func(tx *bolt.Tx) error {
		h, err := checkVersion(tx, "restore", r.seq)
		if err != nil {
			return err
		}
		r.head = h.seq
		t := r.im.tree(tx)
		for _, p := range r.paths {
			n, err := t.get(p)
			if err != nil {
				return err
			}
			r.there[p] = r.there[p] || n != nil
			for dir := p.Dir(); !dir.IsRoot() && !r.scope.has([]byte(dir.rel)); dir = dir.Dir() {
				r.above[dir] = true
			}
		}
		return nil
	})
}

// wanted says which paths have to be compared.
func (r *restore) wanted(rel []byte) bool { return r.scope.has(rel) || r.above[Path{string(rel)}] }

// settle leaves those of the effects that are to happen: all within the scope,
// and of the directories above it those that have to come back.
func (r *restore) settle(effects []Effect) ([]Effect, error) {
	needed := map[Path]bool{}
	for i := range effects {
		e := &effects[i]
		if _, asked := r.there[e.Path]; !asked {
			continue
		}
		r.there[e.Path] = true
		for dir := e.Path.Dir(); e.After != nil && r.above[dir] && !needed[dir]; dir = dir.Dir() {
			needed[dir] = true
		}
	}
	for _, p := range r.paths {
		if !r.there[p] {
			return nil, pathError("restore", p, ErrNotFound, fmt.Sprintf("neither now nor at v%d", r.seq))
		}
	}
	kept := effects[:0]
	for _, e := range effects {
		switch {
		case r.scope.has([]byte(e.Path.rel)):
		case !needed[e.Path] || e.Before != nil && e.Before.Kind == KindDir:
			continue // it is there, and none of ours
		case e.Before != nil:
			return nil, pathError("restore", e.Path, ErrNotDirectory, "")
		}
		kept = append(kept, e)
	}
	return kept, nil
}

// changesFor returns the steps that make effects happen, which are in the
// order of the tree and have all that is below a directory that goes. Nothing
// is left to a default.
func changesFor(effects []Effect) []Change {
	changes := make([]Change, 0, len(effects))
	var gone Path // the directory that went last; its subtree goes with it
	for _, e := range effects {
		if e.After == nil && !gone.IsRoot() && e.Path.isBelow(gone) {
			continue
		}
		if e.Before != nil && e.Before.Kind == KindDir && (e.After == nil || e.After.Kind != KindDir) {
			gone = e.Path
		}
		changes = append(changes, changeFor(&e))
	}
	return changes
}

func changeFor(e *Effect) Change {
	if e.After == nil {
		return Change{Op: OpRemove, Path: e.Path, Recursive: true}
	}
	c := Change{Path: e.Path, Mode: e.After.Mode | ModeSet, ModTime: e.After.ModTime, Replace: true}
	switch {
	case e.What == Mode || e.What == Touched || e.After.Kind == KindDir && e.Before != nil && e.Before.Kind == KindDir:
		c.Op = OpMeta
	case e.After.Kind == KindDir:
		c.Op = OpMkdir
	case e.After.Kind == KindSymlink:
		c.Op, c.Target = OpSymlink, e.After.Target
	default:
		c.Op, c.Content = OpPut, e.After.Content()
	}
	return c
}
