package pyenv

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// TestSetupMakes: the first script has its interpreter made, once for all who wait.
func TestSetupMakes(t *testing.T) {
	t.Parallel()
	e := openEnv(t, filepath.Join(t.TempDir(), "envs"), nil)
	st, err := e.Status(t.Context(), "")
	must(t, err)
	if st.Kind != "" || st.Python != python.Executable || !strings.HasPrefix(st.Version, "3.") || st.BaseReady || !strings.Contains(st.Reason, "first script") {
		t.Errorf("before: %+v", st)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			s, release, err := e.Setup(t.Context(), "")
			if err != nil || s.Python != python.Executable || s.ID == "" || s.Base != "" || len(s.Binds) < 2 {
				t.Errorf("%+v, %v", s, err)
			}
			release()
		})
	}
	all.Wait()
	if ids, err := python.List(e.o.Root); err != nil || len(ids) != 1 {
		t.Errorf("%q, %v", ids, err)
	}
	st, err = e.Status(t.Context(), "")
	must(t, err)
	if got := prints(t, e, "import sys; print(sys.version.split()[0], sys.executable)"); got != st.Version+" "+st.Python || st.Kind != "system" {
		t.Errorf("runs %q, the status is %+v", got, st)
	}
	res, _ := run(t, e, "/bin/bash", "-c", "python3 -c 'import sys; print(sys.executable)'; pip install x; echo $PIP_NO_INDEX; command -v pip")
	if out := string(res.Stdout.Text); !strings.HasPrefix(out, python.Executable+"\n") || !strings.Contains(out, "1\n/opt/mcp/shim/pip") || !strings.Contains(string(res.Stderr.Text), "python_env") {
		t.Errorf("in bash: %s%s", out, res.Stderr.Text)
	}
}

// TestSetupFallsBack: whatever is wrong with the environments, scripts run, and the
// reason is in the status and, once, in the log.
func TestSetupFallsBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		break_ func(p *place)
		reason string
	}{
		"a prefix that is none": {func(p *place) { p.o.Prefix = "/usr/share" }, "the Python of the settings"},
		"the root is a file": {func(p *place) {
			must(p.t, os.RemoveAll(p.root))
			must(p.t, os.WriteFile(p.root, nil, 0o600))
		}, "is not a directory"},
		"others can write": {func(p *place) { must(p.t, os.Chmod(p.root, 0o777)) }, "can be written to by others"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			c.break_(p)
			for range 3 {
				if got := prints(t, p.Env, "import sys; print(sys.executable)"); got != "/usr/bin/python3" {
					t.Errorf("runs %q", got)
				}
			}
			res, _ := run(t, p.Env, "/bin/sh", "-c", "pip3 install X; command -v python3")
			if said := string(res.Stderr.Text); !strings.Contains(said, `{"action":"request","packages":["X"]}`) || string(res.Stdout.Text) != "/usr/bin/python3\n" {
				t.Errorf("pip: %s%s", res.Stdout.Text, said)
			}
			st, err := p.Status(t.Context(), "")
			must(t, err)
			if st.Kind != "host" || !strings.Contains(st.Reason, c.reason) || strings.Contains(st.Reason, p.root) || !strings.HasPrefix(st.Version, "3.") {
				t.Errorf("%+v", st)
			}
			if n := strings.Count(p.logged(), "a script gets the Python of the host"); n != 1 {
				t.Errorf("logged %d times: %s", n, p.logged())
			}
			_, err = p.Ensure(t.Context(), nowhere(t))
			var e *Error
			if !errors.As(err, &e) || strings.Contains(e.Error(), p.root) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestSetupWaits: a script waits for a Python that is being made as long as it may, and
// no longer; its caller may give up earlier.
func TestSetupWaits(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	a := &attempt{done: make(chan struct{})}
	p.making = a // one that does not end
	gone := errors.New("the caller is gone")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, gone)
	defer cancel()
	if _, _, err := p.Setup(ctx, ""); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
	waiting, stop := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errWait)
	defer stop()
	if _, _, err := p.managed(waiting, ""); !errors.Is(err, errWait) {
		t.Errorf("%v", err)
	}
}

