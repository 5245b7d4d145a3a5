package sandboxrun

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// waiting returns the pid of the stage that waits, 0 when there is none.
func waiting(t testing.TB, r *Runner) int {
	t.Helper()
	r.stages.mu.Lock()
	sp := r.stages.spare
	r.stages.mu.Unlock()
	if sp == nil {
		return 0
	}
	must(t, sp.stage.ready())
	return sp.stage.process.Pid
}

// mustWait fails the test unless a stage waits, for its orders.
func mustWait(t testing.TB, r *Runner) int {
	t.Helper()
	pid := waiting(t, r)
	if pid == 0 {
		t.Fatal("no stage waits")
	}
	until(t, "the stage does not wait for orders", func() bool {
		state, wchan := statusOf(pid), ""
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
		wchan, _, _ = strings.Cut(string(b), " ")
		return state == "S" && (wchan == "" || wchan == strconv.Itoa(unix.SYS_RECVMSG))
	})
	return pid
}

// statusOf is the letter of a process's state, "" when it is gone.
func statusOf(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))[0]
}

func isDead(pid int) bool { s := statusOf(pid); return s == "" || s == "Z" || s == "X" }

// until polls a condition that has to come true.
func until(t testing.TB, otherwise string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal(otherwise)
		}
	}
}

// usedBy makes a run that stops in its middle and tells whether pid is its stage.
func usedBy(t testing.TB, r *Runner, pid int) bool {
	t.Helper()
	used := false
	run := bash(`cat`)
	run.Stdin = readerFunc(func([]byte) (int, error) { used = hasChild(pid); return 0, io.EOF })
	mustExit(t, r, run)
	return used
}

// hasChild tells whether a process is the parent of another.
func hasChild(pid int) bool {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		b, _ := os.ReadFile(stat)
		if f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])); len(f) > 1 && f[1] == strconv.Itoa(pid) {
			return true
		}
	}
	return false
}

// TestSpare: the life of the stage that waits. There is none before a script was
// started, one afterwards, which the next run is made on, and none in the end.
func TestSpare(t *testing.T) {
	r := newRunner(t)
	if waiting(t, r) != 0 {
		t.Fatal("a stage waits before the first run")
	}
	if rep := r.Probe(t.Context()); !rep.OK || waiting(t, r) != 0 {
		t.Errorf("after a probe: stage %d, report %+v", waiting(t, r), rep)
	}
	if _, err := r.Run(t.Context(), Run{Argv: []string{"/no/such"}, Lower: "/no/such"}, nil); err == nil || waiting(t, r) != 0 {
		t.Errorf("after a run that did not start: stage %d, error %v", waiting(t, r), err)
	}
	mustExit(t, r, bash(`true`))
	first := mustWait(t, r)
	if !usedBy(t, r, first) {
		t.Error("the next run was not made on the stage that waited")
	}
	second := mustWait(t, r)
	if second == first || !isDead(first) {
		t.Errorf("stage %d waits after %d, which is %q", second, first, statusOf(first))
	}
	r.DropSpare()
	if !isDead(second) || waiting(t, r) != 0 {
		t.Errorf("the dropped stage is %q, another is %d", statusOf(second), waiting(t, r))
	}
	mustExit(t, r, bash(`true`))
	third := mustWait(t, r)
	r.Close()
	if !isDead(third) || len(descendants(t)) > 0 {
		t.Errorf("after Close the stage is %q; processes %q", statusOf(third), descendants(t))
	}
	mustExit(t, r, bash(`true`))
	if waiting(t, r) != 0 {
		t.Error("a run after Close leaves a stage")
	}
	r.Close()
}

// TestSpareEndsInTime: a stage that nobody needs does not wait for ever.
func TestSpareEndsInTime(t *testing.T) {
	r := newRunner(t)
	r.stages.life = 100 * time.Millisecond
	before := measure(t, r)
	mustExit(t, r, bash(`true`))
	until(t, "the stage still waits", func() bool { return len(descendants(t)) == 0 })
	sameFootprint(t, r, before)
}

