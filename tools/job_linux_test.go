package tools

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// handing is a disk whose calls are answered soon, so that scripts go on as
// jobs; as many run at once as memory would allow elsewhere.
func handing(t testing.TB, change func(*Config)) *disk {
	return setup{config: func(c *Config) {
		c.Limits.Answer, c.Limits.ScriptMemory = 100*time.Millisecond, math.MaxInt64
		if change != nil {
			change(c)
		}
	}}.scripted(t)
}

// ask calls run_script without a look at the records, which those of jobs mix
// with.
func (d *disk) ask(a args) Result {
	d.t.Helper()
	r := d.Call(d.t.Context(), "run_script", rawJSON(d.t, a))
	if recs := d.records(audit.Query{Reverse: true, Limit: 1}); len(recs) == 1 {
		d.seen = recs[0].N
	}
	return r
}

// begin starts a script that is not done when its call is answered.
func (d *disk) begin(source string) (job string) {
	d.t.Helper()
	r := d.ask(args{"language": "bash", "source": source})
	if !r.OK() || r.Facts["outcome"] != "running" {
		d.t.Fatalf("%s was to go on as a job: %s", source, r)
	}
	wantText(d.t, r.String(), "RUNNING", `"job":"`+jobOf(r)+`","output_offset":`, "ends when this session ends", `"cancel":true`)
	return jobOf(r)
}

func jobOf(r Result) string { return fmt.Sprint(r.Facts["job"]) }

// end waits for a job's end.
func (d *disk) end(job string) Result {
	d.t.Helper()
	for {
		if r := d.ask(args{"job": job}); r.Facts["outcome"] != "running" {
			return r
		}
	}
}

// outcomes are the outcome records of a call.
func (d *disk) outcomes(call string) []audit.Record {
	return d.records(audit.Query{Match: map[string][]string{"call": {call}, "ev": {"call.outcome"}}})
}

// later moves the clock of the tools and of the jobs. No job may run.
func (d *disk) later(by time.Duration) {
	clock, jobs := d.now, d.jobs.now
	d.now = func() time.Time { return clock().Add(by) }
	d.jobs.now = func() time.Time { return jobs().Add(by) }
}

// shown takes the sections of a result apart, as an agent reads them.
func shown(text string) (streams [2]string) {
	s := -1
	var lines [2][]string
	var open [2]bool
	for _, line := range strings.Split(text, "\n") {
		switch {
		case line == "stdout:":
			s = 0
		case line == "stderr:":
			s = 1
		case line == "[stdout goes on in this line]":
			open[0] = true
		case line == "[stderr goes on in this line]":
			open[1] = true
		case strings.HasPrefix(line, "[output up to"), strings.HasPrefix(line, "job "), line == "changed:":
			s = -1
		case s >= 0:
			lines[s] = append(lines[s], line)
		}
	}
	for s := range streams {
		if streams[s] = strings.Join(lines[s], "\n"); len(lines[s]) > 0 && !open[s] {
			streams[s] += "\n"
		}
	}
	return streams
}

// talker prints characters, colours and lines byte by byte, a few every 50 ms.
const talker = `
import sys, os, time, random
random.seed(7)
line = "zeile \x1b[1;32m%d\x1b[0m é漢🎉 fertig\r\n"
out = "".join(line % i for i in range(400)).encode()
err = "".join("fehler 漢%d\n" % i for i in range(100)).encode()
end = time.monotonic() + float(sys.argv[1])
steps = int(float(sys.argv[1]) / 0.05)
a = b = 0
for i in range(1, steps + 1):
    n, m = len(out) * i // steps, len(err) * i // steps
    while a < n or b < m:
        k = random.randint(1, 90)
        if a < n: os.write(1, out[a:min(a + k, n)]); a = min(a + k, n)
        if b < m: os.write(2, err[b:min(b + 17, m)]); b = min(b + 17, m)
    time.sleep(0.05)
`

