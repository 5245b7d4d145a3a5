package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// sharing is a disk whose jobs are not those of the one session; calls are
// answered soon.
func sharing(t testing.TB, change func(*Config)) *disk {
	return handing(t, func(c *Config) {
		if change != nil {
			change(c)
		}
		c.Jobs = NewJobs(JobsConfig{Limits: c.Limits})
	})
}

// session is another session of the disk.
func (d *disk) session(change func(*Config)) *disk {
	d.t.Helper()
	cfg := d.cfg
	cfg.Policy, cfg.Lease, cfg.GetArgs = Policy{}, nil, ""
	if change != nil {
		change(&cfg)
	}
	other := *d
	var err error
	if other.Tools, err = New(cfg); err != nil {
		d.t.Fatal(err)
	}
	return &other
}

// start starts a script that is not done when its call is answered.
func (d *disk) start(source string) (job string) {
	d.t.Helper()
	r := d.ask(args{"language": "bash", "source": source})
	if r.Facts["outcome"] != "running" {
		d.t.Fatalf("%s was to go on as a job: %s", source, r)
	}
	return jobOf(r)
}

// info is what is listed of a job.
func (d *disk) info(job string) JobInfo {
	for _, i := range d.jobs.List() {
		if i.ID == job {
			return i
		}
	}
	return JobInfo{}
}

// inPhase waits until a job is in a state.
func (d *disk) inPhase(job, state string) {
	d.t.Helper()
	d.until(job+" is "+state, func() bool { return d.info(job).State == state })
}

// wantCode checks how a call failed.
func wantCode(t testing.TB, r Result, code Code, words ...string) {
	t.Helper()
	if r.OK() || r.Err.Code != code {
		t.Errorf("want %s, got: %s", code, r)
		return
	}
	wantText(t, r.String(), words...)
}

// TestJobOutlivesItsSession: what one session started goes on when that has
// ended, and another asks for it and is told what is true for itself.
func TestJobOutlivesItsSession(t *testing.T) {
	a := sharing(t, func(c *Config) { c.GetArgs = "--image a " })
	b := a.session(func(c *Config) { c.GetArgs = "--image b " })
	inA := WithCaller(t.Context(), Caller{Actor: "agent", Client: "client-a 1"})
	inA, hangUp := context.WithCancelCause(inA)
	r := a.Call(inA, "run_script", rawJSON(t, args{"language": "bash", "source": "echo out; until [ -e /tmp/x ]; do sleep 0.05; n=$((n+1)); [ $n = 20 ] && touch /tmp/x; done; echo x >x"}))
	wantText(t, r.String(), "RUNNING", "goes on as a job of this disk, also when the session ends")
	if strings.Contains(r.String(), "this session ends") {
		t.Error(r)
	}
	job := jobOf(r)
	hangUp(errHungUp)
	a.Close()
	inB := WithCaller(t.Context(), Caller{Actor: "operator", Client: "client-b 2"})
	for r = b.Call(inB, "run_script", rawJSON(t, args{"job": job})); r.Facts["outcome"] == "running"; {
		r = b.Call(inB, "run_script", rawJSON(t, args{"job": job}))
	}
	wantText(t, r.String(), "SAVED as v2", "stdout:\nout", "to get it: mcp-vdisk image get --image b /workspace/x .")
	if strings.Contains(r.String(), "image a") {
		t.Errorf("what another session is told: %s", r)
	}
	wantText(t, a.ask(args{"job": job}).String(), "--image a ")
	if out := a.outcomes(job); len(out) != 1 || out[0].Cli != "client-a 1" || out[0].Act != "agent" {
		t.Errorf("outcomes %+v", out)
	}
	polls := a.records(audit.Query{Match: map[string][]string{"ev": {"call.read"}, "cli": {"client-b 2"}}})
	if len(polls) == 0 || polls[0].Act != "operator" || polls[0].Args["job"] != job {
		t.Errorf("polls %+v", polls)
	}
	a.verify()
}

