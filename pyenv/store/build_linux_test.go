package store

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// odd is a wheel with sources of all kinds, some of which are no Python 3.
func odd() wheeltest.Wheel {
	return wheeltest.Wheel{Name: "odd", EntryPoints: "[console_scripts]\nodd = odd:main\n", Files: []wheeltest.File{
		{Name: "odd/__init__.py", Body: "names = {'a', 'b', 'c'} - frozenset(('d', 'e'))\ndef main(): print('odd')\n"},
		{Name: "odd/warns.py", Body: "x = '\\d'\nx is 1\nupdatecache = linecache = 1\n"},
		{Name: "odd/python2.py", Body: "print 'old'\n"},
		{Name: "odd/nul.py", Body: "x = 1\x00\n"},
		{Name: "odd/latin.py", Body: "# -*- coding: latin-1 -*-\nx = '\xe9'\n"},
		{Name: "odd/bytes.py", Body: "x = '\xe9'\n"},
		{Name: "odd/deep.py", Body: "x = " + strings.Repeat("(", 5000) + strings.Repeat(")", 5000) + "\n"},
		{Name: "odd/empty.py"},
		{Name: "odd/" + strings.Repeat("n", 230) + ".py", Body: "x = 1\n"},
		{Name: "odd/sub/module.with.dots.py", Body: "x = 1\n"},
		{Name: "odd/sub/__pycache__", Body: "no directory"},
		{Name: "odd/half/__pycache__/notes.txt", Body: "a wheel may have this"},
		{Name: "odd/half/__pycache__/source.py", Body: "x = 1\n"},
		{Name: "odd/half/m.py", Body: "x = 1\n"},
		{Name: "odd-1.0.data/scripts/odd-script", Body: "#!python\nprint('script')\n"},
		{Name: "odd-1.0.data/data/share/odd/helper.py", Body: "x = 1\n"},
	}}
}

