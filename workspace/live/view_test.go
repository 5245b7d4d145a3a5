package live

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

func TestEveryKindOfChange(t *testing.T) {
	long := strings.Repeat("n", 255)
	deep := strings.TrimSuffix(strings.Repeat("d/", workspace.MaxDepth), "/")
	big := strings.Repeat("0123456789abcdef\n", 40_000)
	for _, c := range []struct {
		name          string
		before, after []func(*workspace.Stage) step
	}{
		{"new files", nil, all(file("a", "x"), file("d/b", "y"), file("d/e/c", ""))},
		{"a large file", nil, all(file("big", big))},
		{"another content", all(file("a", "x")), all(file("a", "y"))},
		{"another mode", all(file("a", "x"), dir("d", 0o755)), all(mode("a", 0o700), mode("d", 0o711))},
		{"no mode at all", all(file("a", "x")), all(mode("a", 0))},
		{"another time", all(file("a", "x")), all(touch("a", time.Unix(1_500_000_000, 123_456_789)))},
		{"new directories", nil, all(dir("d/e", 0o755), dir("f", 0o700))},
		{"symlinks", nil, all(link("l", "/etc/passwd"), link("d/m", "../x"), link("loop", "loop"))},
		{"another target", all(link("l", "a")), all(link("l", "b"))},
		{"removed", all(file("a", "x"), file("d/e/f", "y"), link("l", "a")), all(removed("a"), removed("d"), removed("l"))},
		{"removed in part", all(file("d/a", "x"), file("d/b", "y")), all(removed("d/a"))},
		{"file to directory", all(file("a", "x")), all(dir("a", 0o755), file("a/b", "y"))},
		{"directory to file", all(file("a/b/c", "x")), all(file("a", "y"))},
		{"directory to symlink", all(file("a/b", "x"), dir("c", 0o755)), all(link("a", "c"))},
		{"symlink to directory", all(link("a", "c"), dir("c", 0o755)), all(dir("a", 0o755), file("a/x", "y"))},
		{"symlink to file", all(link("a", "c"), file("c", "keep")), all(file("a", "new"))},
		{"gone and back", all(file("d/a", "x"), file("d/b", "x")), all(removed("d"), file("d/b", "new"))},
		{"odd names", nil, all(file("a\n\xff\\", "x"), file(long+"/"+long, "y"), file(".system2/x", "z"))},
		{"deep", nil, all(dir(deep, 0o755))},
		{"siblings that sort around a directory", all(file("a/x", "1"), file("a.b", "2"), file("a\x01", "3")), all(file("a/y", "4"), removed("a.b"), file("a\x01", "5"))},
		{"narrow directory", all(dir("d", 0o555), file("d/a", "x")), all(file("d/b", "y"), removed("d/a"))},
		{"closed directory", all(file("d/e/a", "x"), mode("d/e", 0), mode("d", 0o300)), all(file("d/e/b", "y"), file("d/c", "z"))},
		{"closed directory removed", all(file("d/e/a", "x"), mode("d/e", 0), mode("d", 0)), all(removed("d"))},
	} {
		for _, way := range []string{"by commits", "by comparing", "by links"} {
			t.Run(c.name+" "+way, func(t *testing.T) {
				p := newPair(t)
				p.sync(t)
				if len(c.before) > 0 {
					p.commit(t, c.before...)
					p.sync(t)
				}
				var old *Generation
				if way == "by links" {
					old = p.pin(t)
				}
				p.commit(t, c.after...)
				if way == "by comparing" {
					p.forget(t)
				}
				p.sync(t)
				p.sync(t)
				if old != nil {
					sameTrees(t, treeAt(t, p.im, old.Seq()), hostTree(t, old.Dir()))
					old.Release()
					p.commit(t, file("later", "z"))
					p.sync(t)
				}
			})
		}
	}
}

func all(c ...func(*workspace.Stage) step) []func(*workspace.Stage) step { return c }

// forget makes the next Pin compare everything, on a machine that has not
// been restarted.
func (p *pair) forget(t testing.TB) {
	t.Helper()
	if len(p.view.trees) > 0 {
		if err := p.newest().setState(p.newest().state.moving("elsewhere")); err != nil {
			t.Fatal(err)
		}
	}
	p.reopen(t)
}

