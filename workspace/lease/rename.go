package lease

import (
	"context"
	"fmt"

	"github.com/dgraph-io/badger/v4"
)

// Rename gives this install another name, at random and durably, and returns the two:
// for a store that was copied, so that what is leased by it and by the original are
// told apart from now on. Every image that was leased under the old name is ErrForeign
// to Check, and takes the mark of its next grant. The counter goes on: no token comes
// twice under either name. Grants that were given out before count no more once the
// images have seen one under the new name; no grant may be alive.
//
// Errors: ErrUnavailable.
func (b *Badger) Rename(ctx context.Context) (was, now [16]byte, err error) {
	was, now = b.install, newInstall()
	err = b.update(ctx, func(txn *badger.Txn) error { return stored(txn.Set(keyInstall, now[:])) })
	if err != nil {
		return was, was, fmt.Errorf("rename the install: %w", err)
	}
	b.install = now
	return was, now, nil
}