// TestWarm: the interpreter is made though no script has asked for it, and Close does
// not wait for one that is not begun.
func TestWarm(t *testing.T) {
	t.Parallel()
	e := openEnv(t, filepath.Join(t.TempDir(), "envs"), nil)
	e.Warm()
	e.Warm()
	deadline := time.Now().Add(time.Minute)
	for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
		st, err := e.Status(t.Context(), "")
		must(t, err)
		if st.Kind == "system" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", st)
		}
	}
	cold := openEnv(t, filepath.Join(t.TempDir(), "envs"), nil)
	cold.Warm()
	must(t, cold.Close())
	if _, err := os.Stat(cold.o.Root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was made: %v", err)
	}
}

// TestInterpreterRemoved: one that somebody removed is made again.
func TestInterpreterRemoved(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	prints(t, p.Env, "")
	must(t, os.RemoveAll(filepath.Join(p.root, "python")))
	if got := prints(t, p.Env, "import sys; print(sys.executable)"); got != python.Executable {
		t.Errorf("runs %q", got)
	}
	must(t, os.RemoveAll(filepath.Join(p.root, "boot")))
	if got := prints(t, p.Env, "import sys; print(sys.executable)"); got != python.Executable {
		t.Errorf("runs %q", got)
	}
}

// TestBaseDamaged: a base that cannot be used leaves the interpreter, says so, and is
// built again.
func TestBaseDamaged(t *testing.T) {
	t.Parallel()
	p, rep := newBased(t)
	manifest := filepath.Join(p.root, "layers", rep.Base, "manifest.json")
	must(t, os.Chmod(manifest, 0o600))
	must(t, os.WriteFile(manifest, []byte("{}"), 0o600))
	if got := prints(t, p.Env, "import sys; print(sys.executable)"); got != python.Executable {
		t.Errorf("runs %q", got)
	}
	st, err := p.Status(t.Context(), "")
	must(t, err)
	if st.BaseReady || st.Base != rep.Base || st.Reason == "" {
		t.Errorf("%+v", st)
	}
	again := p.ensure(nowhere(t))
	if again.Base != rep.Base || !again.Built {
		t.Errorf("%+v", again)
	}
}

// TestCase52: a file of a layer that was changed is found by Doctor and mended by
// Ensure.
func TestCase52(t *testing.T) {
	t.Parallel()
	p, rep := newBased(t)
	well, err := p.Doctor(t.Context(), true)
	must(t, err)
	if len(well.Problems) > 0 || len(well.Layers) != 1 || well.Layers[0].Files == 0 || !well.Status.BaseReady || well.Resolver == "" {
		t.Errorf("%+v", well)
	}
	file := filepath.Join(p.root, "layers", rep.Base, "site-packages", "gamma", "__init__.py")
	must(t, os.Chmod(file, 0o600))
	must(t, os.WriteFile(file, []byte("version = 'bad'\n"), 0o600))
	must(t, os.Chmod(file, 0o444))
	ill, err := p.Doctor(t.Context(), false)
	must(t, err)
	if len(ill.Problems) != 1 || !strings.Contains(ill.Problems[0], rep.Base) || !strings.Contains(ill.Problems[0], "site-packages/gamma/__init__.py") || ill.Layers[0].Faults[0] != (Fault{Path: "site-packages/gamma/__init__.py", Kind: "changed"}) {
		t.Errorf("%q %+v", ill.Problems, ill.Layers)
	}
	q := nowhere(t)
	q.Repair = true
	if again := p.ensure(q); !again.Built || len(again.Notes) != 1 {
		t.Errorf("%+v", again)
	}
	if well, err = p.Doctor(t.Context(), false); err != nil || len(well.Problems) > 0 {
		t.Errorf("%q, %v", well.Problems, err)
	}
}

