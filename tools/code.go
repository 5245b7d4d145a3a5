package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/schemas"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// Code is the stable name of a kind of failure. A program may compare codes;
// the sentence beside one may change. docs/errors.md explains each.
type Code string

// The codes. The set is frozen: a code is never renamed or given another
// meaning, and a new kind of failure takes the nearest one.
const (
	InvalidArgument    Code = "INVALID_ARGUMENT"
	InvalidPath        Code = "INVALID_PATH"
	PathEscape         Code = "PATH_ESCAPE"
	ReservedPath       Code = "RESERVED_PATH"
	NotFound           Code = "NOT_FOUND"
	AlreadyExists      Code = "ALREADY_EXISTS"
	IsADirectory       Code = "IS_A_DIRECTORY"
	NotADirectory      Code = "NOT_A_DIRECTORY"
	DirectoryNotEmpty  Code = "DIRECTORY_NOT_EMPTY"
	BinaryFile         Code = "BINARY_FILE"
	NoMatch            Code = "NO_MATCH"
	AmbiguousMatch     Code = "AMBIGUOUS_MATCH"
	TooLarge           Code = "TOO_LARGE"
	QuotaExceeded      Code = "QUOTA_EXCEEDED"
	NoSpace            Code = "NO_SPACE"
	VersionConflict    Code = "VERSION_CONFLICT"
	ReadOnly           Code = "READ_ONLY"
	DeleteDisabled     Code = "DELETE_DISABLED"
	NotAllowed         Code = "NOT_ALLOWED"
	Busy               Code = "BUSY"
	LeaseHeld          Code = "LEASE_HELD"
	Fenced             Code = "FENCED"
	SandboxUnavailable Code = "SANDBOX_UNAVAILABLE"
	SetupFailed        Code = "SETUP_FAILED"
	Cancelled          Code = "CANCELLED"
	AuditUnavailable   Code = "AUDIT_UNAVAILABLE"
	ImageCorrupt       Code = "IMAGE_CORRUPT"
	NotReady           Code = "NOT_READY"
	Internal           Code = "INTERNAL"
)

// Error is a failure as the caller of a tool sees it: a code, one plain
// sentence and what to do next. It carries nothing of the host.
type Error struct {
	Code     Code
	Rule     string // of python_env: the rule that refused, after the code
	Sentence string
	Hint     string

	late   string // what is said instead of Sentence when a script had ended before it was to be stopped
	logged string // what the audit log says instead of Sentence, when that quotes the arguments
	cause  error  // for the operator's own log only
}

func (e *Error) Error() string {
	if e.Rule != "" {
		return fmt.Sprintf("%s: %s: %s", e.Code, e.Rule, e.Sentence)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Sentence)
}

// reason is the sentence for the audit log, which holds no part of a body.
func (e *Error) reason() string { return cmp.Or(e.logged, e.Sentence) }

// Unwrap gives the error behind this one, which no caller of a tool sees.
func (e *Error) Unwrap() error { return e.cause }

// ofHost tells whether the fault is this host's or this program's, so that its
// person should see the cause, and not the caller's.
func (e *Error) ofHost() bool {
	switch e.Code {
	case Internal, AuditUnavailable, ImageCorrupt, NoSpace, SandboxUnavailable, SetupFailed:
		return e.cause != nil
	}
	return false
}

func refuse(code Code, hint, format string, a ...any) *Error {
	return &Error{Code: code, Sentence: fmt.Sprintf(format, a...), Hint: hint}
}

