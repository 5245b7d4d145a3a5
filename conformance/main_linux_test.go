package conformance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun/usertest"
)

// testUID runs the tests when root started them.
const testUID = 60704

func TestMain(m *testing.M) {
	sandboxrun.StageMain()
	os.Exit(usertest.Main(m, usertest.Options{UID: testUID, Before: handOver}))
}

// handOver gives the tests control groups.
func handOver(cmd *exec.Cmd) (after func()) {
	group := fmt.Sprintf("mcp-vdisk-test-%d", os.Getpid())
	if err := sandboxrun.HandOver(group, testUID, testUID); err != nil {
		fmt.Fprintln(os.Stderr, "the tests have no control groups:", err)
	}
	cmd.Env = append(cmd.Env, groupEnv+"="+group)
	return func() { takeBack(group) }
}

// groupEnv names the control groups that root handed over to the tests.
const groupEnv = "CONFORMANCE_TEST_GROUP"

var testGroup = os.Getenv(groupEnv)

// takeBack removes them. They are below the groups of this process, in version 1.
func takeBack(name string) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		fmt.Fprintln(os.Stderr, "control groups of the tests:", err)
	}
	for line := range strings.Lines(string(own)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || f[1] != "memory" && f[1] != "pids" {
			continue
		}
		if err := os.Remove(filepath.Join("/sys/fs/cgroup", f[1], f[2], name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			fmt.Fprintln(os.Stderr, "the tests left something in their control group:", err)
		}
	}
}