// TestCase03SameLockSameLayer: the same lock, built in two places with other settings
// of the user, is the same layer with the same files, bytecode included.
func TestCase03SameLockSameLayer(t *testing.T) {
	a := newPlace(t)
	l := a.lock(lock.Base, odd(), simple("alpha", "1"))
	first := a.mustBuild(l)

	b := &place{t, a.box, a.py, openRoot(t, filepath.Join(t.TempDir(), "elsewhere", "deeper"))}
	b.lock(lock.Base, simple("alpha", "1"), odd())
	slices.Reverse(l.Packages)
	old := syscall.Umask(0o077)
	second := b.mustBuild(l)
	syscall.Umask(old)

	if first.ID != second.ID || first.Manifest.Digest != second.Manifest.Digest {
		t.Errorf("%s %s, %s %s", first.ID, first.Manifest.Digest, second.ID, second.Manifest.Digest)
	}
	if x, y := treeOf(t, first.Dir), treeOf(t, second.Dir); !slices.Equal(x, y) {
		t.Errorf("the trees differ:\n%s\n\n%s", strings.Join(x, "\n"), strings.Join(y, "\n"))
	}
	want := map[string]bool{"odd/__pycache__/__init__": true, "odd/__pycache__/warns": true, "odd/__pycache__/latin": true, "odd/__pycache__/empty": true, "odd/half/__pycache__/m": true, "alpha/__pycache__/__init__": true}
	for _, p := range first.having(".pyc") {
		name, _, _ := strings.Cut(strings.TrimPrefix(p, "site-packages/"), ".cpython-")
		if !want[name] {
			t.Errorf("bytecode that should not be: %s", p)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("no bytecode: %v", want)
	}
	a.mustPrint("/opt/mcp/layers/"+first.ID+"/site-packages/odd/__init__.py", "import odd; print(odd.main.__code__.co_filename)", first)
}

// TestBytecodeIsThatOfCompileall compares with what Python's own tool makes.
func TestBytecodeIsThatOfCompileall(t *testing.T) {
	p := newPlace(t)
	layer := p.mustBuild(p.lock(lock.Base, odd(), simple("alpha", "1")))
	plain := filepath.Join(t.TempDir(), "plain")
	must(t, os.CopyFS(plain, os.DirFS(layer.Dir)))
	for _, f := range layer.having(".pyc") {
		must(t, os.Remove(filepath.Join(plain, f)))
	}
	compared := 0
	res, err := p.box.Run(t.Context(), sandboxrun.Run{
		Lower: plain,
		Argv: []string{python.Executable, "-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", "/workspace/site-packages",
			"-p", layer.Target() + "/site-packages", "/workspace/site-packages"},
		Binds: []sandboxrun.Bind{{Source: p.py.Dir, Target: python.Prefix}},
	}, func(c sandboxrun.Change) error {
		if c.Kind != sandboxrun.File || !strings.HasSuffix(string(c.Path), ".pyc") {
			return nil
		}
		have, err := os.ReadFile(filepath.Join(layer.Dir, string(c.Path)))
		if err != nil {
			return err
		}
		var want bytes.Buffer
		if _, err := want.ReadFrom(c.Body); err != nil {
			return err
		}
		if !bytes.Equal(have, want.Bytes()) {
			t.Errorf("%s differs", c.Path)
		}
		compared++
		return nil
	})
	if err != nil || compared != len(layer.having(".pyc")) {
		t.Errorf("%v, exit %d, compared %d", err, res.ExitCode, compared)
	}
}

// TestCase20SwappedWheel: a wheel that is not what the lock says is never built from,
// and is not kept.
func TestCase20SwappedWheel(t *testing.T) {
	p := newPlace(t)
	l := p.lock(lock.X, simple("alpha", "1"), simple("beta", "1"))
	sum := l.Packages[0].SHA256
	swapped := simple("alpha", "1")
	swapped.Files[0].Body = "evil = True\n"
	must(t, os.Chmod(p.path(wheelName(sum)), 0o600))
	must(t, os.WriteFile(p.path(wheelName(sum)), swapped.Bytes(), 0o600))
	_, err := p.build(l)
	wantCode(t, err, wheel.ErrHashMismatch)
	if p.HasWheel(sum) || !p.HasWheel(l.Packages[1].SHA256) || len(layers(t, p.Root)) > 0 || len(left(t, p.Root)) > 0 {
		t.Errorf("layers %q, left %q", layers(t, p.Root), left(t, p.Root))
	}
	_, err = p.build(l)
	wantCode(t, err, ErrMissingWheel)
	p.lock(lock.X, simple("alpha", "1"))
	p.mustBuild(l)
}

// TestCase28BytecodeOfAWheel: bytecode of a wheel does not run in place of its source.
func TestCase28BytecodeOfAWheel(t *testing.T) {
	p := newPlace(t)
	minor := strings.TrimPrefix(lockFor(lock.X, p.py).Python.Tag, "cp")
	evil := p.mustBuild(p.lock(lock.X, wheeltest.Wheel{Name: "evil", Files: []wheeltest.File{{Name: "evil/x.py", Body: "print('bytecode')\n"}, {Name: "evil/__init__.py"}}}))
	pyc, err := os.ReadFile(filepath.Join(evil.Dir, "site-packages/evil/__pycache__/x.cpython-"+minor+".pyc"))
	must(t, err)
	layer := p.mustBuild(p.lock(lock.X, wheeltest.Wheel{Name: "demo", Files: []wheeltest.File{
		{Name: "demo/__init__.py"}, {Name: "demo/x.py", Body: "print('source')\n"},
		{Name: "demo/__pycache__/x.cpython-" + minor + ".pyc", Body: string(pyc)},
		{Name: "demo/__pycache__/gone.cpython-" + minor + ".pyc", Body: string(pyc)},
	}}))
	p.mustPrint("source", "import demo.x", layer)
	if list := layer.having("gone.cpython-" + minor + ".pyc"); len(list) > 0 {
		t.Errorf("%q is there", list)
	}
}

// TestCase30ImportCollision: a layer that would hide a package of the base, or be hidden
// by it, is refused, and the answer says who has it.
func TestCase30ImportCollision(t *testing.T) {
	p := newPlace(t)
	base := p.mustBuild(p.lock(lock.Base, wheeltest.Wheel{Name: "python-docx", Version: "1.2.0", Files: []wheeltest.File{{Name: "docx/__init__.py"}, {Name: "docx/api.py"}}}))
	_, err := p.build(p.lock(lock.X, wheeltest.Wheel{Name: "docx", Version: "0.2.4", Files: []wheeltest.File{{Name: "docx/__init__.py"}}}), base)
	wantCode(t, err, wheel.ErrImportCollision)
	var e *Error
	if !errors.As(err, &e) || e.Package != "docx" || !slices.Equal(e.Suggestions, []string{"python-docx is in base"}) {
		t.Errorf("%v, %q", err, e.Suggestions)
	}
	if len(layers(t, p.Root)) != 1 || len(left(t, p.Root)) > 0 {
		t.Errorf("layers %q, left %q", layers(t, p.Root), left(t, p.Root))
	}
}

// TestCase31Namespace: parts of one namespace in two layers can both be imported.
func TestCase31Namespace(t *testing.T) {
	p := newPlace(t)
	base := p.mustBuild(p.lock(lock.Base, wheeltest.Wheel{Name: "space-a", Files: []wheeltest.File{{Name: "space/a/__init__.py", Body: "x = 'a'\n"}, {Name: "space/inner/one.py", Body: "x = 1\n"}}}))
	x := p.mustBuild(p.lock(lock.X, wheeltest.Wheel{Name: "space-b", Files: []wheeltest.File{{Name: "space/b/__init__.py", Body: "x = 'b'\n"}, {Name: "space/inner/two.py", Body: "x = 2\n"}}}), base)
	p.mustPrint("a b 1 2", "import space.a, space.b, space.inner.one as one, space.inner.two as two; print(space.a.x, space.b.x, one.x, two.x)", x, base)
}

// TestCollisions are pairs of wheels, in one layer and in two.
func TestCollisions(t *testing.T) {
	p := newPlace(t)
	for _, c := range []struct {
		name            string
		a, b            []string // files of the wheel in base, and of the other
		layers, oneOnly bool     // a collision of two layers; of two wheels in one
	}{
		{"same package", []string{"m/__init__.py"}, []string{"m/__init__.py"}, true, true},
		{"same module", []string{"m.py"}, []string{"m.py"}, true, true},
		{"module and package", []string{"m.py"}, []string{"m/__init__.py"}, true, true},
		{"module and directory", []string{"m/x.py"}, []string{"m.py"}, true, true},
		{"module and extension", []string{"m.py"}, []string{"m.abi3.so"}, true, true},
		{"namespace and package", []string{"m/a.py"}, []string{"m/__init__.py"}, true, false},
		{"package and namespace", []string{"m/__init__.py"}, []string{"m/plugins/a.py"}, true, false},
		{"package and data", []string{"m/__init__.py"}, []string{"m/data.txt"}, true, false},
		{"inner namespace and package", []string{"s/m/a.py"}, []string{"s/m/__init__.py"}, true, false},
		{"inner package twice", []string{"s/m/__init__.py", "s/m/a.py"}, []string{"s/m/__init__.py"}, true, true},
		{"upper case first", []string{"m/Api.py", "m/__init__.py"}, []string{"m/Other.py", "m/__init__.py"}, true, true},
		{"namespaces", []string{"s/a.py"}, []string{"s/b.py"}, false, false},
		{"inner namespaces", []string{"s/m/a.py"}, []string{"s/m/b/__init__.py"}, false, false},
		{"a file where a directory is", []string{"d.d/x.txt"}, []string{"d.d"}, false, true},
		{"a directory where a file is", []string{"d.d"}, []string{"d.d/x.txt"}, false, true},
		{"same data", []string{"a-1.0.data/data/x"}, []string{"b-1.0.data/data/x"}, false, true},
		{"same script", []string{"a-1.0.data/scripts/x"}, []string{"b-1.0.data/scripts/x"}, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := *p
			q.t = t
			a, b := wheeltest.Wheel{Name: "a", Files: named(c.a)}, wheeltest.Wheel{Name: "b", Files: named(c.b)}
			base := q.mustBuild(q.lock(lock.Base, a))
			_, err := q.build(q.lock(lock.X, b), base)
			if have := errors.Is(err, wheel.ErrImportCollision); have != c.layers || err != nil && !have {
				t.Errorf("in two layers: %v", err)
			}
			_, err = q.build(q.lock(lock.Iso, a, b))
			if have := errors.Is(err, wheel.ErrImportCollision); have != c.oneOnly || err != nil && !have {
				t.Errorf("in one layer: %v", err)
			}
		})
	}
	t.Run("another version", func(t *testing.T) {
		base := p.mustBuild(p.lock(lock.Base, simple("alpha", "1")))
		_, err := p.build(p.lock(lock.X, wheeltest.Wheel{Name: "alpha", Version: "2", Files: named([]string{"other.py"})}), base)
		wantCode(t, err, wheel.ErrImportCollision)
	})
}

