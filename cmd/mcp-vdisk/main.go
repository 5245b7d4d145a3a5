package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"runtime/debug"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/conformance/leaseproc"
	"github.com/spf13/cobra"
)

func main() {
	// Memory is bounded on purpose: Badger and big commits would otherwise let
	// the heap double before it is collected.
	debug.SetMemoryLimit(128 << 20)
	if len(os.Args) == 2 && os.Args[1] == front.BackArg {
		os.Exit(backMain())
	}
	if len(os.Args) == 2 && os.Args[1] == checkArg {
		os.Exit(checkMain())
	}
	if len(os.Args) > 2 && os.Args[1] == leaseproc.Arg { // a process of conform
		os.Exit(leaseproc.Main(os.Args[2:], openLeases))
	}
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the program without its process, for main and for tests.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), front.StopSignals()...)
	defer stop()
	a := newApp(stdin, stdout, stderr)
	cmd := a.command()
	cmd.SetArgs(args)
	cmd.SetIn(stdin)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	return a.Report(ctx, cmd.ExecuteContext(ctx))
}

// app is one run of the command line.
type app struct {
	front.Caller

	json          bool   // --json
	operatorToken string // --operator-token
}

func newApp(stdin io.Reader, stdout, stderr io.Writer) *app {
	return &app{Caller: front.Caller{Stdin: stdin, Stdout: stdout, Stderr: stderr,
		Back: func(ctx context.Context, conn *front.Frames) { serveBack(ctx, conn) },
		Here: func(ctx context.Context, r front.Request, image *os.File) error {
			b := &back{req: r, image: image, alone: true, stdin: stdin, stdout: stdout, stderr: stderr, peer: r.Front}
			if r.HasTools() {
				b.pip.read(&front.Caller{Stderr: stderr})
			}
			return front.NotNil(asFailure(ctx, b.serve(ctx)))
		},
	}}
}

// NewRequest also says whether the verb works without the state directory.
func (a *app) NewRequest(verb string, args any) (front.Request, error) {
	r, err := a.Caller.NewRequest(verb, args)
	r.NoState = verbs()[verb].noState
	return r, err
}

// group makes a command that only has others below it: alone it tells which.
func group(cmd cobra.Command) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return &cmd
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "mcp-vdisk",
		Short: "A disk of its own for an AI agent: files, sandboxed scripts and an audit log, over MCP",
		Long: `mcp-vdisk gives an AI agent a disk of its own. Over MCP it offers seven tools on a
virtual disk image; scripts run in a bubblewrap sandbox that sees only that disk;
every call, refused ones included, is a record of a hash-chained audit log.`,
		Example:           "  mcp-vdisk demo\n  mcp-vdisk serve --image project\n  mcp-vdisk call list_files '{}'",
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return checkGiven(cmd.Flags()) },
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	a.everyFlag(root.PersistentFlags())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exit.BadUsage(err) })
	root.AddCommand(a.serveCmd(), a.callCmd(), a.imageCmd(), a.auditCmd(), a.configCmd(), a.envCmd(), a.doctorCmd(), a.conformCmd(), a.demoCmd(), a.daemonCmd(), a.jobsCmd(), a.leaseCmd(), a.operatorCmd(), a.backupCmd(), a.restoreCmd(), a.versionCmd())
	return root
}
