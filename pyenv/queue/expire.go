package queue

import (
	"context"
	"errors"
	"time"

	"github.com/dgraph-io/badger/v4"
)

// Expire closes what has waited for a person until now, drops memos that are no longer
// good, and returns the requests that it closed. What another clock had given more than
// PendingFor from now gets that long.
//
// It goes on when one request cannot be read or changed. Errors: ErrUnreadable,
// ErrUnavailable, with all that was closed; the cause of ctx, wrapped.
func (q *Queue) Expire(ctx context.Context, now time.Time) (closed []Request, err error) {
	now = recorded(now)
	list, err := q.Open()
	for _, r := range list {
		due, late := !now.Before(r.Expires), r.Expires.After(now.Add(PendingFor))
		if r.State != PendingApproval || !due && !late {
			continue
		}
		r, rerr := q.rewrite(ctx, r.ID, PendingApproval, func(_ *badger.Txn, _ Request, r *Request) error {
			switch {
			case !now.Before(r.Expires):
				r.State, r.Expires, r.Updated = Expired, time.Time{}, now
			case r.Expires.After(now.Add(PendingFor)):
				r.Expires = now.Add(PendingFor)
			}
			return nil
		})
		switch {
		case errors.Is(rerr, ErrConflict): // somebody decided just now
		case rerr != nil:
			err = errors.Join(err, rerr)
		case r.State == Expired:
			closed = append(closed, r)
		}
	}
	return closed, errors.Join(err, q.dropMemos(ctx, now))
}