// TestSpareAfterEveryEnd: no kind of end of a run takes the stage along that the
// next one is made on.
func TestSpareAfterEveryEnd(t *testing.T) {
	r := newRunner(t)
	mustExit(t, r, bash(`true`))
	for _, script := range []string{`kill -9 -1`, `sleep 60`, `yes`, `setsid sleep 60 & exit 1`, `kill -SEGV $$`} {
		waited := mustWait(t, r)
		run := bash(script)
		run.Limits.Timeout, run.Limits.OutputMax = 200*time.Millisecond, 1<<20
		mustRun(t, r, run)
		if pid := mustWait(t, r); pid == waited || !usedBy(t, r, pid) {
			t.Errorf("after %q: stage %d, %d waited before it", script, pid, waited)
		}
	}
}

// TestSpareDies: a stage that was killed while it waited is replaced, and the
// run that needed it has its input and its result.
func TestSpareDies(t *testing.T) {
	for _, disk := range []bool{false, true} {
		t.Run(fmt.Sprintf("disk=%v", disk), func(t *testing.T) {
			r := newRunner(t)
			if disk {
				r, _ = diskRunner(t)
			}
			mustExit(t, r, bash(`true`))
			before := measure(t, r)
			mustExit(t, r, bash(`true`))
			pid := mustWait(t, r)
			must(t, unix.Kill(pid, unix.SIGKILL))
			until(t, "the stage does not die", func() bool { return isDead(pid) })
			copyInput(t, r, 0)
			// Now one that dies with its orders unread.
			pid = mustWait(t, r)
			must(t, unix.Kill(pid, unix.SIGSTOP))
			killed := make(chan error, 1)
			go func() {
				for {
					r.stages.mu.Lock()
					taken := r.stages.spare == nil
					r.stages.mu.Unlock()
					if taken {
						break
					}
				}
				killed <- unix.Kill(pid, unix.SIGKILL)
			}()
			copyInput(t, r, 0)
			must(t, <-killed)
			if mustWait(t, r) == pid {
				t.Error("a dead stage waits")
			}
			sameFootprint(t, r, before)
		})
	}
}

// copyInput runs a script that keeps its standard input, and looks whether it had
// all of it and was heard.
func copyInput(t *testing.T, r *Runner, timeout time.Duration) {
	t.Helper()
	run := bash(`cat >f; echo out`)
	run.Stdin = strings.NewReader("input")
	if timeout > 0 {
		run.Limits.Timeout = timeout
	}
	res, c := mustExit(t, r, run)
	if string(res.Stdout.Text) != "out\n" || !slices.Equal(c.lines, []string{`file f 644 5 "input"`}) {
		t.Errorf("stdout %q, changes %q", res.Stdout.Text, c.lines)
	}
}

// TestSpareStopped: a stage that was stopped while it waited is replaced, soon
// enough for a run of two seconds, and nothing of it is left. Nobody is told.
func TestSpareStopped(t *testing.T) {
	for _, disk := range []bool{false, true} {
		t.Run(fmt.Sprintf("disk=%v", disk), func(t *testing.T) {
			r := newRunner(t)
			if disk {
				r, _ = diskRunner(t)
			}
			mustExit(t, r, bash(`true`))
			before := measure(t, r)
			mustExit(t, r, bash(`true`))
			pid := mustWait(t, r)
			must(t, unix.Kill(pid, unix.SIGSTOP))
			began := time.Now()
			copyInput(t, r, 10*time.Second)
			if took := time.Since(began); took > setupTime/3 {
				t.Errorf("it took %s", took)
			}
			if mustWait(t, r) == pid || !isDead(pid) {
				t.Errorf("the stopped stage is %q", statusOf(pid))
			}
			sameFootprint(t, r, before)
		})
	}
}

