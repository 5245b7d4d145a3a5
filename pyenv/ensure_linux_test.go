package pyenv

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
)

// TestCase01: the first Ensure makes everything, the second asks nobody.
func TestCase01(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	x := index(t, indextest.Options{}, wheels()...)
	rep := p.ensure(at(x))
	if rep.Fetched != 3 || rep.FetchedBytes == 0 || !rep.Built || len(rep.Packages) != 3 {
		t.Errorf("%+v", rep)
	}
	if got := prints(t, p.Env, "import alpha, beta.part, gamma, sys; print(gamma.version, sys.executable)"); got != "3 /opt/mcp/python/bin/python3" {
		t.Errorf("printed %q", got)
	}
	asked := len(x.Requests())
	start := time.Now()
	again := p.ensure(at(x))
	if n := len(x.Requests()); n != asked || again.Built || again.Fetched != 0 || again.Base != rep.Base || again.Lock != rep.Lock {
		t.Errorf("the second: %d requests, %+v", n-asked, again)
	}
	if took := time.Since(start); took > time.Second && again.Took > time.Second {
		t.Errorf("the second took %s", took)
	}
	p.open() // as after a restart
	if again := p.ensure(at(x)); len(x.Requests()) != asked || again.Base != rep.Base {
		t.Errorf("after a restart: %+v", again)
	}
	st, err := p.Status(t.Context(), "")
	must(t, err)
	if !st.BaseReady || st.Base != rep.Base || len(st.Packages) != 3 || !slices.Equal(st.Layers, []string{rep.Base}) || st.Version == "" || st.Kind != "system" || st.Degraded == "" || st.Building != "" {
		t.Errorf("%+v", st)
	}
	t.Logf("first %s, second %s", rep.Took.Round(time.Millisecond), again.Took.Round(time.Millisecond))
}

// TestCase02: a lock, its wheels and no index are enough.
func TestCase02(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	x := index(t, indextest.Options{}, wheels()...)
	l, err := p.Lock(t.Context(), at(x))
	must(t, err)
	if len(l.Packages) != 3 || !slices.Equal(l.Requested, []string{"alpha", "beta>=1"}) {
		t.Errorf("%+v", l)
	}
	p.clean()
	root, err := p.store()
	must(t, err)
	for _, w := range wheels() {
		at := slices.IndexFunc(l.Packages, func(q lock.Package) bool { return q.File == w.FileName() })
		must(t, root.AddWheel(t.Context(), strings.NewReader(string(w.Bytes())), l.Packages[at].SHA256, 0))
	}
	rep := p.ensure(nowhere(t))
	if id, _ := l.ID(); rep.Lock != id || rep.Fetched != 0 || !rep.Built {
		t.Errorf("%+v", rep)
	}
}

// TestRelock: a new lock is made when it is asked for, and never otherwise.
func TestRelock(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	x := index(t, indextest.Options{}, wheels()...)
	old := p.ensure(at(x))
	x.Add(fileOf(module("gamma", "4")))
	if same := p.ensure(at(x)); same.Base != old.Base {
		t.Errorf("%+v", same)
	}
	q := at(x)
	q.Relock = true
	rep := p.ensure(q)
	if rep.Base == old.Base || prints(t, p.Env, "import gamma; print(gamma.version)") != "4" {
		t.Errorf("%+v", rep)
	}
	root, err := p.store()
	must(t, err)
	if _, err := root.Layer(old.Base); err != nil {
		t.Errorf("the old base: %v", err)
	}
}

// TestBadIndexes: whatever an index does wrong, it is said, nothing can be seen of it,
// and it works when the index does.
func TestBadIndexes(t *testing.T) {
	t.Parallel()
	bad := func(change func(*indextest.File)) func(x *indextest.Index) {
		return func(x *indextest.Index) {
			f := fileOf(wheels()[1])
			change(&f)
			x.Add(f)
		}
	}
	none := 0
	for _, c := range []struct {
		name string
		o    indextest.Options
		bend func(x *indextest.Index)
		code []Code
	}{
		{"401", indextest.Options{User: "u", Password: "hunter2"}, nil, []Code{"index_unreachable"}},
		{"404", indextest.Options{}, func(x *indextest.Index) { x.Handle("/simple/gamma/", http.NotFound) }, []Code{"not_found", "no_solution"}},
		{"503", indextest.Options{}, func(x *indextest.Index) {
			x.Handle("/simple/beta/", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusServiceUnavailable) })
		}, []Code{"index_unreachable"}},
		{"wrong bytes", indextest.Options{}, bad(func(f *indextest.File) { f.Sent = module("beta", "2.0").Bytes() }), []Code{"hash_mismatch"}},
		{"truncated", indextest.Options{}, bad(func(f *indextest.File) { f.Truncated = true }), []Code{"index_unreachable", "hash_mismatch"}},
		{"slow", indextest.Options{}, bad(func(f *indextest.File) { f.Slow = true }), []Code{"index_unreachable"}},
		{"a wheel that breaks a rule", indextest.Options{}, func(x *indextest.Index) {
			w := wheels()[1]
			w.Files = append(w.Files, wheeltest.File{Name: "json.py", Body: "x = 1\n"})
			x.Add(fileOf(w))
		}, []Code{"stdlib_shadow"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			x := index(t, c.o, wheels()...)
			if c.bend != nil {
				c.bend(x)
			}
			q := EnsureRequest{Pip: resolve.Config{IndexURL: x.URL(), Retries: &none, Timeout: 2}}
			_, err := p.Ensure(t.Context(), q)
			var e *Error
			if !errors.As(err, &e) || !slices.Contains(c.code, e.Code) {
				t.Fatalf("%v (%s), want one of %s", err, detailOf(err), c.code)
			}
			p.refused(err, e.Code)
			p.clean()
			if strings.Contains(p.logged(), "hunter2") {
				t.Error("the log has the password")
			}
			good := at(index(t, indextest.Options{}, wheels()...))
			good.Relock = true // the lock of the first may be one of files that are none
			p.ensure(good)
		})
	}
	t.Run("down", func(t *testing.T) {
		t.Parallel()
		p := newPlace(t)
		_, err := p.Ensure(t.Context(), nowhere(t))
		p.refused(err, "index_unreachable")
		p.clean()
		p.ensure(at(index(t, indextest.Options{}, wheels()...)))
	})
}

