package live

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

func TestUpToDateGenerationIsShared(t *testing.T) {
	p := newPair(t)
	p.commit(t, file("a", "x"))
	a, b := p.pin(t), p.pin(t)
	if a.Dir() != b.Dir() || a.Seq() != b.Seq() {
		t.Errorf("%s at %d and %s at %d", a.Dir(), a.Seq(), b.Dir(), b.Seq())
	}
	a.Release()
	a.Release() // counts once
	p.commit(t, file("a", "y"))
	c := p.pin(t)
	if c.Dir() == b.Dir() {
		t.Error("a generation that is held was taken to be changed")
	}
	sameTrees(t, treeAt(t, p.im, b.Seq()), hostTree(t, b.Dir()))
}

func TestGenerationThatNobodyHoldsIsAdvanced(t *testing.T) {
	p := newPair(t)
	a := p.pin(t)
	a.Release()
	p.commit(t, file("a", "x"))
	b := p.pin(t)
	if a.Dir() != b.Dir() || a.Seq() == b.Seq() {
		t.Errorf("%s at %d, then %s at %d", a.Dir(), a.Seq(), b.Dir(), b.Seq())
	}
}

func TestOldGenerationGoesWithItsLastHolder(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 0, 3, 2}, {2, 3, 0, 1}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			p := newPair(t)
			var held []*Generation
			for i := range 4 { // 0 and 1 share one generation
				if i != 1 {
					p.commit(t, file("f", fmt.Sprint(i)), file(fmt.Sprint("f", i), "x"))
				}
				held = append(held, p.pin(t))
			}
			if n := p.generations(t); len(n) != 3 {
				t.Fatalf("generations %v, want three", n)
			}
			for _, i := range order {
				held[i].Release()
				held[i] = nil
				for _, g := range held {
					if g != nil {
						sameTrees(t, treeAt(t, p.im, g.Seq()), hostTree(t, g.Dir()))
					}
				}
			}
			if n := p.generations(t); !slices.Equal(n, []string{p.newest().name()}) {
				t.Errorf("left: %v", n)
			}
			p.sync(t)
		})
	}
}

// An unchanged file of two generations is one file on the host.
func TestGenerationsShareFiles(t *testing.T) {
	if !linksFiles(t) {
		t.Skip("no hard links here")
	}
	p := newPair(t)
	p.commit(t, file("d/same", "x"), file("d/changed", "x"), link("l", "d"))
	a := p.pin(t)
	p.commit(t, file("d/changed", "y"))
	b := p.pin(t)
	for name, want := range map[string]bool{"d/same": true, "d/changed": false, "l": true} {
		one, err := os.Lstat(filepath.Join(a.Dir(), name))
		two, err2 := os.Lstat(filepath.Join(b.Dir(), name))
		if err != nil || err2 != nil || os.SameFile(one, two) != want {
			t.Errorf("%s: shared is not %v (%v, %v)", name, want, err, err2)
		}
	}
}

func linksFiles(t *testing.T) bool {
	t.Helper()
	d, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	return !errors.Is(linkAt(d, d, "nothing"), errors.ErrUnsupported)
}

