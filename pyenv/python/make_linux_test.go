package python

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// Case 5: whatever the PATH of the server begins with, the interpreter is the one
// at the fixed place, and what is on the PATH is told of and not run.
func TestCase05ExecutableIsTheManagedOne(t *testing.T) {
	_, it, box := system(t)
	res := python(t, box, it, "/usr/bin/env", "python3", "-c", "import sys; print(sys.executable, sys.prefix, sys.base_prefix)")
	if got, want := string(res.Stdout.Text), Executable+" "+Prefix+" "+Prefix+"\n"; got != want {
		t.Errorf("got %q, want %q (%s)", got, want, res.Stderr.Text)
	}
	marker := filepath.Join(t.TempDir(), "ran")
	brew := fakePython(t, "#!/bin/sh\ntouch "+marker+"\n")
	o := Options{HostPath: []string{brew, "", "relative", "/no/such", brew, "/usr/bin"}}
	list := Candidates(o)
	if n := len(list); n != 3 || !list[0].Chosen || list[0].Path != "/usr/bin/python3" || list[2].Path != filepath.Join(brew, "python3") || list[2].Chosen || !strings.Contains(list[2].Why, "does not show") {
		t.Errorf("candidates are %+v", list)
	}
	again, err := Make(t.Context(), filepath.Dir(filepath.Dir(filepath.Dir(it.Dir))), o, box)
	if err != nil || again.ID != it.ID {
		t.Errorf("with a PATH: %+v, %v", again, err)
	}
	if _, err := os.Stat(marker); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the python3 on the PATH was run (%v)", err)
	}
}

// fakePython makes a directory with a python3.
func fakePython(t testing.TB, text string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "python3"), []byte(text), 0o755))
	return dir
}

func TestSystem(t *testing.T) {
	root, it, box := system(t)
	if it.Source.Kind != KindSystem || it.Source.From != needSystem(t) || !strings.HasPrefix(it.Source.Why, "degraded") {
		t.Errorf("source is %+v", it.Source)
	}
	res := python(t, box, it, Executable, "-I", "-c", "import platform; print(platform.python_version())")
	if got := strings.TrimSpace(string(res.Stdout.Text)); got != it.Facts.Full {
		t.Errorf("it is %s and was reported as %s", got, it.Facts.Full)
	}
	if err := it.Facts.Target.Validate(); err != nil || !slices.Contains(it.Facts.Stdlib, "json") || !strings.HasPrefix(it.Facts.SitePackages, Prefix+"/") {
		t.Errorf("facts are %+v (%v)", it.Facts, err)
	}
	// A start needs no probe: there is no box to do it with.
	loaded, err := Load(t.Context(), root, it.ID, nil)
	if err != nil || loaded.Facts.Full != it.Facts.Full || loaded.Dir != it.Dir || loaded.Source != it.Source {
		t.Errorf("loaded %+v, %v", loaded, err)
	}
	// What the sandbox shows tells nothing of the host.
	res = python(t, box, it, "/bin/sh", "-c", "ls -A "+Prefix+"; grep -rl "+root+" "+Prefix+"; ls "+Prefix+"/bin")
	minor := strings.Split(it.Facts.Full, ".")[1]
	if got, want := string(res.Stdout.Text), "pip3."+minor+"\npython\npython3\npython3."+minor+"\n"; !strings.HasSuffix(got, want) || strings.Contains(got, sourceName) || strings.Contains(got, root) {
		t.Errorf("the prefix shows %q", got)
	}
}

// Everything that would be compiled is compiled, and the standard library is whole
// without what the site has.
func TestPrefixIsCompiledAndClean(t *testing.T) {
	_, it, box := system(t)
	res := python(t, box, it, Executable, "-c", `import json, sys, email.message, asyncio, ctypes, importlib.metadata
print([m.__name__ for m in list(sys.modules.values()) if getattr(m, "__cached__", None) and not __import__("os").path.exists(m.__cached__)])
print([d.metadata["Name"] for d in importlib.metadata.distributions()])`)
	if got := string(res.Stdout.Text); got != "[]\n[]\n" {
		t.Errorf("without bytecode, and installed: %s %s", got, res.Stderr.Text)
	}
	err := filepath.WalkDir(it.Dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := info.Mode()
		if target, _ := os.Readlink(p); mode&fs.ModeSymlink != 0 && strings.Contains(target, "/") || mode&fs.ModeSymlink == 0 && mode.Perm()&0o022 != 0 || mode.IsRegular() && mode.Perm()&0o200 != 0 {
			t.Errorf("%s has mode %s and leads to %q", p, mode, target)
		}
		return nil
	})
	must(t, err)
}

// Case 34, the part of the prefix: what installs says how packages are had.
func TestCase34PipOfThePrefix(t *testing.T) {
	_, it, box := system(t)
	minor := strings.Split(it.Facts.Full, ".")[1]
	const asked = `pip is disabled here: no network, read-only layers. Call the python_env tool: {"action":"request","packages":["pandas>=2"]}` + "\n"
	other := strings.Replace(asked, "pandas>=2", "NAME", 1)
	for _, tc := range []struct {
		argv []string
		want string
	}{
		{[]string{"python3", "-m", "pip", "install", "pandas>=2"}, asked},
		{[]string{"python3", "-I", "-m", "pip", "install", "--upgrade", "pandas>=2"}, asked},
		{[]string{"python3." + minor, "-m", "pip", "install", "pandas>=2"}, asked},
		{[]string{"pip3." + minor, "install", "pandas>=2"}, asked},
		{[]string{"python3", "-m", "ensurepip"}, other},
		{[]string{"python3", "-m", "ensurepip", "--upgrade", "--default-pip"}, other},
		{[]string{"python3", "-c", "import pip, sys; sys.exit(pip.main(['install', 'pandas>=2']))"}, asked},
	} {
		res := python(t, box, it, append([]string{"/usr/bin/env"}, tc.argv...)...)
		if res.ExitCode != 1 || string(res.Stderr.Text) != tc.want || len(res.Stdout.Text) > 0 {
			t.Errorf("%q: exit %d, %s%s", tc.argv, res.ExitCode, res.Stdout.Text, res.Stderr.Text)
		}
	}
}

