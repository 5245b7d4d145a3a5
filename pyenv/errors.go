package pyenv

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/attach"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Error says what could not be done with an environment. All but Detail may be shown
// to anybody: it holds nothing of the host and no credential.
type Error struct {
	Code        Code
	Sentence    string           // complete, lower case, without a full stop
	Hint        string           // what to do, "" if nothing is known to help
	Blocking    resolve.Blocking // the distribution that is in the way, when it is one
	Suggestions []string         // sentences

	// Detail is for the log of whoever runs the server: paths of the host, the end of
	// what pip or a probe said.
	Detail string

	cause error
}

// Code is a kind of failure; test for one with errors.Is. Besides those below, the
// codes of the packages resolve, store and wheel are used as they are.
type Code string

// The codes that are this package's own.
const (
	ErrNoRoot    Code = "no_root"             // there is no environment root that can be used
	ErrNoPython  Code = "no_python"           // no interpreter can be had
	ErrNoSandbox Code = "sandbox_unavailable" // nothing is run without one
	ErrNotFound  Code = "not_found"           // no such base layer, lock or package
	ErrProbe     Code = "probe"               // a package of the new base cannot be imported
	ErrDiskFull  Code = "disk_full"           // no room for the environments; nothing half was kept
	ErrBadConfig Code = "bad_config"          // a setting cannot be used
	ErrUnsafe    Code = "unsafe_root"         // the environments are not this user's alone
	ErrSize      Code = "size"                // a wheel is too large
	ErrNoFit     Code = "no_compatible_wheel" // a wheel is for another system
	ErrBadLock   Code = "bad_lock"            // a lock is none
	ErrChanged   Code = "changed"             // a file is not as it was made; with Options.Strict nothing is run then
	ErrInUse     Code = "in_use"              // a script runs what was to be replaced
	ErrFailed    Code = "failed"              // the host did not do what it should
	ErrNoBase    Code = "no_base"             // there is no base layer, and packages come on top of one
	ErrNoQueue   Code = "no_queue"            // nobody can decide about requests here
	ErrModule    Code = "module_name"         // what was asked for is the name of a module, not of its package
	ErrCatalog   Code = "bad_catalog"         // catalog.json cannot be read
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

// tell turns any error into an *Error, but for one that the caller's context caused.
func tell(ctx context.Context, err error) error {
	var own *Error
	var r *resolve.Error
	var s *store.Error
	var w *wheel.Error
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("the Python environments: %w", context.Cause(ctx))
	case errors.As(err, &own):
		return own
	case errors.As(err, &s):
		return fromStore(s, err)
	case errors.As(err, &r):
		return fromResolver(r, err)
	case errors.As(err, &w):
		return &Error{Code: Code(w.Code), Sentence: "the wheel breaks a rule: " + strings.TrimPrefix(w.Error(), string(w.Code)+": "), Hint: wheelHint(w.Code), cause: err}
	case hostos.IsReadOnly(err):
		return &Error{Code: ErrNoRoot, Sentence: "the directory of the environments is on a read-only file system", Hint: "scripts get what is in it; nothing can be added", Detail: err.Error(), cause: err}
	case hostos.IsNoSpace(err):
		return &Error{Code: ErrDiskFull, Sentence: "the disk with the Python environments is full", Hint: "free some space and try again", Detail: err.Error(), cause: err}
	}
	for _, k := range kinds {
		if errors.Is(err, k.is) {
			return &Error{Code: k.code, Sentence: k.sentence, Hint: k.hint, Detail: err.Error(), cause: err}
		}
	}
	return &Error{Code: ErrFailed, Sentence: "the host did not do what the Python environments need", Hint: "see the log, and mcp-vdisk doctor", Detail: err.Error(), cause: err}
}

func fromResolver(r *resolve.Error, err error) *Error {
	e := &Error{Code: Code(r.Code), Sentence: r.Sentence, Blocking: r.Blocking, Suggestions: r.Suggestions, Detail: r.Detail, cause: err}
	if len(e.Suggestions) == 0 {
		e.Hint = resolverHints[r.Code]
	}
	return e
}

