package pyenv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"
	"testing/fstest"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// role is what a child of a test does: Ensure in a root. It is given as JSON.
type role struct {
	Root string
	Pip  resolve.Config
	Kill Step // the child kills itself at the nth report of this step
	Nth  int
}

// told is what it says at its end.
type told struct {
	Report EnsureReport
	Error  string
}

const roleEnv = "MCP_VDISK_PYENV_ROLE"

// playRole does what this binary was started for as a child of a test.
func playRole() bool {
	text := os.Getenv(roleEnv)
	if text == "" {
		return false
	}
	var r role
	var out told
	err := json.Unmarshal([]byte(text), &r)
	if err == nil {
		err = r.play(&out)
	}
	if err != nil {
		out.Error = err.Error() + " " + detailOf(err)
	}
	_ = json.NewEncoder(os.Stdout).Encode(out)
	return true
}

func (r role) play(out *told) (err error) {
	box, err := sandboxrun.New(context.Background(), sandboxrun.Config{})
	if err != nil {
		return err
	}
	defer box.Close()
	e, err := Open(Options{Root: r.Root, Box: box})
	if err != nil {
		return err
	}
	defer e.Close()
	e.locks = fstest.MapFS{}
	if e.base, err = parseBase(small); err != nil {
		return err
	}
	calls := 0
	out.Report, err = e.Ensure(context.Background(), EnsureRequest{Pip: r.Pip, Progress: func(p Progress) {
		if p.Step != r.Kill {
			return
		}
		if calls++; calls == r.Nth {
			die()
		}
	}})
	return err
}

// die is a SIGKILL from which nothing can be saved.
func die() {
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {}
}

// start starts a child; wait returns what it says. killed tells that it died.
func (r role) start(t testing.TB) (wait func() (out told, killed bool)) {
	t.Helper()
	text, err := json.Marshal(r)
	must(t, err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+string(text))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	must(t, cmd.Start())
	return func() (out told, killed bool) {
		err := cmd.Wait()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() < 0 {
			return out, true
		}
		if err := json.NewDecoder(&stdout).Decode(&out); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatalf("child: %v: %s", err, stderr.String())
		}
		return out, false
	}
}
