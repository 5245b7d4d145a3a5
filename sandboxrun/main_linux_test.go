package sandboxrun

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun/usertest"
)

// testUID runs the tests when root started them.
const testUID = 60701

func TestMain(m *testing.M) {
	StageMain()
	playRole()
	os.Exit(usertest.Main(m, usertest.Options{UID: testUID, Update: true, Before: handOver}))
}

// handOver gives the tests control groups.
func handOver(cmd *exec.Cmd) (after func()) {
	group := fmt.Sprintf("mcp-vdisk-test-%d", os.Getpid())
	if err := HandOver(group, testUID, testUID); err != nil {
		fmt.Fprintln(os.Stderr, "the tests have no control groups:", err)
	}
	cmd.Env = append(cmd.Env, groupEnv+"="+group)
	v2 := handOverV2(group)
	if v2.dir != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(v2.dir.Fd())
	}
	return func() {
		v2.takeBack()
		takeBack(group)
	}
}

// soakEnv is set for the full counts.
const soakEnv = "MCP_VDISK_SOAK"

// rounds is a count: the full one in a soak, a fifth of it by default.
func rounds(full int) int {
	if os.Getenv(soakEnv) == "1" {
		return full
	}
	return full / 5
}

// groupEnv names the groups that root handed over to the tests.
const groupEnv = "SANDBOXRUN_TEST_GROUP"

var testGroup = os.Getenv(groupEnv)

// takeBack removes the groups of the tests, and complains if they are not empty.
func takeBack(name string) {
	for _, controller := range []string{"memory", "pids"} {
		dir, err := ownGroup("/", controller)
		if err != nil {
			continue
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			fmt.Fprintln(os.Stderr, "the tests left something in their control group:", err)
		}
	}
}

// groupV2 is a cgroup v2 that is delegated to the tests as systemd would do it,
// whatever controllers it has. The tests are started in it.
type groupV2 struct{ dir *os.File }

func handOverV2(name string) (g groupV2) {
	own, err := ownGroup("/", "")
	if err != nil {
		return g
	}
	dir := filepath.Join(own, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return g
	}
	for _, file := range []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} {
		if err := os.Chown(filepath.Join(dir, file), testUID, testUID); err != nil {
			fmt.Fprintln(os.Stderr, "delegate a cgroup v2 to the tests:", err)
		}
	}
	g.dir, _ = os.Open(dir)
	return g
}

func (g groupV2) takeBack() {
	if g.dir == nil {
		return
	}
	defer g.dir.Close()
	_ = removeGroup(filepath.Join(g.dir.Name(), serverGroup), groupTime)
	if err := removeGroup(g.dir.Name(), groupTime); err != nil {
		fmt.Fprintln(os.Stderr, "the tests left something in their cgroup v2:", err)
	}
}
