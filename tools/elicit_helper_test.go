package tools

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// desk has requests that wait for a person, and takes the rulings.
type desk struct {
	mu      sync.Mutex
	open    map[string]queue.Request
	cards   map[string]policy.Card // others than card makes
	rulings []pyenv.Ruling
	err     error // of Decide
}

// pend makes a request pend.
func (k *desk) pend(id, lock string) queue.Request {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := queue.Request{ID: id, State: queue.PendingApproval, Lock: lock}
	k.open[id] = r
	return r
}

func (k *desk) request(id string) queue.Request {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.open[id]
}

func (k *desk) ruled() []pyenv.Ruling {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.rulings
}

func (k *desk) Card(_ context.Context, r queue.Request) (policy.Card, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c, ok := k.cards[r.ID]; ok {
		if c.ID == "" {
			return c, errors.New("no card")
		}
		return c, nil
	}
	return sampleCard(r.ID, r.Lock), nil
}

// Decide is as strict about state and lock as the queue is.
func (k *desk) Decide(ctx context.Context, id string, r pyenv.Ruling) (queue.Request, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	q := k.open[id]
	switch {
	case k.err != nil || ctx.Err() != nil:
		return queue.Request{}, errors.Join(k.err, ctx.Err())
	case q.State != queue.PendingApproval || q.Lock != r.Lock:
		return queue.Request{}, queue.ErrConflict
	}
	k.rulings = append(k.rulings, r)
	q.State = queue.Denied
	if r.Approve {
		q.State = queue.Approved
	}
	k.open[id] = q
	return q, nil
}

func sampleCard(id, of string) policy.Card {
	at := time.Date(2026, 11, 29, 20, 4, 5, 0, time.UTC)
	return policy.Card{
		ID: id, Workspace: "3f2c9a1e-6a5b-4c7d-8e9f-0a1b2c3d4e5f", Client: "guest 1", Session: "s-7",
		Reason: "A \"table\" of <the report> & more.", Created: at, Expires: at.AddDate(0, 0, 7), Now: at.Add(time.Minute),
		Asked: []string{"pdfminer-tables"}, Download: 1_200_000, Disk: 4_800_000, Build: 2 * time.Second,
		Rows: []policy.Row{{Name: "pdfminer-tables", Version: "1.0", Uploaded: at.AddDate(0, -4, 0), Size: 1_200_000, License: "MIT", Index: "files.example", Marks: []string{"not_listed"}, Asked: true, Unusual: true}},
		Tier: policy.Ask, Findings: []policy.Finding{{Rule: "not_listed", Package: "pdfminer-tables", Sentence: "pdfminer-tables is not in the catalog", Tier: policy.Ask}},
		Kind: lock.X, Base: "base-0123456789abcdef", Lock: of,
		Choices: []policy.Choice{policy.Approve, policy.Isolated, policy.Deny},
	}
}

// elicitDisk is a disk whose python_env puts the request that "request_id" names to the
// person at the client, and says in what state it then is.
func elicitDisk(t *testing.T, change ...func(*Config)) (*disk, *desk) {
	t.Helper()
	d := setup{config: func(c *Config) {
		c.Elicit = true
		for _, f := range change {
			f(c)
		}
	}}.disk(t)
	k := &desk{open: map[string]queue.Request{}, cards: map[string]policy.Card{}}
	d.decider = k
	d.table["python_env"] = func(c *call) (work, error) {
		var a struct {
			ID string `json:"request_id"`
		}
		err := json.Unmarshal(c.args, &a)
		c.beside = true
		return func(ctx context.Context) (Result, error) {
			r := d.elicit(ctx, k.request(a.ID))
			return textResult(nil, string(r.State)), nil
		}, err
	}
	return d, k
}

// guest is a client that may be asked.
type guest struct {
	t      testing.TB
	in     *io.PipeWriter
	served chan error
	cancel context.CancelFunc
	heard  chan heard
	kept   []heard // that were not what was waited for
}

type heard struct {
	ID     json.RawMessage
	Method string
	Params struct {
		Message         string
		RequestedSchema json.RawMessage
		RequestID       json.RawMessage
	}
	Result struct {
		ResultType    string
		RequestState  string
		Content       []struct{ Text string }
		InputRequests map[string]struct {
			Method string
			Params struct{ Message string }
		}
	}
	Error *struct{ Message string }
	line  string
}

