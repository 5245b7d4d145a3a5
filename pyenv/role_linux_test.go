package pyenv

import (
	"context"
	"encoding/json"
	"os"
	"testing"
	"testing/fstest"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
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
			pyenvtest.Die()
		}
	}})
	return err
}

// start starts a child; wait returns what it says. killed tells that it died.
func (r role) start(t testing.TB) (wait func() (out told, killed bool)) {
	t.Helper()
	end := pyenvtest.Start(t, roleEnv, r)
	return func() (out told, killed bool) {
		killed = end(&out)
		return out, killed
	}
}
