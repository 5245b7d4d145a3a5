package main_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// gcOf is what `image gc --json` and `image show --json` tell of sizes.
type gcOf struct {
	Commits int64 `json:"commits"`
	Sizes   struct {
		Head, History, Held, Commits, Unused, Free int64
		Budget                                     int64 `json:"history_budget"`
		Oldest                                     string
	} `json:"sizes"`
	FileBytes int64 `json:"file_bytes"`
}

func gcFacts(t testing.TB, state string, args ...string) (g gcOf) {
	t.Helper()
	out := viaDaemon(t, state, append([]string{"image"}, append(args, "--json")...)...)
	if out.code != 0 {
		t.Fatalf("image %s: exit %d %s", args, out.code, out.stderr)
	}
	if err := json.Unmarshal([]byte(out.stdout), &g); err != nil {
		t.Fatal(err)
	}
	return g
}

// soundDisk holds a state to an intact log, and the disk to it and to its live view.
func soundDisk(t testing.TB, state string) {
	t.Helper()
	healthy(t, state, "default")
	if out := viaDaemon(t, state, "image", "fsck", "--live", "--cross"); out.code != 0 {
		t.Errorf("fsck: exit %d\n%s%s", out.code, out.stdout, out.stderr)
	}
}

// A disk is collected while a session writes to it and a script runs, which saves what
// it did on the version that it began with.
func TestImageGCBesideASession(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	for i := range 20 {
		s.ok("write_file", write("a", strings.Repeat(fmt.Sprint("version ", i, "\n"), 2000)))
	}
	if r := s.bash("cat a > copied"); r.IsError {
		t.Fatal(r.Text)
	}
	if g := gcFacts(t, state, "gc", "--keep", "5", "--dry-run"); g.Commits != 17 || g.Sizes.Oldest != "v18" {
		t.Errorf("%+v", g)
	}
	script := s.askCall("run_script", object{"language": "bash", "source": "echo begun > begun; for i in $(seq 40); do sleep 0.05; done; echo ended > ended"})
	within(t, patience, "the script runs", func() bool {
		out := viaDaemon(t, state, "jobs", "list", "--json")
		return strings.Contains(out.stdout, `"running"`)
	})
	s.ok("write_file", write("beside", "1"))
	s.ok("write_file", write("beside", "2"))
	g := gcFacts(t, state, "gc", "--keep", "1")
	if g.Sizes.Oldest != "v23" { // the commits behind the script's base stay
		t.Errorf("%+v", g)
	}
	if r := s.answer(script).result(t); r.IsError {
		t.Errorf("the script: %s", r.Text)
	}
	s.ok("write_file", write("beside", "3"))
	if g := gcFacts(t, state, "gc", "--keep", "1w"); g.Commits != 0 {
		t.Errorf("%+v", g)
	}
	if g := gcFacts(t, state, "gc", "--keep", "1"); g.Sizes.Commits != 1 || g.Sizes.Unused != 0 {
		t.Errorf("%+v", g)
	}
	if g := gcFacts(t, state, "show"); g.Sizes.Commits != 1 || g.Sizes.Head == 0 || g.FileBytes == 0 {
		t.Errorf("%+v", g)
	}
	s.ok("write_file", write("beside", "4"))
	if out := viaDaemon(t, state, "image", "gc", "--compact"); out.code != 6 || !strings.Contains(out.stderr, "in use") {
		t.Errorf("exit %d %s", out.code, out.stderr)
	}
	s.end()
	soundDisk(t, state)
	stopDaemon(t, state)
	s = shared(t, state)
	s.hello()
	s.ok("write_file", write("beside", "5"))
	if r := s.bash("cat begun ended beside; wc -l < copied"); r.IsError || !strings.Contains(r.Text, "begun") || !strings.Contains(r.Text, "ended") {
		t.Errorf("%s", r.Text)
	}
	s.end()
	soundDisk(t, state)
	runs := logged(t, state, "ev=image.gc")
	if len(runs) != 8 {
		t.Errorf("the log has %d records of it: %v", len(runs), runs)
	}
}

