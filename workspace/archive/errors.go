package archive

import (
	"errors"
	"strconv"
	"strings"
)

// The kinds of refusal of Import. Each error of this package wraps one of them.
var (
	ErrFormat   = errors.New("is no archive that can be read here")
	ErrDamaged  = errors.New("is not whole")
	ErrEntry    = errors.New("cannot be taken into a disk")
	ErrTooLarge = errors.New("is over a limit")
)

// Error says what was wrong with which entry, or with the archive as a whole. Its text is
// one sentence that names the limit where it is about one.
type Error struct {
	Entry  string // its name in the archive; "" when it is about the whole
	Kind   error
	Detail string
	OfDisk bool // the limit is one of Limits, not one of archives
}

func (e *Error) Error() string {
	s := "the archive"
	if e.Entry != "" {
		s = "the entry " + quoted(e.Entry)
	}
	return s + " " + e.Kind.Error() + ": " + e.Detail
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

// quoted is a name for a message, cut where it is too long for one.
func quoted(name string) string {
	const most = 120
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "") + "…"
	}
	return strconv.Quote(name)
}
