package live

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

type pair struct {
	im    *workspace.Image
	path  string // of the image
	state string // where views live
	view  *View
}

func newPair(t testing.TB) *pair {
	t.Helper()
	dir := t.TempDir()
	p := &pair{path: filepath.Join(dir, "test.vdisk"), state: filepath.Join(dir, "live")}
	im, err := workspace.Create(p.path, workspace.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.im = im
	if p.view, err = Open(p.state, im); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.view.Drop(); p.im.Close() })
	return p
}

// reopen opens the view anew, as another process would.
func (p *pair) reopen(t testing.TB) {
	t.Helper()
	if err := p.view.Close(); err != nil {
		t.Fatal(err)
	}
	var err error
	if p.view, err = Open(p.state, p.im); err != nil {
		t.Fatal(err)
	}
}

// newest is the generation that the next Pin starts from.
func (p *pair) newest() *tree { return p.view.trees[len(p.view.trees)-1] }

// tree is where its files are.
func (p *pair) tree() string { return filepath.Join(p.view.base, p.newest().name(), treeName) }

// pin pins the newest commit.
func (p *pair) pin(t testing.TB) *Generation {
	t.Helper()
	g, err := p.view.Pin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Release)
	return g
}

func path(s string) workspace.Path {
	p, err := workspace.FromBytes([]byte(s))
	if err != nil {
		panic(err)
	}
	return p
}

type step = workspace.Change

func file(p, text string) func(*workspace.Stage) step {
	return func(s *workspace.Stage) step {
		c, err := s.Add(strings.NewReader(text))
		if err != nil {
			panic(err)
		}
		return step{Op: workspace.OpPut, Path: path(p), Content: c, Parents: true, Replace: true}
	}
}

func of(c step) func(*workspace.Stage) step {
	return func(*workspace.Stage) step { return c }
}

func dir(p string, mode uint32) func(*workspace.Stage) step {
	return of(step{Op: workspace.OpMkdir, Path: path(p), Mode: mode | workspace.ModeSet, Parents: true, Replace: true})
}

func link(p, target string) func(*workspace.Stage) step {
	return of(step{Op: workspace.OpSymlink, Path: path(p), Target: target, Parents: true, Replace: true})
}

func removed(p string) func(*workspace.Stage) step {
	return of(step{Op: workspace.OpRemove, Path: path(p), Recursive: true})
}

func mode(p string, mode uint32) func(*workspace.Stage) step {
	return of(step{Op: workspace.OpMeta, Path: path(p), Mode: mode | workspace.ModeSet})
}

func touch(p string, at time.Time) func(*workspace.Stage) step {
	return of(step{Op: workspace.OpMeta, Path: path(p), ModTime: at})
}

func (p *pair) commit(t testing.TB, changes ...func(*workspace.Stage) step) {
	t.Helper()
	s := p.im.Stage(context.Background())
	var steps []step
	for _, c := range changes {
		steps = append(steps, c(s))
	}
	p.commitAll(t, s, steps)
}

func (p *pair) commitAll(t testing.TB, s *workspace.Stage, steps []step) {
	t.Helper()
	if _, err := p.im.Commit(context.Background(), workspace.Txn{Stage: s, Changes: steps}); err != nil {
		t.Fatal(err)
	}
}

// sync pins the newest commit, checks that the tree is what the image is, and
// releases it.
func (p *pair) sync(t testing.TB) {
	t.Helper()
	g := p.pin(t)
	defer g.Release()
	info, err := p.im.Info()
	if err != nil || g.Seq() != info.Seq || g.Commit() != info.Commit || !filepath.IsAbs(g.Dir()) {
		t.Fatalf("pinned %s at %d (%s), head is %d (%s) (%v)", g.Dir(), g.Seq(), g.Commit(), info.Seq, info.Commit, err)
	}
	sameTrees(t, imageTree(t, p.im), hostTree(t, g.Dir()))
}

func sameTrees(t testing.TB, want, got map[string]string) {
	t.Helper()
	if maps.Equal(want, got) {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%q is %q, want %q", name, got[name], want[name])
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%q is too much", name)
		}
	}
}

// generations are the numbers of those on disk.
func (p *pair) generations(t testing.TB) (names []string) {
	t.Helper()
	for _, e := range entries(t, p.view.base) {
		if e != lockName {
			names = append(names, e)
		}
	}
	return names
}

func entries(t testing.TB, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func describe(kind string, mode uint32, at time.Time, body []byte) string {
	switch kind {
	case "dir":
		return fmt.Sprintf("dir %o", mode)
	case "link":
		return "link " + string(body)
	}
	return fmt.Sprintf("file %o %d %x", mode, at.UnixNano(), sha256.Sum256(body))
}

func describeNode(t testing.TB, im *workspace.Image, p workspace.Path, n workspace.Node) string {
	t.Helper()
	switch n.Kind {
	case workspace.KindDir:
		return describe("dir", n.Mode, n.ModTime, nil)
	case workspace.KindSymlink:
		return describe("link", 0, n.ModTime, []byte(n.Target))
	}
	f, err := im.OpenNode(p, n)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(f.Reader()); err != nil {
		t.Fatal(err)
	}
	return describe("file", n.Mode, n.ModTime, b.Bytes())
}

func imageTree(t testing.TB, im *workspace.Image) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := im.Walk(context.Background(), workspace.Path{}, func(e workspace.Entry) error {
		all[e.Path.Rel()] = describeNode(t, im, e.Path, e.Node)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// treeAt is what the image was at a commit, told by its history.
func treeAt(t testing.TB, im *workspace.Image, seq uint64) map[string]string {
	t.Helper()
	log, err := im.Log(0, int(seq))
	if err != nil || len(log) != int(seq) {
		t.Fatalf("%d commits, want %d (%v)", len(log), seq, err)
	}
	nodes := map[workspace.Path]*workspace.Node{}
	for _, c := range log {
		for _, e := range c.Effects {
			if nodes[e.Path] = e.After; e.After == nil {
				delete(nodes, e.Path)
			}
		}
	}
	all := map[string]string{}
	for p, n := range nodes {
		all[p.Rel()] = describeNode(t, im, p, *n)
	}
	return all
}

// hostTree looks at the directory. An ordinary user has to open up what it
// may not read, and does so after it noted the mode.
func hostTree(t testing.TB, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	var visit func(rel string)
	visit = func(rel string) {
		full := filepath.Join(root, rel)
		st, err := os.Lstat(full)
		if err != nil {
			t.Fatal(err)
		}
		m := st.Mode()
		if m&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 {
			t.Errorf("%s has mode %v", rel, m)
		}
		switch {
		case m.IsDir():
			if rel != "" {
				all[rel] = describe("dir", uint32(m.Perm()), st.ModTime(), nil)
			}
			if m&0o700 != 0o700 && os.Geteuid() != 0 {
				os.Chmod(full, 0o700)
				defer os.Chmod(full, m.Perm())
			}
			entries, err := os.ReadDir(full)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				visit(filepath.Join(rel, e.Name()))
			}
		case m.Type() == fs.ModeSymlink:
			target, _ := os.Readlink(full)
			all[rel] = describe("link", 0, st.ModTime(), []byte(target))
		case m.IsRegular():
			if m&0o400 == 0 && os.Geteuid() != 0 {
				os.Chmod(full, 0o400)
				defer os.Chmod(full, m.Perm())
			}
			b, err := os.ReadFile(full)
			if err != nil {
				t.Fatal(err)
			}
			all[rel] = describe("file", uint32(m.Perm()), st.ModTime(), b)
		default:
			all[rel] = m.String()
		}
	}
	visit("")
	return all
}
