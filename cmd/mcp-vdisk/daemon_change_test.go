package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Daemons that follow one another while clients come and stay.

// A session begins with the settings as they are: an idle daemon with others is
// replaced, and whoever is connected goes on under the new ones. One that is at
// work is not.
func TestSettingsThatChange(t *testing.T) {
	const uid = 60735
	state := ownState(t, "state", uid)
	set := func(limit int) {
		t.Helper()
		name := filepath.Join(state, "config.toml")
		if err := os.WriteFile(name, fmt.Appendf(nil, "[write]\nbytes = %d\n", limit), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	facts := func() daemonFacts {
		t.Helper()
		var f daemonFacts
		out := outputOf(t, as(uid, frontOf(state, "daemon", "status", "--json")))
		if err := json.Unmarshal([]byte(out.stdout), &f); err != nil {
			t.Fatal(err, out.stderr)
		}
		return f
	}
	write := func(s *server, n int) bool {
		return !s.call("write_file", object{"path": "a", "content": strings.Repeat("x", n)}).IsError
	}
	set(100)
	a := serveVia(t, as(uid, frontOf(state, "serve")))
	a.hello()
	before := facts()
	if !write(a, 100) || write(a, 101) {
		t.Error("the setting is not in force")
	}
	set(200)
	if !write(a, 100) || write(a, 200) {
		t.Error("a setting changed under a session")
	}
	b := serveVia(t, as(uid, frontOf(state, "serve")))
	b.hello()
	if !write(b, 200) || write(b, 201) || !write(a, 200) || write(a, 201) {
		t.Error("the new setting is not in force for all")
	}
	after := facts()
	if after.PID == before.PID || len(after.Clients) != 2 {
		t.Errorf("not replaced: %+v", after)
	}
	script := a.askCall("run_script", object{"language": "bash", "source": "sleep 60"})
	within(t, patience, "the script runs", func() bool { return facts().Scripts == 1 })
	set(300)
	c := serveVia(t, as(uid, frontOf(state, "serve")))
	c.hello()
	if f := facts(); f.PID != after.PID || f.Scripts != 1 || !f.Changed {
		t.Errorf("a daemon at work was replaced: %+v", f)
	}
	if !strings.Contains(c.words(), "1 script running") {
		t.Errorf("nothing is said about it: %q", c.words())
	}
	a.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, script))
	for _, s := range []*server{a, b, c} {
		s.end()
	}
}

// Many clients that come with other settings at once replace the daemon once.
func TestManyClientsWithOtherSettings(t *testing.T) {
	const uid = 60736
	state := ownState(t, "state", uid)
	for round := range rounds(50) {
		if err := os.WriteFile(filepath.Join(state, "config.toml"), fmt.Appendf(nil, "[list]\nlimit = %d\n", 10+round), 0o644); err != nil {
			t.Fatal(err)
		}
		before := daemonsOf(state)
		var all []*server
		for range 8 {
			all = append(all, serveVia(t, as(uid, frontOf(state, "serve"))))
		}
		for _, s := range all {
			s.hello()
			s.ok("list_files", object{})
		}
		after := daemonsOf(state)
		if len(after) != 1 || len(before) == 1 && after[0] == before[0] {
			t.Fatalf("round %d: daemons %v, before %v", round, after, before)
		}
		for _, s := range all {
			if words := s.words(); words != "" {
				t.Errorf("round %d: a client is told %q", round, words)
			}
			s.end()
		}
	}
}

