package front

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// beside makes a successor of a state directory, with a file in it.
func sibling(t *testing.T, state string) (*Caller, *Sibling, *bytes.Buffer) {
	t.Helper()
	var words bytes.Buffer
	a := &Caller{Stderr: &words}
	b, err := a.MakeSibling(state)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(b.Dir, "new"))
	return a, b, &words
}

func put(t *testing.T, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// holds are the names in a directory, with the random and the time left out.
func holds(t *testing.T, dir string, want ...string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list {
		name := e.Name()
		for _, infix := range []string{siblingInfix, asideInfix} {
			if i := strings.Index(name, infix); i >= 0 {
				name = name[:i+len(infix)]
			}
		}
		got = append(got, name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s holds %q, want %q", dir, got, want)
	}
}

// stateIn names a state directory below one that a dropped user may pass.
func stateIn(t *testing.T) (dir, state string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "beside-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir, filepath.Join(dir, "state")
}

func TestSiblingPlace(t *testing.T) {
	dir, state := stateIn(t)
	_, b, _ := sibling(t, state)
	holds(t, dir, "state"+siblingInfix)
	if err := b.Place(); err != nil {
		t.Fatal(err)
	}
	b.Drop()
	holds(t, dir, "state")
	holds(t, state, "new")
	// Over an empty one, and not over any other.
	dir, state = stateIn(t)
	if err := os.Mkdir(state, 0o755); err != nil {
		t.Fatal(err)
	}
	_, b, _ = sibling(t, state)
	_, late, _ := sibling(t, state)
	if err := b.Place(); err != nil {
		t.Fatal(err)
	}
	if err := late.Place(); err == nil {
		t.Error("it took the place of another")
	}
	late.Drop()
	holds(t, dir, "state")
}

func TestSiblingReplace(t *testing.T) {
	dir, state := stateIn(t)
	put(t, filepath.Join(state, "old"))
	_, b, _ := sibling(t, state)
	aside, err := b.Replace(time.Unix(1e9, 0))
	if err != nil {
		t.Fatal(err)
	}
	b.Drop()
	holds(t, dir, "state", "state"+asideInfix)
	holds(t, state, "new")
	holds(t, aside, "old")
	if filepath.Base(aside) != "state"+asideInfix+"20010909T014640.000Z" {
		t.Errorf("kept as %s", aside)
	}
}

// A front that is killed at any step leaves what the next one puts right: nothing of what
// was being made, and whatever was there before under its proper name.
func TestSiblingAfterAKill(t *testing.T) {
	killed := func(b *Sibling) { b.lock.Close() } // the kernel drops its lock
	t.Run("while it is made", func(t *testing.T) {
		dir, state := stateIn(t)
		_, b, _ := sibling(t, state)
		killed(b)
		if err := os.Mkdir(state+siblingInfix+"new", 0o700); err != nil { // before it had its mark
			t.Fatal(err)
		}
		_, c, _ := sibling(t, state)
		holds(t, dir, "state"+siblingInfix)
		c.Drop()
		holds(t, dir)
	})
	t.Run("after they changed places", func(t *testing.T) {
		dir, state := stateIn(t)
		put(t, filepath.Join(state, "old"))
		_, b, _ := sibling(t, state)
		if err := hostos.Exchange(b.Dir, state); err != nil {
			t.Skipf("SKIP this file system cannot: %s", err)
		}
		killed(b)
		holds(t, state, Restoring, "new") // which the next opening removes
		_, c, words := sibling(t, state)
		holds(t, dir, "state", "state"+asideInfix, "state"+siblingInfix)
		c.Drop()
		if !strings.Contains(words.String(), "cut off") {
			t.Errorf("it was said: %s", words)
		}
		asides, _ := filepath.Glob(state + asideInfix + "*")
		holds(t, asides[0], "old")
	})
	t.Run("while another works", func(t *testing.T) {
		dir, state := stateIn(t)
		_, b, _ := sibling(t, state)
		_, c, _ := sibling(t, state)
		holds(t, dir, "state"+siblingInfix, "state"+siblingInfix)
		holds(t, b.Dir, Restoring, "new")
		b.Drop()
		c.Drop()
		holds(t, dir)
	})
}
