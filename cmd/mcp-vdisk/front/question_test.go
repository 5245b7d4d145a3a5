package front

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"testing"
)

// A server may ask its client something while a call runs. The shim passes that on.

const (
	question = `{"jsonrpc":"2.0","id":"mcp-vdisk-1","method":"elicitation/create","params":{"message":"m"}}` + "\n"
	reply    = `{"jsonrpc":"2.0","id":"mcp-vdisk-1","result":{"action":"accept","content":{"decision":"approve"}}}` + "\n"
	waiting  = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"python_env"}}` + "\n"
)

// talk is a shim between a client and a daemon, both of the test.
type talk struct {
	t      *testing.T
	shim   *shim
	mu     sync.Mutex
	out    bytes.Buffer // what the client is told
	wrote  chan bool    // for each line of that
	daemon *Frames
	gone   chan bool // receive has returned

	skipPip bool // it is about something else
}

func (k *talk) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wrote <- true
	return k.out.Write(p)
}

func newTalk(t *testing.T) *talk {
	// Nobody reads what the shim sends until it has sent it: let that be little.
	for _, name := range []string{"PIP_CERT", "PIP_CLIENT_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"} {
		t.Setenv(name, "") // nobody reads what the shim sends until it has sent it
	}
	t.Setenv("PIP_CONFIG_FILE", "/dev/null")
	k := &talk{t: t, wrote: make(chan bool, 10), skipPip: true}
	k.shim = &shim{a: &Caller{Stderr: io.Discard}, out: k}
	k.shim.back = sync.NewCond(&k.shim.mu)
	k.next()
	return k
}

// next begins with another daemon.
func (k *talk) next() {
	k.t.Helper()
	ours, theirs, err := Pair()
	if err != nil {
		k.t.Fatal(err)
	}
	conn, err := NewFrames(ours)
	if err != nil {
		k.t.Fatal(err)
	}
	if k.daemon, err = NewFrames(theirs); err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { k.daemon.Close() })
	k.shim.begin(conn)
	gone := make(chan bool)
	k.gone = gone
	go func() {
		lines := 0
		k.shim.receive(conn, &lines)
		close(gone)
	}()
}

// die is the end of the daemon. What it said before arrives.
func (k *talk) die() {
	k.t.Helper()
	k.daemon.Close()
	<-k.gone
	if err := k.shim.lost(); err != nil {
		k.t.Error(err)
	}
}

// client says a line.
func (k *talk) client(line string) {
	k.t.Helper()
	if !k.shim.pass([]byte(line), false, nil) {
		k.t.Fatalf("%q is not passed on", line)
	}
}

// wantDaemon reads what the daemon is sent.
func (k *talk) wantDaemon(line string) {
	k.t.Helper()
	typ, payload, err := k.daemon.Read()
	for k.skipPip && err == nil && typ == FramePip {
		typ, payload, err = k.daemon.Read()
	}
	if err != nil || typ != FrameStdin || string(payload) != line {
		k.t.Errorf("the daemon is sent %c %q, %v, want %q", typ, payload, err, line)
	}
}

// told is what the client was told since the last time.
func (k *talk) told() (lines []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	lines = strings.SplitAfter(k.out.String(), "\n")
	k.out.Reset()
	return lines[:len(lines)-1]
}

func TestAQuestionThroughTheShim(t *testing.T) {
	k := newTalk(t)
	k.client(waiting)
	k.wantDaemon(waiting)
	k.daemon.Write(FrameStdout, []byte(question))
	<-k.wrote
	k.client(reply)
	k.wantDaemon(reply)
	k.die()
	// The call is lost, the question has its answer as far as the client knows.
	if got := strings.Join(k.told(), ""); got != question+string(lostAnswer("1")) {
		t.Errorf("the client is told %q", got)
	}
	if len(k.shim.open) != 0 {
		t.Errorf("open are %+v", k.shim.open)
	}
}

// What a dead daemon has asked is taken back, and an answer to that is not kept for the
// next one, which drops it like any that it does not know.
func TestAQuestionOfADeadDaemon(t *testing.T) {
	k := newTalk(t)
	k.client(waiting)
	k.wantDaemon(waiting)
	k.daemon.Write(FrameStdout, []byte(question))
	k.die()
	want := []string{question, string(takenBack(`"mcp-vdisk-1"`)), string(lostAnswer("1"))}
	if got := k.told(); strings.Join(got, "") != strings.Join(want, "") {
		t.Errorf("the client is told %q, want %q", got, want)
	}
	k.next()
	k.client(reply)
	k.wantDaemon(reply)
	if len(k.shim.open) != 0 || len(k.shim.questions) != 0 {
		t.Errorf("noted are %+v %q", k.shim.open, k.shim.questions)
	}
	k.die()
	if got := k.told(); len(got) != 0 {
		t.Errorf("the client is told %q", got)
	}
}

// An answer that does not reach its daemon is dropped, and is not taken for a call.
func TestAnAnswerThatDoesNotArrive(t *testing.T) {
	for name, answer := range map[string]string{
		"to a question":           reply,
		"under the id of a call":  `{"jsonrpc":"2.0","id":1,"result":{}}` + "\n",
		"an error, under that id": `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			k := newTalk(t)
			k.client(waiting)
			k.wantDaemon(waiting)
			k.daemon.Write(FrameStdout, []byte(question))
			k.daemon.Close()
			<-k.gone // the shim does not know yet
			k.shim.send(k.shim.conn, []byte(answer), false, nil)
			if len(k.shim.open) != 1 {
				t.Errorf("open are %+v", k.shim.open)
			}
			if err := k.shim.lost(); err != nil {
				t.Error(err)
			}
			if got := k.told(); len(got) == 0 || got[len(got)-1] != string(lostAnswer("1")) {
				t.Errorf("the client is told %q", got)
			}
		})
	}
}

