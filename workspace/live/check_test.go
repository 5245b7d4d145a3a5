package live

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// wantDrift checks the newest generation.
func (p *pair) wantDrift(t *testing.T, repair bool, want ...string) {
	t.Helper()
	found, err := p.view.Check(context.Background(), repair)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range found {
		got = append(got, d.Path+" "+d.Text)
	}
	if !slices.Equal(got, want) {
		t.Errorf("drift\n %s, want\n %s", strings.Join(got, "\n "), strings.Join(want, "\n "))
	}
}

func TestCheck(t *testing.T) {
	same := func(d string) error { return nil }
	for _, c := range []struct {
		name  string
		drift func(tree string) error
		want  []string
	}{
		{"nothing", same, nil},
		{"bytes only", func(d string) error {
			st, err := os.Stat(d + "/a")
			return errors.Join(err, os.WriteFile(d+"/a", []byte("X"), 0o644), os.Chtimes(d+"/a", st.ModTime(), st.ModTime()))
		}, []string{"/workspace/a has other bytes"}},
		{"size", func(d string) error { return os.WriteFile(d+"/d/b", []byte("longer"), 0o644) }, []string{"/workspace/d/b has another size"}},
		{"time", func(d string) error { return os.Chtimes(d+"/a", time.Time{}, time.Unix(1, 0)) }, []string{"/workspace/a has another time"}},
		{"modes", func(d string) error { return errors.Join(os.Chmod(d+"/a", 0o600), os.Chmod(d+"/d", 0o700)) },
			[]string{"/workspace/a has mode -rw------- instead of -rw-r--r--", "/workspace/d has mode drwx------ instead of drwxr-xr-x"}},
		{"setuid", func(d string) error { return os.Chmod(d+"/a", 0o644|fs.ModeSetuid) }, []string{"/workspace/a has mode urw-r--r-- instead of -rw-r--r--"}},
		{"root", func(d string) error { return os.Chmod(d, 0o700) }, []string{"/workspace has mode drwx------ instead of drwxr-xr-x"}},
		{"missing", func(d string) error { return errors.Join(os.Remove(d+"/a"), os.RemoveAll(d+"/d")) },
			[]string{"/workspace/a is missing", "/workspace/d is missing"}},
		{"too much", func(d string) error { return os.MkdirAll(d+"/d/x/y", 0o700) }, []string{"/workspace/d/x is not on the disk"}},
		{"a temporary file", func(d string) error { return os.WriteFile(d+"/.mcp-vdisk-X", nil, 0) }, []string{"/workspace/.mcp-vdisk-X is not on the disk"}},
		{"a reserved name", func(d string) error { return os.Mkdir(d+"/.system", 0o700) }, []string{`"/workspace/.system" is not on the disk`}},
		{"a name that is not plain", func(d string) error { return os.WriteFile(d+"/\n", nil, 0o600) }, []string{`"/workspace/\n" is not on the disk`}},
		{"target", func(d string) error { return errors.Join(os.Remove(d+"/l"), os.Symlink("b", d+"/l")) }, []string{"/workspace/l has another target"}},
		{"kinds", func(d string) error {
			return errors.Join(os.RemoveAll(d+"/d"), os.Symlink("/", d+"/d"), os.Remove(d+"/a"), os.MkdirAll(d+"/a/b", 0o755))
		}, []string{"/workspace/a is of another kind", "/workspace/d is of another kind"}},
		{"everything gone", os.RemoveAll, []string{"/workspace is missing"}},
		{"a directory at the door", func(d string) error { return errors.Join(os.RemoveAll(d), os.Symlink("/", d)) }, []string{"/workspace is of another kind"}},
	} {
		for _, held := range []bool{false, true} {
			for _, behind := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, held %v, behind %v", c.name, held, behind), func(t *testing.T) {
					p := newPair(t)
					p.commit(t, file("a", "x"), file("d/b", "y"), link("l", "a"), file("later", "x"), dir("gone/e", 0o755))
					g := p.pin(t)
					if !held {
						g.Release()
					}
					if behind { // commits that the generation does not have are no drift
						p.commit(t, file("later", "z"), file("new/x", "z"), removed("gone"), file("gone", "file"))
						p.commit(t, removed("new"), dir("later2", 0o700))
					}
					before := p.generations(t)
					if err := c.drift(g.Dir()); err != nil {
						t.Fatal(err)
					}
					p.wantDrift(t, false, c.want...)
					if !slices.Equal(before, p.generations(t)) {
						t.Error("a look has changed something")
					}
					p.wantDrift(t, true, c.want...)
					if len(c.want) > 0 {
						p.wantDrift(t, true) // nothing is left that could differ
					}
					p.sync(t)
					p.wantDrift(t, false)
					g.Release()
					p.sync(t)
					if n := p.generations(t); len(n) != 1 {
						t.Errorf("left: %v", n)
					}
				})
			}
		}
	}
}