// TestCase53: the status tells of the interpreter that a script gets, and Doctor why it
// is that one, whatever is on the PATH of who asks.
func TestCase53(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	fake := filepath.Join(t.TempDir(), "home", "bin")
	must(t, os.MkdirAll(fake, 0o755))
	must(t, os.WriteFile(filepath.Join(fake, "python3"), []byte("#!/bin/sh\necho 9.9.9 >"+fake+"/ran\n"), 0o755))
	p.o.HostPath = []string{fake, "/usr/bin"}
	rep, err := p.Doctor(t.Context(), false)
	must(t, err)
	var chosen, hidden bool
	for _, c := range rep.Candidates {
		chosen = chosen || c.Chosen && c.Path == "/usr/bin/python3"
		hidden = hidden || !c.Chosen && c.Path == fake+"/python3" && strings.Contains(c.Why, "PATH")
	}
	if !chosen || !hidden {
		t.Errorf("%+v", rep.Candidates)
	}
	st := rep.Status
	if got := prints(t, p.Env, "import platform, sys; print(platform.python_version(), sys.executable)"); got != st.Version+" "+st.Python {
		t.Errorf("runs %s, told is %+v", got, st)
	}
	if st.Kind != "system" || st.Degraded == "" {
		t.Errorf("%+v", st)
	}
	if _, err := os.Stat(fake + "/ran"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the Python of the PATH was run")
	}
}

// TestSettingsThatCannotBeUsed: the status tells what scripts really get, also to a process
// that has run none yet.
func TestSettingsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	venv := filepath.Join(t.TempDir(), "venv")
	must(t, os.MkdirAll(filepath.Join(venv, "bin"), 0o755))
	must(t, os.Symlink("/usr/bin/python3", filepath.Join(venv, "bin", "python3")))
	for name, change := range map[string]func(*Options){
		"nothing there": func(o *Options) { o.Prefix = "/nonexistent" },
		"a file":        func(o *Options) { o.Prefix = "/usr/bin/python3" },
		"a venv":        func(o *Options) { o.Prefix = venv },
		"no archive":    func(o *Options) { o.Prefix, o.SHA256 = "/nonexistent.tar.gz", strings.Repeat("a", 64) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			change(&p.o)
			for _, when := range []string{"before", "after"} {
				st, err := p.Status(t.Context(), "")
				must(t, err)
				if st.Kind != "host" || st.Python != "/usr/bin/python3" || !strings.Contains(st.Reason, "the settings") || !strings.Contains(st.Reason, "env doctor") {
					t.Errorf("%s: %+v", when, st)
				}
				if got := prints(t, p.Env, "import sys; print(sys.executable)"); got != st.Python {
					t.Errorf("%s: runs %q", when, got)
				}
			}
		})
	}
	p, rep := newBased(t)
	p.o.Prefix = "/nonexistent"
	if st, err := p.Status(t.Context(), ""); err != nil || st.Base != rep.Base || !st.BaseReady || !strings.Contains(st.Reason, "that of the base layer") {
		t.Errorf("%+v, %v", st, err)
	}
	must(t, os.Remove(filepath.Join(p.root, "layers", rep.Base, "manifest.json")))
	doc, err := p.Doctor(t.Context(), false)
	must(t, err)
	if len(doc.Layers) != 1 || !slices.Equal(doc.Layers[0].Faults, []Fault{{Path: "manifest.json", Kind: "missing"}}) || !strings.Contains(strings.Join(doc.Problems, "\n"), "mcp-vdisk env ensure builds it again") {
		t.Errorf("%q %+v", doc.Problems, doc.Layers)
	}
}

