package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
)

// A base layer is made from an index that wants a password, through a proxy that
// wants one; scripts import from it; and neither password is anywhere afterwards.
func TestEnvEnsure(t *testing.T) {
	modes(t, func(t *testing.T, daemon bool) {
		canary := []string{unique(), unique()}
		e := newEnvs(t, daemon, indextest.Options{User: "reader", Password: canary[0]})
		// The file can be read by whoever runs the command and nobody else.
		conf := filepath.Join(filepath.Dir(e.state), "pip.conf")
		text := fmt.Sprintf("[global]\nindex-url = %s\nproxy = http://person:%s@%s\n", e.index.URLWith(), canary[1], strings.TrimPrefix(e.index.Root(), "http://"))
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		e.env = append(e.env, "PIP_INDEX_URL=", "PIP_CONFIG_FILE="+conf)

		out := e.must("env", "ensure")
		out.says(t, "11 packages", "11 wheels", "fetch  ", "build  ", "lock ")
		if strings.Contains(out.stderr, "\x1b") {
			t.Errorf("draws on what is no terminal: %q", out.stderr)
		}
		st := e.status()
		if !st.BaseReady || len(st.Packages) != 11 || st.Lock == "" || len(st.Layers) != 1 || st.Layers[0] != st.Base || st.Building != "" {
			t.Errorf("status: %+v", st)
		}
		e.imports("docx, openpyxl, pptx, lxml.etree, PIL.Image, numpy, matplotlib.pyplot, pypdf, markdown, pdfplumber").says(t, "imported")

		asked := len(e.index.Requests())
		e.must("env", "ensure").says(t, "all of it was there")
		if now := len(e.index.Requests()); now != asked {
			t.Errorf("what is there was asked for again: %q", e.index.Requests()[asked:])
		}

		log := e.must("audit", "query", "--all", "-o", "ndjson").stdout
		for _, want := range []string{`"ev":"env.build"`, `"lock":"` + st.Lock, `"base":"` + st.Base, `"wheel-python-docx":"python-docx 9.0 `, "127.0.0.1"} {
			if !strings.Contains(log, want) {
				t.Errorf("the log does not have %s", want)
			}
		}
		for _, p := range st.Packages {
			if !strings.Contains(log, p.Name+" "+p.Version+" "+p.SHA256) {
				t.Errorf("the log does not have the wheel of %s", p.Name)
			}
		}
		e.must("audit", "verify", "--all")
		quiet(t, e.state)
		if daemon {
			stopDaemon(t, e.state)
		}
		for _, secret := range canary {
			if strings.Contains(out.stdout+out.stderr+log, secret) {
				t.Error("a password was printed")
			}
			nowhere(t, secret, e.state, e.root)
		}
	})
}

// Without an answer from the index there is a reason and a way, and nothing is made.
func TestEnvEnsureWithoutNetwork(t *testing.T) {
	modes(t, func(t *testing.T, daemon bool) {
		e := newEnvs(t, daemon, indextest.Options{})
		e.env = append(e.env, "PIP_INDEX_URL=http://127.0.0.1:1/simple")
		e.fails(1, "env", "ensure").says(t, "index_unreachable", "mcp-vdisk env import WHEEL", "mcp-vdisk: ", "hint: ")
		e.fails(1, "env", "lock").says(t, "index_unreachable")
		if st := e.status(); st.BaseReady || st.Base != "" {
			t.Errorf("status: %+v", st)
		}
		e.clean()
		if log := e.must("audit", "query", "--all", "-o", "ndjson", "ev=env.build").stdout; !strings.Contains(log, `"code":"index_unreachable"`) {
			t.Errorf("the log: %s", log)
		}
	})
}

// stuck makes the index never answer for a wheel, and starts an ensure that waits for
// it.
func (e *envTest) stuck() (cmd *exec.Cmd, out *strings.Builder) {
	e.t.Helper()
	w := wheeltest.Wheel{Name: "numpy", Version: "9.0", Files: []wheeltest.File{{Name: "numpy/__init__.py"}}}
	e.index.Add(indextest.File{Name: w.FileName(), Body: w.Bytes(), Slow: true})
	cmd, out = e.command("env", "ensure"), &strings.Builder{}
	cmd.Env = append(cmd.Env, "PIP_DEFAULT_TIMEOUT=60")
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	within(e.t, patience, "pip asks for the wheel", func() bool { return e.index.Wheels() > 0 })
	return cmd, out
}