// The file of a disk becomes as small as it can be, and stays whose it is.
func TestImageGCCompact(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	for i := range 10 {
		s.ok("write_file", write("a", lettersOf(uint64(i), 800_000)))
	}
	s.ok("write_file", write("a", "small"))
	s.ok("write_file", write("b", "small"))
	s.end()
	file := filepath.Join(state, "images", "default.vdisk")
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	g := gcFacts(t, state, "gc", "--keep", "1", "--compact")
	after, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if after.Size() != g.FileBytes || after.Size() > before.Size()/5 || after.Mode() != before.Mode() || ownerOf(after) != ownerOf(before) {
		t.Errorf("%v became %v; %+v", before, after, g)
	}
	if left, _ := filepath.Glob(filepath.Join(state, "images", ".*")); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
	s = shared(t, state)
	s.hello()
	s.ok("write_file", write("c", "after"))
	s.end()
	soundDisk(t, state)
}

func lettersOf(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('!' + r.IntN(90))
	}
	return string(b)
}

// An older copy is found out after the history was cut, whether it is from before that
// or from after.
func TestAnOlderDiskAfterGC(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]bool{"copied before": false, "copied after": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := daemonState(t)
			disk, old := filepath.Join(state, "images", "default.vdisk"), filepath.Join(filepath.Dir(state), "old.vdisk")
			put := func(text string) output {
				return viaDaemon(t, state, "call", "write_file", fmt.Sprintf(`{"path":"a","content":%q}`, text))
			}
			for i := range 5 {
				if out := put(fmt.Sprint("early", i)); out.code != 0 {
					t.Fatal(out.stdout)
				}
			}
			if !cut {
				copyTree(t, disk, old)
			}
			gcFacts(t, state, "gc", "--keep", "1")
			if cut {
				copyTree(t, disk, old)
			}
			stopDaemon(t, state)
			if out := put("late"); out.code != 0 { // it knows the disk that it collected
				t.Fatal(out.stdout)
			}
			newer := disk + ".newer"
			if err := os.Rename(disk, newer); err != nil {
				t.Fatal(err)
			}
			copyTree(t, old, disk)
			if out := put("x"); out.code != 5 || !strings.Contains(out.stdout, "an older copy of the disk was put in its place") {
				t.Errorf("exit %d %s", out.code, out.stdout)
			}
			if out := viaDaemon(t, state, "image", "gc", "--keep", "1"); out.code == 0 {
				t.Error("the older one was collected")
			}
			if out := viaDaemon(t, state, "image", "fsck", "--cross"); out.code != 10 {
				t.Errorf("fsck --cross: exit %d %s", out.code, out.stdout)
			}
			if err := os.Rename(newer, disk); err != nil {
				t.Fatal(err)
			}
			if out := put("later"); out.code != 0 {
				t.Error(out.stdout)
			}
			soundDisk(t, state)
		})
	}
}

// The daemon is killed while a disk is collected and used: the log and the disk agree,
// and the next one goes on.
func TestAKilledGC(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	for round := range rounds(20) {
		s := shared(t, state)
		s.hello()
		s.torn = true
		for i := range 30 {
			s.ok("write_file", write(fmt.Sprint("f", i%3), strings.Repeat(fmt.Sprint("round ", round, " ", i, "\n"), 3000)))
		}
		ended := make(chan output)
		go func() { ended <- viaDaemon(t, state, "image", "gc", "--keep", "3") }()
		id := s.askCall("run_script", object{"language": "bash", "source": "echo x > x"})
		began := time.Now()
		wait := time.Duration(rand.IntN(40)) * time.Millisecond
		within(t, patience, "a moment has passed", func() bool { return time.Since(began) >= wait })
		killDaemon(t, state)
		<-ended
		s.answer(id)
		s.ok("write_file", write("after", fmt.Sprint(round)))
		s.end()
		soundDisk(t, state)
		if t.Failed() {
			return
		}
	}
	gcFacts(t, state, "gc", "--keep", "1")
	soundDisk(t, state)
}