// TestSpareStoppedAtOnce: one of eight runs at once meets the stopped stage.
func TestSpareStoppedAtOnce(t *testing.T) {
	r := newRunner(t)
	mustExit(t, r, bash(`true`))
	must(t, unix.Kill(mustWait(t, r), unix.SIGSTOP))
	began := time.Now()
	var runs sync.WaitGroup
	for i := range 8 {
		runs.Go(func() {
			run := bash(`cat`)
			run.Stdin = strings.NewReader(fmt.Sprint(i))
			if res, err := r.Run(t.Context(), run, nil); err != nil || string(res.Stdout.Text) != fmt.Sprint(i) {
				t.Errorf("run %d: %v, %s, stdout %q", i, err, res.Outcome, res.Stdout.Text)
			}
		})
	}
	runs.Wait()
	if took := time.Since(began); took > setupTime/2 {
		t.Errorf("they took %s", took)
	}
}

// TestSpareStoppedCancel: the wait for a stage that says nothing ends with ctx.
func TestSpareStoppedCancel(t *testing.T) {
	r := newRunner(t)
	mustExit(t, r, bash(`true`))
	must(t, unix.Kill(mustWait(t, r), unix.SIGSTOP))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if res, err := r.Run(ctx, bash(`true`), nil); res.Outcome != Cancelled || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s, %v", res.Outcome, err)
	}
}

// TestCutOff: a stage that is killed or stopped while the command runs. The command
// has run, which is told with what it printed, and nothing is handed over.
func TestCutOff(t *testing.T) {
	for _, tc := range []struct {
		name    string
		signal  unix.Signal
		outcome Outcome
	}{{"killed", unix.SIGKILL, Signaled}, {"stopped", unix.SIGSTOP, TimedOut}} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRunner(t)
			mustExit(t, r, bash(`true`))
			before := measure(t, r)
			mustExit(t, r, bash(`true`))
			pid := mustWait(t, r)
			run := bash(`echo x >f; echo I-RAN; sleep 60`)
			run.Limits.Timeout = time.Second
			if tc.signal == unix.SIGKILL {
				run.Limits.Timeout = time.Minute
			}
			run.Tap = func(Stream, []byte) { _ = unix.Kill(pid, tc.signal) }
			var c changes
			res, err := r.Run(t.Context(), run, c.add)
			if !errors.Is(err, ErrCutOff) || errors.Is(err, ErrSetup) || errors.Is(err, ErrUnavailable) {
				t.Errorf("error %v", err)
			}
			if res.Outcome != tc.outcome || string(res.Stdout.Text) != "I-RAN\n" || res.Duration <= 0 || len(c.lines) > 0 {
				t.Errorf("%s after %s, stdout %q, changes %q", res.Outcome, res.Duration, res.Stdout.Text, c.lines)
			}
			if (res.Signal == "SIGKILL") != (tc.outcome == Signaled) {
				t.Errorf("signal %q", res.Signal)
			}
			sameFootprint(t, r, before)
		})
	}
}

// TestSpareHolds: the stage that waits has its socket, a file for its own last
// words, and nothing that this process has, was given, or leaves open by mistake;
// no group of a run, and no more memory than the program itself.
func TestSpareHolds(t *testing.T) {
	r := newRunner(t)
	lost, err := os.Open(t.TempDir())
	must(t, err)
	defer lost.Close()
	careless, err := unix.Dup(int(lost.Fd())) // inherited by every child
	must(t, err)
	mustExit(t, r, bash(`true`))
	pid := mustWait(t, r)
	unix.Close(careless)
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	must(t, err)
	var got []string
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		must(t, err)
		kind, _, _ := strings.Cut(target, ":[")
		got = append(got, filepath.Base(fd)+" "+kind)
	}
	if want := []string{"0 /dev/null", "1 /dev/null", "2 /memfd:stage-log (deleted)", "3 socket"}; !slices.Equal(got, want) {
		t.Errorf("descriptors %q, want %q", got, want)
	}
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	must(t, err)
	if want := strings.Join(stageEnv, "\x00") + "\x00"; string(env) != want {
		t.Errorf("environment %q", env)
	}
	ours, err := os.ReadFile("/proc/self/cgroup")
	must(t, err)
	if its, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err != nil || string(its) != string(ours) {
		t.Errorf("it is in the control groups %s (%v), this process in %s", its, err, ours)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "Rss") || strings.HasPrefix(line, "VmRSS") || strings.HasPrefix(line, "Threads") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// TestSpareIsShared: eight runs at once and one stage that waits. It serves one
