package sandboxrun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// footprint is what a run could leave behind. Memory files are descriptors, too.
type footprint struct {
	processes, mounts, descriptors, goroutines, files, groups int
}

// more tells whether there is more of anything than there was. A goroutine of an
// earlier run that has said its last word may have been counted then.
func (f footprint) more(was footprint) bool {
	return f.processes > was.processes || f.mounts > was.mounts || f.descriptors > was.descriptors ||
		f.goroutines > was.goroutines || f.files > was.files || f.groups > was.groups
}

// measure counts what there is besides the stage that waits, which is dropped.
func measure(t testing.TB, r *Runner) footprint {
	t.Helper()
	r.DropSpare()
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	mounts := 0
	for line := range strings.Lines(string(mountinfo)) {
		// Not those of other packages' tests, which may be run at the same time.
		if strings.Contains(line, os.TempDir()) || strings.Contains(line, " - overlay ") {
			mounts++
		}
	}
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	files := 0
	must(t, filepath.Walk(os.TempDir(), func(string, os.FileInfo, error) error { files++; return nil }))
	return footprint{len(descendants(t)), mounts, len(fds), runtime.NumGoroutine(), files, len(runGroups(t))}
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

// descriptors lists what this process has open.
func descriptors(t testing.TB) (list []string) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil {
			list = append(list, to)
		}
	}
	return list
}

// footprintOf measures before something is run. What that leaves open must not be
// closed by the garbage collector, which waits until the test is over.
func footprintOf(t testing.TB, r *Runner) footprint {
	t.Helper()
	percent := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	return measure(t, r)
}

// sameFootprint fails the test if there is more than there was. A goroutine that
// has said its last word may need a moment to be gone.
func sameFootprint(t testing.TB, r *Runner, before footprint) {
	t.Helper()
	after := measure(t, r)
	for end := time.Now().Add(2 * time.Second); after.more(before) && time.Now().Before(end); after = measure(t, r) {
		runtime.Gosched()
	}
	if after.more(before) {
		t.Errorf("before %+v, after %+v; processes %q; groups %q; open %q", before, after, descendants(t), runGroups(t), descriptors(t))
	}
}

// everywhere runs a test with what scripts write in memory, and on disk.
func everywhere(t *testing.T, test func(*testing.T, *Runner)) {
	t.Run("memory", func(t *testing.T) { test(t, newRunner(t)) })
	t.Run("disk", func(t *testing.T) {
		scratch := t.TempDir()
		test(t, runnerWith(t, Config{Disk: true, Scratch: scratch}))
		empty(t, scratch)
	})
}

// TestNothingIsLeft: 64 runs of every kind of end, four at a time.
func TestNothingIsLeft(t *testing.T) { everywhere(t, testNothingIsLeft) }

func testNothingIsLeft(t *testing.T, r *Runner) {
	n := 64
	if r.onDisk() {
		n = rounds(128)
	}
	lower := tree(t, map[string]string{"a": "1", "d/b": "2"})
	mustExit(t, r, bash(`true`)) // what is made once is made now
	before := footprintOf(t, r)
	scripts := []string{
		`rm -r d; echo x >n`, `exit 3`, `kill -SEGV $$`, `sleep 60`, `yes`, `setsid sleep 60 & exit 0`,
		`mkfifo p; ln -s / l; chmod 0 a`, `/no/such`, `head -c 1M /dev/zero >f`,
	}
	fourAtOnce(n, func(i int) {
		run := bash(scripts[i%len(scripts)])
		run.Lower = lower
		run.Limits.Timeout = 300 * time.Millisecond
		run.Limits.OutputMax = 1 << 20
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if i%7 == 0 {
			cancel()
		}
		_, _ = r.Run(ctx, run, func(Change) error {
			if i%5 == 0 {
				return fmt.Errorf("refused")
			}
			return nil
		})
	})
	sameFootprint(t, r, before)
}