// The history stays within its budget by itself, and the log tells what went. What
// checkpoints hold stays, and keeps new contents out.
func TestHistoryBudget(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	if out := viaDaemon(t, state, "image", "create", "default", "--quota", "2MiB"); out.code != 0 {
		t.Fatal(out.stderr)
	}
	s := shared(t, state)
	s.hello()
	for i := range 30 {
		s.ok("write_file", write("a", lettersOf(uint64(i), 400_000)))
	}
	within(t, patience, "the history is within its budget", func() bool {
		g := gcFacts(t, state, "show")
		return g.Sizes.Budget == 2<<20 && g.Sizes.History <= 2<<20 && g.Sizes.Commits > 1
	})
	system := func() (n int) {
		for _, r := range logged(t, state, "ev=image.gc") {
			if strings.Contains(r.line, `"act":"system"`) {
				n++
			}
		}
		return n
	}
	if system() == 0 {
		t.Error("the log does not tell of it")
	}
	if out := viaDaemon(t, state, "image", "checkpoint", "held"); out.code != 0 {
		t.Fatal(out.stderr)
	}
	var refused result
	for i := 0; i < 40 && !refused.IsError; i++ {
		refused = s.call("write_file", write("a", lettersOf(uint64(100+i), 400_000)))
		within(t, patience, "it was looked at", func() bool {
			g := gcFacts(t, state, "show")
			return g.Sizes.History <= 2<<20+500_000 || refused.IsError || g.Sizes.Held > 2<<20
		})
	}
	refused.refusedAs(t, "QUOTA_EXCEEDED", "checkpoints hold", "dropping a checkpoint")
	s.ok("make_directory", object{"path": "d"})
	if out := viaDaemon(t, state, "image", "checkpoint", "another"); out.code == 0 || !strings.Contains(out.stderr, "2097152") {
		t.Errorf("exit %d %s", out.code, out.stderr)
	}
	if out := viaDaemon(t, state, "image", "checkpoint", "held", "--drop"); out.code != 0 {
		t.Fatal(out.stderr)
	}
	s.ok("write_file", write("a", lettersOf(7, 400_000)))
	within(t, patience, "the history is within its budget", func() bool { return gcFacts(t, state, "show").Sizes.History <= 2<<20 })
	s.end()
	soundDisk(t, state)
}

func TestImageGCArguments(t *testing.T) {
	t.Parallel()
	state := newState(t)
	must(t, state, "image", "create", "default")
	for _, keep := range []string{"", "0", "-1", "30", "d", "0d", "-3d", "1.5d", "30m", "99999999999d", "18446744073709551616", "2x", "1h30m", "8w", "\xff", "30 d", "106751w"} {
		out := command(t, state, "image", "gc", "--keep", keep, "--dry-run")
		want := 2
		switch keep {
		case "30", "30m", "1h30m", "8w":
			want = 0
		}
		if out.code != want {
			t.Errorf("--keep %q: exit %d %s", keep, out.code, out.stderr)
		}
	}
	if out := command(t, state, "image", "gc", "--dry-run", "--compact"); out.code != 2 {
		t.Errorf("exit %d %s", out.code, out.stderr)
	}
	if out := command(t, state, "image", "gc", "absent"); out.code != 3 {
		t.Errorf("exit %d %s", out.code, out.stderr)
	}
	// A disk that is named by its path.
	file := filepath.Join(passable(t), "own.vdisk")
	os.Chmod(filepath.Dir(file), 0o777)
	must(t, state, "image", "create", file)
	for _, text := range []string{"1", "2"} {
		must(t, state, "call", "--image", file, "write_file", fmt.Sprintf(`{"path":"a","content":%q}`, text))
	}
	args := []string{"image", "gc", file, "--keep", "1", "--compact"}
	if isRoot() { // the file is root's, and whoever works on it is not
		if out := command(t, state, args...); out.code != 4 || !strings.Contains(out.stderr, "cannot be replaced") {
			t.Errorf("exit %d %s", out.code, out.stderr)
		}
		args = args[:5]
	}
	if out := must(t, state, args...); !strings.Contains(out, "dropped 2 versions") {
		t.Error(out)
	}
	if out := must(t, state, "image", "cat", "--image", file, "a"); out != "2" {
		t.Errorf("%q", out)
	}
	must(t, state, "image", "fsck", file, "--cross")
}
