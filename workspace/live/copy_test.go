package live

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// A copy of an image has the uuid of the original, and the view of a uuid is
// one directory: while one of them has it, the other is locked out.
func TestCopyOfAnImageHasNoViewBesideIt(t *testing.T) {
	p := newPair(t)
	p.commit(t, file("a", "original"))
	p.sync(t)
	copied := filepath.Join(t.TempDir(), "copy.vdisk")
	bytes, err := os.ReadFile(p.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copied, bytes, 0o600); err != nil {
		t.Fatal(err)
	}
	im, err := workspace.Open(copied, workspace.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	if _, err := Open(p.state, im); !errors.Is(err, workspace.ErrLocked) {
		t.Fatalf("a view of the copy: %v, want ErrLocked", err)
	}
	p.sync(t) // the attempt has left the files alone

	// With the first closed the copy gets the directory, and makes it its own.
	if err := p.view.Close(); err != nil {
		t.Fatal(err)
	}
	second := &pair{im: im, path: copied, state: p.state}
	second.commit(t, file("a", "copy"))
	if second.view, err = Open(p.state, im); err != nil {
		t.Fatal(err)
	}
	second.sync(t)
	if _, err := Open(p.state, p.im); !errors.Is(err, workspace.ErrLocked) {
		t.Errorf("the original beside the copy: %v, want ErrLocked", err)
	}
	if err := second.view.Close(); err != nil {
		t.Fatal(err)
	}
	// And back: same numbers of commits, other contents.
	p.commit(t, file("a", "original again"))
	if p.view, err = Open(p.state, p.im); err != nil {
		t.Fatal(err)
	}
	p.sync(t)
}
