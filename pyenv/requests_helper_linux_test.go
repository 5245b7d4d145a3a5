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

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
)

// Three workspaces.
const (
	wsA = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"
	wsB = "0b2e7a53-41a4-4b58-9a0e-5f6f1a3a7c11"
	wsC = "9c1d0e52-7f2b-4f0c-8d55-2b7a11f0c0de"
)

// theShop is an environment root with a base layer of the list small and bar 1.0, made
// once and copied for each test that needs it.
var theShop = sync.OnceValues(func() (string, error) {
	if _, err := theBox(); err != nil {
		return "", err
	}
	from, err := thePython()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "base-")
	if err != nil {
		return "", err
	}
	if err := linkTree(filepath.Join(from, "python"), filepath.Join(dir, "python")); err != nil {
		return "", err
	}
	box, _ := theBox()
	e, err := Open(Options{Root: dir, Box: box})
	if err != nil {
		return "", err
	}
	defer e.Close()
	prepare(e)
	x := indextest.New(indextest.Options{})
	defer x.Close()
	x.Add(oldFile(append(wheels(), module("bar", "1.0"))...)...)
	if _, err = e.Ensure(context.Background(), at(x)); err != nil {
		return "", err
	}
	// The pinned pip, where an index has it; else the tests have that of the host.
	home, _ := os.UserHomeDir()
	c, _, err := resolve.ReadConfig(os.Environ(), home)
	if err != nil {
		return "", err
	}
	it, err := e.make(context.Background())
	if err != nil {
		return "", err
	}
	_, whyNoPip = resolve.InstallTool(context.Background(), dir, "", c, box, it)
	return dir, nil
})

// whyNoPip is why the tests do not have the pinned pip, nil if they do.
var whyNoPip error

// needsPip leaves out what an older pip than the pinned one cannot do.
func needsPip(t testing.TB) {
	t.Helper()
	if whyNoPip != nil {
		t.Skipf("SKIP the pinned pip could not be fetched: %v", whyNoPip)
	}
}

// withBar is the base list of theShop.
const withBar = small + "bar bar\n"

func prepare(e *Env) {
	e.locks = noLocks
	e.base, _ = parseBase(withBar)
}

// longAgo is before any cooldown.
var longAgo = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// oldFile are files of an index that were uploaded long ago.
func oldFile(list ...wheeltest.Wheel) (files []indextest.File) {
	for _, w := range list {
		f := fileOf(w)
		f.Uploaded = longAgo
		files = append(files, f)
	}
	return files
}

// shop is a root with a base, a queue and an index.
type shop struct {
	*place
	db    *badger.DB
	dir   string // of db, when it is on disk
	index *indextest.Index
	clock time.Time

	mu    sync.Mutex
	deeds []Deed
	deny  error // of the log
}

// newShop returns one whose catalog allows some names, and whose index has some wheels
// besides what the base is made of.
func newShop(t testing.TB, allow []string, list ...wheeltest.Wheel) *shop {
	t.Helper()
	newBox(t)
	from, err := theShop()
	must(t, err)
	o := &shop{place: &place{t: t, root: filepath.Join(t.TempDir(), "envs")}}
	must(t, os.MkdirAll(o.root, 0o700))
	must(t, linkTree(from, o.root))
	o.index = index(t, indextest.Options{})
	o.index.Add(oldFile(append(append(wheels(), module("bar", "1.0")), list...)...)...)
	o.db, err = badger.Open(badger.DefaultOptions("").WithInMemory(true).WithLogger(nil))
	must(t, err)
	t.Cleanup(func() {
		o.Env.Close()
		o.db.Close()
	})
	o.start()
	o.allow(allow...)
	return o
}

// start opens the root as another process would, after the one before has ended.
func (o *shop) start() {
	o.t.Helper()
	if o.Env != nil {
		must(o.t, o.Env.Close())
	}
	now := func() time.Time {
		if o.clock.IsZero() {
			return time.Now()
		}
		return o.clock
	}
	q, err := queue.Open(o.db, queue.Options{Now: now})
	must(o.t, err)
	e := openEnv(o.t, o.root, o.place)
	e.o.Queue, e.o.Record, e.now = q, o.record, now
	prepare(e)
	o.Env = e
	if _, err := e.Resume(o.t.Context()); err != nil {
		o.t.Fatal(err)
	}
}

