package audit

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) {
	if dir := os.Getenv("AUDIT_TEST_VICTIM"); dir != "" {
		victim(dir) // ends by being killed
	}
	if dir := os.Getenv("AUDIT_TEST_OPENER"); dir != "" {
		opener(dir) // ends by itself
	}
	os.Exit(m.Run())
}

// fixture is a log in a folder that can be closed and opened again.
type fixture struct {
	*testing.T
	dir string
	o   Options
	db  *badger.DB
	log *Log
}

func newFixture(t *testing.T, o Options) *fixture {
	t.Helper()
	f := &fixture{T: t, dir: t.TempDir(), o: o}
	t.Cleanup(f.close)
	f.open()
	return f
}

func (f *fixture) tailPath() string { return filepath.Join(f.dir, "tail") }

func (f *fixture) openDB() {
	f.Helper()
	db, err := OpenDB(f.dir, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.db = db
}

func (f *fixture) open() {
	f.Helper()
	f.openDB()
	log, err := New(f.db, f.tailPath(), f.o)
	if err != nil {
		f.Fatal(err)
	}
	f.log = log
}

func (f *fixture) close() {
	if f.log != nil {
		f.log.Close()
		f.log = nil
	}
	if f.db != nil {
		if err := f.db.Close(); err != nil {
			f.Error(err)
		}
		f.db = nil
	}
}

func (f *fixture) reopen() {
	f.Helper()
	f.close()
	f.open()
}

// tamper changes the database behind the log's back.
func (f *fixture) tamper(change func(*badger.Txn) error) {
	f.Helper()
	f.close()
	f.openDB()
	if err := f.db.Update(change); err != nil {
		f.Fatal(err)
	}
	if err := f.db.Close(); err != nil {
		f.Fatal(err)
	}
	f.db = nil
	f.open()
}

func (f *fixture) append(stream string, e Entry) Receipt {
	f.Helper()
	r, err := f.log.Append(context.Background(), stream, e)
	if err != nil {
		f.Fatal(err)
	}
	return r
}

func (f *fixture) note(stream string, e Entry) Receipt {
	f.Helper()
	r, err := f.log.Note(context.Background(), stream, e)
	if err != nil {
		f.Fatal(err)
	}
	return r
}

// call appends an intent and notes its outcome.
func (f *fixture) call(stream, id string) {
	f.Helper()
	f.append(stream, intentOf(id))
	f.note(stream, outcomeOf(id))
}

func (f *fixture) verify(stream string) Report {
	f.Helper()
	r, err := f.log.Verify(context.Background(), stream)
	if err != nil {
		f.Fatal(err)
	}
	return r
}

func (f *fixture) intact(stream string, records uint64) {
	f.Helper()
	r := f.verify(stream)
	if !r.OK || r.Records != records || r.Last != records {
		f.Fatalf("want %d intact records, got %+v", records, r)
	}
}

// query gives what matches.
func (f *fixture) query(q Query) (list []Record) {
	f.Helper()
	err := f.log.Query(context.Background(), q, func(raw []byte, r Record) error {
		list = append(list, r)
		return nil
	})
	if err != nil {
		f.Fatal(err)
	}
	return list
}

func intentOf(call string) Entry {
	return Entry{
		Record:  Record{Ev: EvCallIntent, Call: call, Tool: "write_file", Dec: "allow", Args: Facts{"path": "/workspace/" + call + ".txt", "bytes": 12}},
		RawArgs: []byte(`{"path":"` + call + `"}`),
	}
}

func outcomeOf(call string) Entry {
	return Entry{Record: Record{Ev: EvCallOutcome, Call: call, Tool: "write_file", Dec: "allow", Out: &Out{OK: true, Bytes: 12}}}
}

// fakeClock can be set by a test.
type fakeClock struct{ wall, mono atomic.Int64 } // nanoseconds

func newFakeClock() *fakeClock {
	c := &fakeClock{}
	c.wall.Store(time.Date(2027, 1, 2, 3, 4, 5, 678901000, time.UTC).UnixNano())
	c.mono.Store(int64(time.Hour))
	return c
}

func (c *fakeClock) now() time.Time { return time.Unix(0, c.wall.Load()) }
func (c *fakeClock) pass(d time.Duration) {
	c.wall.Add(int64(d))
	c.mono.Add(int64(d))
}

func (c *fakeClock) options() Options {
	return Options{Clock: c.now, Mono: c.mono.Load, Boot: "boot-1", Run: "run-1"}
}

// block makes the next groups wait in the sequencer until release is called.
func (f *fixture) block() (release func()) {
	gate := make(chan struct{})
	f.log.lock()
	save := f.log.save
	f.log.save = func(b *batch) error { <-gate; return save(b) }
	f.log.unlock()
	return func() { close(gate) }
}

// queued waits until n records are numbered and not durable.
func (f *fixture) queued(n int) {
	f.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for len(f.log.slots) != n {
		select {
		case <-tick.C:
		case <-deadline:
			f.Fatalf("%d records are queued, want %d", len(f.log.slots), n)
		}
	}
}

// unavailable checks that err is the kind that every failed append has.
func unavailable(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, ErrUnavailable) {
		t.Fatalf("error %v does not wrap ErrUnavailable", err)
	}
}

func name(i int) string { return fmt.Sprintf("call%04d", i) }
