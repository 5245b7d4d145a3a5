package pyenv

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
)

// ready is what the log has of a request that nobody had to be asked about.
var ready = []string{"request received", "decide auto_approved", "build building", "bind ready"}

// TestCase07: what the catalog allows is there in the next run, the base stays as it is,
// and the log has each step.
func TestCase07Automatic(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"pandas"}, module("pandas", "3"))
	before := o.current()
	r := o.is(o.ask(wsA, "pandas"), queue.Ready)
	if got := o.sees(wsA, "import pandas, alpha; print(pandas.version)"); got != "3" {
		t.Errorf("it sees %s", got)
	}
	if o.current() != before {
		t.Error("the base is another one")
	}
	if got := o.told(r); !slices.Equal(got, ready) {
		t.Errorf("the log has %q", got)
	}
	for _, d := range o.deeds {
		if d.Kind != DeedRequest && (d.Lock == nil || d.Lock.Packages[0].SHA256 == "" || d.Decision == nil || d.Decision.By == "") {
			t.Errorf("%s: %+v", d.Kind, d)
		}
	}
	if d := r.Decision; d == nil || !strings.HasPrefix(d.By, "catalog rev ") || d.Lock != r.Lock {
		t.Errorf("decision %+v", d)
	}
}

// TestCase08: another workspace that asks for the same needs no index: neither a
// resolver nor a download.
func TestCase08Again(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"pandas"}, module("pandas", "3"))
	a := o.is(o.ask(wsA, "pandas"), queue.Ready)
	asked := len(o.index.Requests())
	b := o.request(Ask{Workspace: wsB, Packages: []string{"Pandas "}})
	o.is(b, queue.Ready) // at once
	if n := len(o.index.Requests()); n != asked {
		t.Errorf("the index was asked %d times more", n-asked)
	}
	if a.Layer != b.Layer || a.Lock != b.Lock || a.ID == b.ID {
		t.Errorf("%+v, %+v", a, b)
	}
	if got, want := o.told(b), []string{"request received", "decide auto_approved", "bind ready"}; !slices.Equal(got, want) {
		t.Errorf("the log has %q", got)
	}
	// What is there needs nothing at all, and so does a version that fits.
	for _, s := range []string{"pandas", "pandas>=2", "alpha", "bar==1.0"} {
		r := o.is(o.request(Ask{Workspace: wsB, Packages: []string{s}}), queue.Ready)
		if r.Layer != "" || o.bound(wsB).Rev != 1 {
			t.Errorf("%s: %+v", s, r)
		}
	}
	if n := len(o.index.Requests()); n != asked {
		t.Errorf("the index was asked %d times more", n-asked)
	}
}

// TestCase09: two workspaces have two versions, a third has neither.
func TestCase09TwoVersions(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo"}, module("foo", "1"), module("foo", "2"))
	before := o.current()
	a := o.is(o.ask(wsA, "foo==1"), queue.Ready)
	b := o.is(o.ask(wsB, "foo==2"), queue.Ready)
	const see = "import importlib.util as u, importlib; print(importlib.import_module('foo').version if u.find_spec('foo') else 'none')"
	for ws, want := range map[string]string{wsA: "1", wsB: "2", wsC: "none", "": "none"} {
		if got := o.sees(ws, see); got != want {
			t.Errorf("%s sees %s, want %s", ws, got, want)
		}
	}
	if a.Layer == b.Layer || o.current() != before {
		t.Errorf("layers %s, %s; base %s, then %s", a.Layer, b.Layer, before, o.current())
	}
	st, err := o.Status(t.Context(), wsB)
	must(t, err)
	if p, ok := Find(st.Packages, "foo"); !ok || p.Version != "2" || p.Layer != b.Layer || !slices.Equal(st.Layers, []string{b.Layer, before}) || st.Base != before || st.Rev != 1 || !slices.Equal(st.Locks, []string{b.Lock}) {
		t.Errorf("%+v", st)
	}
	if x := o.Expected(wsB); !slices.Equal(x.Layers, st.Layers) || x.Base != before {
		t.Errorf("expected %+v", x)
	}
}

