package python

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

func TestMain(m *testing.M) {
	sandboxrun.StageMain()
	os.Exit(pyenvtest.Main(m, 60706))
}

// needSystem skips a test that needs the interpreter of the system.
func needSystem(t testing.TB) string {
	t.Helper()
	real, err := filepath.EvalSymlinks("/usr/bin/python3")
	if err != nil {
		t.Skip("SKIP no /usr/bin/python3 on this host")
	}
	return real
}

// system returns the interpreter of the system, made once.
func system(t testing.TB) (root string, it *Interpreter, box *sandboxrun.Runner) {
	t.Helper()
	box = pyenvtest.Box(t)
	needSystem(t)
	root = filepath.Join(pyenvtest.Dir(t), "envs")
	it, err := Make(t.Context(), root, Options{}, box)
	must(t, err)
	return root, it, box
}

// python runs a command of the interpreter in the sandbox.
func python(t testing.TB, box *sandboxrun.Runner, it *Interpreter, argv ...string) sandboxrun.Result {
	t.Helper()
	res, err := box.Run(t.Context(), sandboxrun.Run{Argv: argv, Binds: []sandboxrun.Bind{{Source: it.Dir, Target: Prefix}}, Env: []string{"PATH=" + Prefix + "/bin:/usr/bin"}}, nil)
	must(t, err)
	return res
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
