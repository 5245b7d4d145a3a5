package pyenv

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// theBox is the sandbox of this host, for all tests.
var theBox = sync.OnceValues(func() (*sandboxrun.Runner, error) {
	box, err := sandboxrun.New(context.Background(), sandboxrun.Config{})
	if err != nil {
		return nil, err
	}
	if rep := box.Probe(context.Background()); !rep.OK {
		return nil, errors.New("no sandbox on this host: " + rep.Cause + "; " + rep.Remedy)
	}
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		return nil, errors.New("no /usr/bin/python3 on this host")
	}
	return box, nil
})

func newBox(t testing.TB) *sandboxrun.Runner {
	t.Helper()
	box, err := theBox()
	if err != nil {
		t.Skip("SKIP ", err)
	}
	t.Cleanup(box.DropSpare)
	return box
}

// thePython is an environment root with the interpreter of this host and nothing else,
// made once and copied for each test that needs it.
var thePython = sync.OnceValues(func() (string, error) {
	box, err := theBox()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "python-")
	if err != nil {
		return "", err
	}
	_, err = python.Make(context.Background(), dir, python.Options{}, box)
	return dir, err
})

// noLocks is a program that comes without locks.
var noLocks = fstest.MapFS{}

// place is an environment root with an interpreter, and an Env over it.
type place struct {
	*Env
	t    testing.TB
	root string
	log  *bytes.Buffer // what the Env has logged
	mu   sync.Mutex
}

// small is the base list of most tests.
const small = "alpha alpha\nbeta>=1 beta.part\n"

// newPlace returns a root whose base list is small, and no lock comes with the program.
func newPlace(t testing.TB) *place {
	t.Helper()
	newBox(t)
	from, err := thePython()
	must(t, err)
	p := &place{t: t, root: filepath.Join(t.TempDir(), "envs")}
	must(t, os.MkdirAll(p.root, 0o700))
	must(t, linkTree(filepath.Join(from, "python"), filepath.Join(p.root, "python")))
	p.open()
	return p
}

// theSmallBase is a copy of it with the base layer of wheels, made once, and what was reported
// of that.
var theSmallBase = sync.OnceValues(func() (made struct {
	root string
	rep  EnsureReport
}, err error) {
	from, err := thePython()
	if err != nil {
		return made, err
	}
	if made.root, err = os.MkdirTemp("", "base-"); err != nil {
		return made, err
	}
	if err := linkTree(filepath.Join(from, "python"), filepath.Join(made.root, "python")); err != nil {
		return made, err
	}
	box, _ := theBox()
	e, err := Open(Options{Root: made.root, Box: box})
	if err != nil {
		return made, err
	}
	defer e.Close()
	e.locks = fstest.MapFS{}
	if e.base, err = parseBase(small); err != nil {
		return made, err
	}
	x := indextest.New(indextest.Options{})
	defer x.Close()
	for _, w := range wheels() {
		x.Add(fileOf(w))
	}
	made.rep, err = e.Ensure(context.Background(), at(x))
	return made, err
})

// newBased returns a root as newPlace and Ensure make it, and what Ensure reported. It is
// for tests that are not about how a layer comes to be.
func newBased(t testing.TB) (*place, EnsureReport) {
	t.Helper()
	newBox(t)
	from, err := theSmallBase()
	must(t, err)
	p := &place{t: t, root: filepath.Join(t.TempDir(), "envs")}
	must(t, os.Mkdir(p.root, 0o700))
	must(t, linkTree(filepath.Join(from.root, "python"), filepath.Join(p.root, "python")))
	for _, name := range []string{"wheelhouse", "layers", "locks", "current", wantedFile} { // which tests do change
		must(t, exec.Command("cp", "-a", filepath.Join(from.root, name), p.root).Run())
	}
	p.open()
	p.isCurrent(from.rep)
	return p, from.rep
}

