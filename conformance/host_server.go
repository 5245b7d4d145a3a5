package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun/prober"
)

// Some trials are about the process that runs scripts: that it is killed, or
// sits at a terminal. They need one of their own, which is this program again.

// serverArg is the first argument of such a process.
const serverArg = "mcp-vdisk-conform-server"

// serverOrder is what it reads from standard input.
type serverOrder struct {
	Bwrap, Number string
	Type          bool // run the prober that types; else daemons, until killed
}

// init is where that process runs.
func init() {
	if len(os.Args) != 2 || os.Args[1] != serverArg {
		return
	}
	code := 0
	if err := serve(context.Background(), os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// serve makes the one run that was asked for.
func serve(ctx context.Context, in io.Reader) error {
	var o serverOrder
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return err
	}
	r, err := sandboxrun.New(ctx, sandboxrun.Config{Bwrap: o.Bwrap})
	if err != nil {
		return err
	}
	defer r.Close()
	h := &host{number: o.Number}
	run := h.script(daemons + `; echo ready; sleep $0`)
	run.Tap = func(sandboxrun.Stream, []byte) { fmt.Println("ready") }
	if o.Type {
		if run, err = h.proberRun(prober.ModeType); err != nil {
			return err
		}
	}
	res, err := r.Run(ctx, run, nil)
	if err == nil && (res.Outcome != sandboxrun.Exited || res.ExitCode != 0) {
		err = fmt.Errorf("the run ended with %s, exit %d: %s", res.Outcome, res.ExitCode, firstLine(res.Stderr.Text))
	}
	return err
}

// server is the command of such a process.
func (h *host) server(ctx context.Context, o serverOrder) (*exec.Cmd, *bounded, error) {
	o.Bwrap, o.Number = h.bwrap, h.number
	order, err := json.Marshal(o)
	complaint := &bounded{}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", serverArg)
	cmd.Env = []string{}
	cmd.Stdin, cmd.Stderr = bytes.NewReader(order), complaint
	return cmd, complaint, err
}

// serverKilled kills a server in the middle of a run.
func serverKilled(ctx context.Context, h *host) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, longTime)
	defer cancel()
	cmd, complaint, err := h.server(ctx, serverOrder{})
	if err != nil {
		return "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	n, err := out.Read(make([]byte, 16))
	running, lerr := h.left()
	cmd.Process.Kill()
	cmd.Wait()
	if n == 0 || err != nil || lerr != nil || running == 0 {
		return "", fmt.Errorf("the server to be killed did not get to run a script (%d processes): %s", running, firstLine(*complaint))
	}
	return h.gone(ctx)
}

// gone waits a moment for the kernel to take away what belonged to a process
// that was killed, and says what is left.
func (h *host) gone(ctx context.Context) (string, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	until := time.After(graceTime)
	for {
		n, err := h.left()
		if n == 0 || err != nil {
			return fmt.Sprintf("%d left", n), err
		}
		select {
		case <-tick.C:
		case <-until:
			return fmt.Sprintf("%d left", n), nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// nobodyTyped: even outside of a sandbox nothing can be typed into a terminal.
const nobodyTyped = "not to be tried"

// typed runs a script that types, under a server that sits at a terminal, and
// counts what arrived there. That it would be seen is shown first, by the same
// program outside of a sandbox.
func typed(ctx context.Context, h *host) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, longTime)
	defer cancel()
	bare := exec.CommandContext(ctx, "/proc/self/exe", prober.Arg, prober.ModeType)
	bare.Env = []string{}
	n, err := typedBy(bare)
	if err != nil || n == 0 {
		return nobodyTyped, err
	}
	cmd, complaint, err := h.server(ctx, serverOrder{Type: true})
	if err != nil {
		return "", err
	}
	if n, err = typedBy(cmd); err != nil {
		err = fmt.Errorf("%w: %s", err, firstLine(*complaint))
	}
	return fmt.Sprint(n), err
}

// typedBy runs a command at a new terminal and counts what it typed there.
func typedBy(cmd *exec.Cmd) (int, error) {
	t, err := prober.OpenTerminal()
	if err != nil {
		return 0, err
	}
	defer t.Close()
	release, err := t.Attach(cmd)
	if err != nil {
		return 0, err
	}
	err = cmd.Start()
	release()
	if err != nil {
		return 0, err
	}
	// Read before the end of the session empties it.
	if err := cmd.Wait(); err != nil {
		return 0, err
	}
	return t.Typed()
}
