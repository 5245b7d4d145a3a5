package pyenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
)

// newBase makes another base current: one with bar in another version.
func (o *shop) newBase(version string) string {
	o.t.Helper()
	o.index.Add(oldFile(module("bar", version))...)
	q := at(o.index)
	q.Relock = true
	rep, err := o.Ensure(o.t.Context(), q)
	must(o.t, err)
	return rep.Base
}

// TestCase37: another base changes nothing for who is bound to the one before; rebase
// takes a workspace there, or says why it cannot.
func TestCase37Rebase(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo", "old"}, module("foo", "1"), module("old", "1", "bar<2"))
	before := o.current()
	o.is(o.ask(wsA, "foo"), queue.Ready)
	o.is(o.ask(wsB, "old"), queue.Ready)
	after := o.newBase("2")
	if after == before || o.current() != after {
		t.Fatalf("the base is %s, was %s", after, before)
	}
	const see = "import bar; print(bar.version)"
	for ws, want := range map[string]string{wsA: "1.0", wsB: "1.0", wsC: "2"} {
		if got := o.sees(ws, see); got != want {
			t.Errorf("%s sees bar %s, want %s", ws, got, want)
		}
	}
	rep, err := o.Rebase(t.Context(), RebaseRequest{Workspace: wsA, By: "operator uid 1000", How: "terminal"})
	must(t, err)
	if !rep.Changed || rep.After.Base != after || rep.Before.Base != before || rep.Card != nil || rep.After.Rev != 2 {
		t.Errorf("%+v", rep)
	}
	if got := o.sees(wsA, "import foo, bar; print(foo.version, bar.version)"); got != "1 2" {
		t.Errorf("it sees %s", got)
	}
	if b := o.bound(wsA); len(b.Layers) != 1 || b.Layers[0] != rep.Before.Layers[0] {
		t.Errorf("the same wheels are another layer: %+v", b)
	}
	again, err := o.Rebase(t.Context(), RebaseRequest{Workspace: wsA, By: "x"})
	if err != nil || again.Changed {
		t.Errorf("%+v %v", again, err)
	}
	// old needs a bar that the new base does not have: only an isolated layer would do,
	// and that is for a person.
	was := o.bound(wsB)
	rep, err = o.Rebase(t.Context(), RebaseRequest{Workspace: wsB, By: "operator uid 1000", How: "terminal"})
	must(t, err)
	if rep.Changed || rep.Card == nil || !slices.Contains(ruleNames(rep.Card.Findings), policy.Override) || fmt.Sprint(o.bound(wsB)) != fmt.Sprint(was) {
		t.Fatalf("%+v", rep)
	}
	if _, err = o.Rebase(t.Context(), RebaseRequest{Workspace: wsB, Approve: "0123456789abcdef", By: "x"}); !errors.Is(err, queue.ErrConflict) {
		t.Errorf("another lock: %v", err)
	}
	rep, err = o.Rebase(t.Context(), RebaseRequest{Workspace: wsB, Approve: rep.Card.Lock, By: "operator uid 1000", How: "terminal"})
	must(t, err)
	if !rep.Changed || rep.After.Iso == "" {
		t.Errorf("%+v", rep)
	}
	if got := o.sees(wsB, "import old, bar; print(bar.version)"); !strings.HasPrefix(got, "1.") {
		t.Errorf("it sees bar %s", got)
	}
	// What was approved is what it has: nobody is asked again.
	again, err = o.Rebase(t.Context(), RebaseRequest{Workspace: wsB, By: "operator uid 1000", How: "terminal"})
	if err != nil || again.Changed || again.Card != nil {
		t.Errorf("%+v %v", again, err)
	}
}

func ruleNames(list []policy.Finding) (names []string) {
	for _, f := range list {
		names = append(names, f.Rule)
	}
	return names
}