// linkTree copies a tree, files as hard links: nothing changes them. Files that are there
// to be locked are not copied: each root has its own.
func linkTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		dest := filepath.Join(to, rel)
		info, err := d.Info()
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.MkdirAll(dest, info.Mode().Perm()|0o700)
		case strings.HasSuffix(d.Name(), ".lock"):
			return nil
		case info.Mode().IsRegular():
			return os.Link(path, dest)
		}
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return os.Symlink(target, dest)
	})
}

// open opens the root, again if it was open.
func (p *place) open() {
	p.t.Helper()
	if p.Env != nil {
		must(p.t, p.Env.Close())
	}
	p.Env = openEnv(p.t, p.root, p)
}

// Write keeps what the Env logs.
func (p *place) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *place) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

func openEnv(t testing.TB, root string, p *place) *Env {
	t.Helper()
	o := Options{Root: root, Box: newBox(t)}
	if p != nil {
		if p.log == nil {
			p.log = &bytes.Buffer{}
		}
		o.Logger = slog.New(slog.NewTextHandler(p, nil))
	}
	e, err := Open(o)
	must(t, err)
	t.Cleanup(func() { e.Close() })
	e.locks = noLocks
	e.base, err = parseBase(small)
	must(t, err)
	return e
}

// wheels are the packages of the base list small.
func wheels() []wheeltest.Wheel {
	return []wheeltest.Wheel{
		{Name: "alpha", Requires: []string{"gamma"}, Files: []wheeltest.File{{Name: "alpha/__init__.py", Body: "import gamma\n"}}},
		{Name: "beta", Version: "2.0", Files: []wheeltest.File{{Name: "beta/__init__.py"}, {Name: "beta/part.py", Body: "x = 1\n"}}},
		module("gamma", "3"),
	}
}

// module is a wheel with one module of its name.
func module(name, version string, requires ...string) wheeltest.Wheel {
	return wheeltest.Wheel{Name: name, Version: version, Requires: requires, Files: []wheeltest.File{{Name: name + "/__init__.py", Body: "version = '" + version + "'\n"}}}
}

// index starts an index with wheels.
func index(t testing.TB, o indextest.Options, list ...wheeltest.Wheel) *indextest.Index {
	t.Helper()
	x := indextest.New(o)
	t.Cleanup(x.Close)
	for _, w := range list {
		x.Add(fileOf(w))
	}
	return x
}

func fileOf(w wheeltest.Wheel) indextest.File {
	return indextest.File{Name: w.FileName(), Body: w.Bytes()}
}

// at is a request to an index.
func at(x *indextest.Index) EnsureRequest {
	none := 0
	return EnsureRequest{Pip: resolve.Config{IndexURL: x.URL(), Retries: &none, Timeout: 5}}
}

// nowhere is a request to an index that is down.
func nowhere(t testing.TB) EnsureRequest {
	x := indextest.New(indextest.Options{})
	x.Close()
	return at(x)
}

func (p *place) ensure(q EnsureRequest) EnsureReport {
	p.t.Helper()
	rep, err := p.Ensure(p.t.Context(), q)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, detailOf(err))
	}
	p.isCurrent(rep)
	return rep
}

// isCurrent checks that what was reported is what a script gets.
func (p *place) isCurrent(rep EnsureReport) {
	p.t.Helper()
	s, release, err := p.Setup(p.t.Context(), "")
	must(p.t, err)
	defer release()
	if s.Base != rep.Base || s.Lock != rep.Lock || s.ID != rep.Python || s.Python != python.Executable || len(s.Layers) != 1 {
		p.t.Errorf("a script gets %+v, reported was %+v", s, rep)
	}
}

// refused checks an error: its code, words of its sentence, and that it tells nothing
// of the host.
func (p *place) refused(err error, code Code, words ...string) *Error {
	p.t.Helper()
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, code) {
		p.t.Fatalf("error %v (%s), want %s", err, detailOf(err), code)
	}
	for _, w := range words {
		if !strings.Contains(e.Sentence, w) {
			p.t.Errorf("%q does not say %q", e.Sentence, w)
		}
	}
	for _, text := range append([]string{e.Sentence, e.Hint}, e.Suggestions...) {
		if strings.Contains(text, os.TempDir()) || strings.Contains(text, p.root) {
			p.t.Errorf("%q tells of the host", text)
		}
	}
	p.t.Logf("%v | %s | %+v", e, e.Hint, e.Blocking)
	return e
}

