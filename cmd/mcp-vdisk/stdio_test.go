package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What Must hold 3 asks of the stdio transport. Every test also holds that
// standard output carries nothing but JSON-RPC messages (server.parse), and
// that the server ends with exit code 0 once the client hangs up (server.stop).

func TestEndOfInputLosesNoAnswer(t *testing.T) {
	state := newState(t)
	lines := []string{
		requestLine("1", "initialize", object{"protocolVersion": "2025-11-25", "capabilities": object{}, "clientInfo": object{"name": "pipe", "version": "1"}}),
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		requestLine("2", "tools/list", nil),
		requestLine("3", "tools/call", callParams("write_file", object{"path": "a.txt", "content": "hello\n"})),
		requestLine("4", "tools/call", callParams("list_files", object{})),
		requestLine(`"five"`, "tools/call", callParams("run_script", object{"language": "bash", "source": "echo hi > b.txt"})),
		requestLine("6", "ping", nil),
	}
	input := strings.Join(lines, "\n") + "\n"
	want := []string{"1", "2", "3", "4", `"five"`, "6"}
	n := rounds(200)
	for i := range n {
		cmd := exec.Command(program, "serve", "--state", state)
		cmd.Stdin = strings.NewReader(input)
		if i%2 == 1 { // the last line may lack its end
			cmd.Stdin = strings.NewReader(strings.TrimSuffix(input, "\n"))
		}
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("run %d: %s", i, err)
		}
		var got []string
		for l := range strings.Lines(string(out)) {
			var m message
			if err := json.Unmarshal([]byte(l), &m); err != nil || m.Error != nil {
				t.Fatalf("run %d: %s", i, l)
			}
			got = append(got, string(m.ID))
		}
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Fatalf("run %d: answers to %v, want %v", i, got, want)
		}
	}
	t.Logf("%d runs of 6 piped requests, no answer lost", n)
}

