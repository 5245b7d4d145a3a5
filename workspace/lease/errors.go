package lease

import (
	"errors"
	"fmt"
	"time"
)

// The kinds of failure of this package; test with errors.Is.
var (
	ErrConflict    = errors.New("the lease belongs to somebody else or is over")
	ErrInvalid     = errors.New("not a valid request for a lease")
	ErrUnavailable = errors.New("leases are unavailable")
	ErrNotHeld     = errors.New("there is no such lease")
	ErrRestored    = errors.New("the disk was changed under a later lease than this state knows of")
	ErrForeign     = errors.New("the disk was last changed under a lease of another state")
)

// Conflict is an ErrConflict that says who is in the way.
type Conflict struct {
	// Holder is the lease that is alive. It is the zero Lease when there is none:
	// then the grant that was shown is over.
	Holder Lease
}

// Error names the holder, since when and for how long.
func (c *Conflict) Error() string {
	h := c.Holder
	if h.Token == 0 {
		return "the lease is over"
	}
	who := h.Owner
	if h.Client != "" {
		who = fmt.Sprintf("%s (%s)", h.Client, h.Owner)
	}
	return fmt.Sprintf("the lease is held by %s since %s and expires in %v unless it is renewed",
		who, h.Since.UTC().Format(time.RFC3339), h.Remaining.Round(time.Second))
}

// Unwrap returns ErrConflict.
func (c *Conflict) Unwrap() error { return ErrConflict }
