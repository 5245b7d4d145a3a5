package sandboxrun

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// fakeHost makes a tree with the files given, for findGroups. "PID" in a file is
// the pid of this process.
func fakeHost(t *testing.T, files map[string]string) string {
	t.Helper()
	for name, content := range files {
		files[name] = strings.ReplaceAll(content, "PID", strconv.Itoa(os.Getpid()))
	}
	return tree(t, files)
}

const (
	mountV2     = "38 31 0:41 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
	mountMemory = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	mountPids   = "39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
)

// TestFindGroups: on what hosts groups can be made, and why not on others.
func TestFindGroups(t *testing.T) {
	const scope = "sys/fs/cgroup/user/mcp.scope"
	v2 := func(more map[string]string) map[string]string {
		m := map[string]string{
			"proc/self/cgroup": "0::/user/mcp.scope\n", "proc/self/mountinfo": mountV2,
			scope + "/cgroup.controllers": "cpu memory pids\n", scope + "/cgroup.procs": "PID\n",
		}
		maps.Copy(m, more)
		return m
	}
	v1 := func(cgroup, mounts string, dirs ...string) map[string]string {
		m := map[string]string{"proc/self/cgroup": cgroup, "proc/self/mountinfo": mounts}
		for _, dir := range dirs {
			m[dir+"/"] = ""
		}
		return m
	}
	for _, tc := range []struct {
		name           string
		files          map[string]string
		closed         string // directory that is not this user's
		want           []hierarchy
		memory, pids   string // parts of the reasons
		subtreeControl string
	}{
		{name: "v2", files: v2(nil), want: []hierarchy{{2, scope, true, true}}, subtreeControl: "+memory +pids"},
		{name: "v2, moved aside before", files: v2(map[string]string{"proc/self/cgroup": "0::/user/mcp.scope/" + serverGroup + "\n", scope + "/" + serverGroup + "/cgroup.procs": "PID\n", scope + "/cgroup.procs": ""}),
			want: []hierarchy{{2, scope, true, true}}, subtreeControl: "+memory +pids"},
		{name: "v2 with pids only", files: v2(map[string]string{scope + "/cgroup.controllers": "pids\n"}),
			want: []hierarchy{{2, scope, false, true}}, memory: "not delegated", subtreeControl: "+pids"},
		{name: "v2 without either", files: v2(map[string]string{scope + "/cgroup.controllers": "cpu io\n"}), memory: "neither memory nor pids", pids: "neither memory nor pids"},
		{name: "v2, not delegated", files: v2(nil), closed: scope, memory: "not delegated to it; start it by systemd-run", pids: "Delegate=yes"},
		{name: "v2, with others", files: v2(map[string]string{scope + "/cgroup.procs": "1\nPID\n"}), memory: "other processes", pids: "other processes"},
		{name: "v2, out of what is seen", files: v2(map[string]string{"proc/self/cgroup": "0::/../other\n"}), memory: "no cgroup", pids: "no cgroup"},
		{name: "v2 in a container", files: map[string]string{"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mountV2,
			"sys/fs/cgroup/cgroup.controllers": "memory pids", "sys/fs/cgroup/cgroup.procs": "PID\n"}, want: []hierarchy{{2, "sys/fs/cgroup", true, true}}},

		{name: "v1", files: v1("4:memory:/a\n8:pids:/\n", mountMemory+mountPids, "sys/fs/cgroup/memory/a/ours", "sys/fs/cgroup/pids/ours"),
			want: []hierarchy{{1, "sys/fs/cgroup/memory/a/ours", true, false}, {1, "sys/fs/cgroup/pids/ours", false, true}}},
		{name: "v1 beside an empty v2", files: v1("4:memory:/a\n8:pids:/\n0::/\n", mountMemory+mountPids+"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", "sys/fs/cgroup/memory/a/ours", "sys/fs/cgroup/pids/ours", "sys/fs/cgroup/unified"),
			want: []hierarchy{{1, "sys/fs/cgroup/memory/a/ours", true, false}, {1, "sys/fs/cgroup/pids/ours", false, true}}},
		{name: "v1, mounted together", files: v1("4:pids,memory:/a\n", "35 31 0:32 / /sys/fs/cgroup/both rw - cgroup cgroup rw,memory,pids\n", "sys/fs/cgroup/both/a/ours"),
			want: []hierarchy{{1, "sys/fs/cgroup/both/a/ours", true, true}}},
		{name: "v1 in a container", files: v1("4:memory:/docker/x\n8:pids:/docker/x/y\n", "35 31 0:32 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n39 31 0:36 /docker/x /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n", "sys/fs/cgroup/memory/ours", "sys/fs/cgroup/pids/y/ours"),
			want: []hierarchy{{1, "sys/fs/cgroup/memory/ours", true, false}, {1, "sys/fs/cgroup/pids/y/ours", false, true}}},
		{name: "v1, another's mount", files: v1("4:memory:/docker/xy\n", "35 31 0:32 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", "sys/fs/cgroup/memory/ours"), memory: "no cgroup", pids: "no cgroup"},
		{name: "v1, memory switched off", files: v1("8:pids:/\n", mountPids, "sys/fs/cgroup/pids/ours"),
			want: []hierarchy{{1, "sys/fs/cgroup/pids/ours", false, true}}, memory: "no cgroup"},
		{name: "v1, nothing handed over", files: v1("4:memory:/a\n8:pids:/\n", mountMemory+mountPids, "sys/fs/cgroup/memory/a", "sys/fs/cgroup/pids"), memory: "root handed over", pids: "root handed over"},
		{name: "v1, not ours", files: v1("4:memory:/a\n", mountMemory, "sys/fs/cgroup/memory/a/ours"), closed: "sys/fs/cgroup/memory/a/ours", memory: "not this user's: permission denied", pids: "no cgroup"},
		{name: "a mount point with a space", files: v1("4:memory:/\n", "35 31 0:32 / /sys/fs/c\\040g rw - cgroup cgroup rw,memory\n", "sys/fs/c g/ours"),
			want: []hierarchy{{1, "sys/fs/c g/ours", true, false}}, pids: "no cgroup"},
		{name: "nothing", files: map[string]string{}, memory: "no cgroup", pids: "no cgroup"},
		{name: "nonsense", files: v1("4\n:::\n0::\n\xff", "1 2 3\n - \n35 31 0:32 / /x rw - cgroup\n"), memory: "no cgroup", pids: "no cgroup"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			host := fakeHost(t, tc.files)
			if tc.closed != "" {
				dir := filepath.Join(host, tc.closed)
				must(t, os.Chmod(dir, 0o555))
				t.Cleanup(func() { _ = os.Chmod(dir, 0o755) })
			}
			got := findGroups(host, "ours")
			for i := range tc.want {
				tc.want[i].dir = filepath.Join(host, tc.want[i].dir)
			}
			if !slices.Equal(got.hierarchies, tc.want) {
				t.Errorf("found %+v, want %+v", got.hierarchies, tc.want)
			}
			for _, reason := range [][2]string{{got.noMemory, tc.memory}, {got.noPids, tc.pids}} {
				if !strings.Contains(reason[0], reason[1]) || (reason[0] == "") != (reason[1] == "") || strings.Contains(reason[0], host) {
					t.Errorf("reason %q, want %q", reason[0], reason[1])
				}
			}
			if tc.subtreeControl == "" {
				return
			}
			for file, want := range map[string]string{"cgroup.subtree_control": tc.subtreeControl, serverGroup + "/cgroup.procs": strconv.Itoa(os.Getpid())} {
				if b, err := os.ReadFile(filepath.Join(host, scope, file)); err != nil || strings.TrimSpace(string(b)) != want {
					t.Errorf("%s: %q, want %q (%v)", file, b, want, err)
				}
			}
		})
	}
}

