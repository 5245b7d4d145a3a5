package sandboxrun

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// groupPrefix begins the names of the groups of runs.
	groupPrefix = "run-"
	// groupSlack is how far below its limit the highest use of a group that ran
	// out of memory can be: the charge that failed was of a few pages.
	groupSlack = 1 << 20
	// groupPoll is how often a v1 group is asked whether it ran out of memory.
	groupPoll = 50 * time.Millisecond
	// groupTime is how long removing a group may take. Its processes are dead,
	// but the kernel may count them for a moment longer.
	groupTime = 2 * time.Second
)

// group bounds one run: a directory in each hierarchy, locked for as long as
// the run lasts, so that no other process takes it for one that was left. A nil
// group bounds nothing.
type group struct {
	limit int64 // bytes of memory
	parts []part
}

type part struct {
	hierarchy
	lock int
	join *os.File // v1: the file that threads join by; v2: the directory
}

// newGroup makes the group of a run; nil where there is no place for one.
func (r *Runner) newGroup(l Limits) (*group, error) {
	hierarchies := r.places()
	if len(hierarchies) == 0 {
		return nil, nil
	}
	g := &group{limit: r.groupMemory(l)}
	for _, h := range hierarchies {
		if err := g.add(h, l); err != nil {
			g.remove()
			return nil, err
		}
	}
	return g, nil
}

// groupMemory is the limit on the memory of a group. What a script writes to a
// tmpfs is charged to its group, so that has room besides: a full disk leaves
// MemoryBytes for the processes.
func (r *Runner) groupMemory(l Limits) int64 {
	l = l.Filled()
	files := r.Memory(l)
	if files > math.MaxInt64-l.MemoryBytes {
		return math.MaxInt64
	}
	return files + l.MemoryBytes
}

// add makes the directory in one hierarchy.
func (g *group) add(h hierarchy, l Limits) error {
	p := part{hierarchy: h}
	for {
		dir, err := os.MkdirTemp(h.dir, groupPrefix)
		if err != nil {
			return err
		}
		p.dir = dir
		p.lock, err = lockDir(dir)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.ENOENT) {
			continue // a sweep was faster
		}
		if err != nil {
			_ = unix.Rmdir(dir)
			return err
		}
		break
	}
	err := p.set(g.limit, l)
	if err == nil {
		p.join, err = p.open()
	}
	g.parts = append(g.parts, p)
	return err
}

// set writes the limits. What may be missing is swap accounting: without it a
// script may use as much swap again as the kernel gives it. With v1 the buffers of
// sockets are no memory of the group and have a limit of their own, which kernels
// may be without, too; with v2 they are.
func (p *part) set(memory int64, l Limits) error {
	if p.memory && p.version == 1 {
		if err := writeControl(p.dir, "memory.limit_in_bytes", strconv.FormatInt(memory, 10)); err != nil {
			return err
		}
		_ = writeControl(p.dir, "memory.memsw.limit_in_bytes", strconv.FormatInt(memory, 10))
		_ = writeControl(p.dir, "memory.kmem.tcp.limit_in_bytes", strconv.FormatInt(socketMemory(l), 10))
	}
	if p.memory && p.version == 2 {
		if err := writeControl(p.dir, "memory.max", strconv.FormatInt(memory, 10)); err != nil {
			return err
		}
		_ = writeControl(p.dir, "memory.swap.max", "0")
		_ = writeControl(p.dir, "memory.oom.group", "1")
	}
	if p.pids {
		return writeControl(p.dir, "pids.max", strconv.FormatUint(p.tasks(l.Processes), 10))
	}
	return nil
}

// socketMemory is what the buffers of a script's sockets may take where the limit
// on memory does not count them. Those of all sockets of a host share one bound
// (tcp(7), tcp_mem), so a script that fills its own could slow down all others.
// A transfer inside of the sandbox needs little: what waits is sent later.
func socketMemory(l Limits) int64 { return max(l.MemoryBytes/16, 4<<20) }

// tasks is the limit of pids. Besides the sandbox's, the outer process of
// bubblewrap is in the group, and with v1 the thread of the stage that started
// it. It is one less than the rlimit, so that it is the group that refuses, and
// counts it.
func (p *part) tasks(processes uint64) uint64 {
	sandbox := max(processes-1, 2) // its init and the command
	if p.version == 1 {
		return sandbox + 2
	}
	return sandbox + 1
}