// TestImport: a wheel of the operator's gets into the next base, with what it needs,
// without an index where that is possible.
func TestImport(t *testing.T) {
	t.Parallel()
	p, first := newBased(t)
	x := index(t, indextest.Options{}, wheels()...)
	house := wheeltest.Wheel{Name: "house", Requires: []string{"gamma>=2", "absent; python_version < '3'"},
		Files: []wheeltest.File{{Name: "house/__init__.py"}, {Name: "house/build.py", Body: "import gamma, sys\nprint('built', sys.argv[1:], gamma.version)\n"}}}
	got, err := p.Import(t.Context(), "some/where/"+house.FileName(), bytes.NewReader(house.Bytes()), true)
	must(t, err)
	if got.Name != "house" || got.Version != "1.0" || !got.Base || !slices.Equal(got.Modules, []string{"house"}) || !slices.Equal(got.Requires, []string{"gamma>=2"}) {
		t.Errorf("%+v", got)
	}
	rep := p.ensure(nowhere(t))
	if rep.Base == first.Base || len(rep.Packages) != 4 || !rep.Built {
		t.Errorf("%+v", rep)
	}
	res, _ := run(t, p.Env, "python3", "-m", "house.build", "x")
	if string(res.Stdout.Text) != "built ['x'] 3\n" {
		t.Errorf("%s%s", res.Stdout.Text, res.Stderr.Text)
	}
	if again := p.ensure(nowhere(t)); again.Base != rep.Base || again.Built {
		t.Errorf("%+v", again)
	}
	// Another version of it, which needs something that is not there yet.
	house.Version, house.Requires = "2.0", []string{"delta"}
	x.Add(fileOf(module("delta", "1")), fileOf(module("house", "9"))) // not the operator's
	_, err = p.Import(t.Context(), house.FileName(), bytes.NewReader(house.Bytes()), true)
	must(t, err)
	if _, err = p.Ensure(t.Context(), nowhere(t)); err == nil {
		t.Error("a base without what house needs")
	}
	p.isCurrent(rep)
	next := p.ensure(at(x))
	if out := prints(t, p.Env, "import delta; from importlib.metadata import version; print(version('house'))"); out != "2.0" || len(next.Packages) != 5 {
		t.Errorf("printed %q, %+v", out, next)
	}
	// A base without an index again, from that lock.
	if again := p.ensure(nowhere(t)); again.Lock != next.Lock {
		t.Errorf("%+v", again)
	}
}

// TestImportRefused: a wheel that breaks a rule leaves nothing.
func TestImportRefused(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	lying := module("lying", "1")
	lying.Record = func(rows [][]string) [][]string { rows[0][1] = "sha256=" + wheeltest.Digest("other"); return rows }
	other := module("other", "1")
	other.Tag = "cp311-cp311-win_amd64"
	newer := module("newer", "1")
	newer.RequiresPython = ">=4"
	url := module("url", "1")
	url.Requires = []string{"evil @ http://127.0.0.1/evil.tar.gz"}
	shadow := wheeltest.Wheel{Name: "shadow", Files: []wheeltest.File{{Name: "json.py"}}}
	for _, c := range []struct {
		code Code
		name string
		body []byte
	}{
		{"record_mismatch", lying.FileName(), lying.Bytes()},
		{"no_compatible_wheel", other.FileName(), other.Bytes()},
		{"no_compatible_wheel", newer.FileName(), newer.Bytes()},
		{"direct_url", url.FileName(), url.Bytes()},
		{"stdlib_shadow", shadow.FileName(), shadow.Bytes()},
		{"wheel_metadata", "../../etc/passwd", []byte("x")},
		{"wheel_metadata", "", nil},
		{"zip_damaged", "x-1-py3-none-any.whl", bytes.Repeat([]byte{0xff, 0}, 1000)},
		{"zip_damaged", "x-1-py3-none-any.whl", nil},
	} {
		_, err := p.Import(t.Context(), c.name, bytes.NewReader(c.body), true)
		p.refused(err, c.code)
	}
	gone := errors.New("the caller is gone")
	w := module("x", "1")
	if _, err := p.Import(t.Context(), w.FileName(), fails{gone}, true); err == nil {
		t.Error("a reader that fails is no error")
	}
	p.clean()
	if list, _ := os.ReadDir(filepath.Join(p.root, "wheelhouse")); len(list) > 0 {
		t.Errorf("in the wheelhouse: %v", list)
	}
	if extras, err := p.extras(); err != nil || len(extras) > 0 {
		t.Errorf("extras %v, %v", extras, err)
	}
}

