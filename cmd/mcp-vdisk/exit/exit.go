package exit

import "fmt"

// Exit codes. They are listed in the README; `audit verify` has its own.
const (
	OK          = 0
	Failed      = 1
	Usage       = 2
	NotFound    = 3
	Refused     = 4
	Tool        = 5
	Busy        = 6
	Verify      = 10
	State       = 11
	Interrupted = 130
)

// Failure is an error with the exit code it stands for and, where there is one,
// what to do about it. As JSON it travels from the back to the front.
type Failure struct {
	Code int
	Text string // "" when everything was said already
	Hint string

	cause error
}

func (f *Failure) Error() string { return f.Text }

// Unwrap gives the error behind this one.
func (f *Failure) Unwrap() error { return f.cause }

// Fail makes a failure; hint may be "".
func Fail(code int, hint, format string, a ...any) *Failure {
	return &Failure{Code: code, Text: fmt.Sprintf(format, a...), Hint: hint}
}

// Because is Fail with the error behind it.
func Because(cause error, code int, hint, format string, a ...any) *Failure {
	f := Fail(code, hint, format, a...)
	f.cause = cause
	return f
}

// BadUsage is a command that was called in a way which makes no sense.
func BadUsage(err error) *Failure {
	return Fail(Usage, "see mcp-vdisk --help", "%s", err)
}
