package sandboxrun

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// tapped collects what a Tap is given; its fields are read after the run. It
// needs no lock because calls never overlap, which it checks.
type tapped struct {
	t       testing.TB
	streams [2]bytes.Buffer
	pieces  int
	busy    atomic.Bool
	over    atomic.Bool // Run has returned
}

func (c *tapped) add(s Stream, p []byte) {
	if !c.busy.CompareAndSwap(false, true) {
		c.t.Error("two calls of Tap at once")
	}
	if len(p) == 0 || c.over.Load() {
		c.t.Errorf("a call with %d bytes, Run has returned: %v", len(p), c.over.Load())
	}
	c.pieces++
	c.streams[s].Write(p)
	c.busy.Store(false)
}

// TestTap: the pieces together are the output, whatever becomes of the run.
func TestTap(t *testing.T) {
	r := newRunner(t)
	for _, tc := range []struct {
		name, script string
		outcome      Outcome
		out, err     string
	}{
		{"nothing", `true`, Exited, "", ""},
		{"both", `echo out; echo err >&2; printf x`, Exited, "out\nx", "err\n"},
		{"bytes", `printf '\0\xff\r\n'`, Exited, "\x00\xff\r\n", ""},
		{"killed", `echo out; kill -KILL $$`, Signaled, "out\n", ""},
		{"timeout", `echo out; sleep 60`, TimedOut, "out\n", ""},
		{"like bubblewrap", `echo 'bwrap: nonsense' >&2; echo out; exit 1`, Exited, "out\n", "bwrap: nonsense\n"},
		{"like bubblewrap, killed", `printf 'bwrap: n' >&2; sleep 60`, TimedOut, "", "bwrap: n"},
		{"left in the background", `(sleep 60; echo late) & echo out`, Exited, "out\n", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &tapped{t: t}
			run := bash(tc.script)
			run.Tap = c.add
			run.Limits.Timeout = 500 * time.Millisecond
			res, err := r.Run(t.Context(), run, nil)
			c.over.Store(true)
			must(t, err)
			if res.Outcome != tc.outcome || c.streams[0].String() != tc.out || c.streams[1].String() != tc.err {
				t.Errorf("%s: %q, %q", res.Outcome, &c.streams[0], &c.streams[1])
			}
			if string(res.Stdout.Text) != tc.out || string(res.Stderr.Text) != tc.err {
				t.Errorf("the result has %q, %q", res.Stdout.Text, res.Stderr.Text)
			}
		})
	}
}

// TestTapIsLive: a piece arrives while the script runs; here it is what lets
// the script go on.
func TestTapIsLive(t *testing.T) {
	r := newRunner(t)
	ready := make(chan struct{})
	run := bash(`echo ready; read -r line; echo "got $line"`)
	run.Stdin = io.MultiReader(readerFunc(func([]byte) (int, error) {
		select {
		case <-ready:
			return 0, io.EOF
		case <-t.Context().Done():
			return 0, t.Context().Err()
		}
	}), strings.NewReader("it\n"))
	var out bytes.Buffer
	run.Tap = func(_ Stream, p []byte) {
		if out.Len() == 0 {
			close(ready)
		}
		out.Write(p)
	}
	mustExit(t, r, run)
	if out.String() != "ready\ngot it\n" {
		t.Errorf("%q", &out)
	}
}

// TestTapOfFlood: exactly OutputMax bytes, in the order of each stream, though
// far more is drained; a Tap that takes its time loses nothing.
func TestTapOfFlood(t *testing.T) {
	r := newRunner(t)
	c := &tapped{t: t}
	run := bash(`seq 100000000 & seq 100000000 >&2 & wait`)
	run.Limits.OutputMax = 1 << 20
	run.Tap = c.add
	res, err := r.Run(t.Context(), run, nil)
	c.over.Store(true)
	must(t, err)
	if got := c.streams[0].Len() + c.streams[1].Len(); res.Outcome != OutputLimit || got != 1<<20 {
		t.Errorf("%s, %d bytes", res.Outcome, got)
	}
	for i := range c.streams {
		got, ref := c.streams[i].Bytes(), sequence(1<<20)
		if !bytes.HasPrefix(ref, got) {
			t.Errorf("%s is not what was written", Stream(i))
		}
	}
}

// sequence is the beginning of what seq writes.
func sequence(n int) []byte {
	b := make([]byte, 0, n+20)
	for i := int64(1); len(b) < n; i++ {
		b = append(strconv.AppendInt(b, i, 10), '\n')
	}
	return b[:n]
}

// TestTapOfFailures: what bubblewrap says of a sandbox that it cannot build is
// the error of Run and no output; it names things of the host.
func TestTapOfFailures(t *testing.T) {
	r := newRunner(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		name string
		ctx  context.Context
		run  Run
		want error
	}{
		{"no such command", t.Context(), Run{Argv: []string{"/no/such"}}, ErrSetup},
		{"no such directory", t.Context(), Run{Argv: []string{"/bin/true"}, Lower: "/no/such"}, ErrSetup},
		{"cancelled", ended, bash(`echo x`), context.Canceled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &tapped{t: t}
			tc.run.Tap = c.add
			if _, err := r.Run(tc.ctx, tc.run, nil); !errors.Is(err, tc.want) {
				t.Errorf("error %v", err)
			}
			c.over.Store(true)
			if c.pieces > 0 {
				t.Errorf("tapped %q, %q", &c.streams[0], &c.streams[1])
			}
		})
	}
}

// TestTapUntilCancel: what came before the run was cancelled was handed on.
func TestTapUntilCancel(t *testing.T) {
	r := newRunner(t)
	ctx, cancel := context.WithCancel(t.Context())
	c := &tapped{t: t}
	run := bash(`echo one; sleep 60; echo two`)
	run.Tap = func(s Stream, p []byte) { c.add(s, p); cancel() }
	res, err := r.Run(ctx, run, nil)
	c.over.Store(true)
	if !errors.Is(err, context.Canceled) || res.Outcome != Cancelled || c.streams[0].String() != "one\n" {
		t.Errorf("%v, %s, %q", err, res.Outcome, &c.streams[0])
	}
}
