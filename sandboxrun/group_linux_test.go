package sandboxrun

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// groupRunner returns a Runner whose runs have control groups for memory and pids.
func groupRunner(t testing.TB) *Runner {
	t.Helper()
	r := newRunner(t)
	for _, e := range r.Limits() {
		if e.By == ByRlimit {
			t.Skipf("SKIP no control group limits %s here: %s", e.Resource, e.Reason)
		}
	}
	return r
}

// TestChangesSurviveOutOfMemory: what was written before is there, though the
// pages that hold it were part of what was too much.
func TestChangesSurviveOutOfMemory(t *testing.T) {
	r := groupRunner(t)
	run := bash(`echo kept >a; head -c 30M /dev/urandom >big; rm d/b; sha256sum big; head -c 300M /dev/zero | tail -c 300M >/dev/null; sleep 60`)
	run.Lower = tree(t, map[string]string{"d/b": "2"})
	run.Limits.MemoryBytes, run.Limits.WriteBytes, run.Limits.TmpBytes = 32<<20, 32<<20, 1<<20
	hash := sha256.New()
	var lines []string
	res, err := r.Run(t.Context(), run, func(c Change) error {
		lines = append(lines, c.Kind.String()+" "+string(c.Path))
		if string(c.Path) == "big" {
			_, err := io.Copy(hash, c.Body)
			return err
		}
		return nil
	})
	must(t, err)
	if res.Outcome != MemoryLimit || string(res.Stdout.Text) != fmt.Sprintf("%x  big\n", hash.Sum(nil)) {
		t.Errorf("outcome %s, stdout %q", res.Outcome, res.Stdout.Text)
	}
	if want := []string{"file a", "file big", "dir d", "removed d/b"}; !slices.Equal(lines, want) {
		t.Errorf("changes %q", lines)
	}
}

// TestGroupsAreApart: a run that takes all the memory it can costs others that
// go on at the same time nothing.
func TestGroupsAreApart(t *testing.T) {
	r := groupRunner(t)
	before := footprintOf(t, r)
	var ended sync.WaitGroup
	for i := range 6 {
		ended.Go(func() {
			want, run := Exited, bash(`head -c 40M /dev/zero | tail -c 40M | wc -c`)
			if i%2 == 0 {
				want, run = MemoryLimit, bash(`head -c 400M /dev/zero | tail -c 400M | wc -c`)
			}
			run.Limits = Limits{Timeout: time.Minute, MemoryBytes: 64 << 20, TmpBytes: 1 << 20, WriteBytes: 1 << 20}
			if res, err := r.Run(t.Context(), run, nil); err != nil || res.Outcome != want {
				t.Errorf("run %d: %s, want %s (%v)", i, res.Outcome, want, err)
			}
		})
	}
	ended.Wait()
	sameFootprint(t, r, before)
}

// TestTooSmallForAnything: where not even the sandbox fits, that is the outcome.
func TestTooSmallForAnything(t *testing.T) {
	r := groupRunner(t)
	run := bash(`head -c 20M /dev/zero | tail -c 20M`)
	run.Limits = Limits{MemoryBytes: 1, WriteBytes: 4096, TmpBytes: 4096, ShmBytes: 4096, HomeBytes: 4096}
	if res, err := r.Run(t.Context(), run, nil); err != nil || res.Outcome != MemoryLimit {
		t.Errorf("outcome %s, error %v", res.Outcome, err)
	}
	mustExit(t, r, bash(`true`))
}

// startServer starts a process that runs a script that does not end, and waits
// until its groups have processes.
func startServer(t *testing.T) (server *exec.Cmd, groups []string) {
	t.Helper()
	server = exec.Command("/proc/self/exe")
	server.Env = append(os.Environ(), roleEnv+"=server")
	must(t, server.Start())
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	within(t, "the server's run has a group", func() bool {
		groups = runGroups(t)
		return len(groups) > 0 && !slices.ContainsFunc(groups, func(dir string) bool { return readCount(dir, "cgroup.procs", "") == 0 })
	})
	return server, groups
}

