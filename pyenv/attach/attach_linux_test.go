package attach

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

const (
	base = "base-0000000000000000"
	one  = "x-0000000000000001"
	two  = "x-0000000000000002"
)

//go:embed testdata/bwrap.golden
var golden string

// The options of bubblewrap for a run with a base and two layers.
func TestGoldenArguments(t *testing.T) {
	w := fake(t)
	layers := []*store.Layer{
		w.layer(t, two, made(wheeltest.Wheel{Name: "two", EntryPoints: "[console_scripts]\ntwo = two:main\n", Files: []wheeltest.File{{Name: "two.py"}, {Name: "two.pth", Body: "sub\nimport two\n"}}})),
		w.layer(t, one, pkg("one", "")),
		w.layer(t, base, pkg("zero", "")),
	}
	write(t, filepath.Join(layers[2].Dir, "cache/matplotlib/fontlist-v390.json"), "{}")
	run := w.plan(t, Set{Layers: layers, Startup: map[string][]string{two: {"import two"}}}, python.Executable)
	box := pyenvtest.Box(t)
	cmd, release, err := box.Bare(t.Context(), run)
	must(t, err)
	defer release()
	args, err := io.ReadAll(cmd.ExtraFiles[0])
	must(t, err)
	// What depends on the host is left out: its links to /usr, and files of its /proc.
	text := strings.Join(strings.Split(strings.TrimSuffix(string(args), "\x00"), "\x00"), " ")
	text = strings.ReplaceAll(text, w.root, "ROOT")
	text = regexp.MustCompile(` --symlink \S+ \S+| --ro-bind(-try)? /(lib|bin|sbin|etc)\S* \S+| --ro-bind /dev/null /proc/\S+`).ReplaceAllString(text, "")
	text = strings.Replace(text, fmt.Sprintf("OPENBLAS_NUM_THREADS %d", min(4, runtime.NumCPU())), "OPENBLAS_NUM_THREADS MIN(4,CPUS)", 1)
	text = strings.ReplaceAll(text, " --", "\n--") + "\n"
	if text != golden {
		t.Errorf("got\n%s\nwant\n%s", text, golden)
	}
	if got := read(t, sourceOf(t, run, w.py.Facts.SitePackages+"/"+python.LayersPth)); got != "/opt/mcp/layers/x-0000000000000002/site-packages\n/opt/mcp/layers/x-0000000000000002/site-packages/sub\n/opt/mcp/layers/x-0000000000000001/site-packages\n/opt/mcp/layers/base-0000000000000000/site-packages\n" {
		t.Errorf("the import path is %q", got)
	}
	if got := read(t, sourceOf(t, run, w.py.Facts.SitePackages+"/"+python.StartupPth)); got != "import two\n" {
		t.Errorf("the startup code is %q", got)
	}
}

func sourceOf(t testing.TB, run sandboxrun.Run, target string) string {
	t.Helper()
	for _, b := range run.Binds {
		if b.Target == target {
			return b.Source
		}
	}
	t.Fatalf("nothing is mounted at %s", target)
	return ""
}

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o444))
}

// Case 5: the interpreter of the PATH is the managed one.
func TestCase05Executable(t *testing.T) {
	w := newWorld(t)
	says(t, w.run(t, nil, "/bin/sh", "-c", "for p in python3 pip uv; do command -v $p; done; python3 -c 'import sys; print(sys.executable)'; python -c 'import sys; print(sys.prefix)'"),
		"/opt/mcp/python/bin/python3\n/opt/mcp/shim/pip\n/opt/mcp/shim/uv\n/opt/mcp/python/bin/python3\n/opt/mcp/python\n")
}

