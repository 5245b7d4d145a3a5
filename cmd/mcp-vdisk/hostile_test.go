package main_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// Hostile scripts from the client's end; sandboxrun has more kinds of them. Limits
// are small, so that they are reached soon.

const smallLimits = `[script]
memory_bytes = "64MiB"
write_bytes = "4MiB"
write_files = 2000
tmp_bytes = "4MiB"
shm_bytes = "4MiB"
home_bytes = "1MiB"
output_bytes = "1MiB"
`

// limitedBy tells what limits memory and processes of scripts on this host.
func limitedBy(t testing.TB, state string) (memory sandboxrun.Enforcement) {
	t.Helper()
	var doctor struct {
		Sandbox struct{ Limits []sandboxrun.Enforcement }
	}
	if err := json.Unmarshal([]byte(must(t, state, "doctor", "--json")), &doctor); err != nil {
		t.Fatal(err)
	}
	limits := doctor.Sandbox.Limits
	if len(limits) != 2 || limits[0].Resource != "memory" || limits[1].Resource != "pids" {
		t.Fatalf("doctor says %+v", limits)
	}
	for _, l := range limits {
		if (l.By == sandboxrun.ByRlimit) != (l.Reason != "") {
			t.Errorf("%+v", l)
		}
	}
	return limits[0]
}

// TestHostileScripts: each is contained, told as what it is and answered in time;
// at the moment of the answer nothing of it runs, and the next call works.
func TestHostileScripts(t *testing.T) {
	t.Parallel()
	state := counted(t, smallLimits)
	group := limitedBy(t, state).By != sandboxrun.ByRlimit
	s := serveOwned(t, state)
	warm(s)
	s.rest()
	was := openFiles(t, s.cmd.Process.Pid)
	for _, c := range []struct {
		name, language, source string
		outcome                string
		group                  bool // only a control group holds it
	}{
		{"10 GB", "bash", `head -c 10G /dev/zero | tail -c 10G`, "memory_limit", true},
		{"10 GB of four", "bash", `for i in 1 2 3 4; do head -c 2500M /dev/zero | tail -c 2500M & done; wait`, "memory_limit", true},
		{"memory file", "python", "import os\nfd = os.memfd_create('m')\nwhile True: os.write(fd, bytes(1 << 20))", "memory_limit", true},
		{"names in /tmp", "python", "import os\ni = 0\nwhile True: os.close(os.open(f'/tmp/{i}', os.O_CREAT)); i += 1", "disk_limit", true},
		{"names in /workspace", "python", "import os\ni = 0\nwhile True: os.close(os.open(f'{i}', os.O_CREAT)); i += 1", "disk_limit", false},
		{"/tmp is full", "bash", `cat /dev/zero >/tmp/f`, "disk_limit", false},
		{"/dev/shm is full", "bash", `cat /dev/zero >/dev/shm/f`, "disk_limit", false},
		{"/workspace is full", "bash", `cat /dev/zero >f`, "disk_limit", false},
		{"stdout", "bash", `yes`, "output_limit", false},
		{"stderr", "bash", `yes >&2`, "output_limit", false},
		{"both", "bash", `yes & yes >&2`, "output_limit", false},
		{"without a line end", "bash", `cat /dev/zero`, "output_limit", false},
		{"binary", "bash", `cat /dev/urandom`, "output_limit", false},
		{"many tiny writes", "python", "import os\nwhile True: os.write(1, b'x' * 16); os.write(2, b'y')", "output_limit", false},
		{"stdout closed", "bash", `exec >&-; yes >&2`, "output_limit", false},
		{"a flood from the background", "bash", `setsid -f yes; sleep 60`, "output_limit", false},
		{"fork bomb", "bash", `f() { f | f & }; f; sleep 60`, "timed_out", false},
		{"ignores SIGTERM", "bash", `trap '' TERM INT HUP; while :; do sleep 1; done`, "timed_out", false},
		{"stops itself", "bash", `kill -STOP $$; sleep 60`, "timed_out", false},
		{"daemons, exit 0", "bash", daemons + `exit 0`, "exited", false},
		{"daemons, timeout", "bash", daemons + `sleep 60`, "timed_out", false},
		{"kills everybody", "bash", `kill -9 -1; exit 0`, "exited", false},
	} {
		if c.group && !group {
			t.Logf("%s: no control group limits memory here", c.name)
			continue
		}
		marker, begin := unique(), time.Now()
		timeout := 20
		if c.outcome == "timed_out" {
			timeout = 1
		}
		r := s.call("run_script", object{"language": c.language, "source": c.source, "args": []string{marker}, "timeout_s": timeout})
		took := time.Since(begin)
		if left := append(s.scripts(), marked(t, marker)...); len(left) > 0 {
			t.Errorf("%s: left behind: %v", c.name, left)
		}
		if strings.HasPrefix(r.Text, "NOT_READY") {
			t.Logf("%s: no Python here", c.name)
			continue
		}
		if r.IsError || r.Facts["outcome"] != c.outcome {
			t.Errorf("%s: outcome %v, want %s: %.300s", c.name, r.Facts["outcome"], c.outcome, r.Text)
		}
		if ended := strings.HasPrefix(r.Text, "exit 0"); ended != (c.outcome == "exited") || !ended && r.Facts["saved"] != false {
			t.Errorf("%s: %.300s", c.name, r.Text)
		}
		if c.outcome == "output_limit" && !strings.Contains(r.Text, "left out") || len(r.Text) > 50_000 {
			t.Errorf("%s: the reply is %d bytes: %.200s", c.name, len(r.Text), r.Text)
		}
		if took > 15*time.Second {
			t.Errorf("%s: answered after %s", c.name, took)
		}
		t.Logf("%s: %s, answered after %s", c.name, c.outcome, took.Round(time.Millisecond))
		if r := s.bash("echo next"); r.IsError || !strings.Contains(r.Text, "stdout:\nnext") {
			t.Errorf("%s: the next script: %s", c.name, r.Text)
		}
	}
	s.rest()
	var now []string
	within(t, patience, "the server has no more open than before", func() bool {
		now = openFiles(t, s.cmd.Process.Pid)
		return len(now) <= len(was)
	})
	if len(now) > len(was) {
		t.Errorf("the server has open %q, had %q", now, was)
	}
	s.end()
	if left := entries(t, state+"/scratch"); len(left) > 0 {
		t.Errorf("in scratch: %v", left)
	}
	must(t, state, "audit", "verify")
	must(t, state, "image", "fsck", "--live", "--cross")
}

