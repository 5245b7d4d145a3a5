package main_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// process is one process of the host.
type process struct {
	pid, parent int
	start       string // since boot, in ticks: with the pid it names a process for good
	state       byte
	cmdline     string
}

// processes lists the host's processes; what ends meanwhile is left out.
func processes(t testing.TB) map[int]process {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("list /proc: %d, %v", len(dirs), err)
	}
	all := map[int]process{}
	for _, dir := range dirs {
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		line, err := os.ReadFile(dir + "/cmdline")
		if err != nil {
			continue
		}
		// proc_pid_stat(5): the name, in parentheses, may hold anything.
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		p := process{start: f[19], state: f[0][0], cmdline: strings.ReplaceAll(string(line), "\x00", " ")}
		p.pid, _ = strconv.Atoi(filepath.Base(dir))
		p.parent, _ = strconv.Atoi(f[1])
		all[p.pid] = p
	}
	return all
}

// below lists the descendants of a process.
func below(t testing.TB, pid int) []process {
	t.Helper()
	all := processes(t)
	var found []process
	for _, p := range all {
		for up := p.parent; up > 1; up = all[up].parent {
			if up == pid {
				found = append(found, p)
				break
			}
		}
	}
	return found
}

// stageName is the command line of a stage.
const stageName = "mcp-vdisk-stage "

// scripts lists the processes below a server that belong to scripts: all but the
// one stage that waits for the next, or is being started, and has no child.
func (s *server) scripts() []process {
	s.t.Helper()
	all, pid := below(s.t, s.worker()), s.worker()
	own := processes(s.t)[pid].cmdline
	for i, p := range all {
		waits := p.parent == pid && (p.cmdline == stageName || p.cmdline == own || p.cmdline == "")
		if waits && !slices.ContainsFunc(all, func(o process) bool { return o.parent == p.pid }) {
			return slices.Delete(all, i, i+1)
		}
	}
	return all
}

// rest waits until nothing is below the server but the stage that waits.
func (s *server) rest() {
	s.t.Helper()
	within(s.t, patience, "a stage waits", func() bool {
		all := below(s.t, s.worker())
		return len(all) == 1 && all[0].cmdline == stageName
	})
}

// marked lists the processes whose command line holds a word.
func marked(t testing.TB, word string) []process {
	t.Helper()
	var found []process
	for _, p := range processes(t) {
		if strings.Contains(p.cmdline, word) && p.pid != os.Getpid() {
			found = append(found, p)
		}
	}
	return found
}

// alive lists those of the processes that still run.
func alive(t testing.TB, list []process) []process {
	t.Helper()
	all := processes(t)
	var found []process
	for _, p := range list {
		if now, ok := all[p.pid]; ok && now.start == p.start && now.state != 'Z' {
			found = append(found, now)
		}
	}
	return found
}

// status reads a line of /proc/PID/status.
func status(pid int, key string) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return ""
	}
	for l := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(l, key+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// worker is the process that does what a client asks for: the server itself or,
// where that passes it on, the daemon.
func (s *server) worker() int {
	s.t.Helper()
	if daemonMode() {
		// A child that is about to be another program has the lock of its daemon open.
		pids, all := daemonsOf(s.state()), processes(s.t)
		for _, pid := range pids {
			if p, ok := all[pid]; ok && !slices.Contains(pids, p.parent) {
				return pid
			}
		}
	}
	return s.cmd.Process.Pid
}

// state is the directory that the server was started on.
func (s *server) state() string {
	if i := slices.Index(s.cmd.Args, "--state"); i >= 0 {
		return s.cmd.Args[i+1]
	}
	return ""
}

// sleeper starts a script that sleeps for half a minute and is found by its
// marker, and waits until it sleeps. It returns the request's id and the tree of
// processes below the server.
func (s *server) sleeper(marker string) (id string, tree []process) {
	s.t.Helper()
	id = s.askCall("run_script", object{"language": "bash", "args": []string{marker},
		"source": "bash -c 'sleep 30; :' $1 & sleep 30; wait"})
	within(s.t, patience, "the script runs", func() bool {
		tree = below(s.t, s.worker())
		n := 0
		for _, p := range tree {
			if strings.HasPrefix(p.cmdline, "sleep ") {
				n++
			}
		}
		return n == 2 && len(marked(s.t, marker)) >= 2
	})
	return id, tree
}

// ownerOf is the uid of a file's owner.
func ownerOf(info os.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }
