package pythontest

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
)

var made struct {
	sync.Mutex
	done bool
	it   *python.Interpreter
	err  error
}

// System returns the interpreter of the system and its environment root, which tests
// may use and must not spoil. A host that has no such Python skips the test.
func System(t testing.TB) (root string, it *python.Interpreter) {
	t.Helper()
	box := pyenvtest.Box(t)
	root = filepath.Join(pyenvtest.Dir(t), "envs")
	if c := python.Candidates(python.Options{}); !c[0].Chosen && !c[1].Chosen {
		t.Skip("SKIP no Python below /usr: ", c[0].Why)
	}
	made.Lock()
	defer made.Unlock()
	if !made.done {
		made.it, made.err = python.Make(context.Background(), root, python.Options{}, box)
		made.done = true
	}
	if made.err != nil {
		t.Fatal(made.err)
	}
	return root, made.it
}
