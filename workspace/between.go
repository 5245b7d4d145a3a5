package workspace

import (
	"context"

	bolt "go.etcd.io/bbolt"
)

// Between returns what turns the state at commit from into the one at commit
// to, which may also be the older one, in the order of the tree. Paths that
// are equal in kind, content, target, mode and time at both are left out,
// whatever happened to them between. under limits it to these paths and what
// is below them; none means everything.
//
// It reads every record between the two, and keeps one entry for each path
// that they changed.
//
// Errors: ErrNotFound when there is no such commit or the history no longer
// reaches back to it; ErrCorrupt; the cause of ctx.
func (im *Image) Between(ctx context.Context, from, to uint64, under []Path) ([]Effect, error) {
	return im.between(ctx, "compare", from, to, newSubtrees(under).has)
}

// between is Between for the paths that wanted says yes to.
func (im *Image) between(ctx context.Context, op string, from, to uint64, wanted func([]byte) bool) ([]Effect, error) {
	touched := map[Path]*touch{}
	old, seq := min(from, to), min(from, to)
	err := im.readHistory(ctx, op, func(tx *bolt.Tx) (cost int, more bool, err error) {
		if seq == old {
			for _, v := range []uint64{from, to} {
				if _, err := checkVersion(tx, op, v); err != nil {
					return 0, false, err
				}
			}
		}
		if seq == max(from, to) {
			return 0, false, nil
		}
		seq++
		r, err := scanRecord(tx, seq, func(c rawChange) error {
			if cost++; !wanted(c.path) {
				return nil
			}
			return collect(touched, c)
		})
		if err == nil && r == nil {
			err = notReached(op, old)
		}
		return cost, true, err
	})
	if err != nil {
		return nil, err
	}
	return netEffects(touched, from > to), nil
}

// collect takes one more change of a path into account.
func collect(touched map[Path]*touch, c rawChange) error {
	e, err := c.effect()
	if err != nil {
		return err
	}
	if t := touched[e.Path]; t != nil {
		t.now = e.After
	} else {
		touched[e.Path] = &touch{before: e.Before, now: e.After}
	}
	return nil
}

func netEffects(touched map[Path]*touch, backwards bool) []Effect {
	effects := make([]Effect, 0, len(touched))
	for p, t := range touched {
		if backwards {
			t.before, t.now = t.now, t.before
		}
		if e, ok := newEffect(p, t.before, t.now); ok {
			effects = append(effects, e)
		}
	}
	sortEffects(effects)
	return effects
}

// subtrees are some paths and everything below them; nil is all of the tree.
type subtrees map[string]bool

func newSubtrees(tops []Path) subtrees {
	if len(tops) == 0 {
		return nil
	}
	s := subtrees{}
	for _, p := range tops {
		if p.IsRoot() {
			return nil
		}
		s[p.rel] = true
	}
	return s
}

// has says whether a path, as records have it, is one of the tops or below.
func (s subtrees) has(rel []byte) bool { return s == nil || s[string(rel)] || s.hasAbove(rel) }

// hasAbove says whether a path is below one of the tops.
func (s subtrees) hasAbove(rel []byte) bool {
	for i, b := range rel {
		if b == '/' && s[string(rel[:i])] {
			return true
		}
	}
	return false
}
