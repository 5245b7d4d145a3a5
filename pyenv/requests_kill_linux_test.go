package pyenv

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// clerk is a child that works on requests, until it kills itself at a commit of the queue.
type clerk struct {
	Root, DB  string
	Pip       resolve.Config
	Workspace string
	Packages  []string
	Approve   string // id of a request to approve, with Lock
	Lock      string
	Commit    int  // the child kills itself at the nth commit; 0: it does not
	After     bool // behind it, not before it
}

const clerkEnv = "MCP_VDISK_PYENV_CLERK"

// playClerk does what this binary was started for as such a child.
func playClerk() bool {
	text := os.Getenv(clerkEnv)
	if text == "" {
		return false
	}
	var c clerk
	var out told
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.play()
	}
	if err != nil {
		out.Error = err.Error() + " " + detailOf(err)
	}
	_ = json.NewEncoder(os.Stdout).Encode(out)
	return true
}

func (c clerk) play() error {
	box, err := sandboxrun.New(context.Background(), sandboxrun.Config{})
	if err != nil {
		return err
	}
	defer box.Close()
	db, err := openDB(c.DB)
	if err != nil {
		return err
	}
	defer db.Close()
	n := 0
	q, err := queue.Open(db, queue.Options{Commit: func(txn *badger.Txn) error {
		if n++; n == c.Commit && !c.After {
			pyenvtest.Die()
		}
		err := txn.Commit()
		if n == c.Commit {
			pyenvtest.Die()
		}
		return err
	}})
	if err != nil {
		return err
	}
	e, err := Open(Options{Root: c.Root, Box: box, Queue: q})
	if err != nil {
		return err
	}
	defer e.Close()
	prepare(e)
	if _, err := e.Resume(context.Background()); err != nil {
		return err
	}
	e.UsePip(c.Pip)
	return c.work(e)
}

func (c clerk) work(e *Env) (err error) {
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
	defer stop()
	var r queue.Request
	if c.Approve != "" {
		r, err = e.Decide(ctx, c.Approve, Ruling{Approve: true, Lock: c.Lock, By: "operator", How: "terminal"})
	} else {
		r, err = e.Request(ctx, Ask{Workspace: c.Workspace, Packages: c.Packages})
	}
	if err == nil {
		r, err = e.Wait(ctx, c.Workspace, r.ID, false)
	}
	if err == nil && r.State.AtWork() {
		err = fmt.Errorf("it is %s", r.State)
	}
	return err
}

// openDB opens the database of a queue. What another process, or this one, was just
// starting has its lock until it executes.
func openDB(dir string) (db *badger.DB, err error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range 1000 {
		if db, err = badger.Open(badger.DefaultOptions(dir).WithLogger(nil).WithSyncWrites(true)); err == nil {
			return db, nil
		}
		<-tick.C
	}
	return nil, err
}

// TestCase39KilledRequests: a process that is killed at any move of a request leaves it
// where the next process ends it as if nothing had been, and nothing half that can be
// seen.
func TestCase39KilledRequests(t *testing.T) {
	t.Parallel()
	// received, resolving, memo, auto_approved, fetching, building, probing, ready with the
	// binding.
	const commits = 8
	var names []string
	for i := range commits + 1 {
		names = append(names, fmt.Sprintf("kill%d", i))
	}
	o := newShop(t, names)
	for _, n := range names {
		o.index.Add(oldFile(module(n, "1"))...)
	}
	o.onDisk()
	o.away()
	for i, n := range names {
		c := o.clerk(n)
		if c.Commit = i + 1; i == commits {
			c.Commit, c.After = commits, true
		}
		if !o.play(c) {
			return
		}
		o.whole(n, c.Workspace)
	}
	o.back()
	for i, n := range names {
		o.sees(workspace(i), "import "+n)
	}
}

// TestKilledApproval: the same for an approval: it is there, or it is not.
func TestKilledApproval(t *testing.T) {
	t.Parallel()
	o := newShop(t, nil, module("foo", "1"), module("quux", "1"))
	o.onDisk()
	for i, after := range []bool{false, true} {
		n := []string{"foo", "quux"}[i]
		r := o.is(o.ask(wsA, n), queue.PendingApproval)
		o.away()
		c := o.clerk(n)
		c.Workspace, c.Approve, c.Lock, c.Commit, c.After = wsA, r.ID, r.Lock, 1, after
		if !o.play(c) {
			return
		}
		o.back()
		got := o.wait(r)
		if !after {
			o.is(got, queue.PendingApproval)
			got = o.approve(got, false)
		}
		o.is(got, queue.Ready)
		o.sees(wsA, "import "+n)
	}
}

// workspace is one of many.
func workspace(i int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", i) }

// onDisk makes the queue one that other processes can open.
func (o *shop) onDisk() {
	o.t.Helper()
	o.dir = filepath.Join(o.t.TempDir(), "queue")
	o.away()
	o.back()
}

// away closes the queue and the root, back opens them.
func (o *shop) away() {
	o.t.Helper()
	must(o.t, o.Env.Close())
	must(o.t, o.db.Close())
}

func (o *shop) back() {
	o.t.Helper()
	db, err := openDB(o.dir)
	must(o.t, err)
	o.db = db
	o.start()
	o.UsePip(at(o.index).Pip)
}

func (o *shop) clerk(name string) clerk {
	return clerk{Root: o.root, DB: o.dir, Pip: at(o.index).Pip, Workspace: workspace(int(name[len(name)-1] - '0')), Packages: []string{name}}
}

// play has a child work while nobody else has the queue.
func (o *shop) play(c clerk) (killed bool) {
	o.t.Helper()
	var out told
	if killed = pyenvtest.Start(o.t, clerkEnv, c)(&out); !killed {
		o.t.Errorf("the child was not killed at commit %d and says %q", c.Commit, out.Error)
	}
	return killed
}

// whole checks what the killed child has left: the request goes on to its end, the layers
// are as they were built, and there is one binding.
func (o *shop) whole(name, ws string) {
	o.t.Helper()
	o.back()
	defer o.away()
	list, err := o.o.Queue.List(queue.Filter{Workspace: ws})
	must(o.t, err)
	if len(list) > 1 {
		o.t.Fatalf("%s: %d requests", name, len(list))
	}
	for _, r := range list {
		o.is(o.wait(r), queue.Ready)
	}
	if len(list) == 0 { // it was killed before anything was asked for
		o.is(o.ask(ws, name), queue.Ready)
	}
	if b := o.bound(ws); b.Rev != 1 || len(b.Layers) != 1 {
		o.t.Errorf("%s: %+v", name, b)
	}
	root, err := o.store()
	must(o.t, err)
	for _, left := range o.left() {
		if filepath.Dir(left) == pinDir { // what follows on the binding goes on, or the next one replaces it
			continue
		}
		if slices.Contains([]string{".tmp-", ".tras"}, filepath.Base(left)[:5]) {
			o.t.Errorf("%s: left is %s", name, left)
			continue
		}
		if filepath.Dir(left) != "layers" {
			continue
		}
		l, err := root.Layer(filepath.Base(left))
		must(o.t, err)
		if faults, err := root.Verify(o.t.Context(), l); err != nil || len(faults) > 0 {
			o.t.Errorf("%s: %s: %v %v", name, left, faults, err)
		}
	}
}