// TestCancelInAnotherSession: one session stops what another waits for.
func TestCancelInAnotherSession(t *testing.T) {
	a := sharing(t, func(c *Config) { c.Limits.Answer = time.Hour })
	b := a.session(nil)
	result := make(chan Result, 1)
	go func() {
		result <- a.Call(t.Context(), "run_script", rawJSON(t, args{"language": "bash", "source": "echo x >x; sleep 60"}))
	}()
	a.running(1)
	job := a.jobs.List()[0].ID
	wantText(t, b.ask(args{"job": job, "cancel": true}).String(), "stopped job "+job)
	wantCode(t, <-result, Cancelled, "stopped on request")
	wantCode(t, b.ask(args{"job": job}), Cancelled)
	if a.tree() != "" {
		t.Error(a.tree())
	}
	a.verify()
}

// TestReadOnlySessionAndJobs: a session that only reads may look at a script
// of another, and no more; one without the tool may not even do that.
func TestReadOnlySessionAndJobs(t *testing.T) {
	a := sharing(t, nil)
	reader := a.session(func(c *Config) { c.Policy.ReadOnly = true })
	none := a.session(func(c *Config) { c.Policy.Tools = []string{"read_file", "write_file"} })
	neither := a.session(func(c *Config) { c.Policy = Policy{ReadOnly: true, Tools: []string{"read_file"}} })
	job := a.start("echo seen; echo x >x; sleep 60")
	a.until("it prints", func() bool { return a.info(job).OutputBytes > 0 })
	wantText(t, reader.ask(args{"job": job}).String(), "RUNNING", "stdout:\nseen")
	failed := a.start("sleep 0.3; echo y >y; exit 1")
	wantText(t, reader.end(failed).String(), "NOT SAVED (exit 1")
	for name, c := range map[string]struct {
		d    *disk
		a    args
		code Code
	}{
		"cancel":                 {reader, args{"job": job, "cancel": true}, ReadOnly},
		"save":                   {reader, args{"job": failed, "commit": "always"}, ReadOnly},
		"start":                  {reader, args{"language": "bash", "source": "true"}, ReadOnly},
		"start beside a job":     {reader, args{"language": "bash", "source": "true", "job": job}, InvalidArgument},
		"poll without the tool":  {none, args{"job": job}, NotAllowed},
		"save without the tool":  {none, args{"job": failed, "commit": "always"}, NotAllowed},
		"poll without either":    {neither, args{"job": job}, NotAllowed},
		"cancel without either":  {neither, args{"job": job, "cancel": true}, ReadOnly},
		"null and false are no…": {reader, args{"job": nil, "cancel": false, "language": "bash", "source": "true"}, ReadOnly},
	} {
		r := c.d.ask(c.a)
		wantCode(t, r, c.code)
		if rec := a.records(audit.Query{Reverse: true, Limit: 1})[0]; rec.Ev != audit.EvCallRefused || rec.Err != string(c.code) {
			t.Errorf("%s: recorded as %+v", name, rec)
		}
	}
	if slices.ContainsFunc([]string{"run_script", "write_file"}, reader.cfg.Policy.Listed) {
		t.Error("a reader is offered more than reading")
	}
	if a.info(job).State != jobRuns || a.tree() != "" {
		t.Errorf("%+v, %s", a.info(job), a.tree())
	}
	a.ask(args{"job": job, "cancel": true})
	wantText(t, a.ask(args{"job": failed, "commit": "always"}).String(), "SAVED")
	a.verify()
}

// TestTwoSessionsSave: two sessions that save a run at once save it once, and
// the record of that is the saver's.
func TestTwoSessionsSave(t *testing.T) {
	a := sharing(t, nil)
	b := a.session(nil)
	job := a.start("sleep 0.3; echo x >x; exit 1")
	a.end(job)
	var all sync.WaitGroup
	results := make([]Result, 8)
	for i := range results {
		d, client := a, "client-a"
		if i%2 == 1 {
			d, client = b, "client-b"
		}
		all.Go(func() {
			ctx := WithCaller(t.Context(), Caller{Actor: client, Client: client})
			results[i] = d.Call(ctx, "run_script", rawJSON(t, args{"job": job, "commit": "always"}))
		})
	}
	all.Wait()
	saved := -1
	for i, r := range results {
		switch {
		case strings.HasPrefix(r.String(), "SAVED as v2") && saved < 0:
			saved = i
		case !strings.Contains(r.String(), "was saved already, as v2"):
			t.Error(r)
		}
	}
	if saved < 0 {
		t.Fatal("nobody saved it")
	}
	log, err := a.im.Log(0, 9)
	want := []string{"client-a", "client-b"}[saved%2]
	if err != nil || log[len(log)-1].Call != results[saved].Call || log[len(log)-1].Actor != want {
		t.Errorf("committed as %+v, %v; saved by %s", log, err, want)
	}
	if i := a.info(job); !i.Saved || i.Kept != 0 {
		t.Errorf("%+v", i)
	}
	a.verify()
}

