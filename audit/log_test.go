package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const disk = "5c3b6a1e-0000-4000-8000-000000000001"

func TestFirstRecordFollowsTheGenesisOfItsStream(t *testing.T) {
	f := newFixture(t, newFakeClock().options())
	r := f.append(disk, intentOf("a"))
	if r.N != 1 || r.Stream != disk {
		t.Fatalf("receipt %+v", r)
	}
	list := f.query(Query{Stream: disk})
	if len(list) != 1 || list[0].Prev != genesis(disk).String() || list[0].Prev == genesis(StreamSystem).String() {
		t.Fatalf("%+v", list)
	}
	f.intact(disk, 1)
}

func TestReceiptIsTheLeafOfTheStoredLine(t *testing.T) {
	f := newFixture(t, Options{})
	want := map[uint64]string{}
	for i := range 5 {
		r := f.append(disk, intentOf(name(i)))
		want[r.N] = r.Leaf
		r = f.note(disk, outcomeOf(name(i)))
		want[r.N] = r.Leaf
	}
	err := f.log.Query(context.Background(), Query{Stream: disk}, func(raw []byte, r Record) error {
		if leafOf(raw).String() != want[r.N] {
			t.Errorf("record %d has another leaf than its receipt", r.N)
		}
		if again, err := r.MarshalJSON(); err != nil || string(again) != string(raw) {
			t.Errorf("record %d encodes to %s", r.N, again)
		}
		delete(want, r.N)
		return nil
	})
	if err != nil || len(want) != 0 {
		t.Errorf("%v, without record: %v", err, want)
	}
}

func TestARestartGoesOn(t *testing.T) {
	f := newFixture(t, Options{Run: "first"})
	f.call(disk, "a")
	f.append(StreamSystem, Entry{Record: Record{Ev: EvServerStart}})
	f.o.Run = "second"
	f.reopen()
	f.call(disk, "b")
	f.intact(disk, 4)
	f.intact(StreamSystem, 1)
	names, err := f.log.Streams()
	if err != nil || !slices.Equal(names, []string{disk, StreamSystem}) {
		t.Errorf("streams %v, %v", names, err)
	}
	runs := []string{}
	for _, r := range f.query(Query{Stream: disk}) {
		runs = append(runs, r.Run)
	}
	if !slices.Equal(runs, []string{"first", "first", "second", "second"}) {
		t.Errorf("runs %v", runs)
	}
}

func TestManyWritersLeaveNoGap(t *testing.T) {
	f := newFixture(t, Options{})
	const writers, each = 64, 30
	streams := []string{disk, StreamSystem, "other"}
	var count [3]atomic.Uint64
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			var last [3]uint64
			for i := range each {
				k := (w + i) % len(streams)
				call := fmt.Sprintf("w%d-%d", w, i)
				a, err := f.log.Append(context.Background(), streams[k], intentOf(call))
				if err != nil {
					t.Error(err)
					return
				}
				b, err := f.log.Note(context.Background(), streams[k], outcomeOf(call))
				if err != nil {
					t.Error(err)
					return
				}
				if a.N <= last[k] || b.N <= a.N {
					t.Errorf("numbers of one writer: %d after %d, %d after %d", a.N, last[k], b.N, a.N)
				}
				last[k] = b.N
				count[k].Add(2)
			}
		})
	}
	group.Wait()
	for k, stream := range streams {
		f.intact(stream, count[k].Load())
		if r := f.verify(stream); len(r.Dangling) != 0 {
			t.Errorf("dangling in %s: %v", stream, r.Dangling)
		}
	}
}