func TestManyCommitsAtOnce(t *testing.T) {
	p := newPair(t)
	p.sync(t)
	for i := range 30 {
		p.commit(t, file(fmt.Sprintf("d%d/f%d", i%3, i%7), fmt.Sprint(i)))
		if i%4 == 0 {
			p.commit(t, removed(fmt.Sprintf("d%d", i%3)))
		}
	}
	p.sync(t)
	p.reopen(t)
	p.commit(t, file("more", "x"))
	p.sync(t)
}

// A state that is clean is believed: nothing is looked at but what commits
// changed.
func TestCleanIsBelieved(t *testing.T) {
	p := newPair(t)
	p.commit(t, file("a", "x"))
	p.sync(t)
	extra := filepath.Join(p.tree(), "extra")
	if err := os.WriteFile(extra, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.reopen(t)
	p.commit(t, file("b", "y"))
	p.pin(t).Release()
	if _, err := os.Stat(extra); err != nil {
		t.Error("everything was compared")
	}
	p.forget(t)
	p.sync(t)
}

func TestRepair(t *testing.T) {
	when := time.Unix(1_600_000_000, 0)
	for name, drift := range map[string]func(tree string) error{
		"nothing":              func(string) error { return nil },
		"file changed":         func(d string) error { return os.WriteFile(d+"/a", []byte("xX"), 0o644) },
		"file removed":         func(d string) error { return os.Remove(d + "/a") },
		"file in mid-write":    func(d string) error { return os.WriteFile(d+"/d/.mcp-vdisk-ABC", []byte("half"), 0o600) },
		"time changed":         func(d string) error { return os.Chtimes(d+"/a", when, when) },
		"mode changed":         func(d string) error { return os.Chmod(d+"/a", 0o777) },
		"directory mode":       func(d string) error { return os.Chmod(d+"/d", 0o500) },
		"directory closed":     func(d string) error { return os.Chmod(d+"/d", 0) },
		"root closed":          func(d string) error { return os.Chmod(d, 0) },
		"setuid":               func(d string) error { return os.Chmod(d+"/a", 0o644|fs.ModeSetuid) },
		"setgid directory":     func(d string) error { return os.Chmod(d+"/d", 0o755|fs.ModeSetgid) },
		"extra tree":           func(d string) error { return os.MkdirAll(d+"/x/y/z", 0o700) },
		"extra in a directory": func(d string) error { return os.WriteFile(d+"/d/zz", nil, 0o000) },
		"file to directory":    func(d string) error { return errors.Join(os.Remove(d+"/a"), os.MkdirAll(d+"/a/b", 0o755)) },
		"directory to file": func(d string) error {
			return errors.Join(os.RemoveAll(d+"/d"), os.WriteFile(d+"/d", nil, 0o644))
		},
		"link to file":     func(d string) error { return errors.Join(os.Remove(d+"/l"), os.WriteFile(d+"/l", nil, 0o644)) },
		"another target":   func(d string) error { return errors.Join(os.Remove(d+"/l"), os.Symlink("other", d+"/l")) },
		"everything gone":  func(d string) error { return os.RemoveAll(d) },
		"tree is a file":   func(d string) error { return errors.Join(os.RemoveAll(d), os.WriteFile(d, nil, 0o600)) },
		"tree is a link":   func(d string) error { return errors.Join(os.RemoveAll(d), os.Symlink("/tmp", d)) },
		"directory linked": func(d string) error { return errors.Join(os.RemoveAll(d+"/d"), os.Symlink(".", d+"/d")) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			p.commit(t, file("a", "x"), file("d/b", "y"), file("d/e/c", "z"), link("l", "a"))
			p.sync(t)
			if err := drift(p.tree()); err != nil {
				t.Fatal(err)
			}
			p.forget(t)
			p.sync(t)
		})
	}
}