// Case 6: layers are there with -I and -E, after the standard library, in order.
func TestCase06IsolatedModes(t *testing.T) {
	w := newWorld(t)
	layers := []*store.Layer{w.layer(t, one, pkg("one", "v = 1\n"), pkg("both", "v = 'x'\n")), w.layer(t, base, pkg("docx", "v = 2\n"), pkg("both", "v = 'base'\n"))}
	// A wheel with such a module is refused; here it got in all the same.
	write(t, filepath.Join(layers[0].Dir, "site-packages/json.py"), "raise SystemExit('shadowed')\n")
	const code = "import sys, json, one, docx, both; print(one.v, docx.v, both.v, [p for p in sys.path if 'layers' in p] == sys.path[-2:])"
	for _, flag := range []string{"-I", "-E", "-s", "-B"} {
		says(t, w.run(t, layers, python.Executable, flag, "-c", code), "1 2 x True\n")
	}
	says(t, w.run(t, nil, python.Executable, "-c", "import sys; print([p for p in sys.path if 'layers' in p])"), "[]\n")
}

// Case 31: a namespace package with parts in two layers.
func TestCase31Namespace(t *testing.T) {
	w := newWorld(t)
	part := func(name string) [2]string {
		return made(wheeltest.Wheel{Name: "ns-" + name, Files: []wheeltest.File{{Name: "ns/" + name + ".py", Body: "v = '" + name + "'\n"}}})
	}
	layers := []*store.Layer{w.layer(t, one, part("a")), w.layer(t, base, part("b"))}
	says(t, w.run(t, layers, python.Executable, "-I", "-c", "import ns.a, ns.b; print(ns.a.v, ns.b.v)"), "a b\n")
}