// A restart between two calls, or within one, is noticed by nobody.
func TestRestartUnderLoad(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	stop, lines := make(chan bool), make(chan int)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				lines <- n
				return
			default:
			}
			id := s.askCall("write_file", object{"path": "log", "mode": "append", "content": "x\n"})
			m, ok := s.await(patience, func(m message) bool { return m.Method == "" && string(m.ID) == id })
			if !ok || m.Error != nil || m.result(t).IsError {
				t.Errorf("call %d: %v %s %s", n, ok, m.line, s.words())
				<-stop
				lines <- n
				return
			}
		}
	}()
	n, refused := rounds(100), 0
	for range n {
		for t.Failed() == false {
			out := viaDaemon(t, state, "daemon", "restart")
			if out.code == 0 {
				break
			}
			if refused++; out.code != 6 {
				t.Errorf("restart: exit %d %s", out.code, out.stderr)
			}
		}
	}
	close(stop)
	want := <-lines
	t.Logf("%d restarts, %d refused, during %d calls", n, refused, want)
	if got := strings.Count(viaDaemon(t, state, "image", "cat", "log").stdout, "\n"); got != want {
		t.Errorf("%d lines, %d were written", got, want)
	}
	s.end()
}

// What comes when a daemon is about to end for want of work is served.
func TestComingWhenADaemonEnds(t *testing.T) {
	state := daemonState(t)
	must(t, state, "image", "create")
	const idle = 30 * time.Millisecond
	for i := range rounds(200) {
		run := frontOf(state, "daemon", "run", "--idle", idle.String())
		ready, err := run.StdoutPipe()
		if err == nil {
			err = run.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		io.ReadFull(ready, make([]byte, len("ready\n")))
		<-time.After(idle + time.Duration(i%20-10)*time.Millisecond)
		if i%2 == 0 {
			if out := viaDaemon(t, state, "call", "write_file", `{"path":"log","mode":"append","content":"x\n"}`); out.code != 0 {
				t.Errorf("round %d: exit %d %s", i, out.code, out.stderr)
			}
		} else {
			s := shared(t, state)
			s.hello()
			s.ok("write_file", object{"path": "log", "mode": "append", "content": "x\n"})
			s.end()
			stopDaemon(t, state)
		}
		run.Wait()
	}
	if got := strings.Count(viaDaemon(t, state, "image", "cat", "log").stdout, "\n"); got != rounds(200) {
		t.Errorf("%d lines of %d", got, rounds(200))
	}
}

// A daemon in the foreground: it says when it listens, is refused where there is
// one, and ends by ^C.
func TestADaemonInTheForeground(t *testing.T) {
	const uid = 60737
	for name, run := range map[string]func(state string) *exec.Cmd{
		"as the user": func(state string) *exec.Cmd { return as(uid, frontOf(state, "daemon", "run")) },
		"as root":     func(state string) *exec.Cmd { return frontOf(state, "daemon", "run") },
	} {
		state := ownState(t, "state", uid)
		first := run(state)
		out, err := first.StdoutPipe()
		if err == nil {
			err = first.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		line := make([]byte, len("ready\n"))
		if io.ReadFull(out, line); string(line) != "ready\n" {
			t.Errorf("%s: it says %q", name, line)
		}
		pids := daemonsOf(state)
		begin := time.Now()
		failing(t, run(state), 6, fmt.Sprintf("in use by process %d", first.Process.Pid))
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("%s: the second is refused after %s", name, took)
		}
		s := serveVia(t, as(uid, frontOf(state, "serve")))
		s.hello()
		if now := daemonsOf(state); fmt.Sprint(now) != fmt.Sprint(pids) {
			t.Errorf("%s: the client started another daemon: %v, %v", name, now, pids)
		}
		s.end()
		first.Process.Signal(syscall.SIGINT)
		if err := first.Wait(); err != nil {
			t.Errorf("%s: ^C ends it with %s", name, err)
		}
		if out := outputOf(t, as(uid, frontOf(state, "audit", "query", "-o", "ndjson", "--all"))); !strings.Contains(out.stdout, "daemon.start") || !strings.Contains(out.stdout, "daemon.stop") {
			t.Errorf("%s: its life is not in the log: exit %d\n%s%s", name, out.code, out.stdout, out.stderr)
		}
	}
}
