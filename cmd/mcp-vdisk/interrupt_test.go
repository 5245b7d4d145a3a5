package main_test

import (
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A person who presses Control-C in a terminal sends SIGINT to the whole group of
// processes, front and back; a supervisor sends SIGTERM to the front alone.
func TestInterruptOfACall(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		sig   syscall.Signal
		group bool
	}{{"Control-C", syscall.SIGINT, true}, {"SIGINT of the front", syscall.SIGINT, false}, {"SIGTERM of the front", syscall.SIGTERM, false}} {
		state, marker := newState(t), unique()
		cmd := exec.Command(program, "call", "run_script", "--state", state,
			`{"language":"bash","source":"echo x > f; sleep 30; :","args":["`+marker+`"]}`)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		within(t, patience, "the script runs", func() bool { return len(marked(t, marker)) >= 2 }) // the call itself and bash
		begin := time.Now()
		pid := cmd.Process.Pid
		if c.group {
			pid = -pid
		}
		syscall.Kill(pid, c.sig)
		cmd.Wait()
		if d := time.Since(begin); d > 5*time.Second {
			t.Errorf("%s: the call ended after %s", c.name, d)
		}
		if code := cmd.ProcessState.ExitCode(); code != 130 {
			t.Errorf("%s: exit code %d, want 130\n%s", c.name, code, out.String())
		}
		within(t, time.Second, "the script is gone", func() bool { return len(marked(t, marker)) == 0 })
		if list := must(t, state, "call", "list_files", "{}"); strings.Contains(list, "/f") {
			t.Errorf("%s: saved: %s", c.name, list)
		}
		must(t, state, "audit", "verify")
	}
}

// `mcp-vdisk image cat big | head -1` ends, and so does a call whose reader is gone.
func TestAReaderThatLeaves(t *testing.T) {
	t.Parallel()
	state := newState(t)
	s := serve(t, state)
	s.hello()
	s.ok("run_script", object{"language": "bash", "source": "yes | head -c 20000000 > big; mkdir many; cd many; for i in $(seq 2000); do : > a-name-that-is-rather-long-$i; done"})
	s.end()
	for _, args := range [][]string{{"image", "cat", "big"}, {"image", "tree"}, {"image", "get", "big", "/dev/full"}} {
		cmd := exec.Command(program, append([]string{"--state", state}, args...)...)
		cmd.Dir = filepath.Dir(state)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		io.ReadFull(out, make([]byte, 10))
		out.Close()
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%v: succeeded although nobody read", args)
			}
		case <-time.After(patience):
			t.Errorf("%v: waits for a reader that is gone", args)
			cmd.Process.Kill()
		}
	}
	must(t, state, "audit", "verify")
}
