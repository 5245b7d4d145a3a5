package main_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// server is a running `serve` and the client at its other end. The client is
// plain: it writes lines and looks at lines, so that what it sees is what any
// client sees. Every line that arrives is checked to be a JSON-RPC message.
type server struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *os.File // the reading end of the server's standard output
	ids   int

	mu     sync.Mutex
	stderr bytes.Buffer
	seen   []message
	more   chan struct{} // closed when seen grows or ends
	ended  bool          // the output has
	exited chan struct{}
	reaped bool // wait was called: a second time checks nothing
	torn   bool // it will be killed, so its last line may be cut, and not all that is sent arrives
}

// message is one line from the server.
type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	Result  json.RawMessage `json:"result"`
	Error   *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`

	line string
	at   time.Time
}

// serve starts a server on a state directory and reads what it says.
func serve(t testing.TB, state string, flags ...string) *server {
	t.Helper()
	s := serveUnread(t, state, nil, flags...)
	go s.read()
	return s
}

// serveUnread starts a server whose output nobody reads yet.
func serveUnread(t testing.TB, state string, env []string, flags ...string) *server {
	t.Helper()
	cmd := exec.Command(program, append([]string{"serve", "--state", state}, flags...)...)
	cmd.Env = append(os.Environ(), env...)
	return serveCommand(t, cmd)
}

func serveCommand(t testing.TB, cmd *exec.Cmd) *server {
	t.Helper()
	s := &server{t: t, cmd: cmd, more: make(chan struct{}), exited: make(chan struct{})}
	s.cmd.Stderr = lockedWriter{&s.mu, &s.stderr}
	var err error
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	var w *os.File
	if s.out, w, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	s.cmd.Stdout = w
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	go func() {
		s.cmd.Wait()
		close(s.exited)
	}()
	t.Cleanup(s.stop)
	return s
}

type lockedWriter struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

// read takes in everything the server says until its output ends.
func (s *server) read() {
	r := bufio.NewReaderSize(s.out, 1<<20)
	for {
		line, err := r.ReadString('\n')
		at := time.Now()
		var m message
		if s.torn && err != nil {
			line = ""
		}
		if line != "" {
			m = s.parse(line)
			m.at = at
		}
		s.mu.Lock()
		if line != "" {
			s.seen = append(s.seen, m)
		}
		s.ended = err != nil
		close(s.more)
		s.more = make(chan struct{})
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// parse holds a line to JSON-RPC 2.0: one object, and either an answer with an
// id or a notification without one. The server never asks the client anything.
func (s *server) parse(line string) message {
	var m message
	switch err := json.Unmarshal([]byte(line), &m); {
	case err != nil || !strings.HasPrefix(line, "{"):
		s.t.Errorf("stdout carries what is no JSON-RPC message: %.200q: %v", line, err)
	case !strings.HasSuffix(line, "}\n"):
		s.t.Errorf("stdout ends within a message: %.200q", line)
	case m.JSONRPC != "2.0":
		s.t.Errorf("a message without jsonrpc 2.0: %.200q", line)
	case m.Method != "" && (m.ID != nil || m.Params == nil):
		s.t.Errorf("neither an answer nor a notification: %.200q", line)
	case m.Method == "" && (m.ID == nil || (m.Result == nil) == (m.Error == nil)):
		s.t.Errorf("an answer has an id and either result or error: %.200q", line)
	}
	m.line = line
	return m
}

// send writes one line.
func (s *server) send(line string) {
	s.t.Helper()
	if _, err := io.WriteString(s.stdin, line+"\n"); err != nil && !s.torn {
		s.t.Fatalf("write to the server: %s\n%s", err, s.words())
	}
}

// ask writes a request with a new id and returns the id as it was written.
func (s *server) ask(method string, params any) string {
	s.t.Helper()
	s.ids++
	id := fmt.Sprint(s.ids)
	s.send(requestLine(id, method, params))
	return id
}

func requestLine(id, method string, params any) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, encoded(params))
}

func encoded(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if v == nil {
		return "{}"
	}
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return strings.TrimSpace(b.String())
}

// askCall writes a tools/call.
func (s *server) askCall(tool string, args any) string {
	s.t.Helper()
	return s.ask("tools/call", callParams(tool, args))
}

type object = map[string]any

func callParams(tool string, args any) object { return object{"name": tool, "arguments": args} }

// patience is how long a test waits for what should come at once, on a busy
// machine.
const patience = 30 * time.Second

// answer waits for the answer to an id.
func (s *server) answer(id string) message {
	s.t.Helper()
	m, ok := s.await(patience, func(m message) bool { return m.Method == "" && string(m.ID) == id })
	if !ok {
		s.t.Fatalf("no answer to %s; stderr: %s", id, s.words())
	}
	return m
}

// await waits for a message; ok is false when the time is over or the output
// ended without it.
func (s *server) await(limit time.Duration, want func(message) bool) (message, bool) {
	over := time.After(limit)
	for next := 0; ; {
		s.mu.Lock()
		seen, more, ended := s.seen, s.more, s.ended
		s.mu.Unlock()
		for ; next < len(seen); next++ {
			if want(seen[next]) {
				return seen[next], true
			}
		}
		if ended {
			return message{}, false
		}
		select {
		case <-more:
		case <-over:
			return message{}, false
		}
	}
}

// all is everything that arrived so far.
func (s *server) all() []message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]message(nil), s.seen...)
}

// words is what the server wrote to standard error.
func (s *server) words() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stderr.String()
}

// hello does the handshake of the legacy era.
func (s *server) hello() message {
	s.t.Helper()
	return s.helloAs("2025-11-25")
}

func (s *server) helloAs(version string) message {
	s.t.Helper()
	m, ok := s.greet(version)
	if !ok {
		s.t.Fatalf("no answer to initialize; stderr: %s", s.words())
	}
	return m
}

// greet is hello to a server that may end meanwhile, of which ok tells.
func (s *server) greet(version string) (m message, ok bool) {
	s.t.Helper()
	id := s.ask("initialize", object{
		"protocolVersion": version, "capabilities": object{}, "clientInfo": object{"name": "test", "version": "1"},
	})
	if m, ok = s.await(patience, func(m message) bool { return string(m.ID) == id }); !ok {
		return m, false
	}
	if m.Error != nil {
		s.t.Fatalf("initialize: %s", m.line)
	}
	s.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return m, true
}

// result is the answer to a tools/call.
type result struct {
	IsError bool
	Text    string // every text block, joined by newlines
	Facts   map[string]any
	Receipt struct {
		Stream, Leaf string
		N            uint64
	}
}

// result takes the answer to a tools/call apart.
func (m message) result(t testing.TB) result {
	t.Helper()
	var raw struct {
		IsError bool
		Content []struct{ Type, Text string }
		Meta    map[string]json.RawMessage `json:"_meta"`
	}
	if m.Error != nil || json.Unmarshal(m.Result, &raw) != nil {
		t.Fatalf("not a tool's result: %.300s", m.line)
	}
	r := result{IsError: raw.IsError}
	var texts []string
	for _, c := range raw.Content {
		texts = append(texts, c.Text)
	}
	r.Text = strings.Join(texts, "\n")
	if err := json.Unmarshal(raw.Meta["mcp-vdisk/result"], &r.Facts); err != nil {
		t.Fatalf("no facts: %.300s", m.line)
	}
	if strings.HasPrefix(r.Text, "AUDIT_UNAVAILABLE: ") {
		return r // and no record of it
	}
	if err := json.Unmarshal(raw.Meta["mcp-vdisk/audit"], &r.Receipt); err != nil || r.Receipt.N == 0 {
		t.Fatalf("no receipt: %.300s", m.line)
	}
	return r
}

// call makes a tool call and waits for its result.
func (s *server) call(tool string, args any) result {
	s.t.Helper()
	return s.answer(s.askCall(tool, args)).result(s.t)
}

// ok makes a call that has to succeed.
func (s *server) ok(tool string, args any) result {
	s.t.Helper()
	r := s.call(tool, args)
	if r.IsError {
		s.t.Fatalf("%s %.200s: %s", tool, encoded(args), r.Text)
	}
	return r
}

// bash runs a bash script.
func (s *server) bash(source string) result {
	s.t.Helper()
	return s.call("run_script", object{"language": "bash", "source": source})
}

// end hangs up, waits for the server, and holds it to have ended well.
func (s *server) end() {
	s.t.Helper()
	s.stdin.Close()
	s.wait(patience)
}

// wait waits for the server to end by itself, with exit code 0.
func (s *server) wait(limit time.Duration) {
	s.t.Helper()
	select {
	case <-s.exited:
	case <-time.After(limit):
		s.t.Errorf("the server did not end within %s\n%s", limit, s.words())
		s.kill()
		return
	}
	s.mu.Lock()
	first := !s.reaped
	s.reaped = true
	s.mu.Unlock()
	if !first {
		return
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		s.t.Errorf("the server ended with %s\n%s", s.cmd.ProcessState, s.words())
	}
	s.await(patience, func(message) bool { return false }) // the rest of its output
	if words := s.words(); strings.Contains(words, "panic") || strings.Contains(words, "DATA RACE") {
		s.t.Errorf("the server's standard error:\n%s", words)
	}
}

// kill ends the server as a power cut would, and waits until it is gone.
func (s *server) kill() {
	s.mu.Lock()
	s.reaped = true
	s.mu.Unlock()
	s.cmd.Process.Kill()
	<-s.exited
}

// stop is the cleanup.
func (s *server) stop() {
	s.stdin.Close()
	s.mu.Lock()
	over := s.reaped
	s.mu.Unlock()
	if !over {
		s.wait(patience)
	}
	s.out.Close()
}
