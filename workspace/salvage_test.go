package workspace

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// TestSalvage damages numbers of one page which bbolt reads past or which hide
// one entry only, and wants every path back: the leaf must not go with it.
func TestSalvage(t *testing.T) {
	s := newSample(t, 1000)
	l := layoutOf(t, s.bytes)
	le := binary.NativeEndian
	leaf := uint64(0)
	for _, id := range l.leaves["chunks"] {
		if le.Uint16(s.bytes[id*pageSize+10:]) >= 3 {
			leaf = id
			break
		}
	}
	element := func(b []byte, i int) []byte { return b[leaf*pageSize+pageFront+uint64(i*elementSize):] }
	if leaf == 0 || len(l.branches["chunks"]) != 1 || len(l.branches["commits"]) != 1 {
		t.Fatal("the sample is too small for this test")
	}
	stale := l.leaves["commits"][0]
	for _, c := range []struct {
		name   string
		damage func(b []byte)
		all    bool // bbolt still reads every path
		bucket string
	}{
		{"position", func(b []byte) { element(b, 1)[5] ^= 0x20 }, false, "chunks"},
		{"key size", func(b []byte) { element(b, 1)[9] ^= 0x20 }, false, "chunks"},
		{"value size", func(b []byte) { element(b, 1)[13] ^= 0x20 }, false, "chunks"},
		{"unused flag", func(b []byte) { element(b, 1)[0] ^= 0x20 }, true, "chunks"},
		{"bucket flag", func(b []byte) { element(b, 1)[0] ^= elementBucket }, false, "chunks"},
		{"count too small", func(b []byte) { b[leaf*pageSize+10]-- }, false, "chunks"},
		{"count too large", func(b []byte) { b[leaf*pageSize+11] = 0x7F }, false, "chunks"},
		{"leaf of commits among the chunks", func(b []byte) { child(b, l.roots["chunks"], 1, stale) }, false, "chunks"},
		{"leaf of chunks among the commits", func(b []byte) { child(b, l.roots["commits"], 1, leaf) }, true, "commits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := bytes.Clone(s.bytes)
			c.damage(b)
			path := s.write(t, b)
			im := must(Open(path, OpenOptions{}))
			wantKind(t, im.Damage(), ErrCorrupt)
			if lost := s.read(im, t.Errorf); c.all && len(lost) > 0 {
				t.Errorf("bbolt does not read %.200q", lost)
			}
			im.Close()
			r := check(t, path, CheckOptions{Repair: true})
			if wantFinding(t, r, FindPage, "", ""); !r.Clean() {
				t.Errorf("%d are left: %v", r.Left(), r.Findings)
			}
			wantClean(t, path)
			s.wantAllBack(t, path, false)
		})
	}
}

// A value that runs over several pages is found again when its leaf says that
// it is shorter.
func TestSalvageBehindTheRun(t *testing.T) {
	s := newSample(t, 10)
	b := bytes.Clone(s.bytes)
	for _, leaf := range layoutOf(t, b).leaves["chunks"] {
		if over := b[leaf*pageSize+12:]; over[0] > 1 {
			over[0]--
			path := s.write(t, b)
			if r := check(t, path, CheckOptions{Repair: true}); !r.Clean() {
				t.Errorf("%d are left: %v", r.Left(), r.Findings)
			}
			s.wantAllBack(t, path, false)
			return
		}
	}
	t.Fatal("no leaf runs over several pages")
}

// TestRepairCut cuts the list of buckets off, with the record of the identity in
// it. The first commit has the uuid too; without it nothing may be changed.
func TestRepairCut(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	mustDo(t, im, put("early", lines(300)))
	want := must(im.Info()).UUID
	var whole []byte
	var l *layout
	for i := 0; l == nil || len(l.branches["commits"]) == 0 || l.leaves["commits"][0] >= l.header.root; i++ {
		if i == 300 {
			t.Fatal("the list of buckets is never behind the first commit")
		}
		mustDo(t, im, put("late", string(randomBytes(byte(i), 10_000))))
		whole = must(os.ReadFile(path))
		l = layoutOf(t, whole)
	}
	im.Close()
	for _, c := range []struct {
		name string
		size uint64
		kind error
	}{{"at the list of buckets", l.header.root, nil}, {"behind the headers", 2, ErrCorrupt}} {
		t.Run(c.name, func(t *testing.T) {
			cut := whole[:c.size*pageSize]
			if err := os.WriteFile(path, cut, 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := Check(context.Background(), path, CheckOptions{Repair: true})
			im, opened := Open(path, OpenOptions{})
			if opened == nil {
				defer im.Close()
			}
			if err != nil {
				wantKind(t, err, ErrCorrupt)
				if r == nil || !bytes.Equal(must(os.ReadFile(path)), cut) {
					t.Error("it changed the file, or gave no report")
				}
			}
			switch {
			case c.kind != nil:
				wantKind(t, err, c.kind)
			case err != nil || opened != nil:
				t.Errorf("repair: %v; open: %v", err, opened)
			case must(im.Info()).UUID != want:
				t.Error("it has another uuid")
			}
		})
	}
}

// An identity that nothing proves is not made up, in place either.
func TestRepairWithoutIdentity(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	mustDo(t, im, put("f", lines(300)))
	err := im.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketCommits).Delete(uintKey(1)) })
	if err != nil {
		t.Fatal(err)
	}
	edit(t, im, bucketMeta, keyIdentity, flip)
	im.Close()
	before := must(os.ReadFile(path))
	r, err := Check(context.Background(), path, CheckOptions{Repair: true})
	wantKind(t, err, ErrCorrupt)
	if r == nil || !bytes.Equal(must(os.ReadFile(path)), before) {
		t.Error("it changed the file, or gave no report")
	}
}

// What is brought back must be readable.
func TestRestoreOfDamagedContent(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	defer im.Close()
	mustDo(t, im, put("f", lines(300)))
	mustDo(t, im, remove("f"))
	edit(t, im, bucketChunks, uintKey(1), flip)
	txn := must(im.Restoring(t.Context(), 2, nil))
	wantKind(t, second(im.Commit(t.Context(), txn)), ErrCorrupt)
	if info := must(im.Info()); info.Seq != 3 || info.Entries != 0 {
		t.Errorf("it was committed: %+v", info)
	}
}
