package tools

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// quick is a disk whose scripts get 400 ms, so that reaching that takes no
// longer.
func quick(t testing.TB) *disk {
	return setup{config: func(c *Config) {
		c.Limits.Script = sandboxrun.Limits{Timeout: 400 * time.Millisecond, OutputMax: 1 << 20}
	}}.scripted(t)
}

// changesAll does one of everything to the disk that TestCommitModes seeds.
const changesAll = `
echo new >new; mkdir -p made/deep; echo x >made/deep/f
echo more >>keep/old; rm gone; rm -r tree; ln -s keep/old link; chmod 700 mode; mv name renamed
ln keep/old hard; touch -d @1 touched; : >empty
`

// TestCommitModes: what is saved for each way of ending and each commit. What
// is not saved leaves the disk exactly as it was, times and versions included.
func TestCommitModes(t *testing.T) {
	for _, end := range []struct{ name, how, first string }{
		{"exit 0", `exit 0`, "exit 0"},
		{"exit 1", `exit 1`, "exit 1"},
		{"exit 255", `exit 255`, "exit 255"},
		{"timeout", `sleep 60`, "timed out after 400ms"},
		{"killed", `kill -KILL $$`, "killed by SIGKILL"},
		{"output limit", `yes`, "of output"},
	} {
		for _, commit := range []string{"", "on_success", "always", "never"} {
			t.Run(fmt.Sprintf("%s/commit %q", end.name, commit), func(t *testing.T) {
				t.Parallel()
				d := quick(t)
				for _, f := range []string{"keep/old", "gone", "tree/a/b", "mode", "name", "touched"} {
					d.write(f, f+"\n")
				}
				before, head := d.tree(), d.head()
				a := args{"language": "bash", "source": changesAll + end.how}
				if commit != "" {
					a["commit"] = commit
				}
				r := d.script(a)
				first, _, _ := strings.Cut(r.String(), "\n")
				saved := commit == "always" || end.name == "exit 0" && commit != "never"
				wantText(t, first, end.first, "8 created", "5 deleted", "1 modified", "1 mode changed", "1 touched")
				if saved != strings.HasPrefix(first, "SAVED as v") || !saved && !strings.HasPrefix(first, "NOT SAVED (") {
					t.Errorf("the first line is %s", first)
				}
				if r.Facts["saved"] != saved {
					t.Errorf("facts %v", r.Facts)
				}
				if saved {
					d.checkSaved()
				} else {
					wantText(t, r.String(), "\nhint: ")
					if d.tree() != before || d.head() != head {
						t.Errorf("the disk changed from\n%s\nto\n%s", before, d.tree())
					}
				}
				d.checkScriptRecord(r, saved)
			})
		}
	}
}

// checkSaved checks that changesAll was applied, exactly.
func (d *disk) checkSaved() {
	d.t.Helper()
	for path, want := range map[string]string{
		"new": "new\n", "made/deep/f": "x\n", "keep/old": "keep/old\nmore\n", "link": "keep/old\nmore\n",
		"hard": "keep/old\nmore\n", "renamed": "name\n", "mode": "mode\n", "touched": "touched\n", "empty": "",
	} {
		if got := d.content(path); got != want {
			d.t.Errorf("%s holds %q", path, got)
		}
	}
	if n, err := d.im.Lstat(at("link")); err != nil || n.Kind != workspace.KindSymlink || n.Target != "keep/old" {
		d.t.Errorf("the link is %+v, %v", n, err)
	}
	if n, _ := d.im.Lstat(at("mode")); n.Mode != 0o700 {
		d.t.Errorf("the mode is %o", n.Mode)
	}
	if n, _ := d.im.Lstat(at("touched")); !n.ModTime.Equal(time.Unix(1, 0)) {
		d.t.Errorf("the time is %s", n.ModTime)
	}
	for _, gone := range []string{"gone", "tree", "tree/a/b", "name"} {
		if _, err := d.im.Lstat(at(gone)); !errors.Is(err, workspace.ErrNotFound) {
			d.t.Errorf("%s: %v", gone, err)
		}
	}
}

// checkScriptRecord checks what the log says of a script.
func (d *disk) checkScriptRecord(r Result, saved bool) {
	d.t.Helper()
	recs := d.records(audit.Query{From: d.seen - 1})
	intent, out := recs[0], recs[1]
	if intent.Src != out.Src || intent.Args["source_bytes"] == nil {
		d.t.Errorf("the intent is %+v", intent)
	}
	if len(out.Src) != 64 || out.Out.Outcome == "" || out.Out.Changed == 0 || len(out.Out.Changes) == 0 || out.Out.ChangesDigest == "" {
		d.t.Errorf("the outcome is %+v, %+v", out, out.Out)
	}
	if saved != (out.Hb != "" && out.Ha != "" && out.Hb != out.Ha) || saved && out.Ha != d.head() {
		d.t.Errorf("saved %v: commits %q, %q", saved, out.Hb, out.Ha)
	}
}

// TestNothingChanged: a script that only looks makes no commit.
func TestNothingChanged(t *testing.T) {
	d := newScripted(t)
	d.write("a", "a\n")
	head := d.head()
	for source, first := range map[string]string{
		"cat a":              "exit 0, ",
		"echo a >a; exit 1":  "FAILED (exit 1, ",
		"exit 3":             "FAILED (exit 3, ",
		"echo x >b; rm b":    "exit 0, ",
		"chmod 755 .; cat a": "exit 0, ",
	} {
		text := d.bash(source).String()
		if !strings.HasPrefix(text, first) {
			t.Errorf("%s: %s", source, text)
		}
		wantText(t, text, "nothing changed on the disk")
		if strings.Contains(text, "SAVED") || strings.Contains(text, "to get it") {
			t.Errorf("%s: %s", source, text)
		}
	}
	if d.head() != head {
		t.Errorf("there are new commits:\n%s", d.tree())
	}
	wantText(t, d.bash("").String(), "(no output)")
}

// TestReservedInScript: a script that makes what belongs to the container has
// its commit refused as a whole, and is told its output.
func TestReservedInScript(t *testing.T) {
	for _, name := range []string{".system", ".vectors", ".logs", ".vector_disk.json", ".log_disk.json"} {
		for how, source := range map[string]string{
			"file": `echo x >NAME`, "directory": `mkdir NAME`, "below": `mkdir NAME; echo x >NAME/manifest.json`, "link": `ln -s /tmp NAME`,
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				d := newScripted(t)
				d.write("a", "a")
				before, head := d.tree(), d.head()
				source := "echo out; echo b >a; echo c >c; " + strings.ReplaceAll(source, "NAME", name)
				text := d.fails(ReservedPath, "run_script", args{"language": "bash", "source": source})
				wantText(t, text, "nothing was saved (exit 0): ", name, "stdout:\nout")
				text = d.fails(ReservedPath, "run_script", args{"language": "bash", "source": source + "; exit 1", "commit": "always"})
				wantText(t, text, "nothing was saved (exit 1): ")
				wantText(t, d.script(args{"language": "bash", "source": source, "commit": "never"}).String(), "NOT SAVED", "could not have been saved", "RESERVED_PATH")
				wantText(t, d.script(args{"language": "bash", "source": source + "; exit 1"}).String(), "NOT SAVED", "RESERVED_PATH")
				if d.tree() != before || d.head() != head {
					t.Errorf("the disk changed to\n%s", d.tree())
				}
				// What looks like it is no such thing, and what was made and
				// removed again was not made.
				wantText(t, d.bash(fmt.Sprintf("mkdir -p sub; echo x >sub/%s; echo x >%sx; mkdir %s; rmdir %s", name, name, name, name)).String(), "SAVED")
				d.verify()
			})
		}
	}
}