func (o *shop) record(_ context.Context, d Deed) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.deny != nil {
		return o.deny
	}
	o.deeds = append(o.deeds, d)
	return nil
}

// log is what the log has: kind, state and, if it failed, why.
func (o *shop) told(r queue.Request) (list []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.deeds {
		if d.Request.ID != r.ID {
			continue
		}
		line := fmt.Sprintf("%s %s", d.Kind, d.Request.State)
		if d.Err != nil {
			line += " failed"
		}
		list = append(list, line)
	}
	return list
}

// allow puts names on the list of the catalog.
func (o *shop) allow(names ...string) {
	o.t.Helper()
	o.catalog(func(c policy.Catalog) policy.Catalog {
		for _, n := range names {
			var err error
			c, err = c.AllowName(n, "")
			must(o.t, err)
		}
		return c
	})
}

func (o *shop) catalog(change func(policy.Catalog) policy.Catalog) {
	o.t.Helper()
	_, err := o.SetCatalog(o.t.Context(), func(c policy.Catalog) (policy.Catalog, error) { return change(c), nil })
	must(o.t, err)
}

// ask asks for packages and waits until the request is closed or waits for a person.
func (o *shop) ask(ws string, packages ...string) queue.Request {
	o.t.Helper()
	return o.wait(o.request(Ask{Workspace: ws, Packages: packages}))
}

func (o *shop) request(a Ask) queue.Request {
	o.t.Helper()
	pip := at(o.index).Pip
	a.Pip = &pip
	r, err := o.Request(o.t.Context(), a)
	must(o.t, err)
	return r
}

func (o *shop) wait(r queue.Request) queue.Request {
	o.t.Helper()
	ctx, stop := context.WithTimeout(o.t.Context(), 2*time.Minute)
	defer stop()
	got, err := o.Wait(ctx, r.Workspace, r.ID, false)
	must(o.t, err)
	if got.State.AtWork() {
		o.t.Fatalf("after two minutes it is %s\n%s", got.State, o.logged())
	}
	return got
}

// is checks what became of a request.
func (o *shop) is(r queue.Request, want queue.State) queue.Request {
	o.t.Helper()
	if r.State != want {
		o.t.Fatalf("it is %s, want %s: %+v %+v\n%s", r.State, want, r.Failure, r.Findings, o.logged())
	}
	return r
}

// refusedFor checks why nothing came of a request, and that it tells nothing of the host.
func (o *shop) refusedFor(r queue.Request, want queue.State, code string, words ...string) *queue.Failure {
	o.t.Helper()
	o.is(r, want)
	if r.Failure == nil || r.Failure.Code != code {
		o.t.Fatalf("failure %+v, want %s", r.Failure, code)
	}
	all := r.Failure.Sentence + " " + r.Failure.Hint
	for _, w := range words {
		if !strings.Contains(all, w) {
			o.t.Errorf("%q does not say %q", all, w)
		}
	}
	if strings.Contains(all, os.TempDir()) {
		o.t.Errorf("%q tells of the host", all)
	}
	o.t.Logf("%+v %+v", *r.Failure, r.Failure.Blocking)
	return r.Failure
}

// rules are those of the findings of a request, with packages.
func rules(r queue.Request) (list []string) {
	for _, f := range r.Findings {
		list = append(list, strings.TrimSpace(f.Rule+" "+f.Package))
	}
	slices.Sort(list)
	return list
}

// sees runs Python code as a script of a workspace, and returns what it prints.
func (o *shop) sees(ws, code string) string {
	o.t.Helper()
	s, release, err := o.Setup(o.t.Context(), ws)
	must(o.t, err)
	defer release()
	return o.runSetup(s, code)
}

// approve lets a request go on, as the operator.
func (o *shop) approve(r queue.Request, isolated bool) queue.Request {
	o.t.Helper()
	_, err := o.Decide(o.t.Context(), r.ID, Ruling{Approve: true, Isolated: isolated, Lock: r.Lock, By: "operator uid 1000", How: "terminal"})
	must(o.t, err)
	return o.wait(r)
}

// base is the id of the layer that is current.
func (o *shop) current() string {
	o.t.Helper()
	root, err := o.store()
	must(o.t, err)
	cur, err := root.Current()
	must(o.t, err)
	return cur.Layer
}

func (o *shop) bound(ws string) queue.Binding {
	o.t.Helper()
	b, err := o.Bound(ws)
	must(o.t, err)
	return b
}

var errLog = errors.New("the log cannot be written")