func (p *part) open() (*os.File, error) {
	if p.version == 1 {
		return os.OpenFile(filepath.Join(p.dir, "tasks"), os.O_WRONLY, 0)
	}
	return os.Open(p.dir)
}

// joins returns what the stage needs to start bubblewrap in the group: tasks
// files of v1, and behind them the directory of v2 if there is one.
func (g *group) joins() (files []*os.File, tasks int, v2 bool) {
	if g == nil {
		return nil, 0, false
	}
	for _, p := range g.parts {
		if p.version == 1 {
			files = append(files, p.join)
		}
	}
	tasks = len(files)
	for _, p := range g.parts {
		if p.version == 2 {
			files, v2 = append(files, p.join), true
		}
	}
	return files, tasks, v2
}

// limitsMemory tells whether the group limits memory.
func (g *group) limitsMemory() bool {
	if g != nil {
		for _, p := range g.parts {
			if p.memory {
				return true
			}
		}
	}
	return false
}

// outOfMemory tells whether a process of the run was killed because the group
// had reached its limit. A kill because the host had no memory left is none.
func (g *group) outOfMemory() bool {
	if g == nil {
		return false
	}
	for _, p := range g.parts {
		switch {
		case !p.memory:
		case p.version == 2:
			if readCount(p.dir, "memory.events", "oom_kill") > 0 && readCount(p.dir, "memory.events", "oom") > 0 {
				return true
			}
		case readCount(p.dir, "memory.oom_control", "oom_kill") > 0:
			// Where swap is accounted, it is memory and swap together that are
			// limited. failcnt would say the same, but some kernels do not count.
			most := max(readCount(p.dir, "memory.max_usage_in_bytes", ""), readCount(p.dir, "memory.memsw.max_usage_in_bytes", ""))
			if most >= g.limit-groupSlack {
				return true
			}
		}
	}
	return false
}

// outOfPids tells whether the group refused the run another process.
func (g *group) outOfPids() bool {
	if g == nil {
		return false
	}
	for _, p := range g.parts {
		if p.pids && readCount(p.dir, "pids.events", "max") > 0 {
			return true
		}
	}
	return false
}

// check tells whether the group has processes and the limits that it was given.
// The kernel rounds memory down to whole pages.
func (g *group) check(l Limits) error {
	for _, p := range g.parts {
		file := "memory.max"
		if p.version == 1 {
			file = "memory.limit_in_bytes"
		}
		switch {
		case readCount(p.dir, "cgroup.procs", "") == 0:
			return errors.New("it is not in its control group")
		case p.memory && readCount(p.dir, file, "")/int64(os.Getpagesize()) != g.limit/int64(os.Getpagesize()):
			return errors.New("its memory is not limited")
		case p.pids && readCount(p.dir, "pids.max", "") != int64(p.tasks(l.Processes)):
			return errors.New("its processes are not limited")
		}
	}
	return nil
}

// remove removes the group; the run must be over. What cannot be removed is
// left to the next sweep.
func (g *group) remove() {
	if g == nil {
		return
	}
	for _, p := range g.parts {
		if p.join != nil {
			p.join.Close()
		}
		_ = removeGroup(p.dir, groupTime)
		unix.Close(p.lock)
	}
}

// removeGroup kills what is in a group, where there is a file for that, and
// removes it. Pages of files that are still charged to it are no hindrance.
func removeGroup(dir string, patience time.Duration) error {
	_ = writeControl(dir, "cgroup.kill", "1")
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if err := unix.Rmdir(dir); err != unix.EBUSY || time.Now().After(end) {
			return err
		}
	}
}

// sweepGroups removes the groups that killed processes left. The sandboxes in
// them died with those processes.
func sweepGroups(g groups) {
	for _, h := range g.hierarchies {
		list, _ := os.ReadDir(h.dir)
		for _, e := range list {
			if !e.IsDir() || !strings.HasPrefix(e.Name(), groupPrefix) {
				continue
			}
			dir := filepath.Join(h.dir, e.Name())
			if lock, err := lockDir(dir); err == nil {
				_ = removeGroup(dir, groupTime)
				unix.Close(lock)
			}
		}
	}
}