// TestUnstorable: whatever else an image cannot hold refuses the commit with a
// code, not with INTERNAL.
func TestUnstorable(t *testing.T) {
	deep := func(n int) string {
		return fmt.Sprintf("for i in $(seq %d); do mkdir d; cd d; done; echo x >f", n)
	}
	for _, c := range []struct {
		name, source string
		code         Code
	}{
		{"sparse 1 TB", "truncate -s 1T big", QuotaExceeded},
		{"sparse in many", "for i in 1 2 3 4 5 6; do truncate -s 30M s$i; done", QuotaExceeded},
		{"hard links", "head -c 30M /dev/zero >big; for i in 1 2 3 4 5 6; do ln big l$i; done", QuotaExceeded},
		{"too many entries", "for i in $(seq 1001); do : >f$i; done", QuotaExceeded},
		{"129 deep", deep(129), InvalidPath},
		{"300 deep", deep(300), TooLarge},
		{"path of 5,000 bytes", "n=$(printf 'n%.0s' {1..250}); for i in $(seq 20); do mkdir $n; cd $n; done; echo x >f", InvalidPath},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := setup{image: workspace.CreateOptions{QuotaBytes: 150 << 20, QuotaEntries: 1000}}.scripted(t)
			d.write("a/b", "b")
			before := d.tree()
			start := time.Now()
			d.fails(c.code, "run_script", args{"language": "bash", "source": c.source})
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("took %s", took)
			}
			if d.tree() != before {
				t.Errorf("the disk changed to\n%s", d.tree())
			}
		})
	}
}

// TestOddFiles: what scripts make that is not plain is kept byte for byte, or
// counted as not kept.
func TestOddFiles(t *testing.T) {
	d := newScripted(t)
	text := d.python(`
import os, stat
os.mkfifo("fifo"); os.mknod("sock", stat.S_IFSOCK | 0o755)
open(b"latin-\xe9", "w").write("1"); open("new\nline", "w").write("2"); open("back\\slash", "w").write("3")
open("none", "w").write("4"); os.chmod("none", 0)
open("suid", "w").write("5"); os.chmod("suid", 0o755)
try: os.chmod("suid", 0o6755)
except PermissionError: print("no setuid file")
os.symlink("/etc/passwd", "out"); os.symlink("none", "in"); os.symlink(b"\xff\n", "odd")
`).String()
	wantText(t, text, "SAVED", "no setuid file", "not kept", "1 fifo", "1 socket", `"/workspace/latin-\xe9"`, `"/workspace/new\nline"`, `"/workspace/back\\slash"`)
	for shown, want := range map[string]string{`"/workspace/latin-\xe9"`: "1", `"/workspace/new\nline"`: "2", `"/workspace/back\\slash"`: "3", "none": "4", "in": "4"} {
		if got := d.read(shown); got != want {
			t.Errorf("%s holds %q", shown, got)
		}
	}
	for name, mode := range map[string]uint32{"none": 0, "suid": 0o755} {
		if n, _ := d.im.Lstat(at(name)); n.Mode != mode {
			t.Errorf("%s has mode %o, want %o", name, n.Mode, mode)
		}
	}
	d.fails(PathEscape, "read_file", args{"path": "out"})
	wantText(t, d.ok("list_files", nil), "/workspace/out -> /etc/passwd", `/workspace/odd -> "\xff\n"`)
	wantText(t, d.bash("stat -c '%n %a' none suid; readlink out").String(), "none 0", "suid 755", "/etc/passwd")
}

