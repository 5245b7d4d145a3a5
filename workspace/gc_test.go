package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"pgregory.net/rapid"
)

func gc(t testing.TB, im *Image, o GCOptions) GCResult {
	t.Helper()
	r, err := im.GC(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// versions makes n commits, each with other content in "f", and returns their texts by
// sequence number.
func versions(t testing.TB, im *Image, n int) map[uint64]string {
	t.Helper()
	texts := map[uint64]string{}
	for i := range n {
		text := string(randomBytes(byte(i), 20_000))
		texts[mustDo(t, im, put("f", text)).Seq] = text
	}
	return texts
}

func TestGCKeepsWhatIsNeeded(t *testing.T) {
	const commits = 10 // v2 to v11
	for _, test := range []struct {
		name        string
		checkpoints []uint64
		o           func(start time.Time) GCOptions
		oldest      uint64
	}{
		{"nothing", nil, func(time.Time) GCOptions { return GCOptions{} }, 11},
		{"three", nil, func(time.Time) GCOptions { return GCOptions{KeepCommits: 3} }, 9},
		{"more than there are", nil, func(time.Time) GCOptions { return GCOptions{KeepCommits: 1 << 63} }, 1},
		{"since", nil, func(at time.Time) GCOptions { return GCOptions{KeepSince: at.Add(5 * time.Second)} }, 6},
		{"since ever", nil, func(at time.Time) GCOptions { return GCOptions{KeepSince: at.Add(-time.Hour)} }, 1},
		{"since later", nil, func(at time.Time) GCOptions { return GCOptions{KeepSince: at.Add(time.Hour)} }, 11},
		{"since and three", nil, func(at time.Time) GCOptions { return GCOptions{KeepSince: at.Add(5 * time.Second), KeepCommits: 3} }, 6},
		{"checkpoint", []uint64{4, 8}, func(time.Time) GCOptions { return GCOptions{} }, 4},
		{"budget", nil, func(time.Time) GCOptions { return GCOptions{Budget: 62_000} }, 9},
		{"budget and three", nil, func(time.Time) GCOptions { return GCOptions{Budget: 200_000, KeepCommits: 3} }, 9},
		{"budget below three", nil, func(time.Time) GCOptions { return GCOptions{Budget: 30_000, KeepCommits: 3} }, 11},
		{"budget and checkpoint", []uint64{4}, func(time.Time) GCOptions { return GCOptions{Budget: 1} }, 4},
		{"large budget", nil, func(time.Time) GCOptions { return GCOptions{Budget: 1 << 40} }, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			start := time.Unix(1_700_000_000, 0)
			clock := start
			im, path := newImage(t, CreateOptions{Clock: func() time.Time { return clock }})
			texts := map[uint64]string{}
			for i := range commits {
				clock = clock.Add(time.Second)
				texts[uint64(i)+2] = string(randomBytes(byte(i), 20_000))
				seq := mustDo(t, im, put("f", texts[uint64(i)+2])).Seq
				if slices.Contains(test.checkpoints, seq) {
					must(im.Checkpoint(t.Context(), fmt.Sprint("c", seq), ""))
				}
			}
			o := test.o(start)
			o.DryRun = true
			planned := gc(t, im, o)
			if s := must(im.Sizes(t.Context())); s.Oldest != 1 || s.Commits != commits+1 {
				t.Fatalf("a dry run dropped something: %+v", s)
			}
			o.DryRun = false
			done := gc(t, im, o)
			if done != planned {
				t.Errorf("it did %+v, and said %+v before", done, planned)
			}
			s := must(im.Sizes(t.Context()))
			if s.Oldest != test.oldest || s.Unused != 0 || done.Commits != int64(test.oldest)-1 {
				t.Errorf("%+v is left, want from v%d on; it did %+v", s, test.oldest, done)
			}
			if s.Head != done.Sizes.Head || s.History != done.Sizes.History || s.Pinned != done.Sizes.Pinned {
				t.Errorf("the sizes are %+v, it said %+v", s, done.Sizes)
			}
			verify(t, im)
			verifyChain(t, im)
			wantVersions(t, im, test.oldest, texts)
			if again := gc(t, im, o); !again.none() {
				t.Errorf("a second one did %+v", again)
			}
			mustDo(t, im, put("f", texts[2])) // what was freed can be stored again
			verify(t, im)
			im.Close()
			wantClean(t, path)
		})
	}
}

// wantVersions reads "f" at every version: those from oldest on, and no others.
func wantVersions(t testing.TB, im *Image, oldest uint64, texts map[uint64]string) {
	t.Helper()
	for seq, want := range texts {
		f, err := im.OpenAt(mustPath(t, "f"), seq)
		if seq+1 < oldest {
			wantKind(t, err, ErrNotFound)
			continue
		}
		if err != nil {
			t.Fatalf("v%d: %v", seq, err)
		}
		if b, err := io.ReadAll(f.Reader()); err != nil || string(b) != want {
			t.Errorf("v%d is %d bytes, %v", seq, len(b), err)
		}
	}
}

// Everything that looks back says what is no longer kept, and nothing wrong.
func TestCutHistory(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	f, g := mustPath(t, "f"), mustPath(t, "g")
	if _, err := do(t, im, Txn{Call: "old", Source: []byte(lines(100))}, put("f", lines(100)), put("g", lines(200))); err != nil {
		t.Fatal(err)
	}
	mustDo(t, im, put("f", lines(101)))                                                                     // v3
	mustDo(t, im, remove("f"))                                                                              // v4
	if _, err := do(t, im, Txn{Call: "new", Source: []byte(lines(99))}, put("f", lines(102))); err != nil { // v5
		t.Fatal(err)
	}
	mustDo(t, im, put("d/x", "x"))
	old := must(im.OpenAt(f, 2))
	kept := must(im.Open(g))
	oldNode := must(im.NodeAt(f, 2))
	restoring := must(im.Restoring(t.Context(), 2, []Path{f}))
	gc(t, im, GCOptions{KeepCommits: 2}) // v5 and v6 stay, and with them what v4 was
	ctx := t.Context()

	if log := must(im.Log(0, 100)); len(log) != 2 || log[0].Seq != 5 {
		t.Errorf("log %+v", log)
	}
	if log := must(im.History(ctx, LogQuery{})); len(log) != 2 || log[1].Seq != 5 {
		t.Errorf("history %+v", log)
	}
	if log := must(im.History(ctx, LogQuery{Call: "old"})); len(log) != 0 {
		t.Errorf("history of a call %+v", log)
	}
	links := must(im.Ancestry(Link{}, 100))
	if len(links) != 2 || links[1].Seq != 5 {
		t.Errorf("ancestry %+v", links)
	}
	if more := must(im.Ancestry(links[1], 100)); len(more) != 0 {
		t.Errorf("ancestry %+v", more)
	}
	for call, want := range map[string]bool{"old": false, "new": true} {
		if c, found, err := im.FindCommit(call); err != nil || found != want {
			t.Errorf("call %s: %v, %v, %v", call, c, found, err)
		}
	}
	noLonger := func(err error) {
		t.Helper()
		wantKind(t, err, ErrNotFound)
		if !strings.Contains(err.Error(), "no longer") {
			t.Error(err)
		}
	}
	_, err := im.Revision("v2")
	noLonger(err)
	_, _, err = im.Source(2)
	noLonger(err)
	_, err = im.Undoing(ctx, 2)
	noLonger(err)
	_, err = im.Restoring(ctx, 2, []Path{f})
	noLonger(err)
	_, err = im.Between(ctx, 2, 6, nil)
	noLonger(err)
	_, err = im.NodeAt(f, 2)
	noLonger(err)
	_, err = im.OpenAt(f, 3)
	noLonger(err)
	_, err = im.CopyTo(ctx, filepath.Join(t.TempDir(), "c"), CopyOptions{Seq: 3})
	noLonger(err)
	_, err = io.ReadAll(old.Reader())
	noLonger(err)
	_, err = im.Commit(ctx, restoring)
	noLonger(err)
	_, err = im.Commit(ctx, Txn{Changes: []Change{{Op: OpPut, Path: f, Content: oldNode.Content()}}})
	noLonger(err)
	_, err = im.Commit(ctx, Txn{Base: 3, Changes: []Change{{Op: OpRemove, Path: g}}})
	wantKind(t, err, ErrVersionConflict)

	if n := must(im.NodeAt(g, 2)); n.Version != 2 { // what was not changed since is known
		t.Errorf("%+v", n)
	}
	if b := must(io.ReadAll(kept.Reader())); string(b) != lines(200) {
		t.Error("a file that is still there cannot be read")
	}
	if s, ok, err := im.Source(5); !ok || err != nil || string(s) != lines(99) {
		t.Errorf("source %q, %v, %v", s, ok, err)
	}
	_, err = im.NodeAt(f, 4)
	wantKind(t, err, ErrNotFound)
	effects := must(im.Between(ctx, 5, 6, nil))
	if len(effects) != 2 {
		t.Errorf("%+v", effects)
	}
	txn, err := im.Undoing(ctx, 5)
	apply(t, im, txn, err)
	if _, err := im.Lstat(f); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	must(im.Checkpoint(ctx, "c", ""))
	to := copyOf(t, im, CopyOptions{})
	wantEqualDigests(t, im, to)
	verify(t, to)
	im = reopen(t, im, path)
	verify(t, im)
	im.Close()
	r := must(Check(ctx, path, CheckOptions{}))
	if len(r.Findings) > 0 || r.Oldest != 5 || r.Unused != 0 {
		t.Errorf("%+v", r)
	}
}

// Of random histories with checkpoints and collections, every version that is kept is
// what it was.
func TestGCModel(t *testing.T) {
	dir := t.TempDir()
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		path := filepath.Join(dir, fmt.Sprintf("%d.vdisk", runs))
		defer os.Remove(path)
		im, err := Create(path, CreateOptions{})
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { im.Close() }()
		states := map[uint64]model{1: {}}
		now, oldest := model{}, uint64(1)
		names := map[string]uint64{}
		for i := range rapid.IntRange(5, 30).Draw(rt, "actions") {
			switch rapid.IntRange(0, 9).Draw(rt, "action") {
			default:
				steps := rapid.SliceOfN(rapid.Custom(drawStep), 1, 4).Draw(rt, "steps")
				next := maps.Clone(now)
				good := true
				for _, s := range steps {
					good = good && next.apply(s) == nil
				}
				c, err := do(t, im, Txn{}, steps...)
				if (err == nil) != good {
					rt.Fatal(err)
				}
				if good {
					now = next
					states[c.Seq] = maps.Clone(now)
				}
			case 7:
				name := fmt.Sprint("c", i)
				c, err := im.Checkpoint(t.Context(), name, "")
				if err != nil {
					rt.Fatal(err)
				}
				names[name] = c.Seq
			case 8:
				if all := slices.Sorted(maps.Keys(names)); len(all) > 0 {
					name := rapid.SampledFrom(all).Draw(rt, "dropped")
					delete(names, name)
					if err := im.DropCheckpoint(name); err != nil {
						rt.Fatal(err)
					}
				}
			case 9:
				keep := rapid.Uint64Range(0, 6).Draw(rt, "keep")
				r, err := im.GC(t.Context(), GCOptions{KeepCommits: keep})
				if err != nil {
					rt.Fatal(err)
				}
				head := must(im.Info()).Seq
				want := min(head, head-min(head, max(keep, 1))+1)
				for _, seq := range names {
					want = min(want, seq)
				}
				if oldest = max(oldest, want); r.Sizes.Oldest != oldest {
					rt.Fatalf("v%d is the oldest, want v%d", r.Sizes.Oldest, oldest)
				}
				if s := must(im.Sizes(t.Context())); s.Unused != 0 || s.Pending != 0 || s.Oldest != oldest {
					rt.Fatalf("%+v", s)
				}
			}
			compare(rt, t, im, now)
		}
		im.Close()
		if r, err := Check(t.Context(), path, CheckOptions{Wait: time.Second}); err != nil || len(r.Findings) > 0 || r.Oldest != oldest {
			rt.Fatalf("fsck: %+v, %v", r, err)
		}
		if im, err = Open(path, OpenOptions{Wait: time.Second}); err != nil {
			rt.Fatal(err)
		}
		wantStates(rt, t, im, states, oldest)
	})
}

