package main_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What many scripts leave that are cancelled, wait or are turned away: nothing.
// None of these tests runs in parallel: they count.

// cancels is how many calls are cancelled.
func cancels() int {
	switch {
	case os.Getenv("MCP_VDISK_SOAK") == "1":
		return 200
	case quick():
		return 20
	}
	return 40
}

// work is a script that takes some tens of milliseconds: to start, to run, for its
// changes to be looked at, and for them to be saved. Its files have names of its own.
const work = `for i in {1..8}; do echo $i >$1.$i; done; setsid -f sleep 300 >/dev/null 2>&1; : >$1.started; mapfile -n 1 <$1.8; echo done >$1.done`

const workEntries = 10 // files of a script

// TestCancelsLeaveNothing: calls that are cancelled at random moments, up to four at
// a time, by the client, by its end, or by the end of the server.
func TestCancelsLeaveNothing(t *testing.T) {
	state := counted(t, "")
	c := canceller{rnd: rand.New(rand.NewPCG(200, 60)), named: map[string]bool{}}
	s := serveOwned(t, state)
	warm(s)
	c.measure(s)
	was := levelOf(t, s, state)
	threads, resident := sizeOf(s.cmd.Process.Pid)
	t.Logf("moments up to %s; before: %+v, %d threads, %d kB", c.window.Round(time.Millisecond), was, threads, resident)
	began := time.Now()
	ended := cancels() / 10
	n := cancels() - ended
	half := [2]int{}
	for len(c.ids) < n {
		if half[0] == 0 && len(c.ids) >= n/2 {
			half[0], half[1] = sizeOf(s.cmd.Process.Pid)
		}
		c.some(s, min(1+c.rnd.IntN(4), n-len(c.ids)))
	}
	now := backAt(t, s, state, was)
	threads, resident = sizeOf(s.cmd.Process.Pid)
	t.Logf("after %d cancels in %s: %+v, %d threads, %d kB (half way %d threads, %d kB)", n, time.Since(began).Round(time.Millisecond), now, threads, resident, half[0], half[1])
	if threads > half[0]+4 || resident > half[1]+(24<<10) {
		t.Error("threads or memory grow with the calls")
	}
	if r := s.bash("echo next"); r.IsError || !strings.Contains(r.Text, "next") {
		t.Errorf("the next script: %s", r.Text)
	}
	sameGoroutines(t, s)

	began = time.Now()
	for i := range ended {
		c.byEnd(t, state, []string{"SIGTERM", "nobody reads"}[i%2])
	}
	t.Logf("%d servers ended with a script under way, %s", ended, time.Since(began).Round(time.Millisecond))
	checkEnds(t, state, c.named)
}

// canceller asks for scripts and cancels them.
type canceller struct {
	rnd    *rand.Rand
	window time.Duration // in which the moments lie
	named  map[string]bool
	ids    []string
}

func (c *canceller) moment() time.Duration { return time.Duration(c.rnd.Int64N(int64(c.window))) }

// ask asks for a script with a new name.
func (c *canceller) ask(s *server) (id string) {
	name := fmt.Sprint("call", len(c.named))
	c.named[name] = true
	return s.askCall("run_script", object{"language": "bash", "source": work, "args": []string{name}})
}

// measure makes the window somewhat longer than three scripts take together, so
// that every step of a script is hit, on a slow machine too.
func (c *canceller) measure(s *server) {
	s.t.Helper()
	began := time.Now()
	ids := []string{c.ask(s), c.ask(s), c.ask(s)}
	c.named = map[string]bool{} // they are not cancelled
	for _, id := range ids {
		if r := s.answer(id).result(s.t); !strings.HasPrefix(r.Text, "SAVED") {
			s.t.Fatal(r.Text)
		}
	}
	c.window = max(60*time.Millisecond, time.Since(began)*5/4)
}

// some asks for a few scripts and cancels each at a moment of its own.
func (c *canceller) some(s *server, n int) {
	type cancel struct {
		id string
		at time.Duration
	}
	var list []cancel
	for range n {
		list = append(list, cancel{c.ask(s), c.moment()})
		c.ids = append(c.ids, list[len(list)-1].id)
	}
	slices.SortFunc(list, func(a, b cancel) int { return int(a.at - b.at) })
	began := time.Now()
	for _, l := range list {
		<-time.After(l.at - time.Since(began))
		s.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + l.id + `}}`)
	}
}

// byEnd ends a server, or its client, while a script is somewhere between its start
// and its commit.
func (c *canceller) byEnd(t *testing.T, state, how string) {
	s := serveOwned(t, state)
	s.torn = how == "nobody reads"
	c.ask(s)
	after := c.moment()
	<-time.After(after)
	tree := below(t, s.cmd.Process.Pid)
	if how == "SIGTERM" {
		s.cmd.Process.Signal(syscall.SIGTERM)
	} else {
		s.out.Close()
		s.ask("ping", nil) // its answer shows that nobody listens
	}
	s.wait(patience)
	if left := alive(t, tree); len(left) > 0 {
		t.Errorf("%s after %s: left behind: %v", how, after, left)
	}
	if left := append(entries(t, state+"/scratch"), runGroups(t, state)...); len(left) > 0 {
		t.Errorf("%s after %s: left in scratch and in the control groups: %v", how, after, left)
	}
}

