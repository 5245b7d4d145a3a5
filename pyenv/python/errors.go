package python

import (
	"errors"
	"fmt"
)

// The kinds of errors, for errors.Is. Errors of the disk and of the context are
// passed on, and so are sandboxrun.ErrUnavailable and ErrRoot: without a sandbox
// no interpreter can be proved.
var (
	// ErrNone: there is no source to make an interpreter from.
	ErrNone = errors.New("no Python can be had")
	// ErrRefused: the source was looked at and must not, or cannot, be used.
	ErrRefused = errors.New("this Python is refused")
	// ErrBroken: it does not do in the sandbox what a CPython does.
	ErrBroken = errors.New("this Python does not work in the sandbox")
	// ErrNotFound: the root has no interpreter of this id.
	ErrNotFound = errors.New("no such Python")
	// ErrChanged: an interpreter that was made and proved is another one now.
	ErrChanged = errors.New("this Python is not what it was")
	// ErrInUse: a script runs it, and it cannot be removed or replaced now.
	ErrInUse = errors.New("this Python is in use")
)

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(format, args...))
}

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrBroken, fmt.Errorf(format, args...))
}
