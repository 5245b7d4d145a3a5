package main_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/bundle"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// Backups of a state directory at work, and the state directories that are made of
// them.

// backedUp makes a backup through the daemon, and returns what it says of itself.
func backedUp(t testing.TB, state, file string, args ...string) bundle.Facts {
	t.Helper()
	out := viaDaemon(t, state, append([]string{"backup", file, "--json"}, args...)...)
	var f bundle.Facts
	if err := json.Unmarshal([]byte(out.stdout), &f); err != nil || out.code != 0 {
		t.Fatalf("backup: exit %d, %v\n%s%s", out.code, err, out.stdout, out.stderr)
	}
	return f
}

// restored makes a state directory of a backup.
func restored(t testing.TB, file string, args ...string) (state string) {
	t.Helper()
	state = daemonState(t)
	must(t, state, append([]string{"restore", file}, args...)...)
	return state
}

// diskWriter writes one new file after the other.
type diskWriter struct {
	s     *server
	disk  string
	name  string
	acked atomic.Int64 // the last one
	worst time.Duration
}

func (w *diskWriter) work(stop <-chan struct{}) {
	for n := 1; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		began := time.Now()
		w.s.ok("write_file", write(fmt.Sprintf("%s/%d", w.name, n), w.content(n)))
		w.worst = max(w.worst, time.Since(began))
		w.acked.Store(int64(n))
	}
}

func (w *diskWriter) content(n int) string {
	return fmt.Sprintf("%d of %s\n", n, w.name) + strings.Repeat("x", n*977%40_000)
}

// Eight clients write on four disks, a script runs and a request for packages is open
// while the state directory is backed up again and again. Of each backup a state is made
// elsewhere: whatever was acknowledged before is there, its disks take changes at once,
// and its log and disks agree. The original goes on, too.
func TestBackupUnderWriters(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	disks := []string{"default", "one", "two", "three"}
	for _, d := range disks {
		must(t, state, "image", "create", d)
	}
	stopDaemon(t, state)
	uuid := uuidOf(t, state, "default")
	seedQueue(t, state, func(q *queue.Queue) {
		asked(t, q, queue.Request{Workspace: uuid, Specs: []string{"leftpad"}, Client: "a test"}, queue.PendingApproval, nil)
	})
	var writers []*diskWriter
	for i := range 8 {
		w := &diskWriter{disk: disks[i%len(disks)], name: fmt.Sprint("w", i)}
		w.s = shared(t, state, "--image", w.disk)
		w.s.hello()
		writers = append(writers, w)
	}
	runner := shared(t, state)
	runner.hello()
	marker := unique()
	runner.askCall("run_script", object{"language": "bash", "args": []string{marker}, "source": "while :; do date > of-the-script; sleep 0.1; done"})
	within(t, patience, "the script runs", func() bool { return len(marked(t, marker)) > 0 })
	stop := make(chan struct{})
	var all sync.WaitGroup
	for _, w := range writers {
		all.Go(func() { w.work(stop) })
	}
	var held []int64
	type copied struct {
		file  string
		acked map[*diskWriter]int64
		facts bundle.Facts
	}
	var copies []copied
	for i := range max(rounds(40), 3) {
		c := copied{file: filepath.Join(filepath.Dir(state), fmt.Sprint("backup", i)), acked: map[*diskWriter]int64{}}
		for _, w := range writers {
			now := w.acked.Load()
			within(t, patience, "the writer goes on", func() bool { return w.acked.Load() > now })
		}
		for _, w := range writers {
			c.acked[w] = w.acked.Load()
		}
		c.facts = backedUp(t, state, c.file)
		held = append(held, c.facts.Held)
		copies = append(copies, c)
	}
	close(stop)
	all.Wait()
	var worst time.Duration
	for _, w := range writers {
		worst = max(worst, w.worst)
	}
	slices.Sort(held)
	t.Logf("%d backups: changes were held up for %d to %d µs; the slowest of %d acknowledged writes took %s", len(copies), held[0], held[len(held)-1], sum(writers), worst)
	for i, c := range copies {
		if len(c.facts.Disks) != len(disks) {
			t.Errorf("backup %d has %d disks", i, len(c.facts.Disks))
		}
		r := restored(t, c.file)
		checkRestored(t, r, disks, 1)
		if out := viaDaemon(t, r, "env", "requests"); !strings.Contains(out.stdout, "leftpad") {
			t.Errorf("the open request is not there: exit %d\n%s%s", out.code, out.stdout, out.stderr)
		}
		for w, n := range c.acked {
			got := filesOf(t, r, w.disk)
			for k := int64(1); k <= n; k++ {
				if name := fmt.Sprintf("%s/%d", w.name, k); string(got[name].data) != w.content(int(k)) {
					t.Fatalf("backup %d: %s of %s was acknowledged before, and holds %.40q", i, name, w.disk, got[name].data)
				}
			}
		}
	}
	for _, w := range writers {
		w.s.ok("write_file", write("afterwards-"+w.name, "x"))
		w.s.end()
	}
	runner.torn = true
	runner.kill()
	within(t, patience, "the script is gone", func() bool { return len(marked(t, marker)) == 0 })
	healthy(t, state, disks...)
	if n := len(logged(t, state, "ev=backup")); n != 2*len(copies) {
		t.Errorf("%d records of %d backups", n, len(copies))
	}
	if n := len(logged(t, state, "ev=lease.adopt", "ev=restore")); n != 0 {
		t.Errorf("the original has %d records of a restore", n)
	}
}

