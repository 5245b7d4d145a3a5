package audit

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/dgraph-io/badger/v4"
)

// crash gives a fixture whose database and tail are as a killed process would
// leave them: f is copied while its groups are blocked.
func (f *fixture) crash(t *testing.T) *fixture {
	t.Helper()
	data, err := os.ReadFile(f.tailPath())
	if err != nil {
		t.Fatal(err)
	}
	g := &fixture{T: t, dir: t.TempDir(), o: f.o}
	t.Cleanup(g.close)
	g.openDB()
	err = f.db.View(func(from *badger.Txn) error {
		it := from.NewIterator(badger.DefaultIteratorOptions)
		defer it.Close()
		return g.db.Update(func(to *badger.Txn) error {
			for it.Rewind(); it.Valid(); it.Next() {
				value, err := it.Item().ValueCopy(nil)
				if err == nil {
					err = to.Set(it.Item().KeyCopy(nil), value)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	g.close()
	if err := os.WriteFile(g.tailPath(), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return g
}

// pending is a log with one durable record, then an append in flight, an append
// queued and two notes that have returned.
func pending(t *testing.T) (f *fixture, notes []Receipt) {
	f = newFixture(t, Options{Run: "run"})
	f.append(disk, intentOf("durable"))
	release := f.block()
	t.Cleanup(release)
	results := make(chan error, 2)
	for i, stream := range []string{disk, StreamSystem} {
		go func() {
			_, err := f.log.Append(context.Background(), stream, intentOf("waiting"))
			results <- err
		}()
		f.queued(i + 1)
	}
	notes = append(notes, f.note(disk, outcomeOf("durable")), f.note("other", intentOf("other")))
	return f, notes
}

func TestANoteOutlivesItsProcessWithAllThatWasNumberedBefore(t *testing.T) {
	f, notes := pending(t)
	g := f.crash(t)
	g.open()
	for _, want := range notes {
		list := g.query(Query{Stream: want.Stream, From: want.N, To: want.N})
		if len(list) != 1 || leafOf(list[0].append(nil)).String() != want.Leaf {
			t.Errorf("note %+v: %+v", want, list)
		}
	}
	g.intact(disk, 3)
	g.intact(StreamSystem, 1)
	g.intact("other", 1)
	if info, err := os.Stat(g.tailPath()); err != nil || info.Size() != 0 {
		t.Errorf("tail after the replay: %v, %v", info.Size(), err)
	}
	g.call(disk, "next")
	g.reopen()
	g.intact(disk, 5)
	if r := g.verify(disk); r.Bodies != 3 {
		t.Errorf("%d bodies came back", r.Bodies)
	}
}

// A process can die in its write(2), and the tail may be replayed more than once.
func TestATornTailIsReadAsFarAsItIsWhole(t *testing.T) {
	f, _ := pending(t)
	whole, err := os.ReadFile(f.tailPath())
	if err != nil {
		t.Fatal(err)
	}
	parsed := &tail{f: f.log.tail.f, size: int64(len(whole))}
	frames, err := parsed.read()
	if err != nil || len(frames) != 4 {
		t.Fatalf("%d frames, %v", len(frames), err)
	}
	for cut := 0; cut < len(whole); cut += 1 + len(whole)/97 {
		got := framesOf(t, whole[:cut])
		if len(got) > len(frames) {
			t.Fatalf("cut at %d: %d frames", cut, len(got))
		}
		for i, fr := range got {
			if !bytes.Equal(fr.line, frames[i].line) {
				t.Fatalf("cut at %d: frame %d differs", cut, i)
			}
		}
	}
	if got := framesOf(t, append(bytes.Clone(whole), make([]byte, 4096)...)); len(got) != 4 {
		t.Errorf("zeros behind: %d frames", len(got))
	}
	for at := 0; at < len(whole); at += 1 + len(whole)/53 {
		flipped := bytes.Clone(whole)
		flipped[at] ^= 0x20
		for i, fr := range framesOf(t, flipped) {
			if !bytes.Equal(fr.line, frames[i].line) || !bytes.Equal(fr.body, frames[i].body) {
				t.Fatalf("a flipped bit at %d was taken", at)
			}
		}
	}
	g := f.crash(t)
	if err := os.WriteFile(g.tailPath(), whole[:len(whole)-3], 0o600); err != nil {
		t.Fatal(err)
	}
	g.open()
	g.intact(disk, 3) // the torn one is the note in "other"
	g.intact("other", 0)
	g.close()
	if err := os.WriteFile(g.tailPath(), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	g.open() // disk is in the database already
	g.intact(disk, 3)
	g.intact("other", 1)
}

func framesOf(t *testing.T, data []byte) []frame {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tail")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	tl, err := openTail(path)
	if err != nil {
		t.Fatal(err)
	}
	defer tl.close()
	frames, err := tl.read()
	if err != nil {
		t.Fatal(err)
	}
	return frames
}

func TestATailThatDoesNotFollowIsRefusedAndKept(t *testing.T) {
	f, _ := pending(t)
	whole, err := os.ReadFile(f.tailPath())
	if err != nil {
		t.Fatal(err)
	}
	g := &fixture{T: t, dir: t.TempDir()}
	t.Cleanup(g.close)
	if err := os.WriteFile(g.tailPath(), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	g.openDB()
	if _, err := New(g.db, g.tailPath(), Options{}); !errors.Is(err, ErrUnreadable) {
		t.Errorf("error %v", err)
	}
	if kept, err := os.ReadFile(g.tailPath()); err != nil || !bytes.Equal(kept, whole) {
		t.Errorf("the tail was changed: %v", err)
	}
}

func TestAReplayThatFindsTheDiskFullKeepsTheTail(t *testing.T) {
	f, _ := pending(t)
	g := f.crash(t)
	g.openDB()
	full := Options{Free: func() (uint64, error) { return 0, nil }}
	if _, err := New(g.db, g.tailPath(), full); !errors.Is(err, ErrUnavailable) {
		t.Errorf("error %v", err)
	}
	g.close()
	g.open()
	g.intact(disk, 3)
}

func TestATailThatCannotBeWrittenStopsTheLog(t *testing.T) {
	f := newFixture(t, Options{})
	f.call(disk, "a")
	if err := f.log.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	f.log.lock()
	f.log.tail.f.Close()
	f.log.unlock()
	f.append(disk, intentOf("b")) // needs no tail
	_, err := f.log.Note(context.Background(), disk, outcomeOf("b"))
	unavailable(t, err)
	// A closed file cannot be cut back either, so nothing more is taken.
	_, err = f.log.Append(context.Background(), disk, intentOf("c"))
	unavailable(t, err)
	f.log.Close()
	f.log = nil
	f.reopen()
	f.intact(disk, 3)
	f.call(disk, "d")
	f.intact(disk, 5)
}

func TestATailThatIsNotAFileIsRefused(t *testing.T) {
	f := newFixture(t, Options{})
	f.log.Close()
	if err := os.Remove(f.tailPath()); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(f.tailPath(), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := New(f.db, f.tailPath(), Options{}); !errors.Is(err, ErrUnreadable) {
		t.Errorf("error %v", err)
	}
}

// Under steady notes there is always one that is not durable, so the tail could
// never be emptied.
func TestTheTailDoesNotGrowForEver(t *testing.T) {
	f := newFixture(t, Options{})
	release := f.block()
	big := outcomeOf("a")
	for range 200 {
		big.Changes = append(big.Changes, ChangeFact{Path: string(make([]byte, 80))})
	}
	for range maxTail/MaxRecord + 200 {
		f.note(disk, big)
	}
	f.log.lock()
	full := f.log.tail.size
	f.log.unlock()
	if full <= maxTail {
		t.Fatalf("the tail has only %d bytes", full)
	}
	release()
	for range 20 {
		f.note(disk, outcomeOf("b"))
	}
	if err := f.log.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	f.log.lock()
	size := f.log.tail.size
	f.log.unlock()
	if size != 0 {
		t.Errorf("%d bytes are left", size)
	}
	f.intact(disk, maxTail/MaxRecord+220)
}

func FuzzTail(f *testing.F) {
	it := &item{stream: newStream("system"), n: 7, body: []byte(`{"salt":"00"}`), line: []byte(`{"v":1}`)}
	f.Add(appendFrame(nil, it))
	f.Add(appendFrame(appendFrame(nil, it), it))
	f.Add([]byte("T1 system 1 -1 -1 00000000\n"))
	f.Add([]byte("T1 system 1 9223372036854775807 9223372036854775807 00000000\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		fr, size, ok := parseFrame(data)
		if !ok {
			return
		}
		whole := appendFrame(nil, &item{stream: newStream(fr.stream), n: fr.n, body: fr.body, line: fr.line})
		if size > len(data) || !bytes.Equal(whole, data[:size]) {
			t.Fatalf("took %q as %q", data, whole)
		}
	})
}
