package sandboxrun

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// descendants returns the command lines of all processes below this one.
func descendants(t testing.TB) []string {
	t.Helper()
	parents := map[int]int{}
	commands := map[int]string{}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	must(t, err)
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue // it has ended
		}
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		parents[pid], _ = strconv.Atoi(f[1])
		cmd, _ := os.ReadFile(dir + "/cmdline")
		commands[pid] = fmt.Sprintf("%d %s %s", pid, f[0], strings.ReplaceAll(string(cmd), "\x00", " "))
	}
	var found []string
	for pid := range parents {
		for p := parents[pid]; p > 0; p = parents[p] {
			if p == os.Getpid() {
				found = append(found, commands[pid])
				break
			}
		}
	}
	return found
}

// footprint is what a run could leave behind.
type footprint struct {
	processes, mounts, descriptors, goroutines, files, groups int
}

// measure counts what there is besides the stage that waits, which is dropped.
func measure(t testing.TB, r *Runner) footprint {
	t.Helper()
	r.DropSpare()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	files := 0
	must(t, filepath.Walk(os.TempDir(), func(string, os.FileInfo, error) error { files++; return nil }))
	return footprint{len(descendants(t)), strings.Count(string(mounts), "\n"), len(fds), runtime.NumGoroutine(), files, len(runGroups(t))}
}

// runGroups lists the groups of runs that this user's Runners have made.
func runGroups(t testing.TB) []string {
	t.Helper()
	var found []string
	for _, h := range findGroups("/", testGroup).hierarchies {
		dirs, err := filepath.Glob(h.dir + "/" + groupPrefix + "*")
		must(t, err)
		found = append(found, dirs...)
	}
	return found
}

// sameFootprint fails the test unless the footprint is what it was. A goroutine
// that has said its last word may need a moment to be gone.
func sameFootprint(t testing.TB, r *Runner, before footprint) {
	t.Helper()
	after := measure(t, r)
	for end := time.Now().Add(2 * time.Second); after != before && time.Now().Before(end); after = measure(t, r) {
		runtime.Gosched()
	}
	if after.goroutines < before.goroutines { // one was on its way out
		after.goroutines = before.goroutines
	}
	if after != before {
		t.Errorf("before %+v, after %+v; processes %q", before, after, descendants(t))
	}
}

// TestNothingIsLeft: 64 runs of every kind of end, four at a time.
func TestNothingIsLeft(t *testing.T) {
	r := newRunner(t)
	lower := tree(t, map[string]string{"a": "1", "d/b": "2"})
	mustExit(t, r, bash(`true`)) // what is made once is made now
	before := measure(t, r)
	scripts := []string{
		`rm -r d; echo x >n`, `exit 3`, `kill -SEGV $$`, `sleep 60`, `yes`, `setsid sleep 60 & exit 0`,
		`mkfifo p; ln -s / l; chmod 0 a`, `/no/such`, `head -c 1M /dev/zero >f`,
	}
	work := make(chan int)
	done := make(chan struct{})
	for range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			for i := range work {
				run := bash(scripts[i%len(scripts)])
				run.Lower = lower
				run.Limits.Timeout = 300 * time.Millisecond
				run.Limits.OutputMax = 1 << 20
				ctx, cancel := context.WithCancel(context.Background())
				if i%7 == 0 {
					cancel()
				}
				_, _ = r.Run(ctx, run, func(Change) error {
					if i%5 == 0 {
						return fmt.Errorf("refused")
					}
					return nil
				})
				cancel()
			}
		}()
	}
	for i := range 64 {
		work <- i
	}
	close(work)
	for range 4 {
		<-done
	}
	sameFootprint(t, r, before)
}
