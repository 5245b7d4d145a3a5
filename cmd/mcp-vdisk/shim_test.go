package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// What a client sees of the shim between it and the daemon: nothing, whatever it
// sends and whatever becomes of the daemon.

// Whatever a line is, each request is answered once, under its id.
func TestOddMessagesThroughTheShim(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	big := strings.Repeat("a", 3<<20)
	for _, c := range []struct{ name, line, id string }{
		{"a string", `{"jsonrpc":"2.0","id":"a\"b","method":"ping"}`, `"a\"b"`},
		{"negative", `{"jsonrpc":"2.0","id":-5,"method":"ping"}`, `-5`},
		{"huge", `{"jsonrpc":"2.0","id":12345678901234567890,"method":"ping"}`, `12345678901234567890`},
		{"other case and escapes", `{"jsonrpc":"2.0","ID":31,"\u006dethod":"ping"}`, `31`},
		{"no JSON", `{"jsonrpc":"2.0","id":32,"method":"ping"`, `null`},
		{"a batch", `[{"jsonrpc":"2.0","id":33,"method":"ping"}]`, `null`},
		{"an id that is none", `{"jsonrpc":"2.0","id":[34],"method":"ping"}`, `null`},
		{"no method", `{"jsonrpc":"2.0","id":35}`, `35`},
		{"megabytes", requestLine("36", "tools/call", callParams("write_file", object{"path": "big", "content": big})), `36`},
		{"too long", requestLine("37", "tools/call", callParams("write_file", object{"path": "big", "content": strings.Repeat("a", 17<<20)})), `null`},
		{"too long, with the id at its end", `{"jsonrpc":"2.0","method":"tools/call","params":"` + strings.Repeat("a", 40<<20) + `","id":38}`, `38`},
		{"no UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"ping\"}", `null`},
		{"carriage return", `{"jsonrpc":"2.0","id":39,"method":"ping"}` + "\r", `39`},
	} {
		before := len(s.all())
		s.send(c.line)
		m, ok := s.await(patience, func(m message) bool { return m.Method == "" && string(m.ID) == c.id })
		if !ok {
			t.Fatalf("%s: no answer; stderr: %s", c.name, s.words())
		}
		if got := s.all()[before:]; len(got) != 1 {
			t.Errorf("%s: %d messages, the first is %.200s", c.name, len(got), m.line)
		}
		if c.id == "null" {
			s.forget("null")
		}
	}
	// None of it is thought to be open: a daemon that dies is told of to nobody.
	before := len(s.all())
	killDaemon(t, state)
	s.ok("list_files", object{})
	if got := s.all()[before:]; len(got) != 1 {
		t.Errorf("after the daemon died the client is told %d messages, the first is %.300s", len(got), got[0].line)
	}
	if got := viaDaemon(t, state, "image", "cat", "big").stdout; got != big {
		t.Errorf("big holds %d bytes", len(got))
	}
}

// forget renames the messages of an id, so that the next one is another.
func (s *server) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.seen {
		if string(s.seen[i].ID) == id {
			s.seen[i].ID = json.RawMessage(`"seen"`)
		}
	}
}

// Requests that come while one of their id runs are refused, and the one that runs
// is answered too, by the daemon or for it.
func TestOneIDTwice(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	line := requestLine("77", "tools/call", callParams("run_script", object{"language": "bash", "source": "sleep 60"}))
	s.send(line)
	within(t, patience, "the script runs", func() bool { return daemonFactsOf(t, state).Scripts == 1 })
	s.send(line)
	if m := s.answer("77"); m.Error == nil || !strings.Contains(m.Error.Message, "still running") {
		t.Errorf("the second is answered %s", m.line)
	}
	s.forget("77")
	killDaemon(t, state)
	if m := s.answer("77"); m.Error == nil || !strings.Contains(m.Error.Message, "OUTCOME_UNKNOWN") {
		t.Errorf("the first is answered %s", m.line)
	}
	s.ok("list_files", object{})
}

// A request that was cancelled is not answered, also not when its daemon dies.
func TestCancelThroughTheShim(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	id := s.askCall("run_script", object{"language": "bash", "source": "sleep 60"})
	within(t, patience, "the script runs", func() bool { return daemonFactsOf(t, state).Scripts == 1 })
	s.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
	within(t, patience, "the script is gone", func() bool { return daemonFactsOf(t, state).Scripts == 0 })
	killDaemon(t, state)
	s.ok("list_files", object{})
	for _, m := range s.all() {
		if string(m.ID) == id {
			t.Errorf("sent for a cancelled request: %s", m.line)
		}
	}
	s.end()
}