// TestOutput: what is shown of what a script printed.
func TestOutput(t *testing.T) {
	d := newScripted(t)
	d.run("both streams", func(t *testing.T) {
		wantText(t, d.bash("echo one; echo two >&2").String(), "stdout:\none\nstderr:\ntwo")
	})
	d.run("long", func(t *testing.T) {
		r := d.bash("seq 1000000; seq 500000 >&2")
		text := r.String()
		if len(text) > MaxText {
			t.Errorf("%d bytes", len(text))
		}
		wantText(t, text, "stdout:\n1\n2\n", "\n999999\n1000000\nstderr:\n1\n2\n", "\n500000", "of 6.9 MB left out", "of 3.4 MB left out")
		if r.Facts["stdout_bytes"] != int64(6888896) || r.Facts["stderr_bytes"] != int64(3388895) {
			t.Errorf("facts %v", r.Facts)
		}
	})
	d.run("one line", func(t *testing.T) {
		text := d.python(`print("é" * 300000)`).String()
		if len(text) > MaxText || strings.Contains(text, "\ufffd") {
			t.Errorf("%d bytes, %d bad characters", len(text), strings.Count(text, "\ufffd"))
		}
		wantText(t, text, "left out")
	})
	d.run("kilobyte of errors behind a flood of output", func(t *testing.T) {
		text := d.bash("seq 100000; for i in $(seq 100); do echo error line $i; done >&2").String()
		for i := 1; i <= 100; i++ {
			wantText(t, text, fmt.Sprintf("error line %d\n", i)[:13])
		}
	})
	d.run("escapes", func(t *testing.T) {
		text := d.bash(`printf '\e[31mred\e[0m \e(B\e[m\e]0;title\a\e]8;;http://x\e\\link\e]8;;\e\\ \eP1$r\e\\ \e7\e8\ec bell\a back\b nul\0 del\x7f c1\xc2\x9b31m\n'`).String()
		wantText(t, text, "stdout:\nred link   bell back nul del c131m")
	})
	d.run("progress bar", func(t *testing.T) {
		wantText(t, d.bash(`printf '10%%\r20%%\rdone\r\nnext\n'`).String(), "stdout:\n10%\n20%\ndone\nnext")
	})
	d.run("bytes", func(t *testing.T) {
		wantText(t, d.bash(`printf 'a\xff\xfeb\xe9\n'`).String(), "stdout:\na\ufffdb\ufffd")
	})
	d.run("UTF-8", func(t *testing.T) {
		wantText(t, d.python(`print("héllo 漢字 🎉")`).String(), "héllo 漢字 🎉")
	})
}

// TestManyChanges: a result names 50 paths at most, and fits a reply however
// long they are.
func TestManyChanges(t *testing.T) {
	d := newScripted(t)
	text := d.bash(`mkdir x; for i in $(seq -w 99); do echo $i >x/f$i; done`).String()
	wantText(t, text, "100 created", "/workspace/x/f49  3 bytes", "… and 50 more", "image get /workspace/x .")
	if strings.Contains(text, "f50") {
		t.Error(text)
	}
	text = d.bash(`n=$(printf 'n%.0s' {1..250}); for i in $(seq 14); do mkdir -p $n; cd $n; done; for i in $(seq 60); do echo $i >f$i; done; seq 10000; seq 10000 >&2`).String()
	if len(text) > MaxText+4096 {
		t.Errorf("%d bytes", len(text))
	}
	wantText(t, text, "SAVED", "74 created", " more", "stdout:\n1\n", "stderr:\n1\n")
}

// TestArgsAndStdin: both reach the script exactly.
func TestArgsAndStdin(t *testing.T) {
	d := newScripted(t)
	odd := []string{"", "-c", "--help", "a b", `"'$(touch x)`, "é漢", "\x01\x7f", "line\nline", "=", "*"}
	const show = `import sys, json; print(json.dumps([sys.argv[1:], sys.stdin.read()]))`
	d.write("show.py", show)
	d.write("show.sh", "python3 -c '"+show+`' "$@"`)
	for name, a := range map[string]args{
		"python source": {"language": "python", "source": show},
		"python path":   {"language": "python", "path": "show.py"},
		"bash source":   {"language": "bash", "source": "python3 -c '" + show + `' "$@"`},
		"bash path":     {"language": "bash", "path": "show.sh"},
	} {
		d.run(name, func(t *testing.T) {
			a["args"], a["stdin"] = odd, "in\x00put\r\né"
			wantText(t, d.script(a).String(), `[["", "-c", "--help", "a b", "\"'$(touch x)", "\u00e9\u6f22", "\u0001\u007f", "line\nline", "=", "*"], "in\u0000put\r\n\u00e9"]`)
			delete(a, "args")
			delete(a, "stdin")
			wantText(t, d.script(a).String(), `[[], ""]`)
		})
	}
	big := strings.Repeat("0123456789abcde\n", 4<<20/16)
	wantText(t, d.script(args{"language": "bash", "source": "wc -c", "stdin": big}).String(), "4194304")
	wantText(t, d.script(args{"language": "bash", "source": "read -r l; echo $l", "stdin": big}).String(), "0123456789abcde")
}