func TestEndOfInputAnswersWhatStillRuns(t *testing.T) {
	t.Parallel()
	s := serve(t, newState(t))
	s.hello()
	quick := s.askCall("run_script", object{"language": "bash", "source": "sleep 1; echo done"})
	s.stdin.Close()
	if r := s.answer(quick).result(t); r.IsError || !strings.Contains(r.Text, "done") {
		t.Errorf("a script that ends within the grace: %s", r.Text)
	}
	s.end()

	s = serve(t, newState(t))
	s.hello()
	slow, tree := s.sleeper(unique())
	begin := time.Now()
	s.stdin.Close()
	if r := s.answer(slow).result(t); !r.IsError || !strings.HasPrefix(r.Text, "CANCELLED") {
		t.Errorf("a script that is killed after the grace: %s", r.Text)
	}
	s.end()
	if d := time.Since(begin); d < time.Second || d > 10*time.Second {
		t.Errorf("the server ended %s after its input, want about 2 s", d)
	}
	if left := alive(t, tree); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestCancelEndsAScriptAndSilencesIt(t *testing.T) {
	t.Parallel()
	s := serve(t, newState(t))
	s.hello()
	marker := unique()
	for _, spell := range []string{`{"requestId":%s}`, `{"requestId":%s,"reason":"the user pressed Escape"}`} {
		id, tree := s.sleeper(marker)
		begin := time.Now()
		s.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":` + fmt.Sprintf(spell, id) + `}`)
		took := within(t, time.Second, "the script's processes are gone", func() bool {
			return len(alive(t, tree)) == 0 && len(marked(t, marker)) == 0 && len(s.scripts()) == 0
		})
		t.Logf("%d processes gone %s after the cancel", len(tree), took.Round(time.Millisecond))
		// The disk is free again, at once, and the id as well.
		if r := s.bash("echo next"); r.IsError || !strings.Contains(r.Text, "next") {
			t.Errorf("the script after a cancelled one: %s", r.Text)
		}
		if d := time.Since(begin); d > 5*time.Second {
			t.Errorf("the next script waited %s", d)
		}
		defer func() {
			for _, m := range s.all() {
				if string(m.ID) == id {
					t.Errorf("sent for a cancelled request: %s", m.line)
				}
			}
		}()
	}
	s.end()
}

// A cancel reaches a script at once, whether it runs or still waits for its turn.
func TestCancelReachesAScriptThatWaits(t *testing.T) {
	t.Parallel()
	s := serve(t, newState(t))
	s.hello()
	first, tree := s.sleeper(unique())
	marker := unique()
	second := s.askCall("run_script", object{"language": "bash", "source": "sleep 3; echo it ran > " + marker})
	s.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + second + `}}`)
	s.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + first + `}}`)
	// Those of no request, or of one that is answered, do nothing.
	s.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"none"}}`)
	s.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	s.send(`{"jsonrpc":"2.0","method":"notifications/cancelled"}`)
	within(t, time.Second, "the script's processes are gone", func() bool { return len(alive(t, tree)) == 0 })
	if r := s.ok("list_files", object{}); strings.Contains(r.Text, marker) {
		t.Errorf("a script was saved that was cancelled: %s", r.Text)
	}
	s.end()
	for _, m := range s.all() {
		if id := string(m.ID); id == first || id == second {
			t.Errorf("sent for a cancelled request: %s", m.line)
		}
	}
}

// Not in parallel: it measures. Other processes of a busy machine delay a ping
// as well, so the best of three servers counts, and within a second is at once: a
// ping that waits for scripts would take several on each of them.
func TestPingBehindSleepingScripts(t *testing.T) {
	best := time.Hour
	for range 3 {
		worst, median := pingBehindScripts(t, 300)
		t.Logf("20 pings behind 300 calls of sleeping scripts: median %s, worst %s", median, worst)
		if best = min(best, worst); best < time.Second {
			break
		}
	}
	if best >= time.Second {
		t.Errorf("a ping took %s", best)
	}
}

func pingBehindScripts(t *testing.T, n int) (worst, median time.Duration) {
	s := serve(t, newState(t))
	s.hello()
	var ids []string
	for range n {
		ids = append(ids, s.askCall("run_script", object{"language": "bash", "source": "sleep 30"}))
	}
	var took []time.Duration
	for range 20 {
		begin := time.Now()
		took = append(took, s.answer(s.ask("ping", nil)).at.Sub(begin))
	}
	s.end()
	for _, id := range ids {
		if m := s.answer(id); m.Error != nil || !m.result(t).IsError {
			t.Errorf("a script that did not get its turn or was killed: %s", m.line)
		}
	}
	slices.Sort(took)
	return took[len(took)-1], took[len(took)/2]
}

func TestALineThatIsTooLong(t *testing.T) {
	t.Parallel()
	s := serve(t, newState(t))
	s.hello()
	big := strings.Repeat("A", 17<<20)
	body := `"jsonrpc":"2.0","method":"tools/call","params":{"name":"write_file","arguments":{"path":"big","content":"` + big + `"}}`
	for _, c := range []struct{ name, line, id string }{
		{"the id last", "{" + body + `,"id":77}`, "77"},
		{"a string id last, white space around", "{" + body + ` , "id" : "a\"b" } `, `"a\"b"`},
		{"the id before jsonrpc", "{" + body[len(`"jsonrpc":"2.0",`):] + `,"id":78,"jsonrpc":"2.0"}`, "78"},
		{"the id first", `{"id":79,` + body + "}", "null"},
		{"an id that is no JSON last", "{" + body + `,"id":"\q"}`, "null"},
		{"an id of something else last", `{"id":80,"params":{"a":"` + big + `","id":5}}`, "null"},
	} {
		seen := len(s.all())
		s.send(c.line)
		m, ok := s.await(patience, func(m message) bool {
			return m.Error != nil && slices.ContainsFunc(s.all()[seen:], func(n message) bool { return n.line == m.line })
		})
		if !ok || string(m.ID) != c.id || m.Error.Code != -32600 || !strings.Contains(m.Error.Message, "longer than") {
			t.Errorf("%s: %.200s", c.name, m.line)
		}
		s.answer(s.ask("ping", nil))
	}
	// Below the cap a message is taken, whatever its content then is.
	fits := strings.Repeat("A", 16<<20-200)
	if r := s.call("write_file", object{"path": "big", "content": fits}); !r.IsError || !strings.HasPrefix(r.Text, "TOO_LARGE") {
		t.Errorf("16 MiB of content: %.200s", r.Text)
	}
	if r := s.ok("list_files", object{}); strings.Contains(r.Text, "big") {
		t.Errorf("something was written: %s", r.Text)
	}
	// The end of the input ends a long line as well.
	io.WriteString(s.stdin, "{"+body+`,"id":81}`)
	s.stdin.Close()
	if m := s.answer("81"); m.Error == nil {
		t.Errorf("a long line that the input's end cuts: %s", m.line)
	}
	s.end()
}

func TestMessagesThatAreNone(t *testing.T) {
	t.Parallel()
	s := serve(t, newState(t))
	s.hello()
	for _, c := range []struct {
		name, line string
		id         string
		code       int
	}{
		{"no JSON", `{"jsonrpc":`, "null", -32700},
		{"plain text", `hello`, "null", -32700},
		{"two objects", `{} {}`, "null", -32700},
		{"a NUL byte", "\x00", "null", -32700},
		{"brackets without end", strings.Repeat("[", 100_000), "null", -32700},
		{"a batch", `[{"jsonrpc":"2.0","id":901,"method":"ping"}]`, "null", -32600},
		{"an empty batch", `[]`, "null", -32600},
		{"a number", `5`, "null", -32600},
		{"a string", `"ping"`, "null", -32600},
		{"null", `null`, "null", -32600},
		{"a null id", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, "null", -32600},
		{"an object as id", `{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}`, "null", -32600},
		{"a list as id", `{"jsonrpc":"2.0","id":[1],"method":"ping"}`, "null", -32600},
		{"an id that is no UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"ping\"}", "null", -32600},
		{"true as id", `{"jsonrpc":"2.0","id":true,"method":"ping"}`, "null", -32600},
		{"no jsonrpc", `{"id":902,"method":"ping"}`, "902", -32600},
		{"another jsonrpc", `{"jsonrpc":"1.0","id":903,"method":"ping"}`, "903", -32600},
		{"a number as method", `{"jsonrpc":"2.0","id":904,"method":5}`, "904", -32600},
		{"neither method nor result", `{"jsonrpc":"2.0","id":905}`, "905", -32600},
		{"an empty method", `{"jsonrpc":"2.0","id":906,"method":""}`, "906", -32600},
		{"an unknown method", `{"jsonrpc":"2.0","id":907,"method":"tools/destroy"}`, "907", -32601},
		{"a notification's method", `{"jsonrpc":"2.0","id":908,"method":"notifications/cancelled","params":{"requestId":1}}`, "908", -32601},
		{"params as a list", `{"jsonrpc":"2.0","id":909,"method":"tools/call","params":[1]}`, "909", -32602},
		{"params as a string", `{"jsonrpc":"2.0","id":910,"method":"tools/call","params":"x"}`, "910", -32602},
		{"no tool named", `{"jsonrpc":"2.0","id":911,"method":"tools/call","params":{}}`, "911", -32602},
		{"a number as tool", `{"jsonrpc":"2.0","id":912,"method":"tools/call","params":{"name":1}}`, "912", -32602},
		{"an unknown tool", `{"jsonrpc":"2.0","id":913,"method":"tools/call","params":{"name":"format_disk","arguments":{}}}`, "913", -32602},
	} {
		before := len(s.all())
		s.send(c.line)
		s.answer(s.ask("ping", nil))
		var got []message
		for _, m := range s.all()[before:] {
			if m.Error != nil {
				got = append(got, m)
			}
		}
		if len(got) == 0 { // the answer may come after the ping's
			if m, ok := s.await(time.Second, func(m message) bool { return m.Error != nil && string(m.ID) == c.id && m.at.After(s.all()[before].at) }); ok {
				got = append(got, m)
			}
		}
		if len(got) != 1 || string(got[0].ID) != c.id || got[0].Error.Code != c.code || got[0].Error.Message == "" {
			t.Errorf("%s: got %v, want one error %d for id %s", c.name, linesOf(got), c.code, c.id)
		}
	}
	s.end()
}

func linesOf(list []message) (out []string) {
	for _, m := range list {
		out = append(out, m.line)
	}
	return out
}

func TestWhatNeedsNoAnswerGetsNone(t *testing.T) {
	t.Parallel()
	s := serve(t, newState(t))
	s.hello()
	before := len(s.all())
	for _, line := range []string{
		"", "   ", "\r",
		`{"jsonrpc":"2.0","method":"notifications/nobody/knows"}`,
		`{"jsonrpc":"2.0","method":"notifications/roots/list_changed","params":{}}`,
		`{"jsonrpc":"2.0","method":"tools/call","params":{"name":"write_file","arguments":{"path":"x","content":"y"}}}`,
		`{"jsonrpc":"2.0","id":"srv-1","result":{}}`,
		`{"jsonrpc":"2.0","id":17,"error":{"code":-1,"message":"no"}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":"x"}`,
	} {
		s.send(line)
	}
	s.answer(s.ask("ping", nil))
	if r := s.ok("list_files", object{}); strings.Contains(r.Text, "/x") {
		t.Errorf("a notification wrote a file: %s", r.Text)
	}
	s.end()
	if got := s.all()[before:]; len(got) != 2 {
		t.Errorf("answers to what needs none: %v", linesOf(got))
	}
}

func TestIdsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	s := serve(t, newState(t))
	s.hello()
	for _, id := range []string{"0", "-1", "9007199254740993", "18446744073709551617", `"a"`, `""`, `"12"`, `"\u00e9\n"`, `"<&>"`, "1.5"} {
		s.send(requestLine(id, "ping", nil))
		s.answer(id)
		s.send(requestLine(id, "tools/call", callParams("list_files", object{})))
		if _, ok := s.await(patience, func(m message) bool { return string(m.ID) == id && strings.Contains(m.line, "content") }); !ok {
			t.Errorf("no result under the id %s", id)
		}
	}
	s.end()
}

func TestAnIdThatStillRuns(t *testing.T) {
	t.Parallel()
	s := serve(t, newState(t))
	s.hello()
	id, _ := s.sleeper(unique())
	s.send(requestLine(id, "ping", nil))
	if m := s.answer(id); m.Error == nil || m.Error.Code != -32600 {
		t.Errorf("a second request under an id that runs: %s", m.line)
	}
	s.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
	within(t, patience, "the id is free again", func() bool { return len(s.scripts()) == 0 })
	s.end()
}

// A client that does not read fills the pipe. The server waits, does what it is
// told meanwhile, and loses nothing.
func TestAClientThatReadsLate(t *testing.T) {
	t.Parallel()
	s := serveUnread(t, newState(t), nil)
	s.send(requestLine("1", "initialize", object{"protocolVersion": "2025-11-25", "capabilities": object{}, "clientInfo": object{"name": "deaf", "version": "1"}}))
	const n = 200
	for i := range n { // 200 lists of tools are a megabyte, a pipe holds 64 KiB
		s.send(requestLine(fmt.Sprint(100+i), "tools/list", nil))
		s.send(`{"not JSON`)
	}
	marker := unique()
	s.send(requestLine("2", "tools/call", callParams("run_script", object{"language": "bash", "args": []string{marker}, "source": "sleep 30; :"})))
	within(t, patience, "the script runs", func() bool { return len(marked(t, marker)) > 0 })
	s.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	took := within(t, time.Second, "a cancel is heard by a server that cannot write", func() bool { return len(marked(t, marker)) == 0 })
	t.Logf("gone %s after the cancel", took.Round(time.Millisecond))
	go s.read()
	for i := range n {
		s.answer(fmt.Sprint(100 + i))
	}
	s.end()
	var bad int
	for _, m := range s.all() {
		if m.Error != nil && m.Error.Code == -32700 {
			bad++
		}
		if string(m.ID) == "2" {
			t.Errorf("sent for a cancelled request: %s", m.line)
		}
	}
	if bad != n {
		t.Errorf("%d answers to %d lines that are no JSON", bad, n)
	}
}

