package main_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The tests of this package run without a daemon unless they are about it: see
// runTests.
var withDaemon = []string{"MCP_VDISK_NO_DAEMON=0"}

// daemonState is a state directory whose daemon is stopped at the end.
func daemonState(t testing.TB) string {
	t.Helper()
	state := newState(t)
	t.Cleanup(func() { stopDaemon(t, state) })
	return state
}

func stopDaemon(t testing.TB, state string) {
	t.Helper()
	if words, err := os.ReadFile(filepath.Join(state, "daemon.log")); err == nil && (strings.Contains(string(words), "panic") || strings.Contains(string(words), "DATA RACE")) {
		t.Errorf("the daemon's log:\n%s", words)
	}
	f := daemonFactsOf(t, state)
	if !f.Running {
		return
	}
	if out := viaDaemon(t, state, "daemon", "stop", "--force"); out.code != 0 {
		t.Errorf("daemon stop: exit %d\n%s", out.code, out.stderr)
		syscall.Kill(f.PID, syscall.SIGKILL)
	}
}

// viaDaemon runs a command that asks the daemon if there is one.
func viaDaemon(t testing.TB, state string, args ...string) output {
	t.Helper()
	cmd := exec.Command(program, append([]string{"--state", state}, args...)...)
	cmd.Dir = filepath.Dir(state)
	cmd.Env = append(os.Environ(), withDaemon...)
	return outputOf(t, cmd)
}

// shared starts a client of the daemon.
func shared(t testing.TB, state string, flags ...string) *server {
	t.Helper()
	s := serveUnread(t, state, withDaemon, flags...)
	go s.read()
	return s
}

type daemonFacts struct {
	Running bool
	PID     int
	UID     int
	Socket  string
	Changed bool `json:"settings_changed"`
	Clients []struct {
		Verb, Image string
		PID, UID    int
		Exclusive   bool
	}
	Disks   []string
	Scripts int `json:"scripts_running"`
	Kept    int `json:"results_kept"`
}

func daemonFactsOf(t testing.TB, state string) daemonFacts {
	t.Helper()
	out := viaDaemon(t, state, "daemon", "status", "--json")
	var f daemonFacts
	if err := json.Unmarshal([]byte(out.stdout), &f); err != nil || f.Running != (out.code == 0) {
		t.Fatalf("daemon status: exit %d, %v\n%s%s", out.code, err, out.stdout, out.stderr)
	}
	return f
}

// killDaemon ends the daemon as a power cut would, and waits for its end.
func killDaemon(t testing.TB, state string) {
	t.Helper()
	f := daemonFactsOf(t, state)
	if !f.Running {
		t.Fatal("no daemon runs")
	}
	killNow(t, f.PID)
}

// killNow kills a process and waits until all of its threads are gone, and with
// them its descriptors.
func killNow(t testing.TB, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	within(t, patience, "it is dead, and each of its threads", func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		return err == nil && n == 1
	})
}

func TestTwoClientsShareADisk(t *testing.T) {
	state := daemonState(t)
	a, b := shared(t, state), shared(t, state)
	a.hello()
	b.hello()
	a.ok("write_file", object{"path": "of-a.txt", "content": "from a\n"})
	if got := b.ok("read_file", object{"path": "of-a.txt"}).Text; !strings.Contains(got, "from a") {
		t.Errorf("b reads %q", got)
	}
	const each = 50
	var both sync.WaitGroup
	for _, s := range []*server{a, b} {
		both.Go(func() {
			for range each {
				s.ok("write_file", object{"path": "log.txt", "mode": "append", "content": fmt.Sprintf("%p\n", s)})
			}
		})
	}
	both.Wait()
	if got := strings.Count(viaDaemon(t, state, "image", "cat", "log.txt").stdout, "\n"); got != 2*each {
		t.Errorf("%d lines of %d that were acknowledged", got, 2*each)
	}
	if f := daemonFactsOf(t, state); len(f.Clients) != 2 || f.Clients[0].Verb != "serve" {
		t.Errorf("status shows %+v", f.Clients)
	}
	a.end()
	b.ok("write_file", object{"path": "after.txt", "content": "still here\n"})
	b.end()
	if out := viaDaemon(t, state, "audit", "verify"); out.code != 0 {
		t.Errorf("audit verify: exit %d\n%s", out.code, out.stdout)
	}
}