// overridden is a shop with what needs another bar than the base has.
func overridden(t *testing.T) *shop {
	t.Helper()
	return newShop(t, []string{"foo", "bar"}, module("foo", "1", "bar>=2"), module("bar", "2"))
}

// TestCase10: what needs another version than the base has is asked about, and the card
// says whose it is.
func TestCase10Override(t *testing.T) {
	t.Parallel()
	o := overridden(t)
	r := o.is(o.ask(wsA, "foo"), queue.PendingApproval)
	if !r.Iso || !slices.Contains(rules(r), "override bar") {
		t.Errorf("iso %t, %q", r.Iso, rules(r))
	}
	c, err := o.Card(t.Context(), r)
	must(t, err)
	text := c.Text(72)
	for _, want := range []string{"bar", "1.0", "2", o.current(), "isolated", r.Lock} {
		if !strings.Contains(text, want) {
			t.Errorf("the card does not say %q:\n%s", want, text)
		}
	}
	if !slices.Equal(c.Choices, []policy.Choice{policy.Isolated, policy.Deny}) {
		t.Errorf("choices %v", c.Choices)
	}
}

// TestCase10NoWay: where even that does not help, the answer names who is in the way.
func TestCase10NoWay(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo"}, module("foo", "1", "bar>=2"))
	f := o.refusedFor(o.ask(wsA, "foo"), queue.Rejected, string(resolve.ErrConflictWithBase), "bar", "1.0", o.current())
	if b := f.Blocking; b == nil || b.Name != "bar" || b.Version != "1.0" || b.PinnedBy != o.current() || !strings.HasPrefix(b.NeededBy, "foo 1") {
		t.Errorf("%+v", b)
	}
}

// TestCase11: an isolated layer takes the place of the base, for that workspace alone,
// and has all that the base is for.
func TestCase11Isolated(t *testing.T) {
	t.Parallel()
	o := overridden(t)
	r := o.is(o.approve(o.ask(wsA, "foo"), true), queue.Ready)
	if got := o.sees(wsA, "import foo, bar, alpha, beta.part, gamma; print(bar.version)"); got != "2" {
		t.Errorf("it sees bar %s", got)
	}
	if got := o.sees(wsB, "import bar; print(bar.version)"); got != "1.0" {
		t.Errorf("another one sees bar %s", got)
	}
	b := o.bound(wsA)
	if b.Iso != r.Layer || b.Base != "" || len(b.Layers) > 0 || !strings.HasPrefix(b.Iso, "iso-") {
		t.Errorf("%+v", b)
	}
	// What comes next is put on top of it.
	o.index.Add(oldFile(module("pandas", "3", "bar>=2"))...)
	o.allow("pandas")
	next := o.is(o.ask(wsA, "pandas"), queue.Ready)
	if b := o.bound(wsA); b.Iso != r.Layer || !slices.Equal(b.Layers, []string{next.Layer}) || len(b.Locks) != 2 {
		t.Errorf("%+v", b)
	}
	if got := o.sees(wsA, "import pandas, foo, bar; print(bar.version)"); got != "2" {
		t.Errorf("it sees bar %s", got)
	}
}

// TestApprovedIsolated: a person may have a layer isolated that need not be.
func TestApprovedIsolated(t *testing.T) {
	t.Parallel()
	o := newShop(t, nil, module("foo", "1"))
	asked := o.is(o.ask(wsA, "foo"), queue.PendingApproval)
	r := o.is(o.approve(asked, true), queue.Ready)
	if r.Lock == asked.Lock || r.Decision.Lock != r.Lock || o.bound(wsA).Iso != r.Layer {
		t.Errorf("%+v", r)
	}
	if got := o.sees(wsA, "import foo, bar, alpha; print(foo.version, bar.version)"); got != "1 1.0" {
		t.Errorf("it sees %s", got)
	}
}