// text is that of a tool's result.
func (h heard) text() string {
	if h.Error != nil || len(h.Result.Content) != 1 {
		return h.line
	}
	return h.Result.Content[0].Text
}

// visit connects a client and does the handshake, unless version is "".
func (d *disk) visit(version, capabilities string) *guest {
	d.t.Helper()
	ctx, cancel := context.WithCancel(d.t.Context())
	in, toServer := io.Pipe()
	out, fromServer := io.Pipe()
	g := &guest{t: d.t, in: toServer, served: make(chan error, 1), cancel: cancel, heard: make(chan heard, 100)}
	go func() {
		err := d.ServeStdio(ctx, in, fromServer)
		fromServer.Close()
		g.served <- err
	}()
	go g.listen(out)
	d.t.Cleanup(func() {
		toServer.Close()
		cancel()
		out.Close()
	})
	if version != "" {
		g.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":%q,"clientInfo":{"name":"guest","version":"1"},"capabilities":%s}}`, version, capabilities)
		g.answer("0")
		g.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	}
	return g
}

func (g *guest) listen(out io.Reader) {
	defer close(g.heard)
	for r := bufio.NewReader(out); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		h := heard{line: line}
		if err := json.Unmarshal([]byte(line), &h); err != nil {
			g.t.Errorf("%q: %v", line, err)
		}
		g.heard <- h
	}
}

func (g *guest) say(format string, a ...any) {
	fmt.Fprintf(g.in, format+"\n", a...) // fails when the server has ended
}

// call asks for a request by its id.
func (g *guest) call(id int, request string) {
	g.say(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"python_env","arguments":{"action":"wait","request_id":%q}}}`, id, request)
}

// next waits for a message.
func (g *guest) next(what string, want func(heard) bool) heard {
	g.t.Helper()
	for i, h := range g.kept {
		if want(h) {
			g.kept = append(g.kept[:i], g.kept[i+1:]...)
			return h
		}
	}
	limit := time.After(20 * time.Second)
	for {
		select {
		case h, ok := <-g.heard:
			switch {
			case !ok:
				g.t.Fatalf("the connection ended before %s", what)
			case want(h):
				return h
			}
			g.kept = append(g.kept, h)
		case <-limit:
			g.t.Fatalf("no %s; there were %v", what, g.kept)
		}
	}
}

func (g *guest) answer(id string) heard {
	g.t.Helper()
	return g.next("answer to "+id, func(h heard) bool { return h.Method == "" && string(h.ID) == id })
}

// question is the next that the server asks.
func (g *guest) question() heard {
	g.t.Helper()
	return g.next("question", func(h heard) bool { return h.Method == "elicitation/create" })
}

// takenBack waits until a question is.
func (g *guest) takenBack(q heard) {
	g.t.Helper()
	g.next("end of the question", func(h heard) bool {
		return h.Method == "notifications/cancelled" && string(h.Params.RequestID) == string(q.ID)
	})
}

// unasked fails if the server has asked something that nobody took.
func (g *guest) unasked() {
	g.t.Helper()
	g.say(`{"jsonrpc":"2.0","id":"unasked","method":"ping"}`)
	g.answer(`"unasked"`)
	for _, h := range g.kept {
		if h.Method != "" {
			g.t.Errorf("it says %s", h.line)
		}
	}
}

// accept answers a question.
func (g *guest) accept(q heard, decision string) {
	g.say(`{"jsonrpc":"2.0","id":%s,"result":%s}`, q.ID, accepted(decision))
}

func accepted(decision string) string {
	return fmt.Sprintf(`{"action":"accept","content":{"decision":%q}}`, decision)
}

// end closes the connection and waits for the server.
func (g *guest) end() {
	g.t.Helper()
	g.in.Close()
	select {
	case err := <-g.served:
		if err != nil {
			g.t.Errorf("it ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		g.t.Error("it does not end")
	}
}

const (
	current  = "2025-11-25"
	forms11  = `{"elicitation":{}}`
	oneID    = "01KB8Z6Q4N3T5V7W9X1Y2Z3A4B"
	twoID    = "01KB8Z6Q4N3T5V7W9X1Y2Z3A4C"
	oneLock  = "68d325cf03b5e175"
	otherOne = "78d325cf03b5e175"
)

func wantState(t *testing.T, h heard, want queue.State) {
	t.Helper()
	if got := strings.TrimSpace(h.text()); got != string(want) {
		t.Errorf("the request is %s, want %s", got, want)
	}
}