func TestANoteIsDurableSoonWithoutAnybodyWaiting(t *testing.T) {
	f := newFixture(t, Options{})
	b, _, err := f.log.number(context.Background(), disk, outcomeOf("a"), true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := b.wait(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestCancelledBeforeItIsNumberedLeavesNothing(t *testing.T) {
	f := newFixture(t, Options{})
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("client went away")
	cancel(cause)
	for name, add := range map[string]func(context.Context, string, Entry) (Receipt, error){"Append": f.log.Append, "Note": f.log.Note} {
		_, err := add(ctx, disk, intentOf("a"))
		unavailable(t, err)
		if !errors.Is(err, cause) {
			t.Errorf("%s: %v does not tell the cause", name, err)
		}
	}
	f.intact(disk, 0)
}

func TestCancelledWhileItIsWrittenIsAnError(t *testing.T) {
	f := newFixture(t, Options{})
	release := f.block()
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	go func() {
		_, err := f.log.Append(ctx, disk, intentOf("a"))
		result <- err
	}()
	f.queued(1)
	cancel()
	unavailable(t, <-result)
	release()
	f.intact(disk, 1) // the number was given, so the record is there
	if r := f.verify(disk); !slices.Equal(r.Dangling, []string{"a"}) {
		t.Errorf("dangling %v", r.Dangling)
	}
}

func TestAFullQueueWaitsForTheContext(t *testing.T) {
	f := newFixture(t, Options{})
	release := f.block()
	var group sync.WaitGroup
	for i := range maxQueue {
		group.Go(func() {
			if _, err := f.log.Append(context.Background(), disk, intentOf(name(i))); err != nil {
				t.Error(err)
			}
		})
	}
	f.queued(maxQueue)
	for _, add := range []func(context.Context, string, Entry) (Receipt, error){f.log.Append, f.log.Note} {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		_, err := add(ctx, disk, intentOf("late"))
		cancel()
		unavailable(t, err)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	}
	release()
	group.Wait()
	f.intact(disk, maxQueue)
	f.call(disk, "after")
	f.intact(disk, maxQueue+2)
}

func TestAClosedLogRefuses(t *testing.T) {
	f := newFixture(t, Options{})
	f.note(disk, intentOf("a"))
	if err := errors.Join(f.log.Close(), f.log.Close()); err != nil {
		t.Fatal(err)
	}
	_, err := f.log.Append(context.Background(), disk, intentOf("b"))
	unavailable(t, err)
	_, err = f.log.Note(context.Background(), disk, intentOf("b"))
	unavailable(t, err)
	f.intact(disk, 1) // reading still works while the database is open
}

func TestCloseWaitsForWhatWasTaken(t *testing.T) {
	f := newFixture(t, Options{})
	release := f.block()
	result := make(chan error)
	go func() {
		_, err := f.log.Append(context.Background(), disk, intentOf("a"))
		result <- err
	}()
	f.queued(1)
	f.note(disk, outcomeOf("a"))
	closed := make(chan error)
	go func() { closed <- f.log.Close() }()
	release()
	if err := errors.Join(<-result, <-closed); err != nil {
		t.Fatal(err)
	}
	f.reopen()
	f.intact(disk, 2)
}

func TestAFailedCommitStopsTheLog(t *testing.T) {
	broken := errors.New("input/output error")
	for name, reached := range map[string]bool{"nothing was written": false, "all was written all the same": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Options{})
			f.call(disk, "before")
			f.log.lock()
			f.log.save = func(b *batch) error {
				if reached {
					f.log.commit(b)
				}
				return broken
			}
			f.log.unlock()
			noted := f.note(disk, intentOf("noted"))
			_, err := f.log.Append(context.Background(), disk, intentOf("a"))
			unavailable(t, err)
			_, err = f.log.Note(context.Background(), disk, intentOf("b"))
			unavailable(t, err)
			if err := f.log.Sync(context.Background()); !errors.Is(err, ErrUnavailable) {
				t.Errorf("Sync: %v", err)
			}
			if err := f.log.Close(); !errors.Is(err, ErrUnavailable) {
				t.Errorf("Close: %v", err)
			}
			f.log = nil
			f.reopen()
			r := f.verify(disk)
			if !r.OK || r.Last < noted.N {
				t.Fatalf("after reopening %+v", r)
			}
			f.call(disk, "after")
			if list := f.query(Query{Match: map[string][]string{"call": {"noted"}}}); len(list) != 1 || list[0].N != noted.N {
				t.Errorf("the note that was acknowledged: %+v", list)
			}
		})
	}
}

