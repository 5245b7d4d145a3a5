package front

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
)

// Version of this program; the linker sets it for a release.
var Version = "0.1.0-dev"

// Caller is one run of the command line: whose streams they are, and where and as
// whom it is to work.
type Caller struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	State    string // --state
	RunAs    string // --run-as
	Image    string // --image
	NoDaemon bool   // --no-daemon
	Envs     string // in the place of $MCP_VDISK_ENVS

	pipTold bool // that the pip configuration cannot be read was said

	// Back serves the request of a connection, Here one of this very process, on
	// its own streams.
	Back func(context.Context, *Frames)
	Here func(context.Context, Request, *os.File) error
}

// CheckGiven refuses a flag that names nothing: a variable of a script that is
// empty by mistake must not mean the default.
func CheckGiven(name, value string) error {
	if value == "" {
		return exit.Fail(exit.Usage, "leave the flag out for the default", "--%s is empty", name)
	}
	return nil
}

// Report prints an error and returns the exit code.
func (a *Caller) Report(ctx context.Context, err error) int {
	var f *exit.Failure
	switch {
	case err == nil:
		return exit.OK
	case errors.As(err, &f):
	case ctx.Err() != nil:
		f = &exit.Failure{Code: exit.Interrupted, Text: "interrupted"}
	case strings.HasPrefix(err.Error(), "unknown command"), strings.Contains(err.Error(), "arg(s)"):
		f = exit.BadUsage(err)
	default:
		f = &exit.Failure{Code: exit.Failed, Text: err.Error()}
	}
	if f.Text != "" {
		fmt.Fprintf(a.Stderr, "mcp-vdisk: %s\n", f.Text)
	}
	if f.Hint != "" {
		fmt.Fprintf(a.Stderr, "hint: %s\n", f.Hint)
	}
	return f.Code
}

// NotNil makes a nil pointer a nil error.
func NotNil(f *exit.Failure) error {
	if f == nil {
		return nil
	}
	return f
}
