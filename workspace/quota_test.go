package workspace

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestQuotaModel commits random changes to a disk whose quota is small and is
// changed on the way. A commit is accepted if and only if what it leaves is
// within the quota, or is no more than what was there; the totals are those of
// the model after each.
func TestQuotaModel(t *testing.T) {
	dir := t.TempDir()
	runs, refused, accepted, shrunk := 0, 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		path := filepath.Join(dir, fmt.Sprintf("%d.vdisk", runs))
		defer os.Remove(path)
		im, err := Create(path, CreateOptions{QuotaBytes: 1000, QuotaEntries: 6})
		if err != nil {
			rt.Fatal(err)
		}
		defer im.Close()
		now := model{}
		for range rapid.IntRange(5, 30).Draw(rt, "commits") {
			if rapid.IntRange(0, 7).Draw(rt, "new quota") == 0 {
				im.identity.quotaBytes = rapid.SampledFrom([]int64{1, 299, 300, 301, 1000, 5000}).Draw(rt, "bytes")
				im.identity.quotaEntries = rapid.SampledFrom([]int64{1, 3, 6, 9}).Draw(rt, "entries")
			}
			steps := rapid.SliceOfN(rapid.Custom(drawQuotaStep), 1, 4).Draw(rt, "steps")
			next, want := maps.Clone(now), error(nil)
			for _, s := range steps {
				if want = next.apply(s); want != nil {
					break
				}
			}
			if want == nil {
				want = overQuota(now, next, im.identity.quotaBytes, im.identity.quotaEntries)
			}
			if overStage(now, steps, im.identity.quotaBytes) {
				want = ErrQuota
			}
			_, err := do(t, im, Txn{}, steps...)
			if !errors.Is(err, want) || (err == nil) != (want == nil) {
				rt.Fatalf("got %v, want %v", err, want)
			}
			switch bytes, _ := next.totals(); {
			case errors.Is(err, ErrQuota):
				refused++
			case err == nil && bytes > im.identity.quotaBytes:
				shrunk++
			case err == nil:
				accepted++
			}
			if err == nil {
				now = next
			}
			compare(rt, t, im, now)
		}
	})
	t.Logf("%d disks: %d commits accepted, %d refused, %d accepted over the quota since they shrink", runs, accepted, refused, shrunk)
	if accepted == 0 || refused == 0 || shrunk == 0 {
		t.Error("a case was never met")
	}
}

// drawQuotaStep makes a change of a size that matters, most often one that is
// valid.
func drawQuotaStep(t *rapid.T) step {
	path := rapid.SampledFrom([]string{"a", "b", "c", "d/a", "d/b", "d/e/f", "g"}).Draw(t, "path")
	size := rapid.SampledFrom([]int{0, 1, 128, 129, 299, 300, 301, 700, 999, 1000, 1001}).Draw(t, "size")
	switch rapid.IntRange(0, 6).Draw(t, "op") {
	case 0:
		return mkdir(path).with(replacing)
	case 1:
		return link(path, strings.Repeat("t", max(size, 1))).with(replacing)
	case 2, 3:
		return remove(path)
	}
	return put(path, strings.Repeat(rapid.SampledFrom([]string{"x", "y"}).Draw(t, "text"), size)).with(replacing)
}

// overStage is the early refusal of contents that alone are too much.
func overStage(now model, steps []step, quota int64) bool {
	held, _ := now.totals()
	total := int64(0)
	for _, s := range steps {
		if s.Op == OpPut {
			total += int64(len(s.text))
		}
	}
	return total > quota && total > held
}

