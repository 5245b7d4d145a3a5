package sandboxrun

import "errors"

// The kinds of errors, for errors.Is.
var (
	// ErrUnavailable: this host cannot run sandboxes as it is. The error is a
	// *SetupError with the cause and what to do.
	ErrUnavailable = errors.New("sandbox unavailable")
	// ErrSetup: this one run could not be started; the host in general can.
	// The error is a *SetupError.
	ErrSetup = errors.New("sandbox setup failed")
	// ErrRoot: the process runs as uid 0. Nothing is run then: a user
	// namespace does not keep host root out of /proc/sys.
	ErrRoot = errors.New("scripts are never run as root")
	// ErrCutOff: the sandbox was killed from outside, or did not end, after the
	// command was started. What it had done so far is lost.
	ErrCutOff = errors.New("the sandbox was ended from outside while the script ran")
	// ErrStream: the description of the changes was malformed or incomplete;
	// none of them may be used.
	ErrStream = errors.New("malformed change stream")
	// ErrTooDeep: the script left directories nested deeper than 256.
	ErrTooDeep = errors.New("directories nested too deep")
)

// SetupError says why a sandbox could not be set up, and what helps. It is
// either ErrUnavailable or ErrSetup, never both.
type SetupError struct {
	Cause  string // one lower-case sentence, without a full stop
	Remedy string // what to do, for a person; may be empty
	// Steps are lines for the shell of root that do what Remedy says, where they
	// depend on the host: they hold its paths, and are for nobody but the person.
	Steps  string
	Stderr string // what bubblewrap or the kernel said
	kind   error
	// onDisk: keeping the changes in a scratch directory would help.
	onDisk bool
	// noGroup: the run can go on without a control group.
	noGroup bool
}

func (e *SetupError) Error() string { return e.kind.Error() + ": " + e.Cause }

// Unwrap returns ErrUnavailable or ErrSetup.
func (e *SetupError) Unwrap() error { return e.kind }

// helpedByDisk reports whether the same run may succeed with its changes on disk.
func helpedByDisk(err error) bool {
	var e *SetupError
	return errors.As(err, &e) && e.onDisk
}

// helpedByNoGroup reports whether the same run may succeed without a group.
func helpedByNoGroup(err error) bool {
	var e *SetupError
	return errors.As(err, &e) && e.noGroup
}
