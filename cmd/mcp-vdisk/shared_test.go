package main_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// worker is a client that makes one call after the other on a disk that it shares,
// and remembers what it was told.
type worker struct {
	s     *server
	name  string
	r     *rand.Rand
	calls int
	files map[string]string // its own, as they must be
	lines []string          // what it appended to the log of all
	added int               // to the counter of all
	jobs  []string
	ids   map[string]bool // of its calls, in the log
}

func newWorker(s *server, name string, seed uint64) *worker {
	return &worker{s: s, name: name, r: rand.New(rand.NewPCG(seed, 0)), files: map[string]string{}, ids: map[string]bool{}}
}

// call counts a call; one that is refused must be so for one of these reasons.
func (w *worker) call(tool string, args object, refusals ...string) result {
	w.s.t.Helper()
	w.calls++
	r := w.s.call(tool, args)
	w.ids[fmt.Sprint(r.Facts["call"])] = true
	code, _, _ := strings.Cut(r.Text, ":")
	if r.IsError && !slices.Contains(refusals, code) {
		w.s.t.Errorf("%s: %s %.200s: %s", w.name, tool, encoded(args), r.Text)
	}
	return r
}

// work makes about n calls of every kind.
func (w *worker) work(n int) {
	for w.calls < n && !w.s.t.Failed() {
		i := w.calls
		switch k := w.r.IntN(100); {
		case k < 25:
			path, text := fmt.Sprintf("%s-%d", w.name, w.r.IntN(40)), strings.Repeat(fmt.Sprintf("%s %d\n", w.name, i), 1+w.r.IntN(200))
			if w.call("write_file", object{"path": path, "content": text}); true {
				w.files[path] = text
			}
		case k < 45:
			line := fmt.Sprintf("<%s %d>", w.name, i)
			w.call("write_file", object{"path": "log", "mode": "append", "content": line + "\n"})
			w.lines = append(w.lines, line)
		case k < 60:
			w.count()
		case k < 75:
			w.read()
		case k < 83:
			w.call("list_files", object{})
		case k < 90:
			if path := w.any(); path != "" {
				w.call("delete_file", object{"path": path})
				delete(w.files, path)
			}
		case k < 97 || len(w.jobs) == 0:
			path, text := fmt.Sprintf("%s-%d", w.name, w.r.IntN(40)), fmt.Sprintf("script %s %d\n", w.name, i)
			r := w.call("run_script", object{"language": "bash", "source": "cat > " + path, "stdin": text}, "BUSY")
			if !r.IsError {
				w.files[path] = text
				w.jobs = append(w.jobs, fmt.Sprint(r.Facts["job"]))
			}
		default:
			w.call("run_script", object{"job": w.jobs[w.r.IntN(len(w.jobs))]})
		}
	}
}

var countOf = regexp.MustCompile(`(?m)^count ([0-9]+)$`)

// count adds one to the counter of all: it reads it, and writes it if nobody else
// has since.
func (w *worker) count() {
	r := w.call("read_file", object{"path": "counter"})
	m := countOf.FindStringSubmatch(r.Text)
	if m == nil {
		w.s.t.Errorf("%s: the counter is torn: %s", w.name, r.Text)
		return
	}
	n, _ := strconv.Atoi(m[1])
	r = w.call("write_file", object{"path": "counter", "content": fmt.Sprintf("count %d\n", n+1), "if_version": r.Facts["version"]}, "VERSION_CONFLICT")
	if !r.IsError {
		w.added++
	}
}

// read reads one of its own files, which nobody else changes.
func (w *worker) read() {
	path := w.any()
	if path == "" {
		return
	}
	text, _, _ := strings.Cut(w.call("read_file", object{"path": path}).Text, "\n[lines ")
	if strings.TrimSuffix(text, "\n") != strings.TrimSuffix(w.files[path], "\n") {
		w.s.t.Errorf("%s: %s is torn: %.200q, want %.200q", w.name, path, text, w.files[path])
	}
}

func (w *worker) any() string {
	paths := slices.Sorted(maps.Keys(w.files))
	if len(paths) == 0 {
		return ""
	}
	return paths[w.r.IntN(len(paths))]
}

// check holds a disk to what the workers were told.
func check(t *testing.T, state string, workers ...*worker) {
	t.Helper()
	added := 0
	log := viaDaemon(t, state, "image", "cat", "log").stdout
	for _, w := range workers {
		added += w.added
		for path, want := range w.files {
			if got := viaDaemon(t, state, "image", "cat", path); got.code != 0 || got.stdout != want {
				t.Errorf("%s holds %.100q, want %.100q", path, got.stdout, want)
			}
		}
		for _, line := range w.lines {
			if n := strings.Count(log, line+"\n"); n != 1 {
				t.Errorf("%s is in the log %d times", line, n)
			}
		}
	}
	if got := viaDaemon(t, state, "image", "cat", "counter").stdout; got != fmt.Sprintf("count %d\n", added) {
		t.Errorf("the counter says %q, %d were added", got, added)
	}
	if out := viaDaemon(t, state, "audit", "verify", "--all"); out.code != 0 {
		t.Errorf("audit verify: exit %d\n%s", out.code, out.stdout)
	}
	recorded := map[string]int{}
	for line := range strings.Lines(viaDaemon(t, state, "audit", "query", "-o", "ndjson").stdout) {
		var r struct{ Ev, Call string }
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Ev == "call.read" || r.Ev == "call.outcome" || r.Ev == "call.refused" {
			recorded[r.Call]++
		}
	}
	for _, w := range workers {
		for id := range w.ids {
			if recorded[id] != 1 {
				t.Errorf("call %s of %s is in the log %d times", id, w.name, recorded[id])
			}
		}
	}
}

