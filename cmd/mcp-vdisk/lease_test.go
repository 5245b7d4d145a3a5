package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Leases as clients and persons meet them: sessions that hold a disk for
// themselves, operators that take it back, and state directories that do not know
// what their disks have seen.

// operatorToken makes a token of a state directory, and names its file.
func operatorToken(t testing.TB, state string) string {
	t.Helper()
	token := filepath.Join(passable(t), "token")
	if out := typedBy(t, state, "token", "operator", "token", token); out.code != 0 {
		t.Fatalf("operator token: exit %d\n%s", out.code, out.stderr)
	}
	return token
}

// typedBy runs a command on a terminal, on which a word is typed; it asks the daemon
// if there is one.
func typedBy(t testing.TB, state, word string, args ...string) output {
	t.Helper()
	cmd := exec.Command(program, append([]string{"--state", state}, args...)...)
	cmd.Dir = filepath.Dir(state)
	cmd.Env = append(os.Environ(), withDaemon...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := typing(cmd, word)
	if cmd.ProcessState == nil {
		t.Fatalf("%v: %s", args, err)
	}
	return output{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// breakLease ends the lease of a disk.
func breakLease(t testing.TB, state, token, disk string) output {
	t.Helper()
	return viaDaemon(t, state, "lease", "break", disk, "--why", "a test", "--operator-token", token)
}

// leases is what `lease list` says.
func leases(t testing.TB, state string) []leaseFacts {
	t.Helper()
	out := viaDaemon(t, state, "lease", "list", "--json")
	var all []leaseFacts
	if err := json.Unmarshal([]byte(out.stdout), &all); err != nil || out.code != 0 {
		t.Fatalf("lease list: exit %d, %v\n%s%s", out.code, err, out.stdout, out.stderr)
	}
	return all
}

type leaseFacts struct {
	Disk, UUID, Owner, Client string
	Token                     uint64
	Exclusive, Over           bool
}

// logged are the records of an event, or all.
func logged(t testing.TB, state string, match ...string) []record {
	t.Helper()
	out := viaDaemon(t, state, append([]string{"audit", "query", "--all", "-o", "ndjson"}, match...)...)
	if out.code != 0 {
		t.Fatalf("audit query: exit %d\n%s", out.code, out.stderr)
	}
	var all []record
	for line := range strings.Lines(out.stdout) {
		r := record{line: line}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%s: %s", err, line)
		}
		all = append(all, r)
	}
	return all
}

type record struct {
	Ev, Call, Tool, Err, Dec, Reason string
	Fence                            uint64
	Args                             map[string]any
	line                             string
}

// byWhom holds a record to name who is behind it.
func (r record) byWhom(t testing.TB) {
	t.Helper()
	for _, key := range []string{"op_uid", "op_pid", "op_parent"} {
		if _, ok := r.Args[key]; !ok {
			t.Errorf("no %s in %s", key, r.line)
		}
	}
}

// refusedAs holds a result to be a refusal with this code, and a hint.
func (r result) refusedAs(t testing.TB, code string, says ...string) {
	t.Helper()
	if !r.IsError || !strings.HasPrefix(r.Text, code+": ") || !strings.Contains(r.Text, "\nhint: ") {
		t.Errorf("not refused as %s: %s", code, r.Text)
	}
	for _, s := range says {
		if !strings.Contains(r.Text, s) {
			t.Errorf("%q is not in: %s", s, r.Text)
		}
	}
}

func write(path, content string) object { return object{"path": path, "content": content} }

// healthy holds a state to an intact log, and a disk that agrees with it.
func healthy(t testing.TB, state string, disks ...string) {
	t.Helper()
	if out := viaDaemon(t, state, "audit", "verify", "--all"); out.code != 0 {
		t.Errorf("audit verify: exit %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	for _, d := range disks {
		if out := viaDaemon(t, state, "image", "fsck", d, "--cross"); out.code != 0 {
			t.Errorf("fsck of %s: exit %d\n%s%s", d, out.code, out.stdout, out.stderr)
		}
	}
}

// Beside an exclusive session others read and change nothing, whatever they are;
// when it is over they go on at once. All of it is in the log.
func TestExclusiveSession(t *testing.T) {
	state := daemonState(t)
	b := shared(t, state)
	b.hello()
	b.ok("write_file", write("before.txt", "of b\n"))
	if got := leases(t, state); len(got) != 1 || got[0].Exclusive || got[0].Disk != "default" || got[0].Client != "all sessions" {
		t.Errorf("before the exclusive session: %+v", got)
	}
	a := shared(t, state, "--exclusive")
	a.hello()
	a.ok("write_file", write("a.txt", "of a\n"))
	if r := a.bash("echo done > script.txt"); r.IsError {
		t.Error(r.Text)
	}
	for tool, args := range map[string]object{
		"write_file":     write("b.txt", "x"),
		"make_directory": {"path": "d"},
		"delete_file":    {"path": "a.txt"},
		"run_script":     {"language": "bash", "source": "echo x > x"},
	} {
		b.call(tool, args).refusedAs(t, "LEASE_HELD", `with the client "test 1"`, "unless it is renewed", "reading works")
	}
	if got := b.ok("read_file", object{"path": "a.txt"}).Text; !strings.Contains(got, "of a") {
		t.Errorf("b reads %q", got)
	}
	b.ok("list_files", object{})

	// Of two the second does not begin, and says who is in its way.
	second := shared(t, state, "--exclusive")
	second.refused(t, 6, "LEASE_HELD", `"test 1"`, "lease break default")

	host := filepath.Join(passable(t), "file")
	if err := os.WriteFile(host, []byte("of the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"image", "put", host, "/workspace/"}, {"image", "rm", "a.txt"}, {"image", "restore", "v1"}, {"image", "undo", "v2"},
		{"image", "checkpoint", "now"}, {"call", "write_file", `{"path":"x","content":"x"}`}, {"image", "fsck", "--repair"},
		{"call", "--exclusive", "write_file", `{"path":"x","content":"x"}`},
	} {
		out := viaDaemon(t, state, args...)
		says := "LEASE_HELD: another session"
		if args[1] == "fsck" {
			says = "disk default is in use"
		}
		if out.code != 6 || !strings.Contains(out.stdout+out.stderr, says) {
			t.Errorf("%s: exit %d\n%s%s", strings.Join(args, " "), out.code, out.stdout, out.stderr)
		}
	}
	for _, args := range [][]string{
		{"image", "cat", "a.txt"}, {"image", "get", "a.txt", filepath.Join(filepath.Dir(host), "got")}, {"image", "log"}, {"image", "diff", "v1"}, {"image", "list"},
		{"image", "tree"}, {"image", "show"}, {"image", "fsck", "--cross"}, {"image", "restore", "v1", "--dry-run"}, {"image", "checkpoint"},
		{"call", "read_file", `{"path":"a.txt"}`}, {"audit", "verify"}, {"jobs", "list"}, {"daemon", "status"},
	} {
		if out := viaDaemon(t, state, args...); out.code != 0 {
			t.Errorf("%s: exit %d\n%s%s", strings.Join(args, " "), out.code, out.stdout, out.stderr)
		}
	}
	held := leases(t, state)
	if len(held) != 1 || !held[0].Exclusive || held[0].Client != "test 1" || held[0].Disk != "default" || held[0].Over {
		t.Fatalf("leases: %+v", held)
	}
	if out := viaDaemon(t, state, "lease", "list"); !strings.Contains(out.stdout, "exclusive") || !strings.Contains(out.stdout, "test 1") {
		t.Errorf("lease list:\n%s", out.stdout)
	}
	a.end()
	b.ok("write_file", write("b.txt", "of b again\n"))
	third := shared(t, state, "--exclusive")
	third.hello()
	third.ok("write_file", write("third.txt", "x"))
	third.end()

	var events []string
	for _, r := range logged(t, state) {
		switch {
		case strings.HasPrefix(r.Ev, "lease."):
			events = append(events, r.Ev)
			r.byWhom(t)
			if r.Fence == 0 || r.Args["exclusive"] != true || r.Args["client"] == "" {
				t.Error(r.line)
			}
			if len(events) <= 2 && r.Fence != held[0].Token {
				t.Errorf("token %d of %d: %s", r.Fence, held[0].Token, r.line)
			}
		case r.Ev == "call.outcome" || r.Ev == "call.intent":
			if r.Fence == 0 {
				t.Errorf("no token: %s", r.line)
			}
		}
	}
	if got := strings.Join(events, " "); got != "lease.acquire lease.release lease.acquire lease.release" {
		t.Errorf("the log has %s", got)
	}
	if refused := logged(t, state, "err=LEASE_HELD"); len(refused) != 5 {
		t.Errorf("%d refusals by LEASE_HELD", len(refused))
	}
	healthy(t, state, "default")
}

// refused waits for the end of a session that did not begin.
func (s *server) refused(t testing.TB, code int, says ...string) {
	t.Helper()
	select {
	case <-s.exited:
	case <-time.After(patience):
		t.Fatalf("it did not end: %s", s.words())
	}
	s.mu.Lock()
	s.reaped = true
	s.mu.Unlock()
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("exit %d, want %d: %s", got, code, s.words())
	}
	for _, w := range says {
		if !strings.Contains(s.words(), w) {
			t.Errorf("%q is not in: %s", w, s.words())
		}
	}
}

// What goes with --exclusive, and what does not.
func TestExclusiveRefused(t *testing.T) {
	state := daemonState(t)
	shared(t, state, "--exclusive", "--read-only").refused(t, 2, "--exclusive", "--read-only")
	command := func(args ...string) output { return viaDaemon(t, state, args...) }
	if out := command("call", "--exclusive", "write_file", `{"path":"x","content":"x"}`); out.code != 0 {
		t.Errorf("an exclusive call: exit %d %s", out.code, out.stdout+out.stderr)
	}
	b := shared(t, state)
	b.hello()
	b.ok("write_file", write("a.txt", "x")) // the call's lease has ended
	id := b.askCall("run_script", object{"language": "bash", "source": "sleep 60"})
	within(t, patience, "the script runs", func() bool { return daemonFactsOf(t, state).Scripts == 1 })
	shared(t, state, "--exclusive").refused(t, 6, "a script of another session runs", "jobs list")
	b.ok("write_file", write("a.txt", "still mine"))
	b.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, id))
	within(t, patience, "the script is gone", func() bool { return daemonFactsOf(t, state).Scripts == 0 })
	a := shared(t, state, "--exclusive")
	a.hello()
	a.ok("write_file", write("a.txt", "y"))

	// A disk that nobody can write.
	path := filepath.Join(state, "images", "fixed.vdisk")
	if out := viaDaemon(t, state, "image", "create", "fixed"); out.code != 0 {
		t.Fatal(out.stderr)
	}
	if err := os.Chmod(path, 0o444); err != nil {
		t.Fatal(err)
	}
	shared(t, state, "--exclusive", "--image", "fixed").refused(t, 4)
	r := shared(t, state, "--read-only", "--image", "fixed")
	r.hello()
	r.ok("list_files", object{})
	shared(t, state, "--exclusive", "--image", "fixed").refused(t, 6, "open for reading only")
}

// Who holds a disk and is killed holds it no longer.
func TestExclusiveSessionIsKilled(t *testing.T) {
	state := daemonState(t)
	a, b := shared(t, state, "--exclusive"), shared(t, state)
	a.hello()
	b.hello()
	a.ok("write_file", write("a.txt", "x"))
	mark := unique()
	a.askCall("run_script", object{"language": "bash", "source": "exec -a " + mark + " sleep 60"})
	within(t, patience, "the script runs", func() bool { return running(t, mark) })
	a.torn = true
	a.kill()
	took := within(t, 2*time.Second, "another session writes", func() bool { return !b.call("write_file", write("b.txt", "x")).IsError })
	if running(t, mark) {
		t.Error("the script of the session that was killed runs on")
	}
	t.Logf("after %s", took)
	if got := logged(t, state, "ev=lease.release"); len(got) != 1 {
		t.Errorf("%d records of the end", len(got))
	}
	b.end()
	healthy(t, state, "default")
}

// An exclusive session survives its daemon, and has the disk for itself again.
// Where somebody else was faster it can read, and is told so.
func TestTheDaemonOfAnExclusiveSessionIsKilled(t *testing.T) {
	state := daemonState(t)
	a, b := shared(t, state, "--exclusive"), shared(t, state)
	a.hello()
	b.hello()
	a.ok("write_file", write("a.txt", "1"))
	killDaemon(t, state)
	within(t, patience, "the session holds the disk again", func() bool {
		l := leases(t, state)
		return len(l) == 1 && l[0].Exclusive && !l[0].Over
	})
	a.ok("write_file", write("a.txt", "2"))
	b.call("write_file", write("b.txt", "x")).refusedAs(t, "LEASE_HELD")

	syscall.Kill(a.cmd.Process.Pid, syscall.SIGSTOP)
	killDaemon(t, state)
	c := shared(t, state, "--exclusive")
	c.hello()
	c.ok("write_file", write("c.txt", "x"))
	syscall.Kill(a.cmd.Process.Pid, syscall.SIGCONT)
	within(t, patience, "the session is told", func() bool { return strings.Contains(a.words(), "can only read now") })
	a.call("write_file", write("a.txt", "3")).refusedAs(t, "FENCED", "connect the client again")
	if got := a.ok("read_file", object{"path": "c.txt"}).Text; !strings.Contains(got, "x") {
		t.Errorf("it reads %q", got)
	}
	c.end()
	a.call("write_file", write("a.txt", "3")).refusedAs(t, "FENCED")
	b.ok("write_file", write("b.txt", "x"))
	a.end()
	b.end()
	healthy(t, state, "default")
}

// When `lease break` returns nothing runs any more that ran under the lease, its
// late result is refused, and the disk is everybody's.
func TestBreakAnExclusiveSession(t *testing.T) {
	state := daemonState(t)
	token := operatorToken(t, state)
	a, b := shared(t, state, "--exclusive"), shared(t, state)
	a.hello()
	b.hello()
	a.ok("write_file", write("a.txt", "1"))
	kept := a.call("run_script", object{"language": "bash", "commit": "never", "source": "echo kept > kept.txt"}).job(t)
	mark := unique()
	script := a.askCall("run_script", object{"language": "bash", "args": []string{mark}, "source": "trap '' TERM INT HUP; echo late > late.txt; setsid -f sleep 300; while :; do sleep 1; done"})
	within(t, patience, "the script runs", func() bool { return running(t, mark) })
	before := leases(t, state)[0]

	if out := viaDaemon(t, state, "lease", "break", "default", "--why", "x"); out.code != 4 || !strings.Contains(out.stderr, "terminal") {
		t.Errorf("unasked: exit %d %s", out.code, out.stderr)
	}
	if !running(t, mark) {
		t.Fatal("a refused break has an effect")
	}
	out := typedBy(t, state, "break", "lease", "break", "default", "--why", "the laptop is in the repair shop")
	if running(t, mark) {
		t.Error("the script runs after the break")
	}
	if out.code != 0 || !strings.Contains(out.stdout, "test 1") {
		t.Errorf("break: exit %d %s%s", out.code, out.stdout, out.stderr)
	}
	a.answer(script).result(t).refusedAs(t, "FENCED", `a person took this disk back ("the laptop is in the repair shop")`)
	a.call("write_file", write("a.txt", "2")).refusedAs(t, "FENCED", `a person took it back ("the laptop is in the repair shop")`, "connect the client again", "lease list")
	if !strings.Contains(a.words(), "can only read now: a person took it back") {
		t.Errorf("the person is told %s", a.words())
	}
	a.call("run_script", object{"job": kept, "commit": "always"}).refusedAs(t, "FENCED")
	a.ok("read_file", object{"path": "a.txt"})
	if out := breakLease(t, state, token, "default"); out.code != 3 {
		t.Errorf("a second break: exit %d %s", out.code, out.stdout+out.stderr)
	}
	b.ok("write_file", write("b.txt", "x"))
	b.ok("run_script", object{"job": kept, "commit": "always"})
	if got := viaDaemon(t, state, "image", "tree").stdout; strings.Contains(got, "late") || !strings.Contains(got, "kept.txt") {
		t.Errorf("the disk holds\n%s", got)
	}
	a.end()
	again := shared(t, state, "--exclusive")
	again.hello()
	again.ok("write_file", write("a.txt", "3"))
	again.end()

	broken := logged(t, state, "ev=lease.break")
	if len(broken) != 1 || broken[0].Fence != before.Token || broken[0].Args["why"] != "the laptop is in the repair shop" || broken[0].Args["owner"] != before.Owner ||
		broken[0].Args["client"] != "test 1" || broken[0].Args["exclusive"] != true || !strings.HasPrefix(fmt.Sprint(broken[0].Args["op_tty"]), "/dev/pts/") {
		t.Errorf("the log has %v", broken)
	}
	broken[0].byWhom(t)
	for _, r := range logged(t, state, "ev=call.outcome", "err=FENCED") {
		if r.Fence != before.Token {
			t.Errorf("the late result was not under token %d: %s", before.Token, r.line)
		}
	}
	healthy(t, state, "default")
}

// The lease of all sessions can be broken too: what runs dies, and everybody goes
// on without connecting again.
func TestBreakTheLeaseOfAll(t *testing.T) {
	state := daemonState(t)
	token := operatorToken(t, state)
	a, b := shared(t, state), shared(t, state)
	a.hello()
	b.hello()
	if out := breakLease(t, state, token, "default"); out.code != 3 || !strings.Contains(out.stderr, "nobody holds") {
		t.Errorf("of a disk that nobody holds: exit %d %s", out.code, out.stderr)
	}
	marks := []string{unique(), unique()}
	var ids []string
	for i, s := range []*server{a, b} {
		ids = append(ids, s.askCall("run_script", object{"language": "bash", "args": []string{marks[i]}, "source": "echo x > " + marks[i] + "; sleep 300"}))
	}
	within(t, patience, "the scripts run", func() bool { return running(t, marks[0]) && running(t, marks[1]) })
	if out := breakLease(t, state, token, "default"); out.code != 0 {
		t.Errorf("break: exit %d %s", out.code, out.stderr)
	}
	if running(t, marks[0]) || running(t, marks[1]) {
		t.Error("a script runs after the break")
	}
	for i, s := range []*server{a, b} {
		s.answer(ids[i]).result(t).refusedAs(t, "FENCED")
		s.ok("write_file", write(marks[i], "again"))
		if r := s.bash("echo y >> " + marks[i]); r.IsError {
			t.Error(r.Text)
		}
	}
	if out := breakLease(t, state, token, "default"); out.code != 0 {
		t.Errorf("break: exit %d %s", out.code, out.stderr)
	}
	a.ok("write_file", write("last", "x"))
	tokens := map[uint64]bool{}
	for _, r := range logged(t, state, "ev=call.outcome") {
		tokens[r.Fence] = true
	}
	if len(tokens) != 3 || tokens[0] {
		t.Errorf("the changes were made under %v", tokens)
	}
	healthy(t, state, "default")
}

// However a break meets commits, each is whole or refused, and what was
// acknowledged is there.
func TestBreakBetweenCommits(t *testing.T) {
	state := daemonState(t)
	token := operatorToken(t, state)
	a, b := shared(t, state), shared(t, state)
	a.hello()
	b.hello()
	big := strings.Repeat("0123456789abcdef", 1<<14)
	ended := make(chan bool)
	done := map[string]bool{}
	fenced := 0
	go func() {
		defer close(ended)
		for i := range 30 {
			path := fmt.Sprintf("f%d", i)
			switch r := a.call("write_file", write(path, big+path)); {
			case !r.IsError:
				done[path] = true
			case strings.HasPrefix(r.Text, "FENCED: "):
				fenced++
			default:
				t.Error(r.Text)
			}
		}
	}()
	breaks := 0
	for going := true; going; {
		select {
		case <-ended:
			going = false
		default:
			switch out := breakLease(t, state, token, "default"); out.code {
			case 0:
				breaks++
			case 3:
			default:
				t.Errorf("break: exit %d %s", out.code, out.stderr)
			}
		}
	}
	if breaks == 0 {
		t.Error("no break met a session at work")
	}
	tree := viaDaemon(t, state, "image", "tree").stdout
	for path := range done {
		if !strings.Contains(tree, "  "+path+"  ") {
			t.Errorf("%s was acknowledged and is not there", path)
		}
	}
	if n := strings.Count(tree, "KiB"); n != len(done) {
		t.Errorf("%d files, %d acknowledged", n, len(done))
	}
	t.Logf("%d breaks, %d writes, %d fenced", breaks, len(done), fenced)
	b.ok("write_file", write("after", "x"))
	healthy(t, state, "default")
}

// Reasons that are none, or that the log could not keep.
func TestReasons(t *testing.T) {
	state := daemonState(t)
	token := operatorToken(t, state)
	must(t, state, "image", "create", "d")
	for _, why := range []string{"", "  ", "\t", "two\nlines", "\x1b[2J", "\xff\xfe", "\u0085", strings.Repeat("x", 401), strings.Repeat("é", 60000)} {
		for _, verb := range []string{"break", "adopt"} {
			if out := viaDaemon(t, state, "lease", verb, "d", "--why", why, "--operator-token", token); out.code != 2 || !strings.Contains(out.stderr, "--why") {
				t.Errorf("lease %s for %.20q: exit %d %.200s", verb, why, out.code, out.stderr)
			}
		}
	}
	if out := viaDaemon(t, state, "lease", "break", "d", "--operator-token", token); out.code != 2 {
		t.Errorf("without a reason: exit %d %s", out.code, out.stderr)
	}
	for _, disk := range []string{"missing", "./missing.vdisk"} {
		if out := viaDaemon(t, state, "lease", "break", disk, "--why", "x", "--operator-token", token); out.code != 3 {
			t.Errorf("of a disk that is not there: exit %d %s", out.code, out.stderr)
		}
	}
	viaDaemon(t, state, "call", "--image", "d", "write_file", `{"path":"a","content":"x"}`)
	why := `"quoted" – Grüße, 漢字 ` + strings.Repeat("x", 350)
	s := shared(t, state, "--image", "d")
	s.hello()
	s.ok("write_file", write("a", "y"))
	if out := viaDaemon(t, state, "lease", "break", "d", "--why", why, "--operator-token", token); out.code != 0 {
		t.Errorf("exit %d %s", out.code, out.stderr)
	}
	if got := logged(t, state, "ev=lease.break"); len(got) != 1 || got[0].Args["why"] != why {
		t.Errorf("the log has %v", got)
	}
}

// What a killed daemon left is shown as over, with the name of its disk, and is no
// hindrance; it can be broken without a daemon.
func TestLeasesAfterAKill(t *testing.T) {
	state := daemonState(t)
	token := operatorToken(t, state)
	file := filepath.Join(passable(t), "own.vdisk")
	if isRoot() { // the front opens it, and the state belongs to another user
		os.Chmod(filepath.Dir(file), 0o777)
	}
	a, b, c := shared(t, state, "--exclusive", "--image", "a"), shared(t, state, "--image", "b"), shared(t, state, "--image", file)
	for _, s := range []*server{a, b, c} {
		s.hello()
		s.ok("write_file", write("x", "x"))
	}
	names := map[string]bool{}
	for _, l := range leases(t, state) {
		names[l.Disk] = l.Exclusive
	}
	if fmt.Sprint(names) != fmt.Sprint(map[string]bool{"a": true, "b": false, file: false}) {
		t.Errorf("leases: %v", names)
	}
	for _, s := range []*server{a, b, c} {
		s.torn = true
		syscall.Kill(s.cmd.Process.Pid, syscall.SIGSTOP)
	}
	killDaemon(t, state)
	for _, s := range []*server{a, b, c} {
		s.kill()
	}
	left := leases(t, state)
	if len(left) != 3 {
		t.Fatalf("%d leases after the kill", len(left))
	}
	for _, l := range left {
		if !l.Over || l.Exclusive != (l.Disk == "a") || (l.Disk != "a" && l.Disk != "b" && l.Disk != l.UUID) {
			t.Errorf("after the kill: %+v", l)
		}
	}
	if out := viaDaemon(t, state, "lease", "list", "--json"); strings.Contains(out.stdout, "0001-01-01") {
		t.Error(out.stdout)
	}
	if out := viaDaemon(t, state, "lease", "list"); strings.Count(out.stdout, "over") != 3 {
		t.Error(out.stdout)
	}
	if out := breakLease(t, state, token, "a"); out.code != 0 {
		t.Errorf("break: exit %d %s", out.code, out.stderr)
	}
	if out := breakLease(t, state, token, file); out.code != 0 {
		t.Errorf("break: exit %d %s", out.code, out.stderr)
	}
	os.Remove(filepath.Join(state, "images", "b.vdisk"))
	if got := leases(t, state); len(got) != 1 || got[0].Disk != got[0].UUID {
		t.Errorf("of a disk that is gone: %+v", got)
	}
	viaDaemon(t, state, "call", "--image", "a", "write_file", `{"path":"y","content":"y"}`)
	healthy(t, state, "a", file)
}

// A job that an exclusive session handed over goes on without it. What it changed
// is saved if nobody changed the disk since, and else refused and kept.
func TestAJobOutlivesItsExclusiveSession(t *testing.T) {
	t.Parallel()
	start := func(disk, state string) (job string) {
		a := shared(t, state, "--exclusive", "--image", disk)
		a.hello()
		a.ok("write_file", write("a", "1"))
		id := a.askCall("run_script", object{"language": "bash", "source": "sleep 49; echo done > out"})
		m, ok := a.await(patience+45*time.Second, func(m message) bool { return m.Method == "" && string(m.ID) == id })
		if !ok {
			t.Error("no answer to a script after 45 s")
			return ""
		}
		job = m.result(t).job(t)
		a.end()
		return job
	}
	state := daemonState(t)
	jobs := make(chan string)
	go func() { jobs <- start("quiet", state) }()
	busy := start("busy", state)
	quiet := <-jobs
	b, c := shared(t, state, "--image", "busy"), shared(t, state, "--image", "quiet")
	b.hello()
	c.hello()
	b.ok("write_file", write("b", "1")) // under a later lease
	b.call("run_script", object{"job": busy}).refusedAs(t, "FENCED")
	b.ok("run_script", object{"job": busy, "commit": "always"})
	if r := c.call("run_script", object{"job": quiet}); r.IsError || !strings.Contains(r.Text, "SAVED") {
		t.Errorf("with nobody else about: %s", r.Text)
	}
	for _, disk := range []string{"busy", "quiet"} {
		if got := viaDaemon(t, state, "image", "cat", "out", "--image", disk).stdout; got != "done\n" {
			t.Errorf("on %s out holds %q", disk, got)
		}
	}
	healthy(t, state, "busy", "quiet")
}

// Calls that are at work are no calls without an outcome.
func TestVerifyBesideCalls(t *testing.T) {
	state := daemonState(t)
	a, b := shared(t, state), shared(t, state)
	a.hello()
	b.hello()
	id := a.askCall("run_script", object{"language": "bash", "source": "sleep 60"})
	within(t, patience, "the script runs", func() bool { return daemonFactsOf(t, state).Scripts == 1 })
	ended := make(chan bool)
	go func() {
		defer close(ended)
		for i := range 100 {
			b.ok("write_file", write("x", fmt.Sprint(i)))
		}
	}()
	verified := 0
	for going := true; going; {
		select {
		case <-ended:
			going = false
		default:
			for _, args := range [][]string{{"audit", "verify"}, {"audit", "verify", "--all"}} {
				if out := viaDaemon(t, state, args...); out.code != 0 || strings.Contains(out.stdout, "DANGLING") {
					t.Errorf("%v: exit %d\n%s", args, out.code, out.stdout)
				}
				verified++
			}
		}
	}
	t.Logf("%d verified", verified)
	a.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, id))
	within(t, patience, "the script is gone", func() bool { return daemonFactsOf(t, state).Scripts == 0 })

	// What a killed daemon cut off is one until it is settled, which the next use of
	// the disk does.
	a.askCall("run_script", object{"language": "bash", "source": "sleep 60"})
	within(t, patience, "the script runs", func() bool { return daemonFactsOf(t, state).Scripts == 1 })
	a.torn = true
	syscall.Kill(a.cmd.Process.Pid, syscall.SIGSTOP)
	killDaemon(t, state)
	a.kill()
	within(t, patience, "the other client has a daemon again", func() bool { return daemonFactsOf(t, state).Running })
	b.ok("read_file", object{"path": "x"})
	settled := logged(t, state, "ev=recover")
	if len(settled) != 1 || settled[0].Fence == 0 {
		t.Errorf("settled: %v", settled)
	}
	healthy(t, state, "default")
}
