package live

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

func TestSweep(t *testing.T) {
	p := newPair(t)
	p.commit(t, file("d/e/a", "x"), mode("d/e", 0), mode("d", 0))
	p.sync(t)
	now := time.Now()
	old := func() {
		t.Helper()
		if err := os.Chtimes(filepath.Join(p.view.base, lockName), time.Time{}, now.Add(-8*24*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	sweep := func(what string, before time.Time, want int) {
		t.Helper()
		n, err := Sweep(p.state, before)
		if err != nil || n != want {
			t.Errorf("%s: removed %d, %v; want %d", what, n, err, want)
		}
	}
	week := now.Add(-7 * 24 * time.Hour)

	old()
	sweep("in use", week, 0)
	if err := p.view.Close(); err != nil {
		t.Fatal(err)
	}
	sweep("closed just now", week, 0)
	other := filepath.Join(p.state, "not-a-view")
	link := filepath.Join(p.state, "ffffffff-0000-0000-0000-000000000000")
	dead := filepath.Join(p.state, "01234567-89ab-cdef-0123-456789abcdef") // killed before it had a lock
	if err := errors.Join(os.MkdirAll(other+"/lock", 0o700), os.Symlink(other, link), os.Mkdir(dead, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{other, dead} {
		if err := os.Chtimes(d, time.Time{}, week.Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	old()
	sweep("idle for a week", week, 1)
	if left, want := entries(t, p.state), []string{filepath.Base(dead), filepath.Base(link), "not-a-view"}; !slices.Equal(left, want) {
		t.Errorf("left: %v, want %v", left, want)
	}
	sweep("again", week, 0)
	if _, err := os.Lstat(p.view.base); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	var err error
	if p.view, err = Open(p.state, p.im); err != nil {
		t.Fatal(err)
	}
	p.sync(t)

	// Every use counts: opening, work, closing.
	for what, use := range map[string]func(){
		"opened": func() { p.view.Close(); old(); p.reopen(t) },
		"worked": func() { old(); p.commit(t, file("f", "x")); p.sync(t) },
		"closed": func() { old(); p.view.Close(); p.reopen(t) },
	} {
		use()
		st, err := os.Stat(filepath.Join(p.view.base, lockName))
		if err != nil || st.ModTime().Before(now.Add(-time.Hour)) {
			t.Errorf("%s: last used %v (%v)", what, st.ModTime(), err)
		}
	}
}

func TestSweepOfNothing(t *testing.T) {
	dir := t.TempDir()
	if n, err := Sweep(filepath.Join(dir, "missing"), time.Now()); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := Sweep(filepath.Join(dir, "file"), time.Now()); n != 0 || err == nil {
		t.Errorf("%d, %v", n, err)
	}
}

// A view that cannot be swept does not keep another from it.
func TestSweepGoesOn(t *testing.T) {
	p := newPair(t)
	p.sync(t)
	if err := p.view.Close(); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(p.state, "00000000-0000-0000-0000-000000000000")
	if err := os.MkdirAll(filepath.Join(bad, lockName), 0o700); err != nil { // no lock can be taken
		t.Fatal(err)
	}
	n, err := Sweep(p.state, time.Now().Add(time.Hour))
	if n != 1 || err == nil || errors.Is(err, workspace.ErrLocked) {
		t.Errorf("%d, %v", n, err)
	}
	if left := entries(t, p.state); !slices.Equal(left, []string{filepath.Base(bad)}) {
		t.Errorf("left: %v", left)
	}
}

func TestSize(t *testing.T) {
	p := newPair(t)
	size := func() (int64, int64) {
		t.Helper()
		files, bytes, err := Size(filepath.Dir(p.view.base), filepath.Base(p.view.base))
		if err != nil {
			t.Fatal(err)
		}
		return files, bytes
	}
	if files, bytes := size(); files != 0 || bytes != 0 {
		t.Errorf("of nothing: %d files, %d bytes", files, bytes)
	}
	text := string(make([]byte, 100_000))
	p.commit(t, file("a", text), file("d/b", text+"x"), link("l", "a"))
	held := p.pin(t)
	files, bytes := size()
	if files != 3 || bytes < 200_000 || bytes > 300_000 {
		t.Errorf("one generation: %d files, %d bytes", files, bytes)
	}
	p.commit(t, file("a", "short"))
	g := p.pin(t)
	more, moreBytes := size()
	want := int64(4)
	if !linksFiles(t) {
		want = 6
	}
	if more != want || moreBytes < bytes || linksFiles(t) && moreBytes > bytes+50_000 {
		t.Errorf("two generations: %d files, %d bytes; one: %d, %d", more, moreBytes, files, bytes)
	}
	held.Release()
	g.Release()
	if files, bytes := size(); files != 3 || bytes > 200_000 {
		t.Errorf("the newest alone: %d files, %d bytes", files, bytes)
	}
}