// fourAtOnce calls f for each of n numbers, four at a time.
func fourAtOnce(n int, f func(i int)) {
	work := make(chan int)
	var ended sync.WaitGroup
	for range 4 {
		ended.Go(func() {
			for i := range work {
				f(i)
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	ended.Wait()
}

// moment is when a run is cancelled: some time after something happened.
type moment struct {
	event string
	after time.Duration
}

// events are what a run can be cancelled after. The setup takes a few
// milliseconds, the diff of TestCancelledAnywhere some more.
var events = []string{"the call", "the start", "the first change", "the end of the script"}

func randomMoment(rnd *rand.Rand, i int) moment {
	most := map[string]time.Duration{"the call": 12, "the start": 40, "the first change": 4, "the end of the script": 60}
	event := events[i%len(events)]
	return moment{event, time.Duration(rnd.Int64N(int64(most[event] * time.Millisecond)))}
}

// TestCancelledAnywhere: runs that are cancelled at random moments of the setup, of
// the script and of the walk over its changes end with the cause or with a result,
// and leave nothing.
func TestCancelledAnywhere(t *testing.T) { everywhere(t, testCancelledAnywhere) }

func testCancelledAnywhere(t *testing.T, r *Runner) {
	lower := tree(t, map[string]string{"a": "1", "d/b": "2"})
	mustExit(t, r, bash(`true`))
	rnd := rand.New(rand.NewPCG(6, 200))
	moments := make([]moment, rounds(200))
	for i := range moments {
		moments[i] = randomMoment(rnd, i)
	}
	before := footprintOf(t, r)
	began := time.Now()
	var mu sync.Mutex
	seen := map[string]int{}
	fourAtOnce(len(moments), func(i int) {
		how := cancelAt(t, r, lower, moments[i])
		mu.Lock()
		defer mu.Unlock()
		seen[how]++
	})
	sameFootprint(t, r, before)
	t.Logf("%d runs in %v, by where the cancel reached them: %v; %+v before, %+v after", len(moments), time.Since(began).Round(time.Millisecond), seen, before, measure(t, r))
	for _, where := range []string{"setup", "script", "changes"} {
		if seen[where] == 0 {
			t.Errorf("no run was cancelled where its place is %q", where)
		}
	}
}

// cancelAt cancels a run at a moment and tells where that reached it.
func cancelAt(t *testing.T, r *Runner, lower string, m moment) (where string) {
	why := errors.New("the client went away")
	ctx, cancel := context.WithCancelCause(context.Background())
	happened := map[string]chan struct{}{}
	for _, e := range events {
		happened[e] = make(chan struct{})
	}
	over := make(chan struct{})
	var cancelled sync.WaitGroup
	cancelled.Go(func() {
		select {
		case <-happened[m.event]:
		case <-over:
			return
		}
		select {
		case <-time.After(m.after):
		case <-over:
			return
		}
		cancel(why)
	})
	place := "setup"
	tell := func(event string) {
		select {
		case <-happened[event]:
		default:
			close(happened[event])
		}
	}
	var mu sync.Mutex
	run := bash(`setsid -f sleep 300; for i in {1..40}; do echo $i >f$i; done; rm -r d; echo started; sleep 0.02; head -c 3M /dev/zero >big; echo ended`)
	run.Lower = lower
	run.Tap = func(_ Stream, p []byte) {
		mu.Lock()
		defer mu.Unlock()
		place = "script"
		tell("the start")
		if bytes.Contains(p, []byte("ended")) {
			tell("the end of the script")
		}
	}
	close(happened["the call"])
	res, err := r.Run(ctx, run, func(c Change) error {
		mu.Lock()
		place = "changes"
		tell("the first change")
		mu.Unlock()
		if c.Kind == File {
			_, err := io.Copy(io.Discard, c.Body)
			return err
		}
		return nil
	})
	close(over)
	cancelled.Wait()
	switch {
	case err == nil && (res.Outcome != Exited || res.ExitCode != 0):
		t.Errorf("%v: outcome %s, exit %d", m, res.Outcome, res.ExitCode)
	case err != nil && (!errors.Is(err, why) || res.Outcome != Cancelled):
		t.Errorf("%v: outcome %s, error %v", m, res.Outcome, err)
	case err == nil:
		return "over"
	}
	return place
}

// TestTempDir: what a killed process left is removed, and nothing else: no directory
// that is in use, of another name or of another kind, and nothing behind a link.
func TestTempDir(t *testing.T) {
	parent, elsewhere := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(elsewhere, "f"), nil, 0o600))
	used, drop, err := TempDir(parent, "ours-")
	must(t, err)
	for _, dir := range []string{"ours-left/a/b", "other-left", "ours-shut/a"} {
		must(t, os.MkdirAll(filepath.Join(parent, dir), 0o700))
	}
	must(t, os.Symlink(elsewhere, filepath.Join(parent, "ours-left/a/link")))
	must(t, os.Symlink(elsewhere, filepath.Join(parent, "ours-link")))
	must(t, os.WriteFile(filepath.Join(parent, "ours-file"), nil, 0o600))
	must(t, os.Chmod(filepath.Join(parent, "ours-shut/a"), 0))
	next, dropNext, err := TempDir(parent, "ours-")
	must(t, err)
	want := []string{filepath.Base(used), filepath.Base(next), "other-left", "ours-file", "ours-link"}
	slices.Sort(want)
	if got := namesIn(t, parent); !slices.Equal(got, want) {
		t.Errorf("there are %q, want %q", got, want)
	}
	if got := namesIn(t, elsewhere); !slices.Equal(got, []string{"f"}) {
		t.Errorf("behind the link there are %q", got)
	}
	must(t, drop())
	must(t, dropNext())
	if got := namesIn(t, parent); len(got) != 3 {
		t.Errorf("afterwards there are %q", got)
	}
	if _, _, err := TempDir(filepath.Join(parent, "none"), "ours-"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v", err)
	}
}

func namesIn(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}
