package sandboxrun

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// testUID runs the tests when the test binary was started by root: as root
// nothing is ever run in a sandbox.
const testUID = 60701

func TestMain(m *testing.M) {
	StageMain()
	playRole()
	// Fuzzing starts this binary again, where testUID may not reach it, and
	// -update writes into testdata; neither needs a sandbox.
	asRoot := slices.ContainsFunc(os.Args, func(a string) bool {
		return strings.HasPrefix(a, "-test.fuzz=") || strings.HasPrefix(a, "-test.fuzzworker") || a == "-update"
	})
	if os.Geteuid() == 0 && !asRoot {
		os.Exit(asUser())
	}
	os.Exit(m.Run())
}

// asUser runs this test binary again as testUID, with a home and a temporary
// directory of its own and nothing of root's environment.
func asUser() int {
	home, err := os.MkdirTemp("/tmp", "sandboxrun-test-")
	if err == nil {
		err = os.Chown(home, testUID, testUID)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot drop root for the tests:", err)
		return 1
	}
	defer os.RemoveAll(home)
	args, collect := movedFiles(home)
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = filepath.Base(os.Args[0])
	group := fmt.Sprintf("mcp-vdisk-test-%d", os.Getpid())
	if err := HandOver(group, testUID, testUID); err != nil {
		fmt.Fprintln(os.Stderr, "the tests have no control groups:", err)
	}
	defer takeBack(group)
	v2 := handOverV2(group)
	defer v2.takeBack()
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "PATH=/usr/local/bin:/usr/bin:/bin", groupEnv + "=" + group, soakEnv + "=" + os.Getenv(soakEnv)}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: testUID, Gid: testUID, Groups: []uint32{}},
	}
	if v2.dir != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(v2.dir.Fd())
	}
	err = cmd.Run()
	collect()
	if cmd.ProcessState != nil {
		return cmd.ProcessState.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "cannot drop root for the tests:", err)
	return 1
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

// movedFiles gives the files that go test asks for (logs, profiles) a place
// that testUID can write, and returns what brings them where they belong.
func movedFiles(home string) (args []string, collect func()) {
	from := map[string]string{}
	for _, arg := range os.Args[1:] {
		flag, path, ok := strings.Cut(arg, "=")
		switch flag {
		case "-test.testlogfile", "-test.coverprofile", "-test.cpuprofile", "-test.memprofile", "-test.blockprofile", "-test.mutexprofile", "-test.trace":
			if ok && path != "" {
				moved := filepath.Join(home, flag)
				from[moved] = path
				arg = flag + "=" + moved
			}
		case "-test.gocoverdir":
			arg = flag + "=" + home
		}
		args = append(args, arg)
	}
	return args, func() {
		for moved, path := range from {
			if b, err := os.ReadFile(moved); err == nil {
				_ = os.WriteFile(path, b, 0o644)
			}
		}
	}
}
