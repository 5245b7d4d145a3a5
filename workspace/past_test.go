package workspace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// forget removes commit records, as a garbage collection does.
func forget(t testing.TB, im *Image, seqs ...uint64) {
	t.Helper()
	err := im.db.Update(func(tx *bolt.Tx) error {
		for _, seq := range seqs {
			if err := tx.Bucket(bucketCommits).Delete(uintKey(seq)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// lived makes an image in which one path was everything in turn.
//
//	2  x: file "one"     3  x: file "two"     4  x gone      5  x: directory with y
//	6  y changed         7  x: symlink to z   8  x gone, z   9  x: file "last"
func lived(t testing.TB) *Image {
	t.Helper()
	im, _ := newImage(t, CreateOptions{})
	mustDo(t, im, put("x", "one"))
	mustDo(t, im, put("x", "two"))
	mustDo(t, im, remove("x"))
	mustDo(t, im, put("x/y", "in x"))
	mustDo(t, im, put("x/y", strings.Repeat("z", 1000)))
	mustDo(t, im, link("x", "z").with(replacing))
	mustDo(t, im, remove("x"), put("z", "zed"))
	mustDo(t, im, put("x", "last"))
	return im
}

func TestNodeAt(t *testing.T) {
	im := lived(t)
	for _, c := range []struct {
		path string
		seq  uint64
		want string // kind and version
		kind error
	}{
		{"/", 1, "d0", nil}, {"/", 9, "d0", nil},
		{"x", 1, "", ErrNotFound}, {"x", 2, "f2", nil}, {"x", 3, "f3", nil}, {"x", 4, "", ErrNotFound},
		{"x", 5, "d5", nil}, {"x", 6, "d5", nil}, {"x", 7, "l7", nil}, {"x", 8, "", ErrNotFound}, {"x", 9, "f9", nil},
		{"x/y", 3, "", ErrNotDirectory}, {"x/y", 4, "", ErrNotFound}, {"x/y", 5, "f5", nil}, {"x/y", 6, "f6", nil},
		{"x/y", 7, "", ErrNotDirectory}, {"x/y", 8, "", ErrNotFound}, {"x/y", 9, "", ErrNotDirectory},
		{"z", 7, "", ErrNotFound}, {"z", 8, "f8", nil}, {"z", 9, "f8", nil},
		{"never/there", 5, "", ErrNotFound},
	} {
		t.Run(fmt.Sprint(c.path, "@", c.seq), func(t *testing.T) {
			n, err := im.NodeAt(mustPath(t, c.path), c.seq)
			if c.kind != nil {
				wantKind(t, err, c.kind)
			} else if got := fmt.Sprintf("%c%d", n.Kind, n.Version); err != nil || got != c.want {
				t.Errorf("%s, %v, want %s", got, err, c.want)
			}
		})
	}
}

func TestPastErrors(t *testing.T) {
	im := lived(t)
	x := mustPath(t, "x")
	for want, err := range map[string]error{
		"version 0 of the disk image does not exist: the newest is v9":  second(im.NodeAt(x, 0)),
		"version 10 of the disk image does not exist: the newest is v9": second(im.OpenAt(x, 10)),
		"/workspace/x does not exist: nothing was there at v4":          second(im.NodeAt(x, 4)),
		"/workspace/z does not exist: nothing was there at v7":          second(im.OpenAt(x, 7)),
		"/workspace/x is a directory":                                   second(im.OpenAt(x, 5)),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestOpenAtFollowsTheLinksOfThen(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	mustDo(t, im, put("v1/f", "first"), link("now", "v1"))
	mustDo(t, im, put("v2/f", "second"), link("now", "v2").with(replacing))
	mustDo(t, im, remove("v1"))
	mustDo(t, im, link("now", "nowhere").with(replacing), link("out", "/etc"), link("loop", "loop"))
	mustDo(t, im, remove("now"))
	for _, c := range []struct {
		path string
		seq  uint64
		want string
		kind error
	}{
		{"now/f", 1, "", ErrNotFound}, {"now/f", 2, "first", nil}, {"now/f", 3, "second", nil}, {"v1/f", 3, "first", nil},
		{"v1/f", 4, "", ErrNotFound}, {"now/f", 4, "second", nil}, {"now/f", 5, "", ErrNotFound}, {"now/f", 6, "", ErrNotFound},
		{"out/f", 5, "", ErrPathEscape}, {"loop", 5, "", ErrSymlinkLoop}, {"out/f", 4, "", ErrNotFound}, {"v2/f/g", 6, "", ErrNotDirectory},
	} {
		t.Run(fmt.Sprint(c.path, "@", c.seq), func(t *testing.T) {
			f, err := im.OpenAt(mustPath(t, c.path), c.seq)
			if c.kind != nil {
				wantKind(t, err, c.kind)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if page := must(f.Bytes(0, 100)); string(page.Data) != c.want {
				t.Errorf("%q", page.Data)
			}
		})
	}
}

// Histories that are longer than one transaction takes.
func TestLongHistory(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	mustDo(t, im, put("old", "1"), put("gone/f", "was here"))
	first := mustDo(t, im, remove("gone")).Seq - 1
	var many []step
	for i := range historyBatch + 100 {
		many = append(many, put(fmt.Sprintf("many/%05d", i), "x"))
	}
	mustDo(t, im, many...)
	n := 300
	if soak() {
		n = 2*historyBatch + 10
	}
	for i := range n {
		mustDo(t, im, put("busy", fmt.Sprint(i)))
		if i%100 == 0 {
			mustDo(t, im, remove("many"))
			mustDo(t, im, many...)
		}
	}
	head := must(im.Info()).Seq
	if got := nodeText(t, im, mustPath(t, "gone/f"), must(im.NodeAt(mustPath(t, "gone/f"), first))); got != "was here" {
		t.Error(got)
	}
	second, third := must(im.Between(t.Context(), first, head, nil)), must(im.Between(t.Context(), head, first, []Path{mustPath(t, "gone")}))
	if len(second) != len(many)+4 || len(third) != 2 || third[0].What != Created {
		t.Errorf("%d effects, %d", len(second), len(third))
	}
	log := must(im.History(t.Context(), LogQuery{Under: []Path{mustPath(t, "gone")}}))
	if len(log) != 2 || log[0].Seq != first+1 || log[1].Seq != first || len(log[1].Effects) != 2 {
		t.Errorf("%+v", log)
	}
	if txn := must(im.Restoring(t.Context(), first, nil)); len(txn.Changes) != 4 {
		t.Errorf("%d changes", len(txn.Changes)) // busy and many go, gone and gone/f come
	}
}

func TestHistoryNoLongerReachesBack(t *testing.T) {
	im := lived(t)
	before := must(im.Info())
	forget(t, im, 1, 2, 3, 4)
	ctx, x := t.Context(), mustPath(t, "x")
	const want = "version 3 of the disk image does not exist: its history no longer reaches back to v3"
	_, _, noSource := im.Source(3)
	for name, err := range map[string]error{
		"node":          second(im.NodeAt(x, 3)),
		"open":          second(im.OpenAt(x, 3)),
		"between":       second(im.Between(ctx, 3, 9, nil)),
		"between, back": second(im.Between(ctx, 9, 3, nil)),
		"restore":       second(im.Restoring(ctx, 3, nil)),
		"undo":          second(im.Undoing(ctx, 3)),
		"revision":      second(im.Revision("v3")),
		"source":        noSource,
	} {
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v", name, err)
		}
		wantKind(t, err, ErrNotFound)
	}
	// What can be known is told: nothing that is missing has to be asked.
	if n, err := im.NodeAt(mustPath(t, "x/y"), 5); err != nil || n.Version != 5 {
		t.Error(n, err)
	}
	if e, err := im.Between(ctx, 4, 9, nil); err != nil || len(e) != 2 {
		t.Error(e, err)
	}
	if log, err := im.History(ctx, LogQuery{}); err != nil || len(log) != 5 || log[4].Seq != 5 {
		t.Error(len(log), err)
	}
	if log, err := im.History(ctx, LogQuery{Before: 4}); err != nil || len(log) != 0 {
		t.Error(len(log), err)
	}
	forget(t, im, 7) // a gap
	wantKind(t, second(im.NodeAt(mustPath(t, "x/y"), 6)), ErrNotFound)
	wantKind(t, second(im.Undoing(ctx, 6)), ErrNotFound)
	if log, err := im.History(ctx, LogQuery{}); err != nil || len(log) != 4 {
		t.Error(len(log), err)
	}
	if must(im.Info()) != before {
		t.Error("looking changed the disk")
	}
}

// Damage in a record is found by whatever needs the record, and only by that.
func TestDamagedPast(t *testing.T) {
	for name, use := range map[string]func(*Image) error{
		"node":    func(im *Image) error { return second(im.NodeAt(must(Clean("x/y")), 5)) },
		"open":    func(im *Image) error { return second(im.OpenAt(must(Clean("x/y")), 5)) },
		"between": func(im *Image) error { return second(im.Between(context.Background(), 1, 9, nil)) },
		"history": func(im *Image) error { return second(im.History(context.Background(), LogQuery{})) },
		"by call": func(im *Image) error { return second(im.History(context.Background(), LogQuery{Call: "x"})) },
		"restore": func(im *Image) error { return second(im.Restoring(context.Background(), 3, nil)) },
		"undo":    func(im *Image) error { return second(im.Undoing(context.Background(), 6)) },
		"undone":  func(im *Image) error { return second(im.Undoing(context.Background(), 4)) },
	} {
		t.Run(name, func(t *testing.T) {
			im := lived(t)
			edit(t, im, bucketCommits, uintKey(6), flip)
			wantKind(t, use(im), ErrCorrupt)
			if n, err := im.NodeAt(mustPath(t, "x"), 3); err != nil || n.Version != 3 {
				t.Errorf("a path that commit 6 did not change: %+v, %v", n, err)
			}
		})
	}
	im := lived(t)
	n := must(im.Lstat(mustPath(t, "x")))
	n.Version = 99 // a commit from the future
	im.db.Update(func(tx *bolt.Tx) error { return im.tree(tx).put(mustPath(t, "x"), &n) })
	wantKind(t, second(im.NodeAt(mustPath(t, "x"), 3)), ErrCorrupt)
	n.Version = 6 // one that did not change it
	im.db.Update(func(tx *bolt.Tx) error { return im.tree(tx).put(mustPath(t, "x"), &n) })
	wantKind(t, second(im.NodeAt(mustPath(t, "x"), 3)), ErrCorrupt)
}

func TestRevision(t *testing.T) {
	im := lived(t)
	if _, err := im.Checkpoint(t.Context(), "release-1.0", ""); err != nil {
		t.Fatal(err)
	}
	mustDo(t, im, put("more", "x"))
	for text, want := range map[string]uint64{
		"head": 10, "HEAD": 10, "release-1.0": 9, "v1": 1, "v10": 10, "7": 7, "V7": 7, " v3\n": 3, "007": 7,
	} {
		if got, err := im.Revision(text); err != nil || got != want {
			t.Errorf("%q is %d, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"v11":                    "version 11 of the disk image does not exist: the newest is v10",
		"0":                      "version 0 of the disk image does not exist: the newest is v10",
		"99999999999999999999":   "version 99999999999999999999 of the disk image does not exist: the newest is v10",
		"":                       `the version "" does not exist: a version is "head", the name of a checkpoint, or a number from v1 to v10`,
		"v":                      `the version "v" does not exist: a version is "head", the name of a checkpoint, or a number from v1 to v10`,
		"-1":                     `the version "-1" does not exist: a version is "head", the name of a checkpoint, or a number from v1 to v10`,
		"release\x00\xff":        `the version "release\x00\xff" does not exist: a version is "head", the name of a checkpoint, or a number from v1 to v10`,
		strings.Repeat("n", 1e6): "the version \"" + strings.Repeat("n", 80) + `…" does not exist: a version is "head", the name of a checkpoint, or a number from v1 to v10`,
	} {
		_, err := im.Revision(text)
		wantKind(t, err, ErrNotFound)
		if err.Error() != want {
			t.Errorf("%.200v", err)
		}
	}
}

func TestHistory(t *testing.T) {
	im, _ := newImage(t, CreateOptions{Clock: ticking(time.Unix(1, 0))})
	for i, s := range [][]step{{put("a/f", "1"), put("b/f", "1")}, {put("a/f", "2")}, {put("a\x01", "x")}, {remove("a")}, {put("a", "file")}} {
		if _, err := do(t, im, Txn{Call: fmt.Sprint("call", i%2)}, s...); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		q    LogQuery
		want string // seq:effects
	}{
		{"all", LogQuery{}, "6:1 5:2 4:1 3:1 2:4 1:0"},
		{"limit", LogQuery{Limit: 2}, "6:1 5:2"},
		{"before", LogQuery{Before: 4}, "3:1 2:4 1:0"},
		{"before the first", LogQuery{Before: 1}, ""},
		{"before what will be", LogQuery{Before: 99, Limit: 1}, "6:1"},
		{"under", LogQuery{Under: []Path{must(Clean("a"))}}, "6:1 5:2 3:1 2:2"},
		{"under a file", LogQuery{Under: []Path{must(Clean("a/f"))}}, "5:1 3:1 2:1"},
		{"under two", LogQuery{Under: []Path{must(Clean("b/f")), must(FromBytes([]byte("a\x01")))}}, "4:1 2:1"},
		{"under the root", LogQuery{Under: []Path{{}}, Limit: 1}, "6:1"},
		{"under nothing", LogQuery{Under: []Path{must(Clean("none"))}}, ""},
		{"call", LogQuery{Call: "call1"}, "5:2 3:1"},
		{"call and under", LogQuery{Call: "call0", Under: []Path{must(Clean("b"))}}, "2:2"},
		{"unknown call", LogQuery{Call: "call"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, commit := range must(im.History(t.Context(), c.q)) {
				got = append(got, fmt.Sprintf("%d:%d", commit.Seq, len(commit.Effects)))
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%v, want %s", got, c.want)
			}
		})
	}
	full, part := must(im.Log(0, 10)), must(im.History(t.Context(), LogQuery{}))
	for i := range full {
		a, b := full[i], part[len(part)-1-i]
		if a.ID != b.ID || a.Parent != b.Parent || a.Call != b.Call || !a.Time.Equal(b.Time) || effects(a) != effects(b) {
			t.Errorf("%+v is not %+v", b, a)
		}
	}
}

func TestPastIsCancelled(t *testing.T) {
	im := lived(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, digest := im.TreeDigest(ctx)
	for name, err := range map[string]error{
		"between": second(im.Between(ctx, 1, 9, nil)), "history": second(im.History(ctx, LogQuery{})),
		"restore": second(im.Restoring(ctx, 1, nil)), "undo": second(im.Undoing(ctx, 9)), "digest": digest,
		"checkpoint": second(im.Checkpoint(ctx, "c", "")),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
