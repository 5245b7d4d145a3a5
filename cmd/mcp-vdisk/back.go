package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// collectAfter is for how long a back collects no garbage, unless it comes near
// the limit of its memory: by then it has answered its first client.
const collectAfter = time.Second

// backMain is the program of such a process.
func backMain() int {
	collect := time.AfterFunc(collectAfter, func() { debug.SetGCPercent(100) })
	defer collect.Stop()
	if os.Geteuid() == 0 {
		fmt.Fprintln(os.Stderr, "mcp-vdisk: the back does not run as root")
		return exit.Failed
	}
	ctx, stop := signal.NotifyContext(context.Background(), front.StopSignals()...)
	defer stop()
	syscall.CloseOnExec(front.BackFD)
	conn, err := front.NewFrames(os.NewFile(front.BackFD, "front"))
	if err != nil {
		fmt.Fprintf(os.Stderr, "mcp-vdisk: %s is started by mcp-vdisk itself: %s\n", front.BackArg, err)
		return exit.Usage
	}
	defer conn.Close()
	return serveBack(ctx, conn)
}

// verb is one thing that the back does.
type verb struct {
	run        func(ctx context.Context, b *back) error
	noState    bool // works without opening the state directory
	daemon     bool // only a daemon can do it
	here       bool // the process becomes what is asked for
	always     bool // also of a daemon that speaks another revision
	unreadable int  // exit code when the log cannot be opened, if it is a special one
}

// verbs is what a request may ask for.
func verbs() map[string]verb {
	return map[string]verb{
		"serve":        {run: backServe, here: true},
		"call":         {run: backCall},
		"box.out":      {run: backOutbox, daemon: true},
		"box.in":       {run: backInbox},
		"image.create": {run: backCreate},
		"image.list":   {run: backList},
		"image.show":   {run: backShow},
		"image.cat":    {run: backCat},
		"image.tree":   {run: backTree},
		"image.rm":     {run: backRemove},
		"image.put":    {run: backPut},
		"image.get":    {run: backGet},
		"image.log":    {run: backLog},
		"image.diff":   {run: backDiff},
		"image.fsck":   {run: backFsck},
		"image.export": {run: backExport},
		"image.import": {run: backImport},
		"image.fork":   {run: backFork},

		"image.checkpoint":  {run: backCheckpoint},
		"image.checkpoints": {run: backCheckpoints},
		"image.restore":     {run: backRestore},
		"image.undo":        {run: backUndo},
		"image.gc":          {run: backGC},

		"audit.query":  {run: backQuery},
		"audit.verify": {run: backVerify, unreadable: verifyUnreadable},
		"config.set":   {run: backConfigSet},

		"jobs.list":   {run: backJobs},
		"jobs.show":   {run: backJobShow},
		"jobs.cancel": {run: backJobCancel},

		"env.status": {run: backEnvStatus},
		"env.ensure": {run: backEnvEnsure},
		"env.lock":   {run: backEnvLock},
		"env.import": {run: backEnvImport},
		"env.remove": {run: backEnvRemove},
		"env.python": {run: backEnvPython},
		"env.doctor": {run: backEnvDoctor},
		"env.gc":     {run: backEnvGC},

		"env.requests":    {run: backEnvRequests},
		"env.request":     {run: backEnvRequest},
		"env.decide":      {run: backEnvDecide},
		"env.rebase":      {run: backEnvRebase},
		"env.catalog":     {run: backEnvCatalog},
		"env.catalog.set": {run: backEnvCatalogSet},

		"lease.list":  {run: backLeases},
		"lease.break": {run: backLeaseBreak},
		"lease.adopt": {run: backLeaseAdopt},

		"operator.token": {run: backToken},

		"backup":        {run: backBackup},
		"state.restore": {run: backRestoreState, noState: true},

		front.VerbDaemon: {run: backDaemon, noState: true},
		"daemon.run":     {run: backDaemon, noState: true, here: true},
		"daemon.status":  {run: backDaemonStatus, daemon: true, always: true},
		"daemon.stop":    {run: backDaemonStop, daemon: true, always: true},

		"doctor":  {run: backDoctor, noState: true},
		"conform": {run: backConform, noState: true},
	}
}

// back is one request being served.
type back struct {
	req            front.Request
	set            settings
	image          *os.File      // descriptor of an image named by its path
	hub            *hub          // nil until the state is open
	st             *state        // the hub's
	peer           front.Peer    // who asks
	conn           *front.Frames // to the front; nil if alone
	alone          bool          // the process is for this request only, and its streams are the client's
	stdin          io.Reader
	stdout, stderr io.Writer
	log            *slog.Logger

	pip callersPip // of a request with tools

	daemon  *daemon // nil unless it is asked
	began   time.Time
	session atomic.Pointer[session] // of serve
	ends    func()                  // what follows the answer
}