// wantStates reads every path at every version that is kept.
func wantStates(rt *rapid.T, t *testing.T, im *Image, states map[uint64]model, oldest uint64) {
	paths := map[string]bool{}
	for _, m := range states {
		for p := range m {
			paths[p] = true
		}
	}
	head := must(im.Info()).Seq
	for seq := oldest; seq <= head; seq++ {
		for p := range paths {
			path := must(FromBytes([]byte(p)))
			n, err := im.NodeAt(path, seq)
			it, there := states[seq][p]
			if !there {
				if !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrNotDirectory) {
					rt.Fatalf("%q at v%d: %v", p, seq, err)
				}
				continue
			}
			if err != nil || n.Kind != it.kind || n.Mode != it.mode {
				rt.Fatalf("%q at v%d is %+v, want %+v (%v)", p, seq, n, it, err)
			}
			if n.Kind == KindFile && nodeText(t, im, path, n) != it.body {
				rt.Fatalf("%q at v%d has other bytes", p, seq)
			}
		}
	}
}

// Committers that mostly store what was stored before go on beside collections that
// never end, and so does one who restores what was dropped or not.
func TestGCBesideCommits(t *testing.T) {
	t.Parallel()
	im, path := newImage(t, CreateOptions{})
	rounds := 60
	if soak() {
		rounds = 600
	}
	bodies := make([]string, 12)
	for i := range bodies {
		bodies[i] = strings.Repeat(fmt.Sprintf("body %d of many\n", i), 50+i*40)
		if i%6 == 5 {
			bodies[i] = string(randomBytes(byte(i), 400_000))
		}
	}
	var stop atomic.Bool
	var collected sync.WaitGroup
	var freed, dropped int64
	collected.Go(func() {
		for !stop.Load() {
			r, err := im.GC(context.Background(), GCOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			freed, dropped = freed+r.Chunks, dropped+r.Commits
		}
	})
	var committers sync.WaitGroup
	for w := range 8 {
		committers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for i := range rounds {
				p := fmt.Sprintf("%d/f", w)
				body := bodies[r.IntN(len(bodies))]
				if r.IntN(8) == 0 { // some of them wait between staging and committing
					s := im.Stage(context.Background())
					c := must(s.Add(strings.NewReader(body)))
					for range r.IntN(200) {
						runtime.Gosched()
					}
					must(im.Commit(context.Background(), Txn{Stage: s, Changes: []Change{{Op: OpPut, Path: must(Clean(p)), Content: c, Parents: true}}}))
				} else if _, err := do(t, im, Txn{Source: []byte(bodies[r.IntN(len(bodies))])}, put(p, body)); err != nil {
					t.Error(err)
					return
				}
				if got := text(t, im, p); got != body {
					t.Errorf("writer %d, round %d: it is another one", w, i)
				}
				if r.IntN(4) == 0 {
					txn, err := im.Restoring(context.Background(), must(im.Info()).Seq-min(3, must(im.Info()).Seq-1), []Path{must(Clean(p))})
					if err == nil {
						_, err = im.Commit(context.Background(), txn)
					}
					if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrVersionConflict) {
						t.Error(err)
					}
				}
			}
		})
	}
	committers.Wait()
	stop.Store(true)
	collected.Wait()
	t.Logf("%d commits, %d dropped, %d chunks freed", must(im.Info()).Seq, dropped, freed)
	if freed == 0 || dropped == 0 {
		t.Error("nothing was collected")
	}
	gc(t, im, GCOptions{})
	if s := must(im.Sizes(t.Context())); s.Unused != 0 || s.Pending != 0 || s.Commits != 1 {
		t.Errorf("%+v", s)
	}
	snapshot(t, im) // reads everything
	im.Close()
	wantClean(t, path)
}

