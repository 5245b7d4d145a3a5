package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
)

func (a *app) serveCmd() *cobra.Command {
	var s front.SessionFlags
	var x boxes
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a disk to an MCP client on standard input and output",
		Long: `serve speaks the Model Context Protocol on standard input and output until the
input ends. The disk is made if it is missing.

The work is done by the daemon of the state directory, which is started if there is
none; many clients may use one disk at the same time.

With --outbox what the disk has in /workspace/out is copied to a folder of this computer
after each change, whoever made it. What you change in that folder stays as it is. With
--inbox files that you put into a folder are copied to /workspace/in; nothing is removed
on either side. Both end with the session.`,
		Example: "  mcp-vdisk serve\n  mcp-vdisk serve --image project --no-delete\n  mcp-vdisk serve --outbox ~/from-agent --inbox ~/to-agent",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.serveWith(cmd.Context(), s, x) },
	}
	cmd.Flags().StringVar(&x.outbox, "outbox", "", "copy /workspace/out of the disk to the folder `DIR`, which is empty or was an outbox before")
	cmd.Flags().StringVar(&x.inbox, "inbox", "", "copy new files of the folder `DIR` to /workspace/in of the disk")
	a.imageFlag(cmd.Flags())
	sessionFlags(cmd.Flags(), &s)
	return cmd
}

// quoted are the flags that `image get` needs to reach the same disk, quoted.
func quoted(flags []string) string {
	var b strings.Builder
	for _, f := range flags {
		b.WriteString(tools.ShellQuote(f) + " ")
	}
	return b.String()
}

func backServe(ctx context.Context, b *back) error {
	out := b.stdout
	if b.alone {
		// Only the front.Protocol is written to standard output: whatever prints by
		// itself, a library perhaps, prints to standard error.
		os.Stdout = os.Stderr
		// A client that is gone is an error of a write and not the end of the
		// process, so that the log says how it ended. (Ignoring the signal would
		// be inherited by scripts, in which `yes | head` then fails.)
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
	s, err := b.openSession(ctx, b.set.limits)
	if err != nil {
		return err
	}
	b.session.Store(s)
	if err := b.st.record(ctx, s.d.info.UUID, b.serverRecord(audit.EvServerStart, s)); err != nil {
		return errors.Join(err, s.close(ctx))
	}
	err = s.tools.ServeStdio(ctx, b.stdin, out)
	if ctx.Err() != nil || errors.Is(err, syscall.EPIPE) {
		err = nil // asked to stop, or nobody listens any more
	}
	if b.alone {
		s.d.jobs.Close() // the outcomes of scripts that still run come before the stop
	}
	stopped := b.st.record(context.WithoutCancel(ctx), s.d.info.UUID, b.serverRecord(audit.EvServerStop, s))
	return errors.Join(err, stopped, s.close(ctx))
}

func (b *back) serverRecord(ev audit.Event, s *session) audit.Record {
	return audit.Record{Ev: ev, Img: s.d.info.UUID, Args: audit.Facts{
		"version": version, "image": b.req.Image.String(), "pid": int64(os.Getpid()), "uid": int64(os.Getuid()),
		"client_pid": int64(b.peer.PID), "client_uid": int64(b.peer.UID), "client_parent": b.peer.Parent,
		"read_only": b.req.Session.ReadOnly, "no_delete": b.req.Session.NoDelete, "exclusive": b.req.Session.Exclusive,
		"outbox": b.req.Session.Outbox, "inbox": b.req.Session.Inbox,
	}}
}