// Whatever a killed daemon left behind, as many clients as come at once get one
// daemon between them.
func TestManyClientsAfterAKill(t *testing.T) {
	const clients = 20
	state := daemonState(t)
	first := shared(t, state)
	first.hello()
	first.end()
	for range rounds(30) {
		killDaemon(t, state)
		all := make([]*server, clients)
		for i := range all {
			all[i] = shared(t, state)
		}
		for i, s := range all {
			s.hello()
			s.ok("write_file", object{"path": fmt.Sprintf("f%d.txt", i), "content": "x"})
		}
		if f := daemonFactsOf(t, state); len(f.Clients) != clients {
			t.Fatalf("%d of %d clients are connected to the one daemon", len(f.Clients), clients)
		}
		for _, s := range all {
			s.end()
		}
	}
}

// A client's session survives its daemon: what ran is answered, and the next call
// is served by the next daemon.
func TestTheDaemonIsKilledDuringACall(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	s.ok("write_file", object{"path": "a.txt", "content": "kept\n"})
	script := s.askCall("run_script", object{"language": "bash", "source": "touch started; sleep 60"})
	within(t, patience, "the script runs", func() bool { return daemonFactsOf(t, state).Scripts == 1 })
	killDaemon(t, state)
	m := s.answer(script)
	if m.Error == nil || !strings.Contains(m.Error.Message, "OUTCOME_UNKNOWN") || !strings.Contains(m.Error.Message, "hint:") {
		t.Errorf("the call is answered %s", m.line)
	}
	if got := s.ok("read_file", object{"path": "a.txt"}).Text; !strings.Contains(got, "kept") {
		t.Errorf("after the kill a.txt reads %q", got)
	}
	if r := s.call("read_file", object{"path": "started"}); !r.IsError {
		t.Error("something of the script that was killed is on the disk")
	}
	greetings := 0
	for _, m := range s.all() {
		if strings.Contains(m.line, "serverInfo") {
			greetings++
		}
	}
	if greetings != 1 {
		t.Errorf("the client was greeted %d times", greetings)
	}
	s.end()
	if out := viaDaemon(t, state, "audit", "verify"); out.code != 0 {
		t.Errorf("audit verify: exit %d\n%s", out.code, out.stdout)
	}
}

// Requests that only ask are asked again, calls are not repeated.
func TestTheDaemonDiesUnderManyRequests(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	unknowns := 0
	for round := range rounds(60) {
		within(t, patience, "a daemon runs", func() bool { return daemonFactsOf(t, state).Running })
		var asked, called []string
		for range 5 {
			asked = append(asked, s.ask("tools/list", nil))
			called = append(called, s.askCall("write_file", object{"path": "n.txt", "mode": "append", "content": "x\n"}))
		}
		killDaemon(t, state)
		for _, id := range asked {
			if m := s.answer(id); m.Error != nil {
				t.Errorf("tools/list is answered %s", m.line)
			}
		}
		unknown := 0
		for _, id := range called {
			if m := s.answer(id); m.Error != nil {
				unknown++
			}
		}
		lines := strings.Count(viaDaemon(t, state, "image", "cat", "n.txt").stdout, "\n")
		if least := (round+1)*5 - unknown; lines < least-unknowns || lines > (round+1)*5 {
			t.Errorf("%d lines; at least %d were acknowledged", lines, least-unknowns)
		}
		unknowns += unknown
	}
	s.end()
}

