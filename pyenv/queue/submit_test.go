package queue

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

func TestSubmitAskedTwiceIsAskedOnce(t *testing.T) {
	f := newFixture(t)
	first := f.submit(wsA, "Pandas >=2", "numpy")
	want(t, "specs", first.Specs, []string{"numpy", "pandas>=2"})
	want(t, "state", first.State, Received)
	want(t, "attempt", first.Attempt, 1)
	want(t, "created", first.Created, start)

	writes := 0
	f.Queue.o.Room = func() error { writes++; return nil }
	again, fresh, err := f.Submit(t.Context(), Request{Workspace: wsA, Specs: []string{"numpy", "numpy ", "pandas>=2"}, Reason: "other words"})
	if err != nil || fresh {
		t.Fatal(fresh, err)
	}
	want(t, "the same", again, first)
	want(t, "writes", writes, 0)

	if other := f.submit(wsB, "numpy", "pandas>=2"); other.ID == first.ID {
		t.Error("another workspace got the request")
	}
	sum := strings.Repeat("ab", 32)
	wheel := Request{Workspace: wsA, Specs: first.Specs, Wheel: &Upload{File: "foo-1-py3-none-any.whl", SHA256: sum, Path: "in/foo.whl"}}
	with, fresh, err := f.Submit(t.Context(), wheel)
	if err != nil || !fresh || with.ID == first.ID {
		t.Fatal("a wheel does not make another request", fresh, err)
	}
	wheel.Wheel.SHA256 = strings.Repeat("cd", 32)
	if other, fresh, err := f.Submit(t.Context(), wheel); err != nil || !fresh || other.ID == with.ID {
		t.Error("another wheel is the same request", fresh, err)
	}
	want(t, "what was returned is the caller's", with.Wheel.SHA256, sum)

	f.to(first, Cancelled)
	if next := f.submit(wsA, "numpy", "pandas>=2"); next.ID <= first.ID {
		t.Errorf("after the end of %s comes %s", first.ID, next.ID)
	}
	consistent(t, f.Queue)
}