type fails struct{ err error }

func (f fails) Read([]byte) (int, error) { return 0, f.err }

// TestEmbedded: a lock that comes with the program is used for every release of its
// Python, and one that the index does not have is resolved anew.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	x := index(t, indextest.Options{}, wheels()...)
	l, err := p.Lock(t.Context(), at(x))
	must(t, err)
	must(t, os.Remove(filepath.Join(p.root, wantedFile)))
	l = Portable(l)
	l.Python.Full, l.Python.Platform = strings.TrimSuffix(l.Python.Full, l.Python.Full[len("3.11."):])+"0", "manylinux_2_17_x86_64"
	b, err := l.Encode()
	must(t, err)
	if bytes.Contains(b, []byte("127.0.0.1")) || bytes.Contains(b, []byte("http")) {
		t.Errorf("the lock tells of an index: %s", b)
	}
	p.locks = fstest.MapFS{"locks/base-test.json": {Data: b}}
	q := at(x)
	var steps []Step
	q.Progress = func(p Progress) { steps = append(steps, p.Step) }
	rep := p.ensure(q)
	root, err := p.store()
	must(t, err)
	built, err := root.Lock(rep.Lock)
	must(t, err)
	if it, _ := p.load(t.Context(), rep.Python); built.Python != pythonOf(it) || built.Resolver != l.Resolver {
		t.Errorf("%+v", built)
	}
	other := newPlace(t)
	other.locks = p.locks
	fewer := wheels()
	fewer[2].Version = "4"
	fewer[2].Files = module("gamma", "4").Files
	rep = other.ensure(at(index(t, indextest.Options{}, fewer...)))
	if len(rep.Notes) == 0 || prints(t, other.Env, "import gamma; print(gamma.version)") != "4" {
		t.Errorf("%+v", rep)
	}
}

// TestCommittedLocks: the locks of this program can be read, are for its base list, and
// name no index.
func TestCommittedLocks(t *testing.T) {
	e, err := Open(Options{})
	must(t, err)
	names, err := fs.Glob(lockFiles, "locks/*.json")
	must(t, err)
	if len(names) == 0 {
		t.Error("there is none")
	}
	for _, name := range names {
		b, err := fs.ReadFile(lockFiles, name)
		must(t, err)
		l, err := lock.Parse(b)
		must(t, err)
		if !slices.Equal(l.Requested, e.requested(nil)) || l.Kind != lock.Base || len(l.Packages) < 25 || l.Cutoff.IsZero() {
			t.Errorf("%s is for %q", name, l.Requested)
		}
		for _, p := range l.Packages {
			if p.Index != "" || p.Size == 0 || p.Yanked != "" {
				t.Errorf("%s: %+v", name, p)
			}
		}
		if same, err := Portable(l).Encode(); err != nil || !bytes.Equal(same, b) {
			t.Errorf("%s is not what `env lock -o` writes: %v", name, err)
		}
	}
}

// TestGC: what is current, wanted, imported, bound or in use stays.
func TestGC(t *testing.T) {
	t.Parallel()
	p, first := newBased(t)
	s, release, err := p.Setup(t.Context(), "")
	must(t, err)
	defer release()
	house := module("house", "1")
	_, err = p.Import(t.Context(), house.FileName(), bytes.NewReader(house.Bytes()), true)
	must(t, err)
	second := p.ensure(nowhere(t))
	extra := module("spare", "1")
	_, err = p.Import(t.Context(), extra.FileName(), bytes.NewReader(extra.Bytes()), false)
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(p.root, "python", "system-0123456789abcdef"), 0o755))
	old := time.Now().Add(-48 * time.Hour)
	must(t, os.Chtimes(filepath.Join(p.root, "python", "system-0123456789abcdef"), old, old))
	dry, err := p.GC(t.Context(), 0, true)
	must(t, err)
	rep, err := p.GC(t.Context(), 0, false)
	must(t, err)
	if len(dry.Removed) != len(rep.Removed) {
		t.Errorf("dry %+v, in earnest %+v", dry.Removed, rep.Removed)
	}
	removed := map[string]bool{}
	for _, i := range rep.Removed {
		removed[i.Kind+" "+i.ID] = true
	}
	if removed["layer "+s.Base] || !removed["python system-0123456789abcdef"] || removed["python "+first.Python] || len(removed) < 2 {
		t.Errorf("removed %v", removed)
	}
	release()
	rep = collect(t, p.Env, first.Base)
	if _, err := os.Stat(filepath.Join(p.root, "layers", first.Base)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old base is there: %v, %+v", err, rep)
	}
	pths, _ := os.ReadDir(filepath.Join(p.root, "boot", "pth"))
	if len(pths) != 1 {
		t.Errorf("boot/pth has %v", pths)
	}
	if again := p.ensure(nowhere(t)); again.Base != second.Base || again.Built {
		t.Errorf("%+v", again)
	}
	prints(t, p.Env, "import alpha, house")
}