func TestLowSpaceRefusesAndRecovers(t *testing.T) {
	var free atomic.Uint64
	free.Store(1 << 30)
	var failure atomic.Pointer[error]
	f := newFixture(t, Options{MinFree: 1 << 20, Free: func() (uint64, error) {
		if err := failure.Load(); err != nil {
			return 0, *err
		}
		return free.Load(), nil
	}})
	f.call(disk, "a")
	free.Store(1<<20 - 1)
	_, err := f.log.Append(context.Background(), disk, intentOf("b"))
	unavailable(t, err)
	if !strings.Contains(err.Error(), "1048575 bytes are free") {
		t.Errorf("error %v", err)
	}
	free.Store(1<<20 - 1<<17) // an eighth less
	f.note(disk, outcomeOf("a"))
	free.Add(^uint64(0))
	_, err = f.log.Note(context.Background(), disk, outcomeOf("a"))
	unavailable(t, err)
	free.Store(1 << 20)
	f.call(disk, "c")
	broken := errors.New("stale file handle")
	failure.Store(&broken)
	_, err = f.log.Append(context.Background(), disk, intentOf("d"))
	unavailable(t, err)
	failure.Store(nil)
	f.call(disk, "e")
	f.intact(disk, 7)
}

func TestBadStreamNamesAreRefused(t *testing.T) {
	f := newFixture(t, Options{})
	for _, name := range []string{"", "a/b", "a b", "é", strings.Repeat("x", maxStream+1)} {
		_, err := f.log.Append(context.Background(), name, intentOf("a"))
		unavailable(t, err)
	}
}

func TestAStepOfTheClockIsARecord(t *testing.T) {
	cases := map[string]struct {
		between func(*fakeClock)
		want    bool
	}{
		"time passes":               {func(c *fakeClock) { c.pass(time.Hour) }, false},
		"no time passes":            {func(c *fakeClock) {}, false},
		"set back 1 ms":             {func(c *fakeClock) { c.wall.Add(-int64(time.Millisecond)) }, true},
		"set back a year":           {func(c *fakeClock) { c.wall.Add(-int64(365 * 24 * time.Hour)) }, true},
		"set on by 3 s":             {func(c *fakeClock) { c.wall.Add(int64(3 * time.Second)) }, true},
		"slewed by 1 s":             {func(c *fakeClock) { c.wall.Add(int64(time.Second)) }, false},
		"3 s behind, never back":    {func(c *fakeClock) { c.pass(time.Minute); c.wall.Add(-int64(3 * time.Second)) }, true},
		"monotonic clock restarted": {func(c *fakeClock) { c.mono.Store(0); c.wall.Add(int64(time.Hour)) }, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			clock := newFakeClock()
			f := newFixture(t, clock.options())
			f.append(disk, intentOf("a"))
			c.between(clock)
			f.note(disk, outcomeOf("a"))
			list := f.query(Query{Stream: disk})
			if got := len(list) == 3; got != c.want {
				t.Fatalf("%d records, step wanted: %v", len(list), c.want)
			}
			if c.want && (list[1].Ev != EvClockStep || list[1].Args["from"] == nil || list[2].N != 3) {
				t.Errorf("%+v", list[1])
			}
			f.note(disk, outcomeOf("a"))
			f.intact(disk, uint64(len(list)+1)) // one record for one step
		})
	}
}

func TestAStepOfTheClockWhileTheServerWasDown(t *testing.T) {
	clock := newFakeClock()
	f := newFixture(t, clock.options())
	f.append(disk, intentOf("a"))
	clock.wall.Add(-int64(time.Minute))
	f.o.Boot = "boot-2"
	f.reopen()
	f.append(disk, intentOf("b"))
	list := f.query(Query{Stream: disk, Match: map[string][]string{"ev": {"clock.step"}}})
	if len(list) != 1 || list[0].N != 2 || list[0].Args["wall_us"] != int64(-60e6) || list[0].Args["mono_us"] != nil {
		t.Errorf("%+v", list)
	}
	f.intact(disk, 3)
}

func TestAThousandRecordsInOneTick(t *testing.T) {
	clock := newFakeClock()
	f := newFixture(t, clock.options())
	for i := range 500 {
		f.note(disk, intentOf(name(i)))
		f.note(disk, outcomeOf(name(i)))
	}
	f.intact(disk, 1000)
}

