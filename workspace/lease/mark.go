package lease

import (
	"context"
	"fmt"

	"github.com/dgraph-io/badger/v4"
)

// Mark is what an image remembers of leases: the highest token that it has seen
// and the install whose counter gave it out. The zero Mark has seen none.
type Mark struct {
	Install [16]byte
	Token   uint64
}

// Check says whether an image of this key with this mark may be changed under
// leases of this provider. Nil if it was never leased, or last under a lease of this
// provider.
//
// Errors: ErrInvalid; ErrForeign when the mark is of another install, so that the image was
// copied or moved here: it takes the mark of the next grant instead. ErrRestored
// when this install has given out the token and does not know of it, because an
// older state was put back, with the numbers as *Restored: see Adopt. ErrUnavailable.
func (b *Badger) Check(k Key, m Mark) error {
	if err := checkIdentity(k, "anybody"); err != nil || m == (Mark{}) {
		return err
	}
	if m.Install != b.install {
		return fmt.Errorf("%w: it was copied or moved here", ErrForeign)
	}
	last, err := b.bound(k)
	if err != nil || m.Token <= last {
		return err
	}
	return &Restored{Seen: m.Token, Last: last}
}

// bound is what no token of a key is above: its last one, or all that were given
// out by a release that did not keep that.
func (b *Badger) bound(k Key) (n uint64, err error) {
	err = b.view(func(txn *badger.Txn) error {
		own, err := readCounter(txn, lastKey(k))
		if err != nil {
			return err
		}
		before, err := readCounter(txn, keyBefore)
		n = max(own, before)
		return err
	})
	return n, err
}

// Last implements Provider.
func (b *Badger) Last(ctx context.Context, k Key) (n uint64, err error) {
	if err := checkIdentity(k, "anybody"); err != nil {
		return 0, err
	}
	if err := context.Cause(ctx); err != nil {
		return 0, fmt.Errorf("lease: %w", err)
	}
	err = b.view(func(txn *badger.Txn) error {
		n, err = readCounter(txn, lastKey(k))
		return err
	})
	return n, err
}

// Restored is an ErrRestored with its numbers.
type Restored struct {
	Seen uint64 // by the image
	Last uint64 // that was given out for it, as far as this state knows
}

// Error says what happened.
func (r *Restored) Error() string {
	return fmt.Sprintf("%s: the disk has seen token %d and the last one given out for it is %d; the state directory is older than the disk",
		ErrRestored, r.Seen, r.Last)
}

// Unwrap returns ErrRestored.
func (r *Restored) Unwrap() error { return ErrRestored }

// Adopt raises the counter to the token of an image that Check calls
// ErrRestored: every later grant is above it. A grant from before Adopt stays
// below, and the image refuses it; acquire again. A mark that is no higher
// changes nothing.
//
// Errors: ErrInvalid; ErrForeign; ErrInvalid for a token above MaxToken/2, which no counter
// has reached by counting and which would use it up; ErrUnavailable.
func (b *Badger) Adopt(ctx context.Context, k Key, m Mark) error {
	switch err := checkIdentity(k, "anybody"); {
	case err != nil:
		return err
	case m.Install != b.install:
		return fmt.Errorf("%w: its tokens are of another counter", ErrForeign)
	case m.Token > MaxToken/2:
		return fmt.Errorf("%w: token %d was not given out by counting", ErrInvalid, m.Token)
	}
	return b.update(ctx, func(txn *badger.Txn) error {
		last, err := readCounter(txn, keyToken)
		if err != nil {
			return err
		}
		own, err := readCounter(txn, lastKey(k))
		switch {
		case err != nil || own >= m.Token:
			return err
		case last >= m.Token: // by what other keys were given
			return writeCounter(txn, lastKey(k), m.Token)
		}
		return writeToken(txn, k, m.Token)
	})
}