// TestPythonSource: source behaves like a file in /workspace.
func TestPythonSource(t *testing.T) {
	d := newScripted(t)
	d.write("sibling.py", "value = 42")
	for name, c := range map[string][2]string{
		"name":       {`print(__name__, __file__)`, "__main__ /run/vdisk/source.py"},
		"globals":    {`print(sorted(k for k in globals() if not k.startswith("__")))`, "stdout:\n[]"},
		"argv":       {`import sys; print(sys.argv)`, "['/run/vdisk/source.py']"},
		"path":       {`import sys; print(sys.path[0])`, "stdout:\n/workspace"},
		"cwd":        {`import os; print(os.getcwd())`, "/workspace"},
		"import":     {`import sibling; print(sibling.value)`, "42"},
		"traceback":  {"x = 1\nraise ValueError('no')", "source.py\", line 2, in <module>\n    raise ValueError('no')"},
		"syntax":     {"x = 1\ny = = 2", "source.py\", line 2\n    y = = 2"},
		"exit code":  {`import sys; sys.exit(7)`, "exit 7"},
		"future":     {"from __future__ import annotations\ndef f(x: Nope): pass\nprint(f.__annotations__)", "{'x': 'Nope'}"},
		"encoding":   {"# -*- coding: latin-1 -*-\nprint(len('é'))", "stdout:\n2"},
		"no newline": {`print("end")`, "end"},
		"inspect":    {"import inspect\ndef f(): return 1\nprint(inspect.getsource(f))", "def f(): return 1"},
		"dataclass":  {"from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 3\nprint(A())", "A(x=3)"},
		"pickle":     {"import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__name__)", "stdout:\nA"},
		"no .pyc":    {"import sibling, os; print(os.listdir())", "stdout:\n['sibling.py']"},
	} {
		d.run(name, func(t *testing.T) {
			wantText(t, d.python(c[0]).String(), c[1])
		})
	}
	for method, want := range map[string]string{
		"fork": "[0, 1, 4, 9, 16]", "spawn": "[0, 1, 4, 9, 16]",
		"forkserver": "OSError: [Errno 97] Address family not supported by protocol", // it has a socket of AF_UNIX
	} {
		d.run("multiprocessing by "+method, func(t *testing.T) {
			wantText(t, d.python(fmt.Sprintf(`
import multiprocessing as m
def square(x): return x * x
if __name__ == "__main__":
    m.set_start_method(%q)
    with m.Pool(2) as p: print(p.map(square, range(5)))
`, method)).String(), want)
		})
	}
}

// TestPath: a file runs in place.
func TestPath(t *testing.T) {
	d := newScripted(t)
	d.write("pkg/helper.py", "value = 43")
	d.write("pkg/main.py", "import sys, os, helper; print(__file__, sys.path[0], sys.argv, os.getcwd(), helper.value)")
	d.write("pkg/run.sh", `echo "$0 $PWD $#"; echo x >>pkg/out`)
	d.commit(link("main", "pkg/main.py"))
	wantText(t, d.script(args{"language": "python", "path": "pkg/main.py", "args": []string{"a"}}).String(),
		"/workspace/pkg/main.py /workspace/pkg ['/workspace/pkg/main.py', 'a'] /workspace 43")
	wantText(t, d.script(args{"language": "python", "path": "main"}).String(), "/workspace/pkg/main.py /workspace/pkg ")
	wantText(t, d.script(args{"language": "bash", "path": "/workspace/pkg/run.sh"}).String(), "/workspace/pkg/run.sh /workspace 0", "SAVED")
	d.write("-c", "echo dash")
	wantText(t, d.script(args{"language": "bash", "path": "-c"}).String(), "dash")
	d.commit(link("out", "/etc/passwd"), link("sys", "/workspace/.system/x"), link("loop", "loop"))
	for path, code := range map[string]Code{"out": PathEscape, "sys": ReservedPath, "loop": InvalidPath, "none.sh": NotFound, "main/x": NotADirectory} {
		d.fails(code, "run_script", args{"language": "bash", "path": path})
	}
	d.fails(IsADirectory, "run_script", args{"language": "bash", "path": "pkg"})
	rec := d.records(audit.Query{Match: map[string][]string{"args.path": {"pkg/main.py"}, "ev": {"call.outcome"}, "tool": {"run_script"}}})
	n, err := d.im.Lstat(at("pkg/main.py"))
	if err != nil || len(rec) != 1 || rec[0].Src != hexDigest(n) {
		t.Errorf("the log does not say what ran: %+v", rec)
	}
}