// A stage keeps what it found in the image, whatever is collected before its commit.
func TestGCKeepsWhatStagesShare(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	body := lines(1000)
	mustDo(t, im, put("f", body))
	s := im.Stage(t.Context())
	c := must(s.Add(strings.NewReader(body)))
	pending := im.Stage(t.Context())
	p := must(pending.Add(strings.NewReader(string(randomBytes(3, 2*stageBytes)))))
	mustDo(t, im, remove("f"))
	gc(t, im, GCOptions{})
	mustDo(t, im, put("other", "x"))
	gc(t, im, GCOptions{})
	must(im.Commit(t.Context(), Txn{Stage: s, Changes: []Change{{Op: OpPut, Path: mustPath(t, "again"), Content: c}}}))
	must(im.Commit(t.Context(), Txn{Stage: pending, Changes: []Change{{Op: OpPut, Path: mustPath(t, "p"), Content: p}}}))
	if text(t, im, "again") != body || text(t, im, "p") != string(randomBytes(3, 2*stageBytes)) {
		t.Error("it is another one")
	}
	// One that is given up without a word does not keep it for ever.
	func() {
		s := im.Stage(t.Context())
		must(s.Add(strings.NewReader(body)))
	}()
	mustDo(t, im, remove("again"))
	for i := 0; ; i++ {
		runtime.GC()
		gc(t, im, GCOptions{})
		if must(im.Sizes(t.Context())).Unused == 0 {
			break
		}
		if i == 100 {
			t.Fatal("it is still kept")
		}
	}
	verify(t, im)
	im.Close()
	wantClean(t, path)
}

