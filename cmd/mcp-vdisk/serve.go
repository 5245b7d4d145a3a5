package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/schemas"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
)

func (a *app) serveCmd() *cobra.Command {
	var s sessionFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a disk to an MCP client on standard input and output",
		Long: `serve speaks the Model Context Protocol on standard input and output until the
input ends. The disk is made if it is missing.`,
		Example: "  mcp-vdisk serve\n  mcp-vdisk serve --image project --no-delete",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.check(); err != nil {
				return err
			}
			return a.serve(cmd.Context(), s)
		},
	}
	a.imageFlag(cmd)
	s.register(cmd)
	return cmd
}

func (s *sessionFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.ReadOnly, "read-only", false, "offer only read_file and list_files")
	cmd.Flags().BoolVar(&s.NoDelete, "no-delete", false, "let nothing be deleted or emptied")
	cmd.Flags().StringSliceVar(&s.Tools, "tools", nil, "offer only these tools, separated by commas")
}

func (s *sessionFlags) check() error {
	for _, name := range s.Tools {
		if !slices.Contains(schemas.Names(), name) {
			return fail(exitUsage, "the tools are "+strings.Join(schemas.Names(), ", "), "--tools: there is no tool %q", name)
		}
	}
	return nil
}

// getArgs are the flags that `image get` needs to reach the same disk.
func (a *app) getArgs() string {
	var b strings.Builder
	if dir, err := a.stateDir(); err == nil && dir != defaultState() {
		b.WriteString("--state " + tools.ShellQuote(dir) + " ")
	}
	if a.image != "" && a.image != defaultImage {
		spec := a.image
		if ref, err := parseImage(spec); err == nil && ref.Path != "" {
			spec = ref.Path
		}
		b.WriteString("--image " + tools.ShellQuote(spec) + " ")
	}
	return b.String()
}

// serve makes this process the server. Root gives itself up for good first.
func (a *app) serve(ctx context.Context, s sessionFlags) error {
	r, err := a.newRequest("serve", nil)
	if err != nil {
		return err
	}
	s.GetArgs = r.Session.GetArgs
	r.Session = s
	mode := openCreate
	if s.ReadOnly {
		mode = openRead
	}
	image, err := r.Image.open(mode)
	if err != nil {
		return err
	}
	if image != nil {
		r.Image.New = isEmpty(image)
	}
	if os.Geteuid() != 0 {
		b := &back{req: r, image: image, stdin: a.stdin, stdout: a.stdout, stderr: a.stderr}
		return notNil(asFailure(ctx, b.serve(ctx)))
	}
	return a.serveDropped(r, image)
}

func (a *app) serveDropped(r request, image *os.File) error {
	who, err := prepareState(r.State, a.runAs, true)
	if err != nil {
		return err
	}
	handOverGroups(who)
	front, sock, err := pair()
	if err != nil {
		return err
	}
	conn, err := newFrames(front)
	if err != nil {
		return err
	}
	// The request waits in the socket's buffer for the program that this
	// process becomes.
	if err := conn.sendRequest(r, image); err != nil {
		return err
	}
	return becomeBack(who, sock)
}

// notNil makes a nil pointer a nil error.
func notNil(f *failure) error {
	if f == nil {
		return nil
	}
	return f
}

func backServe(ctx context.Context, b *back) error {
	// Only the protocol is written to standard output: whatever prints by
	// itself, a library perhaps, prints to standard error.
	out := b.stdout
	os.Stdout = os.Stderr
	// A client that is gone is an error of a write and not the end of the
	// process, so that the log says how it ended. (Ignoring the signal would be
	// inherited by scripts, in which `yes | head` then fails.)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	d, err := b.openTools(ctx)
	if err != nil {
		return err
	}
	if err := b.st.record(ctx, d.info.UUID, b.serverRecord(audit.EvServerStart, d)); err != nil {
		return errors.Join(err, d.Close())
	}
	err = d.tools.ServeStdio(ctx, b.stdin, out)
	if ctx.Err() != nil || errors.Is(err, syscall.EPIPE) {
		err = nil // asked to stop, or nobody listens any more
	}
	d.tools.Close() // the outcomes of scripts that still run come before the stop
	stopped := b.st.record(context.WithoutCancel(ctx), d.info.UUID, b.serverRecord(audit.EvServerStop, d))
	return errors.Join(err, stopped, d.Close())
}

func (b *back) serverRecord(ev audit.Event, d *disk) audit.Record {
	return audit.Record{Ev: ev, Img: d.info.UUID, Args: audit.Facts{
		"version": version, "image": b.req.Image.String(), "pid": int64(os.Getpid()), "uid": int64(os.Getuid()),
		"read_only": b.req.Session.ReadOnly, "no_delete": b.req.Session.NoDelete,
	}}
}