// TestModuleHint: where there are no packages, a script that lacks one is told who can
// get some. (TestModuleHintWithBase: where there are.)
func TestModuleHint(t *testing.T) {
	d := newScripted(t)
	d.write("f.py", "import no_such.sub")
	const ask = `hint: no packages are installed on this host; the person who runs this server can get some`
	wantText(t, d.python("import no_such").String(), ask, "FAILED (exit 1")
	wantText(t, d.script(args{"language": "python", "path": "f.py"}).String(), ask)
	wantText(t, d.bash("python3 f.py").String(), ask)
	for _, source := range []string{"import os", "from os import nope", "print('ModuleNotFoundError: No module named \\'x\\'')"} {
		if text := d.python(source).String(); strings.Contains(text, "no packages are installed") {
			t.Errorf("%s: %s", source, text)
		}
	}
}

// TestNothingOutsideStays: a run finds nothing of an earlier one but the disk,
// and the host nothing at all.
func TestNothingOutsideStays(t *testing.T) {
	d := newScripted(t)
	home := t.TempDir()
	fill := "for d in /tmp ~ /dev/shm " + home + "; do mkdir -p $d && echo x >$d/left-by-a-test; done; find /tmp ~ /dev/shm -name left-by-a-test | wc -l"
	for range 2 {
		wantText(t, d.bash("find / -name left-by-a-test 2>/dev/null | wc -l").String(), "stdout:\n0")
		wantText(t, d.bash(fill).String(), "nothing changed on the disk", "stdout:\n4")
	}
	for _, dir := range []string{"/tmp", "/dev/shm", home} {
		if _, err := os.Stat(filepath.Join(dir, "left-by-a-test")); err == nil {
			t.Errorf("%s/left-by-a-test is on the host", dir)
		}
	}
}

