package sandboxrun

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// serverRole runs a script that does not end by itself, and what it leaves running,
// until it is killed. It says when it begins and when all of that is there.
func serverRole() int {
	r, err := New(context.Background(), Config{Disk: os.Getenv("SCRATCH") != "", Scratch: os.Getenv("SCRATCH"), Group: testGroup})
	if err != nil {
		return 1
	}
	defer r.Close()
	fmt.Println("ready")
	run := bash(withDaemons(slices.Sorted(maps.Keys(daemons)), `trap '' TERM; sleep 300`))
	run.Tap = func(_ Stream, p []byte) {
		if bytes.Contains(p, []byte("up\n")) {
			fmt.Println("daemons")
		}
	}
	if os.Getenv(jailEnv) != "" {
		// What is written goes to /out, where the jail starts; /tmp is the same.
		run.jail = &Jail{}
	}
	_, _ = r.Run(context.Background(), run, nil)
	return 1
}

// jailEnv makes the server run a jail in place of a script.
const jailEnv = "SANDBOXRUN_TEST_JAIL"

// reaperRole kills servers, at random moments of the setup and when all daemons
// run. All that loses its parent by that becomes a child of this process (it is a
// subreaper), so that waiting until it has none shows that nothing survives.
func reaperRole() int {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Println("subreaper:", err)
		return 1
	}
	longest := time.Duration(0)
	for i := range 36 {
		// The setup takes a few milliseconds; its steps are what is of interest.
		until, d := "ready", time.Duration(rand.Int64N(int64(12*time.Millisecond)))
		if i%9 == 8 {
			until, d = "daemons", 0
		}
		took, err := killServerAfter(until, d)
		if err != nil {
			fmt.Println("run", i, err)
			return 1
		}
		longest = max(longest, took)
	}
	fmt.Println("nothing lived longer than", longest)
	return 0
}

// killServerAfter kills a server some time after it has said a word, and tells how
// long anything of the sandbox lived on.
func killServerAfter(word string, d time.Duration) (time.Duration, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"=server")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	for said := bufio.NewScanner(out); said.Text() != word; {
		if !said.Scan() {
			return 0, fmt.Errorf("the server did not say %q: %w", word, io.ErrUnexpectedEOF)
		}
	}
	<-time.After(d)
	if err := cmd.Process.Kill(); err != nil {
		return 0, err
	}
	killed := time.Now()
	_ = cmd.Wait()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for waitPID(-1) != noChild {
		}
	}()
	select {
	case <-gone:
		return time.Since(killed), nil
	case <-time.After(time.Second):
		return 0, fmt.Errorf("killed %v after %q, and a second later something of the sandbox lives on", d, word)
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
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Logf("%s", out)
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
