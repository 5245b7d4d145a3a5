package workspace

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	bolt "go.etcd.io/bbolt"
)

// count is the number of keys in a bucket.
func count(t testing.TB, im *Image, bucket []byte) (n int) {
	t.Helper()
	if err := im.db.View(func(tx *bolt.Tx) error {
		n = tx.Bucket(bucket).Inspect().KeyN
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

func randomBytes(seed byte, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func commitContents(t testing.TB, im *Image, s *Stage, contents map[string]Content) {
	t.Helper()
	var changes []Change
	for p, c := range contents {
		changes = append(changes, Change{Op: OpPut, Path: mustPath(t, p), Content: c})
	}
	if _, err := im.Commit(context.Background(), Txn{Stage: s, Changes: changes}); err != nil {
		t.Fatal(err)
	}
}

func TestContentsAreStoredOnce(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	body := string(randomBytes(1, 100_000))
	mustDo(t, im, put("a", body), put("b", body))
	mustDo(t, im, put("c", body))
	if n := count(t, im, bucketChunks); n != 1 {
		t.Errorf("%d chunks", n)
	}
	// Short contents take no chunk at all.
	mustDo(t, im, put("d", strings.Repeat("x", maxInline)))
	if n := count(t, im, bucketChunks); n != 1 {
		t.Errorf("%d chunks", n)
	}
	// One byte in the middle of a large file: the rest is shared.
	big := randomBytes(2, 8<<20)
	mustDo(t, im, put("big", string(big)))
	before := count(t, im, bucketChunks)
	big[4<<20]++
	mustDo(t, im, put("big2", string(big)))
	if n := count(t, im, bucketChunks) - before; n < 1 || n > 4 {
		t.Errorf("one byte cost %d chunks of %d", n, before)
	}
	// One byte inserted, too.
	big = append(big[:4<<20:4<<20], append([]byte{'x'}, big[4<<20:]...)...)
	before = count(t, im, bucketChunks)
	mustDo(t, im, put("big3", string(big)))
	if n := count(t, im, bucketChunks) - before; n < 1 || n > 4 {
		t.Errorf("an inserted byte cost %d chunks of %d", n, before)
	}
	verify(t, im)
}

// Chunks that went to the image ahead of the commit are found again by the
// stage itself, and by nobody else.
func TestStageSharesWithItselfOnly(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	ctx := context.Background()
	body := randomBytes(1, 20<<20)
	a, b := im.Stage(ctx), im.Stage(ctx)
	ca := must(a.Add(bytes.NewReader(body)))
	again := must(a.Add(bytes.NewReader(body)))
	if ca.refs[0].id != again.refs[0].id {
		t.Error("a stage stores its own content twice")
	}
	cb := must(b.Add(bytes.NewReader(body)))
	if ca.refs[0].id == cb.refs[0].id {
		t.Error("a stage builds on chunks that another may take away")
	}
	if err := a.Discard(); err != nil {
		t.Fatal(err)
	}
	commitContents(t, im, b, map[string]Content{"b": cb})
	if text(t, im, "b") != string(body) {
		t.Error("the content is gone")
	}
	verify(t, im)
}

func TestDiscard(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	s := im.Stage(context.Background())
	must(s.Add(bytes.NewReader(randomBytes(1, 20<<20))))
	if count(t, im, bucketPending) == 0 {
		t.Fatal("nothing was stored ahead")
	}
	for range 2 {
		if err := s.Discard(); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(t, im, bucketChunks); n != 0 {
		t.Errorf("%d chunks", n)
	}
	verify(t, im)
}

// What a commit does not refer to goes with it.
func TestCommitDropsWhatItDoesNotUse(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	s := im.Stage(context.Background())
	must(s.Add(bytes.NewReader(randomBytes(1, 10<<20)))) // to the image
	used := must(s.Add(bytes.NewReader(randomBytes(2, 10<<20))))
	must(s.Add(bytes.NewReader(randomBytes(3, 1<<20)))) // stays in memory
	commitContents(t, im, s, map[string]Content{"a": used})
	if n := count(t, im, bucketChunks); n != len(used.refs) {
		t.Errorf("%d chunks, %d are used", n, len(used.refs))
	}
	if err := s.Discard(); err != nil {
		t.Error(err)
	}
	if got := text(t, im, "a"); got != string(randomBytes(2, 10<<20)) {
		t.Error("the content is gone")
	}
	verify(t, im)
}

func TestOpenSweepsWhatWasStaged(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	mustDo(t, im, put("a", string(randomBytes(1, 1<<20))))
	chunks := count(t, im, bucketChunks)
	must(im.Stage(context.Background()).Add(bytes.NewReader(randomBytes(2, 20<<20))))
	if count(t, im, bucketChunks) <= chunks {
		t.Fatal("nothing was stored ahead")
	}
	highest := func() (id uint64) {
		im.db.View(func(tx *bolt.Tx) error {
			k, _ := tx.Bucket(bucketChunks).Cursor().Last()
			id = binary.BigEndian.Uint64(k)
			return nil
		})
		return id
	}
	last := highest()
	im = reopen(t, im, path)
	if n := count(t, im, bucketChunks); n != chunks {
		t.Errorf("%d chunks, want %d", n, chunks)
	}
	mustDo(t, im, put("b", string(randomBytes(2, 1<<20))))
	verify(t, im)
	if id := highest(); id <= last {
		t.Errorf("id %d is used again, %d was given out", id, last)
	}
}

// More chunks than fit in a node go into a list of their own.
func TestListedChunks(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	body := randomBytes(1, 100<<20)
	s := im.Stage(context.Background())
	c := must(s.Add(bytes.NewReader(body)))
	if len(c.refs) <= maxRefs || c.body.list == nil || len(c.body.refs) != 0 {
		t.Fatalf("%d chunks, list %v", len(c.refs), c.body.list)
	}
	commitContents(t, im, s, map[string]Content{"big": c})
	im = reopen(t, im, path)
	f := must(im.Open(mustPath(t, "big")))
	r := f.Reader()
	if n, err := io.Copy(&comparing{want: body}, r); err != nil || n != int64(len(body)) {
		t.Errorf("%d, %v", n, err)
	}
	p, err := f.Bytes(77<<20, 1000)
	if err != nil || !bytes.Equal(p.Data, body[77<<20:77<<20+len(p.Data)]) || len(p.Data) < 997 {
		t.Errorf("%d bytes, %v", len(p.Data), err)
	}
	verify(t, im)
}

type comparing struct{ want []byte }

func (c *comparing) Write(p []byte) (int, error) {
	if !bytes.HasPrefix(c.want, p) {
		return 0, errors.New("other bytes")
	}
	c.want = c.want[len(p):]
	return len(p), nil
}

func TestStageErrors(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	broken := errors.New("broken pipe")
	for name, r := range map[string]io.Reader{
		"at once":         iotest.ErrReader(broken),
		"after a little":  io.MultiReader(strings.NewReader("hello"), iotest.ErrReader(broken)),
		"after a lot":     io.MultiReader(bytes.NewReader(randomBytes(1, 1<<20)), iotest.ErrReader(broken)),
		"after 128 KiB":   io.MultiReader(bytes.NewReader(randomBytes(1, maxSingle)), iotest.ErrReader(broken)),
		"after 128 KiB+1": io.MultiReader(bytes.NewReader(randomBytes(1, maxSingle+1)), iotest.ErrReader(broken)),
	} {
		t.Run(name, func(t *testing.T) {
			s := im.Stage(context.Background())
			defer s.Discard()
			if _, err := s.Add(r); !errors.Is(err, broken) {
				t.Errorf("got %v", err)
			}
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := im.Stage(ctx)
	cancel()
	if _, err := s.Add(strings.NewReader("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	verify(t, im)
}

func TestSizesAroundTheLimits(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	for _, n := range []int{0, 1, maxInline - 1, maxInline, maxInline + 1, 4096, maxSingle - 1, maxSingle, maxSingle + 1, maxChunk, maxChunk + 1, 2 * maxChunk} {
		for _, r := range []io.Reader{bytes.NewReader(randomBytes(1, n)), iotest.OneByteReader(bytes.NewReader(randomBytes(1, n)))} {
			s := im.Stage(context.Background())
			c, err := s.Add(r)
			if err != nil || c.Size != int64(n) {
				t.Fatalf("%d bytes: %d, %v", n, c.Size, err)
			}
			commitContents(t, im, s, map[string]Content{"f": c})
			if text(t, im, "f") != string(randomBytes(1, n)) {
				t.Errorf("%d bytes come back as others", n)
			}
		}
	}
	verify(t, im)
}

// Memory does not grow with the file.
func TestStageMemory(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	s := im.Stage(context.Background())
	size := int64(200 << 20)
	if soak() {
		size = 2 << 30
	}
	if raceDetector {
		t.Skip("the race detector has a heap of its own")
	}
	runtime.GC()
	var idle runtime.MemStats
	runtime.ReadMemStats(&idle)
	peak := uint64(0)
	r := io.LimitReader(rand.NewChaCha8([32]byte{9}), size)
	watched := readerFunc(func(p []byte) (int, error) {
		n, err := r.Read(p)
		var m runtime.MemStats
		if rand.IntN(64) == 0 {
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapInuse)
		}
		return n, err
	})
	c, err := s.Add(watched)
	if err != nil {
		t.Fatal(err)
	}
	commitContents(t, im, s, map[string]Content{"big": c})
	grown := int64(peak-idle.HeapInuse) >> 20
	if t.Logf("%d MiB above idle", grown); grown > 64 {
		t.Error("that is too much")
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