// TestJobOutput: what consecutive calls show, by the offsets that each gives, is
// together what the script printed, no byte lost and none twice.
func TestJobOutput(t *testing.T) {
	d := handing(t, func(c *Config) { c.Limits.Answer = 300 * time.Millisecond })
	var wantOut, wantErr strings.Builder
	for i := range 400 {
		fmt.Fprintf(&wantOut, "zeile %d é漢🎉 fertig\n", i)
	}
	for i := range 100 {
		fmt.Fprintf(&wantErr, "fehler 漢%d\n", i)
	}
	r := d.ask(args{"language": "python", "source": talker, "args": []string{"3"}})
	job, calls := jobOf(r), 1
	got := shown(r.String())
	for next := r.Facts["output_offset"]; r.Facts["outcome"] == "running"; next = r.Facts["output_offset"] {
		r = d.ask(args{"job": job, "output_offset": next})
		calls++
		for s, text := range shown(r.String()) {
			got[s] += text
		}
	}
	if calls < 5 || r.Facts["outcome"] != "exited" || r.Facts["more"] != false {
		t.Errorf("%d calls, the last: %s", calls, r)
	}
	if got[0] != wantOut.String() || got[1] != wantErr.String() {
		t.Errorf("stdout %q\nstderr %q", got[0], got[1])
	}
	whole := d.ask(args{"job": job})
	if again := shown(whole.String()); again != got {
		t.Errorf("from the start it is %q", again)
	}
	wantText(t, d.ask(args{"job": job, "output_offset": int64(math.MaxInt64)}).String(), "(no new output)", "exit 0")
	if out := d.outcomes(job); len(out) != 1 || out[0].Out.Outcome != "exited" {
		t.Errorf("outcomes %+v", out)
	}
	d.verify()
}

// TestJobPages: a long output is read in pages of at most 40,000 characters, all
// of it, also when it was answered at once, which shows the beginning and the end.
func TestJobPages(t *testing.T) {
	d := newScripted(t)
	r := d.bash("seq 60000; for i in $(seq 9); do echo error $i >&2; done")
	wantText(t, r.String(), "left out", "hint: the output is cut", "60000")
	m := regexp.MustCompile(`"output_offset":(\d+)`).FindStringSubmatch(r.String())
	if m == nil {
		t.Fatal(r)
	}
	var want strings.Builder
	for i := range 60000 {
		fmt.Fprintln(&want, i+1)
	}
	job, got, next := jobOf(r), "", any(int64(0))
	for pages := 1; ; pages++ {
		r = d.call("run_script", args{"job": job, "output_offset": next})
		if len(r.String()) > MaxText {
			t.Errorf("a page of %d bytes", len(r.String()))
		}
		got += shown(r.String())[0]
		if next = r.Facts["output_offset"]; r.Facts["more"] == false {
			if pages < 8 {
				t.Errorf("only %d pages", pages)
			}
			break
		}
		wantText(t, r.String(), `the next page: {"job":"`+job)
	}
	if got != want.String() {
		t.Errorf("the pages have %d bytes, %d were printed", len(got), want.Len())
	}
	// What the hint names begins where the answer stopped.
	cut := shown(d.call("run_script", args{"job": job, "output_offset": m[1]}).String())[0]
	if !strings.Contains(want.String(), cut) || len(cut) < 1000 {
		t.Errorf("from %s on: %.100q", m[1], cut)
	}
}

// TestJobCancel: a job is stopped soon, as often as one asks, and says so.
func TestJobCancel(t *testing.T) {
	d := handing(t, nil)
	job := d.begin("echo begun; echo x >x; sleep 60")
	before := d.head()
	d.until("the script prints", func() bool { n, _ := d.jobs.find(job).out.length(); return n > 0 })
	start := time.Now()
	r := d.ask(args{"job": job, "cancel": true})
	if took := time.Since(start); took > 2*time.Second || !r.OK() {
		t.Errorf("after %s: %s", took, r)
	}
	wantText(t, r.String(), "stopped job "+job, "nothing was saved")
	end := d.ask(args{"job": job})
	if end.Err == nil || end.Err.Code != Cancelled || end.Facts["outcome"] == "exited" {
		t.Errorf("its end: %s", end)
	}
	wantText(t, end.String(), "CANCELLED: the script was stopped on request", "stdout:\nbegun")
	wantText(t, d.call("run_script", args{"job": job, "cancel": true}).String(), "had ended already", "CANCELLED")
	d.fails(NotFound, "run_script", args{"job": job, "commit": "always"})
	done := jobOf(d.ask(args{"language": "bash", "source": "true"}))
	d.end(done)
	wantText(t, d.ok("run_script", args{"job": done, "cancel": true}), "had ended already: exit 0")
	if out := d.outcomes(job); len(out) != 1 || out[0].Out.Outcome != "cancelled" || out[0].Err != "CANCELLED" || d.head() != before {
		t.Errorf("outcomes %+v", out)
	}
	d.verify()
}

