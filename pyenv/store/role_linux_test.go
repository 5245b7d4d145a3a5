package store

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// role is what a child of a test does; it is given as JSON.
type role struct {
	Root   string
	Python *python.Interpreter
	Lock   string // to build
	KillAt int    // the report of progress at which the child kills itself; 0 for none
	Midway bool   // it kills itself when the first bytecode comes from the sandbox
	Wheel  string // to add instead, and to die in the middle of
}

// told is what it says at its end.
type told struct {
	Layer string
	Built bool
	Calls int
	Error string
}

const roleEnv = "MCP_VDISK_STORE_ROLE"

// playRole does what this binary was started for as a child of a test.
func playRole() bool {
	text := os.Getenv(roleEnv)
	if text == "" {
		return false
	}
	var r role
	var out told
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		out.Error = err.Error()
	} else if err := r.play(&out); err != nil {
		out.Error = err.Error()
	}
	_ = json.NewEncoder(os.Stdout).Encode(out)
	return true
}

func (r role) play(out *told) error {
	root, err := Open(r.Root)
	if err != nil {
		return err
	}
	defer root.Close()
	if r.Wheel != "" {
		return root.AddWheel(context.Background(), &suicidal{size: 1 << 20}, r.Wheel, 0)
	}
	box, err := sandboxrun.New(context.Background(), sandboxrun.Config{})
	if err != nil {
		return err
	}
	defer box.Close()
	l, err := root.Lock(r.Lock)
	if err != nil {
		return err
	}
	layer, err := root.Build(context.Background(), Build{Lock: l, Python: r.Python, Box: box, Progress: func(s Step) {
		out.Built = out.Built || s.Stage == StageCompile
		if r.Midway && s.Stage == StageCompile {
			go r.dieMidway()
		}
		if out.Calls++; out.Calls == r.KillAt {
			pyenvtest.Die()
		}
	}})
	if err == nil {
		out.Layer = layer.ID
	}
	return err
}

// dieMidway waits for bytecode in a directory of a build.
func (r role) dieMidway() {
	for {
		if found, _ := filepath.Glob(filepath.Join(r.Root, layersDir, tmpPrefix+"*", "site-packages", "*", "__pycache__", "*.pyc")); len(found) > 0 {
			pyenvtest.Die()
		}
	}
}

// suicidal is a file that kills who reads it to its end.
type suicidal struct{ size int }

func (s *suicidal) Read(b []byte) (int, error) {
	if s.size <= 0 {
		pyenvtest.Die()
	}
	s.size -= len(b)
	return len(b), nil
}

// start starts a child; wait returns what it says. killed tells that it died.
func (r role) start(t testing.TB) (wait func() (out told, killed bool)) {
	t.Helper()
	end := pyenvtest.Start(t, roleEnv, r)
	return func() (out told, killed bool) {
		killed = end(&out)
		return out, killed
	}
}