// Two clients make 500 calls each, of every kind, on one disk.
func TestTwoClientsAtWork(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	n := rounds(500)
	var workers []*worker
	for i, name := range []string{"anna", "bert"} {
		s := shared(t, state)
		s.hello()
		workers = append(workers, newWorker(s, name, uint64(i)))
	}
	workers[0].s.ok("write_file", object{"path": "counter", "content": "count 0\n"})
	begin := time.Now()
	var both sync.WaitGroup
	for _, w := range workers {
		both.Go(func() { w.work(n) })
	}
	both.Wait()
	t.Logf("%d and %d calls in %s, %d jobs, the counter at %d", workers[0].calls, workers[1].calls, time.Since(begin).Round(time.Millisecond), len(workers[0].jobs)+len(workers[1].jobs), workers[0].added+workers[1].added)
	check(t, state, workers...)
	for _, w := range workers {
		w.s.end()
	}
}

// One of two clients is killed. Its script that was not answered is gone within a
// second, what was handed over as a job goes on and is saved by the other, who
// notices nothing.
func TestOneOfTwoClientsIsKilled(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	a, b := shared(t, state), shared(t, state)
	a.hello()
	b.hello()
	b.ok("write_file", object{"path": "counter", "content": "count 0\n"})
	job := a.askCall("run_script", object{"language": "bash", "source": "echo begun; sleep 50; echo done > of-the-job; echo ended"})
	other := newWorker(b, "bert", 7)
	answered := make(chan message, 1)
	go func() {
		m, _ := a.await(patience+45*time.Second, func(m message) bool { return m.Method == "" && string(m.ID) == job })
		answered <- m
	}()
	n := rounds(500)
	var m message
	for handed := false; !handed; {
		select {
		case m = <-answered:
			handed = true
		case <-time.After(time.Second):
			other.work(min(other.calls+10, n/2))
		}
	}
	if m.Result == nil {
		t.Fatalf("the job is answered %s", m.line)
	}
	id := m.result(t).job(t)
	marker := unique()
	a.askCall("run_script", object{"language": "bash", "args": []string{marker}, "source": "bash -c 'sleep 60; :' $1 & sleep 60; wait"})
	within(t, patience, "the script runs", func() bool { return len(marked(t, marker)) >= 2 })
	tree := marked(t, marker)
	busy := make(chan bool)
	go func() {
		other.work(n)
		close(busy)
	}()
	a.torn = true
	a.kill()
	took := within(t, time.Second, "the script of the client that was killed is gone", func() bool {
		return len(alive(t, tree)) == 0 && len(marked(t, marker)) == 0
	})
	if f := daemonFactsOf(t, state); f.Scripts < 1 || len(f.Clients) != 1 {
		t.Errorf("after the kill: %+v", f)
	}
	<-busy
	t.Logf("gone after %s; the other made %d calls", took, other.calls)
	r := b.ok("run_script", object{"job": id})
	if !strings.Contains(r.Text, "begun") || !strings.Contains(r.Text, "ended") {
		t.Errorf("the job: %s", r.Text)
	}
	if got := viaDaemon(t, state, "image", "cat", "of-the-job").stdout; got != "done\n" {
		t.Errorf("the job saved %q", got)
	}
	check(t, state, other)
	b.end()
}

// The kernel kills a daemon, such as for want of memory, under eight clients with
// open calls. Each is answered, and goes on with the next daemon.
func TestADaemonIsKilledUnderManyClients(t *testing.T) {
	state := daemonState(t)
	var all []*server
	for range 8 {
		s := shared(t, state)
		s.hello()
		all = append(all, s)
	}
	for round := range rounds(50) {
		within(t, patience, "a daemon runs", func() bool { return len(daemonsOf(state)) == 1 })
		asked := map[*server][]string{}
		for i, s := range all {
			asked[s] = append(asked[s], s.askCall("write_file", object{"path": fmt.Sprintf("log%d", i), "mode": "append", "content": "x\n"}))
			if i < 3 { // which the next daemon may be the first to see, and run to its end
				asked[s] = append(asked[s], s.askCall("run_script", object{"language": "bash", "source": "sleep 3"}))
			}
			asked[s] = append(asked[s], s.ask("tools/list", nil))
		}
		<-time.After(time.Duration(round%7) * 3 * time.Millisecond)
		for _, pid := range daemonsOf(state) {
			killNow(t, pid)
		}
		for s, ids := range asked {
			for _, id := range ids {
				s.answer(id)
			}
			// A child that the daemon was about to start may hold its sockets open for
			// a moment, and take a call along.
			within(t, patience, "calls are served again", func() bool { return s.answer(s.askCall("list_files", object{})).Error == nil })
		}
		if pids := daemonsOf(state); len(pids) != 1 {
			t.Errorf("round %d: daemons %v", round, pids)
		}
	}
	for _, s := range all {
		s.end()
	}
	if out := viaDaemon(t, state, "audit", "verify", "--all"); out.code != 0 {
		t.Errorf("audit verify: exit %d\n%s", out.code, out.stdout)
	}
}

