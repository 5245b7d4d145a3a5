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

// Check says whether an image with this mark may be changed under leases of this
// provider. Nil if it was never leased, or last under a lease of this provider.
//
// Errors: ErrForeign when the mark is of another install, so that the image was
// copied or moved here: it takes the mark of the next grant instead. ErrRestored
// when this install has given out the token and does not know of it, because an
// older state was put back: see Adopt. ErrUnavailable.
func (b *Badger) Check(m Mark) error {
	if m == (Mark{}) {
		return nil
	}
	if m.Install != b.install {
		return fmt.Errorf("%w: it was copied or moved here", ErrForeign)
	}
	last, err := b.last()
	if err != nil || m.Token <= last {
		return err
	}
	return fmt.Errorf("%w: the disk has seen token %d and the last one given out is %d; "+
		"the state directory is older than the disk", ErrRestored, m.Token, last)
}

func (b *Badger) last() (n uint64, err error) {
	err = b.view(func(txn *badger.Txn) (err error) {
		n, err = readCounter(txn, keyToken)
		return err
	})
	return n, err
}

// Adopt raises the counter to the token of an image that Check calls
// ErrRestored: every later grant is above it. A grant from before Adopt stays
// below, and the image refuses it; acquire again. A mark that is no higher
// changes nothing.
//
// Errors: ErrForeign; ErrInvalid for a token above MaxToken/2, which no counter
// has reached by counting and which would use it up; ErrUnavailable.
func (b *Badger) Adopt(ctx context.Context, m Mark) error {
	switch {
	case m.Install != b.install:
		return fmt.Errorf("%w: its tokens are of another counter", ErrForeign)
	case m.Token > MaxToken/2:
		return fmt.Errorf("%w: token %d was not given out by counting", ErrInvalid, m.Token)
	}
	return b.update(ctx, func(txn *badger.Txn) error {
		last, err := readCounter(txn, keyToken)
		if err != nil || last >= m.Token {
			return err
		}
		return writeCounter(txn, keyToken, m.Token)
	})
}
