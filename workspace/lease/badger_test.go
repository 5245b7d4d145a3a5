package lease_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/conformance"
	"github.com/mcp-vdisk/mcp-vdisk/conformance/leaseproc"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// TestMain is also the provider in a process of its own, and its clients.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == leaseproc.Arg {
		os.Exit(leaseproc.Main(os.Args[2:], openApart))
	}
	os.Exit(m.Run())
}

func openApart(dir string, o leaseproc.Options) (lease.Provider, func() error, error) {
	db, err := audit.OpenDB(filepath.Join(dir, "db"), nil)
	if err != nil {
		return nil, nil, err
	}
	p, err := lease.New(db, lease.Options{
		Clock: o.Clock, Evict: o.Evict, Record: o.Record,
		Commit: func(txn *badger.Txn) error { return o.Write(txn.Commit) },
	})
	return p, db.Close, err
}

func startServer(t testing.TB) *leaseproc.Server {
	t.Helper()
	s, err := leaseproc.Start(os.Args[0], t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// store is a provider on a database in a directory, with a clock that stands.
type store struct {
	*lease.Badger
	db    *badger.DB
	dir   string
	clock *conformance.ManualClock
	o     lease.Options
}

func newStore(t testing.TB, o lease.Options) *store {
	t.Helper()
	s := &store{dir: t.TempDir(), clock: new(conformance.ManualClock), o: o}
	s.o.Clock = s.clock
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.db.Close() })
	return s
}

func (s *store) open() (err error) {
	if s.db, err = audit.OpenDB(s.dir, nil); err != nil {
		return err
	}
	s.Badger, err = lease.New(s.db, s.o)
	return err
}

// reopen is a restart; the clock goes on, as that of a new process begins somewhere.
func (s *store) reopen() error { return errors.Join(s.db.Close(), s.open()) }

func key(handle string) lease.Key {
	return lease.Key{Scope: lease.Scope{Tenant: "t", Workspace: "w"}, Backend: "image", Handle: handle}
}

func request(handle, owner string) lease.Request {
	return lease.Request{Key: key(handle), Owner: owner, TTL: 30 * time.Second, Client: owner + "'s client"}
}

func (s *store) acquire(t testing.TB, handle, owner string) lease.Grant {
	t.Helper()
	g, err := s.Acquire(t.Context(), request(handle, owner))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func (s *store) alive(t testing.TB, g lease.Grant) bool {
	t.Helper()
	err := s.Guard(t.Context(), g, func(lease.Txn) error { return nil })
	if err != nil && !errors.Is(err, lease.ErrConflict) {
		t.Fatal(err)
	}
	return err == nil
}

func wantIs(t testing.TB, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("got %v, not %v", err, kind)
	}
}

// TestConformance: Badger keeps every rule that can be tried within one process.
func TestConformance(t *testing.T) {
	hooks := new(conformance.LeaseHooks)
	s := newStore(t, lease.Options{Evict: hooks.Evict, Record: hooks.Record})
	rep := conformance.RunLease(t.Context(), s, conformance.LeaseCase{
		Clock: s.clock, Hooks: hooks, Interrupt: func(stored bool) { s.Interrupt(stored) },
		Reopen:   func(context.Context) (lease.Provider, error) { return s, s.reopen() },
		Resource: func(context.Context) (conformance.Resource, error) { return newDisk(t) },
	})
	report(t, rep, "lease.crash_durability", "lease.concurrent_clients")
}

// report says which rules were not passed; some may be skipped.
func report(t *testing.T, rep conformance.Report, skipped ...string) {
	t.Helper()
	var table strings.Builder
	if err := rep.WriteTable(&table); err != nil {
		t.Error(err)
	}
	t.Log("\n" + table.String())
	may := map[string]bool{}
	for _, id := range skipped {
		may[id] = true
	}
	for _, f := range rep.Findings {
		if f.Status != conformance.Passed && !(f.Status == conformance.Skipped && may[f.Rule]) {
			t.Errorf("%s: %s: %s", f.Rule, f.Status, f.Detail)
		}
	}
	if !rep.OK() {
		t.Error("the report is not OK")
	}
}

// disk is an image as a resource.
type disk struct {
	im   *workspace.Image
	path string
}

func newDisk(t testing.TB) (*disk, error) {
	path := filepath.Join(t.TempDir(), "disk.vdisk")
	im, err := workspace.Create(path, workspace.CreateOptions{})
	return &disk{im, path}, err
}

func (d *disk) Write(ctx context.Context, m lease.Mark, value string) error {
	_, err := d.im.Commit(ctx, workspace.Txn{
		Fence:   workspace.Fence(m),
		Changes: []workspace.Change{{Op: workspace.OpSymlink, Path: valuePath(), Target: value, Replace: true}},
	})
	return err
}

func (d *disk) Value(context.Context) (string, error) {
	n, err := d.im.Lstat(valuePath())
	return n.Target, err
}

// valuePath is a symlink: the shortest thing that has a value.
func valuePath() workspace.Path {
	p, err := workspace.Clean("value")
	if err != nil {
		panic(err)
	}
	return p
}

func (d *disk) Close() error { return d.im.Close() }

func (d *disk) Reopen(context.Context) (err error) {
	if err := d.im.Close(); err != nil {
		return err
	}
	d.im, err = workspace.Open(d.path, workspace.OpenOptions{})
	return err
}
