package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/dgraph-io/badger/v4"
)

// MaxAttempts is how often work on a request is begun that the end of the process cuts
// off, before it fails.
const MaxAttempts = 3

// Recover puts what another process was at work on back to its last durable point, and
// returns the requests that it changed: resolving becomes received; fetching, building
// and probing become approved or auto_approved, whichever it was, with the same lock and
// decision. The attempt after the last one is failed, with the code "interrupted".
// Everything else stays as it is. To be called once, before any work begins.
//
// It goes on when one request cannot be read. Errors: ErrUnreadable, ErrUnavailable,
// with all that was changed; the cause of ctx, wrapped.
func (q *Queue) Recover(ctx context.Context) (changed []Request, err error) {
	list, err := q.Open()
	for _, r := range list {
		if !r.State.AtWork() || r.State == r.Point() {
			continue
		}
		r, rerr := q.rewrite(ctx, r.ID, r.State, func(_ *badger.Txn, _ Request, r *Request) error {
			r.Updated = q.now()
			if r.Attempt >= MaxAttempts {
				r.State = Failed
				r.Failure = &Failure{
					Code:     "interrupted",
					Sentence: fmt.Sprintf("the server ended %d times while it worked on this request", r.Attempt),
					Hint:     "ask again; if it happens again, the operator finds the cause in the log of the server",
				}
				return nil
			}
			r.State = r.Point()
			r.Attempt++
			return nil
		})
		if rerr != nil {
			err = errors.Join(err, rerr)
			continue
		}
		changed = append(changed, r)
	}
	return changed, err
}

// Point is the state at which work on a request begins again: its last durable point.
func (r *Request) Point() State {
	switch {
	case r.State == Resolving:
		return Received
	case r.State == AutoApproved || r.State == Approved || !r.State.decided():
		return r.State
	case r.Auto:
		return AutoApproved
	}
	return Approved
}