// TestCase37Impossible: a workspace that cannot go to the new base stays as it is.
func TestCase37Impossible(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo"}, module("foo", "1", "bar<2"))
	o.is(o.ask(wsA, "foo"), queue.Ready)
	was := o.bound(wsA)
	o.newBase("2")
	// The only foo that there is goes away.
	gone := oldFile(module("foo", "1", "bar<2"))[0]
	gone.Yanked = "it was bad"
	o.index.Add(gone)
	_, err := o.Rebase(t.Context(), RebaseRequest{Workspace: wsA, By: "operator"})
	e := o.refused(err, Code(resolve.ErrNoSolution))
	if fmt.Sprint(o.bound(wsA)) != fmt.Sprint(was) {
		t.Errorf("%v; it is bound to %+v", e, o.bound(wsA))
	}
	if got := o.sees(wsA, "import foo; print(foo.version)"); got != "1" {
		t.Errorf("it sees %s", got)
	}
}

// TestCase38: what is bound, what waits for a person and what a script runs stays; an
// orphan goes when it is old.
func TestCase38Collect(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo"}, module("foo", "1"), module("foo", "2"), module("foo", "3"), module("quux", "1"))
	kept := o.is(o.ask(wsA, "foo==1"), queue.Ready)
	orphan := o.is(o.ask(wsB, "foo==2"), queue.Ready)
	running := o.is(o.ask(wsC, "foo==3"), queue.Ready)
	pending := o.is(o.ask(wsA, "quux"), queue.PendingApproval)
	_, release, err := o.Setup(t.Context(), wsC)
	must(t, err)
	for _, ws := range []string{wsB, wsC} {
		must(t, o.o.Queue.Bind(t.Context(), ws, o.bound(ws).Rev, queue.Binding{}))
	}
	young, err := o.GC(t.Context(), time.Hour, false)
	must(t, err)
	if gone := removed(young); len(gone) > 0 {
		t.Errorf("young, and gone: %q", gone)
	}
	if gone := removed(collect(t, o.Env, orphan.Layer)); !slices.Equal(gone, []string{orphan.Layer}) {
		t.Errorf("gone are %q, want %s alone", gone, orphan.Layer)
	}
	release()
	root, _ := o.store()
	for _, id := range []string{kept.Layer, running.Layer} {
		if _, err := root.Layer(id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if _, err := root.Lock(pending.Lock); err != nil {
		t.Errorf("the lock that waits for a person: %v", err)
	}
	o.is(o.approve(pending, false), queue.Ready)
	if got := o.sees(wsA, "import foo, quux; print(foo.version, quux.version)"); got != "1 1" {
		t.Errorf("it sees %s", got)
	}
}

// removed are the layers that a collection removed.
func removed(r store.Report) (ids []string) {
	for _, i := range r.Removed {
		if i.Kind == "layer" {
			ids = append(ids, i.ID)
		}
	}
	return ids
}

// TestCase40: two requests of one workspace at once are both bound, and two workspaces that
// ask for the same at once share one layer that is built once.
func TestCase40AtOnce(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo", "quux"}, module("foo", "1"), module("quux", "1"))
	asks := []Ask{{Workspace: wsA, Packages: []string{"foo"}}, {Workspace: wsA, Packages: []string{"quux"}}, {Workspace: wsB, Packages: []string{"foo"}}, {Workspace: wsC, Packages: []string{"foo"}}}
	var all sync.WaitGroup
	got := make([]queue.Request, len(asks))
	for i, a := range asks {
		all.Go(func() { got[i] = o.wait(o.request(a)) })
	}
	all.Wait()
	for _, r := range got {
		o.is(r, queue.Ready)
	}
	if got[0].Layer != got[2].Layer || got[2].Layer != got[3].Layer {
		t.Errorf("layers %s, %s, %s", got[0].Layer, got[2].Layer, got[3].Layer)
	}
	if got := o.sees(wsA, "import foo, quux; print(foo.version, quux.version)"); got != "1 1" {
		t.Errorf("it sees %s", got)
	}
}

// TestCase44: a version that its author has withdrawn is taken by its exact name only, and
// asked about.
func TestCase44Yanked(t *testing.T) {
	t.Parallel()
	bad := oldFile(module("foo", "2"))[0]
	bad.Yanked = "it eats files"
	o := newShop(t, []string{"foo"}, module("foo", "1"))
	o.index.Add(bad)
	o.is(o.ask(wsA, "foo"), queue.Ready)
	if got := o.sees(wsA, "import foo; print(foo.version)"); got != "1" {
		t.Errorf("it sees %s", got)
	}
	r := o.is(o.ask(wsB, "foo==2"), queue.PendingApproval)
	if got := rules(r); !slices.Equal(got, []string{"yanked foo"}) || !strings.Contains(r.Findings[0].Sentence, "it eats files") {
		t.Errorf("%q %+v", got, r.Findings)
	}
}

// TestCase45: what was uploaded an hour ago is passed over where something older will do,
// with a note, and asked about where nothing will.
func TestCase45Cooldown(t *testing.T) {
	t.Parallel()
	young := fileOf(module("foo", "2"))
	young.Uploaded = time.Now().Add(-time.Hour)
	o := newShop(t, []string{"foo"}, module("foo", "1"))
	needsPip(t)
	o.index.Add(young)
	r := o.is(o.ask(wsA, "foo"), queue.Ready)
	if got := o.sees(wsA, "import foo; print(foo.version)"); got != "1" || len(r.Notes) == 0 || !strings.Contains(strings.Join(r.Notes, " "), "2") {
		t.Errorf("it sees %s, notes %q", got, r.Notes)
	}
	r = o.is(o.ask(wsB, "foo>=2"), queue.PendingApproval)
	if got := rules(r); !slices.Equal(got, []string{"cooldown foo"}) {
		t.Errorf("%q", got)
	}
	o.is(o.approve(r, false), queue.Ready)
}

// TestCase47: what is over the limits is asked about before a byte of it is fetched.
func TestCase47Size(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo", "mid"}, module("foo", "1"), module("mid", "1", "foo"))
	needsPip(t)
	size := int64(len(fileOf(module("foo", "1")).Body))
	for _, c := range []struct {
		ws, rule string
		set      func(*policy.Caps)
		ask      string
	}{
		{wsA, "size_wheel foo", func(c *policy.Caps) { c.WheelBytes = size - 1 }, "foo"},
		{wsB, "size_closure", func(c *policy.Caps) { c.WheelBytes, c.ClosureBytes = 2*size, size+1 }, "mid"},
	} {
		o.catalog(func(k policy.Catalog) policy.Catalog { c.set(&k.Caps); k.Rev++; return k })
		r := o.is(o.ask(c.ws, c.ask), queue.PendingApproval)
		if got := rules(r); !slices.Contains(got, c.rule) {
			t.Errorf("%q, want %s", got, c.rule)
		}
	}
	if n := o.index.Wheels(); n > 0 {
		t.Errorf("%d wheels were fetched", n)
	}
}

// TestCase49: a newest release without a wheel for this system is passed over, and told.
func TestCase49NoWheelInNewest(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo"}, module("foo", "1"), wheeltest.Wheel{Name: "foo", Version: "3", Tag: "cp39-cp39-win_amd64"})
	r := o.is(o.ask(wsA, "foo"), queue.Ready)
	if !strings.Contains(strings.Join(r.Notes, " "), "3") {
		t.Errorf("notes %q", r.Notes)
	}
}

// TestCase50: what was approved is built, whatever the index has by then; a lock that was
// edited on the disk is not.
func TestCase50ApprovedLock(t *testing.T) {
	t.Parallel()
	o := newShop(t, nil, module("foo", "1"), module("quux", "1"))
	r := o.is(o.ask(wsA, "foo"), queue.PendingApproval)
	o.index.Add(oldFile(module("foo", "2"))...)
	o.is(o.approve(r, false), queue.Ready)
	if got := o.sees(wsA, "import foo; print(foo.version)"); got != "1" {
		t.Errorf("it sees %s", got)
	}
	r = o.is(o.ask(wsA, "quux"), queue.PendingApproval)
	path := filepath.Join(o.root, "locks", r.Lock+".json")
	text, err := os.ReadFile(path)
	must(t, err)
	must(t, os.Remove(path)) // the base of all tests has it as well
	must(t, os.WriteFile(path, []byte(strings.Replace(string(text), `"quux"`, `"quuz"`, 1)), 0o600))
	_, err = o.Decide(t.Context(), r.ID, Ruling{Approve: true, Lock: r.Lock, By: "operator"})
	o.refused(err, Code(store.ErrTampered))
	o.refusedFor(o.wait(r), queue.Failed, string(store.ErrTampered)) // asked again it is solved anew
	must(t, os.WriteFile(path, text, 0o600))
	r = o.is(o.ask(wsA, "quux"), queue.PendingApproval)
	_, err = o.Decide(t.Context(), r.ID, Ruling{Approve: true, Lock: "0123456789abcdef", By: "operator"})
	if !errors.Is(err, queue.ErrConflict) {
		t.Errorf("another lock: %v", err)
	}
	if _, err := o.Decide(t.Context(), r.ID, Ruling{Approve: true, By: "operator"}); !errors.Is(err, queue.ErrConflict) {
		t.Errorf("no lock: %v", err)
	}
	o.is(o.approve(r, false), queue.Ready)
}

// TestCase55: a package that cannot be imported in the sandbox is not bound.
func TestCase55Probe(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo"}, wheeltest.Wheel{Name: "foo", Files: []wheeltest.File{{Name: "foo.py", Body: "raise ImportError('libGL.so.1: cannot open shared object file')\n"}}})
	f := o.refusedFor(o.ask(wsA, "foo"), queue.Failed, string(ErrProbe), "foo", "libGL.so.1")
	if f.Blocking == nil || f.Blocking.Name != "foo" || o.bound(wsA).Rev != 0 {
		t.Errorf("%+v", f.Blocking)
	}
}

// TestCase58: the status answers at once while something is built.
func TestCase58StatusBesideWork(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo"}, module("foo", "1"))
	r := o.request(Ask{Workspace: wsA, Packages: []string{"foo"}})
	seen := map[bool]int{}
	for range 1000 {
		st, err := o.Status(t.Context(), wsA)
		must(t, err)
		seen[st.Building != ""]++
		other, err := o.Status(t.Context(), wsB)
		must(t, err)
		if other.Building != "" || len(other.Requests) > 0 {
			t.Fatalf("another workspace is told %q", other.Building)
		}
		if !st.BaseReady || len(st.Requests) == 1 && st.Requests[0].ID != r.ID {
			t.Fatalf("%+v", st)
		}
	}
	o.is(o.wait(r), queue.Ready)
	if seen[true] == 0 {
		t.Errorf("%v", seen)
	}
}

// TestCase59: what needs another version than the workspace's own layers have is solved
// with all that it asked for, in one new layer; where that is impossible, both are named.
func TestCase59Union(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"one", "dep", "two", "three"}, module("one", "1", "dep"), module("dep", "1"), module("two", "1", "dep>=2"), module("three", "1", "dep<1"))
	first := o.is(o.ask(wsA, "one"), queue.Ready)
	o.index.Add(oldFile(module("dep", "2"))...)
	r := o.is(o.ask(wsA, "two"), queue.Ready)
	b := o.bound(wsA)
	if !slices.Equal(b.Layers, []string{r.Layer}) || r.Layer == first.Layer || r.Iso || !slices.Equal(b.Locks, []string{r.Lock}) {
		t.Errorf("%+v", b)
	}
	if got := o.sees(wsA, "import one, two, dep; print(dep.version)"); got != "2" {
		t.Errorf("it sees dep %s", got)
	}
	root, _ := o.store()
	old, err := root.Layer(first.Layer)
	must(t, err)
	if faults, err := root.Verify(t.Context(), old); err != nil || len(faults) > 0 {
		t.Errorf("the old layer: %v %v", faults, err)
	}
	f := o.refusedFor(o.ask(wsA, "three"), queue.Rejected, string(resolve.ErrNoSolution), "three", "two")
	t.Log(f.Sentence)
	if now := o.bound(wsA); fmt.Sprint(now) != fmt.Sprint(b) {
		t.Errorf("%+v", now)
	}
}

