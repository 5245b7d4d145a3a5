package lease

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/dgraph-io/badger/v4"
)

// Break ends the lease of a key for an operator, alive or not, and returns what
// it was. Its holder is evicted, and a new token recorded, so that nothing of
// it counts any more; the key is free when Break returns nil. After any other
// error than ErrNotHeld the lease is over, but its holder may still be at work;
// the next Acquire or Break tries again to evict it.
//
// Errors: ErrNotHeld, ErrInvalid, ErrUnavailable.
func (b *Badger) Break(ctx context.Context, k Key) (Lease, error) {
	if err := checkIdentity(k, "operator"); err != nil {
		return Lease{}, err
	}
	s, leave, err := b.enter(ctx, k)
	if err != nil {
		return Lease{}, err
	}
	defer leave()
	was := b.unseat(s)
	rec, token, err := b.condemn(ctx, k)
	if err != nil {
		return was, err
	}
	if was.Token == 0 {
		was = rec.lease()
	}
	if err := b.evict(ctx, rec); err != nil {
		return was, err
	}
	if err := b.publish(ctx, Grant{Key: k, Token: token}); err != nil {
		return was, err
	}
	return was, b.forget(ctx, rec)
}

// unseat ends the lease in memory and returns it.
func (b *Badger) unseat(s *slot) Lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.live == nil {
		return Lease{}
	}
	was := s.live.seen(b.o.Clock.Elapsed())
	s.live = nil
	return was
}

// condemn ends the lease in the store and takes the token that will follow it.
func (b *Badger) condemn(ctx context.Context, k Key) (rec *record, token uint64, err error) {
	err = b.update(ctx, func(txn *badger.Txn) (err error) {
		rec, err = readRecord(txn, k)
		switch {
		case err != nil:
			return err
		case rec == nil:
			return fmt.Errorf("%w: nobody holds it", ErrNotHeld)
		}
		if token, err = nextToken(txn, k); err != nil {
			return err
		}
		rec.Over = true
		return writeRecord(txn, rec)
	})
	return rec, token, err
}

// Holder returns the lease of a key as List does.
//
// Errors: ErrNotHeld, ErrInvalid, ErrUnavailable.
func (b *Badger) Holder(k Key) (Lease, error) {
	if err := checkIdentity(k, "operator"); err != nil {
		return Lease{}, err
	}
	r, err := b.recordOf(k)
	switch {
	case err != nil:
		return Lease{}, err
	case r == nil:
		return Lease{}, fmt.Errorf("%w: nobody holds it", ErrNotHeld)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.seen(r), nil
}

// seen is a record as others see it. The caller has b.mu.
func (b *Badger) seen(r *record) Lease {
	if s := b.slots[string(leaseKey(r.Key))]; s != nil && s.live != nil && s.live.Token == r.Token {
		return s.live.seen(b.o.Clock.Elapsed())
	}
	return r.lease()
}

// List returns the leases that are alive, and those that are over whose holders
// were not evicted yet; the oldest first.
//
// Errors: ErrUnavailable.
func (b *Badger) List(ctx context.Context) ([]Lease, error) {
	var records []*record
	err := b.view(func(txn *badger.Txn) (err error) {
		records, err = allRecords(txn)
		return err
	})
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]Lease, 0, len(records))
	for _, r := range records {
		all = append(all, b.seen(r))
	}
	slices.SortFunc(all, func(x, y Lease) int { return cmp.Compare(x.Token, y.Token) })
	return all, context.Cause(ctx)
}
