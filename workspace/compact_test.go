package workspace

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestCompact(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	versions(t, im, 5)
	mustDo(t, im, put("big", string(randomBytes(1, 20<<20))))
	must(im.Checkpoint(t.Context(), "c", ""))
	mustDo(t, im, remove("big"))
	want, info := snapshot(t, im), must(im.Info())
	_, _, err := Compact(t.Context(), path, CompactOptions{Wait: time.Millisecond})
	wantKind(t, err, ErrLocked)
	if err := im.DropCheckpoint("c"); err != nil {
		t.Fatal(err)
	}
	mustDo(t, im, put("x", "x"))
	gc(t, im, GCOptions{})
	im.Close()
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(filepath.Dir(path), "link")
	if err := os.Symlink(path, name); err != nil {
		t.Skip(err)
	}
	old := must(os.Stat(path))
	before, after, err := Compact(t.Context(), name, CompactOptions{})
	if err != nil || before != old.Size() || after > before/10 {
		t.Errorf("%d became %d, %v", before, after, err)
	}
	st := must(os.Stat(path))
	if st.Size() != after || st.Mode() != old.Mode() || os.SameFile(st, old) || must(os.Lstat(name)).Mode()&os.ModeSymlink == 0 {
		t.Errorf("%v", st)
	}
	if left := must(os.ReadDir(filepath.Dir(path))); len(left) != 2 {
		t.Errorf("%v", left)
	}
	wantClean(t, path)
	im = must(Open(path, OpenOptions{}))
	defer im.Close()
	if now := must(im.Info()); now.UUID != info.UUID || now.Seq != info.Seq+1 {
		t.Errorf("%+v", now)
	}
	for p, s := range snapshot(t, im) {
		if want[p] != s && p != "x" {
			t.Errorf("%s is another one", p)
		}
	}
	verify(t, im)
	_, _, err = Compact(t.Context(), filepath.Join(t.TempDir(), "none"), CompactOptions{})
	wantKind(t, err, ErrNotFound)
	_, _, err = Compact(t.Context(), t.TempDir(), CompactOptions{})
	wantKind(t, err, ErrNotImage)
}
