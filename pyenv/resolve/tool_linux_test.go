package resolve

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// TestCase41NoBwrap: without a sandbox there is no pip at all.
func TestCase41NoBwrap(t *testing.T) {
	w := newWorld(t)
	none, err := sandboxrun.New(t.Context(), sandboxrun.Config{Bwrap: "/nowhere/bwrap"})
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close()
	x := index(t, indextest.Options{}, pkg("foo", "1.0"))
	p := *w.pip
	p.Box = none
	_, err = p.Resolve(t.Context(), Request{Specs: specs(t, "foo"), Config: at(x)})
	if e := refused(t, err, ErrSandboxUnavailable, "sandbox"); !errors.Is(err, sandboxrun.ErrUnavailable) || len(e.Suggestions) == 0 {
		t.Errorf("%v", err)
	}
	_, err = InstallTool(t.Context(), t.TempDir(), "", at(x), none, w.py)
	refused(t, err, ErrSandboxUnavailable)
	if got := x.Requests(); len(got) > 0 {
		t.Errorf("the index was asked: %q", got)
	}
}

// TestCase42NoPip: the text tells what was looked for and what to do.
func TestCase42NoPip(t *testing.T) {
	w := newWorld(t)
	// A Python of another version than that of the host: its pip is of no use.
	py := *w.py
	py.Facts.Target.Minor++
	_, err := FindTool(t.Context(), t.TempDir(), w.box, &py)
	e := refused(t, err, ErrResolverUnavailable, "tools/", "/usr/bin/python3 -m pip", "/usr/local/bin/python3 -m pip")
	if len(e.Suggestions) != 1 || !strings.Contains(e.Suggestions[0], "env ensure --pip-wheel FILE") {
		t.Errorf("suggestions %q", e.Suggestions)
	}
}

// fakePip is a wheel of pip that does nothing.
func fakePip(version string) wheeltest.Wheel {
	return wheeltest.Wheel{Name: "pip", Version: version, Files: []wheeltest.File{
		{Name: "pip/__init__.py", Body: "__version__ = '" + version + "'\n"}, {Name: "pip/__main__.py", Body: "print('I am pip')\n"}, {Name: "pip/_vendor/x/__init__.py", Body: ""},
	}}
}

// TestInstallToolFromFile: unpacked by the strict rules, compiled, found again, once.
func TestInstallToolFromFile(t *testing.T) {
	w := newWorld(t)
	root := t.TempDir()
	file, err := fakePip("27.0").Write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	// What others are at work on stays, what dead ones left does not.
	for name, age := range map[string]time.Duration{".tmp-alive": leftTime / 2, ".tmp-dead": 2 * leftTime, ".tmp-wheel-dead": 2 * leftTime} {
		path, then := filepath.Join(root, "tools", name), time.Now().Add(-age)
		if err := errors.Join(os.MkdirAll(path, 0o700), os.Chtimes(path, then, then)); err != nil {
			t.Fatal(err)
		}
	}
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if p, err := InstallTool(context.WithoutCancel(t.Context()), root, file, Config{}, w.box, w.py); err != nil || p.Version != "27.0" {
				t.Errorf("%+v %v", p, err)
			}
		})
	}
	both.Wait()
	p, err := FindTool(t.Context(), root, w.box, w.py)
	if err != nil || p.Version != "27.0" || p.Lacks != "" {
		t.Fatalf("%+v %v", p, err)
	}
	entries, err := os.ReadDir(filepath.Join(root, "tools"))
	if err != nil || len(entries) != 2 || entries[0].Name() != ".tmp-alive" || entries[1].Name() != "pip-27.0" {
		t.Errorf("tools has %v (%v)", entries, err)
	}
	if got, _ := filepath.Glob(filepath.Join(p.Dir, "pip", "__pycache__", "*.pyc")); len(got) != 2 {
		t.Errorf("bytecode: %q", got)
	}
	// What cannot be a pip.
	old, err := fakePip("22.3").Write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	demo, err := wheeltest.Wheel{}.Write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{old, demo, filepath.Join(root, "pip-26.0-py3-none-any.whl"), root, "/dev/zero"} {
		_, err := InstallTool(t.Context(), root, bad, Config{}, w.box, w.py)
		refused(t, err, ErrBadConfig)
	}
	lying := fakePip("26.9")
	lying.Files = append(lying.Files, wheeltest.File{Name: "../evil.py", Body: "x"})
	if file, err = lying.Write(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if _, err := InstallTool(t.Context(), root, file, Config{}, w.box, w.py); !errors.Is(err, wheel.ErrZipPath) {
		t.Errorf("error %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(root, "tools", ".tmp-*")); len(left) != 1 {
		t.Errorf("left %q", left)
	}
}

// TestInstallToolIsPinned: an index that has another pip 26.2.1 gets nowhere.
func TestInstallToolIsPinned(t *testing.T) {
	w := newWorld(t)
	oldPip(t)
	root := t.TempDir()
	x := index(t, indextest.Options{}, fakePip(pinned.Version))
	_, err := InstallTool(t.Context(), root, "", at(x), w.box, w.py)
	refused(t, err, ErrHashMismatch, "pip")
	if entries, err := os.ReadDir(filepath.Join(root, "tools")); err != nil || len(entries) > 0 {
		t.Errorf("tools has %v (%v)", entries, err)
	}
}

// TestToolsAreChosen: the pinned one first, then the newest, never a half one.
func TestToolsAreChosen(t *testing.T) {
	root := t.TempDir()
	make := func(name, source string) {
		dir := filepath.Join(root, "tools", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if source != "" {
			if err := os.WriteFile(filepath.Join(dir, sourceFile), []byte(source), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	choose := func(want string) {
		t.Helper()
		got := ""
		if p := installed(root, nil, nil); p != nil {
			got = p.Version
		}
		if got != want {
			t.Errorf("chose %q, want %q", got, want)
		}
	}
	choose("")
	make("pip-27.0", "")
	make("pip-27.1", "{")
	make("pip-27.2", `{"version":"27.3"}`)
	make(".tmp-1", `{"version":"27.4"}`)
	make("pip-22.0", `{"version":"22.0"}`)
	choose("")
	make("pip-24.2", `{"version":"24.2"}`)
	choose("24.2")
	make("pip-27.5", `{"version":"27.5"}`)
	choose("27.5")
	make("pip-"+pinned.Version, `{"version":"`+pinned.Version+`"}`)
	choose(pinned.Version)
}
