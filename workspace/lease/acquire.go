package lease

import (
	"context"
	"fmt"

	"github.com/dgraph-io/badger/v4"
)

// Acquire implements Provider. See the package for what happens in which order.
func (b *Badger) Acquire(ctx context.Context, r Request) (Grant, error) {
	if err := r.check(); err != nil {
		return Grant{}, err
	}
	s, leave, err := b.enter(ctx, r.Key)
	if err != nil {
		return Grant{}, err
	}
	defer leave()
	if err := b.vacant(s); err != nil {
		return Grant{}, err
	}
	if err := b.evictLast(ctx, r.Key); err != nil {
		return Grant{}, err
	}
	rec := &record{
		Key: r.Key, Owner: r.Owner, Client: r.Client, TTL: r.TTL,
		Resumable: r.Resumable, Since: b.o.Clock.Wall().UTC(),
	}
	if err := b.issue(ctx, rec); err != nil {
		return Grant{}, err
	}
	if err := b.publish(ctx, Grant{Key: r.Key, Owner: r.Owner, Token: rec.Token, TTL: r.TTL}); err != nil {
		b.forget(ctx, rec)
		return Grant{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s.live = b.start(rec)
	return s.live.grant(), nil
}

// vacant is a Conflict while somebody holds the key. What has expired is
// forgotten: its record says that it was there.
func (b *Badger) vacant(s *slot) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := b.o.Clock.Elapsed(); s.live.alive(now) {
		return &Conflict{Holder: s.live.seen(now)}
	}
	s.live = nil
	return nil
}

// evictLast makes sure that a holder that did not release is gone.
func (b *Badger) evictLast(ctx context.Context, k Key) error {
	last, err := b.recordOf(k)
	if err != nil || last == nil {
		return err
	}
	if !last.Over { // or a restart would bring it back if this goes no further
		if err := b.bury(ctx, k, last.Token); err != nil {
			return err
		}
	}
	return b.evict(ctx, last)
}

func (b *Badger) recordOf(k Key) (r *record, err error) {
	err = b.view(func(txn *badger.Txn) (err error) {
		r, err = readRecord(txn, k)
		return err
	})
	return r, err
}

func (b *Badger) evict(ctx context.Context, r *record) error {
	if b.o.Evict == nil {
		return nil
	}
	if err := b.o.Evict(ctx, r.lease()); err != nil {
		return fmt.Errorf("%w: the holder before could not be stopped: %w", ErrUnavailable, err)
	}
	return nil
}

// issue gives the record its token and writes both.
func (b *Badger) issue(ctx context.Context, r *record) error {
	return b.update(ctx, func(txn *badger.Txn) (err error) {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("lease: %w", err)
		}
		if _, err := readRecord(txn, r.Key); err != nil { // so that what changes it is a conflict
			return err
		}
		if r.Token, err = nextToken(txn, r.Key); err != nil {
			return err
		}
		return writeRecord(txn, r)
	})
}

// publish stores the token where the key leads.
func (b *Badger) publish(ctx context.Context, g Grant) error {
	if b.o.Record != nil {
		if err := b.o.Record(ctx, g); err != nil {
			return fmt.Errorf("%w: its token could not be recorded: %w", ErrUnavailable, err)
		}
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	return nil
}

// forget removes the record of a lease that nobody holds. When that fails, the
// next Acquire evicts somebody who is not there.
func (b *Badger) forget(ctx context.Context, r *record) error {
	return b.update(context.WithoutCancel(ctx), func(txn *badger.Txn) error {
		switch now, err := readRecord(txn, r.Key); {
		case err != nil:
			return err
		case now == nil || now.Token != r.Token:
			return nil
		}
		return stored(txn.Delete(leaseKey(r.Key)))
	})
}

func (b *Badger) view(fn func(*badger.Txn) error) error {
	if b.db.IsClosed() {
		return stored(badger.ErrDBClosed)
	}
	txn := b.db.NewTransaction(false)
	defer txn.Discard()
	return fn(txn)
}