func named(paths []string) (files []wheeltest.File) {
	for _, p := range paths {
		files = append(files, wheeltest.File{Name: p, Body: "# " + p + "\n"})
	}
	return files
}

// honestFonts is a font manager that says where it found itself.
const honestFonts = `import os, json
with open(os.path.join(os.environ["MPLCONFIGDIR"], "fontlist-v390.json"), "w") as f:
    json.dump({"fname": __file__}, f)
open(os.path.join(os.environ["MPLCONFIGDIR"], "other"), "w").close()
`

func fakeMatplotlib(fonts string) wheeltest.Wheel {
	return wheeltest.Wheel{Name: "matplotlib", Version: "3.9", Files: []wheeltest.File{{Name: "matplotlib/__init__.py"}, {Name: "matplotlib/font_manager.py", Body: fonts}}}
}

func TestFontCache(t *testing.T) {
	p := newPlace(t)
	numpy := p.mustBuild(p.lock(lock.Base, simple("numpy", "2")))
	layer := p.mustBuild(p.lock(lock.X, fakeMatplotlib("import numpy\n"+honestFonts)), numpy)
	b, err := os.ReadFile(filepath.Join(layer.Dir, FontCache, "fontlist-v390.json"))
	if want := `{"fname": "` + layer.Target() + `/site-packages/matplotlib/font_manager.py"}`; err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
	if len(layer.Manifest.Cache.Files) != 1 || len(layer.having("fontlist-v390.json")) > 0 {
		t.Errorf("%+v", layer.Manifest.Cache)
	}
	for name, fonts := range map[string]string{
		"raises":       "raise SystemExit(3)",
		"makes none":   "pass",
		"makes a link": "import os; os.symlink('/etc/passwd', os.environ['MPLCONFIGDIR'] + '/fontlist-v1.json')",
		"is no JSON":   "import os; open(os.environ['MPLCONFIGDIR'] + '/fontlist-v1.json', 'w').write('x')",
		"too large":    "import os; os.truncate(os.open(os.environ['MPLCONFIGDIR'] + '/fontlist-v1.json', os.O_CREAT | os.O_RDWR), 1 << 30)",
	} {
		layer := p.mustBuild(p.lock(lock.X, fakeMatplotlib(fonts)))
		if _, err := os.Stat(filepath.Join(layer.Dir, cacheDir)); !errors.Is(err, os.ErrNotExist) || layer.Manifest.Cache.Note == "" || len(layer.Manifest.Cache.Files) > 0 {
			t.Errorf("%s: %v, %+v", name, err, layer.Manifest.Cache)
		}
	}
}