// What commits have to be applied to is not there: the rest is not believed
// either.
func TestDriftOnTheWay(t *testing.T) {
	outside := t.TempDir()
	for name, drift := range map[string]func(tree string) error{
		"directory gone": func(d string) error { return os.RemoveAll(d + "/d") },
		"directory is a link to the outside": func(d string) error {
			return errors.Join(os.RemoveAll(d+"/d"), os.Symlink(outside, d+"/d"))
		},
		"directory is a link inside": func(d string) error {
			return errors.Join(os.RemoveAll(d+"/d"), os.Symlink("e", d+"/d"))
		},
		"everything gone": func(d string) error { return os.RemoveAll(d) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			p.commit(t, file("a", "x"), file("d/b", "y"), dir("e", 0o755))
			p.sync(t)
			if err := drift(p.tree()); err != nil {
				t.Fatal(err)
			}
			p.commit(t, file("d/new", "z"), removed("d/b"))
			p.sync(t)
			if names, _ := os.ReadDir(outside); len(names) != 0 {
				t.Errorf("written outside: %v", names)
			}
		})
	}
}

// A power cut may leave a file's name, size and time without its bytes.
func TestContentsAreComparedAfterARestart(t *testing.T) {
	p := newPair(t)
	p.commit(t, file("a", "right"), file("d/b", "y"))
	p.sync(t)
	spoilBytes(t, filepath.Join(p.tree(), "a"), "wrong")
	s := p.newest().state
	s.boot = "another"
	if err := p.newest().setState(s); err != nil {
		t.Fatal(err)
	}
	p.reopen(t)
	p.sync(t)
}