// TestManyLayers: after eight layers the next is one for all.
func TestManyLayers(t *testing.T) {
	t.Parallel()
	var names []string
	var list []wheeltest.Wheel
	for i := range maxLayers + 1 {
		names = append(names, fmt.Sprintf("many%d", i))
		list = append(list, module(names[i], "1"))
	}
	o := newShop(t, names, list...)
	for i, n := range names {
		o.is(o.ask(wsA, n), queue.Ready)
		want := i + 1
		if i == maxLayers {
			want = 1
		}
		if got := len(o.bound(wsA).Layers); got != want {
			t.Fatalf("%d layers after %d requests", got, i+1)
		}
	}
	o.sees(wsA, "import "+strings.Join(names, ", "))
}

// TestCase60: a script that runs keeps what it began with.
func TestCase60RunningScript(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo"}, module("foo", "1"), module("foo", "2"))
	first := o.is(o.ask(wsA, "foo==1"), queue.Ready)
	s, release, err := o.Setup(t.Context(), wsA)
	must(t, err)
	defer release()
	must(t, o.o.Queue.Bind(t.Context(), wsA, 1, queue.Binding{}))
	o.is(o.ask(wsA, "foo==2"), queue.Ready)
	_, err = o.GC(t.Context(), 0, false)
	must(t, err)
	if got := o.runSetup(s, "import foo; print(foo.version)"); got != "1" || s.Layers[0] != first.Layer {
		t.Errorf("it sees %s", got)
	}
	if got := o.sees(wsA, "import foo; print(foo.version)"); got != "2" {
		t.Errorf("the next sees %s", got)
	}
}