// serveBack serves the one request of a connection and returns the exit code.
func serveBack(ctx context.Context, conn *front.Frames) int {
	req, image, err := conn.ReceiveRequest()
	if err != nil {
		fmt.Fprintf(os.Stderr, "mcp-vdisk: back: %s\n", err)
		return exit.Failed
	}
	b := &back{req: req, image: image, peer: req.Front}
	if req.Verb == front.VerbDaemon {
		b.stdout, b.stderr = front.Stream{Conn: conn, Type: front.FrameStdout}, front.Stream{Conn: conn, Type: front.FrameStderr}
		f := asFailure(ctx, b.serve(ctx))
		b.refuse(conn, f) // which nobody hears once it was ready
		return exit.OK
	}
	if verbs()[req.Verb].here {
		// The process itself is what was asked for: its own streams are the
		// client's, and no front is left to say why it fails.
		b.alone, b.stdin, b.stdout, b.stderr = true, os.Stdin, os.Stdout, os.Stderr
		b.inheritPip(conn)
		return (&front.Caller{Stderr: os.Stderr}).Report(ctx, front.NotNil(asFailure(ctx, b.serve(ctx))))
	}
	return b.answer(ctx, conn)
}

// answer serves the request with the streams that the front sends, and tells it
// how that ended. A session is told nothing when its daemon is replaced: its front
// goes on with the next one.
func (b *back) answer(ctx context.Context, conn *front.Frames) int {
	life, cancel := b.life(ctx, conn)
	defer cancel(nil)
	b.conn = conn
	b.stdout, b.stderr = front.Stream{Conn: conn, Type: front.FrameStdout}, front.Stream{Conn: conn, Type: front.FrameStderr}
	b.stdin = b.receiveStdin(life, conn, func() { cancel(nil) })
	f := asFailure(life, b.serve(life))
	if b.daemon != nil && ctx.Err() != nil {
		why := context.Cause(ctx)
		if errors.Is(why, errReplaced) && b.req.Verb == "serve" {
			return exit.OK
		}
		if !errors.Is(why, errMoved) {
			why = errStopped
		}
		f = exit.Fail(exit.Interrupted, "", "%s", why)
	}
	payload, err := json.Marshal(f)
	if err == nil {
		conn.Write(front.FrameExit, payload)
	}
	if b.ends != nil {
		b.ends()
	}
	if f == nil {
		return exit.OK
	}
	return f.Code
}

// How long a front has to read what it is told at the end, and a session to
// answer what runs when its front is to go on elsewhere.
const (
	lastWords = 2 * time.Second
	moveGrace = 4 * time.Second
)

// life is the context of a request. It ends with ctx, which is the daemon's, but
// for a session of one that is replaced: its front is told to send nothing more,
// upon which it ends as after the client's last request.
func (b *back) life(ctx context.Context, conn *front.Frames) (context.Context, context.CancelCauseFunc) {
	life, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if b.daemon != nil && b.req.Verb == "serve" && errors.Is(context.Cause(ctx), errReplaced) {
			conn.Hurry(moveGrace + lastWords)
			conn.Write(front.FrameMove, nil)
			select {
			case <-life.Done():
			case <-time.After(moveGrace):
			}
		}
		conn.Hurry(lastWords)
		cancel(context.Cause(ctx))
	})
	return life, func(cause error) {
		stop()
		cancel(cause)
	}
}

// receiveStdin gives the input that the front sends, and takes the pip configuration
// that comes before it. It fails when ctx ends, which gone makes it do when the front is
// no longer there: a command dies with the person's.
func (b *back) receiveStdin(ctx context.Context, conn *front.Frames, gone func()) io.Reader {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })
	go func() {
		for {
			typ, payload, err := conn.Read()
			switch {
			case err != nil:
				w.CloseWithError(io.ErrUnexpectedEOF)
				gone()
				return
			case typ == front.FramePip:
				b.takePip(payload)
			case typ == front.FrameStdinEnd:
				w.Close()
			case typ == front.FrameStdin:
				stop := whileWaiting(conn, gone)
				w.Write(payload) // fails once nobody reads any more; the rest is dropped
				stop()
			}
		}
	}()
	return r
}

// whileWaiting calls gone when the front hangs up before stop is called: a session
// that has enough to do reads no further, and so would not see it.
func whileWaiting(conn *front.Frames, gone func()) (stop func()) {
	const every = 500 * time.Millisecond
	over := make(chan struct{})
	timer := time.AfterFunc(every, func() {
		for !conn.HungUp() {
			select {
			case <-over:
				return
			case <-time.After(every):
			}
		}
		gone()
	})
	return func() {
		timer.Stop()
		close(over)
	}
}

