package conformance

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

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// testUID runs the tests when root started the test binary: nothing is ever
// sandboxed as root.
const testUID = 60704

func TestMain(m *testing.M) {
	sandboxrun.StageMain()
	// Fuzzing starts this binary again, where testUID may not reach it; no fuzz
	// target needs a sandbox.
	fuzzing := slices.ContainsFunc(os.Args, func(a string) bool {
		return strings.HasPrefix(a, "-test.fuzz=") || strings.HasPrefix(a, "-test.fuzzworker")
	})
	if os.Geteuid() == 0 && !fuzzing {
		os.Exit(asUser())
	}
	os.Exit(m.Run())
}

// asUser runs this test binary again as testUID, with a home and a temporary
// directory of its own and nothing of root's environment.
func asUser() int {
	home, err := os.MkdirTemp("/tmp", "conformance-test-")
	if err == nil {
		err = os.Chown(home, testUID, testUID)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot drop root for the tests:", err)
		return 1
	}
	defer os.RemoveAll(home)
	group := fmt.Sprintf("mcp-vdisk-test-%d", os.Getpid())
	if err := sandboxrun.HandOver(group, testUID, testUID); err != nil {
		fmt.Fprintln(os.Stderr, "the tests have no control groups:", err)
	}
	defer takeBack(group)
	args, collect := movedFiles(home)
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = filepath.Base(os.Args[0])
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "PATH=/usr/local/bin:/usr/bin:/bin", groupEnv + "=" + group, "MCP_VDISK_SOAK=" + os.Getenv("MCP_VDISK_SOAK")}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: testUID, Gid: testUID, Groups: []uint32{}},
	}
	err = cmd.Run()
	collect()
	if cmd.ProcessState != nil {
		return cmd.ProcessState.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "cannot drop root for the tests:", err)
	return 1
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