// resolverHints are what can be done where package resolve has nothing to say of the case.
var resolverHints = map[resolve.Code]string{
	resolve.ErrSdistOnly:         "ask for a version or another package that has wheels",
	resolve.ErrNoCompatibleWheel: "ask for another version, or another package that has wheels for this system",
	resolve.ErrNoSolution:        "ask for other versions, or leave one of these packages out",
	resolve.ErrDirectURL:         "ask for a version that needs packages by name and version only",
	resolve.ErrNotFound:          "check the name: that of a package often differs from what is imported",
	resolve.ErrResolverFailed:    "the operator of this server finds more in its log",
	resolve.ErrBadConfig:         "the operator of this server has to mend the pip configuration",
}

func fromStore(s *store.Error, err error) *Error {
	e := &Error{Code: Code(s.Code), Sentence: s.Detail, Suggestions: s.Suggestions, Detail: err.Error(), cause: err}
	if s.Package != "" {
		e.Sentence = s.Package + ": " + s.Detail
		e.Blocking.Name = s.Package
	}
	if len(e.Suggestions) == 0 {
		e.Hint = wheelHint(s.Code)
	}
	return e
}

// wheelHint is what a person can do about a wheel that breaks a rule, "" for another
// code.
func wheelHint(code wheel.Code) string {
	switch code {
	case wheel.ErrZipDamaged, wheel.ErrHashMismatch:
		return "get the wheel anew: it was cut off or changed on the way"
	case wheel.ErrZipBomb:
		return "get the wheel anew from whoever published it, and tell them: it has more in it than it says, or than is taken"
	case wheel.ErrZipAmbiguous, wheel.ErrZipPath, wheel.ErrZipDuplicate, wheel.ErrZipType,
		wheel.ErrRecordAbsent, wheel.ErrRecordInvalid, wheel.ErrRecordMissing, wheel.ErrRecordExtra, wheel.ErrRecordMismatch, wheel.ErrRecordWeak,
		wheel.ErrWheelMetadata:
		return "get the wheel anew from whoever published it; one that was built, renamed or changed by hand: build it again with a current tool"
	case wheel.ErrDirectURL:
		return "use a release that needs packages by name and version only, or build it so"
	case wheel.ErrStdlibShadow:
		return "the module would hide one of Python itself: use another release, or give the module another name and build the wheel again"
	case wheel.ErrPthPath:
		return "use another release, or build the wheel without that line of the .pth file"
	case wheel.ErrImportCollision:
		return "leave out one of the two packages: both bring the same file"
	}
	return ""
}

// kinds are sentinels whose texts name paths of the host, and what is said instead.
var kinds = []struct {
	is             error
	code           Code
	sentence, hint string
}{
	{sandboxrun.ErrRoot, ErrNoSandbox, "nothing is ever run by root", "run mcp-vdisk as another user"},
	{sandboxrun.ErrUnavailable, ErrNoSandbox, "Python is tried out in a sandbox only, and there is none on this host", "mcp-vdisk doctor says what is missing"},
	{python.ErrNone, ErrNoPython, "there is no Python that can be used on this host", "mcp-vdisk env doctor lists what was considered"},
	{python.ErrRefused, ErrNoPython, "the Python of the settings, or that of the system, cannot be used", "mcp-vdisk env doctor says why"},
	{python.ErrBroken, ErrNoPython, "the Python of this host does not work in the sandbox", "mcp-vdisk env doctor says why"},
	{python.ErrChanged, ErrNoPython, "the managed Python is not what it was", "mcp-vdisk env ensure makes it anew"},
	{python.ErrInUse, ErrInUse, "a script that runs uses the managed Python", "try again when it has ended"},
	{python.ErrNotFound, ErrNotFound, "the managed Python is not there any more", "mcp-vdisk env ensure makes it anew"},
	{attach.ErrMismatch, ErrNoPython, "the base layer is for another Python than there is", "mcp-vdisk env ensure builds one for it"},
	{attach.ErrUnsafe, ErrUnsafe, "something in the Python environments belongs to another user, or others can write to it", "mcp-vdisk env doctor says where"},
	{lock.ErrInvalid, ErrBadLock, "the lock is not one that can be built", "mcp-vdisk env lock makes another"},
	{errWait, ErrNoPython, "the managed Python is still being made", "the next script gets it"},
	{errClosed, ErrFailed, "the server is ending", ""},
}
