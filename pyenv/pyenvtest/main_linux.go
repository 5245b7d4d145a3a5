package pyenvtest

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun/usertest"
)

// Main runs the tests, as the user uid if root started them, and returns the exit
// code. TestMain calls sandboxrun.StageMain first.
func Main(m *testing.M, uid int) int {
	defer end()
	return usertest.Main(m, usertest.Options{UID: uid, Env: []string{
		"PIP_*", "*_proxy", "*_PROXY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", WheelsEnv,
	}})
}

// WheelsEnv names a directory with the wheels of the base layer, for benchmarks:
// without it they are downloaded.
const WheelsEnv = "MCP_VDISK_BASE_WHEELS"

// made is what has been made so far.
var made struct {
	sync.Mutex
	box *sandboxrun.Runner
	why string // there is no sandbox
	dir string
}

// Box returns the sandbox of the test binary, or skips the test on a host that has
// none.
func Box(t testing.TB) *sandboxrun.Runner {
	t.Helper()
	made.Lock()
	defer made.Unlock()
	if made.box == nil {
		box, err := sandboxrun.New(context.Background(), sandboxrun.Config{})
		if err != nil {
			t.Fatal(err)
		}
		made.box = box
		if rep := box.Probe(context.Background()); !rep.OK {
			made.why = rep.Cause + "; " + rep.Remedy
		}
	}
	if made.why != "" {
		t.Skip("SKIP no sandbox on this host: ", made.why)
	}
	return made.box
}

// Dir returns the directory of the test binary, which all of its tests share.
func Dir(t testing.TB) string {
	t.Helper()
	made.Lock()
	defer made.Unlock()
	if made.dir == "" {
		dir, err := os.MkdirTemp("", "pyenv-")
		if err != nil {
			t.Fatal(err)
		}
		made.dir = dir
	}
	return made.dir
}

// end closes the sandbox and removes the directory.
func end() {
	made.Lock()
	defer made.Unlock()
	if made.box != nil {
		made.box.Close()
	}
	if made.dir != "" {
		_ = os.RemoveAll(made.dir)
	}
}

// Soak says whether the tests run in full: every row with every pip, builds of
// everything twice.
func Soak() bool { return os.Getenv("MCP_VDISK_SOAK") == "1" }
