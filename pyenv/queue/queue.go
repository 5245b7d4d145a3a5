package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"
)

// Queue is the requests, bindings and memos of one Badger database. All methods may be
// called at the same time. It has no goroutine of its own, and there is nothing to close.
type Queue struct {
	db *badger.DB
	o  Options

	mu      sync.Mutex // never held during a transaction
	waiters map[string]*waiter
}

// Options of a Queue. The zero value is the default.
type Options struct {
	Now func() time.Time // time.Now by default

	// Room is asked before every write; its error refuses it. A full disk ends a
	// process that writes to Badger.
	Room func() error

	// Commit takes the place of (*badger.Txn).Commit, for tests of what follows when it
	// fails.
	Commit func(*badger.Txn) error
}

// Open returns the queue whose records are in db, which DetectConflicts. It writes
// nothing; Recover is the caller's to call, once, before it works on anything. The
// caller closes db when no call is running.
//
// Errors: ErrUnavailable.
func Open(db *badger.DB, o Options) (*Queue, error) {
	if !db.Opts().DetectConflicts {
		return nil, fmt.Errorf("%w: the database does not detect conflicts", ErrUnavailable)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Room == nil {
		o.Room = func() error { return nil }
	}
	if o.Commit == nil {
		o.Commit = (*badger.Txn).Commit
	}
	return &Queue{db: db, o: o, waiters: map[string]*waiter{}}, nil
}

// view runs fn on a snapshot.
func (q *Queue) view(fn func(*badger.Txn) error) error {
	if q.db.IsClosed() {
		return stored(badger.ErrDBClosed)
	}
	txn := q.db.NewTransaction(false)
	defer txn.Discard()
	return fn(txn)
}

// update runs fn in a transaction, again for as long as others get in between. Each
// time somebody else got through, so this ends; the limit is for a store that
// misbehaves.
func (q *Queue) update(ctx context.Context, fn func(*badger.Txn) error) error {
	const tries = 200
	for n := range tries {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("queue: %w", err)
		}
		err := q.transact(fn)
		if !errors.Is(err, badger.ErrConflict) {
			return err
		}
		if err := pause(ctx, n); err != nil {
			return fmt.Errorf("queue: %w", err)
		}
	}
	return fmt.Errorf("%w: the store is too busy", ErrUnavailable)
}

// transact is one try: durable when it returns nil.
func (q *Queue) transact(fn func(*badger.Txn) error) error {
	if err := q.o.Room(); err != nil {
		return stored(err)
	}
	if q.db.IsClosed() {
		return stored(badger.ErrDBClosed)
	}
	txn := q.db.NewTransaction(true)
	defer txn.Discard()
	if err := fn(txn); err != nil {
		return err
	}
	if err := stored(q.o.Commit(txn)); err != nil || q.db.Opts().SyncWrites {
		return err
	}
	return stored(q.db.Sync())
}

// pause waits for a short random time, longer with every try.
func pause(ctx context.Context, try int) error {
	most := min(50*time.Microsecond<<min(try, 16), 20*time.Millisecond)
	t := time.NewTimer(rand.N(most) + 1)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// now is the time as it is recorded.
func (q *Queue) now() time.Time { return recorded(q.o.Now()) }

// recorded is a time that a record can hold, and that is the same after it was read:
// UTC, whole milliseconds, from 1970 to the year 9999.
func recorded(t time.Time) time.Time {
	first, last := time.Unix(0, 0), time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	switch {
	case t.Before(first):
		t = first
	case t.After(last):
		t = last
	}
	return t.UTC().Truncate(time.Millisecond)
}
