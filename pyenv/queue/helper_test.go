package queue

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
)

// TestMain is the victim of the tests that kill, or runs the tests.
func TestMain(m *testing.M) {
	if dir := os.Getenv(victimEnv); dir != "" {
		os.Exit(victim(dir, os.Getenv(victimModeEnv)))
	}
	flag.Parse()
	flag.Set("rapid.nofailfile", "true") // the seed in the report does
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		f.Value.Set("25")
		if soak() {
			f.Value.Set("2000")
		}
	}
	os.Exit(m.Run())
}

func soak() bool { return os.Getenv("MCP_VDISK_SOAK") == "1" }

// Two workspaces.
const (
	wsA = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"
	wsB = "0b2e7a53-41a4-4b58-9a0e-5f6f1a3a7c11"
)

const (
	lock1  = "00112233445566aa"
	lock2  = "00112233445566bb"
	layer1 = "x-00112233445566cc"
	layer2 = "x-00112233445566dd"
	iso1   = "iso-00112233445566ee"
	base1  = "base-00112233445566ff"
)

var start = time.Date(2026, 11, 29, 9, 0, 0, 0, time.UTC)

// clock is one that stands until it is moved.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// fixture is a queue on a database in a directory.
type fixture struct {
	*Queue
	t     testing.TB
	dir   string
	clock *clock
	o     Options
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: t.TempDir(), clock: &clock{t: start}}
	f.o.Now = f.clock.now
	f.open()
	t.Cleanup(func() { f.db.Close() })
	return f
}

func (f *fixture) open() {
	f.t.Helper()
	db, err := audit.OpenDB(filepath.Join(f.dir, "db"), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	if f.Queue, err = Open(db, f.o); err != nil {
		f.t.Fatal(err)
	}
}

// reopen is a restart.
func (f *fixture) reopen() {
	f.t.Helper()
	if err := f.db.Close(); err != nil {
		f.t.Fatal(err)
	}
	f.open()
}

func (f *fixture) submit(ws string, specs ...string) Request {
	f.t.Helper()
	r, _, err := f.Submit(f.t.Context(), Request{Workspace: ws, Specs: specs, Reason: "a chart", Session: "s1", Client: "c", Call: "k1"})
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

// to moves a request to a state, with what belongs to it.
func (f *fixture) to(r Request, states ...State) Request {
	f.t.Helper()
	for _, s := range states {
		var err error
		if r, err = f.Move(f.t.Context(), r.ID, r.State, furnish(s)); err != nil {
			f.t.Fatalf("to %s: %v", s, err)
		}
	}
	return r
}

// furnish sets a state and what belongs to it.
func furnish(s State) func(*Request) error {
	return func(r *Request) error {
		was := r.State
		r.State = s
		lockable := !was.decided() && s != Ready && s != Received && s != Resolving
		if lockable && r.Lock == "" {
			r.Lock = lock1
		}
		switch {
		case s == AutoApproved && !was.decided():
			r.Decision = &Decision{Approve: true, By: "catalog rev 3", How: "catalog", Lock: r.Lock}
		case s == Approved && !was.decided():
			r.Decision = &Decision{Approve: true, By: "operator uid 1000", How: "cli", Lock: r.Lock}
		case s == Denied:
			r.Decision = &Decision{By: "operator uid 1000", How: "cli", Note: "no", Lock: r.Lock}
		case s == Failed, s == Rejected:
			r.Failure = &Failure{Code: "sdist_only", Sentence: "foo has no wheel", Blocking: &Blocking{Name: "foo"}}
		case s == Ready && was.decided():
			r.Layer = layer1
		case s == Ready:
			r.Lock = ""
		}
		return nil
	}
}

func wantIs(t testing.TB, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("got %v, not %v", err, kind)
	}
}

func want[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %+v, want %+v", what, got, want)
	}
}

func idsOf(list []Request) (ids []string) {
	for _, r := range list {
		ids = append(ids, r.ID)
	}
	return ids
}

// put writes a value past the queue.
func (f *fixture) put(key string, value []byte) {
	f.t.Helper()
	if err := f.db.Update(func(txn *badger.Txn) error { return txn.Set([]byte(key), value) }); err != nil {
		f.t.Fatal(err)
	}
}

// value reads one past the queue, nil if there is none.
func (f *fixture) value(key string) (value []byte) {
	f.t.Helper()
	err := f.view(func(txn *badger.Txn) (err error) {
		value, err = read(txn, key)
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return value
}

// consistent checks that every key has its counterparts, and returns all requests.
func consistent(t testing.TB, q *Queue) map[string]Request {
	t.Helper()
	all := map[string]Request{}
	var of, open, wantOf, wantOpen []string
	err := q.view(func(txn *badger.Txn) error {
		for _, id := range keysBelow(txn, requestPrefix, 0) {
			r, err := readRequest(txn, id)
			if err != nil {
				return err
			}
			all[id] = r
			wantOf = append(wantOf, ofKey(r.Workspace, id))
			if !r.State.Closed() {
				wantOpen = append(wantOpen, openKey(r)+"="+id)
			}
		}
		for _, rest := range keysBelow(txn, ofPrefix, 0) {
			of = append(of, ofPrefix+rest)
		}
		for _, rest := range keysBelow(txn, openPrefix, 0) {
			id, err := read(txn, openPrefix+rest)
			if err != nil {
				return err
			}
			open = append(open, openPrefix+rest+"="+string(id))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]string{of, open, wantOf, wantOpen} {
		slices.Sort(list)
	}
	if !slices.Equal(of, wantOf) || !slices.Equal(open, wantOpen) {
		t.Fatalf("the keys do not agree:\n%s\n%s\nwant\n%s\n%s",
			strings.Join(of, "\n"), strings.Join(open, "\n"), strings.Join(wantOf, "\n"), strings.Join(wantOpen, "\n"))
	}
	return all
}

func specN(n int) string { return fmt.Sprintf("foo==%d", n) }