// TestKilled kills a process at every step. Nothing half can be seen, and the next
// goes on from there.
func TestKilled(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	x := index(t, indextest.Options{}, wheels()...)
	for _, kill := range []struct {
		step Step
		nth  int
	}{
		{StepPython, 1}, {StepTool, 1}, {StepLock, 1}, {StepFetch, 1}, {StepFetch, 2}, {StepBuild, 1}, {StepBuild, 6}, {StepBuild, 10},
		{StepProbe, 1}, {StepCurrent, 1}, {StepDone, 1},
	} {
		if _, killed := (role{Root: p.root, Pip: at(x).Pip, Kill: kill.step, Nth: kill.nth}).start(t)(); !killed {
			t.Errorf("not killed at %v", kill)
		}
		p.whole(kill.step)
	}
	rep := p.ensure(nowhere(t))
	if rep.Fetched != 0 || rep.Built {
		t.Errorf("%+v", rep)
	}
	// What the killed left is gone, but for the layer.
	if left := p.left(); len(left) != 1 || left[0] != filepath.Join("layers", rep.Base) {
		t.Errorf("left: %q", left)
	}
}

// whole checks that what can be seen is complete, whatever was going on.
func (p *place) whole(step Step) {
	p.t.Helper()
	p.open()
	st, err := p.Status(p.t.Context(), "")
	must(p.t, err)
	if st.Base != "" && !st.BaseReady || st.BaseReady && step != StepDone {
		p.t.Errorf("killed at %s: %+v", step, st)
	}
	root, err := p.store()
	must(p.t, err)
	list, err := os.ReadDir(filepath.Join(p.root, "layers"))
	must(p.t, err)
	for _, d := range list {
		if strings.HasPrefix(d.Name(), ".") {
			continue
		}
		l, err := root.Layer(d.Name())
		must(p.t, err)
		if faults, err := root.Verify(p.t.Context(), l); err != nil || len(faults) > 0 {
			p.t.Errorf("killed at %s: %v, %v", step, faults, err)
		}
	}
}

// TestCase40Ensure: several at once, in one process, in several Envs of one and in
// several processes, make one base, with one resolution (for which an old pip
// downloads every wheel) and one download.
func TestCase40Ensure(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	x := index(t, indextest.Options{}, wheels()...)
	other := openEnv(t, p.root, nil)
	var waits []func() (told, bool)
	for range 2 {
		waits = append(waits, role{Root: p.root, Pip: at(x).Pip}.start(t))
	}
	var mu sync.Mutex
	var reps []EnsureReport
	var all sync.WaitGroup
	for _, e := range []*Env{p.Env, p.Env, other} {
		all.Go(func() {
			rep, err := e.Ensure(t.Context(), at(x))
			if err != nil {
				t.Error(err, detailOf(err))
			}
			mu.Lock()
			defer mu.Unlock()
			reps = append(reps, rep)
		})
	}
	all.Wait()
	for _, wait := range waits {
		out, _ := wait()
		if out.Error != "" {
			t.Error(out.Error)
		}
		reps = append(reps, out.Report)
	}
	built := 0
	for _, r := range reps {
		if r.Built {
			built++
		}
		if r.Base != reps[0].Base || r.Lock != reps[0].Lock {
			t.Errorf("%+v and %+v", r, reps[0])
		}
	}
	if built != 1 || x.Wheels() > 6 {
		t.Errorf("%d built it, %d wheels were asked for", built, x.Wheels())
	}
	p.isCurrent(reps[0])
}