// A path that was changed since the generation's commit is compared with what
// it was then.
func TestCheckOfAPathThatWasChangedSince(t *testing.T) {
	p := newPair(t)
	p.commit(t, file("a", "x"), file("b", "x"), file("d/c", "x"), file("e/f/g", "x"))
	p.sync(t)
	p.commit(t, file("a", "y"), removed("b"), removed("d"), removed("e"), file("e", "now a file"), file("new", "x"))
	p.wantDrift(t, false)
	d := p.tree()
	err := errors.Join(os.WriteFile(d+"/a", []byte("zz"), 0o644), os.Remove(d+"/b"), os.WriteFile(d+"/d/extra", nil, 0o644),
		os.RemoveAll(d+"/e/f"), os.WriteFile(d+"/e/f", nil, 0o644), os.WriteFile(d+"/new", []byte("x"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	p.wantDrift(t, true, "/workspace/a has another size", "/workspace/b is missing", "/workspace/d/extra is not on the disk",
		"/workspace/e/f is of another kind", "/workspace/new is not on the disk")
	p.sync(t)
}

// What is wrong with a file is wrong in every generation that shares it, so none
// of them is a source any more, not even after a crash.
func TestCheckGivesUpWhatIsShared(t *testing.T) {
	for _, crash := range []bool{false, true} {
		p := newPair(t)
		p.commit(t, file("a", "right"))
		old := p.pin(t)
		p.commit(t, file("b", "x"))
		g := p.pin(t)
		spoilBytes(t, filepath.Join(g.Dir(), "a"), "wrong")
		g.Release()
		p.wantDrift(t, true, "/workspace/a has other bytes")
		if crash {
			p.reopen(t)
		}
		p.sync(t)
		old.Release()
		p.sync(t)
		if n := p.generations(t); len(n) != 1 {
			t.Errorf("left: %v", n)
		}
	}
}

// Without a clean generation there is nothing to check: it is not believed.
func TestCheckOfNothing(t *testing.T) {
	p := newPair(t)
	p.wantDrift(t, true)
	p.commit(t, file("a", "x"))
	p.sync(t)
	if err := os.WriteFile(filepath.Join(p.tree(), "a"), []byte("drift"), 0o644); err != nil {
		t.Fatal(err)
	}
	p.forget(t)
	p.wantDrift(t, true)
	p.sync(t)
}

// A generation of an earlier process, and of an earlier start of the machine.
func TestCheckAfterReopening(t *testing.T) {
	p := newPair(t)
	p.commit(t, file("a", "x"))
	p.sync(t)
	s := p.newest().state
	s.boot = "another"
	if err := p.newest().setState(s); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(p.tree(), "a")); err != nil {
		t.Fatal(err)
	}
	p.reopen(t)
	p.wantDrift(t, true, "/workspace/a is missing")
	p.sync(t)
}

func TestCheckOfClosedDirectories(t *testing.T) {
	p := newPair(t)
	p.commit(t, file("d/e/a", "x"), file("closed", "y"), mode("closed", 0), mode("d/e", 0o300), mode("d", 0))
	p.sync(t)
	p.wantDrift(t, true)
	p.commit(t, file("d/e/b", "x"), removed("closed"))
	p.wantDrift(t, true)
	p.sync(t)
}

func TestCheckDuringCommits(t *testing.T) {
	p := newPair(t)
	for i := range 100 {
		p.commit(t, file(fmt.Sprintf("d%d/f%d", i%20, i), "x"))
	}
	p.sync(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 100 {
			p.commit(t, file(fmt.Sprintf("d%d/g%d", i%20, i), "y"))
			if i%5 == 4 {
				p.commit(t, removed(fmt.Sprintf("d%d", i%20)))
			}
		}
	}()
	for range 10 {
		p.wantDrift(t, false)
	}
	<-done
	p.wantDrift(t, false)
	p.sync(t)
}

func TestCheckEndsWithItsContext(t *testing.T) {
	p := newPair(t)
	p.commit(t, file("a", "x"))
	p.sync(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p.view.slot <- struct{}{}
	if _, err := p.view.Check(ctx, true); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting: %v", err)
	}
	<-p.view.slot
	c := &checker{ctx: ctx, im: p.im, tree: p.newest().root, seen: p.newest().state.seq, was: map[string]*workspace.Node{}}
	if err := c.run(); !errors.Is(err, context.Canceled) {
		t.Errorf("at work: %v", err)
	}
}
