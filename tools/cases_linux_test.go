package tools

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// TestScriptCases are the cases that need a script; see cases_test.go.
func TestScriptCases(t *testing.T) {
	for number, f := range map[string]func(t *testing.T, d *disk){
		"25 script and tools share the disk": func(t *testing.T, d *disk) {
			d.write("from-tool", "by the tool")
			wantText(t, d.python(`
open("from-script", "w").write("by the script")
print(open("from-script").read(), "/", open("/workspace/from-tool").read())`).String(), "by the script / by the tool", "SAVED")
			if got := d.read("from-script"); got != "by the script" {
				t.Errorf("%q", got)
			}
		},
		"26 a script lists": func(t *testing.T, d *disk) {
			d.write("user/f", "x")
			wantText(t, d.python(`
import os, glob
print(sorted(os.listdir("/workspace")), sorted(glob.glob("**", recursive=True)), [x for x in os.walk(".")])`).String(),
				"['user'] ['user', 'user/f'] [('.', ['user'], []), ('./user', [], ['f'])]")
		},
		"27 a script and reserved names": func(t *testing.T, d *disk) { // creating one: TestReservedInScript
			wantText(t, d.bash("cat .system/manifest.json; ls .vectors; test -e .logs || echo none").String(), "none", ".system/manifest.json: No such file", "nothing changed")
		},
		"28 a script and the host": func(t *testing.T, d *disk) { // much more in sandboxrun
			canary := filepath.Join(t.TempDir(), "canary")
			if err := os.WriteFile(canary, []byte("canary of the host"), 0o644); err != nil {
				t.Fatal(err)
			}
			text := d.bash(fmt.Sprintf("cat %s /etc/shadow /root/.bashrc; cat /etc/passwd; echo x >%s; mkdir -p %s && echo y >%s; cat /proc/1/environ", canary, canary, filepath.Dir(canary), canary)).String()
			for _, secret := range []string{"canary of the host", "root:$", "daemon", "TMPDIR=" + os.TempDir()} {
				if strings.Contains(text, secret) {
					t.Errorf("a script reads the host: %s", text)
				}
			}
			if got := mustRead(t, canary); string(got) != "canary of the host" {
				t.Errorf("a script wrote to the host: %q", got)
			}
		},
		"31 output is cut": func(t *testing.T, d *disk) {
			text := d.bash("head -c 1000000 /dev/zero | tr '\\0' x").String()
			if len(text) > MaxText || strings.Count(text, "x") < 10_000 {
				t.Errorf("%d bytes", len(text))
			}
			wantText(t, text, "of 1.0 MB left out")
		},
		"36 sizes, by a script": func(t *testing.T, d *disk) {
			d.write("a", "0123456789")
			d.bash("truncate -s 4 a; cp a b; truncate -s 8 b; : >empty; head -c 4500000 /dev/urandom >big; cp big big2")
			if d.content("a") != "0123" || d.content("b") != "0123\x00\x00\x00\x00" || d.content("empty") != "" {
				t.Errorf("%q, %q", d.content("a"), d.content("b"))
			}
			if big := d.content("big"); len(big) != 4_500_000 || d.content("big2") != big {
				t.Errorf("%d bytes", len(big))
			}
			wantText(t, d.bash("cmp big big2 && stat -c %s big").String(), "4500000")
		},
		"37 renames and links": func(t *testing.T, d *disk) {
			d.write("a", "a")
			d.write("b", "b")
			d.write("dir/sub/f", "f")
			wantText(t, d.bash("mv a b; mv dir moved; ln b hard; rm b; ln -s loop loop; cat loop || true").String(), "SAVED", "Too many levels")
			if d.content("hard") != "a" || d.content("moved/sub/f") != "f" {
				t.Error(d.tree())
			}
			d.fails(NotFound, "read_file", args{"path": "b"})
			d.fails(NotFound, "list_files", args{"path": "dir"})
			d.fails(InvalidPath, "read_file", args{"path": "loop"})
		},
		"57 paths of the host": func(t *testing.T, d *disk) {
			there := d.path
			if _, err := os.Stat(there); err != nil {
				t.Fatal(err)
			}
			one, two := d.bash("cat '"+there+"'").Facts, d.bash("cat '"+there+"-not'").Facts
			if one["exit_code"] != two["exit_code"] || one["stderr_bytes"] != two["stderr_bytes"].(int64)-int64(len("-not")) {
				t.Errorf("what is there answers %v, what is not %v", one, two)
			}
		},
		"61 moves to itself": func(t *testing.T, d *disk) {
			d.write("dir/f", "f")
			before := d.tree()
			wantText(t, d.bash("mv dir dir; mv dir dir/sub; mv dir/f dir/f; exit 0").String(), "nothing changed on the disk", "cannot move")
			if d.tree() != before {
				t.Error(d.tree())
			}
		},
	} {
		t.Run(number, func(t *testing.T) { f(t, newScripted(t)) })
	}
}

// TestContained: what goes on for ever, or grows without end, is ended; what it
// printed is told, nothing is saved, and the next call works.
func TestContained(t *testing.T) {
	for number, c := range map[string]struct{ language, source, ending string }{
		"32 endless loop":             {"python", "print('begin', flush=True)\nopen('x', 'w').write('x')\nwhile True: pass", "timed out after 400ms"},
		"55 sleeps an hour":           {"bash", "echo begin; echo x >x; sleep 3600", "timed out after 400ms"},
		"55 sleeps in the background": {"bash", "echo begin; echo x >x; trap '' TERM; sleep 3600 & wait", "timed out after 400ms"},
		"55 fork bomb":                {"bash", "echo begin; echo x >x; f() { f | f & }; f; sleep 60", "timed out after 400ms"},
		"55 1 GB of output":           {"bash", "echo begin; echo x >x; head -c 1000000000 /dev/zero | tr '\\0' x", "killed: more than 1.0 MB of output"},
		"56 output of the other kind": {"bash", "echo begin; echo x >x; yes >&2", "killed: more than 1.0 MB of output"},
		"55 disk full":                {"bash", "echo begin; echo x >x; cat /dev/zero >big", "exit 1, out of disk: at most 8.4 MB and 65,536 files"},
	} {
		t.Run(number, func(t *testing.T) {
			d := setup{config: func(c *Config) {
				c.Limits.Script = sandboxrun.Limits{Timeout: 400 * time.Millisecond, OutputMax: 1 << 20, WriteBytes: 8 << 20, Processes: 64}
			}}.scripted(t)
			before := d.tree()
			start := time.Now()
			text := d.script(args{"language": c.language, "source": c.source}).String()
			wantText(t, text, "NOT SAVED ("+c.ending, "created", "stdout:\nbegin")
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
			if d.tree() != before {
				t.Error(d.tree())
			}
			d.write("alive", "x")
		})
	}
}