// clean checks that nothing is current, complete or left of what failed.
func (p *place) clean() {
	p.t.Helper()
	root, err := p.store()
	must(p.t, err)
	if cur, err := root.Current(); !errors.Is(err, store.ErrNotFound) {
		p.t.Errorf("current is %+v, %v", cur, err)
	}
	if left := p.left(); len(left) > 0 {
		p.t.Errorf("left: %q", left)
	}
}

// left are unfinished things anywhere in the root, and layers.
func (p *place) left() (names []string) {
	p.t.Helper()
	must(p.t, filepath.WalkDir(p.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(p.root, path)
		if strings.HasPrefix(d.Name(), ".tmp-") || strings.HasPrefix(d.Name(), ".trash-") || filepath.Dir(rel) == "layers" || filepath.Dir(rel) == "jobs" {
			names = append(names, rel)
		}
		if d.IsDir() && (d.Name() == "prefix" || filepath.Dir(rel) == "layers") {
			return fs.SkipDir
		}
		return nil
	}))
	return names
}

// collect collects what nobody needs, until some layers are gone: what this process was
// just starting has its locks until it executes, and so they may seem to be in use. The
// report has what all of it removed.
func collect(t testing.TB, e *Env, layers ...string) (all store.Report) {
	t.Helper()
	root, err := e.store()
	must(t, err)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range 200 {
		rep, err := e.GC(t.Context(), 0, false)
		must(t, err)
		all.Removed, all.Kept = append(all.Removed, rep.Removed...), rep.Kept
		if !slices.ContainsFunc(layers, func(id string) bool {
			_, err := root.Layer(id)
			return err == nil
		}) {
			break
		}
		<-tick.C
	}
	return all
}

// run runs a command as a script would, and returns what it printed.
func run(t testing.TB, e *Env, argv ...string) (sandboxrun.Result, map[string][]byte) {
	t.Helper()
	s, release, err := e.Setup(t.Context(), "")
	must(t, err)
	defer release()
	argv = slices.Clone(argv)
	if argv[0] == "python3" {
		argv[0] = s.Python
	}
	limits := sandboxrun.DefaultLimits()
	limits.Timeout = 2 * time.Minute
	files := map[string][]byte{}
	res, err := e.o.Box.Run(t.Context(), sandboxrun.Run{Argv: argv, Binds: s.Binds, Data: s.Data, Env: s.Env, Limits: limits}, func(c sandboxrun.Change) error {
		if c.Kind != sandboxrun.File {
			return nil
		}
		var b bytes.Buffer
		_, err := b.ReadFrom(c.Body)
		files[string(c.Path)] = b.Bytes()
		return err
	})
	must(t, err)
	return res, files
}

// prints runs Python code that has to succeed, and returns what it prints.
func prints(t testing.TB, e *Env, code string) string {
	t.Helper()
	s, release, err := e.Setup(t.Context(), "")
	must(t, err)
	defer release()
	p := &place{Env: e, t: t}
	return p.runSetup(s, code)
}

// runSetup runs Python code that has to succeed with what a script gets.
func (p *place) runSetup(s Setup, code string) string {
	p.t.Helper()
	limits := sandboxrun.DefaultLimits()
	limits.Timeout = 2 * time.Minute
	res, err := p.o.Box.Run(p.t.Context(), sandboxrun.Run{Argv: []string{s.Python, "-s", "-c", code}, Binds: s.Binds, Data: s.Data, Env: s.Env, Limits: limits}, nil)
	must(p.t, err)
	if res.ExitCode != 0 {
		p.t.Fatalf("exit %d: %s", res.ExitCode, res.Stderr.Text)
	}
	return strings.TrimSpace(string(res.Stdout.Text))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
