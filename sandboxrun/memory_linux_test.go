package sandboxrun

import (
	"context"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

// TestMemory: what a run may fill, with its changes in memory and on disk.
func TestMemory(t *testing.T) {
	const mib = 1 << 20
	memory, err := New(context.Background(), Config{})
	must(t, err)
	t.Cleanup(memory.Close)
	disk, err := New(context.Background(), Config{Disk: true, Scratch: filepath.Join(t.TempDir(), "scratch")})
	must(t, err)
	t.Cleanup(disk.Close)
	for _, tc := range []struct {
		name string
		r    *Runner
		l    Limits
		want int64
	}{
		{"default in memory", memory, Limits{}, (256 + 256 + 64 + 64 + 1) * mib},
		{"default on disk", disk, Limits{}, (1 + 256 + 64 + 64 + 1) * mib},
		{"given", memory, Limits{WriteBytes: mib, TmpBytes: 2 * mib, ShmBytes: 3 * mib, HomeBytes: 4 * mib}, 11 * mib},
		{"no end", memory, Limits{WriteBytes: math.MaxInt64, TmpBytes: math.MaxInt64}, math.MaxInt64},
	} {
		if got := tc.r.Memory(tc.l); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}

// TestMemoryIsTheBound: a script that fills all that it can fill has as much
// as Memory says, less the mount points.
func TestMemoryIsTheBound(t *testing.T) {
	r := newRunner(t)
	run := bash(`for d in . /tmp /dev/shm ~; do head -c 1G /dev/zero >$d/fill; done 2>/dev/null
		cat fill /tmp/fill /dev/shm/fill ~/fill | wc -c`)
	run.Limits = Limits{WriteBytes: 4 << 20, TmpBytes: 3 << 20, ShmBytes: 2 << 20, HomeBytes: 1 << 20}
	res, err := r.Run(t.Context(), run, nil)
	must(t, err)
	got, err := strconv.ParseInt(strings.TrimSpace(string(res.Stdout.Text)), 10, 64)
	must(t, err)
	want := r.Memory(run.Limits) - smallTmpfs
	if got > want || got < want-256<<10 {
		t.Errorf("a script could fill %d bytes, the bound is %d", got, want)
	}
}

func TestMemoryTotal(t *testing.T) {
	got, err := MemoryTotal()
	must(t, err)
	var si unix.Sysinfo_t
	must(t, unix.Sysinfo(&si))
	if got < 16<<20 || got > int64(si.Totalram)*int64(si.Unit) {
		t.Errorf("%d bytes of memory", got)
	}
}

func TestMemoryOfGroups(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"nothing", nil, math.MaxInt64},
		{"version 1", map[string]string{"proc/self/cgroup": "4:memory:/a\n", "sys/fs/cgroup/a/memory.max": "5\n"}, math.MaxInt64},
		{"no limit", map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, math.MaxInt64},
		{"own", map[string]string{"proc/self/cgroup": "1:name=x:/\n0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "500\n"}, 500},
		{"above", map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "500\n", "sys/fs/cgroup/a/memory.max": "300\n"}, 300},
		{"of a container", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "700\n"}, 700},
		{"outside of what is seen", map[string]string{"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/memory.max": "700\n"}, 700},
		{"nonsense", map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "-3 x\n"}, math.MaxInt64},
	} {
		host := fstest.MapFS{}
		for name, content := range tc.files {
			host[name] = &fstest.MapFile{Data: []byte(content)}
		}
		if got := cgroupMemory(host); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}
