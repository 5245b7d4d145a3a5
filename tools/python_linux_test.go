package tools

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	interpreter "github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// theBase is an environment root with a base layer of two small packages, made once for
// all tests and without an index.
var theBase = sync.OnceValues(func() (string, error) {
	box, err := sandbox()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "base-")
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "envs")
	return dir, makeBase(dir, box, []wheeltest.Wheel{
		{Name: "python-docx", Version: "1.2.0", Files: []wheeltest.File{{Name: "docx/__init__.py", Body: "from . import api\n"}, {Name: "docx/api.py"}}},
		{Name: "opencv-python-headless", Version: "5.0", Files: []wheeltest.File{{Name: "cv2/__init__.py"}}},
	})
})

func makeBase(dir string, box *sandboxrun.Runner, wheels []wheeltest.Wheel) error {
	ctx := context.Background()
	it, err := interpreter.Make(ctx, dir, interpreter.Options{}, box)
	if err != nil {
		return err
	}
	root, err := store.Open(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	tag := strings.SplitN(it.Facts.Target.String(), "-", 3)
	l := lock.Lock{Schema: 1, Kind: lock.Base, Python: lock.Python{Tag: tag[0], Full: it.Facts.Full, Platform: tag[2]}, Resolver: "test/1"}
	for _, w := range wheels {
		sum := sha256.Sum256(w.Bytes())
		p := lock.Package{Name: w.Name, Version: w.Version, File: w.FileName(), SHA256: hex.EncodeToString(sum[:])}
		if err := root.AddWheel(ctx, bytes.NewReader(w.Bytes()), p.SHA256, 0); err != nil {
			return err
		}
		l.Packages = append(l.Packages, p)
	}
	layer, err := root.Build(ctx, store.Build{Lock: l, Python: it, Box: box})
	if err != nil {
		return err
	}
	return root.SetCurrent(store.Current{Layer: layer.ID, Lock: layer.Manifest.Lock, Python: it.ID})
}

// withBase is a disk whose scripts have the base layer.
func withBase(t testing.TB) *disk {
	t.Helper()
	root, err := theBase()
	if err != nil {
		t.Fatal(err)
	}
	return withRoot(t, root)
}

func withRoot(t testing.TB, root string) *disk {
	t.Helper()
	return setup{config: func(c *Config) {
		e, err := pyenv.Open(pyenv.Options{Root: root, Box: c.Box})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		c.Python = e
	}}.scripted(t)
}

// TestCase05: scripts of both languages run the managed Python, whatever PATH the
// server has.
func TestCase05(t *testing.T) {
	fake := filepath.Join(t.TempDir(), "linuxbrew", "bin")
	if err := os.MkdirAll(fake, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(fake, "python3"), []byte("#!/bin/sh\necho fake\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", fake+":"+os.Getenv("PATH"))
	d := withBase(t)
	d.write("f.py", "import sys; print(sys.executable)")
	for name, r := range map[string]Result{
		"python": d.python("import sys; print(sys.executable)"),
		"file":   d.script(args{"language": "python", "path": "f.py"}),
		"bash":   d.bash("python3 f.py"),
	} {
		if text := r.String(); !strings.Contains(text, "stdout:\n/opt/mcp/python/bin/python3\n") {
			t.Errorf("%s: %s", name, text)
		}
	}
	wantText(t, d.bash("command -v python3; echo $PATH").String(), "stdout:\n/opt/mcp/python/bin/python3\n/opt/mcp/shim:/opt/mcp/python/bin:/usr/local/bin:/usr/bin:/bin")
}

// TestCase06: the packages are there with -I and -E, for programs of a script, and
// cannot be written.
func TestCase06(t *testing.T) {
	d := withBase(t)
	wantText(t, d.python("import docx, cv2; print('both')").String(), "both")
	for _, flag := range []string{"-I", "-E", "-s", "-B"} {
		wantText(t, d.bash("python3 "+flag+" -c 'import docx.api; print(docx.__file__)'").String(), "stdout:\n/opt/mcp/layers/base-", "site-packages/docx/__init__.py")
	}
	wantText(t, d.python("import docx\ntry: open(docx.__path__[0] + '/x', 'w')\nexcept OSError as e: print(e.errno)").String(), "stdout:\n30")
}

// TestCase34InScripts: what installs packages says how packages are had, and changes
// nothing.
func TestCase34InScripts(t *testing.T) {
	d := withBase(t)
	for _, command := range []string{"pip install pandas", "pip3 install pandas", "python3 -m pip install pandas", "uv pip install pandas"} {
		text := d.bash(command).String()
		wantText(t, text, "python_env", "pandas", "FAILED (exit 1")
	}
	for _, command := range []string{"pip install 'Python_Docx>=1' pandas", "python3 -m pip install python-docx"} {
		wantText(t, d.bash(command).String(), `"packages":["`, "python-docx 1.2.0 is installed already: import docx", "FAILED (exit 1")
	}
}

// TestPythonStatus: what a script gets is told as it is, in at most 4 kB, and what can
// be asked for.
func TestPythonStatus(t *testing.T) {
	d := withBase(t)
	text := d.ok("python_env", args{"action": "status"})
	wantText(t, text, "Python 3.", " at /opt/mcp/python/bin/python3", "opencv-python-headless 5.0, python-docx 1.2.0", "layers: base-")
	version := strings.Fields(text)[1]
	wantText(t, d.python("import sys; print(sys.version.split()[0], sys.executable)").String(), "stdout:\n"+version+" /opt/mcp/python/bin/python3")
	wantText(t, d.fails(NotReady, "python_env", args{"action": "request", "packages": []string{"pandas"}}), "NOT_READY: env.operator_only: ", "mcp-vdisk env import")
	var many []pyenv.Package
	for i := range 400 {
		many = append(many, pyenv.Package{Name: "package-with-a-long-name", Version: strings.Repeat("1", i%20+1)})
	}
	st := pyenv.Status{Python: "/opt/mcp/python/bin/python3", Version: "3.11.2", BaseReady: true, Packages: many, Layers: slices.Repeat([]string{"base-0123456789abcdef"}, 9), Building: strings.Repeat("b", 80), Reason: strings.Repeat("r", 200)}
	if long := strings.Join(statusLines(st), "\n"); len(long) > 4000 || !strings.Contains(long, " more") {
		t.Errorf("%d bytes: %s", len(long), long)
	}
}

// TestModuleHintWithBase: a package that is there under another name is not to be asked
// for.
func TestModuleHintWithBase(t *testing.T) {
	d := withBase(t)
	for source, want := range map[string]string{
		"import python_docx":     "hint: the package python-docx 1.2.0 is installed; its modules are docx",
		"import PIL":             `"packages":["pillow"]`,
		"import yaml.x":          `"packages":["pyyaml"]`,
		"import no_such":         `"packages":["no_such"]`,
		"import opencv_python_x": `"packages":["opencv_python_x"]`,
	} {
		wantText(t, d.python(source).String(), want)
	}
	wantText(t, d.bash("python3 -S -c 'import docx'").String(), "python-docx 1.2.0 is installed; this interpreter does not see it")
	if text := d.python("import docx.nothing").String(); strings.Contains(text, "hint") {
		t.Errorf("%s", text)
	}
}

// TestPythonInLog: the log says what Python a script had.
func TestPythonInLog(t *testing.T) {
	d := withBase(t)
	call := d.python("pass").Call
	seen := 0
	for _, r := range d.records(audit.Query{Match: map[string][]string{"call": {call}}}) {
		if r.Ev != audit.EvCallIntent && r.Ev != audit.EvCallOutcome {
			continue
		}
		seen++
		base, _ := r.Env["base"].(string)
		id, _ := r.Env["python"].(string)
		if !strings.HasPrefix(base, "base-") || r.Env["lock"] == nil || !strings.HasPrefix(id, "system-") {
			t.Errorf("%s: %v", r.Ev, r.Env)
		}
	}
	if seen != 2 {
		t.Errorf("%d records", seen)
	}
}

// TestPythonFallsBack: environments that cannot be used do not keep scripts from
// running.
func TestPythonFallsBack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "envs")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := withRoot(t, file)
	wantText(t, d.python("import sys; print(sys.executable)").String(), "stdout:\n/usr/bin/python3")
	wantText(t, d.bash("command -v python3").String(), "stdout:\n/usr/bin/python3")
	text := d.ok("python_env", args{"action": "status"})
	if wantText(t, text, "Python 3.", "at /usr/bin/python3", "note: "); strings.Contains(text, file) {
		t.Errorf("it tells of the host: %s", text)
	}
}

