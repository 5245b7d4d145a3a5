package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pythontest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/tags"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// place is an environment root with all that a build needs.
type place struct {
	t   testing.TB
	box *sandboxrun.Runner
	py  *python.Interpreter
	*Root
}

func newPlace(t testing.TB) *place {
	t.Helper()
	_, py := pythontest.System(t)
	return &place{t, pyenvtest.Box(t), py, openRoot(t, filepath.Join(t.TempDir(), "envs"))}
}

func openRoot(t testing.TB, dir string) *Root {
	t.Helper()
	r, err := Open(dir)
	must(t, err)
	t.Cleanup(func() { r.Close() })
	return r
}

// lockFor is a lock of wheels for an interpreter.
func lockFor(kind lock.Kind, py *python.Interpreter, packages ...lock.Package) lock.Lock {
	parts := strings.SplitN(py.Facts.Target.String(), "-", 3)
	l := lock.Lock{Schema: 1, Kind: kind, Python: lock.Python{Tag: parts[0], Full: py.Facts.Full, Platform: parts[2]}, Resolver: "test/1", Packages: packages}
	if kind == lock.X {
		l.Base = "base-0123456789abcdef"
	}
	return l
}

// packageOf is how a lock names a wheel.
func packageOf(t testing.TB, file string, data []byte) lock.Package {
	t.Helper()
	f, err := tags.ParseFile(file)
	must(t, err)
	sum := sha256.Sum256(data)
	return lock.Package{Name: spec.NormalizeName(f.Name), Version: f.Version.String(), File: file, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(data))}
}

// lock puts wheels into the wheelhouse and returns a lock of them.
func (p *place) lock(kind lock.Kind, wheels ...wheeltest.Wheel) lock.Lock {
	p.t.Helper()
	var list []lock.Package
	for _, w := range wheels {
		data := w.Bytes()
		pkg := packageOf(p.t, w.FileName(), data)
		must(p.t, p.AddWheel(p.t.Context(), bytes.NewReader(data), pkg.SHA256, pkg.Size))
		list = append(list, pkg)
	}
	return lockFor(kind, p.py, list...)
}

func (p *place) build(l lock.Lock, over ...*Layer) (*Layer, error) {
	return p.Build(p.t.Context(), Build{Lock: l, Python: p.py, Over: over, Box: p.box})
}

// mustBuild builds and checks that what was built is what the manifest says.
func (p *place) mustBuild(l lock.Lock, over ...*Layer) *Layer {
	p.t.Helper()
	layer, err := p.build(l, over...)
	must(p.t, err)
	p.verify(layer)
	return layer
}

func (p *place) verify(l *Layer) {
	p.t.Helper()
	if faults, err := p.Verify(p.t.Context(), l); err != nil || len(faults) > 0 {
		p.t.Errorf("%s differs from its manifest: %v, %v", l.ID, faults, err)
	}
}

// run runs Python code with layers on its path, first ones first, and returns what
// it prints.
func (p *place) run(code string, layers ...*Layer) (string, error) {
	p.t.Helper()
	binds := []sandboxrun.Bind{{Source: p.py.Dir, Target: python.Prefix}}
	argv := []string{python.Executable, "-I", "-S", "-B", "-c", "import sys; sys.path += sys.argv[1:]\n" + code}
	for _, l := range layers {
		binds = append(binds, sandboxrun.Bind{Source: l.Dir, Target: l.Target()})
		argv = append(argv, l.Target()+"/"+wheel.SitePackages)
	}
	res, err := p.box.Run(p.t.Context(), sandboxrun.Run{Argv: argv, Binds: binds, Limits: sandboxrun.Limits{Timeout: time.Minute}}, nil)
	must(p.t, err)
	if res.ExitCode != 0 {
		err = errors.New(lastLine(res.Stderr.Text))
	}
	return strings.TrimSpace(string(res.Stdout.Text)), err
}

func (p *place) mustPrint(want, code string, layers ...*Layer) {
	p.t.Helper()
	if out, err := p.run(code, layers...); err != nil || out != want {
		p.t.Errorf("%s: printed %q, %v; want %q", code, out, err, want)
	}
}

// left are the names in layers/, wheelhouse/ and locks/ that are not finished.
func left(t testing.TB, r *Root) (names []string) {
	t.Helper()
	for _, dir := range []string{layersDir, wheelsDir, locksDir} {
		list, err := r.names(dir)
		must(t, err)
		for _, d := range list {
			if strings.HasPrefix(d.Name(), ".") {
				names = append(names, dir+"/"+d.Name())
			}
		}
	}
	return names
}

// layers are the ids in layers/.
func layers(t testing.TB, r *Root) (ids []string) {
	t.Helper()
	list, err := r.names(layersDir)
	must(t, err)
	for _, d := range list {
		if !strings.HasPrefix(d.Name(), ".") {
			ids = append(ids, d.Name())
		}
	}
	return ids
}

// simple is a wheel with one module.
func simple(name, version string) wheeltest.Wheel {
	return wheeltest.Wheel{Name: name, Version: version, Files: []wheeltest.File{
		{Name: name + "/__init__.py", Body: "version = '" + version + "'\n"},
		{Name: name + "/data.txt", Body: strings.Repeat(name, 100)},
	}}
}

// files are the paths of a layer that end so.
func (l *Layer) having(suffix string) (list []string) {
	for _, f := range l.Manifest.Files {
		if strings.HasSuffix(f.Path, suffix) {
			list = append(list, f.Path)
		}
	}
	return list
}

// treeOf lists all files below a directory with their modes and hashes.
func treeOf(t testing.TB, dir string) (lines []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		sum := [32]byte{}
		if d.Type().IsRegular() {
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			sum = sha256.Sum256(b)
		}
		lines = append(lines, rel+" "+st.Mode().String()+" "+hex.EncodeToString(sum[:]))
		return nil
	}))
	slices.Sort(lines)
	return lines
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t testing.TB, err error, code Code) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Fatalf("%v, want %s", err, code)
	}
}