// TestCase12: what the catalog does not name waits for a person, who says yes or no.
func TestCase12Person(t *testing.T) {
	t.Parallel()
	o := newShop(t, nil, module("foo", "1"), module("quux", "1"))
	told := make(chan string, 8) // it is told of by others than those who ask
	o.o.Waiting = func(r queue.Request) { told <- r.ID }
	r := o.is(o.ask(wsA, "foo"), queue.PendingApproval)
	start := time.Now()
	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	if still, err := o.Wait(ctx, wsA, r.ID, true); err != nil || still.State != queue.PendingApproval || time.Since(start) < 300*time.Millisecond {
		t.Errorf("%v, %s after %s", err, still.State, time.Since(start))
	}
	if o.index.Wheels() > 0 && whyNoPip == nil {
		t.Errorf("wheels were fetched: %q", o.index.Requests())
	}
	again := o.request(Ask{Workspace: wsA, Packages: []string{"FOO"}})
	if again.ID != r.ID {
		t.Error("asked twice, it is two requests")
	}
	o.is(o.approve(r, false), queue.Ready)
	if got := o.sees(wsA, "import foo; print(foo.version)"); got != "1" {
		t.Errorf("it sees %s", got)
	}
	if got, want := o.told(r), []string{"request received", "decide approved", "build building", "bind ready"}; !slices.Equal(got, want) {
		t.Errorf("the log has %q", got)
	}
	no := o.is(o.ask(wsA, "quux"), queue.PendingApproval)
	no, err := o.Decide(t.Context(), strings.ToLower(no.ID), Ruling{By: "operator uid 1000", How: "terminal", Note: "use the standard library"})
	must(t, err)
	if o.is(no, queue.Denied); no.Decision.Note != "use the standard library" {
		t.Errorf("%+v", no.Decision)
	}
	if _, err := o.Decide(t.Context(), no.ID, Ruling{Approve: true, Lock: no.Lock, By: "x"}); !errors.Is(err, queue.ErrConflict) {
		t.Errorf("decided twice: %v", err)
	}
	for _, want := range []string{r.ID, no.ID} {
		select {
		case got := <-told:
			if got != want {
				t.Errorf("told of %s, not of %s", got, want)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("nobody was told of %s", want)
		}
	}
}

// TestCase13: a name on the list that needs one that is not is asked about, for that one.
func TestCase13Closure(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo"}, module("foo", "1", "stranger"), module("stranger", "1"))
	r := o.is(o.ask(wsA, "foo"), queue.PendingApproval)
	if got := rules(r); !slices.Equal(got, []string{"not_listed stranger"}) || !strings.Contains(r.Findings[0].Sentence, "foo 1") {
		t.Errorf("%q %+v", got, r.Findings)
	}
}

// sdist is a source archive whose building would leave a marker.
func sdist(name, version string) indextest.File {
	return indextest.File{Name: name + "-" + version + ".tar.gz", Body: []byte("source"), Uploaded: longAgo}
}

// TestCase14, 15: what is source only is refused, also where something else needs it.
func TestCase14SdistOnly(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo", "srconly"}, module("foo", "1", "srconly"))
	o.index.Add(sdist("srconly", "1.0"))
	o.refusedFor(o.ask(wsA, "srconly"), queue.Rejected, string(resolve.ErrSdistOnly), "srconly")
	f := o.refusedFor(o.ask(wsA, "foo"), queue.Rejected, string(resolve.ErrSdistOnly), "srconly", "foo 1")
	if f.Blocking == nil || f.Blocking.Name != "srconly" || !strings.HasPrefix(f.Blocking.NeededBy, "foo 1") {
		t.Errorf("%+v", f.Blocking)
	}
	if o.bound(wsA).Rev != 0 {
		t.Error("something was bound")
	}
}

func TestCase15SdistBelow(t *testing.T) { // as above, two steps down
	t.Parallel()
	o := newShop(t, []string{"foo"}, module("foo", "1", "mid"), module("mid", "1", "srconly"))
	o.index.Add(sdist("srconly", "1.0"))
	o.refusedFor(o.ask(wsA, "foo"), queue.Rejected, string(resolve.ErrSdistOnly), "srconly", "mid 1")
}

// TestCase16: what is no name and version is refused before anything is started.
func TestCase16BadSpecs(t *testing.T) {
	t.Parallel()
	o := newShop(t, nil)
	for _, s := range []string{
		"pkg @ https://example.org/x.whl", "./x.whl", "git+https://example.org/x", "-r f", "--index-url=https://example.org", "foo==1 --hash=sha256:00",
		strings.Repeat("a", 201), "foo\x00", "foo\nbar", "", "é", "foo; python_version > '3'",
	} {
		if _, err := o.Request(t.Context(), Ask{Workspace: wsA, Packages: []string{s}}); !errors.Is(err, spec.ErrBadSpec) {
			t.Errorf("%q: %v", s, err)
		}
	}
	many := make([]string, 21)
	for i := range many {
		many[i] = fmt.Sprintf("p%d", i)
	}
	if _, err := o.Request(t.Context(), Ask{Workspace: wsA, Packages: many}); !errors.Is(err, spec.ErrBadSpec) {
		t.Errorf("21: %v", err)
	}
	if _, err := o.Request(t.Context(), Ask{Workspace: wsA}); !errors.Is(err, spec.ErrBadSpec) {
		t.Errorf("none: %v", err)
	}
	if n := len(o.index.Requests()); n > 0 {
		t.Errorf("the index was asked %d times", n)
	}
}

// TestModuleNames: names of modules are not taken for those of packages.
func TestModuleNames(t *testing.T) {
	t.Parallel()
	o := newShop(t, nil, module("sklearn", "0.0"))
	for _, name := range []string{"sklearn", "PIL", "cv2", "Docx"} {
		_, err := o.Request(t.Context(), Ask{Workspace: wsA, Packages: []string{name}})
		o.refused(err, ErrModule, strings.ToLower(name))
	}
	o.is(o.ask(wsA, "sklearn==0.0"), queue.PendingApproval) // who names a version has looked
}

// TestCase17: a wheel of an index that needs something by URL is refused. (That nothing
// of it is ever run is tested in package resolve.)
func TestCase17Rejected(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo"})
	o.index.Add(oldFile(module("foo", "1", "evil @ "+o.index.Root()+"/files/evil-1.tar.gz"))...)
	o.refusedFor(o.ask(wsA, "foo"), queue.Rejected, string(resolve.ErrDirectURL), "evil")
}

// upload is a request with a wheel of the disk.
func (o *shop) upload(ws string, w wheeltest.Wheel, packages ...string) Ask {
	body := w.Bytes()
	return Ask{Workspace: ws, Packages: packages, Wheel: &Wheel{Path: "dist/" + w.FileName(), Open: func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(body)), nil
	}}}
}

