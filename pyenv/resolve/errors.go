package resolve

import (
	"context"
	"errors"
	"fmt"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// Error says why there is no solution, or why its files could not be had. Its text is
// "code: sentence", complete, and without anything of the host or a credential. (Those
// of ReadConfig are for the person whose configuration it is, and name its files.)
type Error struct {
	Code        Code
	Sentence    string
	Blocking    Blocking // what stands in the way, when that is one distribution
	Suggestions []string // sentences that say what may help

	// Detail is the end of what pip said, cleaned and without credentials. It is for
	// the log of whoever runs the server: it is text of strangers.
	Detail string

	cause error
}

// Blocking is the distribution that stands in the way.
type Blocking struct {
	Name     string // normalised
	Version  string // "" if no version of it will do
	PinnedBy string // by Request.PinsOf, when a pin holds the version
	NeededBy string // "name version" of who needs another or needs it at all; "" = it was asked for
	Wanted   string // the requirement that is not fulfilled, "bar>=2"
}

// Code is a kind of failure; test for one with errors.Is.
type Code string

// The codes. They are stable: agents and logs go by them.
const (
	ErrSdistOnly           Code = "sdist_only"           // there is source only, and building it would run it
	ErrNoCompatibleWheel   Code = "no_compatible_wheel"  // there are wheels, none for this system
	ErrNoSolution          Code = "no_solution"          // no versions fulfil all conditions
	ErrConflictWithBase    Code = "conflict_with_base"   // they would, without the pins
	ErrDirectURL           Code = "direct_url"           // something needs something by URL
	ErrHashMismatch        Code = "hash_mismatch"        // the index has other bytes than those that were locked
	ErrCooldown            Code = "cooldown"             // all versions that would do are younger than Request.Cutoff
	ErrNotFound            Code = "not_found"            // the indexes know no such project
	ErrIndexUnreachable    Code = "index_unreachable"    // an index did not answer, or not as one
	ErrResolverTimeout     Code = "resolver_timeout"     // it took too long
	ErrResolverUnavailable Code = "resolver_unavailable" // there is no pip that can be used
	ErrResolverFailed      Code = "resolver_failed"      // pip did not do what it should
	ErrSandboxUnavailable  Code = "sandbox_unavailable"  // there is no jail on this host, and so no pip
	ErrBadConfig           Code = "bad_config"           // the pip configuration cannot be used
)

// Error is the code.
func (c Code) Error() string { return string(c) }

// Error is "code: sentence".
func (e *Error) Error() string { return string(e.Code) + ": " + e.Sentence }

// Unwrap returns the code and the cause, if there is one.
func (e *Error) Unwrap() []error {
	if e.cause == nil {
		return []error{e.Code}
	}
	return []error{e.Code, e.cause}
}

func fail(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Sentence: fmt.Sprintf(format, args...)}
}

// jailError is an error of the jail as this package's: the sandbox is missing, or the
// caller gave up, or it did not start.
func jailError(ctx context.Context, err error) error {
	var own *Error
	var setup *sandboxrun.SetupError
	var h handed
	switch {
	case errors.As(err, &h):
		return fmt.Errorf("resolve: %w", h.err)
	case ctx.Err() != nil:
		return fmt.Errorf("resolve: %w", context.Cause(ctx))
	case errors.As(err, &own):
		return own
	case errors.Is(err, sandboxrun.ErrRoot):
		e := fail(ErrSandboxUnavailable, "packages are never resolved by root; pip would run with its rights")
		e.cause = sandboxrun.ErrRoot
		return e
	case errors.As(err, &setup) && errors.Is(err, sandboxrun.ErrUnavailable):
		e := fail(ErrSandboxUnavailable, "packages are resolved in a sandbox only, and there is none on this host")
		e.Suggestions, e.Detail, e.cause = []string{"Ask the operator to run `mcp-vdisk doctor`."}, setup.Cause, err
		return e
	}
	e := fail(ErrResolverFailed, "the sandbox for pip could not be started or was ended from outside")
	e.Detail, e.cause = clean(err.Error()), err
	return e
}