func TestAnotherBuildsDaemon(t *testing.T) {
	other := otherBuild(t)
	state := daemonState(t)
	old := shared(t, state)
	old.hello()
	old.ok("write_file", object{"path": "a.txt", "content": "old\n"})
	before := daemonFactsOf(t, state)

	start := func() *server {
		cmd := exec.Command(other, "serve", "--state", state)
		cmd.Env = append(os.Environ(), withDaemon...)
		s := serveCommand(t, cmd)
		go s.read()
		return s
	}
	s := start()
	s.hello()
	after := daemonFactsOf(t, state)
	if after.PID == before.PID {
		t.Error("an idle daemon of another build goes on")
	}
	if got := old.ok("read_file", object{"path": "a.txt"}).Text; !strings.Contains(got, "old") {
		t.Errorf("the session that was there reads %q", got)
	}
	// The session that reconnected does not ask for its own build again.
	if now := daemonFactsOf(t, state); now.PID != after.PID {
		t.Error("the old session replaced the daemon again")
	}
	script := s.askCall("run_script", object{"language": "bash", "source": "sleep 60"})
	within(t, patience, "the script runs", func() bool { return daemonFactsOf(t, state).Scripts == 1 })
	third := shared(t, state)
	third.hello()
	third.ok("read_file", object{"path": "a.txt"})
	if now := daemonFactsOf(t, state); now.PID != after.PID || now.Scripts != 1 {
		t.Errorf("a daemon that was at work was replaced: %+v", now)
	}
	if words := third.words(); !strings.Contains(words, "1 script running") {
		t.Errorf("nothing is said about the other build: %q", words)
	}
	s.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, script))
	within(t, patience, "the script is gone", func() bool { return daemonFactsOf(t, state).Scripts == 0 })
}