func TestQuota(t *testing.T) {
	const quota, entries = 1000, 4
	body := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct {
		name  string
		first []step
		then  []step
		kind  error
	}{
		{"to the byte", nil, []step{put("a", body(1000))}, nil},
		{"one byte over", nil, []step{put("a", body(600)), put("b", body(401))}, ErrQuota},
		{"one byte over in one file", nil, []step{put("a", body(1001))}, ErrQuota},
		{"frees and uses", []step{put("a", body(900))}, []step{remove("a"), put("b", body(1000))}, nil},
		{"uses and frees", []step{put("a", body(900))}, []step{put("b", body(1000)), remove("a")}, nil},
		{"frees too little", []step{put("a", body(400)), put("b", body(600))}, []step{remove("a"), put("c", body(401))}, ErrQuota},
		{"overwrites by a larger", []step{put("a", body(400)), put("b", body(600))}, []step{put("b", body(601))}, ErrQuota},
		{"overwrites by a smaller", []step{put("a", body(400)), put("b", body(600))}, []step{put("b", body(599))}, nil},
		{"overwrites by the same size", []step{put("a", body(1000))}, []step{put("a", strings.Repeat("y", 1000))}, nil},
		{"equal contents count twice", []step{put("a", body(600))}, []step{put("b", body(600))}, ErrQuota},
		{"a target counts", []step{put("a", body(990))}, []step{link("l", body(11))}, ErrQuota},
		{"a target that fits", []step{put("a", body(990))}, []step{link("l", body(10))}, nil},
		{"entries to the last", nil, []step{mkdir("a/b/c/d")}, nil},
		{"one entry over", nil, []step{mkdir("a/b/c/d/e")}, ErrQuota},
		{"directories that are made on the way count", nil, []step{put("a/b/c/d/e", "x")}, ErrQuota},
		{"a symlink is an entry", []step{mkdir("a/b/c/d")}, []step{link("l", "x")}, ErrQuota},
		{"an empty file is an entry", []step{mkdir("a/b/c/d")}, []step{put("f", "")}, ErrQuota},
		{"one entry for another", []step{mkdir("a/b/c/d")}, []step{remove("a/b/c/d"), put("f", "")}, nil},
		{"overwriting needs no entry", []step{put("a/b/c/d", "x")}, []step{put("a/b/c/d", "y")}, nil},
		{"a tree for a file", []step{mkdir("a/b/c/d")}, []step{put("a", "x").with(replacing), mkdir("b/c/d")}, nil},
		{"a mode needs nothing", []step{put("a/b/c/d", body(1000))}, []step{{Change: Change{Op: OpMeta, Path: must(Clean("a")), Mode: 0o700}}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			im, _ := newImage(t, CreateOptions{QuotaBytes: quota, QuotaEntries: entries})
			if c.first != nil {
				mustDo(t, im, c.first...)
			}
			before := must(im.Info())
			_, err := do(t, im, Txn{}, c.then...)
			if !errors.Is(err, c.kind) || (err == nil) != (c.kind == nil) {
				t.Errorf("got %v, want %v", err, c.kind)
			}
			if after := must(im.Info()); err != nil && (after.Seq != before.Seq || after.Bytes != before.Bytes || after.Entries != before.Entries) {
				t.Errorf("refused, and the disk is %+v, was %+v", after, before)
			}
			verify(t, im)
		})
	}
}

// A stream without an end is given up soon after the quota is reached, and
// nothing of it stays.
func TestStageStopsAtTheQuota(t *testing.T) {
	for _, quota := range []int64{1, 1000, 1 << 20, 20 << 20} {
		im, _ := newImage(t, CreateOptions{QuotaBytes: quota})
		read := int64(0)
		s := im.Stage(t.Context())
		_, err := s.Add(readerFunc(func(p []byte) (int, error) {
			read += int64(len(p))
			for i := range p {
				p[i] = byte(read >> (i % 32)) // neither all equal nor dear to make
			}
			return len(p), nil
		}))
		wantKind(t, err, ErrQuota)
		if read > quota+1<<20 {
			t.Errorf("%d bytes were read for a quota of %d", read, quota)
		}
		if err := s.Discard(); err != nil {
			t.Fatal(err)
		}
		verify(t, im)
	}
}

// A disk whose quota was lowered can take a smaller content for a larger.
func TestShrinkOverTheQuota(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	mustDo(t, im, put("a", string(randomBytes(1, 3<<20))))
	im.identity.quotaBytes = 1 << 20
	_, err := do(t, im, Txn{}, put("a", string(randomBytes(2, 3<<20+1))))
	wantKind(t, err, ErrQuota)
	_, err = do(t, im, Txn{}, put("b", "x"))
	wantKind(t, err, ErrQuota)
	mustDo(t, im, put("a", string(randomBytes(2, 2<<20))))
	verify(t, im)
}
