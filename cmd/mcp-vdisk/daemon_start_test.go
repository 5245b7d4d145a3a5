package main_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// How a daemon is found and started, whatever is in the way.

// as makes a command one of a user, for root; anybody else stays who they are.
func as(uid int, cmd *exec.Cmd) *exec.Cmd {
	if isRoot() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	return cmd
}

// frontOf is a command of the program that goes through a daemon.
func frontOf(state string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, append([]string{"--state", state}, args...)...)
	cmd.Env = append(os.Environ(), withDaemon...)
	cmd.Dir = "/"
	return cmd
}

func serveVia(t testing.TB, cmd *exec.Cmd) *server {
	t.Helper()
	s := serveCommand(t, cmd)
	go s.read()
	return s
}

// failing waits for a front that has to fail.
func failing(t testing.TB, cmd *exec.Cmd, code int, words ...string) {
	t.Helper()
	out := outputOf(t, cmd)
	if out.code != code {
		t.Errorf("%v: exit %d, want %d", cmd.Args[1:], out.code, code)
	}
	for _, w := range words {
		if !strings.Contains(out.stderr, w) {
			t.Errorf("%v: without %q: %s", cmd.Args[1:], w, out.stderr)
		}
	}
}

// Fronts that are killed at any moment of the start, and daemons too, leave
// nothing behind that hinders the next one, and never two daemons.
func TestKillsDuringTheStart(t *testing.T) {
	state := daemonState(t)
	last := shared(t, state)
	last.hello()
	last.end()
	n := rounds(200)
	for round := range n {
		for _, pid := range daemonsOf(state) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		r := rand.New(rand.NewPCG(uint64(round), 0))
		var fronts []*server
		for range 3 {
			s := shared(t, state)
			s.torn = true
			fronts = append(fronts, s)
		}
		for _, s := range fronts {
			<-time.After(time.Duration(r.IntN(20)) * time.Millisecond)
			if pids := daemonsOf(state); r.IntN(2) == 0 && len(pids) > 0 {
				syscall.Kill(pids[r.IntN(len(pids))], syscall.SIGKILL)
			}
			s.kill()
		}
		s := shared(t, state)
		s.hello()
		s.ok("write_file", object{"path": "a", "content": fmt.Sprint(round)})
		within(t, patience, "one daemon is left", func() bool { return len(daemonsOf(state)) == 1 })
		s.end()
	}
	t.Logf("%d rounds", n)
}

// A daemon that is stopped is told of, and nobody waits for ever; those who are
// connected go on when it does.
func TestAFrozenDaemon(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	pid := daemonFactsOf(t, state).PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	id := s.askCall("list_files", object{})
	kill := fmt.Sprintf("kill -9 %d", pid)
	ended := make(chan bool)
	for _, args := range [][]string{{"serve"}, {"image", "list"}, {"daemon", "status"}} {
		cmd := frontOf(state, args...)
		if args[0] == "serve" { // to a client that waits
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
		}
		begin := time.Now()
		go func() {
			defer func() { ended <- true }()
			failing(t, cmd, 6, "does not answer", kill)
			if took := time.Since(begin); took > 20*time.Second {
				t.Errorf("%v: told after %s", args, took)
			}
		}()
	}
	for range 3 {
		<-ended
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if m := s.answer(id); m.Error != nil {
		t.Errorf("answered %s", m.line)
	}
	s.end()
}

// A state directory that is removed or moved under a daemon: whoever is connected
// is told, and the next client gets a new one.
func TestTheStateIsRemoved(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(string) error{
		"removed": os.RemoveAll, "moved": func(dir string) error { return os.Rename(dir, dir+".old") },
	} {
		state := daemonState(t)
		s := shared(t, state)
		s.hello()
		s.ok("write_file", object{"path": "a", "content": "x"})
		old := daemonsOf(state)
		if err := remove(state); err != nil {
			t.Fatal(err)
		}
		select {
		case <-s.exited:
		case <-time.After(patience):
			t.Errorf("%s: the session goes on", name)
		}
		if words := s.words(); !strings.Contains(words, "removed or moved") || s.cmd.ProcessState.ExitCode() == 0 {
			t.Errorf("%s: exit %d, %q", name, s.cmd.ProcessState.ExitCode(), words)
		}
		s.kill()
		next := shared(t, state)
		next.hello()
		if r := next.ok("list_files", object{}); strings.Contains(r.Text, "/a") {
			t.Errorf("%s: %s", name, r.Text)
		}
		next.end()
		within(t, patience, name+": the old daemon is gone", func() bool {
			return len(old) == 1 && status(old[0], "State") == "" || strings.HasPrefix(status(old[0], "State"), "Z")
		})
	}
}

// A socket that is removed is made anew, and its clients come to the same daemon.
func TestTheSocketIsRemoved(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	f := daemonFactsOf(t, state)
	for _, what := range []string{f.Socket, filepath.Dir(f.Socket)} {
		if err := os.RemoveAll(what); err != nil {
			t.Fatal(err)
		}
		next := shared(t, state)
		next.hello()
		next.ok("list_files", object{})
		if now := daemonFactsOf(t, state); now.PID != f.PID || len(now.Clients) != 2 {
			t.Errorf("%s: %+v", what, now)
		}
		next.end()
	}
	s.ok("list_files", object{})
	s.end()
}

// Every path that leads to a state directory leads to its daemon, however long it
// is.
func TestPathsToAState(t *testing.T) {
	base := passable(t)
	for _, socket := range []int{102, 103, 104, 107, 108, 200} {
		fill := socket - len(filepath.Join(base, "/state/run/daemon.sock")) - 1
		if fill < 1 {
			t.Skipf("%s is too long to begin with", base)
		}
		dir := filepath.Join(base, strings.Repeat("d", fill))
		short, long := filepath.Join(base, fmt.Sprint("s", socket)), filepath.Join(base, fmt.Sprint(socket)+strings.Repeat("l", 150))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		var clients []*server
		var at string
		for i, parent := range []string{dir, short, long} {
			if i > 0 {
				if err := os.Symlink(dir, parent); err != nil {
					t.Fatal(err)
				}
			}
			s := shared(t, filepath.Join(parent, "state"))
			s.hello()
			s.ok("write_file", object{"path": fmt.Sprint("f", i), "content": "x"})
			clients = append(clients, s)
			at = filepath.Join(parent, "state")
		}
		f := daemonFactsOf(t, at)
		if len(f.Clients) != len(clients) || len(f.Socket) > 103 || strings.HasPrefix(f.Socket, base) != (socket <= 103) {
			t.Errorf("%d bytes: %d clients at %s", socket, len(f.Clients), f.Socket)
		}
		for _, s := range clients {
			s.end()
		}
		stopDaemon(t, at)
	}
}
