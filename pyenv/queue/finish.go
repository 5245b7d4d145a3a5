package queue

import (
	"context"
	"slices"

	"github.com/dgraph-io/badger/v4"
)

// Finish is Bind and the Move to ready, in one step: nobody, and no restart, sees the
// one without the other. change may be nil; the state is set after it. A layer of the
// request must be among those that b binds.
//
// Errors: those of Move and Bind. After an ErrConflict neither was done; the request
// that is returned tells which of the two it was, for its state is from when it was the
// binding.
func (q *Queue) Finish(ctx context.Context, id string, from State, rev int, b Binding, change func(*Request) error) (Request, error) {
	return q.rewrite(ctx, id, from, func(txn *badger.Txn, before Request, r *Request) error {
		if err := bind(txn, r.Workspace, rev, b); err != nil {
			return err
		}
		return q.change(before, r, func(r *Request) error {
			if change != nil {
				if err := change(r); err != nil {
					return err
				}
			}
			if r.Layer != "" && r.Layer != b.Iso && !slices.Contains(b.Layers, r.Layer) {
				return invalid("layer %s is not among those that are bound", r.Layer)
			}
			r.State = Ready
			return nil
		})
	})
}