// of them, each run has its own result, and one stage waits afterwards.
func TestSpareIsShared(t *testing.T) {
	r := newRunner(t)
	var lower []string
	for i := range 8 {
		lower = append(lower, tree(t, map[string]string{"who": fmt.Sprint(i)}))
	}
	mustExit(t, r, bash(`true`))
	before := measure(t, r)
	mustExit(t, r, bash(`true`))
	for range 8 {
		mustWait(t, r)
		var runs sync.WaitGroup
		for i := range 8 {
			runs.Go(func() {
				run := bash(fmt.Sprintf(`cat who; cat; echo %d >f%d`, i, i))
				run.Lower, run.Stdin = lower[i], strings.NewReader(fmt.Sprintf(" in%d", i))
				var c changes
				res, err := r.Run(t.Context(), run, c.add)
				out := fmt.Sprintf("%d in%d", i, i)
				if want := []string{fmt.Sprintf(`file f%d 644 2 "%d\n"`, i, i)}; err != nil || string(res.Stdout.Text) != out || !slices.Equal(c.lines, want) {
					t.Errorf("run %d: %v, %s, stdout %q, changes %q", i, err, res.Outcome, res.Stdout.Text, c.lines)
				}
			})
		}
		runs.Wait()
	}
	mustWait(t, r)
	if left := descendants(t); len(left) != 1 {
		t.Errorf("processes %q", left)
	}
	sameFootprint(t, r, before)
}

// TestSpareIsTakenOnce: whoever comes first has it, also while it is dropped.
func TestSpareIsTakenOnce(t *testing.T) {
	r := newRunner(t)
	for range 50 {
		r.stages.leave()
		var taken [4]*stageProcess
		var takers sync.WaitGroup
		for i := range taken {
			takers.Go(func() {
				p, _, err := r.stages.take()
				if err == nil {
					err = p.ready()
				}
				if err != nil {
					t.Error(err)
				}
				taken[i] = p
			})
		}
		takers.Go(r.DropSpare)
		takers.Wait()
		for i, p := range taken {
			if p.ended() || slices.Contains(taken[:i], p) {
				t.Error("a stage was given twice, or is dead")
			}
		}
		for _, p := range taken {
			p.close()
		}
	}
}

// TestSpareSeesNewDirectories: what is made on the host after the stage that waits
// was started is there for the run on it, below and beside the workspace.
func TestSpareSeesNewDirectories(t *testing.T) {
	r := newRunner(t)
	mustExit(t, r, bash(`true`))
	pid := mustWait(t, r)
	lower, layer := tree(t, map[string]string{"new": "1"}), tree(t, map[string]string{"lib/x": "2"})
	run := bash(`cat new /opt/layer/lib/x /run/vdisk/d`)
	run.Lower, run.Binds, run.Data = lower, []Bind{{layer, "/opt/layer"}}, []Data{{Path: "/run/vdisk/d", Bytes: []byte("3")}}
	if res, _ := mustExit(t, r, run); string(res.Stdout.Text) != "123" {
		t.Errorf("stdout %q", res.Stdout.Text)
	}
	if !isDead(pid) {
		t.Error("the run was not made on the stage that waited")
	}
}

// idleRole runs a script and prints the pid of the stage that waits afterwards.
func idleRole() int {
	r, err := New(context.Background(), Config{Group: testGroup})
	if err == nil {
		_, err = r.Run(context.Background(), bash(`true`), nil)
	}
	if err == nil {
		err = r.stages.spare.stage.ready()
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(r.stages.spare.stage.process.Pid)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// TestSpareDiesWithServer: also when nobody has closed the Runner.
func TestSpareDiesWithServer(t *testing.T) {
	newRunner(t)
	for _, end := range []string{"killed", "exits", "killed while the stage is stopped"} {
		t.Run(end, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), roleEnv+"=idle")
			in, err := cmd.StdinPipe()
			must(t, err)
			out, err := cmd.StdoutPipe()
			must(t, err)
			must(t, cmd.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			pid, perr := strconv.Atoi(strings.TrimSpace(line))
			if err != nil || perr != nil || isDead(pid) {
				t.Fatalf("%q, %v", line, err)
			}
			// One that is stopped cannot see that its socket has ended.
			if end == "killed while the stage is stopped" {
				must(t, unix.Kill(pid, unix.SIGSTOP))
				until(t, "the stage is not stopped", func() bool { return statusOf(pid) == "T" })
				defer func() { _ = unix.Kill(pid, unix.SIGKILL) }()
			}
			if end != "exits" {
				must(t, cmd.Process.Kill())
			}
			in.Close()
			_ = cmd.Wait()
			until(t, "the stage lives on", func() bool { return isDead(pid) })
		})
	}
}