// TestJobIsKept: a result is there for an hour after the end, and then it is
// told that it is not, and what came of it.
func TestJobIsKept(t *testing.T) {
	d := handing(t, nil)
	saved, failed := d.begin("echo out; sleep 0.3; echo x >x"), d.begin("sleep 0.3; echo y >y; exit 3")
	wantText(t, d.end(saved).String(), "SAVED as v2", "stdout:\nout")
	wantText(t, d.end(failed).String(), "NOT SAVED (exit 3")
	d.later(10 * time.Minute)
	for range 2 {
		wantText(t, d.ask(args{"job": saved}).String(), "SAVED as v2", "stdout:\nout", "/workspace/x", "to get it: ")
	}
	wantText(t, d.ask(args{"job": strings.ToLower(failed)}).String(), "NOT SAVED (exit 3", "kept for 60 minutes")
	d.later(51 * time.Minute)
	for job, words := range map[string]string{saved: "no longer kept: exit 0, saved as v2", failed: "no longer kept: exit 3, nothing of it was saved"} {
		for _, a := range []args{{"job": job}, {"job": job, "cancel": true}, {"job": job, "commit": "always"}} {
			wantText(t, d.fails(NotFound, "run_script", a), words)
		}
	}
	for _, job := range []string{ulid.Make().String(), d.call("list_files", nil).Call} {
		wantText(t, d.fails(NotFound, "run_script", args{"job": job}), "there is no job")
	}
	if len(d.jobs.all) > 0 || len(d.jobs.kept) > 0 {
		t.Errorf("%d jobs, %d kept", len(d.jobs.all), len(d.jobs.kept))
	}
	d.verify()
}

// TestNotSavedThenSaved: what a run left is saved by a later call, once.
func TestNotSavedThenSaved(t *testing.T) {
	for name, c := range map[string]struct {
		a    args
		says string
	}{
		"exit 1":       {args{"source": changesAll + "exit 1"}, "NOT SAVED (exit 1"},
		"commit never": {args{"source": changesAll, "commit": "never"}, "NOT SAVED (exit 0"},
		"signal":       {args{"source": changesAll + "kill -KILL $$"}, "NOT SAVED (killed by SIGKILL"},
		"timeout":      {args{"source": changesAll + "sleep 60"}, "NOT SAVED (timed out"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := setup{config: func(c *Config) { c.Limits.Script.Timeout = 3 * time.Second }}.scripted(t)
			for _, f := range []string{"keep/old", "gone", "tree/a/b", "mode", "name", "touched"} {
				d.write(f, f+"\n")
			}
			c.a["language"] = "bash"
			r := d.script(c.a)
			job := jobOf(r)
			wantText(t, r.String(), c.says, "8 created, 1 modified, 5 deleted", `run_script {"job":"`+job+`","commit":"always"} saves them`, "kept for 60 minutes")
			save := d.call("run_script", args{"job": job, "commit": "always"})
			first, _, _ := strings.Cut(save.String(), "\n")
			wantText(t, first, "SAVED as v8 (job "+job, "8 created, 1 modified, 5 deleted")
			wantText(t, save.String(), "changed:\n", "to get it: ")
			d.checkSaved()
			rec := d.records(audit.Query{From: d.seen})[0]
			intent := d.records(audit.Query{From: d.seen - 1})[0]
			if rec.Ha != d.head() || rec.Hb == rec.Ha || rec.Src == "" || rec.Out.Changed == 0 || intent.Args["job"] != job || intent.Args["commit"] != "always" {
				t.Errorf("recorded as %+v", rec)
			}
			if log, err := d.im.Log(7, 9); err != nil || len(log) != 1 || log[0].Call != save.Call {
				t.Errorf("%+v, %v", log, err)
			}
			wantText(t, d.ok("run_script", args{"job": job, "commit": "always"}), "was saved already, as v8")
			wantText(t, d.ok("run_script", args{"job": job}), c.says, "its changes were saved later, as v8")
			if len(d.jobs.kept) > 0 {
				t.Errorf("%d are kept", len(d.jobs.kept))
			}
			d.later(2 * time.Hour)
			wantText(t, d.fails(NotFound, "run_script", args{"job": job}), "saved as v8")
			d.verify()
		})
	}
	d := newScripted(t)
	wantText(t, d.ok("run_script", args{"job": jobOf(d.bash("exit 1")), "commit": "always"}), "nothing to save")
	wantText(t, d.ok("run_script", args{"job": jobOf(d.bash("echo x >x")), "commit": "always"}), "was saved already, as v2")
}