// inodes is everything about a tree that must not change while it is held.
func inodes(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) {
			return nil
		} else if err != nil {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		body := ""
		switch {
		case st.Mode().IsRegular():
			b, err := os.ReadFile(name)
			if err != nil && !errors.Is(err, fs.ErrPermission) {
				return err
			}
			body = fmt.Sprintf("%x", sha256.Sum256(b))
		case st.Mode().Type() == fs.ModeSymlink:
			if body, err = os.Readlink(name); err != nil {
				return err
			}
		}
		_, id, _ := diskUse(st)
		all[name] = fmt.Sprint(id, st.Mode(), st.ModTime().UnixNano(), body)
		if st.IsDir() {
			all[name] = fmt.Sprint(st.Mode(), st.ModTime().UnixNano(), id)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A hundred commits of every kind and as many Pins, some of which change a
// generation in place and some of which make one by links, some of which
// compare: not an inode of a generation that is held changes.
func TestPinnedStaysAsItIs(t *testing.T) {
	p := newPair(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	name := func() string {
		return strings.Repeat(fmt.Sprintf("d%d/", rnd.IntN(4)), rnd.IntN(3)) + fmt.Sprintf("f%d", rnd.IntN(12))
	}
	modes := []uint32{0o644, 0o755, 0o600, 0o444, 0, 0o777, 0o111}
	random := func(s *workspace.Stage) step {
		switch rnd.IntN(7) {
		case 0:
			return mode(name(), modes[rnd.IntN(len(modes))])(s)
		case 1:
			return touch(name(), time.Unix(int64(rnd.IntN(1_000_000)), 0))(s)
		case 2:
			return removed(name())(s)
		case 3:
			return link(name(), name())(s)
		case 4:
			return dir(name(), modes[rnd.IntN(len(modes))])(s)
		}
		return file(name(), strings.Repeat("x", rnd.IntN(2000)))(s)
	}
	try := func() {
		s := p.im.Stage(context.Background())
		// What the image refuses changes nothing, which is as good.
		p.im.Commit(context.Background(), workspace.Txn{Stage: s, Changes: []step{random(s)}})
	}
	for range 100 {
		try()
	}
	type held struct {
		g    *Generation
		was  map[string]string
		tree map[string]string
	}
	var old []held
	for i := range 100 {
		try()
		g := p.pin(t)
		switch {
		case i%20 == 0:
			old = append(old, held{g, inodes(t, g.Dir()), treeAt(t, p.im, g.Seq())})
			continue
		case i%20 == 10: // make the next one compare
			g.Release()
			p.newest().ready = false
			if err := p.newest().setState(p.newest().state.moving("elsewhere")); err != nil {
				t.Fatal(err)
			}
			continue
		}
		g.Release()
	}
	for _, h := range old {
		if now := inodes(t, h.g.Dir()); !maps.Equal(now, h.was) {
			for name, was := range h.was {
				if now[name] != was {
					t.Errorf("%s was %q, is %q", name, was, now[name])
				}
			}
			t.Errorf("generation of commit %d has changed: %d entries, had %d", h.g.Seq(), len(now), len(h.was))
		}
	}
	for _, h := range old { // last: as an ordinary user it opens directories up
		sameTrees(t, h.tree, hostTree(t, h.g.Dir()))
	}
	if len(old) != 5 {
		t.Errorf("%d generations were held", len(old))
	}
	p.sync(t)
}

func TestClosedDirectoriesOfAPinnedGeneration(t *testing.T) {
	for name, then := range map[string][]func(*workspace.Stage) step{
		"something else":       {file("other", "x")},
		"a file in it":         {file("d/e/b", "new")},
		"gone":                 {removed("d")},
		"a file now":           {file("d", "x")},
		"opened":               {mode("d", 0o755), mode("d/e", 0o755)},
		"the inner one closed": {mode("d", 0o755)},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			p.commit(t, file("d/e/a", "x"), file("d/c", "y"), link("d/l", "c"), file("closed", "z"),
				mode("closed", 0), mode("d/e", 0o300), mode("d", 0))
			g := p.pin(t)
			before := inodes(t, g.Dir())
			p.commit(t, then...)
			p.sync(t)
			if !maps.Equal(before, inodes(t, g.Dir())) {
				t.Error("the generation that is held has changed")
			}
			sameTrees(t, treeAt(t, p.im, g.Seq()), hostTree(t, g.Dir()))
		})
	}
}

// Where links cannot be made, files are written anew.
func TestWithoutLinks(t *testing.T) {
	for name, cause := range map[string]error{
		"too many": syscall.EMLINK, "another device": syscall.EXDEV, "none here": syscall.EPERM, "unknown": errors.ErrUnsupported,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			n := 0
			p.view.link = func(from, to *os.File, name string) error {
				if n++; n%2 == 0 {
					return &os.LinkError{Op: "link", Err: cause}
				}
				return linkAt(from, to, name)
			}
			p.commit(t, file("a", "x"), file("b", "y"), file("c", "z"), file("d/e", "u"), file("d/f", "v"), link("l", "a"), link("m", "b"))
			g := p.pin(t)
			p.commit(t, removed("a"), dir("b", 0o755), file("c", "new"), removed("d"))
			p.sync(t)
			if n == 0 {
				t.Error("no link was tried")
			}
			sameTrees(t, treeAt(t, p.im, g.Seq()), hostTree(t, g.Dir()))
		})
	}
}

// Another error of link(2) is one of Pin, and leaves nothing behind.
func TestFailedLink(t *testing.T) {
	p := newPair(t)
	p.commit(t, file("a", "x"))
	g := p.pin(t)
	p.commit(t, file("b", "y"))
	p.view.link = func(_, _ *os.File, _ string) error { return syscall.EIO }
	if _, err := p.view.Pin(context.Background()); !errors.Is(err, syscall.EIO) {
		t.Errorf("got %v", err)
	}
	if n := p.generations(t); len(n) != 1 {
		t.Errorf("left: %v", n)
	}
	sameTrees(t, treeAt(t, p.im, g.Seq()), hostTree(t, g.Dir()))
	p.view.link = linkAt
	p.sync(t)
}