func TestAClientThatNeverReadsDoesNotKeepTheServer(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"end of input", "SIGTERM"} {
		s := serveUnread(t, newState(t), nil)
		for i := range 100 {
			s.send(requestLine(fmt.Sprint(i), "tools/list", nil))
		}
		s.send(`no JSON`)
		within(t, patience, "the pipe is full", func() bool { return unread(t, s.out) > 60_000 })
		if how == "SIGTERM" {
			s.cmd.Process.Signal(syscall.SIGTERM)
		} else {
			s.stdin.Close()
		}
		select {
		case <-s.exited:
		case <-time.After(15 * time.Second):
			t.Errorf("%s: the server waits for a client that does not read", how)
		}
		s.kill()
	}
}

// unread is how many bytes wait in a pipe.
func unread(t *testing.T, f *os.File) (n int) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) // FIONREAD
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAClientThatIsGone(t *testing.T) {
	t.Parallel()
	state := newState(t)
	s := serve(t, state)
	s.hello()
	_, tree := s.sleeper(unique())
	s.out.Close() // nobody reads any more: EPIPE
	s.ask("ping", nil)
	s.wait(patience)
	// A daemon learns of it from the front's end.
	within(t, patience, "nothing is left of the script", func() bool { return len(alive(t, tree)) == 0 })
	if log := must(t, state, "audit", "query"); !strings.Contains(log, "server.stop") {
		t.Errorf("the end of the server is in the log:\n%s", log)
	}
}