// TestSaveUnderPolicy: saving later is no way round what a session may do.
func TestSaveUnderPolicy(t *testing.T) {
	d := setup{config: func(c *Config) { c.Policy.NoDelete = true }}.scripted(t)
	d.write("a", "a")
	d.write("b", "b")
	r := d.bash("rm a; exit 1")
	wantText(t, r.String(), "DELETE_DISABLED")
	d.fails(NotFound, "run_script", args{"job": jobOf(r), "commit": "always"})
	r = d.bash("echo x >>a; exit 1") // harmless, and then it is not
	d.cfg.Policy = Policy{}
	d.ok("delete_file", args{"path": "b"})
	d.cfg.Policy = Policy{NoDelete: true}
	wantText(t, d.ok("run_script", args{"job": jobOf(r), "commit": "always"}), "SAVED")
	if d.content("a") != "ax\n" {
		t.Error(d.tree())
	}
}

// during starts a script that waits for the file tools to change something.
func (d *disk) during(source string, change func()) Result {
	d.t.Helper()
	result := make(chan Result)
	go func() {
		result <- d.Call(context.Background(), "run_script", rawJSON(d.t, args{"language": "bash", "source": "sleep 0.5; " + source}))
	}()
	d.running(1)
	change()
	r := <-result
	d.seen = d.records(audit.Query{Reverse: true, Limit: 1})[0].N
	return r
}

// tool changes the disk without a look at the records.
func (d *disk) tool(name string, a args) {
	d.t.Helper()
	if r := d.Call(d.t.Context(), name, rawJSON(d.t, a)); !r.OK() {
		d.t.Errorf("%s: %s", name, r)
	}
}

// TestConflict: a path that others changed while the script ran is told and not
// overwritten, then on request it is, but not what they did after that.
func TestConflict(t *testing.T) {
	d := newScripted(t)
	for _, f := range []string{"both", "theirs", "mine", "dir/sub/f", "gone"} {
		d.write(f, f)
	}
	r := d.during("echo out; for f in both mine new dir/sub/g; do echo script >$f; done; rm gone", func() {
		d.tool("write_file", args{"path": "both", "content": "tool"})
		d.tool("write_file", args{"path": "theirs", "content": "tool"})
		d.tool("write_file", args{"path": "new", "content": "tool"})
		d.tool("delete_file", args{"path": "dir", "recursive": true})
		d.tool("delete_file", args{"path": "gone"})
	})
	before := d.tree()
	if r.OK() || r.Err.Code != VersionConflict || r.Facts["saved"] != false {
		t.Fatal(r)
	}
	job := jobOf(r)
	wantText(t, r.String(), "VERSION_CONFLICT: nothing was saved (exit 0): ", "changed by others since it began", "stdout:\nout",
		`hint: look at them; run_script {"job":"`+job+`","commit":"always"} then saves over them`,
		"  /workspace/both  now v7", "  /workspace/new  now v9", "  /workspace/dir/sub  deleted in v10")
	if strings.Contains(r.String(), "theirs") || strings.Contains(r.String(), "mine  now") {
		t.Errorf("what is no conflict is told: %s", r)
	}
	wantText(t, d.ask(args{"job": job}).String(), "VERSION_CONFLICT", "/workspace/both  now v7", "stdout:\nout")
	// One of them is changed again, and so is another path of the script.
	d.write("both", "again")
	d.write("mine", "now too")
	text := d.fails(VersionConflict, "run_script", args{"job": job, "commit": "always"})
	wantText(t, text, "2 paths", "  /workspace/both  now v12", "  /workspace/mine  now v13")
	if strings.Contains(text, "/workspace/new") || d.content("both") != "again" {
		t.Error(text)
	}
	wantText(t, d.ok("run_script", args{"job": job, "commit": "always"}), "SAVED as v14")
	for f, want := range map[string]string{"both": "script\n", "mine": "script\n", "new": "script\n", "dir/sub/g": "script\n", "theirs": "tool"} {
		if got := d.content(f); got != want {
			t.Errorf("%s holds %q", f, got)
		}
	}
	if before == d.tree() {
		t.Error("nothing changed")
	}
	d.verify()
}

