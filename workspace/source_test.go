package workspace

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

func wantSource(t *testing.T, im *Image, seq uint64, want string) {
	t.Helper()
	got, ok, err := im.Source(seq)
	if err != nil || ok != (want != "") || string(got) != want {
		t.Errorf("source of %d: %.40q, %v, %v", seq, got, ok, err)
	}
}

func TestSource(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	script := "print(1)\n" + strings.Repeat("# \xff\n", 100)
	with := func(source string, steps ...step) Commit {
		t.Helper()
		c, err := do(t, im, Txn{Source: []byte(source)}, steps...)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a := with(script, put("a", "x"))
	chunks := count(t, im, bucketChunks)
	b := with(script, put("b", "x"))
	if n := count(t, im, bucketChunks); n != chunks {
		t.Errorf("the same source is stored again: %d chunks, %d", chunks, n)
	}
	small := with("x", remove("a"))
	same := with(string(randomBytes(7, 3000)), put("self", string(randomBytes(7, 3000)))) // a script that saves itself
	none := mustDo(t, im, put("c", "x"))
	large := with(string(randomBytes(8, maxSource)), put("d", "x"))
	plain, err := im.Commit(context.Background(), Txn{Source: []byte("no stage"), Changes: []Change{{Op: OpMkdir, Path: mustPath(t, "e")}}})
	if err != nil {
		t.Fatal(err)
	}
	if n := count(t, im, bucketChunks); n != 5 {
		t.Errorf("%d chunks", n)
	}
	verify(t, im)
	im = reopen(t, im, path)
	wantSource(t, im, a.Seq, script)
	wantSource(t, im, b.Seq, script)
	wantSource(t, im, small.Seq, "x")
	wantSource(t, im, same.Seq, string(randomBytes(7, 3000)))
	wantSource(t, im, none.Seq, "")
	wantSource(t, im, 1, "")
	wantSource(t, im, large.Seq, string(randomBytes(8, maxSource)))
	wantSource(t, im, plain.Seq, "no stage")
	for _, seq := range []uint64{0, plain.Seq + 1} {
		_, _, err := im.Source(seq)
		wantKind(t, err, ErrNotFound)
	}
	if text(t, im, "self") != string(randomBytes(7, 3000)) {
		t.Error("a file that is the source as well")
	}
	verify(t, im)
}

// A source that the stage holds too, used by the commit or not, in memory or
// in the image, is there afterwards once.
func TestSourceThatIsStaged(t *testing.T) {
	source := randomBytes(1, 100_000)
	for name, c := range map[string]struct {
		before int // bytes staged after it, so that it is flushed
		used   bool
	}{
		"waiting, used": {0, true}, "waiting, unused": {0, false},
		"flushed, used": {9 << 20, true}, "flushed, unused": {9 << 20, false},
	} {
		t.Run(name, func(t *testing.T) {
			im, path := newImage(t, CreateOptions{})
			s := im.Stage(context.Background())
			content := must(s.Add(bytes.NewReader(source)))
			must(s.Add(bytes.NewReader(randomBytes(2, c.before))))
			txn := Txn{Stage: s, Source: source, Changes: []Change{{Op: OpMkdir, Path: mustPath(t, "d")}}}
			if c.used {
				txn.Changes = append(txn.Changes, Change{Op: OpPut, Path: mustPath(t, "f"), Content: content})
			}
			done := must(im.Commit(context.Background(), txn))
			im = reopen(t, im, path)
			wantSource(t, im, done.Seq, string(source))
			if n := count(t, im, bucketChunks); n != 1 {
				t.Errorf("%d chunks", n)
			}
			verify(t, im)
		})
	}
}

// A commit that does not happen leaves no source behind.
func TestSourceOfNoCommit(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	mustDo(t, im, put("f", "x"))
	ctx := context.Background()
	remove := []Change{{Op: OpRemove, Path: mustPath(t, "f")}}
	_, err := im.Commit(ctx, Txn{Source: make([]byte, maxSource+1), Changes: remove})
	wantKind(t, err, ErrTooLarge)
	_, err = im.Commit(ctx, Txn{Source: []byte("x"), Changes: []Change{{Op: OpRemove, Path: mustPath(t, "g")}}})
	wantKind(t, err, ErrNotFound)
	refused := errors.New("refused")
	if _, err = im.Commit(ctx, Txn{Source: []byte("x"), Changes: remove, Admit: func([]Effect) error { return refused }}); err != refused {
		t.Error(err)
	}
	if _, err = im.Commit(ctx, Txn{Source: []byte("x"), Changes: remove, DryRun: true}); err != nil {
		t.Error(err)
	}
	if c, err := im.Commit(ctx, Txn{Source: []byte("x")}); err != nil || c.Seq != 2 {
		t.Error(c, err)
	}
	if n := count(t, im, bucketChunks); n != 0 {
		t.Errorf("%d chunks", n)
	}
	verify(t, im)
}

func TestDamagedSource(t *testing.T) {
	for name, damage := range map[string]func(*testing.T, *Image){
		"flipped": func(t *testing.T, im *Image) { edit(t, im, bucketChunks, uintKey(1), flip) },
		"empty": func(t *testing.T, im *Image) {
			edit(t, im, bucketChunks, uintKey(1), func([]byte) []byte { return nil })
		},
		"missing": func(t *testing.T, im *Image) {
			im.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketChunks).Delete(uintKey(1)) })
		},
		"a bomb": func(t *testing.T, im *Image) {
			bomb := make([]byte, maxSource+1)
			edit(t, im, bucketChunks, uintKey(1), func([]byte) []byte { return im.packer.pack(1, sumOf(bomb), bomb) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			im, _ := newImage(t, CreateOptions{})
			if _, err := do(t, im, Txn{Source: []byte("print(1)")}, mkdir("d")); err != nil {
				t.Fatal(err)
			}
			damage(t, im)
			_, _, err := im.Source(2)
			wantKind(t, err, ErrCorrupt)
		})
	}
}
