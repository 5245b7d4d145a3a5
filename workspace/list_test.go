package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

func names(entries []Entry) string {
	var s []string
	for _, e := range entries {
		s = append(s, e.Path.Base())
	}
	return strings.Join(s, " ")
}

func TestList(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	mustDo(t, im, put("b/x", "1"), put("b/y/z", "2"), put("a", "3"), put("b.txt", "4"), put("b-", "5"), mkdir("c"), link("d", "b"))
	raw := must(FromBytes([]byte("b\x01")))
	mustDo(t, im, step{Change: Change{Op: OpPut, Path: raw}, text: "6"})
	for _, c := range []struct {
		name, dir, after string
		limit            int
		want             string
		more             bool
	}{
		{"all, in the order of bytes", "/", "", 100, "a b b\x01 b- b.txt c d", false},
		{"a page", "/", "", 2, "a b", true},
		{"the page behind a directory", "/", "b", 3, "b\x01 b- b.txt", true},
		{"the last page is full", "/", "b.txt", 2, "c d", false},
		{"behind a name that is gone", "/", "b!", 2, "b- b.txt", true},
		{"behind the last", "/", "d", 2, "", false},
		{"a directory with one inside", "b", "", 100, "x y", false},
		{"empty", "c", "", 100, "", false},
		{"no room", "/", "", 0, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, more, err := im.List(mustPath(t, c.dir), c.after, c.limit)
			if err != nil || names(got) != c.want || more != c.more {
				t.Errorf("%q %v %v", names(got), more, err)
			}
			all, _, _ := im.List(mustPath(t, c.dir), c.after, 1000)
			n, err := im.Count(mustPath(t, c.dir), c.after, 1000)
			if err != nil || n != len(all) {
				t.Errorf("counted %d of %d, %v", n, len(all), err)
			}
		})
	}
	if n, err := im.Count(Path{}, "", 3); n != 3 || err != nil {
		t.Errorf("%d %v", n, err)
	}
	for path, kind := range map[string]error{"a": ErrNotDirectory, "d": ErrNotDirectory, "x": ErrNotFound, "a/x": ErrNotDirectory} {
		_, _, err := im.List(mustPath(t, path), "", 10)
		wantKind(t, err, kind)
		_, err = im.Count(mustPath(t, path), "", 10)
		wantKind(t, err, kind)
		wantKind(t, im.Walk(context.Background(), mustPath(t, path), func(Entry) error { return nil }), kind)
	}
}

func TestPagesCoverALargeDirectory(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	var all []step
	for i := range 3000 {
		all = append(all, put(fmt.Sprintf("dir/%d/f", i), "x"), put(fmt.Sprintf("dir/%d.txt", i), "x"))
	}
	mustDo(t, im, all...)
	var got []string
	after, more := "", true
	for more {
		page, m, err := im.List(mustPath(t, "dir"), after, 77)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page {
			after = e.Path.Base()
			got = append(got, after)
		}
		more = m
	}
	if len(got) != 6000 || !slices.IsSorted(got) || len(slices.Compact(got)) != 6000 {
		t.Errorf("%d names", len(got))
	}
}

func TestWalk(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	var all []step
	var want []string
	for i := range 40 {
		want = append(want, fmt.Sprintf("d%02d", i))
		for j := range 40 {
			want = append(want, fmt.Sprintf("d%02d/f%02d", i, j))
			all = append(all, put(want[len(want)-1], "x"))
		}
	}
	mustDo(t, im, all...)
	mustDo(t, im, link("z", "d00"))
	walk := func(dir string, decide func(Entry) error) (got []string) {
		t.Helper()
		err := im.Walk(context.Background(), mustPath(t, dir), func(e Entry) error {
			got = append(got, e.Path.Rel())
			return decide(e)
		})
		if err != nil {
			t.Error(err)
		}
		return got
	}
	all2 := walk("/", func(Entry) error { return nil })
	if !slices.Equal(all2, append(slices.Clone(want), "z")) {
		t.Errorf("%d entries", len(all2))
	}
	if got := walk("d07", func(Entry) error { return nil }); len(got) != 40 || got[0] != "d07/f00" {
		t.Errorf("%v", got)
	}
	if got := walk("/", func(e Entry) error {
		if e.Path.Rel() == "d12/f30" { // the 523rd: in the second batch
			return fs.SkipAll
		}
		return nil
	}); len(got) != 12*41+32 {
		t.Errorf("%d", len(got))
	}
	// d12 begins at the end of the first batch.
	got := walk("/", func(e Entry) error {
		if e.Node.Kind == KindDir && e.Path.Rel() >= "d12" {
			return fs.SkipDir
		}
		return nil
	})
	if len(got) != 12*41+28+1 {
		t.Errorf("%d: %v", len(got), got[12*41:])
	}
	stop := errors.New("stop")
	if err := im.Walk(context.Background(), Path{}, func(Entry) error { return stop }); err != stop {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := im.Walk(ctx, Path{}, func(Entry) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// An image from elsewhere may have been made by anything.
func TestForeignNames(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	mustDo(t, im, put("a", "x"))
	plant := func(key string) {
		im.db.Update(func(tx *bolt.Tx) error {
			n := Node{Kind: KindDir}
			return tx.Bucket(bucketTree).Put([]byte(key), seal([]byte(key), appendNode(nil, &n)))
		})
	}
	plant(".system")
	plant(".system\x00secret")
	entries, _, err := im.List(Path{}, "", 10)
	if err != nil || names(entries) != "a" {
		t.Errorf("%q %v", names(entries), err)
	}
	if got := snapshot(t, im); len(got) != 1 {
		t.Errorf("%v", got)
	}
	plant("..")
	_, _, err = im.List(Path{}, "", 10)
	wantKind(t, err, ErrCorrupt)
	wantKind(t, im.Walk(context.Background(), Path{}, func(Entry) error { return nil }), ErrCorrupt)
}

func TestSimilar(t *testing.T) {
	im, _ := newImage(t, CreateOptions{})
	mustDo(t, im, put("Bild 1.png", "x"), put("caf\u00e9/men\u00fc.txt", "x"),
		put("Screenshot at 5\u202fPM.png", "x"), put("two  words", "x"), put("two words", "x"))
	for _, c := range []struct{ name, in, want string }{
		{"decomposed", "cafe\u0301/menu\u0308.txt", "/workspace/caf\u00e9/men\u00fc.txt"},
		{"decomposed directory", "cafe\u0301/men\u00fc.txt", "/workspace/caf\u00e9/men\u00fc.txt"},
		{"narrow space", "Screenshot at 5 PM.png", "/workspace/Screenshot at 5\u202fPM.png"},
		{"space in front", " Bild 1.png", "/workspace/Bild 1.png"},
		{"it exists", "Bild 1.png", ""},
		{"two would do", "two   words", ""},
		{"nothing like it", "Bild 2.png", ""},
		{"nothing below", "cafe\u0301/x", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, ok := im.Similar(mustPath(t, c.in))
			if ok != (c.want != "") || ok && p.String() != c.want {
				t.Errorf("%v %v", p, ok)
			}
		})
	}
}
