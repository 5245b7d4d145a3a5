package hostbox

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A folder that is full, or may not be written, keeps what it has, and gets the rest later.
func TestMirrorFullFolder(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=1m,mode=0755"); err != nil {
		t.Skipf("SKIP no small file system can be mounted: %s", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	s := newSource(t)
	s.open(dir)
	s.put("a", strings.Repeat("a", 600<<10))
	s.mustSync()
	s.put("a", strings.Repeat("A", 600<<10)) // both do not fit
	s.put("b", strings.Repeat("b", 2<<20))
	s.put("c", "small")
	left, err := s.sync()
	slices.Sort(left)
	if !errors.Is(err, syscall.ENOSPC) || !slices.Equal(left, []string{"a", "b"}) {
		t.Errorf("left %q, %v", left, err)
	}
	if got := tree(t, dir); got["a"] != "="+strings.Repeat("a", 600<<10) || got["c"] != "=small" || len(got) != 2 {
		t.Errorf("%d entries, a begins with %.5q", len(got), got["a"])
	}
	if err := syscall.Mount("none", dir, "", syscall.MS_REMOUNT, "size=8m"); err != nil {
		t.Fatal(err)
	}
	s.mustSync()
	if got := tree(t, dir); got["a"] != "="+strings.Repeat("A", 600<<10) || len(got["b"]) != 1+2<<20 {
		t.Errorf("%d entries, a begins with %.5q", len(got), got["a"])
	}
	if err := syscall.Mount("none", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, "size=8m"); err != nil {
		t.Fatal(err)
	}
	s.put("d", "d")
	if left, err := s.sync(); !errors.Is(err, syscall.EROFS) || !slices.Contains(left, "d") {
		t.Errorf("left %q, %v", left, err)
	}
}