func (e *envTest) unstick() {
	w := wheeltest.Wheel{Name: "numpy", Version: "9.0", Files: []wheeltest.File{{Name: "numpy/__init__.py"}}}
	e.add(w)
}

// ^C ends it at once, leaves nothing half made, and the next one works.
func TestEnvEnsureInterrupted(t *testing.T) {
	modes(t, func(t *testing.T, daemon bool) {
		e := newEnvs(t, daemon, indextest.Options{})
		cmd, out := e.stuck()
		if daemon {
			if st := e.status(); st.Building == "" {
				t.Error("status does not tell that something is built")
			}
		}
		syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 130 {
			t.Errorf("exit %d\n%s", code, out)
		}
		if st := e.status(); st.BaseReady || st.Building != "" {
			t.Errorf("status: %+v", st)
		}
		e.clean()
		e.unstick()
		e.must("env", "ensure")
		e.imports("numpy")
	})
}

// The daemon is killed while it is at work; what it left is in nobody's way.
func TestEnvEnsureKilled(t *testing.T) {
	t.Parallel()
	e := newEnvs(t, true, indextest.Options{})
	cmd, out := e.stuck()
	killDaemon(t, e.state)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(out.String(), "ended before it answered") {
		t.Errorf("exit %d\n%s", code, out)
	}
	e.unstick()
	e.must("env", "ensure")
	e.imports("numpy")
	e.clean()
	e.must("audit", "verify", "--all")
}

// Two state directories make the same base layer at once: it is made once.
func TestEnvEnsureTwice(t *testing.T) {
	t.Parallel()
	a := newEnvs(t, true, indextest.Options{})
	b := newEnvs(t, false, indextest.Options{})
	if err := os.Chmod(filepath.Dir(a.root), 0o711); err != nil {
		t.Fatal(err)
	}
	b.env = append(b.env, "MCP_VDISK_ENVS="+a.root, "PIP_INDEX_URL="+a.index.URL())
	b.root = a.root
	var both sync.WaitGroup
	outs := make([]output, 2)
	for i, e := range []*envTest{a, b} {
		both.Go(func() { outs[i] = e.run("env", "ensure", "--json") })
	}
	both.Wait()
	fetched, built := 0, 0
	for _, o := range outs {
		var f struct {
			Fetched int
			Built   bool
		}
		if err := json.Unmarshal([]byte(o.stdout), &f); err != nil || o.code != 0 {
			t.Errorf("exit %d, %v\n%s%s", o.code, err, o.stdout, o.stderr)
		}
		fetched += f.Fetched
		if f.Built {
			built++
		}
	}
	if fetched != 11 || built != 1 {
		t.Errorf("%d wheels were fetched, and %d layers built, want 11 and 1", fetched, built)
	}
	if x, y := a.status(), b.status(); x.Base != y.Base || !x.BaseReady || !y.BaseReady {
		t.Errorf("%+v and %+v", x, y)
	}
	b.imports("docx")
	a.clean()
}