// warm makes what is made once: threads, and the directory that scripts see.
func warm(s *server) {
	s.t.Helper()
	var ids []string
	for i := range 8 {
		ids = append(ids, s.askCall("run_script", object{"language": "bash", "source": fmt.Sprintf("echo %d > warm%d", i, i)}))
	}
	for _, id := range ids {
		if r := s.answer(id).result(s.t); r.IsError {
			s.t.Fatal(r.Text)
		}
	}
}

// sameGoroutines ends a server that is idle and holds it to have no more goroutines
// than one that has done little.
func sameGoroutines(t *testing.T, s *server) {
	t.Helper()
	other := serveOwned(t, counted(t, ""))
	warm(other)
	want, got := other.goroutines(), s.goroutines()
	t.Logf("goroutines: %d, and %d of a server that has done little", len(got), len(want))
	// One or two may be on their way from one call to the next.
	if len(want) == 0 || len(got) > len(want)+2 {
		t.Errorf("goroutines are left:\n%s\nand of the other server:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// checkEnds holds the log and the disk to tell the same of every script: each has an
// outcome, and all or nothing of it is saved.
func checkEnds(t *testing.T, state string, named map[string]bool) {
	t.Helper()
	must(t, state, "audit", "verify")
	must(t, state, "image", "fsck", "--live", "--cross")
	calls := map[string]string{} // intents of scripts without an outcome yet
	ends := map[string]int{}
	for line := range strings.Lines(must(t, state, "audit", "query", "tool=run_script", "-o", "ndjson")) {
		var rec struct {
			Ev, Call, Err, Ha string
			Out               struct{ Outcome string }
		}
		if err := json.Unmarshal([]byte(line), &rec); err != nil {
			t.Fatal(err)
		}
		switch rec.Ev {
		case "call.intent":
			calls[rec.Call] = line
		case "call.outcome":
			if _, ok := calls[rec.Call]; !ok {
				t.Errorf("an outcome of no intent, or the second one: %s", line)
			}
			delete(calls, rec.Call)
			end := rec.Out.Outcome + " " + rec.Err
			if rec.Ha != "" {
				end += "saved"
			}
			ends[end]++
		}
	}
	for _, line := range calls {
		t.Errorf("no outcome: %s", line)
	}
	saved := 0
	files := map[string]int{}
	for _, e := range look(t, state).entries {
		name, _, _ := strings.Cut(strings.TrimPrefix(strings.Fields(e)[0], "/workspace/"), ".")
		files[name]++
	}
	for name := range named {
		switch files[name] {
		case 0:
		case workEntries:
			saved++
		default:
			t.Errorf("%d of %d entries of %s are saved", files[name], workEntries, name)
		}
	}
	t.Logf("%d scripts, %d saved; outcomes in the log: %v", len(named), saved, ends)
	if saved == 0 || saved == len(named) {
		t.Errorf("%d of %d scripts were saved: the moments of their cancels are all alike", saved, len(named))
	}
}

// TestManyScriptsAtOnce: 64 calls at the same time. All get their turn where the
// queue is long enough, and where it is not those that wait too long are told so
// in time; afterwards the server is what it was.
func TestManyScriptsAtOnce(t *testing.T) {
	const n = 64
	for _, c := range []struct {
		name, config, source string
		served               int           // how many are run
		wait                 time.Duration // for a turn
	}{
		{"a turn for all", "script.queue = \"30s\"\n", `echo $1 >n$1; setsid -f sleep 300 >/dev/null 2>&1; echo it ran`, n, 0},
		{"a turn for four", "script.queue = \"500ms\"\nscript.memory_percent = 90\n", `echo $1 >n$1; sleep 1.5; echo it ran`, 4, 500 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			state := counted(t, c.config)
			s := serveOwned(t, state, "GOGC=off") // nothing that is left open is closed by the collector
			warm(s)
			was := levelOf(t, s, state)
			began := time.Now()
			var ids []string
			for i := range n {
				ids = append(ids, s.askCall("run_script", object{"language": "bash", "source": c.source, "args": []string{fmt.Sprint(i)}}))
			}
			served, busy := 0, 0
			var last time.Duration
			for _, id := range ids {
				m := s.answer(id)
				took := m.at.Sub(began)
				last = max(last, took)
				switch r := m.result(t); {
				case !r.IsError && strings.HasPrefix(r.Text, "SAVED") && strings.Contains(r.Text, "it ran"):
					served++
				case strings.HasPrefix(r.Text, "BUSY: ") && c.wait > 0:
					busy++
					if took < c.wait || took > c.wait+5*time.Second {
						t.Errorf("BUSY after %s, a turn is waited for for %s", took, c.wait)
					}
				default:
					t.Errorf("%.300s", r.Text)
				}
			}
			if served != c.served || busy != n-c.served {
				t.Errorf("%d were run and %d turned away, want %d and %d", served, busy, c.served, n-c.served)
			}
			now := backAt(t, s, state, was)
			t.Logf("%d run, %d turned away, the last answer after %s; %+v before, %+v after", served, busy, last.Round(time.Millisecond), was, now)
			if r := s.bash("ls n* | wc -l"); !strings.Contains(r.Text, fmt.Sprintf("stdout:\n%d", c.served)) {
				t.Errorf("the files of %d scripts: %s", c.served, r.Text)
			}
			if c.wait == 0 {
				sameGoroutines(t, s)
			}
			s.stop()
			must(t, state, "audit", "verify")
			must(t, state, "image", "fsck", "--live", "--cross")
		})
	}
}