// TestConflictOfWhatWasNotSaved: a run that was not to be saved is not told of
// conflicts before somebody wants it saved.
func TestConflictOfWhatWasNotSaved(t *testing.T) {
	d := newScripted(t)
	d.write("a", "a")
	r := d.during("echo script >a; exit 1", func() { d.tool("write_file", args{"path": "a", "content": "tool"}) })
	wantText(t, r.String(), "NOT SAVED (exit 1", "1 modified", "saves them")
	wantText(t, d.fails(VersionConflict, "run_script", args{"job": jobOf(r), "commit": "always"}), "1 path ", "was changed by others", "/workspace/a  now v3")
	wantText(t, d.ok("run_script", args{"job": jobOf(r), "commit": "always"}), "SAVED as v4")
}

// TestDisjointMerge: what a script and others changed in different places comes
// together.
func TestDisjointMerge(t *testing.T) {
	d := newScripted(t)
	d.write("dir/a", "a")
	d.write("dir/b", "b")
	r := d.during("echo script >dir/a; echo n >dir/n", func() {
		d.tool("write_file", args{"path": "dir/b", "content": "tool"})
		d.tool("write_file", args{"path": "dir/m", "content": "tool"})
	})
	wantText(t, r.String(), "SAVED as v6", "1 created, 1 modified")
	for f, want := range map[string]string{"dir/a": "script\n", "dir/n": "n\n", "dir/b": "tool", "dir/m": "tool"} {
		if got := d.content(f); got != want {
			t.Errorf("%s holds %q", f, got)
		}
	}
}

// TestEachSeesItsStart: scripts side by side see the disk as it was when each
// began, to their end.
func TestEachSeesItsStart(t *testing.T) {
	d := handing(t, nil)
	d.write("f", "one")
	look := "cat f; until [ -e /tmp/over ]; do sleep 0.02; n=$((n+1)); [ $n = 40 ] && touch /tmp/over; done; cat f"
	first := d.begin(look)
	d.running(1)
	d.tool("write_file", args{"path": "f", "content": "two"})
	second := d.begin(look)
	d.running(2)
	d.tool("write_file", args{"path": "f", "content": "three"})
	wantText(t, d.end(first).String(), "stdout:\noneone\n")
	wantText(t, d.end(second).String(), "stdout:\ntwotwo\n")
	wantText(t, d.end(jobOf(d.ask(args{"language": "bash", "source": "cat f"}))).String(), "stdout:\nthree\n")
}

// TestFileToolsDoNotWait: beside a long script the file tools work as ever.
func TestFileToolsDoNotWait(t *testing.T) {
	d := handing(t, nil)
	job := d.begin("echo x >x; sleep 60")
	d.running(1)
	start := time.Now()
	for i := range 100 {
		d.tool("write_file", args{"path": fmt.Sprint("f", i), "content": "x"})
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("100 writes took %s", took)
	}
	d.ask(args{"job": job, "cancel": true})
	if r := d.end(job); r.Err == nil || r.Err.Code != Cancelled {
		t.Error(r)
	}
}