// TestEnsureCancelled: a ctx that ends leaves nothing, and the next one works.
func TestEnsureCancelled(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	x := index(t, indextest.Options{}, wheels()...)
	gone := errors.New("the caller is gone")
	pip := at(x).Pip
	for _, step := range []Step{StepTool, StepLock, StepFetch, StepBuild, StepProbe} {
		ctx, cancel := context.WithCancelCause(t.Context())
		q := EnsureRequest{Pip: pip, Progress: func(p Progress) {
			if p.Step == step {
				cancel(gone)
			}
		}}
		if _, err := p.Ensure(ctx, q); !errors.Is(err, gone) {
			t.Errorf("cancelled at %s: %v", step, err)
		}
		root, err := p.store()
		must(t, err)
		if _, err := root.Current(); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("cancelled at %s: something is current: %v", step, err)
		}
		cancel(nil)
	}
	p.ensure(at(x))
}

// TestClose: Close ends what is at work and waits for it.
func TestClose(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	x := index(t, indextest.Options{}, wheels()...)
	begun := make(chan struct{})
	q := at(x)
	var once sync.Once
	q.Progress = func(Progress) { once.Do(func() { close(begun) }) }
	ended := make(chan error, 1)
	go func() {
		_, err := p.Ensure(t.Context(), q)
		ended <- err
	}()
	<-begun
	must(t, p.Close())
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it was not ended")
		}
	default:
		t.Error("Close did not wait")
	}
	if _, err := p.Ensure(t.Context(), q); err == nil {
		t.Error("Ensure after Close")
	}
	s, release, err := p.Setup(t.Context(), "")
	must(t, err)
	release()
	if s.Python != "/usr/bin/python3" {
		t.Errorf("after Close a script gets %+v", s)
	}
}

// TestCase42: no pip anywhere. What is there can be used.
func TestCase42(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.o.PipWheel = filepath.Join(t.TempDir(), "pip-26.2.1-py3-none-any.whl") // which is not there
	_, err := p.Ensure(t.Context(), at(index(t, indextest.Options{}, wheels()...)))
	p.refused(err, "bad_config")
	p.clean()
	p.o.PipWheel = ""
	x := index(t, indextest.Options{}, wheels()...)
	rep := p.ensure(at(x))
	p.o.PipWheel = filepath.Join(t.TempDir(), "pip-26.2.1-py3-none-any.whl")
	p.open()
	if again := p.ensure(nowhere(t)); again.Base != rep.Base {
		t.Errorf("%+v", again)
	}
	if got := prints(t, p.Env, "import alpha; print('works')"); got != "works" {
		t.Errorf("printed %q", got)
	}
}

// TestCase55: a package that cannot be imported is never in a base.
func TestCase55(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	broken := wheels()
	broken[0].Files = []wheeltest.File{{Name: "alpha/__init__.py", Body: "import ctypes\nctypes.CDLL('libnothere.so.1')\n"}}
	x := index(t, indextest.Options{}, broken...)
	_, err := p.Ensure(t.Context(), at(x))
	e := p.refused(err, ErrProbe, "alpha cannot be imported", "libnothere.so.1")
	if e.Blocking.Name != "alpha" || !strings.Contains(e.Detail, "Traceback") || len(e.Detail) > probeTail {
		t.Errorf("%+v", e)
	}
	root, err := p.store()
	must(t, err)
	if _, err := root.Current(); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("something is current: %v", err)
	}
	if _, err := p.Ensure(t.Context(), nowhere(t)); !errors.Is(err, ErrProbe) {
		t.Errorf("the second time: %v", err)
	}
	x.Add(fileOf(wheels()[0]))
	q := at(x)
	q.Relock = true
	p.ensure(q)
}

// TestProbeDies: an import that ends the process, or never ends, is one that fails.
func TestProbeDies(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	broken := wheels()
	broken[0].Files = []wheeltest.File{{Name: "alpha/__init__.py", Body: "import os\nos._exit(0)\n"}}
	_, err := p.Ensure(t.Context(), at(index(t, indextest.Options{}, broken...)))
	p.refused(err, ErrProbe, "alpha cannot be imported")
}

// TestCase58: looking at the status waits for nothing while a base is made: at each
// step it is answered while that step stands still. (How fast: BenchmarkBulkBaseBuild.)
func TestCase58(t *testing.T) {
	p := newPlace(t)
	q := at(index(t, indextest.Options{}, wheels()...))
	steps := map[Step]bool{}
	q.Progress = func(at Progress) {
		steps[at.Step] = true
		for range 20 {
			if st, err := p.Status(t.Context(), ""); err != nil || st.Building != at.Text {
				t.Errorf("at %q: %+v, %v", at.Text, st, err)
			}
		}
	}
	p.ensure(q)
	for _, step := range []Step{StepPython, StepLock, StepFetch, StepBuild, StepProbe, StepCurrent, StepDone} {
		if !steps[step] {
			t.Errorf("nothing was told of the step %q", step)
		}
	}
}
