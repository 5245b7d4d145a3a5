package queue

import (
	"context"
	"errors"

	"github.com/dgraph-io/badger/v4"
)

// Forget removes all that is kept of a workspace that is gone for good: its binding, its
// closed requests, and its open ones, which are cancelled by it. It is one step, durable
// when it returns, and returns the requests that were open, as cancelled ones. Whoever
// works on one, or waits for it, finds that there is no such request. Forgetting twice,
// or what never was, is no error. The workspace may ask again.
//
// Errors: ErrUnreadable, when something of it cannot be read, and nothing is removed
// then; ErrInvalid; ErrUnavailable; the cause of ctx, wrapped.
func (q *Queue) Forget(ctx context.Context, ws string) (cancelled []Request, err error) {
	if !validWorkspace(ws) {
		return nil, invalid("the workspace has no valid name")
	}
	var gone []string
	err = q.update(ctx, func(txn *badger.Txn) (err error) {
		cancelled, gone, err = q.forget(txn, ws)
		return err
	})
	for _, id := range gone { // after an error too: it may have been stored
		q.wake(id)
	}
	if err != nil {
		return nil, err
	}
	return cancelled, nil
}

// forget removes what there is of a workspace, and returns the ids of its requests.
func (q *Queue) forget(txn *badger.Txn, ws string) (cancelled []Request, ids []string, err error) {
	// All that submit write this key: a request that is added meanwhile makes us begin
	// again.
	if _, err := read(txn, lastKey); err != nil {
		return nil, nil, err
	}
	bound, err := readBinding(txn, ws)
	if err != nil {
		return nil, nil, err
	}
	ids = keysBelow(txn, ofPrefix+ws+"/", 0)
	if bound.Rev == 0 && len(ids) == 0 {
		return nil, nil, nil
	}
	drop := []string{bindKey(ws)}
	for _, id := range ids {
		r, err := readRequest(txn, id)
		if errors.Is(err, ErrNotFound) {
			err = about(ofKey(ws, id), unreadable("it leads to no request"))
		}
		if err != nil {
			return nil, nil, err
		}
		drop = append(drop, requestKey(id), ofKey(ws, id))
		if !r.State.Closed() {
			drop = append(drop, openKey(r))
			r.State, r.Updated = Cancelled, q.now()
			cancelled = append(cancelled, r)
		}
	}
	for _, key := range drop {
		if err := txn.Delete([]byte(key)); err != nil {
			return nil, nil, stored(err)
		}
	}
	return cancelled, ids, nil
}