// TestQueue: the fifth of four waits, and is BUSY or comes next; what may take
// too much memory together does not run together, and one always runs.
func TestQueue(t *testing.T) {
	d := handing(t, func(c *Config) { c.Limits.Queue = 400 * time.Millisecond })
	var jobs []string
	for range 4 {
		jobs = append(jobs, d.begin("sleep 60"))
	}
	d.running(4)
	r := d.ask(args{"language": "bash", "source": "echo x >x"})
	wantText(t, r.String(), "RUNNING", "it waits for its turn", "(no output so far)")
	if end := d.end(jobOf(r)); end.Err == nil || end.Err.Code != Busy {
		t.Error(end)
	}
	d.ask(args{"job": jobs[0], "cancel": true})
	d.end(jobs[0])
	wantText(t, d.end(jobOf(d.ask(args{"language": "bash", "source": "echo next"}))).String(), "stdout:\nnext")
	d.Close()
	if n := len(d.records(audit.Query{Match: map[string][]string{"ev": {"call.outcome"}, "out.outcome": {"cancelled"}}})); n != 4 {
		t.Errorf("%d scripts were cancelled", n)
	}
	wantText(t, d.ask(args{"language": "bash", "source": "true"}).String(), "CANCELLED: ", "session ends")
	d.verify()

	d = handing(t, func(c *Config) { c.Limits.Queue, c.Limits.ScriptMemory = 400*time.Millisecond, 1 })
	job := d.begin("sleep 60")
	d.running(1)
	if end := d.end(jobOf(d.ask(args{"language": "bash", "source": "true"}))); end.Err == nil || end.Err.Code != Busy {
		t.Error(end)
	}
	d.ask(args{"job": job, "cancel": true})
}

// TestClientOfAJob: a call that is not answered ends with its client, one that
// was handed over does not, and neither does the job of a poll that ends.
func TestClientOfAJob(t *testing.T) {
	d := handing(t, func(c *Config) { c.Limits.Answer = time.Hour })
	ctx, hangUp := context.WithCancelCause(t.Context())
	go func() { d.running(1); hangUp(errHungUp) }()
	r := d.Call(ctx, "run_script", rawJSON(t, args{"language": "bash", "source": "echo x >x; sleep 60"}))
	if r.OK() || r.Err.Code != Cancelled {
		t.Error(r)
	}
	if out := d.outcomes(r.Call); len(out) != 1 || out[0].Out.Outcome != "cancelled" {
		t.Errorf("outcomes %+v", out)
	}
	d.cfg.Limits.Answer = 100 * time.Millisecond
	ctx, hangUp = context.WithCancelCause(t.Context())
	r = d.Call(ctx, "run_script", rawJSON(t, args{"language": "bash", "source": "sleep 0.6; echo y >y"}))
	hangUp(errHungUp)
	if poll := d.Call(ctx, "run_script", rawJSON(t, args{"job": jobOf(r)})); poll.OK() || poll.Err.Code != Cancelled {
		t.Error(poll)
	}
	wantText(t, d.end(jobOf(r)).String(), "SAVED")
	if d.content("y") != "y\n" || len(d.outcomes(jobOf(r))) != 1 {
		t.Error(d.tree())
	}
	d.verify()
}

// TestLostJob: what a job of a server that died was is told from the log.
func TestLostJob(t *testing.T) {
	d := newScripted(t)
	for name, c := range map[string]struct {
		recover string
		commit  bool
		says    string
	}{
		"settled as aborted":   {"aborted", false, "is lost, not committed: the server stopped while it ran"},
		"not settled":          {"", false, "is lost, not committed"},
		"settled as committed": {"committed", true, "its changes were saved as v2"},
	} {
		job := ulid.Make().String()
		rec := audit.Record{Ev: audit.EvCallIntent, Call: job, Tool: "run_script", Img: d.streamName}
		records := []audit.Record{rec}
		if rec.Ev, rec.Reason = audit.EvRecover, c.recover; c.recover != "" {
			records = append(records, rec)
		}
		for _, r := range records {
			if _, err := d.log.Append(t.Context(), d.streamName, audit.Entry{Record: r}); err != nil {
				t.Fatal(err)
			}
		}
		if c.commit {
			if _, err := d.im.Commit(t.Context(), workspace.Txn{Call: job, Changes: files("lost")}); err != nil {
				t.Fatal(err)
			}
		}
		for _, a := range []args{{"job": job}, {"job": job, "cancel": true}, {"job": job, "commit": "always"}} {
			r := d.ask(a)
			if r.OK() || r.Err.Code != NotFound || !strings.Contains(r.String(), c.says) {
				t.Errorf("%s: %s", name, r)
			}
		}
	}
}

