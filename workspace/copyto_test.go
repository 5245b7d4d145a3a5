package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"pgregory.net/rapid"
)

// copyOf makes a copy and opens it.
func copyOf(t testing.TB, im *Image, o CopyOptions) *Image {
	t.Helper()
	path := filepath.Join(t.TempDir(), "copy.vdisk")
	info, err := im.CopyTo(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	wantClean(t, path)
	to := must(Open(path, OpenOptions{}))
	t.Cleanup(func() { to.Close() })
	if got := must(to.Info()); got != info {
		t.Errorf("the copy is %+v, CopyTo said %+v", got, info)
	}
	return to
}

// workedImage has all kinds of storage, a history and checkpoints.
func workedImage(t testing.TB) *Image {
	t.Helper()
	im, _ := newImage(t, CreateOptions{Label: "first"})
	big := string(randomBytes(1, 90<<20))
	mustDo(t, im, put("a", "short"), put("d/b", lines(5000)), link("l", "a"))
	mustDo(t, im, put("big", big))
	if must(im.Lstat(mustPath(t, "big"))).body.list == nil {
		t.Fatal("the large file has no list of chunks")
	}
	must(im.Checkpoint(t.Context(), "early", ""))
	mustDo(t, im, put("big", big[:45<<20]+"edited"+big[45<<20:]), put("twin", lines(5000)))
	if _, err := do(t, im, Txn{Source: []byte(lines(300))}, remove("d"), put("a", "other")); err != nil {
		t.Fatal(err)
	}
	must(im.Checkpoint(t.Context(), "late", "with a message"))
	mustDo(t, im, put("big", "small now"), put("d/again", lines(50)))
	return im
}

func TestCopyTo(t *testing.T) {
	im := workedImage(t)
	head := must(im.Info())
	s := im.Stage(t.Context()) // what is pending is not copied
	must(s.Add(bytes.NewReader(randomBytes(2, 20<<20))))
	defer s.Discard()
	for seq := uint64(0); seq <= head.Seq; seq++ {
		t.Run(fmt.Sprint("v", seq), func(t *testing.T) {
			var done, total int64
			to := copyOf(t, im, CopyOptions{Seq: seq, Progress: func(d, n int64) {
				if d > n || d < done {
					t.Errorf("progress %d of %d after %d", d, n, done)
				}
				done, total = d, n
			}})
			if done != total || done == 0 {
				t.Errorf("progress ended at %d of %d", done, total)
			}
			verify(t, to)
			verifyChain(t, to)
			sameAt(t, im, to, max(seq, 1))
			if got, want := must(to.Info()).UUID, head.UUID; got != want {
				t.Errorf("uuid %s, want %s", got, want)
			}
			mustDo(t, to, put("after", lines(5000))) // it can be worked on
			verify(t, to)
		})
	}
}

// sameAt compares a copy with what it is a copy of, as of commit seq.
func sameAt(t testing.TB, im, to *Image, seq uint64) {
	t.Helper()
	if seq == 1 {
		seq = must(to.Info()).Seq
	}
	effects, err := im.Between(t.Context(), seq, must(im.Info()).Seq, nil)
	if err != nil {
		t.Fatal(err)
	}
	changed := map[Path]bool{}
	for _, e := range effects {
		changed[e.Path] = true
		n, err := to.Lstat(e.Path)
		if e.Before == nil {
			wantNone(t, err)
		} else if err != nil || !n.same(e.Before) || n.Version != e.Before.Version {
			t.Errorf("%v is %+v, want %+v (%v)", e.Path, n, e.Before, err)
		}
	}
	if err := im.Walk(t.Context(), Path{}, func(e Entry) error {
		if n, err := to.Lstat(e.Path); !changed[e.Path] && (err != nil || !n.same(&e.Node) || n.Version != e.Node.Version && e.Node.Version <= seq) {
			t.Errorf("%v is %+v, want %+v (%v)", e.Path, n, e.Node, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var want []Checkpoint
	for _, c := range must(im.Checkpoints()) {
		if c.Seq <= seq {
			want = append(want, c)
		}
	}
	if got := must(to.Checkpoints()); !slices.Equal(got, want) {
		t.Errorf("checkpoints %+v, want %+v", got, want)
	}
	ours, theirs := must(im.Log(0, int(seq))), must(to.Log(0, 1<<20))
	for i := range max(len(ours), len(theirs)) {
		if i >= len(ours) || i >= len(theirs) || ours[i].ID != theirs[i].ID {
			t.Fatalf("%d commits, want %d, or another one", len(theirs), len(ours))
		}
	}
	if a, b := must(im.Info()), must(to.Info()); seq == a.Seq && a.Commit == b.Commit {
		wantEqualDigests(t, im, to)
	}
}

func wantNone(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrNotDirectory) {
		t.Errorf("error is %v, want one that says that nothing is there", err)
	}
}

func wantEqualDigests(t testing.TB, a, b *Image) {
	t.Helper()
	for _, digest := range []func(*Image, context.Context) ([32]byte, uint64, error){(*Image).TreeDigest, (*Image).ContentDigest} {
		x, n, err := digest(a, t.Context())
		y, m, err2 := digest(b, t.Context())
		if x != y || n != m || err != nil || err2 != nil {
			t.Errorf("digest %x of v%d, want %x of v%d (%v, %v)", y, m, x, n, err, err2)
		}
	}
}

// A fresh copy is another disk with the same history.
func TestCopyToFresh(t *testing.T) {
	im := workedImage(t)
	f := Fence{Install: [16]byte{1}, Token: 7}
	if err := im.RaiseFence(f); err != nil {
		t.Fatal(err)
	}
	if got := must(copyOf(t, im, CopyOptions{}).Fence()); got != f {
		t.Errorf("the fence is %+v", got)
	}
	label := "second"
	to := copyOf(t, im, CopyOptions{Fresh: true, Label: &label})
	a, b := must(im.Info()), must(to.Info())
	if a.UUID == b.UUID || b.Label != label || !b.Created.After(a.Created) || must(to.Fence()) != (Fence{}) || a.Commit != b.Commit {
		t.Errorf("%+v is a fresh copy of %+v", b, a)
	}
	sameAt(t, im, to, a.Seq)
	long := strings.Repeat("x", maxLabel+1)
	_, err := im.CopyTo(t.Context(), filepath.Join(t.TempDir(), "x"), CopyOptions{Label: &long})
	wantKind(t, err, ErrTooLarge)
}

// What was removed from the disk and its history takes no room in a copy.
func TestCopyToCompacts(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	for i := range 10 {
		s := im.Stage(t.Context())
		must(s.Add(bytes.NewReader(randomBytes(byte(i), 10<<20))))
		if err := s.Discard(); err != nil {
			t.Fatal(err)
		}
	}
	mustDo(t, im, put("a", "x"))
	to := copyOf(t, im, CopyOptions{})
	if was, is := must(os.Stat(path)).Size(), must(to.Info()).FileSize; is > 128<<10 || was < 8<<20 {
		t.Errorf("%d bytes became %d", was, is)
	}
}

func TestCopyToFile(t *testing.T) {
	im := workedImage(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	open := func() *os.File { return must(os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)) }
	f := open()
	if _, err := im.CopyTo(t.Context(), "elsewhere", CopyOptions{File: f}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the file is still open: %v", err)
	}
	wantClean(t, path)
	to := must(Open(path, OpenOptions{}))
	wantEqualDigests(t, im, to)
	to.Close()
	_, err := im.CopyTo(t.Context(), "", CopyOptions{File: open()})
	wantKind(t, err, ErrExists)
	wantClean(t, path)
	// A copy that failed leaves the file empty.
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = im.CopyTo(ctx, "", CopyOptions{File: open(), Progress: func(done, _ int64) {
		if done > 20<<20 {
			cancel()
		}
	}})
	wantKind(t, err, context.Canceled)
	if n := must(os.Stat(path)).Size(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}

func TestCopyToFails(t *testing.T) {
	im := workedImage(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "c.vdisk")
	nothing := func(t *testing.T) {
		t.Helper()
		if left := must(os.ReadDir(dir)); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	}
	t.Run("no such version", func(t *testing.T) {
		_, err := im.CopyTo(t.Context(), path, CopyOptions{Seq: 99})
		wantKind(t, err, ErrNotFound)
		nothing(t)
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := im.CopyTo(ctx, path, CopyOptions{Progress: func(done, total int64) {
			if done > 10<<20 {
				cancel()
			}
		}})
		wantKind(t, err, context.Canceled)
		nothing(t)
	})
	t.Run("no directory", func(t *testing.T) {
		_, err := im.CopyTo(t.Context(), filepath.Join(dir, "no", "c.vdisk"), CopyOptions{})
		wantKind(t, err, os.ErrNotExist)
	})
	t.Run("exists", func(t *testing.T) {
		taken := filepath.Join(t.TempDir(), "taken")
		if err := os.Symlink("nowhere", taken); err != nil {
			t.Skip(err)
		}
		_, err := im.CopyTo(t.Context(), taken, CopyOptions{})
		wantKind(t, err, ErrExists)
	})
	for _, damage := range []struct {
		name   string
		bucket []byte
		key    func(*bolt.Bucket) []byte
	}{
		{"chunk", bucketChunks, func(b *bolt.Bucket) []byte { k, _ := b.Cursor().Last(); return k }},
		{"node", bucketTree, func(b *bolt.Bucket) []byte { k, _ := b.Cursor().First(); return k }},
		{"commit", bucketCommits, func(b *bolt.Bucket) []byte { k, _ := b.Cursor().Last(); return k }},
		{"checkpoint", bucketRefs, func(b *bolt.Bucket) []byte { k, _ := b.Cursor().Last(); return k }},
	} {
		t.Run(damage.name, func(t *testing.T) {
			var key []byte
			if err := im.view("test", func(tx *bolt.Tx) error {
				key = bytes.Clone(damage.key(tx.Bucket(damage.bucket)))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			edit(t, im, damage.bucket, key, flip)
			_, err := im.CopyTo(t.Context(), path, CopyOptions{})
			wantKind(t, err, ErrCorrupt)
			nothing(t)
			edit(t, im, damage.bucket, key, flip)
		})
	}
}

// Commits go on beside a copy, which has none of them.
func TestCopyToBesideCommits(t *testing.T) {
	im := workedImage(t)
	seq := must(im.Info()).Seq
	stop, ended := make(chan struct{}), make(chan error)
	path := filepath.Join(t.TempDir(), "c.vdisk")
	went := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			mustDo(t, im, put(fmt.Sprint("more/", i%20), string(randomBytes(byte(i), 3000))), remove("more"))
			mustDo(t, im, put("twin", string(randomBytes(byte(i), 300_000))))
			if i == 0 {
				close(went)
			}
		}
	}()
	first := true
	info, err := im.CopyTo(t.Context(), path, CopyOptions{Progress: func(int64, int64) {
		if first {
			<-went // the copy holds what was there before
			first = false
		}
	}})
	close(stop)
	<-ended
	if err != nil || info.Seq != seq {
		t.Errorf("v%d, want v%d (%v)", info.Seq, seq, err)
	}
	wantClean(t, path)
	to := must(Open(path, OpenOptions{}))
	defer to.Close()
	sameAt(t, im, to, seq)
}

// Of random histories, every version can be copied.
func TestCopyToModel(t *testing.T) {
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
		defer im.Close()
		states := []map[string]string{nil, snapshot(t, im)}
		for range rapid.IntRange(1, 8).Draw(rt, "commits") {
			steps := rapid.SliceOfN(rapid.Custom(drawStep), 1, 4).Draw(rt, "steps")
			if c, err := do(t, im, Txn{}, steps...); err == nil && c.Seq == uint64(len(states)) {
				states = append(states, snapshot(t, im))
			}
		}
		seq := rapid.IntRange(1, len(states)-1).Draw(rt, "seq")
		target := path + ".copy"
		defer os.Remove(target)
		if _, err := im.CopyTo(t.Context(), target, CopyOptions{Seq: uint64(seq), Fresh: rapid.Bool().Draw(rt, "fresh")}); err != nil {
			rt.Fatal(err)
		}
		if r, err := Check(t.Context(), target, CheckOptions{Wait: time.Second}); err != nil || len(r.Findings) > 0 || r.Unused > 0 {
			rt.Fatalf("fsck: %+v, %v", r, err)
		}
		to := must(Open(target, OpenOptions{}))
		defer to.Close()
		got := snapshot(t, to)
		if len(got) != len(states[seq]) {
			rt.Fatalf("%d paths, want %d", len(got), len(states[seq]))
		}
		for p, s := range states[seq] {
			if got[p] != s {
				rt.Fatalf("%q is another one", p)
			}
		}
		verify(t, to)
	})
}

// On a full disk there is no copy, and nothing of it.
func TestCopyToFullDisk(t *testing.T) {
	onSmallDisk(t, "64m", func(t *testing.T, dir string) {
		im, _ := newImage(t, CreateOptions{})
		mustDo(t, im, put("big", string(randomBytes(1, 80<<20))))
		_, err := im.CopyTo(t.Context(), filepath.Join(dir, "c"), CopyOptions{})
		wantKind(t, err, ErrNoSpace)
		f := must(os.OpenFile(filepath.Join(dir, "f"), os.O_RDWR|os.O_CREATE, 0o600))
		_, err = im.CopyTo(t.Context(), "", CopyOptions{File: f})
		wantKind(t, err, ErrNoSpace)
		if must(os.Stat(filepath.Join(dir, "f"))).Size() != 0 || len(must(os.ReadDir(dir))) != 1 {
			t.Error("something is left of it")
		}
		if text(t, im, "big") != string(randomBytes(1, 80<<20)) {
			t.Error("the disk itself is another one")
		}
	})
}
