package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// What jobs are to a client, from outside. The answer after 45 s is real, so the
// tests take as long; they run side by side.

// sections takes the output out of a result's text.
func sections(text string) (stdout string) {
	_, rest, ok := strings.Cut(text, "\nstdout:\n")
	if !ok {
		return ""
	}
	for _, end := range []string{"\n[stdout goes on in this line]", "\nstderr:\n", "\nchanged:\n", "\n[output up to", "\njob "} {
		if before, _, found := strings.Cut(rest+"\n", end); found {
			rest = before
			if end == "\n[stdout goes on in this line]" {
				return rest
			}
		}
	}
	return strings.TrimSuffix(rest, "\n") + "\n"
}

// job is the id that a result shows in words; it has to be the one of its facts.
func (r result) job(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile(`(?:"job":"|job )([0-9A-Z]{26})`).FindStringSubmatch(r.Text)
	if m == nil || m[1] != r.Facts["job"] {
		t.Fatalf("no job, or another one, in: %s; facts %v", r.Text, r.Facts)
	}
	return m[1]
}

// A script of a minute, or of three in a soak, is answered after 45 s, goes on, and
// is asked for until its end. Each answer shows what is new, so together they are
// what it printed. Meanwhile the file tools work, progress is told, and of two other
// jobs one is stopped.
func TestALongScriptIsAJob(t *testing.T) {
	t.Parallel()
	lines, pause := 1000, 0.052
	if os.Getenv("MCP_VDISK_SOAK") == "1" {
		lines, pause = 180, 1
	}
	var printed strings.Builder
	for i := range lines {
		fmt.Fprintln(&printed, "é漢🎉", i)
	}
	state := newState(t)
	s := serve(t, state)
	s.hello()
	begin := time.Now()
	s.send(`{"jsonrpc":"2.0","id":7000,"method":"tools/call","params":{"_meta":{"progressToken":"p"},"name":"run_script","arguments":` +
		encoded(object{"language": "python", "source": fmt.Sprintf("import time\nfor i in range(%d):\n  print('é漢🎉', i, flush=True)\n  time.sleep(%g)\nopen('made', 'w').write('x')", lines, pause)}) + `}}`)
	other := s.askCall("run_script", object{"language": "bash", "source": "echo $BASHPID; sleep 300"})
	marker := unique()
	third := s.askCall("run_script", object{"language": "bash", "args": []string{marker}, "source": "echo begun; echo x > never; sleep 300 & trap '' TERM INT; while :; do sleep 1; done"})
	for i := range 100 {
		s.ok("write_file", object{"path": fmt.Sprint("f", i), "content": "x"})
	}
	m, ok := s.await(60*time.Second, func(m message) bool { return string(m.ID) == "7000" && m.Method == "" })
	if took := m.at.Sub(begin); !ok || took < 44*time.Second || took > 46*time.Second {
		t.Fatalf("answered: %v, after %s", ok, took)
	} else {
		t.Logf("answered after %s", took)
	}
	r := m.result(t)
	job := r.job(t)
	if r.IsError || !strings.HasPrefix(r.Text, "RUNNING for 45") || r.Facts["saved"] != false {
		t.Errorf("the answer is %s", r.Text)
	}
	s.cancelled(third, marker)
	from, polls := s.page(r, 0, printed.String()), 0
	for ; r.Facts["outcome"] == "running"; polls++ {
		id, asked := s.askCall("run_script", object{"job": job, "output_offset": from}), time.Now()
		m, ok := s.await(60*time.Second, func(m message) bool { return string(m.ID) == id })
		if took := m.at.Sub(asked); !ok || took > 46*time.Second || polls > 8 {
			t.Fatalf("poll %d: answered: %v, after %s", polls, ok, took)
		}
		r = m.result(t)
		from = s.page(r, from, printed.String())
	}
	if from != printed.Len() {
		t.Errorf("shown were %d bytes, printed %d", from, printed.Len())
	}
	t.Logf("%d bytes of output in %d answers", from, polls+1)
	if !strings.HasPrefix(r.Text, "SAVED as v102 (exit 0") {
		t.Errorf("its end: %s", r.Text)
	}
	notes := 0
	for _, m := range s.all() {
		if m.Method == "notifications/progress" {
			notes++
		}
	}
	if notes < 8 {
		t.Errorf("%d notes of progress", notes)
	}
	// The other goes on until the session ends, and is in the log then.
	lasting := s.answer(other).result(t).job(t)
	tree := below(t, s.worker())
	begin = time.Now()
	s.end()
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("the server ended after %s", took)
	}
	if left := alive(t, tree); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	log := must(t, state, "audit", "query", "-o", "ndjson")
	end := regexp.MustCompile(`"ev":"call.outcome","call":"` + lasting + `".*"outcome":"cancelled"`).FindStringIndex(log)
	if stop := strings.LastIndex(log, "server.stop"); end == nil || stop < end[0] {
		t.Errorf("the end of %s is not in the log before the server's:\n%.2000s", lasting, log[max(len(log)-2000, 0):])
	}
	must(t, state, "audit", "verify")
	if out := command(t, state, "call", "run_script", `{"job":"`+lasting+`"}`); out.code != 5 || !strings.Contains(out.stdout, "no longer kept: cancelled, nothing of it was saved") {
		t.Errorf("asked for later: %+v", out)
	}
}

// page holds an answer to show exactly what was printed from an offset up to the one
// that it names, and returns that.
func (s *server) page(r result, from int, printed string) (next int) {
	s.t.Helper()
	offset, ok := r.Facts["output_offset"].(float64)
	if next = int(offset); !ok || next < from || next > len(printed) || sections(r.Text) != printed[from:next] {
		s.t.Fatalf("a page from %d to %v, of %d: %.2000s", from, r.Facts["output_offset"], len(printed), r.Text)
	}
	return next
}

