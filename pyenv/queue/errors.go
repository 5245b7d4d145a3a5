package queue

import (
	"errors"
	"fmt"
)

// The kinds of failure of this package; test with errors.Is. A request that names no
// package is refused with spec.ErrBadSpec.
var (
	ErrNotFound    = errors.New("there is no such request")
	ErrConflict    = errors.New("it has changed meanwhile")
	ErrFull        = errors.New("too many requests are open")
	ErrAmbiguous   = errors.New("more than one request begins so")
	ErrInvalid     = errors.New("not valid in the queue")
	ErrUnreadable  = errors.New("a record of the queue cannot be read")
	ErrUnavailable = errors.New("the queue is unavailable")
)

// Ambiguous is an ErrAmbiguous with what it could be: the first 20, in order of arrival.
type Ambiguous struct {
	Prefix  string
	Matches []Request
}

// Error says how many there are.
func (a *Ambiguous) Error() string {
	n := fmt.Sprint(len(a.Matches))
	if len(a.Matches) == maxMatches {
		n += " or more"
	}
	return fmt.Sprintf("%s requests begin with %s", n, a.Prefix)
}

// Unwrap returns ErrAmbiguous.
func (a *Ambiguous) Unwrap() error { return ErrAmbiguous }

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// stored is an error of the store as one of ours.
func stored(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