// TestForeignRequest: the request of another workspace is as unknown as one that never
// was.
func TestForeignRequest(t *testing.T) {
	t.Parallel()
	o := newShop(t, nil, module("foo", "1"))
	r := o.ask(wsA, "foo")
	for _, id := range []string{r.ID, strings.ToLower(r.ID), "01JZZZZZZZZZZZZZZZZZZZZZZZ", "", "../x", "\x00"} {
		if _, err := o.Wait(t.Context(), wsB, id, false); !errors.Is(err, queue.ErrNotFound) || err.Error() != queue.ErrNotFound.Error() {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// TestDeniedName: what the catalog denies is refused, whoever needs it, and names who.
func TestDeniedName(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo"}, module("foo", "1", "evil"), module("evil", "1"), module("quux", "1"))
	o.catalog(func(c policy.Catalog) policy.Catalog {
		c.Deny = append(c.Deny, policy.Denied{Name: "evil", Reason: "it calls home"})
		c.Rev++
		return c
	})
	o.refusedFor(o.ask(wsA, "foo"), queue.Rejected, policy.DeniedName, "evil", "it calls home")
	// One that waits is judged anew when it is approved.
	r := o.is(o.ask(wsA, "quux"), queue.PendingApproval)
	o.catalog(func(c policy.Catalog) policy.Catalog {
		c.Deny = append(c.Deny, policy.Denied{Name: "quux"})
		c.Rev++
		return c
	})
	o.refusedFor(o.approve(r, false), queue.Rejected, policy.DeniedName, "quux")
}

// TestNoBaseNoRequest: nobody can fulfil a request where there is no base.
func TestNoBaseNoRequest(t *testing.T) {
	t.Parallel()
	o := newShop(t, nil)
	must(t, os.Remove(filepath.Join(o.root, "current")))
	o.start()
	_, err := o.Request(t.Context(), Ask{Workspace: wsA, Packages: []string{"foo"}})
	o.refused(err, ErrNoBase)
	o.o.Queue = nil
	_, err = o.Request(t.Context(), Ask{Workspace: wsA, Packages: []string{"foo"}})
	o.refused(err, ErrNoQueue)
}

// TestLogIsDown: what the log does not take does not happen.
func TestLogIsDown(t *testing.T) {
	t.Parallel()
	o := newShop(t, nil, module("foo", "1"))
	r := o.is(o.ask(wsA, "foo"), queue.PendingApproval)
	o.deny = errLog
	if _, err := o.Request(t.Context(), Ask{Workspace: wsA, Packages: []string{"alpha"}}); !errors.Is(err, errLog) {
		t.Errorf("request: %v", err)
	}
	if _, err := o.Decide(t.Context(), r.ID, Ruling{Approve: true, Lock: r.Lock, By: "operator"}); !errors.Is(err, errLog) {
		t.Errorf("decide: %v", err)
	}
	open, err := o.o.Queue.Open()
	must(t, err)
	if len(open) != 1 || open[0].State != queue.PendingApproval {
		t.Errorf("%+v", open)
	}
}

// TestIndexIsDown: an index that does not answer fails the request, and another one later
// goes through.
func TestIndexIsDown(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo"}, module("foo", "1"))
	down := nowhere(t).Pip
	r, err := o.Request(t.Context(), Ask{Workspace: wsA, Packages: []string{"foo"}, Pip: &down})
	must(t, err)
	f := o.refusedFor(o.wait(r), queue.Failed, string(resolve.ErrIndexUnreachable))
	if f.Hint == "" {
		t.Error("nothing says what to do")
	}
	o.is(o.ask(wsA, "foo"), queue.Ready)
}

// TestEveryRefusalHasAHint: whoever is refused is told what to do next.
func TestEveryRefusalHasAHint(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo", "gone", "src", "win", "old"}, module("foo", "1", "bar>=2"), wheeltest.Wheel{Name: "win", Tag: "cp39-cp39-win_amd64"}, module("old", "1", "nothing-has-this-name"))
	o.index.Add(sdist("src", "1"))
	o.index.Add(oldFile(module("url", "1", "evil @ http://127.0.0.1:1/e.tar.gz"))...)
	for _, name := range []string{"foo", "gone", "src", "win", "old", "url", "foo==9"} {
		r := o.ask(wsA, name)
		if o.is(r, queue.Rejected); r.Failure == nil || r.Failure.Hint == "" || r.Failure.Blocking == nil || r.Failure.Blocking.Name == "" {
			t.Errorf("%s: %+v", name, r.Failure)
		} else {
			t.Logf("%s: %s | %s | %+v", name, r.Failure.Sentence, r.Failure.Hint, *r.Failure.Blocking)
		}
	}
}

// TestRestart: a request goes on where the last process left it, whatever state that was.
func TestRestart(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo", "quux"}, module("foo", "1"), module("quux", "1"))
	r := o.request(Ask{Workspace: wsA, Packages: []string{"foo"}})
	must(t, o.Env.Close()) // in the middle of it
	if got, _ := o.o.Queue.Get(wsA, r.ID); got.State.Closed() {
		t.Fatalf("it is %s", got.State)
	}
	o.start()
	if o.Busy() {
		t.Error("it works on a request, and nobody has told where packages are")
	}
	o.UsePip(at(o.index).Pip)
	if !o.Busy() {
		t.Error("it does not work on the request")
	}
	o.is(o.wait(r), queue.Ready)
	o.sees(wsA, "import foo")
}

// TestExpired: what nobody has decided about for a week is closed.
func TestExpired(t *testing.T) {
	t.Parallel()
	o := newShop(t, nil, module("foo", "1"))
	r := o.is(o.ask(wsA, "foo"), queue.PendingApproval)
	o.clock = time.Now().Add(queue.PendingFor + time.Hour)
	o.start()
	got, err := o.Wait(t.Context(), wsA, r.ID, false)
	must(t, err)
	o.is(got, queue.Expired)
}

// TestLostLayer: a workspace whose layer is gone gets the base, is told why, and gets the
// layer again when it asks again.
func TestLostLayer(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo"}, module("foo", "1"))
	r := o.is(o.ask(wsA, "foo"), queue.Ready)
	root, _ := o.store()
	must(t, os.RemoveAll(filepath.Join(root.Dir(), "layers", r.Layer)))
	if got := o.sees(wsA, "import importlib.util as u; print(u.find_spec('foo'))"); got != "None" {
		t.Errorf("it sees %s", got)
	}
	st, err := o.Status(t.Context(), wsA)
	must(t, err)
	if !st.BaseReady || !strings.Contains(st.Reason, r.Layer) {
		t.Errorf("%+v", st)
	}
	rep, err := o.Rebase(t.Context(), RebaseRequest{Workspace: wsA, By: "operator", How: "terminal"})
	if err != nil {
		t.Fatalf("%v %+v", err, rep)
	}
	if got := o.sees(wsA, "import foo; print(foo.version)"); got != "1" {
		t.Errorf("it sees %s", got)
	}
}

// TestWaitEnds: a wait ends with its context, and with the Env.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	o := newShop(t, nil, module("foo", "1"))
	r := o.ask(wsA, "foo")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := o.Wait(ctx, wsA, r.ID, true); err != nil || got.State != queue.PendingApproval {
		t.Errorf("%v %s", err, got.State)
	}
	done := make(chan error, 1)
	go func() {
		_, err := o.Wait(context.Background(), wsA, r.ID, true)
		done <- err
	}()
	must(t, o.Env.Close())
	if err := <-done; err != nil && !errors.Is(err, ErrFailed) { // it began before, or after
		t.Error(err)
	}
}

// TestSharedRoot: who collects a root that another state directory uses, too, keeps what
// workspaces there are bound to, until somebody says that they do not come back.
func TestSharedRoot(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo"}, module("foo", "1"), module("foo", "2"))
	old := o.is(o.ask(wsA, "foo==1"), queue.Ready)
	must(t, o.o.Queue.Bind(t.Context(), wsA, 1, queue.Binding{}))
	r := o.is(o.ask(wsA, "foo==2"), queue.Ready)

	db, err := badger.Open(badger.DefaultOptions("").WithInMemory(true).WithLogger(nil))
	must(t, err)
	defer db.Close()
	q, err := queue.Open(db, queue.Options{})
	must(t, err)
	other := openEnv(t, o.root, nil)
	other.o.Queue = q
	others, err := other.Elsewhere()
	if err != nil || len(others) != 1 || !slices.Equal(others[wsA], []string{r.Layer}) {
		t.Fatalf("%v %v", others, err)
	}
	if gone := removed(collect(t, other, old.Layer)); !slices.Equal(gone, []string{old.Layer}) {
		t.Errorf("gone are %q, want %s alone", gone, old.Layer)
	}
	if got := o.sees(wsA, "import foo; print(foo.version)"); got != "2" {
		t.Errorf("it sees %s", got)
	}
	// What was lost of the notes is written anew.
	must(t, os.RemoveAll(filepath.Join(o.root, pinDir)))
	o.start()
	if again, err := other.Elsewhere(); err != nil || !slices.Equal(again[wsA], []string{r.Layer}) {
		t.Errorf("%v %v", again, err)
	}
	if own, err := o.Elsewhere(); err != nil || len(own) > 0 {
		t.Errorf("its own are elsewhere: %v %v", own, err)
	}
	_, err = other.Forget(t.Context(), wsA)
	must(t, err)
	if gone := removed(collect(t, other, r.Layer)); !slices.Equal(gone, []string{r.Layer}) {
		t.Errorf("gone are %q", gone)
	}
}

// TestRepairBound: doctor reads what disks are bound to, and Ensure with Repair builds
// again what differs or is gone, under the same id.
func TestRepairBound(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo"}, module("foo", "1"), module("foo", "2"))
	changed := o.is(o.ask(wsA, "foo==1"), queue.Ready)
	gone := o.is(o.ask(wsB, "foo==2"), queue.Ready)
	file := filepath.Join(o.root, "layers", changed.Layer, "site-packages", "foo", "__init__.py")
	must(t, os.Chmod(file, 0o600))
	must(t, os.WriteFile(file, []byte("version = 'changed'\n"), 0o600))
	must(t, os.RemoveAll(filepath.Join(o.root, "layers", gone.Layer)))
	rep, err := o.Doctor(t.Context(), false)
	must(t, err)
	var faulty []string
	for _, l := range rep.Layers {
		if len(l.Faults) > 0 {
			faulty = append(faulty, l.ID)
		}
	}
	if !slices.Equal(faulty, []string{changed.Layer}) || !strings.Contains(strings.Join(rep.Problems, " "), gone.Layer) {
		t.Errorf("faulty %q, problems %q", faulty, rep.Problems)
	}
	q := at(o.index)
	q.Repair = true
	mended, err := o.Ensure(t.Context(), q)
	must(t, err)
	want := []string{changed.Layer, gone.Layer}
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(mended.Mended)); !slices.Equal(got, want) {
		t.Errorf("mended %q, want %q; notes %q", got, want, mended.Notes)
	}
	for ws, want := range map[string]string{wsA: "1", wsB: "2"} {
		if got := o.sees(ws, "import foo; print(foo.version)"); got != want {
			t.Errorf("%s sees %s, want %s", ws, got, want)
		}
	}
}

// TestAnotherVersion: a package that the disk has for its own asking can be asked for in
// another version, which takes its place.
func TestAnotherVersion(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo", "two"}, module("foo", "1"), module("foo", "2"), module("two", "1"))
	o.is(o.ask(wsA, "foo==1"), queue.Ready)
	o.is(o.ask(wsA, "two"), queue.Ready)
	r := o.is(o.ask(wsA, "foo==2"), queue.Ready)
	if got := o.sees(wsA, "import foo, two; print(foo.version, two.version)"); got != "2 1" || !slices.Equal(o.bound(wsA).Layers, []string{r.Layer}) {
		t.Errorf("it sees %s with %+v", got, o.bound(wsA))
	}
}

// TestOtherBytes: a wheel of the disk with the name and version of what the disk has, and
// other contents, is refused and not taken for it.
func TestOtherBytes(t *testing.T) {
	t.Parallel()
	o := newShop(t, nil)
	_, err := o.Request(t.Context(), o.upload(wsA, module("alpha", "1.0")))
	e := o.refused(err, "hash_mismatch", "alpha 1.0")
	if e.Blocking.Name != "alpha" {
		t.Errorf("%+v", e.Blocking)
	}
	bad := module("house", "1")
	bad.Files = append(bad.Files, wheeltest.File{Name: "json.py"})
	_, err = o.Request(t.Context(), o.upload(wsA, bad))
	e = o.refused(err, Code(wheel.ErrStdlibShadow), bad.FileName())
	if e.Blocking.Name != "house" || e.Hint == "" {
		t.Errorf("%+v %q", e.Blocking, e.Hint)
	}
}