// daemons leaves seven processes that each want to outlive the script, found by
// its first argument, and goes on when they are there.
const daemons = `
setsid -f sh -c ':>/tmp/1; exec sh -c "sleep 300; :" $0' $1
( setsid sh -c '(:>/tmp/2; exec sh -c "sleep 300; :" $0) & exit' $1 & )
( trap '' TERM HUP INT QUIT PIPE; :>/tmp/3; while :; do sleep 300; done ) &
setsid sh -c ':>/tmp/4; sleep 300; :' $1 >&- 2>&- <&- &
sh -c ':>/tmp/5; kill -STOP $$; :' $1 &
( while :; do :>/tmp/6; echo; sleep 0.1; done ) &
sh -c 'sh -c ":>/tmp/7; sleep 300; :" $0 & exit 0' $1
for i in 1 2 3 4 5 6 7; do while [ ! -e /tmp/$i ]; do :; done; done
`

// TestDaemonsDieWithTheirScript: whatever ends a script from outside, a second later
// nothing of its tree lives, and the disk is as it was.
func TestDaemonsDieWithTheirScript(t *testing.T) {
	t.Parallel()
	state := counted(t, "")
	var made []string // control groups
	for _, c := range []struct {
		name   string
		end    func(s *server, id string)
		server bool // it goes on
	}{
		{"cancel", func(s *server, id string) {
			s.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
		}, true},
		{"SIGKILL of the server", func(s *server, _ string) { s.torn = true; s.kill() }, false},
		{"SIGTERM of the server", func(s *server, _ string) { s.cmd.Process.Signal(syscall.SIGTERM); s.wait(patience) }, false},
		{"end of input", func(s *server, _ string) { s.end() }, false},
		{"nobody reads", func(s *server, _ string) { s.torn = true; s.out.Close(); s.ask("ping", nil); s.wait(patience) }, false},
	} {
		s := serveOwned(t, state)
		marker := unique()
		id := s.askCall("run_script", object{"language": "bash", "source": "echo x >kept\n" + daemons + "exec sleep 301", "args": []string{marker}})
		var tree []process
		// One look at /proc may miss those whose parent ends just then.
		within(t, patience, "the daemons are there", func() bool {
			tree = below(t, s.cmd.Process.Pid)
			return len(tree) >= 10 && len(marked(t, marker)) >= 5 &&
				slices.ContainsFunc(tree, func(p process) bool { return p.cmdline == "sleep 301 " })
		})
		made = append(made, groupsOf(t, tree)...)
		c.end(s, id)
		took := within(t, time.Second, c.name+": nothing of the script lives", func() bool {
			return len(alive(t, tree)) == 0 && len(marked(t, marker)) == 0
		})
		t.Logf("%s: %d processes gone after %s", c.name, len(tree), took.Round(time.Millisecond))
		if c.server {
			if r := s.bash("ls"); r.IsError || strings.Contains(r.Text, "kept") {
				t.Errorf("%s: the next script: %s", c.name, r.Text)
			}
			s.end()
		}
	}
	// What a killed server leaves of its control groups the next one removes.
	for _, dir := range made {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is left", dir)
		}
	}
	if list := must(t, state, "call", "list_files", "{}"); strings.Contains(list, "kept") {
		t.Error(list)
	}
	for _, p := range entries(t, state+"/scratch") {
		t.Errorf("in scratch: %s", p)
	}
	must(t, state, "audit", "verify")
	must(t, state, "image", "fsck", "--live", "--cross")
}
