package main_test

import (
	"io"
	"os"
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
	}{{"Control-C", syscall.SIGINT, true}, {"SIGINT of the front", syscall.SIGINT, false}, {"SIGTERM of the front", syscall.SIGTERM, false}, {"SIGKILL of the front", syscall.SIGKILL, false}} {
		state, marker := newState(t), unique()
		cmd := exec.Command(program, "call", "run_script", "--state", state,
			`{"language":"bash","source":"echo x > f; sleep 30; :","args":["`+marker+`"]}`)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		within(t, patience, "the script runs", func() bool { return len(marked(t, "/run/vdisk/source.sh "+marker)) > 0 })
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
		if code := cmd.ProcessState.ExitCode(); code != 130 && c.sig != syscall.SIGKILL {
			t.Errorf("%s: exit code %d, want 130\n%s", c.name, code, out.String())
		}
		within(t, 2*time.Second, "the script is gone", func() bool { return len(marked(t, marker)) == 0 })
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

// Nothing waits for a pipe that nobody writes to.
func TestPutOfWhatIsNoFile(t *testing.T) {
	t.Parallel()
	state := newState(t)
	dir := passable(t)
	pipe := filepath.Join(dir, "folder", "pipe")
	if err := os.Mkdir(filepath.Dir(pipe), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(pipe, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{pipe, "/dev/zero"} {
		if out := command(t, state, "image", "put", source, "/workspace/x"); out.code != 1 || !strings.Contains(out.stderr, "is not a regular file") {
			t.Errorf("%s: %+v", source, out)
		}
	}
	if out := command(t, state, "image", "put", filepath.Dir(pipe), "/workspace/x"); out.code != 0 || !strings.Contains(out.stderr, "left out folder/pipe") {
		t.Errorf("a folder with a pipe: %+v", out)
	}
}
