package main_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// inForeground starts a daemon as systemd does, and waits until it listens.
func inForeground(t *testing.T, state string) *exec.Cmd {
	t.Helper()
	cmd := frontOf(state, "daemon", "run")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("it says %q: %v", line, err)
	}
	return cmd
}

// Who runs a daemon, such as systemd, keeps it: it takes over from one that a client
// started, makes room for none, and whoever is connected goes on when it ends.
func TestWhoRunsADaemonKeepsIt(t *testing.T) {
	state := daemonState(t)
	t.Cleanup(func() { killDaemons(state) })
	s := shared(t, state)
	s.hello()
	s.ok("write_file", object{"path": "log", "content": "1\n"})
	first := daemonFactsOf(t, state)

	append1 := func(line string) {
		t.Helper()
		s.ok("write_file", object{"path": "log", "mode": "append", "content": line + "\n"})
	}
	run := inForeground(t, state)
	append1("2")
	if now := daemonFactsOf(t, state); now.PID == first.PID || len(now.Clients) != 1 {
		t.Errorf("after it was run: %+v, before that %+v", now, first)
	}
	now := daemonFactsOf(t, state)
	failing(t, frontOf(state, "daemon", "run"), 6, "in the foreground", fmt.Sprintf("process %d", now.PID))
	failing(t, frontOf(state, "daemon", "restart"), 4, "in the foreground", "systemctl")
	failing(t, frontOf(state, "daemon", "restart", "--force"), 4, "in the foreground")

	other := exec.Command(otherBuild(t), "serve", "--state", state)
	other.Env = append(os.Environ(), withDaemon...)
	o := serveVia(t, other)
	o.hello()
	o.ok("read_file", object{"path": "log"})
	if words := o.words(); !strings.Contains(words, "in the foreground") {
		t.Errorf("the client of another build is told %q", words)
	}
	o.end()
	if after := daemonFactsOf(t, state); after.PID != now.PID {
		t.Errorf("it was replaced: %+v", after)
	}

	// It is run again, as systemd does after an update.
	run.Process.Signal(syscall.SIGTERM)
	if err := run.Wait(); err != nil {
		t.Errorf("SIGTERM ends it with %s", err)
	}
	again := inForeground(t, state)
	append1("3")
	if after := daemonFactsOf(t, state); after.PID == now.PID || len(after.Clients) != 1 {
		t.Errorf("after it was run again: %+v", after)
	}
	// Or it is not: then the client starts one.
	again.Process.Signal(syscall.SIGTERM)
	again.Wait()
	append1("4")
	if got := viaDaemon(t, state, "image", "cat", "log").stdout; got != "1\n2\n3\n4\n" {
		t.Errorf("the disk holds %q", got)
	}
	// One that has work to do stays, and is told of.
	s.askCall("run_script", object{"language": "bash", "source": "sleep 60"})
	within(t, patience, "the script runs", func() bool { return daemonFactsOf(t, state).Scripts == 1 })
	failing(t, frontOf(state, "daemon", "run"), 6, "1 script running", "daemon stop --force")
	s.kill()
	if out := viaDaemon(t, state, "audit", "verify", "--all"); out.code != 0 {
		t.Errorf("audit verify: %s%s", out.stdout, out.stderr)
	}
}

// A daemon that was stopped leaves no socket behind, and its log says when it
// began and why it ended.
func TestWhatADaemonLeaves(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	f := daemonFactsOf(t, state)
	s.end()
	stopDaemon(t, state)
	if _, err := os.Lstat(f.Socket); err == nil {
		t.Errorf("%s is still there", f.Socket)
	}
	words, err := os.ReadFile(state + "/daemon.log")
	if err != nil || !strings.Contains(string(words), "listens") || !strings.Contains(string(words), "the daemon was stopped") {
		t.Errorf("daemon.log: %v\n%s", err, words)
	}
}

// What is written to a file that nobody can find again is refused, by every way in:
// one that was removed, or replaced by another. One that was renamed is still there.
func TestTheFileOfAnOpenDisk(t *testing.T) {
	for name, c := range map[string]struct {
		change func(path string) error
		gone   bool
	}{
		"removed":                   {os.Remove, true},
		"renamed":                   {func(path string) error { return os.Rename(path, path+".old") }, false},
		"replaced by an older copy": {func(path string) error { return os.Rename(path+".copy", path) }, true},
		"replaced and kept under another name": {func(path string) error {
			return errors.Join(os.Link(path, path+".kept"), os.Rename(path+".copy", path))
		}, true},
		"renamed and replaced": {func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.Rename(path+".copy", path))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := daemonState(t)
			s := shared(t, state)
			s.hello()
			path := state + "/images/default.vdisk"
			s.ok("write_file", object{"path": "a", "content": "one\n"})
			if out := outputOf(t, exec.Command("cp", "-p", path, path+".copy")); out.code != 0 {
				t.Fatal(out.stderr)
			}
			job := s.askCall("run_script", object{"language": "bash", "source": "sleep 2; echo new > b"})
			within(t, patience, "the script runs", func() bool { return daemonFactsOf(t, state).Scripts == 1 })
			if err := c.change(path); err != nil {
				t.Fatal(err)
			}
			r := s.call("write_file", object{"path": "a", "content": "two\n"})
			if c.gone != (r.IsError && strings.Contains(r.Text, "IMAGE_CORRUPT") && strings.Contains(r.Text, "removed or replaced")) || !c.gone && r.IsError {
				t.Errorf("a change is answered: %s", r.Text)
			}
			if r := s.answer(job).result(t); c.gone == strings.Contains(r.Text, "SAVED") {
				t.Errorf("the script is answered: %s", r.Text)
			}
			want := "one"
			if !c.gone {
				want = "two"
			}
			if got := s.ok("read_file", object{"path": "a"}).Text; !strings.Contains(got, want) {
				t.Errorf("reading goes on with %q", got)
			}
			if disks := strings.Join(daemonFactsOf(t, state).Disks, ";"); c.gone != strings.Contains(disks, "removed or replaced") {
				t.Errorf("daemon status shows %q", disks)
			}
			if c.gone && name != "removed" {
				failing(t, frontOf(state, "call", "list_files", "{}"), 6, "was replaced")
			}
			s.end()
			stopDaemon(t, state)
			if out := viaDaemon(t, state, "audit", "verify", "--all"); out.code != 0 {
				t.Errorf("audit verify: %s%s", out.stdout, out.stderr)
			}
		})
	}
}

// A script that has ended is not cancelled, and not said to be.
func TestCancelOfAJobThatHasEnded(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	s.ok("run_script", object{"language": "bash", "commit": "never", "source": "echo x > kept"})
	job := strings.Fields(viaDaemon(t, state, "jobs", "list").stdout)[0]
	out := viaDaemon(t, state, "jobs", "cancel", job)
	if out.code != 0 || !strings.Contains(out.stderr, "had ended already") || strings.Contains(out.stderr, "cancelled") {
		t.Errorf("exit %d: %s", out.code, out.stderr)
	}
	if log := viaDaemon(t, state, "audit", "query", "--all", "-o", "ndjson").stdout; strings.Contains(log, "job.cancel") {
		t.Errorf("the log has a cancel of it:\n%s", log)
	}
	if r := s.call("run_script", object{"job": job, "commit": "always"}); !strings.Contains(r.Text, "SAVED") {
		t.Errorf("saved afterwards: %s", r.Text)
	}
	s.end()
}