// A generation that is held was changed by hand, so that no tree can be made
// from it: the new one is compared with the image.
func TestDriftInAPinnedGeneration(t *testing.T) {
	for name, drift := range map[string]func(tree string) error{
		"directory gone":      func(d string) error { return os.RemoveAll(d + "/d") },
		"everything gone":     func(d string) error { return os.RemoveAll(d) },
		"a link in its place": func(d string) error { return errors.Join(os.RemoveAll(d+"/d"), os.Symlink("/", d+"/d")) },
		"an impossible name":  func(d string) error { return os.Mkdir(d+"/.system", 0o700) },
		"a file too many":     func(d string) error { return errors.Join(os.WriteFile(d+"/.logs", nil, 0o600), os.RemoveAll(d+"/d")) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			p.commit(t, file("a", "x"), file("d/b", "y"))
			g := p.pin(t)
			if err := drift(g.Dir()); err != nil {
				t.Fatal(err)
			}
			p.commit(t, file("d/b", "z"))
			p.sync(t)
		})
	}
}

// While somebody has work to do, an up-to-date generation is still shared, and
// who waits stops with its context, with the view, or when what it wants is there.
func TestPinWhileAnotherWorks(t *testing.T) {
	p := newPair(t)
	p.commit(t, file("a", "x"))
	p.pin(t)
	p.view.slot <- struct{}{} // somebody works
	p.pin(t)
	p.commit(t, file("b", "y"))

	ctx, cancel := context.WithCancelCause(context.Background())
	mine := errors.New("mine")
	cancel(mine)
	if _, err := p.view.Pin(ctx); !errors.Is(err, mine) {
		t.Errorf("cancelled: %v", err)
	}

	got := make(chan error)
	wait := func() {
		go func() {
			g, err := p.view.Pin(context.Background())
			if err == nil {
				g.Release()
			}
			got <- err
		}()
	}
	wait()
	head, err := p.im.Info()
	if err != nil {
		t.Fatal(err)
	}
	made, err := p.view.fork(context.Background(), p.newest())
	if err != nil || made.state.seq != head.Seq {
		t.Fatal(made, err)
	}
	if _, err := p.view.publish(made); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil { // the slot is still taken
		t.Errorf("what it waits for is there: %v", err)
	}

	p.commit(t, file("c", "z"))
	wait()
	closed := make(chan error)
	go func() { closed <- p.view.Close() }()
	if err := <-got; !errors.Is(err, fs.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	<-p.view.slot // the work ends
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// Close ends a Pin at work. What it was making is gone, or it is whole when it
// was as good as finished; the next Open keeps one.
func TestCloseDuringPin(t *testing.T) {
	p := newPair(t)
	p.commit(t, file("a", "x"), file("b", "x"))
	g := p.pin(t)
	p.commit(t, file("c", "y"))
	closed := make(chan error)
	p.view.link = func(from, to *os.File, name string) error {
		if closing := p.view.life.Err() == nil; closing {
			go func() { closed <- p.view.Close() }()
			<-p.view.life.Done()
		}
		return linkAt(from, to, name)
	}
	if _, err := p.view.Pin(context.Background()); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	sameTrees(t, treeAt(t, p.im, g.Seq()), hostTree(t, g.Dir()))
	g.Release()
	if _, err := os.Stat(g.Dir()); err != nil {
		t.Errorf("released after Close: %v", err)
	}
	p.reopen(t)
	if n := p.generations(t); len(n) != 1 {
		t.Errorf("left: %v", n)
	}
	p.sync(t)
}

// Scripts come and go while others commit.
func TestPinDuringCommits(t *testing.T) {
	p := newPair(t)
	for i := range 100 {
		p.commit(t, file(fmt.Sprintf("d%d/f%d", i%10, i), "x"))
	}
	rounds := 12
	if os.Getenv("MCP_VDISK_SOAK") == "1" {
		rounds = 200
	}
	var committers, pinners sync.WaitGroup
	var left atomic.Int64
	left.Store(8)
	for w := range 4 {
		committers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for left.Load() > 0 {
				name := fmt.Sprintf("d%d/f%d", rnd.IntN(10), rnd.IntN(30))
				s := p.im.Stage(context.Background())
				c := []func(*workspace.Stage) step{
					file(name, fmt.Sprint(rnd.Uint64())), removed(name), mode(name, 0o600), link(name, "x"),
					dir(fmt.Sprintf("d%d", rnd.IntN(10)), 0o700), removed(fmt.Sprintf("d%d", rnd.IntN(10))),
				}[rnd.IntN(6)](s)
				p.im.Commit(context.Background(), workspace.Txn{Stage: s, Changes: []step{c}})
			}
		})
	}
	for range 8 {
		pinners.Go(func() {
			defer left.Add(-1)
			for range rounds {
				before, err := p.im.Info()
				if err != nil {
					t.Error(err)
					return
				}
				g, err := p.view.Pin(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				if g.Seq() < before.Seq {
					t.Errorf("pinned commit %d, the newest was %d", g.Seq(), before.Seq)
				}
				sameTrees(t, treeAt(t, p.im, g.Seq()), hostTree(t, g.Dir()))
				g.Release()
			}
		})
	}
	pinners.Wait()
	committers.Wait()
	p.sync(t)
	if n := p.generations(t); len(n) != 1 {
		t.Errorf("left: %v", n)
	}
}
