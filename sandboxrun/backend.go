package sandboxrun

import (
	"context"
	"errors"
	"io"
	"time"
)

// Backend runs commands in workspaces that are kept from one command to the
// next. It is the contract that conformance.RunBackend tests; anybody may
// implement it. It may be used by any number of goroutines.
//
// A method that fails says why by one of the sentinels below, or by ErrSetup,
// ErrUnavailable or ErrRoot where a command could not be started. What a
// command does — fail, crash, take too long, write too much — is a Result and
// no error.
type Backend interface {
	// Capabilities says what the backend promises on this host. It does not
	// change while the backend is in use.
	Capabilities() Capabilities
	// Create makes a handle with a workspace of its own. ErrPolicy: the spec
	// asks for what is not admitted; nothing was made then.
	Create(ctx context.Context, s Spec) (Handle, error)
	// Execute runs one command in the workspace and returns when no process of
	// it is left. When r.Timeout has passed, the error is nil, the Outcome
	// TimedOut, and the Result has what was written until then. When ctx ends,
	// the error wraps context.Cause(ctx). The handle can be used again after
	// both. Commands of one handle may run one after the other; those of
	// several handles run at the same time.
	Execute(ctx context.Context, h Handle, r Request) (Result, error)
	// Artifacts returns the regular files of the workspace that Spec.Artifacts
	// declares, sorted by path. It follows no symbolic link and returns no
	// other kind of file. A read-only workspace has none: commands leave
	// nothing there. ErrPolicy: they are more than Spec.ArtifactBytes.
	Artifacts(ctx context.Context, h Handle) ([]Artifact, error)
	// Close ends the handle: a command under way is killed and its Execute
	// returns ErrClosed, the workspace is removed. It may be called again.
	Close(ctx context.Context, h Handle) error
}

// Handle stands for one workspace. Only the Backend that made it takes it:
// others return ErrForeignHandle.
type Handle interface {
	ID() string   // unique among the handles of all backends
	Closed() bool // Close has been called
}

// The kinds of errors of a Backend, for errors.Is.
var (
	// ErrClosed: the handle was closed, before the call or while it lasted.
	ErrClosed = errors.New("sandbox handle is closed")
	// ErrForeignHandle: the handle is of another backend.
	ErrForeignHandle = errors.New("sandbox handle is of another backend")
	// ErrPolicy: what was asked for is not admitted.
	ErrPolicy = errors.New("not admitted by the sandbox policy")
	// ErrUnsupported: the backend has not declared the capability.
	ErrUnsupported = errors.New("capability is not supported")
	// ErrFenced: another owner holds the lease on the workspace by now.
	ErrFenced = errors.New("lease was taken over")
)

// Spec says what a handle is to have. The zero value is an empty workspace that
// may be written, without network, with the default limits.
type Spec struct {
	// Workspace is a directory of the host whose content the workspace has at
	// the start. It is never written. Empty: an empty workspace.
	Workspace string
	// ReadOnly refuses every change of the workspace to commands (EROFS or
	// EACCES). Workspace must then not change while the handle is open.
	ReadOnly bool
	// Egress are the hosts that commands may reach. A backend that cannot
	// allow just these refuses the spec with ErrPolicy.
	Egress []string
	// Env is added to the environment of every command.
	Env map[string]string
	// Artifacts are the files and directories (with all below) of the workspace
	// that Artifacts returns, relative and separated by "/". Empty: all.
	Artifacts []string
	// ArtifactBytes is how large they may be together. 0: DefaultArtifactBytes.
	ArtifactBytes int64
	// Limits are those of each command. Zeros take their default.
	Limits Limits
}

// DefaultArtifactBytes bounds what Artifacts holds in memory, 64 MiB, and
// MaxArtifacts the number of files.
const (
	DefaultArtifactBytes = 64 << 20
	MaxArtifacts         = 10_000
)

// Request is one command.
type Request struct {
	// Argv is the command; Argv[0] is an absolute path. No shell is involved.
	// It starts in the workspace.
	Argv []string
	// Stdin is as in Run: nil is an end of file at once.
	Stdin io.Reader
	// Timeout kills the command. 0: that of Spec.Limits.
	Timeout time.Duration
}

// Artifact is one file that commands have left in a workspace.
type Artifact struct {
	Path   string `json:"path"` // relative, separated by "/"
	Size   int64  `json:"size"`
	Mode   uint32 `json:"mode"`   // permission bits
	SHA256 string `json:"sha256"` // of Bytes, in lower-case hex
	Bytes  []byte `json:"-"`
}