// Case 32: path lines count, code does not until it is approved.
func TestCase32Pth(t *testing.T) {
	w := newWorld(t)
	code := "import sys; sys.started = getattr(sys, 'started', 0) + 1"
	l := w.layer(t, one, made(wheeltest.Wheel{Files: []wheeltest.File{
		{Name: "inner dir/found.py", Body: "v = 42\n"}, {Name: "demo.pth", Body: "inner dir\n" + code + "\nimport never\n"}, {Name: "demo.start", Body: "never:main\n"}}}))
	show := []string{python.Executable, "-c", "import sys, found; print(found.v, getattr(sys, 'started', None))"}
	says(t, w.run(t, []*store.Layer{l}, show...), "42 None\n")
	says(t, w.do(t, w.plan(t, Set{Layers: []*store.Layer{l}, Startup: map[string][]string{one: {code}}}, show...)), "42 1\n")
	for name, line := range map[string]string{
		"not of the layer": "import os; os.abort()", "of a .start file": "never:main", "a path": "inner dir", "two lines": code + "\nimport never", "empty": "",
	} {
		if _, err := Plan(w.root, Set{Python: w.py, Layers: []*store.Layer{l}, Startup: map[string][]string{one: {line}}}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, dir := range []string{"../x", "..", "/etc", "a/../../b", "a\nimport os", "", "a//b", "a\u2028b"} {
		bad := *l
		bad.Manifest.Packages = []store.Installed{{Name: "demo", PthPaths: []string{dir}}}
		if _, err := Plan(w.root, Set{Python: w.py, Layers: []*store.Layer{&bad}}); !errors.Is(err, ErrInvalid) {
			t.Errorf("directory %q: %v", dir, err)
		}
	}
	none := Set{Python: w.py, Startup: map[string][]string{one: {code}}}
	if _, err := Plan(w.root, none); !errors.Is(err, ErrInvalid) {
		t.Errorf("code of a layer that is not there: %v", err)
	}
}

// Case 33: programs of a layer run, and do not take the names of the system's.
func TestCase33Scripts(t *testing.T) {
	w := newWorld(t)
	l := w.layer(t, base, made(wheeltest.Wheel{
		EntryPoints: "[console_scripts]\ncli = demo:main\nls = demo:main\npython3 = demo:main\npip = demo:main\n",
		Files:       []wheeltest.File{{Name: "demo/__init__.py", Body: "def main():\n    print('demo')\n"}},
	}))
	says(t, w.run(t, []*store.Layer{l}, "/bin/sh", "-c", "cli; for p in cli ls python3 pip sh; do command -v $p; done"),
		"demo\n/opt/mcp/layers/"+base+"/bin/cli\n/usr/bin/ls\n/opt/mcp/python/bin/python3\n/opt/mcp/shim/pip\n/usr/bin/sh\n")
}

// Case 34: whatever installs packages says what to do instead, and fails.
func TestCase34Shims(t *testing.T) {
	w := newWorld(t)
	for command, call := range map[string]string{
		`pip install "pandas>=2"`: `{"action":"request","packages":["pandas>=2"]}`,
		`pip3 install --user -U --index-url https://x.example/simple 'pandas[excel]>=2,<3' scipy scipy --no-deps`: `{"action":"request","packages":["pandas[excel]>=2,<3","scipy"]}`,
		`python3 -m pip install X`:           `{"action":"request","packages":["X"]}`,
		`python3 -I -m pip install -q X`:     `{"action":"request","packages":["X"]}`,
		`uv pip install X`:                   `{"action":"request","packages":["X"]}`,
		`uv add --index https://x.example X`: `{"action":"request","packages":["X"]}`,
		`uv tool install X`:                  `{"action":"request","packages":["X"]}`,
		`uvx ruff check .`:                   `{"action":"request","packages":["ruff"]}`,
		`pipx install X`:                     `{"action":"request","packages":["X"]}`,
		`python3 -m ensurepip`:               `{"action":"request","packages":["NAME"]}`,
		`pip install`:                        `{"action":"request","packages":["NAME"]}`,
		`pip install . ./x.whl x-1.0-py3-none-any.whl https://x/y`:                                      `{"action":"request","packages":["NAME"]}`,
		`pip install "a'b" '$(x)' "` + strings.Repeat("x", 201) + `" 'é'`:                               `{"action":"request","packages":["NAME"]}`,
		`pip install -r /no/such`:                                                                       `{"action":"request","packages":["NAME"]}`,
		`printf '# c\n-i x\nnumpy==2 # c\n\nlxml; python_version>"3"\n' >/tmp/r; pip install -r /tmp/r`: `{"action":"request","packages":["numpy==2","lxml"]}`,
		`pip list`:           `{"action":"status"}`,
		`pip`:                `{"action":"status"}`,
		`uv`:                 `{"action":"status"}`,
		`uv venv`:            `{"action":"status"}`,
		`pip uninstall -y X`: `{"action":"status"}`,
	} {
		res := w.run(t, nil, "/bin/sh", "-c", command)
		want := "pip is disabled here: no network, read-only layers. Call the python_env tool: " + call + "\n"
		if res.ExitCode != 1 || string(res.Stderr.Text) != want || len(res.Stdout.Text) > 0 {
			t.Errorf("%s: exit %d, %s%s, want %s", command, res.ExitCode, res.Stdout.Text, res.Stderr.Text, call)
		}
	}
}

// Case 35: there is no network, and pip would not look for one.
func TestCase35NoNetwork(t *testing.T) {
	w := newWorld(t)
	says(t, w.run(t, nil, python.Executable, "-c", `import os, socket
for to in ("1.1.1.1", 443), ("127.0.0.1", 8080):
    try:
        socket.create_connection(to, 2)
        print("connected")
    except OSError as e:
        print(type(e).__name__)
print(os.environ["PIP_NO_INDEX"], os.environ["PYTHONNOUSERSITE"], os.environ["PYTHONDONTWRITEBYTECODE"], os.environ["MPLBACKEND"], os.environ["MPLCONFIGDIR"])`),
		"OSError\nConnectionRefusedError\n1 1 1 Agg /tmp/mpl\n")
}

// Case 36: nothing that is mounted can be written.
func TestCase36ReadOnly(t *testing.T) {
	w := newWorld(t)
	l := w.layer(t, base, pkg("docx", ""))
	write(t, filepath.Join(l.Dir, "cache/matplotlib/fontlist-v390.json"), "{}")
	says(t, w.run(t, []*store.Layer{l}, python.Executable, "-c", `import errno, os, site, sys
places = [site.getsitepackages()[0], sys.prefix, "/opt/mcp/layers/`+base+`/site-packages", "/opt/mcp/shim", "/opt/mcp/layers", "/opt/mcp"]
for place in places:
    try:
        open(place + "/new", "w")
        print("wrote", place)
    except OSError as e:
        assert e.errno == errno.EROFS, (place, e)
for file in site.getsitepackages()[0] + "/`+python.LayersPth+`", os.__file__, "/tmp/mpl/fontlist-v390.json", "/opt/mcp/shim/pip":
    for act in (lambda: open(file, "a")), (lambda: os.remove(file)), (lambda: os.chmod(file, 0o777)):
        try:
            act()
            print("changed", file)
        except OSError as e:
            assert e.errno in (errno.EROFS, errno.EBUSY, errno.EACCES), (file, e)
print("ok")`), "ok\n")
}

// The font cache of a layer is what matplotlib finds in a directory of its own, and
// it writes no other. This is what it does with it.
const likeMatplotlib = `import json, os, pathlib
d = pathlib.Path(os.environ["MPLCONFIGDIR"]).resolve()
d.mkdir(parents=True, exist_ok=True)
assert os.access(str(d), os.W_OK) and d.is_dir()
print(json.loads((d / "fontlist-v390.json").read_text())["_version"], sorted(os.listdir(d)))
(d / "lock").touch(); (d / "lock").unlink()
try:
    open(d / "fontlist-v390.json", "w")
except OSError as e:
    print(e.errno)
`

func TestFontCache(t *testing.T) {
	w := newWorld(t)
	x, b := w.layer(t, one, pkg("one", "")), w.layer(t, base, pkg("docx", ""))
	write(t, filepath.Join(b.Dir, "cache/matplotlib/fontlist-v390.json"), `{"_version": 390}`)
	write(t, filepath.Join(b.Dir, "cache/matplotlib/other.json"), `{}`)
	says(t, w.run(t, []*store.Layer{x, b}, python.Executable, "-c", likeMatplotlib), "390 ['fontlist-v390.json']\n30\n")
	// Of two with a name, that of the first layer.
	write(t, filepath.Join(x.Dir, "cache/matplotlib/fontlist-v390.json"), `{"_version": 1}`)
	says(t, w.run(t, []*store.Layer{x, b}, python.Executable, "-c", likeMatplotlib), "1 ['fontlist-v390.json']\n30\n")
	// Versions of a format are not always numbers.
	must(t, os.Remove(filepath.Join(x.Dir, "cache/matplotlib/fontlist-v390.json")))
	write(t, filepath.Join(x.Dir, "cache/matplotlib/fontlist-v3.12.0rc1+local.json"), `{}`)
	says(t, w.run(t, []*store.Layer{x}, "/bin/sh", "-c", "ls $MPLCONFIGDIR"), "fontlist-v3.12.0rc1+local.json\n")
	// And without any, the directory is the script's to make.
	says(t, w.run(t, nil, "/bin/sh", "-c", "ls -A /tmp; mkdir -p $MPLCONFIGDIR && echo ok"), "ok\n")
}

// Each source is looked at right before a run.
func TestSourcesAreChecked(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, w world, l *store.Layer){
		"root others can write":   func(t *testing.T, w world, l *store.Layer) { must(t, os.Chmod(w.root, 0o770)) },
		"prefix others can write": func(t *testing.T, w world, l *store.Layer) { must(t, os.Chmod(w.py.Dir, 0o775)) },
		"layer others can write":  func(t *testing.T, w world, l *store.Layer) { must(t, os.Chmod(l.Dir, 0o757)) },
		"directory of layers others can write": func(t *testing.T, w world, l *store.Layer) {
			must(t, os.Chmod(filepath.Dir(l.Dir), 0o775))
		},
		"layer is a link":  func(t *testing.T, w world, l *store.Layer) { relink(t, l.Dir) },
		"link on the way":  func(t *testing.T, w world, l *store.Layer) { relink(t, filepath.Dir(l.Dir)) },
		"prefix elsewhere": func(t *testing.T, w world, l *store.Layer) { w.py.Dir = t.TempDir() },
		"layer elsewhere":  func(t *testing.T, w world, l *store.Layer) { l.Dir = "/etc/" + l.ID },
		"layer above":      func(t *testing.T, w world, l *store.Layer) { l.Dir = w.root + "/../" + l.ID },
		"relative layer":   func(t *testing.T, w world, l *store.Layer) { l.Dir = "layers/" + l.ID },
		"shim is a link":   func(t *testing.T, w world, l *store.Layer) { relink(t, filepath.Join(w.root, shimDir)) },
		"font cache is a link": func(t *testing.T, w world, l *store.Layer) {
			must(t, os.MkdirAll(filepath.Join(l.Dir, "cache/matplotlib"), 0o755))
			must(t, os.Symlink("/etc/passwd", filepath.Join(l.Dir, "cache/matplotlib/fontlist-v1.json")))
		},
		"bin is a file": func(t *testing.T, w world, l *store.Layer) { write(t, filepath.Join(l.Dir, "bin"), "") },
		"somebody else's": func(t *testing.T, w world, l *store.Layer) {
			must(t, os.RemoveAll(l.Dir))
			must(t, os.Symlink("/usr", l.Dir))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := fake(t)
			l := w.layer(t, base, pkg("docx", ""))
			if _, err := Plan(w.root, Set{Python: w.py, Layers: []*store.Layer{l}}); err != nil {
				t.Fatal(err)
			}
			spoil(t, w, l)
			if _, err := Plan(w.root, Set{Python: w.py, Layers: []*store.Layer{l}}); !errors.Is(err, ErrUnsafe) {
				t.Errorf("%v, want ErrUnsafe", err)
			}
		})
	}
}