// Facts hold until what they rest on is another, and then it is asked anew.
func TestFactsThatDoNotHold(t *testing.T) {
	shared, it, box := system(t)
	root := filepath.Join(t.TempDir(), "envs")
	must(t, os.CopyFS(root, os.DirFS(shared)))
	it, err := Load(t.Context(), root, it.ID, nil)
	must(t, err)
	file := filepath.Join(filepath.Dir(it.Dir), factsName)
	var f facts
	must(t, readJSON(file, &f))
	change := func(edit func(*facts)) {
		t.Helper()
		g := f
		g.Files = slices.Clone(f.Files)
		edit(&g)
		must(t, os.Remove(file))
		must(t, writeJSON(file, g))
	}
	host := slices.IndexFunc(f.Files, func(m mappedFile) bool { return strings.HasPrefix(m.Path, "/usr/") })
	own := slices.IndexFunc(f.Files, func(m mappedFile) bool { return strings.HasPrefix(m.Path, Prefix+"/") })
	if host < 0 || own < 0 {
		t.Fatalf("facts rest on %v", f.Files)
	}
	zero := strings.Repeat("0", 64)

	// The C library was another one, of another version.
	change(func(g *facts) { g.Files[host].SHA256 = zero; g.Target.LibcMinor = 5 })
	if _, err := Load(t.Context(), root, it.ID, nil); !errors.Is(err, sandboxrun.ErrUnavailable) {
		t.Errorf("without a box: %v", err)
	}
	if now, err := Load(t.Context(), root, it.ID, box); err != nil || now.Facts.Target != f.Target {
		t.Errorf("asked anew: %+v, %v", now, err)
	}
	if now, err := Load(t.Context(), root, it.ID, nil); err != nil || now.Facts.Target != f.Target {
		t.Errorf("it was not written down: %v", err)
	}
	// It was another version, or its program is damaged.
	change(func(g *facts) { g.Files[host].SHA256 = zero; g.Full = "3.11.1" })
	if _, err := Load(t.Context(), root, it.ID, box); !errors.Is(err, ErrChanged) {
		t.Errorf("another version: %v", err)
	}
	change(func(g *facts) { g.Files[own].SHA256 = zero })
	if _, err := Load(t.Context(), root, it.ID, box); !errors.Is(err, ErrChanged) {
		t.Errorf("another program: %v", err)
	}
	must(t, os.Remove(file))
	if _, err := Load(t.Context(), root, it.ID, box); !errors.Is(err, ErrChanged) {
		t.Errorf("no facts: %v", err)
	}
	must(t, os.WriteFile(file, []byte(`{"full":"3.11.2","more":1}`), 0o444))
	if _, err := Load(t.Context(), root, it.ID, box); !errors.Is(err, ErrChanged) {
		t.Errorf("strange facts: %v", err)
	}
	if again, err := Make(t.Context(), root, Options{}, box); err != nil || again.ID != it.ID || again.Facts.Full != it.Facts.Full {
		t.Errorf("made in the place of the damaged one: %+v, %v", again, err)
	}
	for _, id := range []string{"", "system-0123456789abcdef", "../x", "system-0123456789abcdef/..", it.ID + "0"} {
		if _, err := Load(t.Context(), root, id, box); !errors.Is(err, ErrNotFound) {
			t.Errorf("id %q: %v", id, err)
		}
	}
	left(t, root, it.ID)
}

// left fails the test unless python/ has these interpreters and nothing else.
func left(t testing.TB, root string, ids ...string) {
	t.Helper()
	list, err := os.ReadDir(filepath.Join(root, pythonDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		if e.Name() != lockName {
			names = append(names, e.Name())
		}
	}
	if !slices.Equal(names, ids) {
		t.Errorf("python/ has %q, want %q", names, ids)
	}
}

// Two at once make one; what a killed process left is removed; a cancelled Make
// leaves nothing.
func TestMakeTwiceAtOnce(t *testing.T) {
	box := pyenvtest.Box(t)
	needSystem(t)
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, pythonDir, tmpPrefix+"dead", "prefix"), 0o755))
	ids := make(chan string, 2)
	for range 2 {
		go func() {
			it, err := Make(context.Background(), root, Options{}, box)
			if err != nil {
				t.Error(err)
				ids <- ""
				return
			}
			ids <- it.ID
		}()
	}
	a, b := <-ids, <-ids
	if a != b || a == "" {
		t.Errorf("made %q and %q", a, b)
	}
	left(t, root, a)

	other := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := Make(ctx, other, Options{}, box); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled: %v", err)
	}
	left(t, other)
	if _, err := Make(t.Context(), other, Options{}, nil); !errors.Is(err, sandboxrun.ErrUnavailable) {
		t.Errorf("without a box: %v", err)
	}
	left(t, other)
}
