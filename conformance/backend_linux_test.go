package conformance

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// newBwrap returns the backend on bubblewrap and its scratch directory, or skips
// the test on a host without sandboxes.
func newBwrap(t testing.TB, disk bool) (sandboxrun.Backend, string) {
	t.Helper()
	scratch := filepath.Join(t.TempDir(), "scratch")
	r, err := sandboxrun.New(context.Background(), sandboxrun.Config{Scratch: scratch, Disk: disk, Group: testGroup})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	if rep := r.Probe(context.Background()); !rep.OK {
		t.Skipf("SKIP no sandbox on this host (changes on disk: %v): %s; %s", disk, rep.Cause, rep.Remedy)
	}
	b, err := sandboxrun.NewBackend(r)
	if err != nil {
		t.Fatal(err)
	}
	return b, scratch
}

// TestBwrap: the backend on the sandbox that scripts of agents run in keeps
// every rule, in a minute, and leaves nothing.
func TestBwrap(t *testing.T) {
	b, scratch := newBwrap(t, false)
	start := time.Now()
	rep := RunBackend(t.Context(), b, sandboxrun.Spec{}, Case{})
	if d := time.Since(start); d > time.Minute {
		t.Errorf("took %v", d)
	}
	expectStatuses(t, rep, func(f Finding) Status {
		if f.Rule == memoryRule && !limitsMemory(b) {
			return Skipped
		}
		return Passed
	})
	if !rep.OK() {
		t.Error("the report is not OK")
	}
	noneIn(t, scratch)
}

// TestBwrapOnDisk: with changes on disk the limits on them are watched only, so
// that they are not declared. All else holds.
func TestBwrapOnDisk(t *testing.T) {
	b, scratch := newBwrap(t, true)
	rep := RunBackend(t.Context(), b, sandboxrun.Spec{}, Case{})
	expectStatuses(t, rep, func(f Finding) Status {
		if f.Rule == "limits.write_bytes" || f.Rule == "limits.write_files" || f.Rule == memoryRule && !limitsMemory(b) {
			return Skipped
		}
		return Passed
	})
	if !rep.OK() {
		t.Error("the report is not OK")
	}
	noneIn(t, scratch)
}

const memoryRule = "limits.memory"

// limitsMemory: only where there is a control group is memory promised.
func limitsMemory(b sandboxrun.Backend) bool {
	return slices.Contains(b.Capabilities().HardLimits, sandboxrun.HardMemory)
}

// TestMemoryIsPromisedWithAGroup: where Runner.Limits says that one limits it.
func TestMemoryIsPromisedWithAGroup(t *testing.T) {
	for _, group := range []string{testGroup, "mcp-vdisk-test-none"} {
		r, err := sandboxrun.New(t.Context(), sandboxrun.Config{Scratch: filepath.Join(t.TempDir(), "scratch"), Group: group})
		if err != nil {
			t.Fatal(err)
		}
		b, err := sandboxrun.NewBackend(r)
		if err != nil {
			t.Fatal(err)
		}
		memory := r.Limits()[0]
		t.Logf("group %q: %s is limited by %s", group, memory.Resource, memory.By)
		if limitsMemory(b) != (memory.By != sandboxrun.ByRlimit) {
			t.Errorf("group %q: limited by %s, promised %v", group, memory.By, limitsMemory(b))
		}
	}
}

func noneIn(t *testing.T, dir string) {
	t.Helper()
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("scratch has %v (%v)", list, err)
	}
}