// TestCase52PythonStrict: where everything is compared before a run, a script whose layer
// or interpreter was changed is refused, whatever its language, and leaves nothing; the
// disk can be used.
func TestCase52PythonStrict(t *testing.T) {
	from, err := theBase()
	if err != nil {
		t.Fatal(err)
	}
	for name, glob := range map[string]string{
		"layer base-":        "layers/base-*/site-packages/docx/api.py",
		"the Python system-": "python/*/prefix/lib*/python3.*/json/__init__.py",
	} {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "envs")
			if out, err := exec.Command("cp", "-a", from, root).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			d := setup{config: func(c *Config) {
				e, err := pyenv.Open(pyenv.Options{Root: root, Box: c.Box, Strict: true})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { e.Close() })
				c.Python = e
			}}.scripted(t)
			wantText(t, d.python("import docx, json; print('whole')").String(), "stdout:\nwhole")
			found, _ := filepath.Glob(filepath.Join(root, glob))
			if len(found) != 1 {
				t.Fatalf("found %q", found)
			}
			if err := errors.Join(os.Chmod(found[0], 0o600), os.WriteFile(found[0], []byte("changed = 1\n"), 0o600), os.Chmod(found[0], 0o444)); err != nil {
				t.Fatal(err)
			}
			for _, a := range []args{{"language": "python", "source": "open('x', 'w')"}, {"language": "bash", "source": "echo >x"}} {
				text := d.fails(NotReady, "run_script", a)
				if wantText(t, text, "NOT_READY: "+name, "is not as it was made", "mcp-vdisk env ensure --repair"); strings.Contains(text, root) || strings.Contains(text, "docx") {
					t.Errorf("it tells too much: %s", text)
				}
			}
			if text := d.ok("list_files", args{}); strings.Contains(text, "x\n") {
				t.Errorf("something was run: %s", text)
			}
		})
	}
}