// A wheel of the operator's, which may be for the operator's eyes only, becomes part
// of the base layer.
func TestEnvImport(t *testing.T) {
	modes(t, func(t *testing.T, daemon bool) {
		e := newEnvs(t, daemon, indextest.Options{})
		dir := filepath.Join(filepath.Dir(e.state), "closed")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		own := wheeltest.Wheel{Name: "house_style", Version: "1.2", Files: []wheeltest.File{{Name: "house_style.py", Body: "colour = 'teal'\n"}}}
		file := filepath.Join(dir, own.FileName())
		if err := os.WriteFile(file, own.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		e.must("env", "import", "--base", file).says(t, "imported  house-style 1.2", "env ensure")
		e.must("env", "ensure").says(t, "12 packages")
		e.imports("house_style, docx").says(t, "imported")
		if log := e.must("audit", "query", "--all", "-o", "ndjson", "ev=env.import").stdout; !strings.Contains(log, `"wheel-house-style":"house-style 1.2 `) || strings.Contains(log, dir) {
			t.Errorf("the log: %s", log)
		}

		// One that cannot be built with the others can be taken out again.
		clash := wheeltest.Wheel{Name: "clash", Version: "1", Files: []wheeltest.File{{Name: "docx/__init__.py"}}}
		file, err := clash.Write(dir)
		if err != nil {
			t.Fatal(err)
		}
		e.must("env", "import", "--base", file)
		e.fails(1, "env", "ensure").says(t, "import_collision", "mcp-vdisk env remove NAME", "clash", "house-style")
		e.must("env", "doctor").says(t, "imported for the base: clash, house-style")
		e.fails(1, "env", "remove", "clash", "clasp").says(t, `not_found: "clasp"`)
		e.must("env", "remove", "Clash", "clash")
		e.must("env", "ensure").says(t, "12 packages", "all of it was there")
		e.must("env", "remove", "house.style")
		e.must("env", "ensure").says(t, "11 packages")
		if log := e.must("audit", "query", "--all", "-o", "ndjson", "ev=env.remove").stdout; !strings.Contains(log, `"packages":["Clash","clash"]`) {
			t.Errorf("the log: %s", log)
		}

		// All wheels by hand, and no index at all.
		off := newEnvs(t, daemon, indextest.Options{})
		off.env = append(off.env, "PIP_INDEX_URL="+e.index.URL())
		off.must("env", "lock")
		off.env = append(off.env, "PIP_INDEX_URL=http://127.0.0.1:1/simple")
		args := []string{"env", "import", "--json"}
		for _, w := range baseWheels() {
			name, err := w.Write(dir)
			if err != nil {
				t.Fatal(err)
			}
			args = append(args, name)
		}
		off.must(args...).says(t, `"name": "python-docx"`, `"sha256"`)
		off.must("env", "ensure").says(t, "11 packages")
		off.imports("pptx")
	})
}

// What is no wheel is refused with a reason, and nothing of it is kept.
func TestEnvImportRefuses(t *testing.T) {
	t.Parallel()
	e := newEnvs(t, false, indextest.Options{})
	dir := filepath.Dir(e.state)
	put := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := wheeltest.Wheel{Name: "fine", Version: "1.0"}
	fifo := filepath.Join(dir, "pipe-1.0-py3-none-any.whl")
	if err := syscall.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, "folder-1.0-py3-none-any.whl")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	huge := put("huge-1.0-py3-none-any.whl", []byte("x"))
	if err := os.Truncate(huge, 1<<40); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file string
		code int
		says string
	}{
		{filepath.Join(dir, "missing-1.0-py3-none-any.whl"), 3, "not_found: open "},
		{put("thing-1.0.tar.gz", []byte("x")), 2, "is not named as a wheel"},
		{"", 2, "is empty"},
		{fifo, 1, "bad_file: " + fifo + " is not a regular file"},
		{folder, 1, "bad_file: " + folder + " is not a regular file"},
		{huge, 1, "size: " + huge + " has 1.0 TiB, and at most 512MiB are taken"},
		{put("empty-1.0-py3-none-any.whl", nil), 1, "empty-1.0-py3-none-any.whl is empty"},
		{put("noise-1.0-py3-none-any.whl", bytes.Repeat([]byte("\x00\xff noise"), 1000)), 1, "zip_"},
		{put("fine.whl", good.Bytes()), 1, ""},
		{put("other-1.0-py3-none-any.whl", good.Bytes()), 1, "wheel_metadata"},
		{put("fine-1.0-cp27-cp27m-win32.whl", good.Bytes()), 1, ""},
		{put("f\xffne-1.0-py3-none-any.whl", good.Bytes()), 2, "not valid UTF-8"},
		{put("fine-1.0-py3-none-any.whl", good.Bytes()[:200]), 1, "zip_"},
	} {
		out := e.run("env", "import", "--base", c.file)
		if out.code != c.code || !strings.Contains(out.stderr, c.says) {
			t.Errorf("%q: exit %d, want %d and %q\n%s", c.file, out.code, c.code, c.says, out.stderr)
		}
		if strings.Contains(out.stderr, "mcp-vdisk: zip_") && !strings.Contains(out.stderr, "hint: get the wheel anew") || strings.Count(out.stderr, c.says) > 1 && strings.HasSuffix(c.says, "_") {
			t.Errorf("%q: no hint, or a code that is said twice\n%s", c.file, out.stderr)
		}
	}
	if kept, _ := filepath.Glob(filepath.Join(e.root, "wheelhouse", "*")); len(kept) > 0 {
		t.Errorf("kept: %q", kept)
	}
	e.clean()
	// pip's own wheel is as little trusted.
	e.fails(3, "env", "ensure", "--pip-wheel", filepath.Join(dir, "none.whl"))
	e.fails(1, "env", "ensure", "--pip-wheel", filepath.Join(dir, "noise-1.0-py3-none-any.whl")).says(t, "pip")
	if left, _ := filepath.Glob(filepath.Join(e.state, "scratch", "upload-*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// doctor names what was changed in a layer, and the interpreters that nobody gets.
func TestEnvDoctor(t *testing.T) {
	modes(t, func(t *testing.T, daemon bool) {
		e := newBased(t, daemon)
		brew := filepath.Join(filepath.Dir(e.state), "brew")
		if err := os.Mkdir(brew, 0o755); err != nil {
			t.Fatal(err)
		}
		marker := filepath.Join(filepath.Dir(e.state), "was-run")
		if err := os.WriteFile(filepath.Join(brew, "python3"), []byte("#!/bin/sh\n: > "+marker+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		hidden := filepath.Join(filepath.Dir(e.state), "pyenv", "shims") // as /root/.pyenv/shims is for the user that root becomes
		if err := os.MkdirAll(hidden, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(brew, "python3"), filepath.Join(hidden, "python3")); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Dir(hidden), 0o700); err != nil {
			t.Fatal(err)
		}
		e.env = append(e.env, "PATH="+hidden+":"+brew+":"+os.Getenv("PATH"))
		e.must("env", "doctor").says(t, "all is well", "not used  "+filepath.Join(brew, "python3"), "not used  "+filepath.Join(hidden, "python3"), "resolver  pip/")
		e.imports("docx")
		if _, err := os.Stat(marker); err == nil {
			t.Error("the python3 of PATH was run")
		}
		file := filepath.Join(e.root, "layers", e.status().Base, "site-packages", "docx", "__init__.py")
		if err := os.Chmod(file, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("stand_in = 0000\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		e.fails(10, "env", "doctor").says(t, "CHANGED", e.status().Base, "site-packages/docx/__init__.py")
		e.fails(10, "env", "doctor", "--json").says(t, `"path": "site-packages/docx/__init__.py"`)
		e.must("env", "ensure", "--repair").says(t, "not as it was built, first site-packages/docx/__init__.py (changed)")
		e.must("env", "doctor").says(t, "all is well")

		json := e.changeJSON()
		e.fails(10, "env", "doctor").says(t, "python    CHANGED   system-", "changed     "+json, "__pycache__", "PROBLEM   the Python system-", "mcp-vdisk env ensure --repair makes it again")
		e.fails(10, "env", "doctor", "--json").says(t, `"pythons": [`, `"path": "`+json+`"`)
		e.must("env", "ensure", "--repair").says(t, "not as it was made, first "+json+" (changed); it was made again")
		e.must("env", "doctor").says(t, "all is well", "python    ok        system-")
		e.must("env", "ensure", "--repair").says(t, "all of it was there")
	})
}

// changeJSON changes a module of the interpreter and removes its bytecode. The file is a
// new one: the old is linked from the seed, and from the environments of other tests.
func (e *envTest) changeJSON() (path string) {
	e.t.Helper()
	found, _ := filepath.Glob(filepath.Join(e.root, "python", "*", "prefix", "lib*", "python3.*", "json"))
	if len(found) != 1 {
		e.t.Fatalf("found %q", found)
	}
	file := filepath.Join(found[0], "__init__.py")
	old, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file+".new", append(old, "changed = 1\n"...), 0o644)
	}
	if err := errors.Join(err, os.Chmod(file+".new", 0o444), os.Rename(file+".new", file), os.RemoveAll(filepath.Join(found[0], "__pycache__"))); err != nil {
		e.t.Fatal(err)
	}
	return "prefix" + strings.SplitN(file, "/prefix", 2)[1]
}

// With env.verify = "strict" a script whose Python was changed is refused; without it, it
// is run.
func TestEnvVerifyStrict(t *testing.T) {
	t.Parallel()
	e := newBased(t, false)
	e.changeJSON()
	script := []string{"call", "run_script", `{"language":"python","source":"import json; print(json.changed)"}`}
	e.must(script...).says(t, "stdout:\n1\n")
	if err := os.WriteFile(filepath.Join(e.state, "config.toml"), []byte("[env]\nverify = \"strict\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	// As the user whose configuration that is: root has another.
	out := outputOf(t, asOwner(t, e.state, e.command(script...)))
	if out.says(t, "NOT_READY: the Python system-", "mcp-vdisk env ensure --repair"); out.code != 5 {
		t.Errorf("exit %d", out.code)
	}
	e.must("env", "ensure", "--repair")
	script[2] = `{"language":"python","source":"import json; print(hasattr(json, 'changed'))"}`
	outputOf(t, asOwner(t, e.state, e.command(script...))).says(t, "stdout:\nFalse\n")
}

// A layer that nothing leads to any more goes, and the current one stays.
func TestEnvGC(t *testing.T) {
	modes(t, func(t *testing.T, daemon bool) {
		e := newBased(t, daemon)
		old := e.status().Base
		newer := wheeltest.Wheel{Name: "pypdf", Version: "9.1", Files: []wheeltest.File{{Name: "pypdf/__init__.py"}}}
		e.add(newer)
		e.must("env", "ensure", "--relock")
		now := e.status().Base
		if now == old {
			t.Fatal("--relock changed nothing")
		}
		e.must("env", "gc").says(t, "0 items removed")
		e.must("env", "gc", "--dry-run", "--older", "0s").says(t, "would go", old)
		if _, err := os.Stat(filepath.Join(e.root, "layers", old)); err != nil {
			t.Fatal(err)
		}
		e.must("env", "gc", "--older", "0s", "--json").says(t, old, `"dry_run": false`)
		if _, err := os.Stat(filepath.Join(e.root, "layers", old)); err == nil {
			t.Error("the old layer is still there")
		}
		e.imports("pypdf")
		if log := e.must("audit", "query", "--all", "-o", "ndjson", "ev=env.gc").stdout; !strings.Contains(log, `"layers":["`+old) {
			t.Errorf("the log: %s", log)
		}
	})
}

// A layer that a script runs with stays, whatever is current by now, and whoever
// collects: the daemon of the script, or another state directory of the same root.
func TestEnvGCBesideAScript(t *testing.T) {
	t.Parallel()
	e := newBased(t, true)
	old := e.status().Base
	other := envTest{t: t, state: filepath.Join(filepath.Dir(e.state), "other"), env: append(slices.Clone(e.env), "MCP_VDISK_NO_DAEMON=1")}
	agent := serveUnread(t, e.state, e.env)
	go agent.read()
	agent.hello()
	agent.askCall("run_script", object{"language": "python", "source": "import docx, time\ntime.sleep(600)", "timeout_s": 600})
	within(t, patience, "the script runs", func() bool { return strings.Contains(e.must("env", "status").stdout, "\nrunning ") })
	e.add(wheeltest.Wheel{Name: "pypdf", Version: "9.1", Files: []wheeltest.File{{Name: "pypdf/__init__.py"}}})
	e.must("env", "ensure", "--relock")
	for _, c := range []*envTest{e, &other} {
		if out := c.must("env", "gc", "--older", "0s").stdout; !regexp.MustCompile(`kept +layer +` + old + ` +in use`).MatchString(out) {
			t.Errorf("%s", out)
		}
	}
	if _, err := os.Stat(filepath.Join(e.root, "layers", old, "site-packages", "docx")); err != nil {
		t.Error(err)
	}
	agent.kill()
	within(t, patience, "the layer goes after the script", func() bool {
		return strings.Contains(e.must("env", "gc", "--older", "0s").stdout, old)
	})
}

// A daemon has the environments that it began with, and nobody is told otherwise.
func TestEnvOfAnotherRoot(t *testing.T) {
	t.Parallel()
	e := newBased(t, true)
	agent := serveUnread(t, e.state, e.env)
	go agent.read()
	agent.hello()
	other := filepath.Join(filepath.Dir(e.state), "elsewhere")
	for _, words := range [][]string{{"ensure"}, {"status"}, {"lock"}, {"doctor"}, {"gc"}, {"python"}, {"remove", "x"}, {"requests"}, {"requests", "01"}, {"approve", "01"}, {"deny", "01"}, {"catalog"}} {
		cmd := e.command(append([]string{"env"}, words...)...)
		cmd.Env = append(cmd.Env, "MCP_VDISK_ENVS="+other)
		if out := outputOf(t, cmd); out.code != 11 || !strings.Contains(out.stderr, e.root) || !strings.Contains(out.stderr, other) {
			t.Errorf("%s: exit %d %s%s", words, out.code, out.stdout, out.stderr)
		}
	}
	if _, err := os.Stat(other); err == nil {
		t.Errorf("%s was made", other)
	}
	agent.end()
}

// A lock is written whole, and over nothing.
func TestEnvLock(t *testing.T) {
	t.Parallel()
	e := newEnvs(t, false, indextest.Options{User: "reader", Password: unique()})
	file := filepath.Join(filepath.Dir(e.state), "base.json")
	e.must("env", "lock", "-o", file).says(t, "wrote "+file)
	first, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(first, []byte(`"name": "python-docx"`)) || bytes.Contains(first, []byte("127.0.0.1")) {
		t.Fatalf("%v\n%s", err, first)
	}
	asked := len(e.index.Requests())
	e.fails(4, "env", "lock", "-o", file).says(t, "is there already")
	e.fails(4, "env", "lock", "-o", filepath.Dir(file), "--force").says(t, "not a regular file")
	e.fails(3, "env", "lock", "-o", filepath.Join(filepath.Dir(file), "no", "x.json")).says(t, "there is no folder")
	e.fails(2, "env", "lock", "-o", "")
	if now := len(e.index.Requests()); now != asked {
		t.Error("the index was asked for what cannot be written")
	}
	e.must("env", "lock", "-o", file, "--force")
	if out := e.must("env", "lock"); !strings.Contains(out.stdout, `"kind": "base"`) || !strings.Contains(out.stderr, "kept lock ") {
		t.Errorf("%s%s", out.stdout, out.stderr)
	}
}

// A Python of the operator's needs the hash that its publisher tells.
func TestEnvPythonArchive(t *testing.T) {
	t.Parallel()
	e := newEnvs(t, false, indextest.Options{})
	file := filepath.Join(filepath.Dir(e.state), "cpython.tar.gz")
	if err := os.WriteFile(file, []byte("no archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	const sum = "8b65b82ea2cd0fdeeff22ce4b9c3c9b7fc8cf0b1fa2d3bdb4bb30a4cb3e50a6f" // of something else
	e.fails(2, "env", "python", "--archive", file).says(t, "--sha256")
	e.fails(2, "env", "python", "--sha256", sum).says(t, "--archive")
	e.fails(2, "env", "python", "--archive", file, "--sha256", "beef")
	e.fails(2, "env", "python", "--archive", filepath.Dir(file), "--sha256", sum)
	e.fails(3, "env", "python", "--archive", file+"x.tar.gz", "--sha256", sum)
	e.fails(1, "env", "python", "--archive", file, "--sha256", sum).says(t, "has the SHA-256")
	right, err := exec.Command("sha256sum", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	e.fails(1, "env", "python", "--archive", file, "--sha256", string(right[:64]))
	if kept, _ := filepath.Glob(filepath.Join(e.root, "archives", "*")); len(kept) > 0 {
		t.Errorf("kept: %q", kept)
	}
	e.must("env", "python", "--json").says(t, `"kind": "system"`, `"chosen": true`)
	e.clean()
}

// On a terminal there is one line, and it is gone at the end.
func TestEnvProgressOnATerminal(t *testing.T) {
	t.Parallel()
	e := newEnvs(t, false, indextest.Options{})
	keyboard, screen, err := terminal()
	if err != nil {
		t.Fatal(err)
	}
	defer keyboard.Close()
	seen := make(chan string)
	go func() {
		text, _ := io.ReadAll(keyboard) // it fails at the end, as terminals do
		seen <- string(text)
	}()
	cmd := e.command("env", "ensure")
	cmd.Env = append(cmd.Env, "TERM=xterm")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, screen
	err = cmd.Run()
	screen.Close()
	text := <-seen
	if err != nil {
		t.Fatalf("%s\n%s", err, text)
	}
	if !strings.Contains(text, "\r\x1b[Kfetch") || !strings.HasSuffix(text, "\r\x1b[K") || strings.Contains(text, "\n") {
		t.Errorf("%q", text)
	}
}
