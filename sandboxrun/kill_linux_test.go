package sandboxrun

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// roleEnv makes the test binary play another part than that of the tests.
const roleEnv = "SANDBOXRUN_TEST_ROLE"

// playRole does what roleEnv asks for and does not return, or returns at once.
func playRole() {
	switch os.Getenv(roleEnv) {
	case "server":
		os.Exit(serverRole())
	case "idle":
		os.Exit(idleRole())
	case "mounter":
		os.Exit(mounterRole())
	case "looker":
		os.Exit(lookerRole())
	case "large":
		os.Exit(largeRole())
	case "reaper":
		os.Exit(reaperRole())
	case "prober":
		os.Exit(proberRole())
	case "no seccomp":
		os.Exit(noSeccompRole())
	}
}

// serverRole runs a script that does not end by itself, until it is killed.
func serverRole() int {
	r, err := New(context.Background(), Config{Disk: os.Getenv("SCRATCH") != "", Scratch: os.Getenv("SCRATCH"), Group: testGroup})
	if err != nil {
		return 1
	}
	defer r.Close()
	fmt.Println("ready")
	_, _ = r.Run(context.Background(), bash(`:>f; setsid sleep 300 & trap '' TERM; sleep 300`), nil)
	return 1
}

// reaperRole kills servers at random moments. All that loses its parent by
// that becomes a child of this process (it is a subreaper), so that waiting
// until it has none shows that nothing survives.
func reaperRole() int {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Println("subreaper:", err)
		return 1
	}
	for i := range 40 {
		// The setup takes a few milliseconds; its steps are what is of interest.
		if err := killServerAfter(time.Duration(rand.Int64N(int64(12 * time.Millisecond)))); err != nil {
			fmt.Println("run", i, err)
			return 1
		}
	}
	return 0
}

func killServerAfter(d time.Duration) error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"=server")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if _, err := out.Read(make([]byte, 6)); err != nil {
		return err
	}
	<-time.After(d)
	if err := cmd.Process.Kill(); err != nil {
		return err
	}
	_ = cmd.Wait()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for waitPID(-1) != noChild {
		}
	}()
	select {
	case <-gone:
		return nil
	case <-time.After(20 * time.Second):
		return fmt.Errorf("killed after %v, and something of the sandbox lives on", d)
	}
}

// TestServerIsKilled: kill -9 of the process that runs scripts ends them all,
// at whatever moment, and nothing stays.
func TestServerIsKilled(t *testing.T) {
	for _, disk := range []bool{false, true} {
		t.Run(fmt.Sprintf("disk=%v", disk), func(t *testing.T) {
			newRunner(t)
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), roleEnv+"=reaper")
			scratch := filepath.Join(t.TempDir(), "scratch")
			if disk {
				cmd.Env = append(cmd.Env, "SCRATCH="+scratch)
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			// A killed server leaves its control group, and on disk its directory;
			// the next one removes them.
			r := runnerWith(t, Config{Disk: disk, Scratch: scratch})
			if left := runGroups(t); len(left) > 0 {
				t.Errorf("groups %q are left; %+v", left, r.Limits())
			}
			if disk {
				if list, err := os.ReadDir(scratch); err != nil || len(list) > 0 {
					t.Errorf("scratch has %v (%v)", list, err)
				}
			}
		})
	}
}