// TestNoBuild are builds that are refused before anything is written.
func TestNoBuild(t *testing.T) {
	p := newPlace(t)
	l := p.lock(lock.X, simple("alpha", "1"))
	wrongPython, wrongPlatform := l, l
	wrongPython.Python.Full += "9"
	wrongPlatform.Python.Platform = "manylinux_2_99_x86_64"
	noFit := p.lock(lock.X, wheeltest.Wheel{Tag: "cp37-cp37m-win_amd64"})
	missing := p.lock(lock.X, simple("alpha", "1"), simple("gone", "1"))
	must(t, os.Remove(p.path(wheelName(missing.Packages[1].SHA256))))
	shadow := p.lock(lock.X, wheeltest.Wheel{Files: named([]string{"json.py"})})
	bad := l
	bad.Schema = 7
	for name, c := range map[string]struct {
		lock lock.Lock
		code error
	}{
		"python": {wrongPython, ErrPython}, "platform": {wrongPlatform, ErrPython}, "tag": {noFit, ErrNoFit},
		"wheel": {missing, ErrMissingWheel}, "stdlib": {shadow, wheel.ErrStdlibShadow}, "lock": {bad, lock.ErrInvalid},
	} {
		if _, err := p.build(c.lock); !errors.Is(err, c.code) {
			t.Errorf("%s: %v, want %v", name, err, c.code)
		}
	}
	foreign := &Layer{ID: "base-0123456789abcdef", Manifest: Manifest{Python: lock.Python{Tag: "cp39"}}}
	_, err := p.build(l, foreign)
	wantCode(t, err, ErrPython)
	if _, err := p.Build(t.Context(), Build{Lock: l, Python: p.py}); !errors.Is(err, sandboxrun.ErrUnavailable) {
		t.Errorf("without a sandbox: %v", err)
	}
	if len(layers(t, p.Root)) > 0 || len(left(t, p.Root)) > 0 {
		t.Errorf("layers %q, left %q", layers(t, p.Root), left(t, p.Root))
	}
}