// A state with the right number and another commit is that of another image.
func TestStateOfAnotherHistory(t *testing.T) {
	p := newPair(t)
	p.commit(t, file("a", "x"))
	p.sync(t)
	if err := os.WriteFile(filepath.Join(p.tree(), "from elsewhere"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := p.newest().state
	s.id = strings.Repeat("0", 64)
	if err := p.newest().setState(s); err != nil {
		t.Fatal(err)
	}
	p.reopen(t)
	p.sync(t)
}

func TestParseState(t *testing.T) {
	for _, s := range []state{
		{clean: true, id: "ab", seq: 17, boot: "b"},
		{id: "ab", to: "cd", boot: "b"},
		{to: "cd", boot: unknownBoot},
	} {
		if got := parseState(s.String()); got != s {
			t.Errorf("%q is read as %+v", s, got)
		}
	}
	for _, bad := range []string{"", "clean", "clean x", "clean ab x b", "clean ab 0 b", "clean ab 1 b c", "moved a>b c", "\x00"} {
		if got := parseState(bad); got.clean || got.sameBoot() {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
}

func TestOneViewAtATime(t *testing.T) {
	p := newPair(t)
	_, err := Open(p.state, p.im)
	if !errors.Is(err, workspace.ErrLocked) {
		t.Errorf("a second view: %v", err)
	}
	if err := p.view.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.view.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	if err := p.view.Drop(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("drop after close: %v", err)
	}
	if _, err := p.view.Pin(context.Background()); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("pin after close: %v", err)
	}
	if _, err := p.view.Check(context.Background(), true); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("check after close: %v", err)
	}
	if p.view, err = Open(p.state, p.im); err != nil {
		t.Fatal(err)
	}
}

func TestDrop(t *testing.T) {
	p := newPair(t)
	p.commit(t, file("d/a", "x"), mode("d", 0))
	g := p.pin(t)
	if err := p.view.Drop(); !errors.Is(err, workspace.ErrLocked) {
		t.Errorf("dropped under a script: %v", err)
	}
	p.sync(t)
	g.Release()
	if err := p.view.Drop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(p.view.base); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	var err error
	if p.view, err = Open(p.state, p.im); err != nil {
		t.Fatal(err)
	}
	p.sync(t)
}

// Who waits for the lock of a view that is being removed gets another one.
func TestDropWhileAnotherWaits(t *testing.T) {
	for range 20 {
		p := newPair(t)
		p.sync(t)
		opened := make(chan error)
		go func() {
			v, err := Open(p.state, p.im)
			if err == nil {
				_, err = v.Pin(context.Background())
				err = errors.Join(err, v.Close())
			}
			opened <- err
		}()
		if err := p.view.Drop(); err != nil {
			t.Error(err)
		}
		if err := <-opened; err != nil {
			t.Error(err)
		}
	}
}

func TestCancelledPinIsMadeGood(t *testing.T) {
	p := newPair(t)
	p.sync(t)
	p.commit(t, file("a", "x"), file("b", "y"))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 2 {
		if _, err := p.view.Pin(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
	p.sync(t)
}

// Also in the middle of a file: one may be large.
func TestCancelledInTheMiddleOfAFile(t *testing.T) {
	p := newPair(t)
	p.sync(t)
	p.commit(t, file("big", strings.Repeat("x", 3*roomStep/2)))
	ctx, cancel := context.WithCancel(context.Background())
	looks := 0
	p.view.free = func(path string) (uint64, uint64, error) {
		if looks++; looks == 2 { // the first is before any work, this one at the file
			cancel()
		}
		return hostos.Free(path)
	}
	if _, err := p.view.Pin(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if left := entries(t, p.tree()); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	p.sync(t)
}

// A comparison of contents that does not come to its end is owed still.
func TestCancelledComparisonIsAsThoroughTheNextTime(t *testing.T) {
	p := newPair(t)
	p.commit(t, file("a", "right"))
	p.sync(t)
	spoilBytes(t, filepath.Join(p.tree(), "a"), "wrong")
	s := p.newest().state
	s.boot = "another"
	if err := p.newest().setState(s); err != nil {
		t.Fatal(err)
	}
	p.reopen(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := p.view.Pin(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	p.reopen(t)
	p.sync(t)
}

// spoilBytes changes what only a comparison of contents finds.
func spoilBytes(t *testing.T, name, text string) {
	t.Helper()
	st, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if int(st.Size()) != len(text) {
		t.Fatalf("%s has %d bytes", name, st.Size())
	}
	if err := errors.Join(os.WriteFile(name, []byte(text), 0o644), os.Chtimes(name, st.ModTime(), st.ModTime())); err != nil {
		t.Fatal(err)
	}
}

// Commits go on while everything is compared.
func TestCompareDuringCommits(t *testing.T) {
	p := newPair(t)
	for i := range 200 {
		p.commit(t, file(fmt.Sprintf("d%d/f%d", i%20, i), "x"))
	}
	p.sync(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 60 {
			p.commit(t, file(fmt.Sprintf("d%d/g%d", i%20, i), "y"))
			if i%10 == 9 {
				p.commit(t, removed(fmt.Sprintf("d%d", i%20)))
			}
		}
	}()
	for range 5 {
		p.forget(t)
		p.pin(t).Release()
	}
	<-done
	p.sync(t)
}

func TestRandomCommits(t *testing.T) {
	names := rapid.SampledFrom([]string{"a", "b", "a.b", "c\xff"})
	modes := rapid.SampledFrom([]uint32{0o755, 0o555, 0, 0o300})
	rapid.Check(t, func(rt *rapid.T) {
		p := newPair(t)
		var held *Generation
		for range rapid.IntRange(2, 8).Draw(rt, "syncs") {
			for range rapid.IntRange(1, 4).Draw(rt, "commits") {
				s := p.im.Stage(context.Background())
				name := strings.Join(rapid.SliceOfN(names, 1, 3).Draw(rt, "path"), "/")
				var c step
				switch rapid.IntRange(0, 4).Draw(rt, "op") {
				case 0, 1:
					c = file(name, rapid.SampledFrom([]string{"", "x", "yy"}).Draw(rt, "text"))(s)
				case 2:
					c = dir(name, modes.Draw(rt, "mode"))(s)
				case 3:
					c = link(name, "a")(s)
				case 4:
					c = removed(name)(s)
				}
				// What the image refuses changes nothing, which is as good.
				p.im.Commit(context.Background(), workspace.Txn{Stage: s, Changes: []step{c}})
			}
			switch rapid.IntRange(0, 3).Draw(rt, "then") {
			case 0:
				if held == nil {
					p.forget(t)
				}
			case 1:
				if held == nil {
					held = p.pin(t)
				}
			case 2:
				if held != nil {
					sameTrees(t, treeAt(t, p.im, held.Seq()), hostTree(t, held.Dir()))
					held.Release()
					held = nil
				}
			}
			p.sync(t)
		}
		if held != nil {
			sameTrees(t, treeAt(t, p.im, held.Seq()), hostTree(t, held.Dir()))
			held.Release()
		}
		p.view.Drop()
		p.im.Close()
		if t.Failed() {
			rt.FailNow()
		}
	})
}