// TestNoRoot: without a root scripts get the Python of the host and the rest is
// refused.
func TestNoRoot(t *testing.T) {
	e, err := Open(Options{Box: newBox(t)})
	must(t, err)
	defer e.Close()
	p := &place{Env: e, t: t, root: "/nowhere"}
	s, release, err := e.Setup(t.Context(), "")
	must(t, err)
	release()
	if s.Python != "/usr/bin/python3" || len(s.Binds) > 0 || s.ID != "" || s.Base != "" {
		t.Errorf("%s %s %v", s.Python, s.ID, s.Binds)
	}
	_, err = e.Ensure(t.Context(), EnsureRequest{})
	p.refused(err, ErrNoRoot)
	_, err = e.GC(t.Context(), 0, true)
	p.refused(err, ErrNoRoot)
	none, err := Open(Options{Root: t.TempDir(), HostPythons: []string{"/usr/bin/no-such-python"}})
	must(t, err)
	defer none.Close()
	st, err := none.Status(t.Context(), "")
	must(t, err)
	if st.Python != "" || st.Reason == "" {
		t.Errorf("%+v", st)
	}
	_, err = none.Ensure(t.Context(), EnsureRequest{})
	p.refused(err, ErrNoSandbox)
	if _, err := Open(Options{Root: "relative"}); !errors.Is(err, ErrBadConfig) {
		t.Errorf("%v", err)
	}
	bare, err := sandboxrun.New(t.Context(), sandboxrun.Config{Bwrap: "/nonexistent/bwrap"})
	must(t, err)
	defer bare.Close()
	unboxed, err := Open(Options{Root: t.TempDir(), Box: bare})
	must(t, err)
	defer unboxed.Close()
	_, err = unboxed.Ensure(t.Context(), EnsureRequest{})
	p.refused(err, ErrNoSandbox)
}

// TestOpenIsCheap: opening starts and writes nothing.
func TestOpenIsCheap(t *testing.T) {
	root := filepath.Join(t.TempDir(), "envs")
	start := time.Now()
	for range 10 {
		e, err := Open(Options{Root: root, Box: newBox(t)})
		must(t, err)
		must(t, e.Close())
	}
	if took := time.Since(start) / 10; took > 2*time.Millisecond {
		t.Errorf("it took %s", took)
	}
	if _, err := os.Stat(root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the root is there: %v", err)
	}
}

// TestFind: under which names a package is looked for.
func TestFind(t *testing.T) {
	list := []Package{{Name: "python-docx", Modules: []string{"docx"}}, {Name: "pillow", Modules: []string{"PIL"}}}
	for name, want := range map[string]string{"docx": "python-docx", "python_docx": "python-docx", "Python-Docx": "python-docx", "PIL": "pillow", "pillow": "pillow", "cv2": "", "": "", "../x": ""} {
		if p, ok := Find(list, name); p.Name != want || ok != (want != "") {
			t.Errorf("%q: %+v, %v", name, p, ok)
		}
	}
	if Distribution("cv2") != "opencv-python-headless" || Distribution("numpy") != "" {
		t.Error("cv2")
	}
}
