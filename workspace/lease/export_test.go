package lease

import (
	"errors"

	"github.com/dgraph-io/badger/v4"
)

// ErrInterrupted is what an interrupted commit reports.
var ErrInterrupted = errors.New("interrupted")

// Interrupt lets the next commit of b report an error. It was done if stored.
func (b *Badger) Interrupt(stored bool) {
	b.BeforeCommit(func(txn *badger.Txn) error {
		if stored {
			if err := txn.Commit(); err != nil {
				return err
			}
		}
		return ErrInterrupted
	})
}

// BeforeCommit puts f in the place of the next commit of b.
func (b *Badger) BeforeCommit(f func(*badger.Txn) error) {
	b.commit = func(txn *badger.Txn) error {
		b.commit = (*badger.Txn).Commit
		return f(txn)
	}
}

// Slots is how many keys b has in memory.
func (b *Badger) Slots() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.slots)
}

// EncodeKey and DecodeRecord are the forms on disk.
func EncodeKey(k Key) string { return string(leaseKey(k)) }

func DecodeRecord(value []byte) error {
	_, err := decodeRecord(value)
	return err
}