// TestCase39KilledBuilds kills a process at every report of a build, and in the middle
// of adding a wheel. Nothing half can be seen, and the next build has no trouble.
func TestCase39KilledBuilds(t *testing.T) {
	p := newPlace(t)
	l := p.lock(lock.Base, simple("alpha", "1"), simple("beta", "2"), fakeMatplotlib(honestFonts))
	id, err := p.PutLock(l)
	must(t, err)
	want, err := l.LayerID()
	must(t, err)
	kills := 0
	for at := 1; ; at++ {
		out, killed := role{Root: p.Dir(), Python: p.py, Lock: id, KillAt: at}.start(t)()
		if !killed {
			if out.Error != "" || out.Layer != want || out.Calls >= at {
				t.Fatalf("the last build: %+v", out)
			}
			break
		}
		kills++
		for _, seen := range layers(t, p.Root) {
			layer, err := p.Layer(seen)
			must(t, err)
			p.verify(layer)
			must(t, p.Drop(seen))
		}
		if list := leftAfterOpen(t, p.Dir()); len(list) > 0 {
			t.Errorf("killed at %d: opening leaves %q", at, list)
		}
	}
	if kills < 13 {
		t.Errorf("only %d places to kill at", kills)
	}
	t.Logf("killed at %d places", kills)
	layer, err := p.Layer(want)
	must(t, err)
	p.verify(layer)

	many := wheeltest.Wheel{Name: "many"}
	for i := range 400 {
		many.Files = append(many.Files, wheeltest.File{Name: fmt.Sprintf("many/m%d.py", i), Body: "x = 1\n"})
	}
	l = p.lock(lock.X, many)
	id, err = p.PutLock(l)
	must(t, err)
	if _, killed := (role{Root: p.Dir(), Python: p.py, Lock: id, Midway: true}).start(t)(); !killed {
		t.Error("not killed between two files of bytecode")
	}
	if n := len(layers(t, p.Root)); n != 1 || len(left(t, p.Root)) == 0 {
		t.Errorf("%d layers, left %q", n, left(t, p.Root))
	}
	p.mustBuild(l) // which removes what is left of the other
	if len(left(t, p.Root)) > 0 {
		t.Errorf("left %q", left(t, p.Root))
	}

	if _, killed := (role{Root: p.Dir(), Wheel: fmt.Sprintf("%064d", 1)}).start(t)(); !killed || len(left(t, p.Root)) != 1 {
		t.Errorf("killed %v while adding a wheel, left is %q", killed, left(t, p.Root))
	}
	if list := leftAfterOpen(t, p.Dir()); len(list) > 0 || p.HasWheel(fmt.Sprintf("%064d", 1)) {
		t.Errorf("left is %q", list)
	}
}

// leftAfterOpen opens a root until that leaves nothing, for at most some seconds: a
// process that was forked from the killed one holds its locks until its exec.
func leftAfterOpen(t testing.TB, dir string) (names []string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); <-tick.C {
		r, err := Open(dir)
		must(t, err)
		names = left(t, r)
		must(t, r.Close())
		if len(names) == 0 {
			break
		}
	}
	return names
}

// TestCase40BuildersAtOnce: several processes and several roots of one process build
// one lock at once. One builds, all have the layer.
func TestCase40BuildersAtOnce(t *testing.T) {
	p := newPlace(t)
	l := p.lock(lock.X, simple("alpha", "1"), simple("beta", "2"))
	id, err := p.PutLock(l)
	must(t, err)
	want, err := l.LayerID()
	must(t, err)
	if hostos.Implementations()["lock"] != "flock" {
		t.Skip("SKIP other processes do not see locks on this system")
	}
	var waits []func() (told, bool)
	for range 3 {
		waits = append(waits, role{Root: p.Dir(), Python: p.py, Lock: id}.start(t))
	}
	type answer struct {
		layer *Layer
		built bool
		err   error
	}
	answers := make(chan answer)
	for range 2 {
		other := openRoot(t, p.Dir()) // of another state directory
		go func() {
			var a answer
			a.layer, a.err = other.Build(t.Context(), Build{Lock: l, Python: p.py, Box: p.box, Progress: func(s Step) { a.built = a.built || s.Stage == StageCompile }})
			answers <- a
		}()
	}
	built := 0
	count := func(b bool) {
		if b {
			built++
		}
	}
	for range 2 {
		a := <-answers
		if a.err != nil || a.layer.ID != want {
			t.Errorf("a root of this process: %v", a.err)
		}
		count(a.built)
	}
	for _, wait := range waits {
		out, killed := wait()
		if killed || out.Error != "" || out.Layer != want {
			t.Errorf("another process: %+v", out)
		}
		count(out.Built)
	}
	if built != 1 || len(layers(t, p.Root)) != 1 || len(left(t, p.Root)) > 0 {
		t.Errorf("built %d times, layers %q, left %q", built, layers(t, p.Root), left(t, p.Root))
	}
}
