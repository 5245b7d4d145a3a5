package sandboxrun

import (
	"maps"
	"testing"
)

func TestImplementations(t *testing.T) {
	ok := func(names ...string) (list []Check) {
		for _, n := range names {
			list = append(list, Check{Name: n, OK: true})
		}
		return list
	}
	for _, tc := range []struct {
		name string
		rep  Report
		want map[string]string
	}{
		{"nothing works", Report{Upper: "tmpfs", Checks: []Check{{Name: "bubblewrap"}}}, map[string]string{"pidfd": "none", "overlay": "none", "cgroup": "none"}},
		{"all of it", Report{Upper: "tmpfs", Checks: ok("stage", "bubblewrap", "sandbox"), Limits: []Enforcement{{Resource: "memory", By: ByGroupV2}}},
			map[string]string{"pidfd": "pidfd_open", "overlay": "overlayfs, changes on tmpfs", "cgroup": "cgroup v2"}},
		{"on disk, without groups", Report{Upper: "disk", Checks: ok("stage", "sandbox"), Limits: []Enforcement{{Resource: "memory", By: ByRlimit}, {Resource: "pids", By: ByGroupV1}}},
			map[string]string{"pidfd": "pidfd_open", "overlay": "overlayfs, changes on disk", "cgroup": "none"}},
		{"the stage alone", Report{Upper: "tmpfs", Checks: append(ok("stage"), Check{Name: "sandbox"})},
			map[string]string{"pidfd": "none", "overlay": "overlayfs, changes on tmpfs", "cgroup": "none"}},
	} {
		if got := tc.rep.Implementations(); !maps.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}
