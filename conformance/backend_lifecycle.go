package conformance

import (
	"bytes"
	"errors"
	"os"
	"runtime"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// lifecycleRules are about handles.
func lifecycleRules() []backendRule {
	return []backendRule{
		required("lifecycle.close_idempotent", "a handle can be closed again", "", nil, checkCloseAgain),
		required("lifecycle.closed_handle_artifacts", "a closed handle gives no artifacts: ErrClosed", "deterministic_cleanup",
			func(c caps) bool { return c.DeterministicCleanup && c.ArtifactCollection }, checkClosedArtifacts),
		required("lifecycle.foreign_handle_rejected", "every method refuses a handle that the backend did not make: ErrForeignHandle", "", nil, checkForeign),
		required("lifecycle.handle_ids", "every handle has a name of its own", "", nil, checkHandleIDs),
		required("lifecycle.close_during_execute", "Close ends the command under way and all that it started; its Execute returns ErrClosed", "deterministic_cleanup", cleansUp, checkCloseDuring),
		required("lifecycle.nothing_left", "closed handles leave no process, descriptor, mount or goroutine", "deterministic_cleanup", cleansUp, checkNothingLeft),
	}
}

func checkCloseAgain(t *trial) {
	h := t.create(nil)
	if err := t.close(h); err != nil {
		t.broken("close: %v", err)
	}
	for range 2 {
		if err := t.close(h); err != nil {
			t.fail("close of a closed handle: %v", err)
		}
	}
}

func checkClosedArtifacts(t *trial) {
	h := t.create(nil)
	t.ok(h, `echo 1 >left`)
	if list := t.artifacts(h); len(list) != 1 {
		t.broken("control: artifacts of an open handle: %q", paths(list))
	}
	if err := t.close(h); err != nil {
		t.broken("close: %v", err)
	}
	if list, err := t.tryArtifacts(h); !errors.Is(err, sandboxrun.ErrClosed) {
		t.fail("expected ErrClosed, got %q, error %v", paths(list), err)
	}
}

// forged is a handle that claims to be another one.
type forged struct{ id string }

func (f forged) ID() string   { return f.id }
func (f forged) Closed() bool { return false }

func checkForeign(t *trial) {
	h := t.create(nil)
	t.ok(h, `echo control >file`)
	for name, foreign := range map[string]sandboxrun.Handle{"no handle": nil, "an unknown handle": forged{"unknown"}, "a forged handle": forged{h.ID()}} {
		_, errExecute := t.try(t.ctx, foreign, sandboxrun.Request{Argv: t.c.Smoke})
		_, errArtifacts := t.tryArtifacts(foreign)
		errClose := t.close(foreign)
		if !t.caps.ArtifactCollection {
			errArtifacts = sandboxrun.ErrForeignHandle
		}
		for method, err := range map[string]error{"execute": errExecute, "artifacts": errArtifacts, "close": errClose} {
			if !errors.Is(err, sandboxrun.ErrForeignHandle) {
				t.fail("%s of %s: expected ErrForeignHandle, got %v", method, name, err)
			}
		}
	}
	t.ok(h, `cat file`) // nothing has happened to the one that was forged
}

func checkHandleIDs(t *trial) {
	seen := map[string]bool{}
	for range 4 {
		id := t.create(nil).ID()
		if id == "" || seen[id] {
			t.fail("a handle has the name %q, as another has", id)
		}
		seen[id] = true
	}
}

func checkCloseDuring(t *trial) {
	mark := t.observer()
	h := t.create(nil)
	p, _ := t.startUntil(h, sandboxrun.Request{Argv: shell(withChild+`sleep 60`, mark), Timeout: 2 * t.c.Grace})
	t.waitChild(p, mark)
	if err := t.close(h); err != nil {
		t.fail("close: %v", err)
	}
	t.noneLeft(mark)
	if !t.wait(p) {
		t.fail("the command is still running %v after Close", t.c.Grace)
	}
	if !errors.Is(p.err, sandboxrun.ErrClosed) {
		t.fail("expected ErrClosed, got %s, error %v", p.res.Outcome, p.err)
	}
}

// left is what this process has of things that handles could leave.
type left struct{ descriptors, mounts, goroutines int }

func count(t *trial) left {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.unsupported("descriptors cannot be counted: this system has no /proc")
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	t.must(err)
	return left{len(fds), bytes.Count(mounts, []byte("\n")), runtime.NumGoroutine()}
}

func checkNothingLeft(t *trial) {
	const (
		cycles = 12
		noise  = cycles / 2 // what a backend has on its way out, or makes for the next command
	)
	mark := t.observer()
	cycle := func() {
		h := t.create(nil)
		if out := t.ok(h, withChild+`echo ran >file; cat file`, mark); out != "ran\n" {
			t.broken("control: the command did not run: %q", out)
		}
		if err := t.close(h); err != nil {
			t.broken("close: %v", err)
		}
	}
	cycle() // what is made once is made now
	before := count(t)
	open := make([]*os.File, cycles)
	for i := range open {
		f, err := os.Open("/proc/self/status")
		t.must(err)
		defer f.Close()
		open[i] = f
	}
	if n := count(t).descriptors; n < before.descriptors+noise {
		t.broken("control: %d open files are counted as %d", cycles, n-before.descriptors)
	}
	for _, f := range open {
		f.Close()
	}
	for range cycles {
		cycle()
	}
	// Something left of each handle shows in as many; a few more or less are
	// somebody else's.
	var after left
	gone := func() bool {
		after = count(t)
		return after.descriptors < before.descriptors+noise && after.mounts < before.mounts+noise &&
			after.goroutines < before.goroutines+noise && living(mark) == 0
	}
	if !t.within(gone) {
		t.fail("after %d handles: before %+v, after %+v, processes %d", cycles, before, after, living(mark))
	}
}
