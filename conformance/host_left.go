package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// process is one of the host's.
type process struct {
	pid, parent int
	state       string
	command     string
}

func (p process) dead() bool { return p.state == "Z" || p.state == "X" }

// processes lists them; one that ends meanwhile is left out.
func processes() ([]process, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err == nil && len(dirs) == 0 {
		err = errors.New("/proc is empty")
	}
	var all []process
	for _, dir := range dirs {
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		// proc_pid_stat(5): the name, in parentheses, may hold anything.
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(f) < 2 {
			continue
		}
		command, _ := os.ReadFile(dir + "/cmdline")
		p := process{state: f[0], command: string(bytes.ReplaceAll(command, []byte{0}, []byte{' '}))}
		p.pid, _ = strconv.Atoi(filepath.Base(dir))
		p.parent, _ = strconv.Atoi(f[1])
		all = append(all, p)
	}
	return all, err
}

// traces is what a run could leave on the host.
type traces struct {
	mounts      []string
	descriptors int
	files       []string // of the workspace, with sizes and modes
}

func (h *host) look() (traces, error) {
	var t traces
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return t, err
	}
	// Without their numbers, which are given anew.
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 5 {
			t.mounts = append(t.mounts, f[3]+" on "+f[4])
		}
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return t, err
	}
	t.descriptors = len(fds)
	err = filepath.WalkDir(h.lower, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		t.files = append(t.files, fmt.Sprintf("%s %s %d", strings.TrimPrefix(path, h.lower), info.Mode(), info.Size()))
		return err
	})
	return t, err
}

// added lists what is in the second list and not in the first.
func added(before, after []string) (list []string) {
	for _, s := range after {
		if !slices.Contains(before, s) {
			list = append(list, s)
		}
	}
	return list
}

func workspaceChanged(_ context.Context, h *host) (string, error) {
	now, err := h.look()
	list := append(added(h.before.files, now.files), added(now.files, h.before.files)...)
	return strings.Join(list, ", "), err
}

// ofStage are the places at which the stage of sandboxrun mounts.
var ofStage = regexp.MustCompile(` on /tmp($|/(disk|b|empty|merged)($|/))`)

// leftOnHost compares with the time before the first run. Mounts count only
// where ours would be: those of others come and go. The stage that waits for the
// next run is part of no run, and ends first.
func leftOnHost(_ context.Context, h *host) (string, error) {
	h.Runner.DropSpare()
	now, err := h.look()
	if err != nil {
		return "", err
	}
	var list []string
	for _, m := range added(h.before.mounts, now.mounts) {
		if ofStage.MatchString(m) || strings.Contains(m, h.dir) || strings.Contains(m, h.tmp) {
			list = append(list, "mount of "+m)
		}
	}
	if n := now.descriptors - h.before.descriptors; n > 0 {
		list = append(list, fmt.Sprintf("%d descriptors", n))
	}
	n, err := h.left()
	if n > 0 {
		list = append(list, fmt.Sprintf("%d processes", n))
	}
	return strings.Join(list, ", "), err
}

func zombies(context.Context, *host) (string, error) {
	all, err := processes()
	n := 0
	for _, p := range all {
		if p.parent == os.Getpid() && p.dead() {
			n++
		}
	}
	return fmt.Sprint(n), err
}

func outerUID(context.Context, *host) (string, error) {
	if os.Geteuid() == 0 {
		return "root", nil
	}
	return "not root", nil
}

func contacts(_ context.Context, h *host) (string, error) {
	if n := h.contacts.Load(); n != 0 {
		return fmt.Sprint(n), nil
	}
	return "none", nil
}