// TestGroupFiles: what is written to the files of a group and how what the
// kernel writes there is read, with both versions.
func TestGroupFiles(t *testing.T) {
	l := Limits{MemoryBytes: 100 << 20, WriteBytes: 1 << 20, TmpBytes: 1 << 20, ShmBytes: 1 << 20, HomeBytes: 1 << 20, Processes: 20}.Filled()
	const limit = 105 << 20 // with the root of the sandbox
	r := &Runner{}
	makeGroup := func(version int) *group {
		g := &group{limit: r.groupMemory(l)}
		p := part{hierarchy: hierarchy{version, t.TempDir(), true, true}, lock: -1}
		p.dir = p.hierarchy.dir
		must(t, p.set(g.limit, l))
		g.parts = append(g.parts, p)
		return g
	}
	write := func(g *group, files map[string]string) {
		for name, content := range files {
			must(t, os.WriteFile(filepath.Join(g.parts[0].dir, name), []byte(content), 0o644))
		}
	}
	for version, want := range map[int]map[string]string{
		1: {"memory.limit_in_bytes": strconv.Itoa(limit), "memory.memsw.limit_in_bytes": strconv.Itoa(limit), "memory.kmem.tcp.limit_in_bytes": strconv.Itoa(100 << 20 / 16), "pids.max": "21"},
		2: {"memory.max": strconv.Itoa(limit), "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "20"},
	} {
		g := makeGroup(version)
		got := map[string]string{}
		files, err := os.ReadDir(g.parts[0].dir)
		must(t, err)
		for _, f := range files {
			b, err := os.ReadFile(filepath.Join(g.parts[0].dir, f.Name()))
			must(t, err)
			got[f.Name()] = string(b)
		}
		if !maps.Equal(got, want) {
			t.Errorf("version %d: %q", version, got)
		}
		if err := g.check(l); err == nil || !strings.Contains(err.Error(), "not in its control group") {
			t.Errorf("an empty group holds: %v", err)
		}
		write(g, map[string]string{"cgroup.procs": "1\n2\n"})
		must(t, g.check(l))
		write(g, map[string]string{"pids.max": "max\n"})
		if g.check(l) == nil {
			t.Error("a group without a limit of processes holds")
		}
	}
	for _, tc := range []struct {
		name        string
		version     int
		files       map[string]string
		memory, pid bool
	}{
		{"nothing", 1, nil, false, false},
		{"nothing", 2, nil, false, false},
		{"quiet", 1, map[string]string{"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", "memory.max_usage_in_bytes": "110100480\n", "pids.events": "max 0\n"}, false, false},
		{"quiet", 2, map[string]string{"memory.events": "low 0\nhigh 0\nmax 12\noom 0\noom_kill 0\noom_group_kill 0\n", "pids.events": "max 0\n"}, false, false},
		{"killed at the limit", 1, map[string]string{"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", "memory.max_usage_in_bytes": "110096384\n"}, true, false},
		{"killed at the limit with swap", 1, map[string]string{"memory.oom_control": "oom_kill 1\n", "memory.max_usage_in_bytes": "4096\n", "memory.memsw.max_usage_in_bytes": "110100480\n"}, true, false},
		{"killed at the limit", 2, map[string]string{"memory.events": "low 0\nhigh 0\nmax 40\noom 1\noom_kill 3\noom_group_kill 1\n"}, true, false},
		{"killed for the host", 1, map[string]string{"memory.oom_control": "oom_kill 1\n", "memory.max_usage_in_bytes": "50000000\n"}, false, false},
		{"killed for the host", 2, map[string]string{"memory.events": "max 0\noom 0\noom_kill 1\n"}, false, false},
		{"refused a process", 1, map[string]string{"pids.events": "max 1\n"}, false, true},
		{"refused a process", 2, map[string]string{"pids.events": "max 7\n"}, false, true},
		{"nonsense", 1, map[string]string{"memory.oom_control": "oom_kill\n\noom_kill x\n", "pids.events": "\xff"}, false, false},
	} {
		g := makeGroup(tc.version)
		write(g, tc.files)
		if got := g.outOfMemory(); got != tc.memory {
			t.Errorf("version %d, %s: out of memory %v", tc.version, tc.name, got)
		}
		if got := g.outOfPids(); got != tc.pid {
			t.Errorf("version %d, %s: out of pids %v", tc.version, tc.name, got)
		}
	}
}

// TestHandOver: the name is one of a directory, and an ordinary user cannot.
func TestHandOver(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "a\nb", "a\x00"} {
		if err := HandOver(name, os.Getuid(), os.Getgid()); err == nil || !strings.Contains(err.Error(), "is not the name of a control group") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := HandOver("handed-by-nobody", os.Getuid(), os.Getgid()); err == nil {
		t.Error("an ordinary user handed groups over")
	}
}