// pathCodes maps the kinds of failure of the image to codes, with the hint that
// serves when nothing better is known.
var pathCodes = []struct {
	kind error
	code Code
	hint string
}{
	{workspace.ErrInvalid, InvalidArgument, "correct the arguments"},
	{workspace.ErrInvalidPath, InvalidPath, "give a path such as /workspace/notes.txt"},
	{workspace.ErrPathEscape, PathEscape, "paths start at /workspace; leave out every '..' and name the file from there"},
	{workspace.ErrReservedPath, ReservedPath, "choose another name; the disk keeps this one for itself"},
	{workspace.ErrNotFound, NotFound, "list_files shows what is there"},
	{workspace.ErrExists, AlreadyExists, "use mode \"overwrite\" to replace it, or another name"},
	{workspace.ErrIsDirectory, IsADirectory, "name a file inside it; list_files shows what it holds"},
	{workspace.ErrNotDirectory, NotADirectory, "a file stands where a directory is needed; choose another path or delete it first"},
	{workspace.ErrNotEmpty, DirectoryNotEmpty, "pass recursive:true to delete it with everything in it"},
	{workspace.ErrTooLarge, TooLarge, "make it smaller, or make several files of it"},
	{workspace.ErrQuota, QuotaExceeded, "delete what is no longer needed; what checkpoints hold only the person can let go. The disk's limits are in its instructions"},
	{workspace.ErrNoSpace, NoSpace, "the host's disk is full: tell the person; nothing was changed"},
	{workspace.ErrVersionConflict, VersionConflict, "read the file again and repeat the change on what it holds now"},
	{workspace.ErrReadOnly, ReadOnly, "this disk was opened read-only; only its person can change that"},
	{workspace.ErrSymlinkLoop, InvalidPath, "the symlinks on this path lead in a circle; delete one of them"},
	{workspace.ErrLocked, Busy, "another process holds this disk; try again in a moment"},
	{workspace.ErrFenced, Fenced, fencedHint},
	{workspace.ErrCorrupt, ImageCorrupt, "tell the person: the disk image is damaged here; other files may still be readable"},
	{workspace.ErrGone, ImageCorrupt, "nothing was saved; what the disk held can still be read in this session: tell the person, who puts the file back or connects the client again for what is there now"},
	{workspace.ErrNotImage, ImageCorrupt, "tell the person: this file is not a disk image"},
	{workspace.ErrFormat, ImageCorrupt, "tell the person: this image needs another version of mcp-vdisk"},
}

// asError turns any failure into what the caller of a tool may see. What it
// does not know becomes INTERNAL, without the text of the library or the path
// of the host that stands in it.
func asError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	for _, p := range pathCodes {
		if errors.Is(err, p.kind) {
			return &Error{Code: p.code, Sentence: sentence(err, p.kind), Hint: p.hint, cause: err}
		}
	}
	switch {
	case errors.Is(err, audit.ErrUnavailable):
		return &Error{Code: AuditUnavailable, Sentence: "the audit log cannot be written, so nothing is done", Hint: "tell the person: mcp-vdisk refuses calls until its log can be written again (is the host's disk full?)", cause: err}
	case errors.Is(err, sandboxrun.ErrUnavailable), errors.Is(err, sandboxrun.ErrRoot):
		return sandboxError(err, SandboxUnavailable, "scripts cannot run on this host")
	case errors.Is(err, sandboxrun.ErrSetup):
		return sandboxError(err, SetupFailed, "the sandbox could not be set up, so the script did not run")
	case errors.Is(err, sandboxrun.ErrTooDeep):
		return &Error{Code: TooLarge, Sentence: "the script left directories nested too deep, so nothing was saved", Hint: "use fewer levels of directories", cause: err}
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return &Error{Code: Busy, Sentence: "the call waited too long", Hint: "try again", cause: err}
	case errors.Is(err, context.Canceled):
		return &Error{Code: Cancelled, Sentence: "the call was cancelled; nothing was changed", cause: err}
	}
	return &Error{Code: Internal, Sentence: "something went wrong inside mcp-vdisk; nothing was changed", Hint: "tell the person: the cause is in mcp-vdisk's own messages on standard error", cause: err}
}

// sentence is the text of an error of the image, which is written for the
// caller; of any other error only the kind is told.
func sentence(err, kind error) string {
	var w *workspace.Error
	if errors.As(err, &w) {
		return w.Error()
	}
	return kind.Error()
}

// sandboxError tells cause and remedy where the sandbox knows them.
func sandboxError(err error, code Code, sentence string) *Error {
	e := &Error{Code: code, Sentence: sentence, Hint: "the file tools work; tell the person to run: mcp-vdisk doctor", cause: err}
	var s *sandboxrun.SetupError
	if errors.As(err, &s) {
		e.Sentence += ": " + s.Cause
		if s.Remedy != "" {
			e.Hint = "the file tools work; tell the person: " + s.Remedy
		}
	}
	return e
}

// invalid turns the faults that a schema found into an error. A path of the
// wrong type is an invalid path like any other.
func invalid(tool string, err error) *Error {
	var bad *schemas.Invalid
	if !errors.As(err, &bad) {
		return asError(err)
	}
	e := &Error{Code: InvalidArgument, Sentence: bad.Error(), Hint: "correct the arguments of " + tool + " and call it again; nothing was done", cause: err}
	first := bad.Faults[0]
	switch {
	case tool == "python_env" && !slices.ContainsFunc(bad.Faults, func(f schemas.Fault) bool { return !strings.HasPrefix(f.Path, "packages") }):
		e.Rule = "env.bad_spec"
	case len(bad.Faults) == 1 && first.Path == "path" && (first.Kind == schemas.KindType || first.Kind == schemas.KindEncoding):
		e.Code = InvalidPath
	case first.Path == "" && first.Kind == schemas.KindSyntax:
		e.logged = "the arguments could not be read"
	}
	return e
}