func sum(list []*diskWriter) (n int64) {
	for _, w := range list {
		n += w.acked.Load()
	}
	return n
}

// filesOf are all files of a disk that nobody has open.
func filesOf(t testing.TB, state, disk string) map[string]stored {
	t.Helper()
	stopDaemon(t, state)
	return contentsOf(t, filepath.Join(state, "images", disk+".vdisk"))
}

// checkRestored holds a state that was just restored to what one has to be: its log goes
// on with the record, in every stream, each disk takes a change at once, for which it is
// taken on without anybody being asked, and everything agrees.
func checkRestored(t testing.TB, state string, disks []string, times int) {
	t.Helper()
	for _, d := range disks {
		if out := viaDaemon(t, state, "call", "write_file", encoded(write("after-the-restore", d)), "--image", d); out.code != 0 {
			t.Errorf("write to %s: exit %d\n%s%s", d, out.code, out.stdout, out.stderr)
		}
		if out := viaDaemon(t, state, "image", "fsck", d, "--live", "--cross"); out.code != 0 {
			t.Errorf("fsck of %s: exit %d\n%s%s", d, out.code, out.stdout, out.stderr)
		}
		if n := len(logged(t, state, "--image", d, "ev=restore")); n < times {
			t.Errorf("%d restore records in the stream of %s", n, d)
		}
		if n := len(logged(t, state, "--image", d, "ev=lease.adopt")); n < times {
			t.Errorf("%d lease.adopt records in the stream of %s", n, d)
		}
	}
	healthy(t, state)
	list := logged(t, state, "ev=restore")
	if len(list) < len(disks)+1 {
		t.Fatalf("%d restore records", len(list))
	}
	for _, r := range list {
		r.byWhom(t)
		for _, fact := range []string{"backup", "taken", "install", "install_before", "manifest"} {
			if r.Args[fact] == "" || r.Args[fact] == nil {
				t.Errorf("no %s in %s", fact, r.line)
			}
		}
		if r.Args["install"] == r.Args["install_before"] {
			t.Errorf("the same install: %s", r.line)
		}
	}
}