func TestProgressOnlyWhenAskedAndNeverAfterTheResult(t *testing.T) {
	t.Parallel()
	s := serve(t, newState(t))
	s.hello()
	call := func(id, token string) {
		meta := ""
		if token != "" {
			meta = `"_meta":{"progressToken":` + token + `},`
		}
		s.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{` + meta + `"name":"run_script","arguments":{"language":"bash","source":"sleep 5.5"}}}`)
	}
	call("50", `"tok"`)
	call("51", `9007199254740993`)
	s.answer("50")
	s.answer("51")
	call("52", "")
	s.answer("52")
	for i, token := range []string{`null`, `{"a":1}`, "\"\xff\""} { // no tokens
		id := fmt.Sprint(60 + i)
		s.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"_meta":{"progressToken":` + token + `},"name":"list_files","arguments":{}}}`)
		s.answer(id)
	}
	s.end()
	notes := map[string][]float64{}
	answered := map[string]bool{}
	for _, m := range s.all() {
		if m.Method == "" {
			answered[string(m.ID)] = true
			continue
		}
		var p struct {
			ProgressToken json.RawMessage
			Progress      float64
		}
		if err := json.Unmarshal(m.Params, &p); err != nil || m.Method != "notifications/progress" {
			t.Errorf("unexpected notification: %s", m.line)
		}
		token := string(p.ProgressToken)
		owner := map[string]string{`"tok"`: "50", "9007199254740993": "51"}[token]
		if owner == "" || answered[owner] {
			t.Errorf("progress for the token %s of request %q, answered: %t", token, owner, answered[owner])
		}
		notes[token] = append(notes[token], p.Progress)
	}
	for token, want := range map[string]int{`"tok"`: 2, "9007199254740993": 2} {
		if got := notes[token]; len(got) < want || !slices.IsSorted(got) {
			t.Errorf("progress for %s: %v, want at least %d rising values", token, got, want)
		}
	}
}

func TestSIGTERMEndsTheServer(t *testing.T) {
	t.Parallel()
	state := newState(t)
	s := serve(t, state)
	s.hello()
	s.ok("write_file", object{"path": "a", "content": "b"})
	begin := time.Now()
	s.cmd.Process.Signal(syscall.SIGTERM)
	s.wait(5 * time.Second)
	t.Logf("an idle server ended %s after SIGTERM", time.Since(begin).Round(time.Millisecond))

	s = serve(t, state)
	s.hello()
	_, tree := s.sleeper(unique())
	begin = time.Now()
	s.cmd.Process.Signal(syscall.SIGTERM)
	s.wait(10 * time.Second)
	t.Logf("one with a script ended %s after it", time.Since(begin).Round(time.Millisecond))
	if left := alive(t, tree); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	log := must(t, state, "audit", "query")
	if strings.Count(log, "server.start") != 2 || strings.Count(log, "server.stop") != 2 {
		t.Errorf("start and stop are in the log:\n%s", log)
	}
	must(t, state, "audit", "verify")
}

func TestMemoryRightAfterInitialize(t *testing.T) {
	state := newState(t)
	for _, when := range []string{"on a new disk", "on one with a past"} {
		s := serve(t, state)
		s.hello()
		kb, _ := strconv.Atoi(strings.TrimSuffix(status(s.cmd.Process.Pid, "VmRSS"), " kB"))
		t.Logf("resident memory %s: %.1f MiB", when, float64(kb)/1024)
		if kb == 0 || kb > 40<<10 {
			t.Errorf("%d kB are resident right after initialize, at most 40 MiB may be", kb)
		}
		for i := range 50 {
			s.ok("write_file", object{"path": fmt.Sprintf("d/%d", i), "content": strings.Repeat("line\n", 5000)})
		}
		s.end()
	}
}

func TestSizeOfTheProgram(t *testing.T) {
	info, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the program is %.1f MB", float64(info.Size())/1e6)
	if info.Size() > 24_000_000 {
		t.Errorf("the program is %d bytes, at most 24 MB may be", info.Size())
	}
}