// within asks again and again until cond holds.
func within(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// TestStaleGroups: the groups of a killed server are removed by the next one,
// those of a live one are not.
func TestStaleGroups(t *testing.T) {
	groupRunner(t)
	server, groups := startServer(t)
	newRunner(t)
	if now := runGroups(t); !slices.Equal(now, groups) {
		t.Errorf("groups %q of a live server became %q", groups, now)
	}
	must(t, server.Process.Kill())
	_ = server.Wait()
	within(t, "the sandbox dies with its server", func() bool {
		return !slices.ContainsFunc(groups, func(dir string) bool { return readCount(dir, "cgroup.procs", "") > 0 })
	})
	if now := runGroups(t); !slices.Equal(now, groups) {
		t.Errorf("groups %q of a killed server became %q by themselves", groups, now)
	}
	newRunner(t)
	if now := runGroups(t); len(now) > 0 {
		t.Errorf("groups %q are left", now)
	}
}

// TestWeak: without groups scripts run, and it is said that they are held by
// rlimits only.
func TestWeak(t *testing.T) {
	r := runnerWith(t, Config{Group: "none-of-this-name"})
	mustBeWeak(t, r, "")
	if rep := r.Probe(t.Context()); !rep.OK || rep.Limits[0].By != ByRlimit || rep.Limits[0].Reason == "" {
		t.Errorf("report %+v", rep)
	}
	run := bash(`exit 1`)
	run.Limits.MemoryBytes = 5 << 30
	if got := rlimits(run.Limits.Filled(), false); !slices.Contains(got, rlimit{unix.RLIMIT_AS, 5 << 30}) {
		t.Errorf("rlimits %v", got)
	}
}

// mustBeWeak fails the test unless runs have rlimits only, for the reason given.
func mustBeWeak(t *testing.T, r *Runner, reason string) {
	t.Helper()
	for _, e := range r.Limits() {
		if e.By != ByRlimit || !strings.Contains(e.Reason, reason) {
			t.Errorf("%+v, want %q", e, reason)
		}
	}
	res, _ := mustExit(t, r, bash(`ulimit -Hv; ulimit -Hu`))
	if string(res.Stdout.Text) != "4194304\n256\n" {
		t.Errorf("rlimits %q", res.Stdout.Text)
	}
}

// TestGroupsThatClose: directories that cannot be written any more are missed
// for as long as that is so.
func TestGroupsThatClose(t *testing.T) {
	open := groupRunner(t)
	places := open.places()
	chmod := func(mode os.FileMode) {
		for _, h := range places {
			must(t, os.Chmod(h.dir, mode))
		}
	}
	t.Cleanup(func() { chmod(0o755) })
	chmod(0o555)
	mustBeWeak(t, newRunner(t), "not this user's")
	mustExit(t, open, bash(`true`))
	mustBeWeak(t, open, "the last run could not have a control group: permission denied")
	chmod(0o755)
	mustExit(t, open, bash(`true`))
	if l := open.Limits(); l[0].By == ByRlimit || l[1].By == ByRlimit {
		t.Errorf("the groups are usable again, and the limits are %+v", l)
	}
}

// TestUnusableGroups: a group that cannot be made is missed by one run, one that
// nothing can be started in is given up. The script runs all the same.
func TestUnusableGroups(t *testing.T) {
	r := newRunner(t)
	r.groups = groups{hierarchies: []hierarchy{{version: 1, dir: t.TempDir(), memory: true, pids: true}}}
	mustExit(t, r, bash(`true`))
	if l := r.Limits(); l[0].By != ByRlimit || !strings.Contains(l[0].Reason, "the last run could not have a control group") || len(r.places()) != 1 {
		t.Errorf("limits %+v", l)
	}
	r.groups = groups{hierarchies: []hierarchy{{version: 2, dir: t.TempDir()}}}
	mustExit(t, r, bash(`true`))
	if l := r.Limits(); l[1].By != ByRlimit || !strings.Contains(l[1].Reason, "could not be started in a control group") || len(r.places()) != 0 {
		t.Errorf("limits %+v", l)
	}
}

// TestV2: a run in a cgroup v2 of this kernel. Which controllers it has does not
// matter to joining, killing, sweeping and removing; their files are in
// TestV2Files.
func TestV2(t *testing.T) {
	newRunner(t)
	own, err := ownGroup("/", "")
	if err != nil || unix.Access(own, unix.W_OK) != nil {
		t.Skipf("SKIP no cgroup v2 is delegated to the tests: %s (%v)", own, err)
	}
	if filepath.Base(own) == serverGroup {
		own = filepath.Dir(own)
	} else {
		must(t, moveAside(own))
	}
	if now, err := ownGroup("/", ""); err != nil || now != filepath.Join(own, serverGroup) {
		t.Fatalf("moved aside to %q (%v)", now, err)
	}
	r := newRunner(t)
	r.groups = groups{hierarchies: []hierarchy{{version: 2, dir: own}}}
	before := footprintOf(t, r)
	var inside, outside string
	run := bash(`echo here; read -r _; exit 3`)
	here := make(chan struct{})
	run.Tap = func(Stream, []byte) { close(here) }
	run.Stdin = readerFunc(func([]byte) (int, error) {
		<-here
		dirs, _ := filepath.Glob(own + "/" + groupPrefix + "*")
		for _, dir := range dirs {
			b, _ := os.ReadFile(dir + "/cgroup.procs")
			inside += string(b)
		}
		b, _ := os.ReadFile(own + "/" + serverGroup + "/cgroup.procs")
		outside = string(b)
		return 0, io.EOF
	})
	res, err := r.Run(t.Context(), run, nil)
	if err != nil || res.ExitCode != 3 {
		t.Fatalf("%+v, %v", res, err)
	}
	// Two processes of bubblewrap and bash; this process and the stage.
	if len(strings.Fields(inside)) != 3 || len(strings.Fields(outside)) != 2 {
		t.Errorf("in the group of the run: %q, in that of the server: %q", inside, outside)
	}
	sameFootprint(t, r, before)

	// One that was left has processes until it is swept.
	g, err := r.newGroup(Limits{}.Filled())
	must(t, err)
	dir := g.parts[0].dir
	unix.Close(g.parts[0].lock)
	must(t, g.parts[0].join.Close())
	fd, err := os.Open(dir)
	must(t, err)
	defer fd.Close()
	left := exec.Command("/bin/sleep", "300")
	left.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(fd.Fd())}
	must(t, left.Start())
	sweepGroups(r.groups)
	_ = left.Wait()
	if dirs, _ := filepath.Glob(own + "/" + groupPrefix + "*"); len(dirs) > 0 {
		t.Errorf("groups %q are left", dirs)
	}
}