// TestSaveUnderTheAskersPolicy: what a session may not do it cannot do by saving
// the run of another that may.
func TestSaveUnderTheAskersPolicy(t *testing.T) {
	a := sharing(t, nil)
	b := a.session(func(c *Config) { c.Policy.NoDelete = true })
	a.write("f", "f")
	job := a.start("sleep 0.3; rm f; exit 1")
	a.end(job)
	wantCode(t, b.ask(args{"job": job, "commit": "always"}), DeleteDisabled)
	if a.content("f") != "f" || a.info(job).Kept != 1 {
		t.Errorf("%s %+v", a.tree(), a.info(job))
	}
	a.Close()
	wantText(t, a.session(nil).ask(args{"job": job, "commit": "always"}).String(), "SAVED", "1 deleted")
	a.verify()
}

// TestConflictIsToldToEachSession: only who was told of a conflict saves over it.
func TestConflictIsToldToEachSession(t *testing.T) {
	a := sharing(t, nil)
	b := a.session(nil)
	a.write("f", "f")
	r := a.during("echo script >f; exit 1", func() { b.tool("write_file", args{"path": "f", "content": "tool"}) })
	job := jobOf(r)
	a.end(job)
	save := args{"job": job, "commit": "always"}
	wantCode(t, a.ask(save), VersionConflict, "/workspace/f  now v3")
	wantCode(t, b.ask(save), VersionConflict, "/workspace/f  now v3")
	if a.content("f") != "tool" {
		t.Error(a.tree())
	}
	wantText(t, b.ask(save).String(), "SAVED as v4")
	// What the run itself was told stands in its result, which all can read.
	r = a.during("echo again >f", func() { b.tool("write_file", args{"path": "f", "content": "tool"}) })
	job = jobOf(r)
	wantCode(t, b.end(job), VersionConflict)
	wantText(t, b.ask(args{"job": job, "commit": "always"}).String(), "SAVED")
	a.verify()
}

// TestWhatNeedsTheRight: without the right to change the disk everything that
// could is refused, and recorded; the rest works.
func TestWhatNeedsTheRight(t *testing.T) {
	right := leased(1)
	a := sharing(t, func(c *Config) { c.Lease = right })
	b := a.session(func(c *Config) { c.Lease = leased(2) })
	a.tool("write_file", args{"path": "f", "content": "f"})
	mine := a.start("sleep 60")
	kept := a.start("sleep 0.3; echo x >x; exit 1")
	a.end(kept)
	theirs := b.start("sleep 60")
	right.set(1, held())
	before := a.tree()
	for name, c := range map[string]struct {
		tool string
		a    args
		code Code // empty: it works
	}{
		"write":          {"write_file", args{"path": "f", "content": "g"}, LeaseHeld},
		"mkdir":          {"make_directory", args{"path": "d"}, LeaseHeld},
		"delete":         {"delete_file", args{"path": "f"}, LeaseHeld},
		"script":         {"run_script", args{"language": "bash", "source": "true"}, LeaseHeld},
		"not saved":      {"run_script", args{"language": "bash", "source": "true", "commit": "never"}, LeaseHeld},
		"save":           {"run_script", args{"job": kept, "commit": "always"}, LeaseHeld},
		"stop another's": {"run_script", args{"job": theirs, "cancel": true}, LeaseHeld},
		"stop none":      {"run_script", args{"job": ulid.Make().String(), "cancel": true}, NotFound},
		"no path":        {"write_file", args{"path": "", "content": "g"}, InvalidPath},
		"request":        {"python_env", args{"action": "request", "packages": []string{"x"}, "reason": "r"}, NotReady},
		"status":         {"python_env", args{"action": "status"}, ""},
		"read":           {"read_file", args{"path": "f"}, ""},
		"list":           {"list_files", nil, ""},
		"poll":           {"run_script", args{"job": theirs}, ""},
	} {
		asked := right.asked
		r := a.Call(t.Context(), c.tool, rawJSON(t, c.a))
		if c.code == "" {
			if !r.OK() {
				t.Errorf("%s: %s", name, r)
			}
			if right.asked != asked {
				t.Errorf("%s asked for the right", name)
			}
			continue
		}
		wantCode(t, r, c.code)
		rec := a.records(audit.Query{Reverse: true, Limit: 1})[0]
		if rec.Err != string(c.code) || c.code == LeaseHeld && (rec.Ev != audit.EvCallRefused || !strings.Contains(rec.Reason, "exclusive-1")) {
			t.Errorf("%s: recorded as %+v", name, rec)
		}
	}
	if a.tree() != before {
		t.Error(a.tree())
	}
	// What it started itself it may stop.
	wantText(t, a.ask(args{"job": mine, "cancel": true}).String(), "stopped job")
	wantText(t, b.ask(args{"job": kept, "commit": "always"}).String(), "SAVED")
	b.ask(args{"job": theirs, "cancel": true})
	// A lease that fails in a way of its own shows nothing of that.
	right.set(1, errors.New("/var/lib/secret is broken"))
	r := a.ask(args{"language": "bash", "source": "true"})
	wantCode(t, r, Internal)
	if strings.Contains(r.String(), "secret") {
		t.Error(r)
	}
	a.verify()
}