func (b *back) serve(ctx context.Context) error {
	v, ok := verbs()[b.req.Verb]
	if !ok {
		return exit.Fail(exit.Usage, "", "the back does not know %q", b.req.Verb)
	}
	b.log = newLogger(b.stderr, slog.LevelWarn)
	if v.daemon && b.daemon == nil {
		return exit.Fail(exit.Failed, "", "only a daemon does %q", b.req.Verb)
	}
	if b.hub != nil { // the daemon's settings count
		b.set, b.st = b.hub.set, b.hub.st
		if err := b.sameEnvs(); err != nil && strings.HasPrefix(b.req.Verb, "env.") {
			return err
		} else if err != nil && b.req.Verb == "serve" {
			b.log.Warn("MCP_VDISK_ENVS has no effect", "why", err)
		}
		return v.run(ctx, b)
	}
	var err error
	if b.set, _, err = parseSettings(b.req.Config, b.req.ConfigName); err != nil {
		return err
	}
	if v.noState {
		return v.run(ctx, b)
	}
	if b.hub, err = openHub(ctx, b.req, b.set, lockWait, b.log); err != nil {
		if v.unreadable != 0 && errors.Is(err, audit.ErrUnreadable) {
			return exit.Fail(v.unreadable, "", "%s", err)
		}
		return err
	}
	b.st = b.hub.st
	err = v.run(ctx, b)
	return cmp.Or(err, b.hub.Close())
}

// busy says whether the request is at work: a session is while calls run. One that
// is about the daemon itself would not miss it, and an outbox goes on with the next.
func (b *back) busy() bool {
	if s := b.session.Load(); s != nil {
		return s.tools.Active() > 0
	}
	return !verbs()[b.req.Verb].daemon
}

// open opens the disk that the request names. The descriptor that came with it is
// used up.
func (b *back) open(ctx context.Context, w want) (*disk, error) {
	w.ref, w.file, w.set = b.req.Image, b.image, b.set
	b.image = nil
	return b.hub.open(ctx, w)
}

// args decodes the arguments of the verb.
func (b *back) args(v any) error {
	if err := json.Unmarshal(b.req.Args, v); err != nil {
		return exit.Fail(exit.Usage, "", "arguments of %s: %s", b.req.Verb, err)
	}
	return nil
}

func (b *back) printf(format string, a ...any) { fmt.Fprintf(b.stdout, format, a...) }

func (b *back) printJSON(v any) error { return printJSON(b.stdout, v) }

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// imageFailures gives the exit code of a failure of the image or the log, and what to do
// about it where that is not plain.
var imageFailures = []struct {
	kind error
	code int
	hint string
}{
	{workspace.ErrNotFound, exit.NotFound, "mcp-vdisk image tree shows what is there"},
	{workspace.ErrNotEmpty, exit.Failed, "pass -r to remove it with everything in it"},
	{workspace.ErrLocked, exit.Busy, "stop it first, or use another disk"},
	{workspace.ErrQuota, exit.Failed, "mcp-vdisk image show tells what takes the room; image checkpoint NAME --drop lets go of a version"},
	{workspace.ErrNoSpace, exit.Failed, "make room on the file system of the disk, of which the setting audit.min_free is kept for the log"},
	{workspace.ErrFenced, exit.Busy, "nothing was changed; mcp-vdisk lease list shows who holds the disk now"},
	{workspace.ErrGone, exit.State, "nothing was changed; end the sessions that have it open, which mcp-vdisk daemon status shows"},
	{workspace.ErrReservedPath, exit.Refused, ""},
	{workspace.ErrPathEscape, exit.Refused, ""},
	{workspace.ErrExists, exit.Refused, ""},
	{workspace.ErrReadOnly, exit.Refused, ""},
	{workspace.ErrInvalidPath, exit.Usage, ""},
	{workspace.ErrInvalid, exit.Usage, ""},
	{workspace.ErrNotImage, exit.State, ""},
	{workspace.ErrFormat, exit.State, ""},
	{workspace.ErrCorrupt, exit.Verify, ""},
	{audit.ErrUnavailable, exit.State, "make room on the disk that holds the state directory"},
}

// asFailure gives every error its exit code; nil stays nil.
func asFailure(ctx context.Context, err error) *exit.Failure {
	var f *exit.Failure
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		return f
	case ctx.Err() != nil:
		return exit.Fail(exit.Interrupted, "", "interrupted")
	}
	for _, k := range imageFailures {
		if errors.Is(err, k.kind) {
			return exit.Fail(k.code, k.hint, "%s", err)
		}
	}
	return exit.Fail(exit.Failed, "", "%s", err)
}