// otherBuild is the program with another version in it.
func otherBuild(t *testing.T) string {
	t.Helper()
	words := strings.Fields(must(t, newState(t), "version"))
	if len(words) < 2 {
		t.Fatalf("version prints %q", words)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	mine := words[1]
	theirs := mine[:len(mine)-1] + string('a'+(mine[len(mine)-1]+1)%26)
	patched := strings.ReplaceAll(string(data), mine, theirs)
	if patched == string(data) {
		t.Fatalf("the version %q is not in the program", mine)
	}
	path := filepath.Join(passable(t), "mcp-vdisk")
	if err := os.WriteFile(path, []byte(patched), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// A path that is too long for a socket is no hindrance.
func TestALongStatePath(t *testing.T) {
	dir := filepath.Join(passable(t), strings.Repeat("a-long-name-", 8))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(dir, "state")
	t.Cleanup(func() { stopDaemon(t, state) })
	a, b := shared(t, state), shared(t, state)
	a.hello()
	b.hello()
	a.ok("write_file", object{"path": "a.txt", "content": "far away\n"})
	b.ok("read_file", object{"path": "a.txt"})
	if f := daemonFactsOf(t, state); len(f.Socket) > 107 || len(f.Clients) != 2 {
		t.Errorf("socket %q, %d clients", f.Socket, len(f.Clients))
	}
}

// A client that is killed takes its unanswered script along, at once, and nothing
// of anybody else's.
func TestAClientIsKilled(t *testing.T) {
	state := daemonState(t)
	a, b := shared(t, state), shared(t, state)
	a.hello()
	b.hello()
	mark := unique()
	a.askCall("run_script", object{"language": "bash", "source": "exec -a " + mark + " sleep 60"})
	within(t, patience, "the script runs", func() bool { return running(t, mark) })
	other := b.askCall("run_script", object{"language": "bash", "source": "sleep 2; echo well"})
	a.torn = true
	a.kill()
	took := within(t, time.Second, "the script of the client that was killed is gone", func() bool { return !running(t, mark) })
	t.Logf("gone after %s", took)
	if r := b.answer(other).result(t); r.IsError || !strings.Contains(r.Text, "well") {
		t.Errorf("the other client's script: %s", r.Text)
	}
}

// running says whether a process with this word in its command line is there.
func running(t testing.TB, mark string) bool {
	for _, p := range processes(t) {
		if strings.Contains(p.cmdline, mark) {
			return true
		}
	}
	return false
}

// What a person asks is answered while an agent's script runs, and shows it.
func TestQuestionsBesideAScript(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	s.ok("write_file", object{"path": "a.txt", "content": "here\n"})
	id := s.askCall("run_script", object{"language": "bash", "source": "echo begun; sleep 60"})
	within(t, patience, "the script runs", func() bool {
		return strings.Contains(viaDaemon(t, state, "jobs", "list").stdout, "running")
	})
	for _, q := range []struct {
		args []string
		want string
	}{
		{[]string{"audit", "query"}, "running"},
		{[]string{"image", "log"}, "write_file"},
		{[]string{"image", "log"}, "running"},
		{[]string{"image", "cat", "a.txt"}, "here"},
		{[]string{"image", "show"}, "version"},
		{[]string{"image", "list"}, "default"},
		{[]string{"image", "fsck"}, "clean"},
		{[]string{"audit", "verify", "--all"}, "intact"},
		{[]string{"lease", "list"}, "shared"},
		{[]string{"jobs", "list"}, "running"},
		{[]string{"env", "status"}, "running"},
	} {
		out := viaDaemon(t, state, q.args...)
		if out.code != 0 || !strings.Contains(out.stdout, q.want) {
			t.Errorf("%s: exit %d, without %q:\n%s%s", strings.Join(q.args, " "), out.code, q.want, out.stdout, out.stderr)
		}
	}
	if r, ok := s.await(0, func(m message) bool { return string(m.ID) == id }); ok {
		t.Errorf("the script ended meanwhile: %s", r.line)
	}
	if out := viaDaemon(t, state, "image", "fsck", "--repair"); out.code != 6 {
		t.Errorf("a repair beside a session: exit %d\n%s", out.code, out.stdout+out.stderr)
	}
	job := strings.Fields(viaDaemon(t, state, "jobs", "list").stdout)[0]
	if out := viaDaemon(t, state, "jobs", "show", job); !strings.Contains(out.stdout, "begun") {
		t.Errorf("jobs show: %s%s", out.stdout, out.stderr)
	}
	if out := viaDaemon(t, state, "jobs", "cancel", job); out.code != 0 {
		t.Errorf("jobs cancel: exit %d\n%s", out.code, out.stderr)
	}
	if r := s.answer(id).result(t); !r.IsError || !strings.Contains(r.Text, "CANCELLED") {
		t.Errorf("the call is answered %q", r.Text)
	}
}

// A job that was handed over outlives its client, and any other may ask for it,
// from a terminal or in another session, also to save what it did.
func TestAJobOutlivesItsClient(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	a := shared(t, state)
	a.hello()
	id := a.askCall("run_script", object{"language": "bash", "commit": "never", "source": "echo begun; sleep 50; echo done > out.txt; echo end"})
	m, ok := a.await(patience+45*time.Second, func(m message) bool { return m.Method == "" && string(m.ID) == id })
	if !ok {
		t.Fatal("no answer to a script after 45 s")
	}
	job := m.result(t).job(t)
	a.end()
	if f := daemonFactsOf(t, state); f.Scripts != 1 || len(f.Clients) != 0 {
		t.Errorf("after its client left: %+v", f)
	}
	b := shared(t, state)
	b.hello()
	r := b.call("run_script", object{"job": job})
	if !strings.Contains(r.Text, "begun") || !strings.Contains(r.Text, "end") {
		t.Errorf("another session is told: %s", r.Text)
	}
	b.end()
	if out := viaDaemon(t, state, "jobs", "list"); !strings.Contains(out.stdout, job) || !strings.Contains(out.stdout, "can still be saved") {
		t.Errorf("jobs list: %s", out.stdout)
	}
	c := shared(t, state)
	c.hello()
	c.ok("run_script", object{"job": job, "commit": "always"})
	if got := viaDaemon(t, state, "image", "cat", "out.txt").stdout; got != "done\n" {
		t.Errorf("out.txt holds %q", got)
	}
}

func TestStopAndRestart(t *testing.T) {
	state := daemonState(t)
	if out := viaDaemon(t, state, "daemon", "stop"); out.code != 0 || !strings.Contains(out.stderr, "no daemon") {
		t.Errorf("stop without a daemon: exit %d %s", out.code, out.stderr)
	}
	if out := viaDaemon(t, state, "daemon", "status"); out.code != 3 {
		t.Errorf("status without a daemon: exit %d", out.code)
	}
	s := shared(t, state)
	s.hello()
	s.ok("write_file", object{"path": "a.txt", "content": "x\n"})
	before := daemonFactsOf(t, state)
	if out := viaDaemon(t, state, "daemon", "restart"); out.code != 0 {
		t.Fatalf("restart: exit %d %s", out.code, out.stderr)
	}
	s.ok("read_file", object{"path": "a.txt"})
	if after := daemonFactsOf(t, state); after.PID == before.PID || len(after.Clients) != 1 {
		t.Errorf("after the restart: %+v", after)
	}
	s.askCall("run_script", object{"language": "bash", "source": "sleep 60"})
	within(t, patience, "the script runs", func() bool { return daemonFactsOf(t, state).Scripts == 1 })
	if out := viaDaemon(t, state, "daemon", "stop"); out.code != 6 || !strings.Contains(out.stderr, "1 script running") {
		t.Errorf("stop beside a script: exit %d %s", out.code, out.stderr)
	}
	if out := viaDaemon(t, state, "daemon", "stop", "--force"); out.code != 0 {
		t.Errorf("stop --force: exit %d %s", out.code, out.stderr)
	}
	select {
	case <-s.exited:
	case <-time.After(patience):
		t.Fatal("a client's front goes on after stop")
	}
	if words := s.words(); !strings.Contains(words, "the daemon was stopped") {
		t.Errorf("the client is told %q", words)
	}
	s.mu.Lock()
	s.reaped = true
	s.mu.Unlock()
	if f := daemonFactsOf(t, state); f.Running {
		t.Error("the front of the client started another daemon")
	}
	if out := viaDaemon(t, state, "audit", "verify"); out.code != 0 {
		t.Errorf("audit verify: exit %d\n%s", out.code, out.stdout)
	}
}

// A daemon that nobody needs ends, and what comes at that very moment is served.
func TestIdleExit(t *testing.T) {
	state := daemonState(t)
	cmd := exec.Command(program, "--state", state, "daemon", "run", "--idle", "200ms")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ended with %s", err)
		}
	case <-time.After(patience):
		cmd.Process.Kill()
		t.Fatal("it did not end")
	}
	s := shared(t, state)
	s.hello()
	s.ok("write_file", object{"path": "a.txt", "content": "x\n"})
	s.end()
}

// Another user's process is not served, and cannot even reach the socket.
func TestTheSocketIsPrivate(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	f := daemonFactsOf(t, state)
	for path, want := range map[string]os.FileMode{f.Socket: 0o600, filepath.Dir(f.Socket): 0o700} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v, want %v", path, info.Mode(), err, want)
		}
	}
	// A greeting that is none, and one that never ends, hold nobody up.
	for _, say := range []string{"\n", strings.Repeat("x", 8<<10), `{"protocol":99}` + "\n", ""} {
		c, err := net.Dial("unix", f.Socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, say)
	}
	s.ok("list_files", object{})
}

// What the front of a client costs.
func TestMemoryOfAFront(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	s.ok("list_files", object{})
	const most = 16 << 10
	got, _ := strconv.Atoi(strings.TrimSuffix(status(s.cmd.Process.Pid, "VmRSS"), " kB"))
	t.Logf("resident memory: %.1f MiB", float64(got)/1024)
	if got == 0 || got > most {
		t.Errorf("the front takes %d KiB, at most %d", got, most)
	}
}
