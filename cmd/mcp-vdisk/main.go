package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	// Memory is bounded on purpose: Badger and big commits would otherwise let
	// the heap double before it is collected.
	debug.SetMemoryLimit(128 << 20)
	if len(os.Args) == 2 && os.Args[1] == backArg {
		os.Exit(backMain())
	}
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the program without its process, for main and for tests.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), stopSignals()...)
	defer stop()
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	cmd := a.command()
	cmd.SetArgs(args)
	cmd.SetIn(stdin)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	return a.report(cmd.ExecuteContext(ctx), ctx)
}

// stopSignals end the program in good order. A hangup does not, where whoever
// started it asked for that (nohup).
func stopSignals() []os.Signal {
	list := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		list = append(list, syscall.SIGHUP)
	}
	return list
}

// app is one run of the command line.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	state string // --state
	runAs string // --run-as
	image string // --image
	json  bool   // --json
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "mcp-vdisk",
		Short: "A disk of its own for an AI agent: files, sandboxed scripts and an audit log, over MCP",
		Long: `mcp-vdisk gives an AI agent a disk of its own. Over MCP it offers seven tools on a
virtual disk image; scripts run in a bubblewrap sandbox that sees only that disk;
every call, refused ones included, is a record of a hash-chained audit log.`,
		Example:           "  mcp-vdisk demo\n  mcp-vdisk serve --image project\n  mcp-vdisk call list_files '{}'",
		PersistentPreRunE: givenFlags,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.PersistentFlags().StringVar(&a.state, "state", "", "state `DIR` (default: $MCP_VDISK_STATE, else ~/.local/share/mcp-vdisk, for root /var/lib/mcp-vdisk)")
	root.PersistentFlags().StringVar(&a.runAs, "run-as", "", "`USER` or uid that root gives itself up to (never 0)")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	root.AddCommand(a.serveCmd(), a.callCmd(), a.imageCmd(), a.auditCmd(), a.configCmd(), a.doctorCmd(), a.conformCmd(), a.demoCmd(), a.versionCmd())
	return root
}

// givenFlags refuses a flag that names nothing: a variable of a script that is
// empty by mistake must not mean the default.
func givenFlags(cmd *cobra.Command, _ []string) error {
	for _, name := range []string{"state", "image", "run-as"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed && f.Value.String() == "" {
			return fail(exitUsage, "leave the flag out for the default", "--%s is empty", name)
		}
	}
	return nil
}

// Exit codes. They are listed in the README; `audit verify` has its own.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitRefused     = 4
	exitTool        = 5
	exitBusy        = 6
	exitVerify      = 10
	exitState       = 11
	exitInterrupted = 130
)

// failure is an error with the exit code it stands for and, where there is
// one, what to do about it.
type failure struct {
	Code int
	Text string // "" when everything was said already
	Hint string

	cause error
}

func (f *failure) Error() string { return f.Text }

func (f *failure) Unwrap() error { return f.cause }

func fail(code int, hint, format string, a ...any) *failure {
	return &failure{Code: code, Text: fmt.Sprintf(format, a...), Hint: hint}
}

func usage(err error) *failure {
	return fail(exitUsage, "see mcp-vdisk --help", "%s", err.Error())
}

// report prints an error and returns the exit code.
func (a *app) report(err error, ctx context.Context) int {
	var f *failure
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &f):
	case ctx.Err() != nil:
		f = &failure{Code: exitInterrupted, Text: "interrupted"}
	case strings.HasPrefix(err.Error(), "unknown command"), strings.Contains(err.Error(), "arg(s)"):
		f = usage(err)
	default:
		f = &failure{Code: exitFailed, Text: err.Error()}
	}
	if f.Text != "" {
		fmt.Fprintf(a.stderr, "mcp-vdisk: %s\n", f.Text)
	}
	if f.Hint != "" {
		fmt.Fprintf(a.stderr, "hint: %s\n", f.Hint)
	}
	return f.Code
}
