package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// putNode commits the content of a node at another path.
func putNode(im *Image, path string, n Node) (Commit, error) {
	return im.Commit(context.Background(), Txn{Changes: []Change{{Op: OpPut, Path: must(Clean(path)), Content: n.Content()}}})
}

// bigContent stages a file whose chunks are in a list, without the bytes.
func bigContent(t testing.TB, im *Image, path string) {
	t.Helper()
	s := im.Stage(context.Background())
	c := Content{stage: s}
	whole := sha256.New()
	for i := range maxRefs + 10 {
		plain := bytes.Repeat([]byte{byte(i), byte(i >> 8), '\n'}, 100)
		whole.Write(plain)
		if err := s.addChunk(&c, plain); err != nil {
			t.Fatal(err)
		}
	}
	whole.Sum(c.SHA256[:0])
	if err := s.fold(&c); err != nil {
		t.Fatal(err)
	}
	commitContents(t, im, s, map[string]Content{path: c})
}

func TestContentOfANode(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	for _, s := range []step{
		put("empty", ""), put("inline", "a\nb"), put("one", strings.Repeat("line\n", 1000)), put("several", string(randomBytes(3, 400_000))),
	} {
		mustDo(t, im, s)
	}
	bigContent(t, im, "listed")
	for _, name := range []string{"empty", "inline", "one", "several", "listed"} {
		t.Run(name, func(t *testing.T) {
			chunks := count(t, im, bucketChunks)
			want := must(im.Lstat(mustPath(t, name)))
			body := text(t, im, name)
			mustDo(t, im, put(name, "something else")) // so that it is an older version
			if _, err := putNode(im, "copy-"+name, want); err != nil {
				t.Fatal(err)
			}
			got := must(im.Lstat(mustPath(t, "copy-"+name)))
			if !got.sameContent(&want) || got.TotalLines() != want.TotalLines() || text(t, im, "copy-"+name) != body {
				t.Errorf("the copy is %+v", got)
			}
			if n := count(t, im, bucketChunks); n != chunks {
				t.Errorf("%d chunks became %d", chunks, n)
			}
		})
	}
	verify(t, im)
}

func TestContentOfNoFile(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	mustDo(t, im, mkdir("d"), link("l", "d"))
	for _, name := range []string{"d", "l"} {
		if _, err := putNode(im, "f", must(im.Lstat(mustPath(t, name)))); err != nil {
			t.Fatal(err)
		}
		if n := must(im.Lstat(mustPath(t, "f"))); n.Size != 0 || n.SHA256 != sha256.Sum256(nil) {
			t.Errorf("%s gives %+v", name, n)
		}
	}
}

// A node whose content is not in the image, or is another one, never gets in.
func TestContentThatIsNotThere(t *testing.T) {
	one := string(randomBytes(1, 50_000))
	drop := func(id func(Node) uint64) func(*testing.T, *Image, *Node) {
		return func(t *testing.T, im *Image, n *Node) {
			if err := im.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketChunks).Delete(uintKey(id(*n))) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name, file string
		spoil      func(*testing.T, *Image, *Node)
		kind       error
	}{
		{"chunk gone", "one", drop(func(n Node) uint64 { return n.body.refs[0].id }), ErrNotFound},
		{"one of several gone", "several", drop(func(n Node) uint64 { return n.body.refs[1].id }), ErrNotFound},
		{"list gone", "listed", drop(func(n Node) uint64 { return n.body.list.id }), ErrNotFound},
		{"listed chunk gone", "listed", drop(func(n Node) uint64 { return n.body.list.id - 1 }), ErrNotFound},
		{"another image", "one", func(t *testing.T, _ *Image, n *Node) {
			other, _ := newImage(t, CreateOptions{})
			mustDo(t, other, put("one", strings.Repeat("x", 50_000)))
			*n = must(other.Lstat(mustPath(t, "one")))
		}, ErrCorrupt},
		{"another image, other size", "one", func(t *testing.T, _ *Image, n *Node) {
			other, _ := newImage(t, CreateOptions{})
			mustDo(t, other, put("one", strings.Repeat("x", 5_000)))
			*n = must(other.Lstat(mustPath(t, "one")))
		}, ErrCorrupt},
		{"made by hand", "one", func(_ *testing.T, _ *Image, n *Node) { *n = Node{Kind: KindFile, Size: 7} }, ErrCorrupt},
		{"chunk of nothing", "one", func(t *testing.T, im *Image, n *Node) {
			edit(t, im, bucketChunks, uintKey(1), func([]byte) []byte { return []byte("x") })
		}, ErrCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			im, _ := newImage(t, CreateOptions{})
			mustDo(t, im, put("one", one))
			mustDo(t, im, put("several", string(randomBytes(2, 400_000))))
			bigContent(t, im, "listed")
			n := must(im.Lstat(mustPath(t, c.file)))
			c.spoil(t, im, &n)
			before := must(im.Info())
			_, err := putNode(im, "copy", n)
			wantKind(t, err, c.kind)
			if c.kind == ErrNotFound && err.Error() != "/workspace/copy does not exist: its content is no longer kept" {
				t.Error(err)
			}
			if must(im.Info()) != before {
				t.Error("the disk has changed")
			}
		})
	}
}

// What a dry run promised is in the image as long as its stage is.
func TestContentOfADryRun(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	s := im.Stage(context.Background())
	c := must(s.Add(bytes.NewReader(randomBytes(1, 100_000))))
	must(s.Add(bytes.NewReader(randomBytes(2, 9<<20)))) // more than waits in memory: c is in the image
	dry := must(im.Commit(context.Background(), Txn{Stage: s, DryRun: true, Changes: []Change{{Op: OpPut, Path: mustPath(t, "f"), Content: c}}}))
	n := *dry.Effects[0].After
	_, err := putNode(im, "copy", n)
	wantKind(t, err, ErrNotFound)
	if err := s.Discard(); err != nil {
		t.Fatal(err)
	}
	_, err = putNode(im, "copy", n)
	wantKind(t, err, ErrNotFound)
	verify(t, im)
}

func TestContentMadeByHand(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	_, err := im.Commit(context.Background(), Txn{Changes: []Change{{Op: OpPut, Path: mustPath(t, "f"), Content: Content{Size: 5}}}})
	if err == nil {
		t.Error("it was taken")
	}
	mustDo(t, im, put("g", "x"))
	verify(t, im)
}