// BenchmarkPythonWithBase compares a Python script without environments, with the managed
// interpreter and with a base layer over it, and bubblewrap alone, in turns.
func BenchmarkPythonWithBase(b *testing.B) {
	root, err := theBase()
	if err != nil {
		b.Fatal(err)
	}
	alone := filepath.Join(b.TempDir(), "envs")
	box, err := sandbox()
	if err != nil {
		b.Fatal(err)
	}
	if _, err := interpreter.Make(b.Context(), alone, interpreter.Options{}, box); err != nil {
		b.Fatal(err)
	}
	runtime.LockOSThread() // Bare asks for it
	defer runtime.UnlockOSThread()
	bare := func() {
		cmd, release, err := box.Bare(b.Context(), sandboxrun.Run{Lower: b.TempDir(), Argv: []string{"/usr/bin/python3", "-s", "-c", "pass"}})
		if err != nil {
			b.Fatal(err)
		}
		defer release()
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
	}
	type side struct {
		name string
		run  func()
		took []time.Duration
	}
	var sides []*side
	for name, d := range map[string]*disk{"host": newScripted(b), "managed": withRoot(b, alone), "base": withRoot(b, root)} {
		serve := serving(b, d)
		sides = append(sides, &side{name: name, run: func() { serve("python", "pass") }})
	}
	sides = append(sides, &side{name: "bare", run: bare})
	for _, s := range sides {
		s.run() // what is done once for a process
	}
	for b.Loop() {
		for _, s := range sides {
			<-time.After(20 * time.Millisecond) // as the calls of an agent come
			start := time.Now()
			s.run()
			s.took = append(s.took, time.Since(start))
		}
	}
	p50 := map[string]float64{}
	for _, s := range sides {
		slices.Sort(s.took)
		p50[s.name] = float64(s.took[len(s.took)/2].Microseconds()) / 1e3
	}
	b.ReportMetric(p50["base"], "ours-ms")
	b.ReportMetric(p50["bare"], "bare-bwrap-ms")
	b.ReportMetric(p50["base"]/p50["bare"], "bare-bwrap-ratio")
	b.ReportMetric(1.4, "bare-bwrap-goal")
	b.ReportMetric(p50["host"], "host-python-ms")
	b.ReportMetric(p50["base"]/p50["host"], "host-python-ratio")
	b.ReportMetric(p50["managed"], "managed-python-ms")
	b.ReportMetric(p50["base"]/p50["managed"], "managed-python-ratio")
	b.ReportMetric(0, "ns/op")
}