func TestSubmitRefuses(t *testing.T) {
	f := newFixture(t)
	for name, r := range map[string]Request{
		"nothing":        {Workspace: wsA},
		"url":            {Workspace: wsA, Specs: []string{"foo @ https://example.org/foo.whl"}},
		"nul":            {Workspace: wsA, Specs: []string{"foo\x00"}},
		"21 packages":    {Workspace: wsA, Specs: slices.Repeat([]string{"foo"}, 21)},
		"no workspace":   {Specs: []string{"foo"}},
		"slash":          {Workspace: wsA + "/" + wsB, Specs: []string{"foo"}},
		"long workspace": {Workspace: strings.Repeat("a", 65), Specs: []string{"foo"}},
		"not UTF-8":      {Workspace: wsA, Specs: []string{"foo"}, Reason: "\xff"},
		"long reason":    {Workspace: wsA, Specs: []string{"foo"}, Reason: strings.Repeat("a", maxText+1)},
		"long client":    {Workspace: wsA, Specs: []string{"foo"}, Client: strings.Repeat("a", maxName+1)},
		"no hash":        {Workspace: wsA, Wheel: &Upload{File: "foo.whl", Path: "foo.whl"}},
		"upper hash":     {Workspace: wsA, Wheel: &Upload{File: "foo.whl", Path: "foo.whl", SHA256: strings.Repeat("AB", 32)}},
	} {
		_, _, err := f.Submit(t.Context(), r)
		if !errors.Is(err, ErrInvalid) && !errors.Is(err, spec.ErrBadSpec) {
			t.Errorf("%s: %v", name, err)
		}
	}
	want(t, "requests", len(consistent(t, f.Queue)), 0)

	r, _, err := f.Submit(t.Context(), Request{
		Workspace: wsA, Specs: []string{"foo"}, Reason: "\x1b[2J\u202eevil\x00",
		State: Ready, ID: "01", Lock: lock1, Decision: &Decision{Approve: true}, Attempt: 9, Iso: true, Auto: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.State != Received || r.Lock != "" || r.Decision != nil || r.Attempt != 1 || r.Iso || r.Auto {
		t.Errorf("a caller brought a decision along: %+v", r)
	}
	want(t, "the reason is kept as it came", r.Reason, "\x1b[2J\u202eevil\x00")
}

func TestSubmitLimits(t *testing.T) {
	f := newFixture(t)
	workspaces := []string{wsA}
	for i := range MaxOpenAll / MaxOpen {
		workspaces = append(workspaces, wsB+string(rune('a'+i)))
	}
	var last Request
	for _, ws := range workspaces[:MaxOpenAll/MaxOpen] {
		for n := range MaxOpen {
			last = f.submit(ws, specN(n))
		}
		_, _, err := f.Submit(t.Context(), Request{Workspace: ws, Specs: []string{specN(MaxOpen)}})
		wantIs(t, err, ErrFull)
		if r := f.submit(ws, specN(3)); r.State != Received {
			t.Error("what is open already is refused")
		}
	}
	beyond := Request{Workspace: workspaces[MaxOpenAll/MaxOpen], Specs: []string{"foo"}}
	_, _, err := f.Submit(t.Context(), beyond)
	wantIs(t, err, ErrFull)
	f.to(last, Cancelled)
	if _, _, err := f.Submit(t.Context(), beyond); err != nil {
		t.Error("there is room again:", err)
	}
	list, err := f.Queue.Open()
	if err != nil || len(list) != MaxOpenAll || !slices.IsSorted(idsOf(list)) {
		t.Errorf("%d are open, sorted %v: %v", len(list), slices.IsSorted(idsOf(list)), err)
	}
	consistent(t, f.Queue)
}

// An agent in a loop fills neither the disk nor pushes out what is open.
func TestSubmitKeepsTheNewestClosed(t *testing.T) {
	f := newFixture(t)
	old := f.submit(wsA, "old")
	other := f.to(f.submit(wsB, "other"), Cancelled)
	var closed []string
	for n := range 2 * (KeepClosed + MaxOpen) {
		closed = append(closed, f.to(f.submit(wsA, specN(n)), Rejected).ID)
	}
	list, err := f.List(Filter{Workspace: wsA})
	if err != nil {
		t.Fatal(err)
	}
	got := idsOf(list)
	if len(got) < KeepClosed+1 || len(got) > KeepClosed+MaxOpen+2 {
		t.Errorf("%d are kept", len(got))
	}
	want(t, "the open one", got[0], old.ID)
	want(t, "the newest", got[1:], closed[len(closed)-len(got)+1:])
	if _, err := f.Get(wsA, closed[0]); err != ErrNotFound {
		t.Error(err)
	}
	if _, err := f.Get(wsB, other.ID); err != nil {
		t.Error("that of another workspace is gone:", err)
	}
	consistent(t, f.Queue)
}

// The order of arrival holds whatever the clock does.
func TestClockSetBackAndForward(t *testing.T) {
	f := newFixture(t)
	var ids []string
	for n, jump := range []time.Duration{0, time.Hour, -48 * time.Hour, 0, 100 * 365 * 24 * time.Hour, -150 * 365 * 24 * time.Hour, 0} {
		f.clock.add(jump)
		f.reopen()
		ids = append(ids, f.submit(wsA, specN(n)).ID)
	}
	f.clock.mu.Lock()
	f.clock.t = time.Date(200_000, 1, 1, 0, 0, 0, 0, time.UTC)
	f.clock.mu.Unlock()
	ids = append(ids, f.submit(wsA, "far").ID, f.submit(wsA, "further").ID)
	f.clock.mu.Lock()
	f.clock.t = time.Time{}
	f.clock.mu.Unlock()
	ids = append(ids, f.submit(wsA, "near").ID)
	if !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != len(ids) {
		t.Errorf("the ids do not rise: %q", ids)
	}
	list, err := f.Queue.Open()
	if err != nil {
		t.Fatal(err)
	}
	want(t, "open", idsOf(list), ids)
	f.reopen()
	consistent(t, f.Queue)
}
