package lease

import (
	"context"
	"fmt"

	"github.com/dgraph-io/badger/v4"
)

// Guard implements Provider. The record of the lease is read in the transaction,
// so that an Acquire, Release or Break that commits before it makes it fail.
func (b *Badger) Guard(ctx context.Context, g Grant, fn func(Txn) error) error {
	if err := checkIdentity(g.Key, g.Owner); err != nil {
		return err
	}
	return b.update(ctx, func(txn *badger.Txn) error {
		if err := b.admit(ctx, txn, g); err != nil {
			return err
		}
		if err := fn(guarded{txn, string(appendKey(guardPrefix, g.Key))}); err != nil {
			return err
		}
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("lease: %w", err)
		}
		return b.admit(ctx, txn, g) // it may have expired meanwhile
	})
}

// Admit is the check of Guard for a transaction of the caller's own on the same
// database, to be asked in it as the last thing before its commit. Where that
// then fails with badger.ErrConflict, g may have been taken over: start again.
//
// Errors: ErrConflict, ErrInvalid, ErrUnavailable.
func (b *Badger) Admit(ctx context.Context, txn *badger.Txn, g Grant) error {
	if err := checkIdentity(g.Key, g.Owner); err != nil {
		return err
	}
	return b.admit(ctx, txn, g)
}

func (b *Badger) admit(ctx context.Context, txn *badger.Txn, g Grant) error {
	r, err := readRecord(txn, g.Key)
	if err != nil {
		return err
	}
	b.mu.Lock()
	_, over, err := b.slots[string(leaseKey(g.Key))].owner(g, b.o.Clock.Elapsed())
	b.mu.Unlock()
	switch {
	case err != nil:
		return b.refused(ctx, g, over, err)
	case r == nil || r.Token != g.Token:
		// Memory says alive and the store does not: its record was changed by
		// somebody else than this provider.
		return &Conflict{}
	}
	return nil
}

// guarded is the part of the store that belongs to a key.
type guarded struct {
	txn    *badger.Txn
	prefix string
}

func (t guarded) key(name string) ([]byte, error) {
	if name == "" || len(name) > maxPart {
		return nil, fmt.Errorf("%w: the name of a value is empty or longer than %d bytes", ErrInvalid, maxPart)
	}
	return []byte(t.prefix + name), nil
}

func (t guarded) Get(name string) ([]byte, error) {
	key, err := t.key(name)
	if err != nil {
		return nil, err
	}
	return readValue(t.txn, key)
}

func (t guarded) Set(name string, value []byte) error {
	key, err := t.key(name)
	switch {
	case err != nil:
		return err
	case len(value) > MaxValue:
		return fmt.Errorf("%w: a value of %d bytes is over %d", ErrInvalid, len(value), MaxValue)
	}
	return stored(t.txn.Set(key, append([]byte{}, value...)))
}

func (t guarded) Delete(name string) error {
	key, err := t.key(name)
	if err != nil {
		return err
	}
	return stored(t.txn.Delete(key))
}
