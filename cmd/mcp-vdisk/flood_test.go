package main_test

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// What one client can take from the others that share a daemon.

// flood writes lines until nothing more is taken of them for a second.
func (s *server) flood(line func(i int) string, n int) (taken int64) {
	s.t.Helper()
	s.torn = true
	var count atomic.Int64
	go func() {
		for i := range n {
			if _, err := io.WriteString(s.stdin, line(i)+"\n"); err != nil {
				return
			}
			count.Add(1)
		}
	}()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for same := 0; same < 10; <-tick.C {
		same++
		if now := count.Load(); now != taken || now == 0 {
			taken, same = now, 0
		}
	}
	return taken
}

// TestClientsThatFlood: clients that ask for much and read nothing make neither the
// daemon nor their own fronts large, and are nothing to the next one when they are
// gone.
func TestClientsThatFlood(t *testing.T) {
	t.Parallel()
	const clients, n, most, mostFront = 2, 2500, 400 << 10, 24 << 10 // kB
	state := daemonState(t)
	a := shared(t, state)
	a.hello()
	a.ok("write_file", object{"path": "big", "content": strings.Repeat("x", 700_000)})
	pid := daemonFactsOf(t, state).PID
	threads, rss := sizeOf(pid)
	for round := range 2 {
		var all []*server
		for range clients {
			s := serveUnread(t, state, withDaemon)
			all = append(all, s)
			taken := s.flood(func(i int) string {
				return requestLine(fmt.Sprint(i), "tools/call", callParams("read_file", object{"path": "big", "encoding": "base64", "byte_limit": 400_000}))
			}, n)
			_, now := sizeOf(pid)
			_, front := sizeOf(s.cmd.Process.Pid)
			t.Logf("%d of %d requests are taken; the daemon has %d MB (%d before), the front %d MB", taken, n, now>>10, rss>>10, front>>10)
			if taken == n || now > most || front > mostFront {
				t.Errorf("%d requests are taken, the daemon has %d kB, the front %d kB", taken, now, front)
			}
		}
		a.ok("write_file", object{"path": "small", "content": "x"})
		for _, s := range all {
			s.kill()
		}
		within(t, patience, "they are gone", func() bool { return len(daemonFactsOf(t, state).Clients) == 1 })
		nowThreads, now := sizeOf(pid)
		t.Logf("round %d: %d MB and %d threads afterwards (%d before)", round, now>>10, nowThreads, threads)
		if now > most {
			t.Errorf("%d kB are left", now)
		}
	}
	a.end()
	if out := viaDaemon(t, state, "daemon", "stop"); out.code != 0 { // no call is at work
		t.Errorf("stop: exit %d %s", out.code, out.stderr)
	}
	if out := viaDaemon(t, state, "audit", "verify"); out.code != 0 {
		t.Errorf("audit verify: exit %d\n%s", out.code, out.stdout)
	}
}

// TestAClientThatReadsAfterAFlood: every answer arrives, once, through the front too.
func TestAClientThatReadsAfterAFlood(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	a := shared(t, state) // the reads do not wait for a write of the same session
	a.hello()
	a.ok("write_file", object{"path": "a", "content": strings.Repeat("0123456789abcdef\n", 2000)})
	s := serveUnread(t, state, withDaemon)
	const n = 2500
	line := func(i int) string {
		p := callParams("read_file", object{"path": "a"})
		p["_meta"] = object{"padding": strings.Repeat("x", 500)} // buffers on the way hold less of them
		return requestLine(fmt.Sprint(i), "tools/call", p)
	}
	taken := s.flood(line, n)
	t.Logf("%d of %d requests are taken", taken, n)
	if taken == n {
		t.Error("all is taken from a client that does not read")
	}
	go s.read()
	for i := range n {
		s.answer(fmt.Sprint(i))
	}
	seen := map[string]bool{}
	for _, m := range s.all() {
		if seen[string(m.ID)] || m.Error != nil {
			t.Errorf("%.200s", m.line)
		}
		seen[string(m.ID)] = true
	}
	s.torn = false
	s.end()
	a.end()
}

