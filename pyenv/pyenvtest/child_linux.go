package pyenvtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Start starts this test binary again, with a role as JSON in the variable env. It is
// up to TestMain to play it and to print what came of it, as JSON. end waits for the
// child and reads that into out; killed tells that a signal ended it, and then there is
// nothing to read. A child that fails fails the test.
func Start(t testing.TB, env string, role any) (end func(out any) (killed bool)) {
	t.Helper()
	text, err := json.Marshal(role)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), env+"="+string(text))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func(out any) (killed bool) {
		t.Helper()
		err := cmd.Wait()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() < 0 {
			return true
		}
		if err := json.NewDecoder(&stdout).Decode(out); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatalf("child: %v: %s", err, stderr.String())
		}
		return false
	}
}

// Die is a SIGKILL of this process, from which nothing can be saved.
func Die() {
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {}
}

// Fill takes all room of the file system of dir but so many bytes, by the file ballast,
// in the place of an earlier one.
func Fill(t testing.TB, dir, ballast string, room int64) {
	t.Helper()
	if err := os.Remove(ballast); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	free, _, err := hostos.Free(dir)
	if err == nil {
		err = os.WriteFile(ballast, make([]byte, int64(free)-room), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Noise is a text of n bytes that cannot be packed.
func Noise(n int) string {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return string(b)
}