// cancelled stops a job that was handed over: all of it is gone within two seconds,
// and its output is still there.
func (s *server) cancelled(id, marker string) {
	t := s.t.(*testing.T)
	t.Helper()
	job := s.answer(id).result(t).job(t)
	begin := time.Now()
	r := s.ok("run_script", object{"job": job, "cancel": true})
	took := time.Since(begin)
	if left := marked(t, marker); took > 2*time.Second || len(left) > 0 || !strings.HasPrefix(r.Text, "stopped job "+job) {
		t.Errorf("stopped after %s, left are %v: %s", took, left, r.Text)
	}
	t.Logf("a job was stopped in %s", took)
	if r := s.call("run_script", object{"job": job}); !r.IsError || !strings.HasPrefix(r.Text, "CANCELLED: ") || sections(r.Text) != "begun\n" {
		t.Errorf("asked for after that: %s", r.Text)
	}
	if r := s.call("read_file", object{"path": "never"}); !strings.HasPrefix(r.Text, "NOT_FOUND") {
		t.Errorf("it was saved: %s", r.Text)
	}
}

// A call at a terminal has nobody who would ask again, so it waits.
func TestACallAtATerminalWaits(t *testing.T) {
	t.Parallel()
	state := newState(t)
	out := must(t, state, "call", "run_script", `{"language":"bash","source":"sleep 46; echo end; echo x >x"}`)
	if !strings.HasPrefix(out, "SAVED as v2") || !strings.Contains(out, "stdout:\nend") {
		t.Error(out)
	}
}

// After a crash the next server knows of a job what the log and the disk say.
func TestAJobOfAServerThatWasKilled(t *testing.T) {
	t.Parallel()
	state := newState(t)
	s := serve(t, state)
	s.hello()
	saved := s.bash("echo x > x").job(t)
	dropped := s.bash("echo y > y; exit 1").job(t)
	marker := unique()
	s.askCall("run_script", object{"language": "bash", "args": []string{marker}, "source": "echo z > z; sleep 300; :"})
	within(t, patience, "the script runs", func() bool { return len(marked(t, marker)) > 0 })
	s.kill()
	within(t, 2*time.Second, "the script is gone", func() bool { return len(marked(t, marker)) == 0 })

	var lost string
	for line := range strings.Lines(must(t, state, "audit", "query", "ev=call.intent", "-o", "ndjson")) {
		var rec struct{ Call string }
		if err := json.Unmarshal([]byte(line), &rec); err != nil {
			t.Fatal(err)
		}
		lost = rec.Call
	}
	s = serve(t, state)
	s.hello()
	for job, says := range map[string]string{
		lost:    "job " + lost + " is lost, not committed: the server stopped while it ran",
		saved:   "the result of job " + saved + " is no longer kept: exit 0, saved as v2",
		dropped: "the result of job " + dropped + " is no longer kept: exit 1, nothing of it was saved",
	} {
		for _, args := range []object{{"job": job}, {"job": job, "commit": "always"}, {"job": job, "cancel": true}} {
			if r := s.call("run_script", args); !r.IsError || !strings.HasPrefix(r.Text, "NOT_FOUND: "+says) {
				t.Errorf("%v: %s", args, r.Text)
			}
		}
	}
	if r := s.ok("list_files", object{}); strings.Contains(r.Text, "/y") || strings.Contains(r.Text, "/z") {
		t.Errorf("what was not saved is there: %s", r.Text)
	}
	s.end()
	if left := entries(t, state+"/scratch"); len(left) > 0 {
		t.Errorf("in scratch: %v", left)
	}
}

// A client saves what a run left, and what was in conflict.
func TestSavingLater(t *testing.T) {
	t.Parallel()
	s := serve(t, newState(t))
	s.hello()
	s.ok("write_file", object{"path": "both", "content": "tool"})
	r := s.bash("echo report > report; exit 1")
	job := r.job(t)
	if !strings.HasPrefix(r.Text, "NOT SAVED (exit 1") || !strings.Contains(r.Text, `run_script {"job":"`+job+`","commit":"always"} saves them`) {
		t.Errorf("%s", r.Text)
	}
	for _, says := range []string{"SAVED as v3 (job " + job, "job " + job + " was saved already, as v3"} {
		if r := s.ok("run_script", object{"job": job, "commit": "always"}); !strings.HasPrefix(r.Text, says) {
			t.Errorf("%s", r.Text)
		}
	}
	marker := unique()
	id := s.askCall("run_script", object{"language": "bash", "args": []string{marker}, "source": "sleep 1; echo script > both"})
	within(t, patience, "the script runs", func() bool { return len(marked(t, marker)) > 0 })
	s.ok("write_file", object{"path": "both", "content": "tool again"})
	r = s.answer(id).result(t)
	if !r.IsError || !strings.HasPrefix(r.Text, "VERSION_CONFLICT: ") || !strings.Contains(r.Text, "  /workspace/both  now v4") {
		t.Errorf("%s", r.Text)
	}
	s.ok("run_script", object{"job": r.job(t), "commit": "always"})
	if r := s.ok("read_file", object{"path": "both"}); !strings.HasPrefix(r.Text, "script\n") {
		t.Errorf("%s", r.Text)
	}
	if r := s.ok("read_file", object{"path": "both", "at": "v4"}); !strings.HasPrefix(r.Text, "tool again\n") {
		t.Errorf("%s", r.Text)
	}
	s.end()
}