// TestSpareAfterMounts: a stage whose view of the host is no longer the host's is
// not used, and ends at once, so that it keeps nothing busy that the host has
// unmounted. The role "mounter" may mount, in a mount namespace of its own of which
// nothing propagates, and in it is a server, which may not, in the role "looker".
func TestSpareAfterMounts(t *testing.T) {
	newRunner(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"=mounter")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN},
	}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "ok\n" {
		t.Fatalf("%v: %s", err, out)
	}
}

func mounterRole() int {
	if err := mounter(); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ok")
	return 0
}

func mounter() error {
	dir, err := os.MkdirTemp("", "mounter")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private: %w", err)
	}
	// bubblewrap refuses to be started with capabilities. A child has those of
	// the thread that makes it.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	server := exec.Command("/proc/self/exe")
	server.Env = append(os.Environ(), roleEnv+"=looker", "LOOK="+dir)
	in, err1 := server.StdinPipe()
	out, err2 := server.StdoutPipe()
	if err := cmp.Or(err1, err2, server.Start()); err != nil {
		return err
	}
	defer func() { in.Close(); _ = server.Wait() }()
	answers := bufio.NewReader(out)
	mount := func() error {
		return cmp.Or(unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"), os.WriteFile(dir+"/f", []byte("new "), 0o644))
	}
	unmount := func() error { return unix.Unmount(dir, 0) }
	none := func() error { return nil }
	for i, step := range []struct {
		change  func() error
		changes bool
		want    string
	}{
		{none, false, `"" false`}, // the first run
		{none, false, `"" true`},
		{mount, true, `"new new " false`},
		{none, false, `"new new " true`},
		{unmount, true, `"" false`},
		{none, false, `"" true`},
	} {
		// After the first run a stage waits, until something changes.
		if i > 0 && !waits(server.Process.Pid, true) {
			return fmt.Errorf("step %d: no stage waits", i)
		}
		if err := step.change(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		if step.changes && !waits(server.Process.Pid, false) {
			return fmt.Errorf("step %d: a stage waits", i)
		}
		fmt.Fprintln(in)
		if got, err := answers.ReadString('\n'); err != nil || got != step.want+"\n" {
			return fmt.Errorf("step %d: %q, want %q; %v", i, got, step.want, err)
		}
	}
	return nil
}

// waits tells whether a stage of this server comes to wait, or to wait no more.
func waits(server int, want bool) bool {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); hasChild(server) != want; <-tick.C {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// lookerRole runs a script for each line that it reads, and prints what the script
// saw in a directory and whether it ran on the stage that had waited.
func lookerRole() int {
	r, err := New(context.Background(), Config{Group: "none-of-this-name"})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer r.Close()
	dir, lines := os.Getenv("LOOK"), bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		pid := 0
		r.stages.mu.Lock()
		if sp := r.stages.spare; sp != nil && sp.stage.ready() == nil {
			pid = sp.stage.process.Pid
		}
		r.stages.mu.Unlock()
		used := false
		run := bash(`cat; cat f /opt/layer/f 2>/dev/null; exit 0`)
		run.Lower, run.Binds = dir, []Bind{{dir, "/opt/layer"}}
		run.Stdin = readerFunc(func([]byte) (int, error) { used = pid > 0 && hasChild(pid); return 0, io.EOF })
		res, err := r.Run(context.Background(), run, nil)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Printf("%q %v\n", res.Stdout.Text, used)
	}
	return 0
}
