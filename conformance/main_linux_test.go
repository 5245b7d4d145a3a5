package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// testUID runs the tests when the test binary was started by root: as root
// nothing is ever run in a sandbox.
const testUID = 60703

func TestMain(m *testing.M) {
	if os.Geteuid() == 0 {
		os.Exit(asUser())
	}
	os.Exit(m.Run())
}

// asUser runs this test binary again as testUID, with a temporary directory of
// its own and nothing of root's environment.
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
	// Files that the go tool asks for lie where testUID may not write.
	args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(a string) bool {
		return strings.HasPrefix(a, "-test.testlogfile=") || strings.HasPrefix(a, "-test.coverprofile=") || strings.HasPrefix(a, "-test.gocoverdir=")
	})
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "PATH=/usr/local/bin:/usr/bin:/bin"}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testUID, Gid: testUID, Groups: []uint32{}}}
	err = cmd.Run()
	if cmd.ProcessState != nil {
		return cmd.ProcessState.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "cannot drop root for the tests:", err)
	return 1
}
