package resolve

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pythontest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// world is what every test needs: a box, an interpreter and the pip to test with, the
// pinned one if an index answers, else that of the host.
type world struct {
	box  *sandboxrun.Runner
	py   *python.Interpreter
	root string
	pip  *Pip
}

// newWorld skips a test on a host without sandbox, Python or pip.
func newWorld(t testing.TB) *world {
	t.Helper()
	root, py := pythontest.System(t)
	w := &world{box: pyenvtest.Box(t), py: py, root: root}
	found := thePip(w)
	if found.pip == nil {
		t.Skip("SKIP ", found.why)
	}
	w.pip = found.pip
	return w
}

// foundPip is the pip that the tests have, or why there is none, or not the pinned one.
type foundPip struct {
	pip *Pip
	why string
}

var onePip struct {
	once  sync.Once
	found foundPip
}

func thePip(w *world) foundPip {
	onePip.once.Do(func() { onePip.found = findPip(context.Background(), w) })
	return onePip.found
}

func findPip(ctx context.Context, w *world) foundPip {
	c, _, err := ReadConfig(os.Environ(), os.Getenv("HOME"))
	if err != nil {
		return foundPip{why: err.Error()}
	}
	p, err := InstallTool(ctx, w.root, "", c, w.box, w.py)
	if err == nil {
		return foundPip{pip: p}
	}
	why := "the pinned pip could not be fetched: " + err.Error()
	if p, err = FindTool(ctx, w.root, w.box, w.py); err != nil {
		why += "; " + err.Error()
	}
	return foundPip{p, why}
}

// oldPip is the pip of the host, which has other words and fewer options.
func oldPip(t testing.TB) *Pip {
	t.Helper()
	w := newWorld(t)
	p, _, err := findHost(t.Context(), w.box, w.py)
	if err != nil {
		t.Fatal(err)
	}
	if p == nil {
		t.Skip("SKIP the host has no pip of its own")
	}
	return p
}

// everyPip runs a test with the pinned pip and with that of the host: it is about words
// or ways in which they differ.
func everyPip(t *testing.T, test func(t *testing.T, p *Pip)) {
	somePip(t, test)
	if !pyenvtest.Soak() {
		t.Run("host", func(t *testing.T) { test(t, oldPip(t)) })
	}
}

// somePip runs a test with the pinned pip, and with that of the host in a soak only.
func somePip(t *testing.T, test func(t *testing.T, p *Pip)) {
	t.Run("tool", func(t *testing.T) {
		p := newWorld(t).pip
		t.Log(p.Name(), thePip(nil).why)
		test(t, p)
	})
	if pyenvtest.Soak() {
		t.Run("host", func(t *testing.T) { test(t, oldPip(t)) })
	}
}

// index starts an index with wheels.
func index(t testing.TB, o indextest.Options, wheels ...wheeltest.Wheel) *indextest.Index {
	t.Helper()
	x := indextest.New(o)
	t.Cleanup(x.Close)
	for _, w := range wheels {
		x.Add(file(w))
	}
	return x
}

func file(w wheeltest.Wheel) indextest.File {
	return indextest.File{Name: w.FileName(), Body: w.Bytes()}
}

// pkg is a wheel of a module of its own.
func pkg(name, version string, requires ...string) wheeltest.Wheel {
	module := strings.ReplaceAll(name, "-", "_")
	return wheeltest.Wheel{Name: name, Version: version, Requires: requires,
		Files: []wheeltest.File{{Name: module + "/__init__.py", Body: "version = '" + version + "'\n"}}}
}

func specs(t testing.TB, list ...string) []spec.Requirement {
	t.Helper()
	q, err := spec.ParseRequests(list)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// at is a configuration with one index.
func at(x *indextest.Index) Config {
	none := 0
	return Config{IndexURL: x.URL(), Retries: &none, Timeout: 5}
}

// lines are "name version file" of a solution.
func lines(r Resolution) string {
	var b strings.Builder
	for _, p := range r.Packages {
		b.WriteString(p.Name + " " + p.Version + "\n")
	}
	return b.String()
}

// refused checks that an error is an *Error of a code that holds all words, and nothing
// that no text may hold.
func refused(t testing.TB, err error, code Code, words ...string) *Error {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, code) {
		if e != nil {
			t.Log(e.Detail)
		}
		t.Fatalf("error %v, want %s", err, code)
	}
	for _, w := range words {
		if !strings.Contains(e.Sentence, w) {
			t.Errorf("%q does not say %q", e.Sentence, w)
		}
	}
	for _, text := range append([]string{e.Sentence, e.Detail}, e.Suggestions...) {
		if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == 0x7f }); i >= 0 {
			t.Errorf("%q has a control character", text)
		}
	}
	if strings.Contains(e.Sentence, "\n") || strings.Contains(e.Sentence, os.TempDir()) {
		t.Errorf("%q is not for an agent", e.Sentence)
	}
	t.Logf("%v | blocking %+v | %q", e, e.Blocking, slices.Concat(e.Suggestions))
	return e
}
