package attach

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pythontest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

func TestMain(m *testing.M) {
	sandboxrun.StageMain()
	os.Exit(pyenvtest.Main(m, 60705))
}

// world is an environment root with the interpreter of the system.
type world struct {
	root string
	box  *sandboxrun.Runner
	py   *python.Interpreter
}

// newWorld returns the root that all tests share, with boot/ in it.
func newWorld(t testing.TB) world {
	t.Helper()
	root, py := pythontest.System(t)
	must(t, Prepare(root))
	return world{root: root, box: pyenvtest.Box(t), py: py}
}

// fake is a world of which nothing can be run.
func fake(t testing.TB) world {
	t.Helper()
	root := t.TempDir()
	must(t, os.Chmod(root, 0o700))
	py := &python.Interpreter{ID: "system-0123456789abcdef"}
	py.Dir = filepath.Join(root, "python", py.ID, "prefix")
	must(t, os.MkdirAll(py.Dir, 0o755))
	py.Facts.Full, py.Facts.SitePackages = "3.11.2", python.Prefix+"/lib/python3.11/site-packages"
	py.Facts.Target.Minor, py.Facts.Target.Arch, py.Facts.Target.LibcMajor, py.Facts.Target.LibcMinor = 11, "x86_64", 2, 36
	must(t, Prepare(root))
	return world{root: root, py: py}
}

// lockPython is how locks and layers name the interpreter.
func (w world) lockPython() lock.Python {
	best := w.py.Facts.Target.Tags()[0]
	return lock.Python{Tag: best.Python, Full: w.py.Facts.Full, Platform: best.Platform}
}

// layer unpacks wheels into a layer, as the store does.
func (w world) layer(t testing.TB, id string, wheels ...[2]string) *store.Layer {
	t.Helper()
	kind, _, _ := strings.Cut(id, "-")
	l := &store.Layer{ID: id, Kind: lock.Kind(kind), Dir: filepath.Join(w.root, "layers", id)}
	l.Manifest = store.Manifest{Schema: 1, ID: id, Kind: l.Kind, Python: w.lockPython()}
	must(t, os.MkdirAll(filepath.Join(l.Dir, "site-packages"), 0o755))
	t.Cleanup(func() { os.RemoveAll(l.Dir) })
	dir, err := os.OpenRoot(l.Dir)
	must(t, err)
	defer dir.Close()
	for _, file := range wheels {
		b := []byte(file[1])
		wh, err := wheel.Open(bytes.NewReader(b), int64(len(b)), file[0], wheel.Options{Interpreter: python.Executable})
		must(t, err)
		_, err = wh.Unpack(t.Context(), dir)
		must(t, err)
		l.Manifest.Packages = append(l.Manifest.Packages, store.Installed{Name: wh.File.Name, PthPaths: wh.PthPaths, Startup: wh.Startup})
	}
	return l
}

// made is a wheel that a test describes.
func made(w wheeltest.Wheel) [2]string { return [2]string{w.FileName(), string(w.Bytes())} }

// pkg is a wheel with one module.
func pkg(name, body string) [2]string {
	return made(wheeltest.Wheel{Name: name, Files: []wheeltest.File{{Name: name + ".py", Body: body}}})
}

// plan returns a run with the mounts of these layers.
func (w world) plan(t testing.TB, s Set, argv ...string) sandboxrun.Run {
	t.Helper()
	s.Python = w.py
	m, err := Plan(w.root, s)
	must(t, err)
	return sandboxrun.Run{Argv: argv, Binds: m.Binds, Data: m.Data, Env: m.Env}
}

// run runs a command in the sandbox with these layers.
func (w world) run(t testing.TB, layers []*store.Layer, argv ...string) sandboxrun.Result {
	t.Helper()
	return w.do(t, w.plan(t, Set{Layers: layers}, argv...))
}

func (w world) do(t testing.TB, run sandboxrun.Run) sandboxrun.Result {
	t.Helper()
	res, err := w.box.Run(t.Context(), run, nil)
	must(t, err)
	return res
}

// says fails the test unless a run printed this and exited with 0.
func says(t testing.TB, res sandboxrun.Result, want string) {
	t.Helper()
	if string(res.Stdout.Text) != want || res.ExitCode != 0 {
		t.Errorf("exit %d: got %q, want %q\n%s", res.ExitCode, res.Stdout.Text, want, res.Stderr.Text)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
