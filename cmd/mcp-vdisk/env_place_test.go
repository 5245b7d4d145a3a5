package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
)

// envTest is a state directory with an environment root of its own, and an index.
type envTest struct {
	t     testing.TB
	state string
	root  string
	index *indextest.Index
	env   []string // of every command
}

// seed is an environment root with an interpreter and no more, made once.
var seed = sync.OnceValues(func() (string, error) {
	root := filepath.Join(scratch, "seed", "envs")
	out, err := envCommand(filepath.Join(scratch, "seed", "state"), []string{"MCP_VDISK_NO_DAEMON=1", "MCP_VDISK_ENVS="}, "env", "python").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("env python: %w\n%s", err, out)
	}
	return root, os.Rename(filepath.Join(scratch, "seed", "state", "envs"), root)
})

func envCommand(state string, env []string, args ...string) *exec.Cmd {
	os.MkdirAll(filepath.Dir(state), 0o711)
	cmd := exec.Command(program, append([]string{"--state", state}, args...)...)
	cmd.Dir = filepath.Dir(state)
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// seedBase is a copy of it with the base layer of baseWheels, made once.
var seedBase = sync.OnceValues(func() (string, error) {
	from, err := seed()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(scratch, "seed-base")
	if err := os.Mkdir(dir, 0o711); err != nil {
		return "", err
	}
	root := filepath.Join(dir, "envs")
	if err := copySeed(from, root); err != nil {
		return "", err
	}
	e := envTest{state: filepath.Join(dir, "state"), root: root, index: indextest.New(indextest.Options{})}
	defer e.index.Close()
	for _, w := range baseWheels() {
		e.add(w)
	}
	if out, err := envCommand(e.state, e.settings(), "env", "ensure").CombinedOutput(); err != nil {
		return "", fmt.Errorf("env ensure: %w\n%s", err, out)
	}
	return root, nil
})

// copySeed copies an environment root: the interpreter by links, as nothing in it is ever
// changed, and without the file that is there to be locked, for each root has its own.
func copySeed(from, to string) error {
	script := `set -e; mkdir -m 700 "$2"; chown --reference="$1" "$2"; cp -al "$1/python" "$2/"; rm -f "$2/python/.lock"
for f in "$1"/*; do [ "$f" = "$1/python" ] || cp -a "$f" "$2/"; done; rm -f "$2"/*.lock`
	if out, err := exec.Command("/bin/sh", "-c", script, "sh", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the environments: %w: %s", err, out)
	}
	return nil
}

// newEnvs is such a state directory. Its interpreter is the seed's, so that a test
// takes no time for it.
func newEnvs(t testing.TB, daemon bool, o indextest.Options) *envTest {
	t.Helper()
	return envsFrom(t, seed, daemon, o)
}

// newBased is newEnvs after `env ensure`, for tests of what can be done then.
func newBased(t testing.TB, daemon bool) *envTest {
	t.Helper()
	return envsFrom(t, seedBase, daemon, indextest.Options{})
}

func envsFrom(t testing.TB, seed func() (string, error), daemon bool, o indextest.Options) *envTest {
	t.Helper()
	from, err := seed()
	if err != nil {
		t.Fatal(err)
	}
	e := &envTest{t: t, state: newState(t), index: indextest.New(o)}
	t.Cleanup(e.index.Close)
	e.root = filepath.Join(filepath.Dir(e.state), "envs")
	if err := copySeed(from, e.root); err != nil {
		t.Fatal(err)
	}
	for _, w := range baseWheels() {
		e.add(w)
	}
	e.env = e.settings()
	if daemon {
		e.env = append(e.env, withDaemon...)
		t.Cleanup(func() { stopDaemon(t, e.state) })
	}
	return e
}

// settings lead to the root and the index, and to no others.
func (e *envTest) settings() []string {
	return []string{"MCP_VDISK_ENVS=" + e.root, "HOME=" + filepath.Dir(e.state), "PIP_CONFIG_FILE=/dev/null", "PIP_INDEX_URL=" + e.index.URLWith(),
		"PIP_FIND_LINKS=", "PIP_RETRIES=0", "PIP_DEFAULT_TIMEOUT=5", "MCP_VDISK_NO_DAEMON=1"}
}

func (e *envTest) add(w wheeltest.Wheel) {
	e.index.Add(indextest.File{Name: w.FileName(), Body: w.Bytes()})
}

// baseWheels stand in for the packages of the base layer: each can be imported, and
// does nothing.
func baseWheels() []wheeltest.Wheel {
	var list []wheeltest.Wheel
	for _, p := range [][]string{
		{"python_docx", "docx/__init__.py"}, {"openpyxl", "openpyxl/__init__.py"}, {"python_pptx", "pptx/__init__.py"},
		{"lxml", "lxml/__init__.py", "lxml/etree.py"}, {"pillow", "PIL/__init__.py", "PIL/Image.py"}, {"numpy", "numpy/__init__.py"},
		{"matplotlib", "matplotlib/__init__.py", "matplotlib/pyplot.py", "matplotlib/font_manager.py"}, {"pypdf", "pypdf/__init__.py"},
		{"reportlab", "reportlab/__init__.py", "reportlab/pdfgen/__init__.py", "reportlab/pdfgen/canvas.py"},
		{"markdown", "markdown/__init__.py"}, {"pdfplumber", "pdfplumber/__init__.py"},
	} {
		w := wheeltest.Wheel{Name: p[0], Version: "9.0"}
		for _, f := range p[1:] {
			w.Files = append(w.Files, wheeltest.File{Name: f, Body: "stand_in = True\n"})
		}
		list = append(list, w)
	}
	return list
}

func (e *envTest) command(args ...string) *exec.Cmd { return envCommand(e.state, e.env, args...) }

func (e *envTest) run(args ...string) output {
	e.t.Helper()
	return outputOf(e.t, e.command(args...))
}

// must runs a command that has to succeed.
func (e *envTest) must(args ...string) output {
	e.t.Helper()
	return e.fails(0, args...)
}

// fails runs a command that has to end with a code, and to say some words.
func (e *envTest) fails(code int, args ...string) output {
	e.t.Helper()
	out := e.run(args...)
	if out.code != code {
		e.t.Fatalf("mcp-vdisk %s: exit %d, want %d\n%s%s", strings.Join(args, " "), out.code, code, out.stdout, out.stderr)
	}
	return out
}

func (o output) says(t testing.TB, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(o.stdout+o.stderr, w) {
			t.Errorf("does not say %q:\n%s%s", w, o.stdout, o.stderr)
		}
	}
}

