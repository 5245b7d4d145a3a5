package workspace

import (
	"context"
	"errors"
	"fmt"
	"maps"

	bolt "go.etcd.io/bbolt"
)

// NodeAt returns the node that was at p, a symlink included, when commit seq
// was the newest.
//
// What it costs depends on the path: one that exists leads back through the
// commits that changed it, for one that does not every commit behind seq is
// looked at, some 500,000 a second.
//
// Errors: ErrNotFound, also when there is no such commit or the history no
// longer reaches back to it; ErrNotDirectory when something else than a
// directory stood on the way; ErrCorrupt.
func (im *Image) NodeAt(p Path, seq uint64) (Node, error) {
	past := im.past("stat", seq)
	if err := past.fetch(p); err != nil {
		return Node{}, err
	}
	n, err := lookup(past.get).must("stat", p)
	if err != nil {
		return Node{}, past.explain(err)
	}
	return *n, nil
}

// OpenAt opens the file that p led to when commit seq was the newest, by the
// symlinks of then.
//
// Errors: as for Resolve and NodeAt; ErrIsDirectory.
func (im *Image) OpenAt(p Path, seq uint64) (*File, error) {
	p, n, err := im.ResolveAt(p, seq)
	if err != nil {
		return nil, err
	}
	return im.OpenNode(p, n)
}

// ResolveAt is Resolve in the tree as it was when commit seq was the newest.
//
// Errors: as for Resolve and NodeAt.
func (im *Image) ResolveAt(p Path, seq uint64) (Path, Node, error) {
	past := im.past("open", seq)
	if err := past.fetch(p); err != nil {
		return Path{}, Node{}, err
	}
	r := resolver{get: past.get, asked: p}
	n, err := r.resolve()
	if err != nil {
		return Path{}, Node{}, past.explain(err)
	}
	return r.at, *n, nil
}

// past is the tree as it was at one commit, as far as it was asked for.
type past struct {
	im    *Image
	op    string
	seq   uint64
	known map[Path]*Node // nil: was absent
}

func (im *Image) past(op string, seq uint64) *past {
	return &past{im: im, op: op, seq: seq, known: map[Path]*Node{}}
}

// get is a lookup.
func (a *past) get(p Path) (*Node, error) {
	if n, ok := a.known[p]; ok {
		return n, nil
	}
	err := a.fetch(p)
	return a.known[p], err
}

// fetch finds p and the directories above it in one pass: whoever asks for p
// needs them, and where one is absent that is a pass over the whole history.
func (a *past) fetch(p Path) error {
	nodes := map[Path]*Node{}
	at, err := a.fromHead(p, nodes)
	if err != nil {
		return err
	}
	err = a.im.readHistory(context.Background(), a.op, func(tx *bolt.Tx) (int, bool, error) {
		next, err := lastChange(nodes, at)
		if err != nil || next <= a.seq {
			return 0, false, err
		}
		cost, err := a.stepBack(tx, next, nodes)
		at = next - 1
		return cost, true, err
	})
	maps.Copy(a.known, nodes)
	return err
}

// fromHead puts the nodes of p and of what is above it into nodes, as they are
// at the head, which it returns.
func (a *past) fromHead(p Path, nodes map[Path]*Node) (at uint64, err error) {
	err = a.im.view(a.op, func(tx *bolt.Tx) error {
		h, err := checkVersion(tx, a.op, a.seq)
		if err != nil {
			return err
		}
		at = h.seq
		root := a.im.root()
		a.known[Path{}] = &root
		for t := a.im.tree(tx); !p.IsRoot(); p = p.Dir() {
			if _, ok := a.known[p]; ok {
				continue
			}
			if nodes[p], err = t.get(p); err != nil {
				return err
			}
		}
		return nil
	})
	return at, err
}

// lastChange is the newest commit up to at that may have changed one of the
// nodes, which are those of commit at.
func lastChange(nodes map[Path]*Node, at uint64) (last uint64, err error) {
	for p, n := range nodes {
		switch {
		case n == nil:
			last = at // any may have removed it
		case n.Version > at:
			return 0, pathError("read", p, ErrCorrupt, fmt.Sprintf("its commit %d does not have it", n.Version))
		default:
			last = max(last, n.Version)
		}
	}
	return last, nil
}

// stepBack takes what commit seq changed out of nodes.
func (a *past) stepBack(tx *bolt.Tx, seq uint64, nodes map[Path]*Node) (cost int, err error) {
	r, err := scanRecord(tx, seq, func(c rawChange) error {
		cost++
		if _, ok := nodes[Path{string(c.path)}]; !ok {
			return nil
		}
		e, err := c.effect()
		if err == nil {
			nodes[e.Path] = e.Before
		}
		return err
	})
	if err == nil && r == nil {
		err = notReached(a.op, a.seq)
	}
	return cost, err
}

// explain adds to an error that is about the past when that was.
func (a *past) explain(err error) error {
	var e *Error
	if errors.As(err, &e) && e.Kind == ErrNotFound && e.Detail == "" {
		return pathError(e.Op, e.Path, ErrNotFound, fmt.Sprintf("nothing was there at v%d", a.seq))
	}
	return err
}

// historyBatch is how many commits and changes one read transaction looks at.
const historyBatch = 4096

// readHistory calls step, which reads one record, until it says that there is
// no more to read. Now and then it begins a new read transaction, so that none
// is held over much of the history; records never change, but may go. cost is
// how many changes step looked at.
func (im *Image) readHistory(ctx context.Context, op string, step func(*bolt.Tx) (cost int, more bool, err error)) error {
	for more := true; more; {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		err := im.view(op, func(tx *bolt.Tx) error {
			for left := historyBatch; more && left > 0; left-- {
				cost, goOn, err := step(tx)
				if err != nil {
					return err
				}
				more, left = goOn, left-cost
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