// TestCase18: the same line in a wheel of the disk is refused before any resolver runs.
func TestCase18UploadWithURL(t *testing.T) {
	t.Parallel()
	o := newShop(t, nil)
	a := o.upload(wsA, module("foo", "1", "evil @ http://127.0.0.1:1/evil.tar.gz"))
	_, err := o.Request(t.Context(), a)
	o.refused(err, Code(wheel.ErrDirectURL))
	if n := len(o.index.Requests()); n > 0 {
		t.Errorf("the index was asked %d times", n)
	}
	if list, _ := o.o.Queue.List(queue.Filter{}); len(list) > 0 {
		t.Errorf("%+v", list)
	}
}

// TestCase19: a wheel of the disk is always asked about, and then usable; what it needs
// comes from the index.
func TestCase19Upload(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"house", "dep"}, module("dep", "2"))
	r := o.is(o.wait(o.request(o.upload(wsA, module("house", "1", "alpha")))), queue.PendingApproval)
	if got := rules(r); !slices.Equal(got, []string{"upload house"}) || r.Wheel.Path != "dist/house-1-py3-none-any.whl" {
		t.Errorf("%q %+v", got, r.Wheel)
	}
	if n := len(o.index.Requests()); n > 0 {
		t.Errorf("the index was asked %d times for a wheel that needs nothing of it", n)
	}
	o.is(o.approve(r, false), queue.Ready)
	if got := o.sees(wsA, "import house; print(house.version)"); got != "1" {
		t.Errorf("it sees %s", got)
	}
	r = o.is(o.wait(o.request(o.upload(wsB, module("house", "2", "dep")))), queue.PendingApproval)
	o.is(o.approve(r, false), queue.Ready)
	if got := o.sees(wsB, "import house, dep; print(house.version, dep.version)"); got != "2 2" {
		t.Errorf("it sees %s", got)
	}
	// The very same wheel is there already.
	if again := o.is(o.request(o.upload(wsB, module("house", "2", "dep"))), queue.Ready); again.Layer != "" {
		t.Errorf("%+v", again)
	}
}