// A thousand requests in a row, while daemons are killed: each is answered once,
// and what is answered as done is done once.
func TestAThousandRequestsWhileDaemonsDie(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	n := max(rounds(1000), 100)
	stop, killed := make(chan bool), make(chan int)
	go func() {
		kills := 0
		for tick := time.NewTicker(400 * time.Millisecond); ; kills++ {
			select {
			case <-stop:
				killed <- kills
				return
			case <-tick.C:
				for _, pid := range daemonsOf(state) {
					syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		}
	}()
	calls := map[string]int{}
	asked := map[string]bool{}
	for i := range n {
		if i%2 == 0 {
			asked[s.ask("tools/list", nil)] = true
		}
		id := s.askCall("write_file", object{"path": "n.txt", "mode": "append", "content": fmt.Sprintf("<%d>\n", i)})
		calls[id] = i
		if i%100 == 99 { // what a daemon has when it dies is lost
			s.answer(id)
		}
	}
	done, unknown := map[int]bool{}, 0
	for id, i := range calls {
		m := s.answer(id)
		if m.Error != nil {
			unknown++
		} else if !m.result(t).IsError {
			done[i] = true
		}
	}
	for id := range asked {
		s.answer(id)
	}
	close(stop)
	t.Logf("%d calls, %d kills: %d done, %d unknown", n, <-killed, len(done), unknown)
	text := viaDaemon(t, state, "image", "cat", "n.txt").stdout
	for i := range n {
		if c := strings.Count(text, fmt.Sprintf("<%d>\n", i)); c > 1 || c == 0 && done[i] {
			t.Errorf("line %d is there %d times; acknowledged: %v", i, c, done[i])
		}
	}
	answers := map[string]int{}
	for _, m := range s.all() {
		answers[string(m.ID)]++
	}
	for id, c := range answers {
		if c != 1 {
			t.Errorf("%s is answered %d times", id, c)
		}
	}
	if done := len(done); done == 0 {
		t.Error("no call was done")
	}
	s.end()
	if out := viaDaemon(t, state, "audit", "verify"); out.code != 0 {
		t.Errorf("audit verify: exit %d\n%s", out.code, out.stdout)
	}
}

// The era without a handshake survives a daemon as well.
func TestTheModernEraSurvivesADaemon(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	meta := object{"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": object{"name": "modern", "version": "1"},
		"io.modelcontextprotocol/clientCapabilities": object{}}
	call := func() message {
		p := callParams("list_files", object{})
		p["_meta"] = meta
		return s.answer(s.ask("tools/call", p))
	}
	for range 3 {
		if m := call(); m.Error != nil || m.result(t).IsError {
			t.Errorf("answered %s", m.line)
		}
		killDaemon(t, state)
	}
	call()
	s.end()
}

// A daemon that dies before it answers the handshake is followed by one that does,
// also for a client that did not wait for the answer.
func TestTheHandshakeIsNotAnswered(t *testing.T) {
	state := daemonState(t)
	first := shared(t, state)
	first.hello()
	pid := daemonFactsOf(t, state).PID
	s := shared(t, state)
	within(t, patience, "the client is connected", func() bool { return len(daemonFactsOf(t, state).Clients) == 2 })
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	id := s.ask("initialize", object{"protocolVersion": "2025-11-25", "capabilities": object{}, "clientInfo": object{"name": "hasty", "version": "1"}})
	s.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	list := s.ask("tools/list", nil)
	syscall.Kill(pid, syscall.SIGKILL)
	if m := s.answer(id); m.Error != nil || !strings.Contains(m.line, "serverInfo") {
		t.Errorf("initialize is answered %s", m.line)
	}
	if m := s.answer(list); m.Error != nil {
		t.Errorf("tools/list is answered %s", m.line)
	}
	r := s.ok("write_file", object{"path": "a", "content": "x"})
	if log := viaDaemon(t, state, "audit", "query", "call="+fmt.Sprint(r.Facts["call"]), "-o", "ndjson").stdout; !strings.Contains(log, "hasty 1") {
		t.Errorf("the log does not name the client:\n%s", log)
	}
	if len(s.all()) != 3 {
		t.Errorf("%d messages", len(s.all()))
	}
	s.end()
	first.end()
}

// A call that is made after a daemon died is made by the next, which knows the
// client by its name too.
func TestTheNextDaemonKnowsTheClient(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	for range rounds(100) {
		killDaemon(t, state)
		// A child that the daemon was about to start may hold its sockets open for a
		// moment, and take a call along.
		r := s.call("write_file", object{"path": "a", "content": "x"})
		for retry := 0; r.IsError && strings.Contains(r.Text, "OUTCOME_UNKNOWN") && retry < 3; retry++ {
			r = s.call("write_file", object{"path": "a", "content": "x"})
		}
		if r.IsError {
			t.Fatal(r.Text)
		}
		if log := viaDaemon(t, state, "audit", "query", "call="+fmt.Sprint(r.Facts["call"]), "-o", "ndjson").stdout; !strings.Contains(log, `"cli":"test 1"`) {
			t.Fatalf("the log does not name the client:\n%s", log)
		}
	}
	s.end()
}

// Progress is told through the shim, before the result.
func TestProgressThroughTheShim(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	p := callParams("run_script", object{"language": "bash", "source": "sleep 6"})
	p["_meta"] = object{"progressToken": "p"}
	id := s.ask("tools/call", p)
	s.answer(id)
	notes := 0
	for _, m := range s.all() {
		if m.Method == "notifications/progress" {
			notes++
		}
	}
	if last := s.all(); notes < 2 || string(last[len(last)-1].ID) != id {
		t.Errorf("%d notes of progress, then %s", notes, last[len(last)-1].line)
	}
	s.end()
}

// A client ends its server by a signal, or by going away, whatever the daemon does.
func TestTheEndOfAShim(t *testing.T) {
	state := daemonState(t)
	other := shared(t, state)
	other.hello()
	pid := daemonFactsOf(t, state).PID
	start := func(sig syscall.Signal) func(s *server) {
		return func(s *server) { s.cmd.Process.Signal(sig) }
	}
	for _, c := range []struct {
		name   string
		frozen bool
		end    func(s *server)
	}{
		{"SIGTERM", false, start(syscall.SIGTERM)},
		{"SIGINT", false, start(syscall.SIGINT)},
		{"SIGHUP", false, start(syscall.SIGHUP)},
		{"its input ends", false, func(s *server) { s.stdin.Close() }},
		{"SIGTERM beside a daemon that is frozen", true, start(syscall.SIGTERM)},
		{"nobody reads its output", false, func(s *server) {
			s.out.Close()
			io.WriteString(s.stdin, requestLine("99", "tools/list", nil)+"\n")
		}},
	} {
		if c.name == "SIGHUP" && signal.Ignored(syscall.SIGHUP) {
			continue // by nohup, for the shim as well
		}
		s := serveUnread(t, state, withDaemon)
		if !strings.HasPrefix(c.name, "nobody") {
			go s.read()
			s.hello()
		} else {
			io.WriteString(s.stdin, requestLine("98", "ping", nil)+"\n")
			io.ReadFull(s.out, make([]byte, 10))
		}
		marker := unique()
		s.torn = true
		s.askCall("run_script", object{"language": "bash", "args": []string{marker}, "source": "sleep 60; :"})
		within(t, patience, c.name+": the script runs", func() bool { return len(marked(t, "source.sh "+marker)) > 0 })
		if c.frozen {
			syscall.Kill(pid, syscall.SIGSTOP)
			// More than the socket holds, so that the shim waits for the daemon.
			go io.WriteString(s.stdin, requestLine("97", "tools/call", callParams("write_file", object{"path": "x", "content": strings.Repeat("a", 8<<20)}))+"\n")
		}
		begin := time.Now()
		c.end(s)
		select {
		case <-s.exited:
		case <-time.After(patience):
			t.Errorf("%s: the shim goes on", c.name)
		}
		if code := s.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("%s: exit code %d\n%s", c.name, code, s.words())
		}
		s.kill()
		if took := time.Since(begin); took > 4*time.Second {
			t.Errorf("%s: the shim ended after %s", c.name, took)
		}
		if c.frozen {
			syscall.Kill(pid, syscall.SIGCONT)
		}
		within(t, patience, c.name+": the script is gone", func() bool { return len(marked(t, marker)) == 0 })
	}
	other.ok("list_files", object{})
	var f daemonFacts
	within(t, patience, "one client is left", func() bool {
		f = daemonFactsOf(t, state)
		return len(f.Clients) == 1
	})
	if f.PID != pid {
		t.Errorf("in the end: %+v", f)
	}
}

// A client that does not read, and one that goes away without a word, hold up
// neither the others nor the end of the daemon.
func TestAClientThatNeverReads(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	a := shared(t, state)
	a.hello()
	a.ok("write_file", object{"path": "big", "content": strings.Repeat("0123456789abcde\n", 100_000)})
	deaf := serveUnread(t, state, withDaemon)
	deaf.torn = true
	for i := range 50 {
		io.WriteString(deaf.stdin, requestLine(strconv.Itoa(i), "tools/call", callParams("read_file", object{"path": "big"}))+"\n")
	}
	within(t, patience, "it is connected", func() bool { return len(daemonFactsOf(t, state).Clients) == 2 })
	for i := range 20 {
		a.ok("write_file", object{"path": fmt.Sprint("f", i), "content": "x"})
	}
	// A command whose output nobody reads.
	cat := exec.Command(program, "--state", state, "image", "cat", "big")
	cat.Env = append(os.Environ(), withDaemon...)
	pipe, err := cat.StdoutPipe()
	if err == nil {
		err = cat.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	io.ReadFull(pipe, make([]byte, 10))
	within(t, patience, "the command is at work", func() bool {
		for _, c := range daemonFactsOf(t, state).Clients {
			if c.Verb == "image.cat" {
				return true
			}
		}
		return false
	})
	begin := time.Now()
	if out := viaDaemon(t, state, "daemon", "stop", "--force"); out.code != 0 {
		t.Errorf("stop: exit %d %s", out.code, out.stderr)
	}
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("the daemon ended after %s", took)
	}
	if left := daemonsOf(state); len(left) > 0 {
		t.Errorf("processes %v have the state open", left)
	}
	deaf.kill()
	pipe.Close()
	cat.Wait()
	<-a.exited
	a.kill()
}

// A client that reads slowly gets everything of a command.
func TestASlowReader(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	want := strings.Repeat("0123456789abcde\n", 200_000)
	s.ok("write_file", object{"path": "big", "content": want})
	cmd := exec.Command(program, "--state", state, "image", "cat", "big")
	cmd.Env = append(os.Environ(), withDaemon...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	io.CopyN(&got, out, 1000)
	<-time.After(4 * time.Second) // longer than a daemon that ends would wait
	io.Copy(&got, out)
	if err := cmd.Wait(); err != nil || got.String() != want {
		t.Errorf("%v, %d of %d bytes", err, got.Len(), len(want))
	}
	s.end()
}

// A person's ^C ends a command that a daemon does, and a command that dies ends too.
func TestInterruptOfACommandOfTheDaemon(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		marker := unique()
		cmd := exec.Command(program, "--state", state, "call", "run_script", encoded(object{"language": "bash", "args": []string{marker}, "source": "echo x > f; sleep 60; :"}))
		cmd.Env = append(os.Environ(), withDaemon...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		within(t, patience, "the script runs", func() bool { return len(marked(t, "source.sh "+marker)) > 0 })
		begin := time.Now()
		cmd.Process.Signal(sig)
		cmd.Wait()
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("%s: it ended after %s", sig, took)
		}
		if code := cmd.ProcessState.ExitCode(); code != 130 && sig != syscall.SIGKILL {
			t.Errorf("%s: exit code %d", sig, code)
		}
		within(t, 2*time.Second, "the script is gone", func() bool { return len(marked(t, marker)) == 0 })
	}
	if r := s.ok("list_files", object{}); strings.Contains(r.Text, "/f") {
		t.Errorf("saved: %s", r.Text)
	}
	s.end()
}

// Nothing is asked of the input's kind.
func TestInputsThatAreNone(t *testing.T) {
	state := daemonState(t)
	for name, in := range map[string]io.Reader{
		"none": nil, "empty": strings.NewReader(""), "blank lines": strings.NewReader("\n\n \r\n"), "half a line": strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`),
	} {
		cmd := exec.Command(program, "serve", "--state", state)
		cmd.Env, cmd.Stdin = append(os.Environ(), withDaemon...), in
		out, err := cmd.Output()
		if err != nil || strings.Contains(string(out), "result") != (name == "half a line") {
			t.Errorf("%s: %v, %q", name, err, out)
		}
	}
}

// Requests that only ask are answered whatever happens; what kills every daemon is
// given up.
func TestADaemonThatDiesAgainAndAgain(t *testing.T) {
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	pid := daemonFactsOf(t, state).PID
	stop := make(chan bool)
	var killer sync.WaitGroup
	killer.Go(func() {
		for tick := time.NewTicker(time.Millisecond); ; {
			select {
			case <-stop:
				return
			case <-tick.C:
				for _, pid := range daemonsOf(state) {
					syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		}
	})
	s.torn = true
	id := s.ask("tools/list", nil)
	select {
	case <-s.exited:
	case <-time.After(60 * time.Second):
		t.Error("the shim goes on for ever")
	}
	close(stop)
	killer.Wait()
	if m, ok := s.await(patience, func(m message) bool { return string(m.ID) == id }); !ok {
		t.Error("the request is not answered")
	} else if m.Error == nil && daemonFactsOf(t, state).PID == pid {
		t.Error("no daemon was killed")
	}
	if words := s.words(); !strings.Contains(words, "daemon") || s.cmd.ProcessState.ExitCode() == 0 {
		t.Errorf("it ends with %d and says %q", s.cmd.ProcessState.ExitCode(), words)
	}
	s.kill()
}

// daemonsOf lists the processes that have a state directory open, or wait for it.
// killDaemons ends what a test may have left.
func killDaemons(state string) {
	for _, pid := range daemonsOf(state) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

func daemonsOf(state string) (pids []int) {
	for link := range openLinks() {
		if file, err := os.Readlink(link); err == nil && file == filepath.Join(state, "daemon.lock") {
			pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}
