package workspace

import (
	"errors"
	"strings"
)

// The kinds of failure of this package. Every error that a caller may have to
// tell apart wraps exactly one of them; test with errors.Is.
var (
	ErrInvalidPath     = errors.New("is not a valid path")
	ErrInvalid         = errors.New("is not valid") // something else than a path: a checkpoint's name, a commit that cannot be undone
	ErrPathEscape      = errors.New("leads out of the disk")
	ErrReservedPath    = errors.New("is reserved for the container itself")
	ErrNotFound        = errors.New("does not exist")
	ErrExists          = errors.New("already exists")
	ErrIsDirectory     = errors.New("is a directory")
	ErrNotDirectory    = errors.New("is not a directory")
	ErrNotEmpty        = errors.New("is a directory that is not empty")
	ErrTooLarge        = errors.New("is too large")
	ErrQuota           = errors.New("would be over its quota")
	ErrNoSpace         = errors.New("has no free space left on its host")
	ErrVersionConflict = errors.New("was changed by someone else meanwhile")
	ErrReadOnly        = errors.New("is open for reading only")
	ErrLocked          = errors.New("is in use by another process")
	ErrCorrupt         = errors.New("is damaged")
	ErrNotImage        = errors.New("is not a disk image")
	ErrFormat          = errors.New("has a format that this program does not know")
	ErrGone            = errors.New("is gone: its file was removed or replaced while it was open")
	ErrFenced          = errors.New("was taken over by a newer lease")
	ErrSymlinkLoop     = errors.New("goes through too many symbolic links")
)

// Error says what was wrong with which path of the image. Its text is one
// plain sentence that may be shown to a model: it holds image paths only,
// never a path of the host and never the text of a library.
type Error struct {
	Op     string // what was being done: "open", "commit", "read", …
	Path   Path   // the image path concerned; meaningless when the error is about the image as a whole
	Kind   error  // one of the sentinels above
	Detail string // more words, may be empty

	missing bool   // it is about a chunk that is not there
	subject string // takes the place of Path in the sentence when it is not empty
}

// Error is "<subject> <predicate>: <detail>".
func (e *Error) Error() string {
	var b strings.Builder
	if e.subject != "" {
		b.WriteString(e.subject)
	} else {
		b.WriteString(e.Path.String())
	}
	b.WriteByte(' ')
	b.WriteString(e.Kind.Error())
	if e.Detail != "" {
		b.WriteString(": ")
		b.WriteString(e.Detail)
	}
	return b.String()
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

// HasPath says whether the error is about one path, or about something else:
// the image as a whole (its quota, its lock, its file), a version of it, a
// checkpoint.
func (e *Error) HasPath() bool { return e.subject == "" }

const theImage = "the disk image"

func pathError(op string, p Path, kind error, detail string) *Error {
	return &Error{Op: op, Path: p, Kind: kind, Detail: detail}
}

// subjectError is about something else than a path or the image as a whole.
func subjectError(op, subject string, kind error, detail string) *Error {
	return &Error{Op: op, Kind: kind, Detail: detail, subject: subject}
}

func imageError(op string, kind error, detail string) *Error {
	return &Error{Op: op, Kind: kind, Detail: detail, subject: theImage}
}