// TestOutputThatIsNotKept: what is over the limit, or finds no room on the
// host, is counted and does the script no harm; its end is told all the same.
func TestOutputThatIsNotKept(t *testing.T) {
	for name, c := range map[string]struct{ scratch, source, says string }{
		"9 MB":    {"", "seq 1300000; echo the end", "of output behind this were not kept: at most 8.4 MB are]"},
		"no room": {"none", "seq 30000; echo the end", "of output behind this could not be kept: the host has no room for it]"},
	} {
		t.Run(name, func(t *testing.T) {
			place := t.TempDir()
			d := setup{config: func(c2 *Config) { c2.Scratch = filepath.Join(place, c.scratch) }}.scripted(t)
			r := d.bash(c.source + "; echo x >x")
			wantText(t, r.String(), "SAVED", "the end")
			size, next := r.Facts["stdout_bytes"].(int64), int64(0)
			for at := int64(1 << 40); ; at = next {
				r = d.call("run_script", args{"job": jobOf(r), "output_offset": at})
				if next = r.Facts["output_offset"].(int64); r.Facts["more"] == false {
					break
				}
			}
			wantText(t, r.String(), c.says, "the end of stdout:\n", "\nthe end\n", "SAVED")
			if next > maxOutput || next+r.Facts["output_lost"].(int64) != size {
				t.Errorf("%d kept, %v lost of %d", next, r.Facts["output_lost"], size)
			}
			if left, err := os.ReadDir(place); err != nil || len(left) > 0 {
				t.Errorf("in scratch: %v, %v", left, err)
			}
		})
	}
}

// TestJobArguments: what does not go together is refused before any effect.
func TestJobArguments(t *testing.T) {
	d := newDisk(t)
	job := ulid.Make().String()
	for _, c := range []struct {
		a     args
		words string
	}{
		{args{}, "language: is missing"},
		{args{"source": "x"}, "language: is missing"},
		{args{"commit": "always"}, "language: is missing"},
		{args{"cancel": true}, "cancel: goes only with job"},
		{args{"language": "bash", "source": "x", "cancel": true}, "cancel: goes only with job"},
		{args{"language": "bash", "source": "x", "output_offset": 0}, "output_offset: goes only with job"},
		{args{"output_offset": 5}, "output_offset: goes only with job"},
		{args{"job": job, "language": "bash"}, "language: does not go with job"},
		{args{"job": job, "source": ""}, "source: does not go with job"},
		{args{"job": job, "path": "a"}, "path: does not go with job"},
		{args{"job": job, "args": []string{}}, "args: does not go with job"},
		{args{"job": job, "stdin": "x"}, "stdin: does not go with job"},
		{args{"job": job, "timeout_s": 5}, "timeout_s: does not go with job"},
		{args{"job": job, "commit": "never"}, "commit: with job only"},
		{args{"job": job, "commit": "on_success"}, "commit: with job only"},
		{args{"job": job, "cancel": true, "commit": "always"}, "cancel and commit do not go together"},
		{args{"job": job, "cancel": true, "output_offset": 0}, "output_offset: goes only with waiting"},
		{args{"job": job, "commit": "always", "output_offset": 7}, "output_offset: goes only with waiting"},
		{args{"job": job, "output_offset": -1}, "output_offset: must be at least 0"},
		{args{"job": job, "output_offset": "x"}, "output_offset: must be a whole number"},
		{args{"job": ""}, `job: "" is no id`},
		{args{"job": "last"}, `job: "last" is no id`},
		{args{"job": strings.Repeat("9", 26)}, "is no id"},
		{args{"job": strings.Repeat("x", 1<<20)}, "is no id"},
		{args{"job": 7}, "job: must be a string"},
		{args{"job": job, "cancel": "maybe"}, "cancel: must be true or false"},
	} {
		wantText(t, d.refused(InvalidArgument, "run_script", c.a), c.words, "\nhint: ")
	}
	for _, a := range []args{{"job": job}, {"job": job, "cancel": "true"}, {"job": job, "cancel": false}, {"job": job, "output_offset": 0}, {"job": job, "commit": "always"}} {
		wantText(t, d.fails(NotFound, "run_script", a), "there is no job")
	}
}

