package queue

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
)

// PendingFor is how long a request waits for a person.
const PendingFor = 7 * 24 * time.Hour

// Move changes a request that is in the state from. change sets what becomes of it,
// State among it; it may be called more than once, and its error is returned as it is,
// with nothing changed. Move is durable when it returns, and returns the request as it
// is then, with an ErrConflict too.
//
// What was asked, the id, the times and the attempt cannot be changed. The state that
// follows must be one of from.Next(), and have what belongs to it: pending_approval a
// lock; what is approved a Decision for that lock; denied a Decision against it; failed a
// Failure; rejected a Failure or Findings; ready such a Decision and a layer, or neither
// layer nor lock when there was nothing to add. On the way from an approval to ready the
// lock stays, and so it does in the move that approves, unless that turns Iso on.
//
// Errors: ErrConflict, when the request is in another state or the decision is for
// another lock than the request has; ErrInvalid; ErrNotFound; ErrUnreadable;
// ErrUnavailable; the cause of ctx, wrapped.
func (q *Queue) Move(ctx context.Context, id string, from State, change func(*Request) error) (Request, error) {
	return q.rewrite(ctx, id, from, func(_ *badger.Txn, before Request, r *Request) error {
		return q.change(before, r, change)
	})
}

// rewriter makes of a request what takes its place. It shares nothing with before.
type rewriter func(txn *badger.Txn, before Request, r *Request) error

// rewrite puts what fn makes of a request in its place.
func (q *Queue) rewrite(ctx context.Context, id string, from State, fn rewriter) (Request, error) {
	if !validID(id) {
		return Request{}, ErrNotFound
	}
	var r Request
	err := q.update(ctx, func(txn *badger.Txn) (err error) {
		if r, err = readRequest(txn, id); err != nil {
			return err
		}
		if r.State != from {
			return fmt.Errorf("%w: request %s is %s, not %s", ErrConflict, id, r.State, from)
		}
		moved, err := readRequest(txn, id)
		if err != nil {
			return err
		}
		if err := fn(txn, r, &moved); err != nil {
			return err
		}
		moved, err = writeRequest(txn, moved)
		if err == nil {
			r = moved
		}
		return err
	})
	q.wake(id) // after an error too: it may have been stored
	if err != nil && !errors.Is(err, ErrConflict) {
		return Request{}, err // nobody knows how it is
	}
	return r, err
}

// change applies what a caller wants within the rules.
func (q *Queue) change(before Request, r *Request, change func(*Request) error) error {
	if err := change(r); err != nil {
		return err
	}
	if !reflect.DeepEqual(fixed(*r), fixed(before)) {
		return invalid("what was asked cannot be changed")
	}
	r.Attempt, r.Auto, r.Expires, r.Updated = before.Attempt, before.Auto, before.Expires, q.now()
	return r.settle(before)
}

// fixed is what no move changes.
func fixed(r Request) Request {
	return Request{
		ID: r.ID, Workspace: r.Workspace, Specs: r.Specs, Wheel: r.Wheel, Reason: r.Reason,
		Session: r.Session, Client: r.Client, Call: r.Call, Created: r.Created,
	}
}

// settle holds a request to the rules of its state, given what it was before.
func (r *Request) settle(before Request) error {
	back := before.State.decided() && (r.State == AutoApproved || r.State == Approved)
	if !slices.Contains(next[before.State], r.State) || back && r.State != before.Point() {
		return invalid("%s does not follow on %s", r.State, before.State)
	}
	if r.State == Received || r.State == Resolving || r.State == PendingApproval {
		r.Decision, r.Auto = nil, false
	}
	if r.Decision != nil {
		d := *r.Decision
		if d.At.IsZero() {
			d.At = r.Updated
		}
		d.At = recorded(d.At)
		r.Decision = &d
	}
	if phase(r.State) != phase(before.State) && !r.State.Closed() {
		r.Attempt = 1
	}
	if r.State == AutoApproved || r.State == Ready && !before.State.decided() && r.Decision != nil {
		r.Auto = true
	}
	switch {
	case r.State != PendingApproval:
		r.Expires = time.Time{}
	case before.State != PendingApproval:
		r.Expires = r.Updated.Add(PendingFor)
	}
	if err := r.keepsLock(before); err != nil {
		return err
	}
	return r.complete(before)
}

// phase is the part of the way within which attempts are counted.
func phase(s State) int {
	switch {
	case s == Received || s == Resolving:
		return 1
	case s.decided():
		return 2
	}
	return 0
}

// keepsLock refuses another lock than the one that was, or is being, decided about.
func (r *Request) keepsLock(before Request) error {
	held := before.State.decided() && (r.State.decided() || r.State == Ready)
	shown := before.State == PendingApproval && (r.State == Approved || r.State == Denied)
	isolated := shown && r.Iso && !before.Iso
	switch {
	case held && (r.Lock != before.Lock || r.Iso != before.Iso):
		return invalid("the approval is for lock %s", before.Lock)
	case held && !reflect.DeepEqual(r.Decision, before.Decision):
		return invalid("the decision cannot be changed")
	case shown && !isolated && (r.Lock != before.Lock || r.Iso != before.Iso):
		return invalid("a decision does not change the lock")
	case shown && !r.Decision.concerns(r.Lock):
		return fmt.Errorf("%w: the decision is about lock %q, and request %s has lock %s now", ErrConflict, r.Decision.Lock, r.ID, r.Lock)
	}
	return nil
}

// concerns says whether a decision may be taken on a lock. Against it, none need be named.
func (d *Decision) concerns(lockID string) bool {
	return d == nil || d.Lock == lockID || d.Lock == "" && !d.Approve
}

// complete refuses a request that lacks what belongs to its state.
func (r *Request) complete(before Request) error {
	d := r.Decision
	approved := d != nil && d.Approve && d.Lock == r.Lock && lock.ValidID(r.Lock)
	nothing := r.Lock == "" && r.Layer == "" && !before.State.decided() // was to be added
	switch {
	case r.State == PendingApproval && !lock.ValidID(r.Lock):
		return invalid("there is no lock to decide about")
	case r.State.decided() && !approved:
		return invalid("%s needs an approval of the lock", r.State)
	case r.State == Ready && !nothing && (!approved || r.Layer == ""):
		return invalid("ready needs an approval of the lock, and a layer")
	case r.State == Denied && (d == nil || d.Approve):
		return invalid("denied needs a decision against it")
	case r.State == Failed && r.Failure == nil, r.State == Rejected && r.Failure == nil && len(r.Findings) == 0:
		return invalid("%s needs a reason", r.State)
	}
	return nil
}
