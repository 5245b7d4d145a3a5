package workspace

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPathCompare(t *testing.T) {
	var paths []Path
	for _, s := range []string{"a", "a/b", "a/b/c", "a b", "a-b", "a.b", "ab", "b", "\x01", "a\x01", "é", "a/é"} {
		p, err := FromBytes([]byte(s))
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, p)
	}
	for _, a := range paths {
		for _, b := range paths {
			if got, want := a.Compare(b), strings.Compare(string(treeKey(a)), string(treeKey(b))); got != want {
				t.Errorf("%v and %v: %d, want %d", a, b, got, want)
			}
		}
		if (Path{}).Compare(a) != -1 || a.Compare(Path{}) != 1 {
			t.Errorf("the root and %v", a)
		}
	}
}

func TestPlace(t *testing.T) {
	dir := t.TempDir()
	make := func() string {
		f, err := Temp(dir)
		if err != nil {
			t.Fatal(err)
		}
		im, err := Create(f.Name(), CreateOptions{File: f})
		if err != nil {
			t.Fatal(err)
		}
		mustDo(t, im, put("a", "1"))
		if err := im.Close(); err != nil {
			t.Fatal(err)
		}
		return f.Name()
	}
	path := filepath.Join(dir, "x.vdisk")
	if err := Place(make(), path); err != nil {
		t.Fatal(err)
	}
	wantKind(t, Place(make(), path), ErrExists)
	left := make()
	if err := os.Mkdir(filepath.Join(dir, tempPrefix+"dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := SweepTemp(dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	names := slices.Collect(func(yield func(string) bool) {
		for _, e := range entries {
			if !yield(e.Name()) {
				return
			}
		}
	})
	if want := []string{tempPrefix + "dir", "x.vdisk"}; !slices.Equal(names, want) {
		t.Errorf("left are %v, want %v (%s)", names, want, left)
	}
	im, err := Open(path, OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	verify(t, im)
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
		t.Error(st.Mode(), err)
	}
}