// TestPanicInAJob: a fault of ours ends the job and not the process.
func TestPanicInAJob(t *testing.T) {
	d := newScripted(t)
	d.cfg.Image = nil
	r := d.call("run_script", args{"language": "bash", "source": "echo x >x"})
	d.cfg.Image = d.im
	if r.OK() || r.Err.Code != Internal {
		t.Error(r)
	}
	wantText(t, r.String(), "INTERNAL: ", "nothing was changed", "job ")
	wantText(t, d.bash("echo x >x").String(), "SAVED")
	d.verify()
}

// TestKeptBounds: of too many runs, or too much, the oldest are given up, and
// the disk does not hold on to what nobody can save any more.
func TestKeptBounds(t *testing.T) {
	d := newScripted(t)
	d.jobs.room = 9 << 20
	var jobs []string
	for i := range maxKept + 2 {
		jobs = append(jobs, jobOf(d.bash(fmt.Sprintf("echo %d >f%d; exit 1", i, i))))
	}
	for _, job := range jobs[:2] {
		wantText(t, d.fails(NotFound, "run_script", args{"job": job, "commit": "always"}), "are not kept", "NOT SAVED (exit 1")
		wantText(t, d.ok("run_script", args{"job": job}), "NOT SAVED (exit 1", "no longer kept")
	}
	wantText(t, d.ok("run_script", args{"job": jobs[2], "commit": "always"}), "SAVED", "/workspace/f2")
	wantText(t, d.bash("for i in 1 2 3 4; do truncate -s 3M s$i; done; exit 1").String(), "NOT SAVED", "too much to be kept")
	wantText(t, d.bash("truncate -s 8M big; exit 1").String(), "NOT SAVED", "saves them")
	if n := len(d.jobs.kept); n > 8 {
		t.Errorf("%d are kept", n)
	}
	// Ended runs are bounded, and those with something to save outlast others.
	last := jobOf(d.bash("echo last >last; exit 1"))
	for range maxEnded + 5 {
		d.bash("true")
	}
	wantText(t, d.ok("run_script", args{"job": last, "commit": "always"}), "SAVED")
	if n := len(d.jobs.all); n > maxEnded+1 {
		t.Errorf("%d runs are remembered", n)
	}
	d.Close()
	d.Close()
	d.reopen(setup{}, workspace.OpenOptions{})
}

// TestQuotaThenSaved: what did not fit is saved when there is room.
func TestQuotaThenSaved(t *testing.T) {
	d := setup{image: workspace.CreateOptions{QuotaBytes: 2000, QuotaEntries: 10}}.scripted(t)
	d.write("old", strings.Repeat("x", 1500))
	text := d.fails(QuotaExceeded, "run_script", args{"language": "bash", "source": "head -c 1000 /dev/zero >new"})
	m := regexp.MustCompile(`\{"job":"(\w+)","commit":"always"\}`).FindStringSubmatch(text)
	if m == nil {
		t.Fatal(text)
	}
	d.fails(QuotaExceeded, "run_script", args{"job": m[1], "commit": "always"})
	d.ok("delete_file", args{"path": "old"})
	wantText(t, d.ok("run_script", args{"job": m[1], "commit": "always"}), "SAVED", "/workspace/new  1.0 kB")
}

// TestTwoSaves: two calls at once save a run once.
func TestTwoSaves(t *testing.T) {
	d := newScripted(t)
	job := jobOf(d.bash("echo x >x; exit 1"))
	var all sync.WaitGroup
	texts := make([]string, 8)
	for i := range texts {
		all.Go(func() {
			texts[i] = d.Call(t.Context(), "run_script", rawJSON(t, args{"job": job, "commit": "always"})).String()
		})
	}
	all.Wait()
	saved := slices.DeleteFunc(slices.Clone(texts), func(s string) bool { return strings.Contains(s, "saved already, as v2") })
	if len(saved) != 1 || !strings.HasPrefix(saved[0], "SAVED as v2") {
		t.Errorf("%q", texts)
	}
}

// TestNothingLeftRunning: jobs, polls and closing leave no goroutine.
func TestNothingLeftRunning(t *testing.T) {
	before := runtime.NumGoroutine()
	d := handing(t, nil)
	a, b := d.begin("sleep 60"), d.begin("sleep 0.2; exit 1")
	d.end(b)
	go d.Call(context.Background(), "run_script", rawJSON(t, args{"job": a}))
	d.Close()
	d.close()
	d.until("goroutines end", func() bool { return runtime.NumGoroutine() <= before+3 })
}