// The end of a daemon by SIGTERM is one in good order: who is connected is told,
// scripts are gone, and the log says so.
func TestADaemonIsTerminated(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	marker := unique()
	id := s.askCall("run_script", object{"language": "bash", "args": []string{marker}, "source": "sleep 60; :"})
	within(t, patience, "the script runs", func() bool { return len(marked(t, "source.sh "+marker)) > 0 })
	s.torn = true
	syscall.Kill(daemonFactsOf(t, state).PID, syscall.SIGTERM)
	select {
	case <-s.exited:
	case <-time.After(patience):
		t.Fatal("the session goes on")
	}
	if words := s.words(); !strings.Contains(words, "the daemon was stopped") {
		t.Errorf("the client is told %q", words)
	}
	if m := s.answer(id); m.Error == nil && !m.result(t).IsError {
		t.Errorf("the script's call is answered %s", m.line)
	}
	s.kill()
	within(t, patience, "nothing is left", func() bool { return len(marked(t, marker)) == 0 && len(daemonsOf(state)) == 0 })
	log := viaDaemon(t, state, "audit", "query", "--all", "-o", "ndjson").stdout
	for _, ev := range []string{"daemon.start", "call.outcome", "server.stop", "daemon.stop"} {
		if !strings.Contains(log, `"ev":"`+ev+`"`) {
			t.Errorf("%s is not in the log", ev)
		}
	}
}

// A daemon whose log file cannot be written works all the same; where it cannot be
// made the client is told why.
func TestTheLogOfADaemon(t *testing.T) {
	state := daemonState(t)
	must(t, state, "image", "create")
	if err := os.Mkdir(filepath.Join(state, "daemon.log"), 0o755); err != nil {
		t.Fatal(err)
	}
	failing(t, frontOf(state, "serve"), 11, "daemon.log: is a directory")
	if err := os.Remove(filepath.Join(state, "daemon.log")); err != nil {
		t.Fatal(err)
	}
	s := shared(t, state)
	s.hello()
	s.ok("list_files", object{})
	s.end()
}

// A disk that takes long to open holds up nobody but those who want it.
func TestASlowOpenHoldsUpNobody(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	slow := filepath.Join(passable(t), "slow.vdisk")
	must(t, state, "image", "create", "slow-one")
	if err := os.Rename(filepath.Join(state, "images", "slow-one.vdisk"), slow); err != nil {
		t.Fatal(err)
	}
	other := shared(t, state)
	other.hello()
	// Its lock is waited for, for a while.
	im, err := workspace.Open(slow, workspace.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	begin := time.Now()
	waits := make(chan output, 1)
	go func() { waits <- outputOf(t, frontOf(state, "call", "list_files", "{}", "--image", slow)) }()
	within(t, patience, "it is being opened", func() bool { return slices.Contains(daemonFactsOf(t, state).Disks, slow) })
	s := shared(t, state, "--image", "another")
	s.hello()
	s.ok("write_file", object{"path": "a", "content": "x"})
	other.ok("write_file", object{"path": "a", "content": "x"})
	quick := time.Since(begin)
	out := <-waits
	if took := time.Since(begin); out.code != 6 || took < time.Second || quick > took-300*time.Millisecond {
		t.Errorf("the slow one ended with %d after %s, the others were served after %s\n%s", out.code, took, quick, out.stderr)
	}
	im.Close()
	if out := viaDaemon(t, state, "call", "list_files", "{}", "--image", slow); out.code != 0 {
		t.Errorf("afterwards: exit %d %s", out.code, out.stderr)
	}
	s.end()
	other.end()
}

// Many who want one disk at once, which is opened, closed and opened again, all get
// it.
func TestOneDiskOpenedByMany(t *testing.T) {
	state := daemonState(t)
	keep := shared(t, state, "--image", "keep")
	keep.hello()
	for round := range rounds(100) {
		image := fmt.Sprint("disk", round/3)
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				args := encoded(object{"path": fmt.Sprintf("f%d-%d", round, i), "content": "x"})
				if out := viaDaemon(t, state, "call", "write_file", args, "--image", image); out.code != 0 {
					t.Errorf("round %d: exit %d %s", round, out.code, out.stderr)
				}
			})
		}
		all.Wait()
	}
	if disks := daemonFactsOf(t, state).Disks; len(disks) != 1 {
		t.Errorf("open in the end: %v", disks)
	}
	keep.end()
}