// Two chunks with the same bytes: the index leads to the one that stays.
func TestGCIndexesTheOther(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	body := string(randomBytes(1, 3000))
	a, b := im.Stage(t.Context()), im.Stage(t.Context())
	ca, cb := must(a.Add(strings.NewReader(body))), must(b.Add(strings.NewReader(body)))
	for _, c := range []struct {
		s *Stage
		c Content
		p string
	}{{a, ca, "a"}, {b, cb, "b"}} {
		must(im.Commit(t.Context(), Txn{Stage: c.s, Changes: []Change{{Op: OpPut, Path: mustPath(t, c.p), Content: c.c}}}))
	}
	if n := count(t, im, bucketChunks); n != 2 {
		t.Fatalf("there are %d chunks", n)
	}
	mustDo(t, im, remove("a"))
	mustDo(t, im, put("x", "x"))
	if r := gc(t, im, GCOptions{}); r.Chunks != 1 {
		t.Errorf("%+v", r)
	}
	mustDo(t, im, put("c", body))
	if n := count(t, im, bucketChunks); n != 1 || text(t, im, "b") != body {
		t.Errorf("there are %d chunks", n)
	}
	verify(t, im)
	im.Close()
	wantClean(t, path)
}

// What was stored by stages that were lost is freed, and what is damaged stays.
func TestGCOrphans(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	mustDo(t, im, put("f", lines(100)), put("g", lines(500)))
	var good, bad []byte
	if err := im.db.Update(func(tx *bolt.Tx) error {
		good, bad = uintKey(1000), uintKey(1001)
		sum := sumOf([]byte("orphan"))
		if err := tx.Bucket(bucketChunks).Put(good, im.packer.pack(1000, sum, []byte("orphan"))); err != nil {
			return err
		}
		return tx.Bucket(bucketChunks).Put(bad, []byte("no chunk at all"))
	}); err != nil {
		t.Fatal(err)
	}
	if s := must(im.Sizes(t.Context())); s.Unused == 0 {
		t.Errorf("%+v", s)
	}
	gc(t, im, GCOptions{KeepCommits: 100})
	if err := im.view("test", func(tx *bolt.Tx) error {
		if b := tx.Bucket(bucketChunks); b.Get(good) != nil || b.Get(bad) == nil {
			t.Error("the good one stays, or the bad one is gone")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	// What is needed and cannot be told is no reason to free it.
	big := string(randomBytes(1, 100<<20))
	mustDo(t, im, put("big", big))
	list := must(im.Lstat(mustPath(t, "big"))).body.list
	if list == nil {
		t.Fatal("it has no list")
	}
	edit(t, im, bucketChunks, uintKey(list.id), flip)
	chunks := count(t, im, bucketChunks)
	_, err := im.GC(t.Context(), GCOptions{})
	wantKind(t, err, ErrCorrupt)
	if n := count(t, im, bucketChunks); n != chunks {
		t.Errorf("%d of %d chunks are left", n, chunks)
	}
	edit(t, im, bucketChunks, uintKey(list.id), flip)
	edit(t, im, bucketTree, []byte("f"), flip)
	_, err = im.GC(t.Context(), GCOptions{})
	wantKind(t, err, ErrCorrupt)
	edit(t, im, bucketTree, []byte("f"), flip)
	im.Close()
	im = must(Open(path, OpenOptions{ReadOnly: true}))
	defer im.Close()
	_, err = im.GC(t.Context(), GCOptions{})
	wantKind(t, err, ErrReadOnly)
	if r := gc(t, im, GCOptions{DryRun: true}); r.Commits != 2 {
		t.Errorf("%+v", r)
	}
}

func TestGCAdmit(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	refused := errors.New("refused")
	asked := 0
	o := GCOptions{Admit: func(r GCResult) error { asked++; return refused }}
	if _, err := im.GC(t.Context(), o); err != nil || asked != 0 {
		t.Errorf("asked %d times for nothing (%v)", asked, err)
	}
	versions(t, im, 3)
	if _, err := im.GC(t.Context(), o); err != refused || asked != 1 || must(im.Sizes(t.Context())).Oldest != 1 {
		t.Errorf("%v, asked %d times", err, asked)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := im.GC(ctx, GCOptions{})
	wantKind(t, err, context.Canceled)
	if r := gc(t, im, GCOptions{}); r.Commits != 3 {
		t.Errorf("%+v", r)
	}
}

// Commits behind one that somebody is going to build on stay.
func TestHold(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	versions(t, im, 6) // v2 to v7
	release := im.Hold(4)
	s := im.Stage(t.Context())
	s.Hold(5)
	oldest := func() uint64 { return gc(t, im, GCOptions{Budget: 1}).Sizes.Oldest }
	if n := oldest(); n != 5 {
		t.Errorf("v%d is the oldest", n)
	}
	release()
	release()
	if n := oldest(); n != 6 {
		t.Errorf("v%d is the oldest", n)
	}
	if _, err := im.Commit(t.Context(), Txn{Base: 5, Stage: s, Changes: []Change{{Op: OpMkdir, Path: mustPath(t, "d")}}}); err != nil {
		t.Error(err)
	}
	if n := oldest(); n != 8 {
		t.Errorf("v%d is the oldest", n)
	}
}

// Trim keeps the history within its budget, and says when checkpoints keep it from that.
func TestTrim(t *testing.T) {
	im, path := newImage(t, CreateOptions{QuotaBytes: 1 << 20})
	ctx := t.Context()
	trims := 0
	for i := range 200 {
		mustDo(t, im, put("f", string(randomBytes(byte(i), 100_000))), put("g", fmt.Sprint(i)))
		if im.TrimDue() {
			trims++
		}
		must(im.Trim(ctx, nil))
		if s := must(im.Sizes(ctx)); s.History > s.Budget+s.Budget/50 || s.Budget != 1<<20 {
			t.Fatalf("round %d: %+v", i, s)
		}
	}
	if s := must(im.Sizes(ctx)); trims == 0 || trims > 180 || s.History < s.Budget/2 {
		t.Errorf("%d times, %+v", trims, s)
	}
	if info := must(im.Info()); info.FileSize > 9<<20 {
		t.Errorf("the file has %d bytes", info.FileSize)
	}
	must(im.Checkpoint(ctx, "held", ""))
	var err error
	for i := 0; err == nil && i < 40; i++ {
		_, err = do(t, im, Txn{}, put("f", string(randomBytes(byte(i), 100_001))))
		must(im.Trim(ctx, nil))
	}
	wantKind(t, err, ErrQuota)
	s := must(im.Sizes(ctx))
	if !strings.Contains(err.Error(), fmt.Sprint(s.Pinned)) || !strings.Contains(err.Error(), "dropping a checkpoint") {
		t.Errorf("%v; %+v", err, s)
	}
	_, err = im.Checkpoint(ctx, "another", "")
	wantKind(t, err, ErrQuota)
	if !strings.Contains(err.Error(), fmt.Sprint(s.Budget)) || len(must(im.Checkpoints())) != 1 {
		t.Error(err)
	}
	// What stores nothing goes on.
	mustDo(t, im, meta("f", 0o600, time.Time{}), put("small", "x"), link("l", "f"), mkdir("d"))
	mustDo(t, im, put("copied", text(t, im, "f")))
	mustDo(t, im, remove("copied"), remove("f"))
	txn, err := im.Restoring(ctx, must(im.Revision("held")), []Path{mustPath(t, "f")})
	apply(t, im, txn, err)
	must(im.Trim(ctx, nil))
	_, err = do(t, im, Txn{DryRun: true}, put("new", lines(1000)))
	wantKind(t, err, ErrQuota)
	if err := im.DropCheckpoint("held"); err != nil {
		t.Fatal(err)
	}
	mustDo(t, im, put("f", lines(1000)))
	must(im.Trim(ctx, nil))
	if s := must(im.Sizes(ctx)); s.History > s.Budget || s.Pinned != 0 {
		t.Errorf("%+v", s)
	}
	verify(t, im)
	im.Close()
	wantClean(t, path)
	// A budget of its own.
	im = must(Open(path, OpenOptions{HistoryBytes: 50_000}))
	defer im.Close()
	mustDo(t, im, put("last", "x"))
	must(im.Trim(ctx, nil))
	if s := must(im.Sizes(ctx)); s.History > 50_000 || s.Budget != 50_000 {
		t.Errorf("%+v", s)
	}
}

// On a full disk a collection does what it can, and leaves a whole image.
func TestGCOnAFullDisk(t *testing.T) {
	onSmallDisk(t, "64m", func(t *testing.T, dir string) {
		path := filepath.Join(dir, "a.vdisk")
		im := must(Create(path, CreateOptions{}))
		defer func() { im.Close() }()
		for i := range 30 {
			mustDo(t, im, put("f", string(randomBytes(byte(i), 1<<20))))
		}
		giveBack := leaveRoom(t, dir, 0)
		_, err := im.GC(t.Context(), GCOptions{})
		if err != nil {
			wantKind(t, err, ErrNoSpace)
		}
		giveBack()
		gc(t, im, GCOptions{})
		if s := must(im.Sizes(t.Context())); s.Commits != 1 || s.Unused != 0 || text(t, im, "f") != string(randomBytes(29, 1<<20)) {
			t.Errorf("%+v", s)
		}
		verify(t, im)
		im.Close()
		wantClean(t, path)
	})
}

// A commit in the middle of a collection refers to nothing that goes, whichever way it
// comes to its contents, and what it began to use before that was decided stays.
func TestGCWhileCommitting(t *testing.T) {
	body, source := lines(700), lines(800)
	var read func() // its source
	uses := map[string]func(t *testing.T, im *Image, old Node) error{
		"stage": func(t *testing.T, im *Image, _ Node) error {
			_, err := do(t, im, Txn{}, put("new", body))
			return err
		},
		"node": func(t *testing.T, im *Image, old Node) error {
			_, err := im.Commit(t.Context(), Txn{Changes: []Change{{Op: OpPut, Path: mustPath(t, "new"), Content: old.Content()}}})
			return err
		},
		"source": func(t *testing.T, im *Image, _ Node) error {
			c, err := do(t, im, Txn{Source: []byte(source)}, put("new", "x"))
			if err == nil {
				read = func() {
					if got, ok, err := im.Source(c.Seq); err != nil || !ok || string(got) != source {
						t.Errorf("its source is %d bytes, %v", len(got), err)
					}
				}
			}
			return err
		},
	}
	for name, use := range uses {
		for _, decided := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " decided ", decided), func(t *testing.T) {
				im, path := newImage(t, CreateOptions{})
				read = nil
				if _, err := do(t, im, Txn{Source: []byte(source)}, put("f", body)); err != nil {
					t.Fatal(err)
				}
				old := must(im.Lstat(mustPath(t, "f")))
				mustDo(t, im, remove("f"))
				mustDo(t, im, put("x", "x"))
				c := &collector{im: im, ctx: t.Context(), o: &GCOptions{}}
				if err := c.survey(); err != nil {
					t.Fatal(err)
				}
				if decided {
					c.decide()
				}
				err := use(t, im, old)
				if !decided {
					c.decide()
				}
				for _, step := range []func() error{c.dropCommits, c.indexOthers, c.sweep} {
					if err := step(); err != nil {
						t.Fatal(err)
					}
				}
				c.end()
				if name == "node" && decided {
					wantKind(t, err, ErrNotFound)
				} else if err != nil {
					t.Fatal(err)
				}
				snapshot(t, im)
				verify(t, im)
				if read != nil {
					read()
				}
				im.Close()
				wantClean(t, path)
			})
		}
	}
}
