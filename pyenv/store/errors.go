package store

import (
	"errors"
	"fmt"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Error says what the store refuses, and what to do about it. Detail and
// Suggestions hold nothing of the host; the error below them may, and is for logs.
type Error struct {
	Code        Code
	Package     string   // the distribution that it is about, "" for none
	Detail      string   // one clause, without a full stop
	Suggestions []string // what helps, or who is in the way: "python-docx is in base"

	cause error
}

// Code is a kind of failure, as those of wheels are; test for one with errors.Is.
type Code = wheel.Code

// The codes that are the store's own. A build also fails with those of package
// wheel, of which hash_mismatch and import_collision come as an *Error.
const (
	ErrNotFound      Code = "not_found"           // no such layer or lock, and none is current
	ErrMissingWheel  Code = "missing_wheel"       // a wheel of the lock is not in the wheelhouse
	ErrTampered      Code = "lock_tampered"       // a lock is not the one that its name says
	ErrLayerTampered Code = "layer_tampered"      // a layer's manifest is not the one that was built
	ErrPython        Code = "python_mismatch"     // the lock is for another interpreter
	ErrNoFit         Code = "no_compatible_wheel" // a wheel of the lock is for another platform
	ErrBytecode      Code = "bytecode"            // the sources could not be compiled in the sandbox
	ErrDiskFull      Code = "disk_full"           // no room for a layer or a wheel; nothing was kept
	ErrInUse         Code = "in_use"              // a running script uses the layer
	ErrUnsafe        Code = "unsafe_root"         // the directory of the environments is not this user's alone
	ErrNoRoot        Code = "no_root"             // there can be no directory of environments at that place
)

// Error is "code: package: detail".
func (e *Error) Error() string {
	parts := []string{string(e.Code)}
	if e.Package != "" {
		parts = append(parts, e.Package)
	}
	parts = append(parts, e.Detail)
	if e.cause != nil {
		parts = append(parts, e.cause.Error())
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the code and what lies below.
func (e *Error) Unwrap() []error {
	if e.cause == nil {
		return []error{e.Code}
	}
	return []error{e.Code, e.cause}
}

func refuse(code Code, pkg, format string, args ...any) *Error {
	return &Error{Code: code, Package: pkg, Detail: fmt.Sprintf(format, args...)}
}

func (e *Error) because(cause error) *Error {
	e.cause = cause
	return e
}

func (e *Error) suggest(format string, args ...any) *Error {
	e.Suggestions = append(e.Suggestions, fmt.Sprintf(format, args...))
	return e
}

// full tells a full disk in the store's words. Other errors stay as they are.
func full(err error) error {
	if !hostos.IsNoSpace(err) || errors.Is(err, ErrDiskFull) {
		return err
	}
	return refuse(ErrDiskFull, "", "the disk with the Python environments is full").
		because(err).suggest("free some space, or remove layers that nobody uses with mcp-vdisk env gc, and try again")
}