// A file of a backup is there whole or not at all, is its owner's, and replaces another
// only when that was asked for.
func TestFileOfABackup(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	must(t, state, "call", "write_file", encoded(write("a", "secret of the disk")))
	dir := passable(t)
	file := filepath.Join(dir, "backup")
	out := command(t, state, "backup", file)
	if out.code != 0 || out.stdout != "" || !strings.Contains(out.stderr, "backed up 1 disk ") {
		t.Fatalf("exit %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for _, c := range []struct {
		name, says string
		code       int
		args       []string
	}{
		{"there already", "is there already", 4, []string{file}},
		{"a directory", "is not a regular file", 4, []string{dir, "--force"}},
		{"no folder", "there is no folder", 3, []string{filepath.Join(dir, "none", "x")}},
		{"no name", "is empty", 2, []string{""}},
		{"JSON of a stream", "no place for JSON", 2, []string{"-", "--json"}},
		{"two", "arg(s)", 2, []string{"a", "b"}},
	} {
		if out := command(t, state, append([]string{"backup"}, c.args...)...); out.code != c.code || !strings.Contains(out.stderr, c.says) {
			t.Errorf("%s: exit %d\n%s", c.name, out.code, out.stderr)
		}
	}
	none := newState(t)
	if out := command(t, none, "backup", file+".none"); out.code != 3 || !strings.Contains(out.stderr, "there is no state directory") {
		t.Errorf("no state: exit %d\n%s", out.code, out.stderr)
	}
	if _, err := os.Stat(none); err == nil {
		t.Error("a state was made to be backed up")
	}
	before, _ := os.ReadFile(file)
	must(t, state, "backup", file, "--force")
	after, err := os.ReadFile(file)
	if err != nil || string(before) == string(after) {
		t.Errorf("not replaced: %v", err)
	}
	stream := command(t, state, "backup", "-")
	if stream.code != 0 {
		t.Fatalf("to a stream: exit %d\n%s", stream.code, stream.stderr)
	}
	r := daemonState(t)
	if out := commandWith(t, r, stream.stdout, "restore", "-"); out.code != 0 {
		t.Errorf("from a stream: exit %d\n%s", out.code, out.stderr)
	}
	checkRestored(t, r, []string{"default"}, 1)
	if names := entries(t, dir); !slices.Equal(names, []string{"backup"}) {
		t.Errorf("left: %v", names)
	}
}

// A backup that is interrupted, or whose daemon is killed, leaves nothing, and is told in
// the log.
func TestInterruptOfABackup(t *testing.T) {
	t.Parallel()
	for _, daemon := range []bool{true, false} {
		state := daemonState(t)
		fillDisk(t, state, 96)
		dir := passable(t)
		mode, kill := []string{"MCP_VDISK_NO_DAEMON=1"}, func(cmd *exec.Cmd) { cmd.Process.Signal(syscall.SIGTERM) }
		if daemon {
			mode, kill = withDaemon, func(*exec.Cmd) { killDaemon(t, state) }
			s := shared(t, state)
			s.hello()
			defer s.end()
		}
		for name, end := range map[string]func(*exec.Cmd){"Control-C": func(cmd *exec.Cmd) { cmd.Process.Signal(syscall.SIGINT) }, "another end": kill} {
			cmd := exec.Command(program, "--state", state, "backup", filepath.Join(dir, "b"))
			cmd.Env = append(os.Environ(), mode...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			within(t, patience, "bytes arrive", func() bool {
				return writtenBelow(cmd.Process.Pid, dir) > 1<<20
			})
			end(cmd)
			cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 130 && !(daemon && name != "Control-C" && code == 1) {
				t.Errorf("daemon %v, %s: exit %d", daemon, name, code)
			}
			if names := entries(t, dir); len(names) != 0 {
				t.Errorf("daemon %v, %s: left %v", daemon, name, names)
			}
		}
		within(t, patience, "the log tells", func() bool {
			began, ended := 0, 0
			for _, r := range logged(t, state, "ev=backup") {
				if _, ok := r.Args["to"]; ok {
					began++
				} else {
					ended++
				}
			}
			return began == 2 && ended >= 1
		})
		healthy(t, state, "default")
	}
}

// writtenBelow is the size of the file that a process writes in a directory, which may have
// no name yet.
func writtenBelow(pid int, dir string) (size int64) {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err != nil || !strings.HasPrefix(to, dir+"/") {
			continue
		}
		if info, err := os.Stat(fd); err == nil && info.Mode().IsRegular() {
			size = max(size, info.Size())
		}
	}
	return size
}

// fillDisk puts so many MiB of noise into the disk.
func fillDisk(t testing.TB, state string, mib int) {
	t.Helper()
	file := filepath.Join(passable(t), "noise")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range mib {
		if _, err := f.Write(noise(1<<20, uint64(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	must(t, state, "image", "put", file, "/workspace/noise")
}

// While the log takes no record nothing is backed up.
func TestBackupWithoutALog(t *testing.T) {
	t.Parallel()
	state := newState(t)
	must(t, state, "image", "create")
	if err := os.WriteFile(filepath.Join(state, "config.toml"), []byte("audit.min_free = \"900TiB\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(filepath.Dir(state), "b")
	cmd := asOwner(t, state, exec.Command(program, "--state", state, "backup", "-"))
	out := outputOf(t, cmd)
	if out.code != 11 || !strings.Contains(out.stderr, "audit log unavailable") && !strings.Contains(out.stderr, "free") || out.stdout != "" {
		t.Errorf("exit %d, %d bytes\n%s", out.code, len(out.stdout), out.stderr)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a file is there")
	}
}

// Of the Python environments that lie in the state directory a backup has what cannot be
// made again.
func TestBackupOfEnvironments(t *testing.T) {
	t.Parallel()
	state := newState(t)
	must(t, state, "image", "create")
	info, err := os.Stat(state)
	if err != nil {
		t.Fatal(err)
	}
	fetched, brought := strings.Repeat("a1", 32), strings.Repeat("b2", 32)
	lock, err := os.ReadFile("../../pyenv/lock/testdata/example.json")
	if err != nil {
		t.Skipf("SKIP no example of a lock is here: %s", err)
	}
	files := map[string]string{
		"catalog.json": "{}", "extras.json": "[]", "wanted": "0123456789abcdef\n", "current": "{}", "ensure.lock": "",
		"locks/0123456789abcdef.json": string(lock), "wheelhouse/" + brought + ".whl": "brought", "layers/base-0123456789abcdef/x": "x",
		"python/x/y": "z", "wheelhouse/" + fetched + ".whl": "?", "jobs/x/y": "z", "bound/ws-x": "y",
	}
	for _, hash := range hashesIn(string(lock)) {
		files["wheelhouse/"+hash+".whl"] = "fetched"
	}
	for name, text := range files {
		path := filepath.Join(state, "envs", name)
		if err := anyway(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if isRoot() {
		err := filepath.WalkDir(filepath.Join(state, "envs"), func(path string, _ os.DirEntry, err error) error {
			return anyway(err, os.Lchown(path, ownerOf(info), ownerOf(info)))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	own := func(cmd *exec.Cmd) output {
		cmd.Env = append(os.Environ(), "MCP_VDISK_ENVS=")
		return outputOf(t, cmd)
	}
	file := filepath.Join(passable(t), "b")
	if out := own(exec.Command(program, "--state", state, "backup", file)); out.code != 0 {
		t.Fatalf("exit %d\n%s", out.code, out.stderr)
	}
	r := newState(t)
	if out := own(exec.Command(program, "--state", r, "restore", file)); out.code != 0 {
		t.Fatalf("exit %d\n%s", out.code, out.stderr)
	}
	got := map[string]bool{}
	filepath.WalkDir(filepath.Join(r, "envs"), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			name, _ := filepath.Rel(filepath.Join(r, "envs"), path)
			got[name] = true
		}
		return nil
	})
	want := []string{"catalog.json", "extras.json", "locks/0123456789abcdef.json", "wanted", "wheelhouse/" + fetched + ".whl", "wheelhouse/" + brought + ".whl"}
	if have := slices.Sorted(maps.Keys(got)); !slices.Equal(have, want) {
		t.Errorf("have %q\nwant %q", have, want)
	}
}

// hashesIn are the SHA-256 of wheels in the text of a lock.
func hashesIn(text string) (list []string) {
	for i, part := range strings.Split(text, `"sha256":`) {
		if i > 0 {
			list = append(list, strings.Split(part, `"`)[1])
		}
	}
	return list
}