// relink puts a link in the place of a directory, to the directory.
func relink(t testing.TB, dir string) {
	t.Helper()
	must(t, os.Rename(dir, dir+".real"))
	must(t, os.Symlink(filepath.Base(dir)+".real", dir))
}

// Sets that contradict themselves.
func TestInvalidSets(t *testing.T) {
	w := fake(t)
	b, x := w.layer(t, base, pkg("docx", "")), w.layer(t, one, pkg("one", ""))
	iso := w.layer(t, "iso-0000000000000003", pkg("three", ""))
	other := func(edit func(*store.Layer)) *store.Layer {
		l := *x
		edit(&l)
		return &l
	}
	for name, tc := range map[string]struct {
		s    Set
		want error
	}{
		"no Python":            {Set{Layers: []*store.Layer{b}}, ErrInvalid},
		"base first":           {Set{Python: w.py, Layers: []*store.Layer{b, x}}, ErrInvalid},
		"base and iso":         {Set{Python: w.py, Layers: []*store.Layer{iso, b}}, ErrInvalid},
		"twice":                {Set{Python: w.py, Layers: []*store.Layer{x, x}}, ErrInvalid},
		"nil":                  {Set{Python: w.py, Layers: []*store.Layer{nil}}, ErrInvalid},
		"too many":             {Set{Python: w.py, Layers: make([]*store.Layer, 17)}, ErrInvalid},
		"no id":                {Set{Python: w.py, Layers: []*store.Layer{other(func(l *store.Layer) { l.ID = "x-../../etc" })}}, ErrInvalid},
		"kind and id":          {Set{Python: w.py, Layers: []*store.Layer{other(func(l *store.Layer) { l.Kind = "base" })}}, ErrInvalid},
		"directory of another": {Set{Python: w.py, Layers: []*store.Layer{other(func(l *store.Layer) { l.Dir = b.Dir })}}, ErrInvalid},
		"another version":      {Set{Python: w.py, Layers: []*store.Layer{other(func(l *store.Layer) { l.Manifest.Python.Full = "3.11.3" })}}, ErrMismatch},
		"another tag":          {Set{Python: w.py, Layers: []*store.Layer{other(func(l *store.Layer) { l.Manifest.Python.Tag = "cp312" })}}, ErrMismatch},
		"a newer C library":    {Set{Python: w.py, Layers: []*store.Layer{other(func(l *store.Layer) { l.Manifest.Python.Platform = "manylinux_2_39_x86_64" })}}, ErrMismatch},
		"an older C library":   {Set{Python: w.py, Layers: []*store.Layer{other(func(l *store.Layer) { l.Manifest.Python.Platform = "manylinux_2_31_x86_64" })}}, nil},
		"as it should be":      {Set{Python: w.py, Layers: []*store.Layer{x, iso}}, nil},
	} {
		if _, err := Plan(w.root, tc.s); !errors.Is(err, tc.want) || tc.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}

// Prepare repairs what is wrong, keeps what is right, and is safe to call twice at
// once; a Plan repairs its own files, too.
func TestPrepare(t *testing.T) {
	w := fake(t)
	pip := filepath.Join(w.root, shimDir, "pip")
	before, err := os.Stat(pip)
	must(t, err)
	must(t, Prepare(w.root))
	if after, err := os.Stat(pip); err != nil || !os.SameFile(before, after) {
		t.Errorf("it was written anew (%v)", err)
	}
	right := read(t, pip)
	must(t, os.Chmod(pip, 0o644))
	must(t, os.WriteFile(pip, []byte("#!/bin/sh\n"), 0o644))
	write(t, filepath.Join(w.root, shimDir, "git"), "#!/bin/sh\n")
	must(t, os.Remove(filepath.Join(w.root, shimDir, "uv")))
	done := make(chan error, 4)
	for range cap(done) {
		go func() { done <- Prepare(w.root) }()
	}
	for range cap(done) {
		must(t, <-done)
	}
	list, err := os.ReadDir(filepath.Join(w.root, shimDir))
	must(t, err)
	if info, err := os.Stat(pip); read(t, pip) != right || err != nil || info.Mode().Perm() != 0o555 || len(list) != len(shims) {
		t.Errorf("after the repair: %v, %v", list, info)
	}
	l := w.layer(t, base, pkg("docx", ""))
	pth := sourceOf(t, w.plan(t, Set{Layers: []*store.Layer{l}}, "/bin/true"), w.py.Facts.SitePackages+"/"+python.LayersPth)
	want := read(t, pth)
	must(t, os.Chmod(pth, 0o600))
	must(t, os.WriteFile(pth, []byte("import evil\n"), 0o600))
	w.plan(t, Set{Layers: []*store.Layer{l}}, "/bin/true")
	if got := read(t, pth); got != want {
		t.Errorf("the file is %q, want %q", got, want)
	}
	unprepared := fake(t)
	must(t, os.RemoveAll(filepath.Join(unprepared.root, bootDir)))
	if _, err := Plan(unprepared.root, Set{Python: unprepared.py}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without Prepare: %v", err)
	}
}

// TestKeepAtOnce: of many who write a file of one text at once, all have the same file:
// one that another run is about to mount is never replaced.
func TestKeepAtOnce(t *testing.T) {
	t.Parallel()
	for range 20 {
		e, err := openEnv(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		const many = 16
		infos := make([]os.FileInfo, many)
		start := make(chan struct{})
		var all sync.WaitGroup
		for i := range many {
			all.Go(func() {
				<-start
				name, err := e.keep("/opt/mcp/layers/x\n")
				if err == nil {
					infos[i], err = e.root.Lstat(name)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		all.Wait()
		for _, info := range infos {
			if info != nil && !os.SameFile(info, infos[0]) {
				t.Fatal("a file was replaced by an equal one")
			}
		}
		names, err := e.list(pthDir)
		if err != nil || len(names) != 1 {
			t.Fatalf("%q %v", names, err)
		}
		e.close()
	}
}