// TestABusySessionHangsUp: a client is missed also when nothing is read from it for
// all that it has asked, and what waits never happens.
func TestABusySessionHangsUp(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	a := shared(t, state)
	a.hello()
	id := a.askCall("run_script", object{"language": "bash", "source": "sleep 60"})
	var job string
	within(t, patience, "the script runs", func() bool {
		for _, word := range strings.Fields(viaDaemon(t, state, "jobs", "list").stdout) {
			if len(word) == 26 {
				job = word
			}
		}
		return job != ""
	})
	s := serveUnread(t, state, withDaemon)
	const waits = 64
	taken := s.flood(func(i int) string {
		if i < waits { // calls that take long
			return requestLine(fmt.Sprint(i), "tools/call", callParams("run_script", object{"job": job}))
		}
		return requestLine(fmt.Sprint(i), "tools/call", callParams("run_script", object{"language": "bash", "source": "echo x > never; # " + strings.Repeat("x", 1000)}))
	}, 5000)
	if taken == 5000 {
		t.Error("all is taken from a client that has enough at work")
	}
	s.kill()
	within(t, 10*time.Second, "it is gone", func() bool { return len(daemonFactsOf(t, state).Clients) == 1 })
	if r := a.ok("list_files", object{}); strings.Contains(r.Text, "never") {
		t.Errorf("%.300s", r.Text)
	}
	if log := viaDaemon(t, state, "audit", "query", "ev=call.intent", "-o", "ndjson").stdout; strings.Count(log, "\n") != 1 {
		t.Errorf("in the log:\n%.500s", log)
	}
	a.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
	a.end()
}

// TestWhatADaemonTellsAtItsEnd: a script that is stopped with its daemon is CANCELLED.
func TestWhatADaemonTellsAtItsEnd(t *testing.T) {
	state := daemonState(t)
	for _, how := range []string{"stop", "restart", "SIGTERM"} {
		s := shared(t, state)
		s.hello()
		s.torn = true
		id := s.askCall("run_script", object{"language": "bash", "source": "echo x > f; sleep 60"})
		within(t, patience, "the script runs", func() bool { return daemonFactsOf(t, state).Scripts == 1 })
		pid := daemonFactsOf(t, state).PID
		if how == "SIGTERM" {
			syscall.Kill(pid, syscall.SIGTERM)
		} else if out := viaDaemon(t, state, "daemon", how, "--force"); out.code != 0 {
			t.Errorf("%s: exit %d %s", how, out.code, out.stderr)
		}
		if r := s.answer(id).result(t); !r.IsError || !strings.HasPrefix(r.Text, "CANCELLED: ") {
			t.Errorf("%s: %s", how, r.Text)
		}
		s.kill()
		within(t, patience, "it has ended", func() bool { return !strings.Contains(fmt.Sprint(daemonsOf(state)), fmt.Sprint(pid)) })
	}
	if log := viaDaemon(t, state, "audit", "query").stdout; strings.Contains(log, "INTERNAL") {
		t.Errorf("the log:\n%s", log)
	}
}

// TestReadsSurviveADaemon: of the calls that are open when a daemon dies those that
// change nothing are made again, of the others nobody knows.
func TestReadsSurviveADaemon(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	s.ok("write_file", object{"path": "a", "content": "some text"})
	pid := daemonFactsOf(t, state).PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	read := s.askCall("read_file", object{"path": "a"})
	list := s.askCall("list_files", object{})
	env := s.askCall("python_env", object{"action": "status"})
	poll := s.askCall("run_script", object{"job": "01ARZ3NDEKTSV4RRFFQ69G5FAV"})
	write := s.askCall("write_file", object{"path": "b", "content": "x"})
	script := s.askCall("run_script", object{"language": "bash", "source": "echo x > c"})
	stop := s.askCall("run_script", object{"job": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "cancel": true})
	within(t, patience, "the front has sent them", func() bool { return unread(t, s.stdin.(*os.File)) == 0 })
	s.send(`{"jsonrpc":"2.0","method":"notifications/nothing"}`)
	within(t, patience, "and what came after them", func() bool { return unread(t, s.stdin.(*os.File)) == 0 })
	syscall.Kill(pid, syscall.SIGKILL)
	for id, want := range map[string]string{read: "some text", list: "/workspace/a", env: "Python", poll: "NOT_FOUND"} {
		if r := s.answer(id).result(t); !strings.Contains(r.Text, want) {
			t.Errorf("%s: %s", want, r.Text)
		}
	}
	for _, id := range []string{write, script, stop} {
		if m := s.answer(id); m.Error == nil || !strings.Contains(m.Error.Message, "OUTCOME_UNKNOWN") {
			t.Errorf("answered %s", m.line)
		}
	}
	s.end()
}
