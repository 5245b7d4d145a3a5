package queue

import (
	"context"
	"fmt"

	"github.com/dgraph-io/badger/v4"
)

// Inherit binds workspace to, which was never bound, to what workspace from is bound to,
// if that is still of revision rev. What led to it is not taken along: these are requests
// of the other. It is durable when Inherit returns. A workspace that was never bound, of
// revision 0, leaves nothing to inherit.
//
// Errors: ErrConflict, ErrInvalid, ErrUnreadable, ErrUnavailable; the cause of ctx,
// wrapped.
func (q *Queue) Inherit(ctx context.Context, from string, rev int, to string) error {
	return q.update(ctx, func(txn *badger.Txn) error {
		b, err := readBinding(txn, from)
		if err != nil {
			return err
		}
		if b.Rev != rev {
			return fmt.Errorf("%w: the binding has revision %d, not %d", ErrConflict, b.Rev, rev)
		}
		if rev == 0 {
			return nil
		}
		return bind(txn, to, 0, b.Heir(to))
	})
}

// Heir is the first binding of a workspace that gets what b names.
func (b Binding) Heir(to string) Binding {
	b.Workspace, b.Rev, b.Requests = to, 1, nil
	return b
}
