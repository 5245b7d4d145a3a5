package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// soak says that the large counts are wanted.
func soak() bool { return os.Getenv("MCP_VDISK_SOAK") == "1" }

func newImage(t testing.TB, o CreateOptions) (*Image, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.vdisk")
	im, err := Create(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { im.Close() })
	return im, path
}

func reopen(t testing.TB, im *Image, path string) *Image {
	t.Helper()
	if err := im.Close(); err != nil {
		t.Fatal(err)
	}
	im, err := Open(path, OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { im.Close() })
	return im
}

func mustPath(t testing.TB, s string) Path {
	t.Helper()
	p, err := Clean(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A step is a change with the content as text.
type step struct {
	Change
	text string
}

// GoString keeps the reports of failed model runs short.
func (s step) GoString() string {
	return fmt.Sprintf("{%c %q %d bytes, mode %o, target %q, replace %v, opaque %v, recursive %v, parents %v}",
		s.Op, s.Path.Rel(), len(s.text), s.Mode, s.Target, s.Replace, s.Opaque, s.Recursive, s.Parents)
}

func put(path, text string) step {
	return step{Change{Op: OpPut, Path: must(Clean(path)), Parents: true}, text}
}

func mkdir(path string) step {
	return step{Change: Change{Op: OpMkdir, Path: must(Clean(path)), Parents: true}}
}

func link(path, target string) step {
	return step{Change: Change{Op: OpSymlink, Path: must(Clean(path)), Target: target, Parents: true}}
}

func remove(path string) step {
	return step{Change: Change{Op: OpRemove, Path: must(Clean(path)), Recursive: true}}
}

func (s step) with(set func(*Change)) step {
	set(&s.Change)
	return s
}

func replacing(c *Change) { c.Replace = true }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// do commits steps and returns what Commit does.
func do(t testing.TB, im *Image, txn Txn, steps ...step) (Commit, error) {
	t.Helper()
	ctx := context.Background()
	stage := im.Stage(ctx)
	defer stage.Discard()
	for _, s := range steps {
		if s.Op == OpPut {
			var err error
			if s.Content, err = stage.Add(strings.NewReader(s.text)); err != nil {
				return Commit{}, err
			}
		}
		txn.Changes = append(txn.Changes, s.Change)
	}
	txn.Stage = stage
	return im.Commit(ctx, txn)
}

func mustDo(t testing.TB, im *Image, steps ...step) Commit {
	t.Helper()
	c, err := do(t, im, Txn{}, steps...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// text reads a file without following links.
func text(t testing.TB, im *Image, path string) string {
	t.Helper()
	p := mustPath(t, path)
	n, err := im.Lstat(p)
	if err != nil {
		t.Fatal(err)
	}
	return nodeText(t, im, p, n)
}

func nodeText(t testing.TB, im *Image, p Path, n Node) string {
	t.Helper()
	f, err := im.OpenNode(p, n)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f.Reader())
	if err != nil {
		t.Fatalf("%v: %v", p, err)
	}
	return string(b)
}

// effects is one line per effect: "C /workspace/a".
func effects(c Commit) string {
	var b strings.Builder
	for _, e := range c.Effects {
		b.WriteString(string(e.What) + " " + e.Path.String() + "\n")
	}
	return b.String()
}

func wantKind(t testing.TB, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error is %v, want one that %v", err, kind)
	}
}

// snapshot is every path with all that a user can see of it.
func snapshot(t testing.TB, im *Image) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := im.Walk(context.Background(), Path{}, func(e Entry) error {
		s := string(e.Node.Kind) + " " + e.Node.ModTime.Format(time.RFC3339Nano) + " "
		switch e.Node.Kind {
		case KindFile:
			s += nodeText(t, im, e.Path, e.Node)
		case KindSymlink:
			s += e.Node.Target
		}
		all[e.Path.Rel()] = s
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// verify checks everything that must always hold: what nodes and records
// promise, the totals, that the history leads to the tree, that nothing is
// pending and no chunk is unknown to the index, and bbolt's own structure.
func verify(t testing.TB, im *Image) {
	t.Helper()
	info, err := im.Info()
	if err != nil {
		t.Fatal(err)
	}
	tree := map[Path]Node{}
	var size int64
	err = im.Walk(context.Background(), Path{}, func(e Entry) error {
		tree[e.Path] = e.Node
		size += e.Node.Size
		if dir := e.Path.Dir(); !dir.IsRoot() && tree[dir].Kind != KindDir {
			t.Errorf("%v has no directory", e.Path)
		}
		if e.Node.Kind == KindFile {
			body := nodeText(t, im, e.Path, e.Node)
			if sha256.Sum256([]byte(body)) != e.Node.SHA256 || int64(len(body)) != e.Node.Size ||
				int64(strings.Count(body, "\n")) != e.Node.Lines {
				t.Errorf("%v: its node is wrong about its content", e.Path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if info.Bytes != size || info.Entries != int64(len(tree)) {
		t.Errorf("totals are %d bytes, %d entries; the tree has %d, %d", info.Bytes, info.Entries, size, len(tree))
	}
	verifyHistory(t, im, info, tree)
	verifyBuckets(t, im)
}

func verifyHistory(t testing.TB, im *Image, info Info, tree map[Path]Node) {
	t.Helper()
	log, err := im.Log(0, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	replayed := map[Path]*Node{}
	parent := strings.Repeat("0", 64)
	oldest := log[0].Seq // what is older may have been dropped
	if oldest > 1 {
		parent = log[0].Parent
	}
	for i, c := range log {
		if c.Seq != oldest+uint64(i) || c.Parent != parent {
			t.Errorf("commit %d: seq %d, parent %s, want %s", i+1, c.Seq, c.Parent, parent)
		}
		parent = c.ID
		for _, e := range c.Effects {
			old := replayed[e.Path]
			if e.Before != nil && e.Before.Version < oldest {
				old = e.Before
			}
			if (old == nil) != (e.Before == nil) || old != nil && !old.same(e.Before) {
				t.Errorf("commit %d: %v was something else before", c.Seq, e.Path)
			}
			delete(replayed, e.Path)
			if e.After != nil {
				replayed[e.Path] = e.After
			}
		}
	}
	for p, n := range tree {
		if n.Version < oldest {
			replayed[p] = &n
		}
	}
	if info.Commit != parent || info.Seq != oldest+uint64(len(log))-1 {
		t.Errorf("head is %d %s, the log ends in %s", info.Seq, info.Commit, parent)
	}
	if len(replayed) != len(tree) {
		t.Errorf("history leads to %d paths, the tree has %d", len(replayed), len(tree))
	}
	for p, n := range tree {
		if r := replayed[p]; r == nil || !r.same(&n) || r.Version != n.Version {
			t.Errorf("history leads to another %v", p)
		}
	}
}

func verifyBuckets(t testing.TB, im *Image) {
	t.Helper()
	err := im.db.View(func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			t.Errorf("bbolt: %v", err)
		}
		if k, _ := tx.Bucket(bucketPending).Cursor().First(); k != nil {
			t.Errorf("pending: %q", k)
		}
		indexed := 0
		tx.Bucket(bucketByHash).ForEach(func(k, v []byte) error {
			value, err := unseal(k, v)
			if err != nil || tx.Bucket(bucketChunks).Get(value) == nil {
				t.Errorf("byhash %x leads nowhere: %v", k, err)
			}
			indexed++
			return nil
		})
		if n := tx.Bucket(bucketChunks).Inspect().KeyN; n != indexed {
			t.Errorf("%d chunks, %d in the index", n, indexed)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// lines builds text of n lines; every tenth is long.
func lines(n int) string {
	var b bytes.Buffer
	for i := range n {
		b.WriteString(strings.Repeat("é", i%10*15))
		b.WriteString("line ")
		b.WriteString(strings.Repeat("x", i%7))
		b.WriteByte('\n')
	}
	return b.String()
}