func TestDanglingAreIntentsWithoutAnOutcome(t *testing.T) {
	f := newFixture(t, Options{})
	settle := map[string]Event{"a": EvCallOutcome, "c": EvRecover, "d": EvCallRefused, "put": EvRecover}
	for _, call := range []string{"a", "b", "c", "d"} {
		f.append(disk, intentOf(call))
	}
	for call, ev := range map[string]Event{"put": EvImagePut, "rm": EvImageRm, "restore": EvImageRestore, "undo": EvImageUndo} {
		f.append(disk, Entry{Record: Record{Ev: ev, Call: call}})
	}
	f.append(disk, intentOf("e"))
	for call, ev := range map[string]Event{"rm": EvImageRm, "restore": EvImageRestore, "undo": EvImageUndo} {
		f.append(disk, Entry{Record: Record{Ev: ev, Call: call, Out: &Out{}}})
	}
	f.append(disk, Entry{Record: Record{Ev: EvImageGet, Call: "get"}}) // has one record only
	for call, ev := range settle {
		f.append(disk, Entry{Record: Record{Ev: ev, Call: call}})
	}
	f.append(disk, Entry{Record: Record{Ev: EvCallRead, Call: "b"}}) // settles nothing
	for range 2 {
		list, err := f.log.Dangling(disk)
		if err != nil || len(list) != 2 || list[0].Call != "b" || list[1].Call != "e" || list[0].Stream != disk {
			t.Fatalf("%v, %v", list, err)
		}
		if r := f.verify(disk); !r.OK || !slices.Equal(r.Dangling, []string{"b", "e"}) {
			t.Fatalf("%+v", r)
		}
		f.reopen()
	}
	f.append(disk, outcomeOf("b"))
	f.append(disk, outcomeOf("e"))
	if list, err := f.log.Dangling(disk); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	var h head
	f.log.lock()
	s := f.log.streams[disk]
	h.Settled = s.open.settled(s.n)
	f.log.unlock()
	if h.Settled != s.n {
		t.Errorf("settled up to %d of %d", h.Settled, s.n)
	}
	if list, err := f.log.Dangling("nobody"); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}

func TestDefaultsTellWhenAndWhere(t *testing.T) {
	f := newFixture(t, Options{})
	before := time.Now()
	f.append(disk, intentOf("a"))
	f.reopen()
	f.append(disk, intentOf("b"))
	list := f.query(Query{Stream: disk})
	if len(list) != 2 {
		t.Fatalf("a step of the clock was seen over a restart: %+v", list)
	}
	a, b := list[0], list[1]
	if a.Boot == "" || a.Boot != b.Boot && bootID() != "" || len(a.Run) != 32 || a.Run == b.Run {
		t.Errorf("boot %q, %q, run %q, %q", a.Boot, b.Boot, a.Run, b.Run)
	}
	if b.T.Before(before.Truncate(time.Microsecond)) || b.T.Before(a.T) || b.Mono <= 0 {
		t.Errorf("times %v, %v, mono %d", a.T, b.T, b.Mono)
	}
}

func TestASecondOpenNamesTheReason(t *testing.T) {
	f := newFixture(t, Options{})
	if _, err := OpenDB(f.dir, nil); !errors.Is(err, ErrInUse) {
		t.Errorf("error %v", err)
	}
}

func TestGroupsStayWithinATransaction(t *testing.T) {
	f := newFixture(t, Options{})
	release := f.block()
	big := Entry{Record: Record{Ev: EvCallOutcome}}
	for i := range 400 {
		big.Changes = append(big.Changes, ChangeFact{Path: fmt.Sprint(strings.Repeat("p", 400), i)})
	}
	var group sync.WaitGroup
	const writers = 300 // × 13 KB: several times what one transaction takes
	for i := range writers {
		group.Go(func() {
			if _, err := f.log.Append(context.Background(), name(i%7), big); err != nil {
				t.Error(err)
			}
		})
	}
	f.queued(writers)
	release()
	group.Wait()
	var sum uint64
	for i := range 7 {
		sum += f.verify(name(i)).Records
	}
	if sum != writers {
		t.Errorf("%d records", sum)
	}
}
