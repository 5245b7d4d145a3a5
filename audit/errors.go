package audit

import "errors"

// Kinds of errors, for errors.Is.
var (
	// ErrUnavailable: the log cannot take a record now (full disk, closed or
	// stopped log, full queue until the caller's context ended, bad stream
	// name). Every error of Append and Note wraps it; the effect that needed
	// the record must not happen.
	ErrUnavailable = errors.New("audit log unavailable")
	// ErrInUse: another process has the database open.
	ErrInUse = errors.New("audit database is in use by another process")
	// ErrUnreadable: the store under the log gave an error or nonsense.
	ErrUnreadable = errors.New("audit database cannot be read")
	// ErrMalformed: a line is not a record in canonical form.
	ErrMalformed = errors.New("not a canonical audit record")
	// ErrTooBig: a line is longer than [MaxRecord]. Appends trim their record
	// to fit, so only a foreign line can be that long.
	ErrTooBig = errors.New("audit record is too big")
	// ErrQuery: a query names a field that records do not have, or a bad glob.
	ErrQuery = errors.New("bad audit query")
)
