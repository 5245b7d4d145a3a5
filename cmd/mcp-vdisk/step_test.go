package main_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The server is killed right at a step instead of at a random moment: the
// program is built once more, with failpoints (workspace/hostos/failpoint_on.go).

// The steps that a server comes to under load, from its opening of the disk to
// its end. Those of making a disk, and of removing a live view, are left to the
// packages that have them.
var loadSteps = []string{
	"tools.intent", "tools.committed", "tools.outcome",
	"commit.begin", "commit.fence", "commit.preconditions", "commit.later", "commit.apply", "commit.effects", "commit.base",
	"commit.quota", "commit.admit", "commit.settled", "commit.recorded", "commit.durable", "update.filled", "update.durable",
	"stage.flush", "stage.marked", "stage.flushed", "discard.begin", "discard.end",
	"open.sweep", "open.swept", "sweep.batch",
	"live.made", "live.moving", "live.linked", "live.opened", "live.written", "live.renamed", "live.removed", "live.done", "live.clean",
	"live.disowned",
}

// builtWithFailpoints returns the program with failpoints. Where the Go tool or
// its caches are out of reach it comes built, or the test is skipped.
func builtWithFailpoints(t *testing.T) string {
	t.Helper()
	if bin := os.Getenv("MCP_VDISK_TEST_FAILPOINT_BIN"); bin != "" {
		return bin
	}
	if _, err := exec.LookPath("go"); err != nil || os.Getenv("MCP_VDISK_TEST_BIN") != "" {
		t.Skip("MCP_VDISK_TEST_FAILPOINT_BIN names no program built with -tags failpoint, and none can be built here")
	}
	bin := filepath.Join(passable(t), "mcp-vdisk")
	build := exec.Command("go", "build", "-buildvcs=false", "-tags", "failpoint", "-o", bin, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return bin
}

// serveDying starts the program with failpoints. Root's back would not get the
// variable, so the program is that user from the start.
func (k *killer) serveDying(program, variable string) *server {
	k.t.Helper()
	cmd := exec.Command(program, "serve", "--state", k.state)
	cmd.Env = append(os.Environ(), variable)
	s := serveCommand(k.t, asOwner(k.t, k.state, cmd))
	s.torn = true
	go s.read()
	return s
}

// leavePending leaves chunks that no commit uses, for the next opening to sweep.
func (k *killer) leavePending() {
	s := serve(k.t, k.state)
	s.hello()
	if r := s.bash("head -c 9500000 /dev/urandom > pending; exit 1"); !strings.HasPrefix(r.Text, "NOT SAVED (exit 1") {
		k.t.Fatal(r.Text)
	}
	s.torn = true
	s.kill()
}

// stepsReached runs a server under load to its end and returns how often it came
// to each step.
func (k *killer) stepsReached(program string) map[string]int {
	log := filepath.Join(passable(k.t), "log")
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		k.t.Fatal(err)
	}
	if err := os.Chmod(log, 0o666); err != nil {
		k.t.Fatal(err)
	}
	k.leavePending()
	k.load(k.serveDying(program, "MCP_VDISK_FAILPOINT_LOG="+log), loadTime, true)
	data, err := os.ReadFile(log)
	if err != nil {
		k.t.Fatal(err)
	}
	counts := map[string]int{}
	for name := range strings.Lines(string(data)) {
		counts[strings.TrimSpace(name)]++
	}
	return counts
}

// loadTime is how long a server is worked to come to a step, and is enough for
// several turns of every client.
const loadTime = 6 * time.Second