// TestFencedScript: a disk that was taken over while a script ran is not changed
// by it, and what it left is saved only by who has the right then.
func TestFencedScript(t *testing.T) {
	right := leased(5)
	a := sharing(t, func(c *Config) { c.Lease = right })
	a.tool("write_file", args{"path": "f", "content": "f"})
	b := a.session(func(c *Config) { c.Lease = leased(6) })
	var jobs []string
	before := a.tree()
	for i, source := range []string{"sleep 0.6; echo x >x", "sleep 0.6; echo y >y; exit 1"} {
		job := a.start(source)
		a.inPhase(job, jobRuns)
		if err := a.im.RaiseFence(workspace.Fence{Install: [16]byte{7}, Token: 6}); err != nil {
			t.Fatal(err)
		}
		r := a.end(job)
		if i == 0 {
			wantCode(t, r, Fenced, "FENCED: nothing was saved (exit 0): the disk image was taken over by a newer lease: token 5 is older than 6",
				"\nhint: nothing was changed", `{"job":"`+job+`","commit":"always"} saves them`)
			if out := a.outcomes(job); len(out) != 1 || out[0].Err != "FENCED" || out[0].Out.OK || out[0].Out.Code != "FENCED" || out[0].Ha != "" {
				t.Errorf("outcomes %+v", out)
			}
		} else { // nobody asked to save it
			wantText(t, r.String(), "NOT SAVED (exit 1", "1 created", "created  /workspace/y")
		}
		if a.tree() != before {
			t.Errorf("the disk changed to\n%s", a.tree())
		}
		jobs = append(jobs, job)
	}
	wantCode(t, a.Call(t.Context(), "write_file", rawJSON(t, args{"path": "f", "content": "late"})), Fenced, "hint: nothing was changed, and reading works")
	for _, job := range jobs {
		wantCode(t, a.ask(args{"job": job, "commit": "always"}), Fenced)
	}
	none := a.session(nil)
	wantCode(t, none.ask(args{"job": jobs[0], "commit": "always"}), Fenced, "came without one")
	if a.tree() != before {
		t.Errorf("the disk changed to\n%s", a.tree())
	}
	wantText(t, b.ask(args{"job": jobs[0], "commit": "always"}).String(), "SAVED as v3")
	right.set(6, nil)
	wantText(t, a.ask(args{"job": jobs[1], "commit": "always"}).String(), "SAVED as v4")
	if f, err := a.im.Fence(); err != nil || f.Token != 6 {
		t.Errorf("%+v, %v", f, err)
	}
	a.verify()
}