type envStatus struct {
	Kind, Base, Lock, Building string
	BaseReady                  bool `json:"base_ready"`
	Packages                   []struct{ Name, Version, Layer, SHA256 string }
	Layers                     []string
}

func (e *envTest) status() (st envStatus) {
	e.t.Helper()
	if err := json.Unmarshal([]byte(e.must("env", "status", "--json").stdout), &st); err != nil {
		e.t.Fatal(err)
	}
	return st
}

// clean checks that nothing half made is left in the root.
func (e *envTest) clean() {
	e.t.Helper()
	err := filepath.WalkDir(e.root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "prefix" || d.Name() == "site-packages") {
			return fs.SkipDir
		}
		// What flock(2) is on may stay.
		if strings.HasPrefix(d.Name(), ".tmp-") && !strings.HasSuffix(d.Name(), ".lock") || strings.HasPrefix(d.Name(), ".trash-") {
			e.t.Errorf("left: %s", path)
		}
		return err
	})
	if err != nil {
		e.t.Error(err)
	}
}

// imports runs a script that imports modules.
func (e *envTest) imports(modules string) output {
	e.t.Helper()
	return e.must("call", "run_script", `{"language":"python","source":"import `+modules+`; print('imported')"}`)
}

// modes runs a test through a daemon and without one, beside others.
func modes(t *testing.T, test func(t *testing.T, daemon bool)) {
	t.Parallel()
	for _, daemon := range []bool{true, false} {
		t.Run(map[bool]string{true: "daemon", false: "direct"}[daemon], func(t *testing.T) {
			t.Parallel()
			test(t, daemon)
		})
	}
}

// nowhere checks that a text is in no file below some directories.
func nowhere(t testing.TB, secret string, dirs ...string) {
	t.Helper()
	read := 0
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			text, err := os.ReadFile(path)
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("%s holds a password", path)
			}
			read++
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if read < 10 {
		t.Errorf("only %d files were looked at", read)
	}
}
