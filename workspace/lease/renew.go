package lease

import (
	"context"
	"time"

	"github.com/dgraph-io/badger/v4"
)

// Renew implements Provider. It touches the store only when the TTL changes: a
// restart gives a resumable owner the last one.
func (b *Badger) Renew(ctx context.Context, g Grant, ttl time.Duration) (Grant, error) {
	if err := checkTTL(ttl); err != nil {
		return Grant{}, err
	}
	s, leave, err := b.enterAs(ctx, g)
	if err != nil {
		return Grant{}, err
	}
	defer leave()
	b.mu.Lock()
	now := b.o.Clock.Elapsed()
	h, over, err := s.owner(g, now)
	if err != nil {
		b.mu.Unlock()
		return Grant{}, b.refused(ctx, g, over, err)
	}
	rec := *h.record
	if now+ttl > h.deadline { // else the longer TTL stands, after a restart too
		rec.TTL = ttl
	}
	changed := rec.TTL != h.TTL
	h.record = &rec
	b.extend(h, ttl, now)
	renewed := h.grant()
	renewed.TTL = ttl
	b.mu.Unlock()
	if changed {
		err = b.update(ctx, func(txn *badger.Txn) error { return writeRecord(txn, &rec) })
	}
	return renewed, err
}

// enterAs is enter for the holder of a grant.
func (b *Badger) enterAs(ctx context.Context, g Grant) (*slot, func(), error) {
	if err := checkIdentity(g.Key, g.Owner); err != nil {
		return nil, nil, err
	}
	return b.enter(ctx, g.Key)
}

// refused answers a grant that is not alive. Once its owner has been told that
// it is over, no restart may bring it back.
func (b *Badger) refused(ctx context.Context, g Grant, over bool, err error) error {
	if over {
		_ = b.bury(ctx, g.Key, g.Token) // the answer is no in any case
	}
	return err
}

// bury notes that a lease has ended.
func (b *Badger) bury(ctx context.Context, k Key, token uint64) error {
	return b.update(context.WithoutCancel(ctx), func(txn *badger.Txn) error {
		r, err := readRecord(txn, k)
		if err != nil || r == nil || r.Token != token || r.Over {
			return err
		}
		r.Over = true
		return writeRecord(txn, r)
	})
}