// TestConflictUnderALease: a conflict is looked at whatever the image's fence is.
func TestConflictUnderALease(t *testing.T) {
	a := sharing(t, func(c *Config) { c.Lease = leased(3) })
	a.tool("write_file", args{"path": "f", "content": "f"})
	job := jobOf(a.during("echo script >f", func() { a.tool("write_file", args{"path": "f", "content": "tool"}) }))
	wantCode(t, a.end(job), VersionConflict, "  /workspace/f  now v3")
	wantText(t, a.ask(args{"job": job, "commit": "always"}).String(), "SAVED as v4")
	a.verify()
}

// hosted counts the processes of this host that have a word in their arguments.
func hosted(t *testing.T, word string) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), word) {
			n++
		}
	}
	return n
}

// TestEvict: what was started under an old token is stopped, whether it runs or
// waits, and gone when Evict returns; what is newer goes on, and nothing older
// comes again.
func TestEvict(t *testing.T) {
	old, now := leased(5), leased(6)
	const mark = "sleep\x0060.00471"
	a := sharing(t, func(c *Config) { c.Lease, c.Limits.Scripts, c.Limits.Queue = old, 3, time.Minute })
	b := a.session(func(c *Config) { c.Lease = now })
	left := a.start("sleep 0.3; echo x >x; exit 1")
	a.end(left)
	running := []string{a.start("echo y >y; exec sleep 60.00471"), a.start("exec sleep 60.00471")}
	a.running(2)
	newer := b.start("sleep 60")
	queued := a.start("echo z >z")
	a.until("they sleep", func() bool { return hosted(t, mark) > 0 })
	if i := a.info(queued); i.State != jobWaits || i.Token != 5 || a.jobs.Running() != 4 {
		t.Errorf("%+v; %d run", i, a.jobs.Running())
	}
	poll := make(chan Result, 1)
	go func() { poll <- b.Call(t.Context(), "run_script", rawJSON(t, args{"job": running[0]})) }()
	if err := a.jobs.Evict(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	if n := hosted(t, mark); n > 0 {
		t.Errorf("%d processes are left", n)
	}
	for _, job := range append(running, queued) {
		if i := a.info(job); i.State != jobEnded || i.Code != Fenced || i.Kept != 0 || i.Saved {
			t.Errorf("%+v", i)
		}
		wantCode(t, b.ask(args{"job": job}), Fenced, "another session took this disk over", "nothing was saved", "hint: ")
		if out := a.outcomes(job); len(out) != 1 || out[0].Err != "FENCED" {
			t.Errorf("outcomes %+v", out)
		}
		wantCode(t, b.ask(args{"job": job, "commit": "always"}), NotFound)
	}
	<-poll
	if i := b.info(newer); i.State != jobRuns || i.Token != 6 || a.jobs.Running() != 1 {
		t.Errorf("%+v; %d run", i, a.jobs.Running())
	}
	// Who was admitted before, and starts only now.
	wantCode(t, a.ask(args{"language": "bash", "source": "echo late >late"}), Fenced)
	old.set(7, nil)
	wantText(t, a.end(a.start("sleep 0.3; echo new >new")).String(), "SAVED")
	wantCode(t, b.ask(args{"job": left, "commit": "always"}), Fenced) // 7 has changed the disk
	now.set(7, nil)
	wantText(t, b.ask(args{"job": left, "commit": "always"}).String(), "SAVED")
	for range 2 {
		if err := a.jobs.Evict(t.Context(), 4); err != nil { // nothing is that old
			t.Fatal(err)
		}
	}
	if err := a.jobs.TakeBack(t.Context(), 6, "it is mine"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, b.ask(args{"job": newer}), Fenced, `a person took this disk back ("it is mine"); nothing was saved`, "hint: ")
	if names := names(a.Call(t.Context(), "list_files", nil).String()); slices.Contains(names, "/workspace/y") || slices.Contains(names, "/workspace/late") {
		t.Error(names)
	}
	a.verify()
}

// TestEvictWhileSaving: a script that is about to save is FENCED too, and what it
// left can be saved under a new right.
func TestEvictWhileSaving(t *testing.T) {
	for name, source := range map[string]string{"exit 0": "echo x >x", "exit 1": "echo x >x; exit 1"} {
		t.Run(name, func(t *testing.T) {
			right := leased(5)
			a := sharing(t, func(c *Config) { c.Lease = right })
			// Somebody else has the image's one writer.
			entered, leave := make(chan bool), make(chan bool)
			other := make(chan error, 1)
			go func() {
				_, err := a.im.Commit(t.Context(), workspace.Txn{Changes: files("other"), Admit: func([]workspace.Effect) error {
					close(entered)
					<-leave
					return errors.New("it does not want to")
				}})
				other <- err
			}()
			result := make(chan Result, 1)
			<-entered
			go func() {
				result <- a.Call(context.WithoutCancel(t.Context()), "run_script", rawJSON(t, args{"language": "bash", "source": source}))
			}()
			a.until("a script looks at its changes", func() bool {
				return slices.ContainsFunc(a.jobs.List(), func(i JobInfo) bool { return i.State == jobLooks })
			})
			job := a.jobs.List()[0].ID
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			evict, says := a.jobs.Evict, "another session has taken this disk over"
			if name == "exit 1" {
				says = `a person has taken this disk back ("it is mine")`
				evict = func(ctx context.Context, token uint64) error { return a.jobs.TakeBack(ctx, token, "it is mine") }
			}
			if err := evict(ctx, 5); !errors.Is(err, context.Canceled) { // but it has been told to stop
				t.Errorf("Evict: %v", err)
			}
			evicted := make(chan error, 1)
			go func() { evicted <- evict(t.Context(), 5) }()
			select {
			case err := <-evicted:
				t.Errorf("Evict did not wait: %v", err)
			case r := <-result:
				if r.Facts["outcome"] != "running" { // handed over
					t.Error(r)
				}
			}
			close(leave)
			if err := <-evicted; err != nil {
				t.Error(err)
			}
			<-other
			wantCode(t, a.end(job), Fenced, "nothing was saved ("+name+"): "+says, `"commit":"always"} saves them`)
			if i := a.info(job); i.Code != Fenced || i.Kept != 1 || a.tree() != "" {
				t.Errorf("%+v; %s", i, a.tree())
			}
			right.set(5, LeaseLost(""))
			wantCode(t, a.ask(args{"job": job, "commit": "always"}), Fenced, "has lost the right")
			right.set(6, nil)
			wantText(t, a.ask(args{"job": job, "commit": "always"}).String(), "SAVED as v2")
			if errEvicted.Sentence != "the script was stopped because another session took this disk over; nothing was saved" {
				t.Errorf("an error that all share was changed: %s", errEvicted)
			}
			a.verify()
		})
	}
}

// TestEvictUnrecorded: Evict tells when an outcome could not be recorded.
func TestEvictUnrecorded(t *testing.T) {
	var free atomic.Uint64
	free.Store(1 << 40)
	s := setup{audit: audit.Options{Free: func() (uint64, error) { return free.Load(), nil }}, config: func(c *Config) {
		c.Limits.Answer = 100 * time.Millisecond
		c.Jobs = NewJobs(JobsConfig{Limits: c.Limits})
	}}
	a := s.scripted(t)
	job := a.start("sleep 60")
	a.inPhase(job, jobRuns)
	free.Store(0)
	if err := a.jobs.Evict(t.Context(), 0); !errors.Is(err, audit.ErrUnavailable) {
		t.Errorf("Evict: %v", err)
	}
	free.Store(1 << 40)
	if err := a.jobs.Evict(t.Context(), 0); err != nil {
		t.Error(err)
	}
	wantCode(t, a.ask(args{"language": "bash", "source": "true"}), Fenced)
}

// TestCloseSharedJobs: the end of all jobs stops what any session started, while
// others ask for it.
func TestCloseSharedJobs(t *testing.T) {
	a := sharing(t, nil)
	b := a.session(nil)
	job, kept := a.start("echo x >x; sleep 60"), a.start("sleep 0.2; echo y >y; exit 1")
	a.end(kept)
	a.running(1)
	a.Close()
	if a.jobs.Running() != 1 {
		t.Error("a session took along what is not its own")
	}
	var all sync.WaitGroup
	for _, ask := range []args{{"job": job}, {"job": kept}, {"job": kept, "commit": "always"}, {"job": job, "cancel": true}} {
		all.Go(func() { b.Call(t.Context(), "run_script", rawJSON(t, ask)) })
	}
	all.Go(func() { a.jobs.List(); _, _ = a.jobs.Show(kept, 0) })
	all.Go(a.jobs.Close)
	all.Wait()
	if out := a.outcomes(job); len(out) != 1 || out[0].Err != "CANCELLED" || a.jobs.Running() != 0 {
		t.Errorf("outcomes %+v", out)
	}
	wantCode(t, b.ask(args{"language": "bash", "source": "true"}), Cancelled, "because its server stops")
	a.jobs.Close()
	if list := a.jobs.List(); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	a.verify()
}

// TestJobList: what is listed of jobs in each state, and what is shown of one.
func TestJobList(t *testing.T) {
	a := sharing(t, func(c *Config) { c.Lease, c.Limits.Scripts, c.Limits.Queue = leased(4), 1, time.Minute })
	ctx := WithCaller(t.Context(), Caller{Actor: "agent", Client: "client 1"})
	failed := jobOf(a.Call(ctx, "run_script", rawJSON(t, args{"language": "bash", "source": "sleep 0.3; echo hello; echo x >x; echo y >y; exit 3"})))
	a.end(failed)
	saved := a.start("sleep 0.3; echo z >z")
	a.end(saved)
	runs := a.start("echo out; sleep 60")
	a.inPhase(runs, jobRuns)
	a.until("it prints", func() bool { return a.info(runs).OutputBytes == 4 })
	waits := jobOf(a.ask(args{"language": "python", "source": "1"}))
	list := a.jobs.List()
	var ids []string
	for _, i := range list {
		ids = append(ids, i.ID)
		if i.Began.IsZero() || i.Ended.IsZero() != (i.State != jobEnded) || i.Token != 4 || i.Tool != "run_script" || i.Actor != "agent" {
			t.Errorf("%+v", i)
		}
	}
	if want := []string{failed, saved, runs, waits}; !slices.Equal(ids, want) {
		t.Fatalf("listed %v, want %v", ids, want)
	}
	if i := list[0]; i.State != jobEnded || i.Outcome != "exited" || *i.Exit != 3 || i.Kept != 2 || i.Saved || i.OutputBytes != 6 || i.Client != "client 1" || i.Language != "bash" {
		t.Errorf("%+v", i)
	}
	if i := list[1]; i.State != jobEnded || *i.Exit != 0 || i.Kept != 0 || !i.Saved || i.Code != "" {
		t.Errorf("%+v", i)
	}
	if list[2].State != jobRuns || list[3].State != jobWaits || list[3].Language != "python" || a.jobs.Running() != 2 {
		t.Errorf("%+v", list[2:])
	}
	b, err := json.Marshal(list[3])
	if want := `{"id":"` + waits + `","tool":"run_script","language":"python","actor":"agent","state":"waiting","began":"`; err != nil ||
		!strings.HasPrefix(string(b), want) || !strings.HasSuffix(string(b), `,"saved":false,"kept":0,"output_bytes":0,"token":4}`) {
		t.Errorf("%s, %v", b, err)
	}
	a.showsAsPolled(saved, failed)
	r, err := a.jobs.Show(strings.ToLower(runs), 1)
	if err != nil || !r.OK() {
		t.Error(r, err)
	}
	wantText(t, r.String(), "RUNNING", "stdout:\nut")

	own := &Error{Code: Cancelled, Sentence: "an operator stopped it"}
	for _, c := range []struct {
		job  string
		why  error
		says string
	}{
		{waits, own, "CANCELLED: an operator stopped it"}, {runs, errors.New("of /host"), "CANCELLED: the script was stopped on request"}, {saved, nil, "SAVED"},
	} {
		if err := a.jobs.Cancel(t.Context(), c.job, c.why); err != nil {
			t.Error(err)
		}
		r := a.ask(args{"job": c.job})
		if wantText(t, r.String(), c.says); strings.Contains(r.String(), "/host") {
			t.Error(r)
		}
	}
	if i := a.info(waits); i.Code != Cancelled || i.Exit != nil {
		t.Errorf("%+v", i)
	}
	for _, id := range []string{"", "x", ulid.Make().String(), strings.Repeat("9", 26), strings.Repeat("x", 1<<20)} {
		if _, err := a.jobs.Show(id, 0); !errors.Is(err, ErrNoJob) {
			t.Errorf("Show(%.30q): %v", id, err)
		}
		if err := a.jobs.Cancel(t.Context(), id, nil); !errors.Is(err, ErrNoJob) {
			t.Errorf("Cancel(%.30q): %v", id, err)
		}
	}
	if _, err := a.jobs.Show(failed, -5); err != nil {
		t.Error(err)
	}
	a.verify()
}

// showsAsPolled checks that Show tells what a poll tells, but how to get a file.
func (d *disk) showsAsPolled(jobs ...string) {
	d.t.Helper()
	for _, job := range jobs {
		r, err := d.jobs.Show(job, 0)
		polled := regexp.MustCompile(`\nto get it: .*`).ReplaceAllString(d.ask(args{"job": job}).String(), "")
		if err != nil || r.String() != polled || r.Call != job {
			d.t.Errorf("shown, %v:\n%s\npolled:\n%s", err, r, polled)
		}
	}
}

// TestTurnsOfTwoDisks: the scripts of all disks with the same turns are counted
// together.
func TestTurnsOfTwoDisks(t *testing.T) {
	turns := NewTurns(1, 0)
	with := func(c *Config) {
		c.Limits.Answer, c.Limits.Queue = 100*time.Millisecond, 300*time.Millisecond
		c.Jobs = NewJobs(JobsConfig{Limits: c.Limits, Turns: turns})
	}
	a, b := setup{config: with}.scripted(t), setup{config: with}.scripted(t)
	job := a.start("sleep 60")
	a.inPhase(job, jobRuns)
	wantCode(t, b.end(b.start("true")), Busy, "as many scripts as may run at once have been running here")
	a.ask(args{"job": job, "cancel": true})
	a.end(job)
	wantText(t, b.end(jobOf(b.ask(args{"language": "bash", "source": "echo in"}))).String(), "stdout:\nin")
	def := Limits{}.withDefaults()
	for _, n := range []int{0, -1} {
		if q := NewTurns(n, int64(n)); q.most != def.ScriptMemory || !q.count.TryAcquire(int64(def.Scripts)) || q.count.TryAcquire(1) {
			t.Errorf("the turns of %d are not the default", n)
		}
	}
}

// TestSessionsTogether: sessions that do all of it at once leave each call with
// its records, and a disk that a reader of the log can account for.
func TestSessionsTogether(t *testing.T) {
	right := leased(1)
	a := sharing(t, func(c *Config) { c.Lease, c.Limits.Queue, c.Limits.Answer = right, 20*time.Second, 20*time.Millisecond })
	sessions := []*disk{a, a.session(func(c *Config) { c.Lease = right }), a.session(func(c *Config) { c.Lease, c.Policy.NoDelete = right, true })}
	rounds := 12
	if soak() {
		rounds = 200
	}
	job := func() string {
		list := a.jobs.List()
		if len(list) == 0 {
			return ulid.Make().String()
		}
		return list[rand.IntN(len(list))].ID
	}
	var all sync.WaitGroup
	for i := range 6 {
		d := sessions[i%len(sessions)]
		all.Go(func() {
			for n := range rounds {
				var ask args
				switch (i + n) % 6 {
				case 0, 1:
					ask = args{"language": "bash", "source": fmt.Sprintf("echo %d >f%d; sleep 0.0%d; exit %d", n, i, rand.IntN(9), n%2)}
				case 2:
					ask = args{"job": job()}
				case 3:
					ask = args{"job": job(), "commit": "always"}
				case 4:
					ask = args{"job": job(), "cancel": true}
				case 5:
					_, _ = a.jobs.Show(job(), 0)
					if i == 5 {
						right.mu.Lock()
						token := right.fence.Token
						right.fence.Token++
						right.mu.Unlock()
						if err := a.jobs.Evict(t.Context(), token); err != nil {
							t.Error(err)
						}
						if err := a.im.RaiseFence(workspace.Fence{Install: [16]byte{7}, Token: token + 1}); err != nil {
							t.Error(err)
						}
					}
					continue
				}
				if r := d.Call(t.Context(), "run_script", rawJSON(t, ask)); r.Err != nil && r.Err.Code == Internal {
					t.Errorf("%v: %s", ask, r)
				}
			}
		})
	}
	all.Wait()
	a.jobs.Close()
	a.verify()
}
