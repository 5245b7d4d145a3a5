package tools

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// footprint is what scripts could leave in this process and below it.
type footprint struct{ processes, descriptors, goroutines, trees, spools int }

func (d *disk) footprint() (f footprint) {
	d.t.Helper()
	list := func(dir string) []string {
		entries, err := os.ReadDir(dir)
		if err != nil {
			d.t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, filepath.Join(dir, e.Name()))
		}
		return names
	}
	for _, fd := range list("/proc/self/fd") {
		// The log's database opens files as it grows.
		if to, err := os.Readlink(fd); err == nil && !strings.HasPrefix(to, filepath.Join(d.dir, "db")) {
			f.descriptors++
		}
	}
	for _, task := range list("/proc/self/task") {
		b, _ := os.ReadFile(filepath.Join(task, "children"))
		f.processes += len(strings.Fields(string(b)))
	}
	f.goroutines = runtime.NumGoroutine()
	f.trees, f.spools = len(list(filepath.Dir(d.newest()))), len(list(d.cfg.Scratch))
	return f
}

// newest is the directory that the next script would see.
func (d *disk) newest() string {
	d.t.Helper()
	g, err := d.cfg.Live.Pin(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	defer g.Release()
	return filepath.Dir(g.Dir())
}

// backAt waits until there is no more of anything than there was.
func (d *disk) backAt(was footprint) (now footprint) {
	d.t.Helper()
	d.until(fmt.Sprintf("everything is back at %+v", was), func() bool {
		now = d.footprint()
		return now.processes <= was.processes && now.descriptors <= was.descriptors && now.goroutines <= was.goroutines &&
			now.trees <= was.trees && now.spools <= was.spools
	})
	return now
}

// phases are what a job does when it is cancelled.
var phases = []string{jobWaits, jobStarts, jobRuns, jobLooks}

// TestCancelledAnywhere: calls and jobs that are cancelled in every phase have one
// outcome each, are saved whole or not at all, and leave nothing.
func TestCancelledAnywhere(t *testing.T) {
	d := setup{config: func(c *Config) { c.Limits.Scripts, c.Scratch = 3, t.TempDir() }}.scripted(t)
	for range 2 { // what is made once is made now
		d.bash("echo x >>x")
	}
	c := canceller{disk: d, rnd: rand.New(rand.NewPCG(6, 60)), ends: map[string]int{}, phases: map[string]int{}}
	// What is left open must not be closed by the garbage collector.
	percent := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	was := d.footprint()
	rounds := 40
	if soak() {
		rounds = 200
	}
	began := time.Now()
	work := make(chan int)
	var ended sync.WaitGroup
	for range 5 { // two of them wait for their turn
		ended.Go(func() {
			for i := range work {
				c.cancel(i)
			}
		})
	}
	for i := range rounds {
		work <- i
	}
	close(work)
	ended.Wait()
	now := d.backAt(was)
	t.Logf("%d cancels in %s, by phase %v, ends %v; %+v before, %+v after", rounds, time.Since(began).Round(time.Millisecond), c.phases, c.ends, was, now)
	for _, phase := range phases {
		if c.phases[phase] == 0 && phase != jobStarts { // which may be too short to be seen
			t.Errorf("no cancel reached a script of which is told %q", phase)
		}
	}
	if c.ends["call CANCELLED"] == 0 || c.ends["job CANCELLED"] == 0 || c.ends["call saved"]+c.ends["job saved"] == 0 {
		t.Errorf("the scripts ended all alike: %v", c.ends)
	}
	for i := range rounds {
		made := 0
		for _, name := range []string{"a", "b", "c"} {
			if _, err := d.im.Lstat(at(fmt.Sprintf("%d/%s", i, name))); err == nil {
				made++
			}
		}
		if made != 0 && made != 3 {
			t.Errorf("%d of 3 files of script %d are saved", made, i)
		}
	}
	outcomes := map[string]int{}
	for _, rec := range d.records(audit.Query{Match: map[string][]string{"ev": {"call.outcome"}}}) {
		if outcomes[rec.Call]++; outcomes[rec.Call] > 1 {
			t.Errorf("a second outcome: %+v", rec)
		}
	}
	d.verify() // and none is without
	r := d.ask(args{"language": "bash", "source": "echo next"})
	wantText(t, r.String(), "stdout:\nnext")
	// Opening the disk again would sweep what was staged and not committed.
	d.close()
	rep, err := workspace.Check(t.Context(), d.path, workspace.CheckOptions{})
	if err != nil || rep.Pending != 0 || len(rep.Findings) > 0 {
		t.Errorf("the disk: %+v, %v", rep, err)
	}
}

// canceller calls for scripts and cancels them.
type canceller struct {
	*disk
	starting sync.Mutex // held until the job of a call is known

	mu           sync.Mutex
	rnd          *rand.Rand
	ends, phases map[string]int
}

const cancelled = "mkdir %[1]d; for f in a b c; do echo %[1]d >%[1]d/$f; done; setsid -f sleep 300 >/dev/null 2>&1; sleep 0.02; for f in {1..20}; do echo $f >>%[1]d/a; done"

// staged is so much that it is on the disk before the commit.
const staged = "; head -c 9M /dev/urandom >%d/b"

// cancel calls for a script and cancels it a moment after it has come to a phase:
// its call, or every second time its job.
func (c *canceller) cancel(i int) {
	phase := phases[i%len(phases)]
	c.mu.Lock()
	after := time.Duration(c.rnd.Int64N(int64(3 * time.Millisecond)))
	c.mu.Unlock()
	last := phase == phases[len(phases)-1] // which is short
	if i%3 == 0 || last {
		after = 0
	}
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	source := fmt.Sprintf(cancelled, i)
	if last {
		source += fmt.Sprintf(staged, i)
	}
	answered := make(chan Result, 1)
	j := c.begun(func() {
		answered <- c.Call(ctx, "run_script", rawJSON(c.t, args{"language": "bash", "source": source}))
	})
	tick := time.NewTicker(100 * time.Microsecond)
	defer tick.Stop()
	for now, over := j.state(); now != phase && !over; now, over = j.state() {
		<-tick.C
	}
	<-time.After(after)
	now, over := j.state()
	way := "call"
	if i%8 < 4 || last {
		stop(errCancelled)
	} else {
		way = "job"
		c.Call(context.Background(), "run_script", rawJSON(c.t, args{"job": j.id, "cancel": true}))
	}
	end := "saved"
	if r := <-answered; !r.OK() {
		end = string(r.Err.Code)
	} else if r.Facts["saved"] != true {
		c.t.Errorf("script %d: %s", i, r)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends[way+" "+end]++
	if !over {
		c.phases[now]++
	}
	if end != "saved" && end != string(Cancelled) {
		c.t.Errorf("script %d ended with %s", i, end)
	}
}

// begun starts a call of run_script and returns its job.
func (c *canceller) begun(call func()) *job {
	c.starting.Lock()
	defer c.starting.Unlock()
	known := c.jobsNow()
	go call()
	var found *job
	c.until("the call is a job", func() bool {
		for id, j := range c.jobsNow() {
			if known[id] == nil {
				found = j
			}
		}
		return found != nil
	})
	return found
}

func (c *canceller) jobsNow() map[string]*job {
	c.jobs.mu.Lock()
	defer c.jobs.mu.Unlock()
	return maps.Clone(c.jobs.all)
}

// state is what a job does, and whether it has ended.
func (j *job) state() (phase string, over bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.info.State, j.info.State == jobEnded
}
