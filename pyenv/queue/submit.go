package queue

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/oklog/ulid/v2"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

// Limits of the queue.
const (
	MaxOpen    = 20  // open requests of one workspace
	MaxOpenAll = 200 // open requests in all
	KeepClosed = 60  // closed requests of one workspace that can be asked for, at least
)

// Submit queues a request, in the state received. Of asked are taken Workspace, Specs,
// Wheel, Reason, Session, Client and Call; the packages are brought into their normal
// form. While a request of the workspace for the same packages and the same wheel is
// open, that one is returned, and fresh is false.
//
// Errors: ErrFull; spec.ErrBadSpec; ErrInvalid; ErrUnreadable if the open request cannot
// be read; ErrUnavailable; the cause of ctx, wrapped.
func (q *Queue) Submit(ctx context.Context, asked Request) (r Request, fresh bool, err error) {
	r, err = q.received(asked)
	if err != nil {
		return Request{}, false, err
	}
	var there *Request
	find := func(txn *badger.Txn) (err error) {
		there, err = opened(txn, r)
		return err
	}
	// Agents ask again: that costs no write.
	if err := q.view(find); err != nil {
		return Request{}, false, err
	}
	if there == nil {
		err = q.update(ctx, func(txn *badger.Txn) error {
			fresh = false
			if err := find(txn); err != nil || there != nil {
				return err
			}
			fresh = true
			added, err := q.add(txn, r)
			there = &added
			return err
		})
	}
	if err != nil {
		return Request{}, false, err
	}
	return *there, fresh, nil
}

// received is a new request as it is asked for, but for its id.
func (q *Queue) received(asked Request) (Request, error) {
	now := q.now()
	r := Request{
		Workspace: asked.Workspace, Reason: asked.Reason, Session: asked.Session, Client: asked.Client, Call: asked.Call,
		State: Received, Attempt: 1, Created: now, Updated: now,
	}
	if asked.Wheel != nil {
		w := *asked.Wheel
		r.Wheel = &w
	}
	if len(asked.Specs) > 0 || r.Wheel == nil {
		list, err := spec.ParseRequests(asked.Specs)
		if err != nil {
			return Request{}, err
		}
		for _, s := range list {
			r.Specs = append(r.Specs, s.String())
		}
	}
	probe := r
	probe.ID = ulid.Zero.String()
	return r, probe.check()
}

// opened is the open request that asks for the same, nil if there is none.
func opened(txn *badger.Txn, r Request) (*Request, error) {
	id, err := read(txn, openKey(r))
	if err != nil || id == nil {
		return nil, err
	}
	there, err := readOpen(txn, openKey(r), string(id))
	if err != nil {
		return nil, err
	}
	return &there, nil
}

// readOpen reads the request that a key of an open one leads to.
func readOpen(txn *badger.Txn, key, id string) (Request, error) {
	r, err := readRequest(txn, id)
	switch {
	case errors.Is(err, ErrNotFound), err == nil && (r.State.Closed() || openKey(r) != key):
		return Request{}, fmt.Errorf("%s: %w", key, unreadable("it leads to no open request"))
	}
	return r, err
}

// add gives a request its id and stores it.
func (q *Queue) add(txn *badger.Txn, r Request) (Request, error) {
	id, err := nextID(txn, uint64(r.Created.UnixMilli())) // read and written by all: two cannot add at once
	if err != nil {
		return Request{}, err
	}
	own, all := 0, keysBelow(txn, openPrefix, 0)
	for _, key := range all {
		if strings.HasPrefix(key, r.Workspace+"/") {
			own++
		}
	}
	switch {
	case own >= MaxOpen:
		return Request{}, fmt.Errorf("%w: %d of this workspace, and %d are the most", ErrFull, own, MaxOpen)
	case len(all) >= MaxOpenAll:
		return Request{}, fmt.Errorf("%w: %d, and %d are the most", ErrFull, len(all), MaxOpenAll)
	}
	if err := prune(txn, r.Workspace); err != nil {
		return Request{}, err
	}
	r.ID = id
	err = errors.Join(txn.Set([]byte(ofKey(r.Workspace, id)), nil), txn.Set([]byte(openKey(r)), []byte(id)))
	if err != nil {
		return Request{}, stored(err)
	}
	return writeRequest(txn, r)
}

// nextID is higher than all that were given out, also when the clock was set back.
func nextID(txn *badger.Txn, ms uint64) (string, error) {
	var u, last ulid.ULID
	value, err := read(txn, lastKey)
	if err != nil {
		return "", err
	}
	if value != nil {
		if last, err = ulid.ParseStrict(string(value)); err != nil {
			return "", fmt.Errorf("%s: %w", lastKey, unreadable("it is no id"))
		}
	}
	if err := u.SetTime(ms); err != nil {
		return "", stored(err)
	}
	rand.Read(u[6:])
	if u.Compare(last) <= 0 {
		u = last
		for i := len(u) - 1; i >= 0; i-- { // the one that follows
			u[i]++
			if u[i] != 0 {
				break
			}
		}
		if u.Compare(last) <= 0 {
			return "", fmt.Errorf("%w: all ids have been given out", ErrUnavailable)
		}
	}
	return u.String(), stored(txn.Set([]byte(lastKey), []byte(u.String())))
}

// prune removes old closed requests of a workspace. What cannot be read stays. Of the
// newest that are left alone MaxOpen may be open.
func prune(txn *badger.Txn, ws string) error {
	ids := keysBelow(txn, ofPrefix+ws+"/", 0)
	for _, id := range ids[:max(0, len(ids)-KeepClosed-MaxOpen)] {
		r, err := readRequest(txn, id)
		if err != nil || !r.State.Closed() {
			continue
		}
		err = errors.Join(txn.Delete([]byte(requestKey(id))), txn.Delete([]byte(ofKey(ws, id))))
		if err != nil {
			return stored(err)
		}
	}
	return nil
}