// TestCancelledBuild ends a build at each of its reports.
func TestCancelledBuild(t *testing.T) {
	p := newPlace(t)
	l := p.lock(lock.Base, simple("alpha", "1"), fakeMatplotlib(honestFonts))
	stop := errors.New("enough")
	for at := 1; at < 12; at++ {
		ctx, cancel := context.WithCancelCause(t.Context())
		calls := 0
		_, err := p.Build(ctx, Build{Lock: l, Python: p.py, Box: p.box, Progress: func(s Step) {
			if calls++; calls == at {
				cancel(stop)
			}
		}})
		cancel(nil)
		if err == nil {
			if ids := layers(t, p.Root); len(ids) != 1 {
				t.Errorf("%q", ids)
			}
			must(t, p.Drop(layers(t, p.Root)[0]))
		} else if !errors.Is(err, stop) {
			t.Errorf("at %d: %v", at, err)
		}
		if len(layers(t, p.Root)) > 0 || len(left(t, p.Root)) > 0 {
			t.Errorf("at %d: layers %q, left %q", at, layers(t, p.Root), left(t, p.Root))
		}
	}
	p.mustBuild(l)
}

// TestWaitingIsCancelled: who waits for another build can give up.
func TestWaitingIsCancelled(t *testing.T) {
	p := newPlace(t)
	l := p.lock(lock.Base, simple("alpha", "1"))
	id, err := l.LayerID()
	must(t, err)
	release, err := p.claim(t.Context(), id, func() {})
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var stages []Stage
	_, err = openRoot(t, p.Dir()).Build(ctx, Build{Lock: l, Python: p.py, Box: p.box, Progress: func(s Step) { stages = append(stages, s.Stage); cancel() }})
	if !errors.Is(err, context.Canceled) || !slices.Equal(stages, []Stage{StageWait}) {
		t.Errorf("%v after %q", err, stages)
	}
	release()
	p.mustBuild(l)
}