// What a kill at a step leaves is no worse than what one at random does.
func TestKillAtEveryStep(t *testing.T) {
	t.Parallel()
	program := builtWithFailpoints(t)
	k := newKiller(t)
	k.big = true
	must(t, k.state, "image", "create")
	counts := k.stepsReached(program)
	if got, want := slices.Sorted(maps.Keys(counts)), slices.Sorted(slices.Values(loadSteps)); !slices.Equal(got, want) {
		t.Errorf("the server comes to\n%q, the table has\n%q", got, want)
	}
	k.check()
	begin, kills, missed := time.Now(), 0, 0
	for _, spec := range someSteps(counts) {
		if strings.HasPrefix(spec, "open.") || strings.HasPrefix(spec, "sweep.") {
			k.leavePending()
		}
		s := k.serveDying(program, "MCP_VDISK_FAILPOINT="+spec)
		k.load(s, loadTime, true)
		switch killed := s.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL; {
		case killed:
			kills++
		case strings.HasSuffix(spec, ":1"):
			t.Errorf("%s: it was not killed", spec)
		default:
			missed++
		}
		k.check()
		if t.Failed() {
			t.Fatalf("after %s", spec)
		}
	}
	t.Logf("%d kills at steps in %s, %d steps that were not come to so often; %d receipts and %d files of acknowledged calls found",
		kills, time.Since(begin).Round(time.Second), missed, len(k.receipts), len(k.acked)+len(k.created))
}

// someSteps is when to kill, as name:n. In a soak that is every step, the first
// time, the second, and one of the later times; else those of the tools and some
// others, which are not the same in each run.
func someSteps(counts map[string]int) []string {
	var first, later []string
	for _, name := range loadSteps {
		first = append(first, name+":1")
		for _, n := range []int{2, 2 + rand.IntN(max(counts[name]/2, 1))} {
			if n <= counts[name] {
				later = append(later, name+":"+fmt.Sprint(n))
			}
		}
	}
	slices.Sort(later)
	later = slices.Compact(later)
	if n := rounds(60); os.Getenv("MCP_VDISK_SOAK") != "1" {
		others := append(first[3:], later...)
		rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
		return append(first[:3:3], others[:max(n-3, 0)]...)
	}
	return append(first, later...)
}

// A command of a person that is killed is settled by the next opening, as a call of
// an agent is: the log says whether it was done, and agrees with the disk.
func TestKillOfACommand(t *testing.T) {
	t.Parallel()
	program := builtWithFailpoints(t)
	state := newState(t)
	for i := range 3 {
		must(t, state, "call", "write_file", encoded(object{"path": fmt.Sprint("f", i), "content": fmt.Sprint(i)}))
	}
	host := filepath.Join(passable(t), "put")
	if err := os.WriteFile(host, []byte("put\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	done := 0
	for step, committed := range map[string]bool{"commit.begin": false, "commit.durable": true} {
		for _, args := range [][]string{{"put", host, "/workspace/" + step}, {"rm", "/workspace/f1"}, {"restore", "v3"}, {"undo", "v2"}} {
			if !committed && args[0] != "put" {
				continue
			}
			must(t, state, "call", "write_file", encoded(object{"path": "f1", "content": step + args[0]}))
			before := look(t, state)
			cmd := exec.Command(program, append([]string{"--state", state, "image"}, args...)...)
			cmd.Env = append(os.Environ(), "MCP_VDISK_FAILPOINT="+step)
			if out := outputOf(t, asOwner(t, state, cmd)); out.code != -1 {
				t.Fatalf("%s of %v: it was not killed: %+v", step, args, out)
			}
			for _, args := range [][]string{{"audit", "verify"}, {"image", "fsck", "--cross"}} {
				if out := command(t, state, args...); out.code != 0 {
					t.Errorf("%s: %v: exit %d\n%s%s", step, args, out.code, out.stdout, out.stderr)
				}
			}
			if n := len(look(t, state).commits) - len(before.commits); n == 1 != committed || n > 1 {
				t.Errorf("%s of %v: %d commits", step, args, n)
			}
			reason := map[bool]string{true: "committed", false: "aborted"}[committed]
			if done++; strings.Count(must(t, state, "audit", "query", "ev=recover", "reason="+reason, "-o", "ndjson"), "\n") == 0 {
				t.Errorf("%s of %v: no record that it was %s", step, args, reason)
			}
		}
	}
	if n := strings.Count(must(t, state, "audit", "query", "ev=recover", "-o", "ndjson"), "\n"); n != done {
		t.Errorf("%d commands were killed, %d records settle them", done, n)
	}
	t.Logf("%d commands killed", done)
}
