package main_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// countedUID is the user of servers whose control groups are counted: nobody else's
// are among them, whatever runs on this host.
const countedUID = 60703

// counted is a new state directory of that user, with a configuration. When root does
// not run the tests it is ours.
func counted(t testing.TB, config string) (state string) {
	t.Helper()
	state = newState(t)
	args := []string{"image", "create", "default"}
	if isRoot() {
		args = append(args, "--run-as", fmt.Sprint(countedUID))
		t.Cleanup(func() {
			for _, dir := range groups(t, "mcp-vdisk-"+fmt.Sprint(countedUID)) {
				os.Remove(dir) // only an empty one goes
			}
		})
	}
	must(t, state, args...)
	if err := os.WriteFile(filepath.Join(state, "config.toml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	return state
}

// serveOwned starts a server as the owner of the state directory, whose
// configuration counts then, as does our environment and what is added to it.
func serveOwned(t testing.TB, state string, env ...string) *server {
	t.Helper()
	cmd := asOwner(t, state, exec.Command(program, "serve", "--state", state))
	cmd.Env = append(os.Environ(), env...)
	s := serveCommand(t, cmd)
	go s.read()
	s.hello()
	return s
}

// level is what scripts could leave of a server's host.
type level struct {
	processes, mounts, descriptors, memfds, groups, scratch, trees int
}

// levelOf looks at an idle server of the countedUID.
func levelOf(t testing.TB, s *server, state string) level {
	t.Helper()
	s.rest()
	pid := s.cmd.Process.Pid
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		t.Fatal(err)
	}
	l := level{
		processes: len(below(t, pid)), mounts: strings.Count(string(mounts), "\n"),
		groups: len(runGroups(t, state)), scratch: len(entries(t, filepath.Join(state, "scratch"))),
	}
	for _, to := range openFiles(t, pid) {
		l.descriptors++
		if strings.HasPrefix(to, "/memfd:") {
			l.memfds++
		}
	}
	for _, name := range entries(t, filepath.Join(state, "live")) {
		l.trees += len(entries(t, filepath.Join(state, "live", name)))
	}
	return l
}

// openFiles lists what a process has open. Files without a name in the state's
// scratch directory are output of jobs, which are kept for a while, and the log's
// database opens files as it grows: neither is among them.
func openFiles(t testing.TB, pid int) (list []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	for _, fd := range entries(t, dir) {
		to, err := os.Readlink(filepath.Join(dir, fd))
		if err == nil && !strings.Contains(to, "/scratch/") && !strings.Contains(to, "/db/") {
			list = append(list, to)
		}
	}
	return list
}

// groups lists the control groups of this host with a name.
func groups(t testing.TB, name string) (found []string) {
	t.Helper()
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == name {
			found = append(found, path)
		}
		return nil // what has gone meanwhile is none
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// runGroups lists the groups of runs of the state's owner. They are where root
// handed them over.
func runGroups(t testing.TB, state string) (found []string) {
	t.Helper()
	info, err := os.Stat(state)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range groups(t, fmt.Sprint("mcp-vdisk-", ownerOf(info))) {
		for _, name := range entries(t, dir) {
			if strings.HasPrefix(name, "run-") {
				found = append(found, filepath.Join(dir, name))
			}
		}
	}
	return found
}

// backAt waits until there is no more of anything than there was.
func backAt(t testing.TB, s *server, state string, was level) level {
	t.Helper()
	var now level
	within(t, patience, "nothing is left", func() bool {
		now = levelOf(t, s, state)
		return now.processes <= was.processes && now.mounts <= was.mounts && now.descriptors <= was.descriptors &&
			now.memfds <= was.memfds && now.groups <= was.groups && now.scratch <= was.scratch && now.trees <= was.trees
	})
	if t.Failed() {
		t.Logf("before %+v, after %+v; processes %v; groups %v; open %q", was, now, below(t, s.cmd.Process.Pid), runGroups(t, state), openFiles(t, s.cmd.Process.Pid))
	}
	return now
}

// size is how many threads a process has and how much of it is resident, in kB.
func sizeOf(pid int) (threads, resident int) {
	threads, _ = strconv.Atoi(status(pid, "Threads"))
	resident, _ = strconv.Atoi(strings.TrimSuffix(status(pid, "VmRSS"), " kB"))
	return threads, resident
}

// goroutines kills the server with SIGQUIT, at which the Go runtime tells of each
// goroutine, and lists their innermost functions.
func (s *server) goroutines() (list []string) {
	s.t.Helper()
	s.mu.Lock()
	s.reaped, s.torn = true, true
	s.mu.Unlock()
	s.cmd.Process.Signal(syscall.SIGQUIT)
	<-s.exited
	for _, block := range strings.Split(s.words(), "\n\n") {
		if lines := strings.SplitN(block, "\n", 3); len(lines) > 1 && strings.HasPrefix(lines[0], "goroutine ") {
			name, _, _ := strings.Cut(lines[1], "(0x")
			list = append(list, strings.TrimSuffix(name, "(...)"))
		}
	}
	slices.Sort(list)
	return list
}