// TestDamagedLayerIsBuiltAgain, but not under a script that uses it.
func TestDamagedLayerIsBuiltAgain(t *testing.T) {
	p := newPlace(t)
	l := p.lock(lock.Base, simple("alpha", "1"))
	layer := p.mustBuild(l)
	must(t, os.Remove(filepath.Join(layer.Dir, manifestFile)))
	release, err := p.Use(layer.ID)
	must(t, err)
	_, err = p.build(l)
	wantCode(t, err, ErrInUse)
	release()
	p.mustBuild(l)
	if len(left(t, p.Root)) > 0 {
		t.Errorf("left %q", left(t, p.Root))
	}
}

// TestWhatTheCompilerMayLeave: nothing but bytecode of sources that are there.
func TestWhatTheCompilerMayLeave(t *testing.T) {
	const good = "site-packages/m/__pycache__/a.cpython-312.pyc"
	body := "\xcb\x0d\x0d\x0a\x01\x00\x00\x00........code"
	for name, c := range map[string]struct {
		change sandboxrun.Change
		body   string
		ok     bool
	}{
		"bytecode":          {sandboxrun.Change{Path: []byte(good), Kind: sandboxrun.File, Size: int64(len(body))}, body, true},
		"other file":        {sandboxrun.Change{Path: []byte("site-packages/m/a.py"), Kind: sandboxrun.File, Size: int64(len(body))}, body, false},
		"no source":         {sandboxrun.Change{Path: []byte("site-packages/m/__pycache__/b.cpython-312.pyc"), Kind: sandboxrun.File, Size: int64(len(body))}, body, false},
		"link":              {sandboxrun.Change{Path: []byte(good), Kind: sandboxrun.Symlink, Target: []byte("x")}, "", false},
		"removed":           {sandboxrun.Change{Path: []byte("site-packages/m/a.py"), Kind: sandboxrun.Removed}, "", false},
		"other directory":   {sandboxrun.Change{Path: []byte("site-packages/n"), Kind: sandboxrun.Dir}, "", false},
		"replaced":          {sandboxrun.Change{Path: []byte("site-packages/m"), Kind: sandboxrun.OpaqueDir}, "", false},
		"checked bytecode":  {sandboxrun.Change{Path: []byte(good), Kind: sandboxrun.File, Size: int64(len(body))}, strings.Replace(body, "\x01", "\x03", 1), false},
		"short":             {sandboxrun.Change{Path: []byte(good), Kind: sandboxrun.File, Size: 7}, body[:7], false},
		"cut off":           {sandboxrun.Change{Path: []byte(good), Kind: sandboxrun.File, Size: 1000}, body, false},
		"too large":         {sandboxrun.Change{Path: []byte(good), Kind: sandboxrun.File, Size: maxBytecode + 1}, body, false},
		"directory, a file": {sandboxrun.Change{Path: []byte("site-packages/m/__pycache__"), Kind: sandboxrun.File}, "", false},
	} {
		dir := t.TempDir()
		must(t, os.MkdirAll(filepath.Join(dir, "site-packages", "m"), 0o755))
		tree, err := os.OpenRoot(dir)
		must(t, err)
		in := &bytecode{tree: tree, expected: map[string]bool{good: true}, dirs: map[string]bool{filepath.Dir(good): false}}
		err = in.take(sandboxrun.Change{Path: []byte(filepath.Dir(good)), Kind: sandboxrun.OpaqueDir})
		must(t, err)
		c.change.Body = strings.NewReader(c.body)
		err = in.take(c.change)
		in.leave()
		tree.Close()
		if c.ok != (err == nil) || err != nil && !errors.Is(err, ErrBytecode) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
