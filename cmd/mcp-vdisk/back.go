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
	"syscall"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// backArg is the only argument of a process that is a back: root started it as
// another user, with the connection to the front as descriptor backFD.
const (
	backArg = "back"
	backFD  = 3
)

// backMain is the program of such a process.
func backMain() int {
	if os.Geteuid() == 0 {
		fmt.Fprintln(os.Stderr, "mcp-vdisk: the back does not run as root")
		return exitFailed
	}
	ctx, stop := signal.NotifyContext(context.Background(), stopSignals()...)
	defer stop()
	syscall.CloseOnExec(backFD)
	conn, err := newFrames(os.NewFile(backFD, "front"))
	if err != nil {
		fmt.Fprintf(os.Stderr, "mcp-vdisk: %s is started by mcp-vdisk itself: %s\n", backArg, err)
		return exitUsage
	}
	defer conn.Close()
	return serveBack(ctx, conn)
}

// verb is one thing that the back does.
type verb struct {
	run        func(ctx context.Context, b *back) error
	noState    bool // works without opening the state directory
	unreadable int  // exit code when the log cannot be opened, if it is a special one
}

// verbs is what a request may ask for.
func verbs() map[string]verb {
	return map[string]verb{
		"serve":        {run: backServe},
		"call":         {run: backCall},
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

		"image.checkpoint":  {run: backCheckpoint},
		"image.checkpoints": {run: backCheckpoints},
		"image.restore":     {run: backRestore},
		"image.undo":        {run: backUndo},

		"audit.query":  {run: backQuery},
		"audit.verify": {run: backVerify, unreadable: verifyUnreadable},
		"config.set":   {run: backConfigSet},
		"doctor":       {run: backDoctor, noState: true},
		"conform":      {run: backConform, noState: true},
	}
}

// back is one request being served.
type back struct {
	req            request
	set            settings
	image          *os.File // descriptor of an image named by its path
	st             *state
	stdin          io.Reader
	stdout, stderr io.Writer
	log            *slog.Logger
}

// serveBack serves the one request of a connection and returns the exit code.
func serveBack(ctx context.Context, conn *frames) int {
	req, image, err := conn.receiveRequest()
	if err != nil {
		fmt.Fprintf(os.Stderr, "mcp-vdisk: back: %s\n", err)
		return exitFailed
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b := &back{
		req: req, image: image,
		stdout: stream{conn, frameStdout}, stderr: stream{conn, frameStderr},
	}
	if req.Verb == "serve" {
		// The process itself is the server: its own streams are the client's.
		b.stdin, b.stdout, b.stderr = os.Stdin, os.Stdout, os.Stderr
	} else {
		b.stdin = receiveStdin(ctx, conn, cancel)
	}
	f := asFailure(ctx, b.serve(ctx))
	if req.Verb == "serve" {
		// No front is left to say why.
		return (&app{stderr: os.Stderr}).report(notNil(f), ctx)
	}
	payload, err := json.Marshal(f)
	if err == nil {
		conn.write(frameExit, payload)
	}
	if f == nil {
		return exitOK
	}
	return f.Code
}

// receiveStdin gives the input that the front sends. It fails when ctx ends,
// which gone makes it do when the front is no longer there: a command dies with
// the person's.
func receiveStdin(ctx context.Context, conn *frames, gone func()) io.Reader {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })
	go func() {
		for {
			typ, payload, err := conn.read()
			switch {
			case err != nil:
				w.CloseWithError(io.ErrUnexpectedEOF)
				gone()
				return
			case typ == frameStdinEnd:
				w.Close()
			case typ == frameStdin:
				w.Write(payload) // fails once nobody reads any more; the rest is dropped
			}
		}
	}()
	return r
}

func (b *back) serve(ctx context.Context) error {
	v, ok := verbs()[b.req.Verb]
	if !ok {
		return fail(exitUsage, "", "the back does not know %q", b.req.Verb)
	}
	var err error
	if b.set, _, err = parseSettings(b.req.Config, b.req.ConfigName); err != nil {
		return err
	}
	b.log = newLogger(b.stderr)
	if v.noState {
		return v.run(ctx, b)
	}
	if b.st, err = openState(ctx, b.req.State, b.set, b.log); err != nil {
		if v.unreadable != 0 && errors.Is(err, audit.ErrUnreadable) {
			return fail(v.unreadable, "", "%s", err)
		}
		return err
	}
	err = v.run(ctx, b)
	return cmp.Or(err, b.st.Close())
}

// args decodes the arguments of the verb.
func (b *back) args(v any) error {
	if err := json.Unmarshal(b.req.Args, v); err != nil {
		return fail(exitUsage, "", "arguments of %s: %s", b.req.Verb, err)
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

// imageFailures gives the exit code of a failure of the image, and what to do
// about it where that is not plain.
var imageFailures = []struct {
	kind error
	code int
	hint string
}{
	{workspace.ErrNotFound, exitNotFound, "mcp-vdisk image tree shows what is there"},
	{workspace.ErrNotEmpty, exitFailed, "pass -r to remove it with everything in it"},
	{workspace.ErrLocked, exitBusy, "stop it first, or use another disk"},
	{workspace.ErrReservedPath, exitRefused, ""},
	{workspace.ErrPathEscape, exitRefused, ""},
	{workspace.ErrExists, exitRefused, ""},
	{workspace.ErrReadOnly, exitRefused, ""},
	{workspace.ErrInvalidPath, exitUsage, ""},
	{workspace.ErrInvalid, exitUsage, ""},
	{workspace.ErrNotImage, exitState, ""},
	{workspace.ErrFormat, exitState, ""},
	{workspace.ErrCorrupt, exitVerify, ""},
}

// asFailure gives every error its exit code; nil stays nil.
func asFailure(ctx context.Context, err error) *failure {
	var f *failure
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		return f
	case ctx.Err() != nil:
		return fail(exitInterrupted, "", "interrupted")
	}
	for _, k := range imageFailures {
		if errors.Is(err, k.kind) {
			return fail(k.code, k.hint, "%s", err)
		}
	}
	return fail(exitFailed, "", "%s", err)
}