// What is noted of questions: each until it is answered or taken back.
func TestQuestions(t *testing.T) {
	long := strings.Repeat("x", longLine)
	for _, c := range []struct {
		name string
		said string // by the client, after "<" by the daemon
		left string
	}{
		{"open", `<{"id":"q","method":"elicitation/create"}`, `"q"`},
		{"answered", "<{\"id\":\"q\",\"method\":\"x\"}\n{\"id\":\"q\",\"result\":{}}", ""},
		{"refused", "<{\"id\":\"q\",\"method\":\"x\"}\n{\"id\":\"q\",\"error\":{}}", ""},
		{"taken back", "<{\"id\":\"q\",\"method\":\"x\"}\n<{\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":\"q\"}}", ""},
		{"another taken back", "<{\"id\":\"q\",\"method\":\"x\"}\n<{\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":\"p\"}}", `"q"`},
		{"nothing taken back", "<{\"id\":\"q\",\"method\":\"x\"}\n<{\"method\":\"notifications/cancelled\"}", `"q"`},
		{"another answered", "<{\"id\":\"q\",\"method\":\"x\"}\n{\"id\":\"p\",\"result\":{}}", `"q"`},
		{"the client cancels a call", "<{\"id\":\"q\",\"method\":\"x\"}\n{\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":\"q\"}}", `"q"`},
		{"two", "<{\"id\":\"q\",\"method\":\"x\"}\n<{\"id\":\"p\",\"method\":\"x\"}", `"q" "p"`},
		{"no JSON", "<{\"id\":\"q\",\"method\":\"x\"}\n{\"id\":\"q\",\"result\":", `"q"`},
		{"a note", `<{"method":"notifications/progress","params":{}}`, ""},
		{"an answer of the daemon", `<{"id":1,"result":{}}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p pending
			for line := range strings.Lines(c.said) {
				if line, ok := strings.CutPrefix(line, "<"); ok {
					p.hear(envelopeOf([]byte(line)))
				} else {
					p.say([]byte(line))
				}
			}
			if left := strings.Join(p.orphaned(), " "); left != c.left || len(p.open) != 0 || p.questions != nil {
				t.Errorf("left are %q, want %q; open are %+v", left, c.left, p.open)
			}
		})
	}
	// A broken answer takes no call back that has its id.
	var p pending
	p.say([]byte(waiting))
	broken := []byte(`{"id":1,"result":"` + long + "\n\"}")
	p.say(broken)
	if !isBroken(broken) {
		t.Error("it is not broken")
	}
	p.unsay(broken)
	if len(p.open) != 1 {
		t.Errorf("open are %+v", p.open)
	}
}

func TestTakenBack(t *testing.T) {
	for _, id := range []string{`1`, `"a\u0000b"`} {
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct{ RequestID json.RawMessage }
		}
		line := takenBack(id)
		if err := json.Unmarshal(line, &m); err != nil || m.ID != nil || m.Method != "notifications/cancelled" || string(m.Params.RequestID) != id || line[len(line)-1] != '\n' {
			t.Errorf("%s: %v %q", id, err, line)
		}
	}
}

// TestTheNextDaemonHasThePipConfiguration: a daemon that takes the place of one that had
// it gets it first, before what is asked again and though the client says nothing: it may
// have to go on with what the other was at.
func TestTheNextDaemonHasThePipConfiguration(t *testing.T) {
	t.Setenv("PIP_INDEX_URL", "https://index.example/simple")
	again := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"python_env","arguments":{"action":"wait","request_id":"x"}}}` + "\n"
	k := newTalk(t)
	k.client(again)
	k.wantPip()
	k.wantDaemon(again)
	k.die()
	k.next()
	k.wantPip()
	k.wantDaemon(again)
}

// wantPip reads a pip configuration to its end.
func (k *talk) wantPip() {
	k.t.Helper()
	var text []byte
	for {
		typ, piece, err := k.daemon.Read()
		if err != nil || typ != FramePip {
			k.t.Fatalf("the daemon is sent %c %q, %v, not a pip configuration", typ, piece, err)
		}
		if len(piece) == 0 {
			break
		}
		text = append(text, piece...)
	}
	if !bytes.Contains(text, []byte("https://index.example/simple")) {
		k.t.Errorf("the daemon has %q", text)
	}
}
