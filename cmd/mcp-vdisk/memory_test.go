package main_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// TestMemoryOfScriptsIsLimited: a script that takes more is killed whole, the
// server and the next script are not; what a killed server leaves of its control
// groups the next one removes.
func TestMemoryOfScriptsIsLimited(t *testing.T) {
	state := newState(t)
	if memory := limitedBy(t, state); memory.By == sandboxrun.ByRlimit {
		t.Skipf("SKIP no control group limits %s: %s", memory.Resource, memory.Reason)
	}
	s := serve(t, state)
	s.hello()
	r := s.bash(`echo x >f; head -c 3G /dev/zero | tail -c 3G >/dev/null; sleep 60`)
	if r.IsError || r.Facts["outcome"] != "memory_limit" || !strings.HasPrefix(r.Text, "NOT SAVED (killed: more than 1.1 GB of memory, ") {
		t.Errorf("%v: %s", r.Facts, r.Text)
	}
	r = s.call("run_script", object{"language": "python", "source": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"})
	if r.IsError || r.Facts["outcome"] != "pids_limit" || !strings.HasPrefix(r.Text, "FAILED (exit 1, out of processes: at most 256 processes and threads at a time, ") {
		t.Errorf("%v: %.500s", r.Facts, r.Text)
	}
	if r = s.bash(`echo fine`); r.IsError || !strings.Contains(r.Text, "fine") {
		t.Error(r.Text)
	}

	_, tree := s.sleeper(unique())
	groups := groupsOf(t, tree)
	if len(groups) == 0 {
		t.Fatal("a script runs in no group")
	}
	s.torn = true
	s.kill()
	within(t, patience, "the script is dead", func() bool { return len(alive(t, tree)) == 0 })
	must(t, state, "call", "run_script", `{"language":"bash","source":"true"}`)
	for _, dir := range groups {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is left", dir)
		}
	}
}

// groupsOf lists the groups made for runs that hold one of the processes.
func groupsOf(t *testing.T, list []process) (found []string) {
	t.Helper()
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || !strings.HasPrefix(d.Name(), "run-") {
			return nil // it may have gone meanwhile
		}
		b, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		pids := strings.Fields(string(b))
		if slices.ContainsFunc(list, func(p process) bool { return slices.Contains(pids, strconv.Itoa(p.pid)) }) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