// TestCase20: other bytes than those that were locked end it, and leave nothing.
func TestCase20SwappedWheel(t *testing.T) {
	t.Parallel()
	o := newShop(t, nil, module("foo", "1"))
	r := o.is(o.ask(wsA, "foo"), queue.PendingApproval)
	other := oldFile(module("foo", "1", "alpha"))[0]
	sum := sha256.Sum256(fileOf(module("foo", "1")).Body)
	other.SHA256 = hex.EncodeToString(sum[:])
	o.index.Add(other)
	o.refusedFor(o.approve(r, false), queue.Failed, string(resolve.ErrHashMismatch), "foo")
	if root, _ := o.store(); root.HasWheel(other.SHA256) || o.bound(wsA).Rev != 0 {
		t.Error("something of it was kept")
	}
}

// TestCase30: a package that would hide one of the base is told before it is built, and
// is not built.
func TestCase30Collision(t *testing.T) {
	t.Parallel()
	o := newShop(t, []string{"foo"}, wheeltest.Wheel{Name: "foo", Files: []wheeltest.File{{Name: "foo/__init__.py"}, {Name: "alpha/__init__.py"}}})
	r := o.is(o.ask(wsA, "foo"), queue.PendingApproval)
	if got := rules(r); !slices.Equal(got, []string{"import_collision foo"}) {
		t.Fatalf("%q", got)
	}
	o.refusedFor(o.approve(r, false), queue.Rejected, "import_collision", "alpha")
}

// TestCase32: code that wants to run at every start of Python is asked about once the
// wheel is there, and runs in that workspace only, and only if somebody says so.
func TestCase32StartupCode(t *testing.T) {
	t.Parallel()
	w := module("foo", "1")
	w.Files = append(w.Files, wheeltest.File{Name: "foo.pth", Body: "import os; os.environ['FOO_STARTED'] = '1'\n"})
	o := newShop(t, []string{"foo"}, w)
	const see = "import os; print(os.environ.get('FOO_STARTED'))"
	r := o.is(o.ask(wsA, "foo"), queue.PendingApproval)
	if got := rules(r); !slices.Equal(got, []string{"startup_code foo"}) {
		t.Fatalf("%q", got)
	}
	if got := o.sees(wsA, see); got != "None" {
		t.Errorf("it ran: %s", got)
	}
	o.is(o.approve(r, false), queue.Ready)
	for ws, want := range map[string]string{wsA: "1", wsB: "None"} {
		if got := o.sees(ws, see); got != want {
			t.Errorf("%s: %s, want %s", ws, got, want)
		}
	}
	// The layer is there, and the next workspace is asked all the same.
	o.is(o.ask(wsB, "foo"), queue.PendingApproval)
	if got := o.sees(wsB, see); got != "None" {
		t.Errorf("it ran: %s", got)
	}
}