// TestBusy: a script waits for its turn, or is BUSY.
func TestBusy(t *testing.T) {
	d := setup{config: func(c *Config) { c.Limits.Queue, c.Limits.Scripts = 30*time.Millisecond, 1 }}.scripted(t)
	leave, err := d.jobs.turns.take(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	head := d.head()
	wantText(t, d.fails(Busy, "run_script", args{"language": "bash", "source": "echo x >x"}), "as many scripts as may run", "30ms", "job ")
	if d.head() != head {
		t.Error("the script ran")
	}
	// File tools wait for nothing.
	for _, tool := range []string{"write_file", "read_file", "list_files", "make_directory", "delete_file"} {
		d.ok(tool, good[tool])
	}
	leave()
	wantText(t, d.bash("echo x >x").String(), "SAVED")
}

// TestCancel: a cancelled call ends soon, changes nothing and is in the log.
func TestCancel(t *testing.T) {
	d := newScripted(t)
	d.write("a", "a")
	before := d.tree()
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { d.running(1); cancel(errCancelled) }()
	start := time.Now()
	r := d.Call(ctx, "run_script", rawJSON(t, args{"language": "bash", "source": "echo b >a; sleep 60"}))
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
	d.checkRecords("run_script", r)
	if r.OK() || r.Err.Code != Cancelled || d.tree() != before {
		t.Errorf("%s\n%s", r, d.tree())
	}
	for tool, a := range map[string]args{
		"run_script": {"language": "bash", "source": "echo b >a"}, "write_file": {"path": "a", "content": "x"}, "read_file": {"path": "a"}, "python_env": {"action": "status"},
	} {
		r := d.Call(ctx, tool, rawJSON(t, a)) // it was cancelled before it began
		d.checkRecords(tool, r)
		if r.OK() || r.Err.Code != Cancelled {
			t.Errorf("%s: %s", tool, r)
		}
	}
	if d.tree() != before {
		t.Errorf("the disk changed to\n%s", d.tree())
	}
	d.verify()
}

// TestTimeout: how long a script may run.
func TestTimeout(t *testing.T) {
	for _, c := range []struct {
		name              string
		limit, max, asked time.Duration
		want              time.Duration
	}{
		{"default", 0, 0, 0, 600 * time.Second},
		{"asked for", 0, 0, 7 * time.Second, 7 * time.Second},
		{"asked for the most", 0, 0, time.Hour, time.Hour},
		{"default of the operator", 5 * time.Second, 0, 0, 5 * time.Second},
		{"asked for more than the default", 5 * time.Second, 0, 9 * time.Second, 9 * time.Second},
		{"limit of the operator", 0, 5 * time.Second, time.Hour, 5 * time.Second},
		{"limit below the default", 0, 5 * time.Second, 0, 5 * time.Second},
		{"limit over the most", 0, 100 * time.Hour, time.Hour, time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := Limits{Script: sandboxrun.Limits{Timeout: c.limit}, MaxTimeout: c.max}.withDefaults()
			s := script{t: &Tools{cfg: Config{Limits: l}}, args: scriptArgs{TimeoutS: int(c.asked / time.Second)}}
			if got := s.timeout(); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// hostPythons are environments without a root, whose Python is looked for elsewhere.
func hostPythons(t testing.TB, box *sandboxrun.Runner, paths ...string) *pyenv.Env {
	t.Helper()
	e, err := pyenv.Open(pyenv.Options{Box: box, HostPythons: paths})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestPythonMissing: without an interpreter only Python scripts are refused.
func TestPythonMissing(t *testing.T) {
	d := setup{config: func(c *Config) { c.Python = hostPythons(t, c.Box, "/usr/bin/no-such-python") }}.scripted(t)
	wantText(t, d.ok("python_env", args{"action": "status"}), "Python: none (there is no Python 3 below /usr on this host)")
	wantText(t, d.fails(NotReady, "run_script", args{"language": "python", "source": "1"}), "no Python on this host")
	wantText(t, d.bash("echo works").String(), "works")
}

// TestPythonOfHost: without a root the interpreter that scripts get is described as it
// is.
func TestPythonOfHost(t *testing.T) {
	d := newScripted(t)
	text := d.ok("python_env", args{"action": "status"})
	wantText(t, text, "Python 3.", " at /usr/", "layers: none")
	version := strings.Fields(text)[1]
	wantText(t, d.python("import sys; print('%d.%d' % sys.version_info[:2], sys.executable)").String(), "stdout:\n"+version+" /usr/bin/python3")
}

// TestNoSandbox: without a sandbox a script is refused with the cause, never
// run in another way, and the file tools work.
func TestNoSandbox(t *testing.T) {
	broken, err := sandboxrun.New(t.Context(), sandboxrun.Config{Bwrap: "/nonexistent/bwrap"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broken.Close)
	for name, s := range map[string]setup{
		"none":         {},
		"no bwrap":     {config: func(c *Config) { c.Box = broken }},
		"no directory": {config: func(c *Config) { c.Box, c.Live = nil, nil }},
	} {
		t.Run(name, func(t *testing.T) {
			d := s.disk(t)
			if name == "no bwrap" {
				d = s.scripted(t)
			}
			text := d.fails(SandboxUnavailable, "run_script", args{"language": "bash", "source": "echo x >x"})
			wantText(t, text, "hint: the file tools work")
			if strings.Contains(text, "/nonexistent") {
				t.Errorf("a path of the host is shown: %s", text)
			}
			if d.scriptsWork(t.Context()) {
				t.Error("scripts are said to work")
			}
			d.write("a", "a")
			if d.read("a") != "a" {
				t.Error("the file tools do not work")
			}
		})
	}
}

// TestSocketHint: a program that fails for want of a socket family is told which
// there are.
func TestSocketHint(t *testing.T) {
	d := newScripted(t)
	wantText(t, d.python("import socket; socket.socket(socket.AF_UNIX)").String(), "hint: scripts have IPv4 and IPv6 sockets", "script.unix_sockets")
	if text := d.bash("echo 'Address family not supported' >&2").String(); strings.Contains(text, "script.unix_sockets") {
		t.Errorf("a hint for a script that succeeded: %s", text)
	}
}
