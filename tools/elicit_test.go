package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// TestElicit: what a client answers, and what is decided by that. Only the exact form
// decides, and nothing is decided twice.
func TestElicit(t *testing.T) {
	d, k := elicitDisk(t)
	ruling := func(approve, isolated bool) *pyenv.Ruling {
		return &pyenv.Ruling{Approve: approve, Isolated: isolated, Lock: oneLock, By: "client (asserted): guest 1", How: "elicitation"}
	}
	result := func(r string) string { return `{"jsonrpc":"2.0","id":ID,"result":` + r + `}` }
	for i, c := range []struct {
		name, answer string
		state        queue.State
		ruling       *pyenv.Ruling
	}{
		{"approve", result(accepted("approve")), queue.Approved, ruling(true, false)},
		{"isolated", result(accepted("isolated")), queue.Approved, ruling(true, true)},
		{"deny", result(accepted("deny")), queue.Denied, ruling(false, false)},
		{"what later revisions add", result(`{"_meta":{"a":1},"resultType":"complete","action":"accept","content":{"decision":"approve"}}`), queue.Approved, ruling(true, false)},
		{"escapes", result(`{"\u0061ction":"accept","content":{"decision":"\u0061pprove"}}`), queue.Approved, ruling(true, false)},
		{"decline", result(`{"action":"decline"}`), queue.PendingApproval, nil},
		{"decline and approve", result(`{"action":"decline","content":{"decision":"approve"}}`), queue.PendingApproval, nil},
		{"cancel", result(`{"action":"cancel"}`), queue.PendingApproval, nil},
		{"cancel and approve", result(`{"action":"cancel","content":{"decision":"approve"}}`), queue.PendingApproval, nil},
		{"another value", result(accepted("yes")), queue.PendingApproval, nil},
		{"another case", result(accepted("Approve")), queue.PendingApproval, nil},
		{"a space", result(accepted("approve ")), queue.PendingApproval, nil},
		{"an action as value", result(accepted("decline")), queue.PendingApproval, nil},
		{"empty", result(accepted("")), queue.PendingApproval, nil},
		{"true", result(`{"action":"accept","content":{"decision":true}}`), queue.PendingApproval, nil},
		{"a list", result(`{"action":"accept","content":{"decision":["approve"]}}`), queue.PendingApproval, nil},
		{"null", result(`{"action":"accept","content":{"decision":null}}`), queue.PendingApproval, nil},
		{"one key more", result(`{"action":"accept","content":{"decision":"approve","note":"x"}}`), queue.PendingApproval, nil},
		{"another key", result(`{"action":"accept","content":{"Decision":"approve"}}`), queue.PendingApproval, nil},
		{"a key twice", result(`{"action":"accept","content":{"decision":"deny","decision":"approve"}}`), queue.PendingApproval, nil},
		{"no key", result(`{"action":"accept","content":{}}`), queue.PendingApproval, nil},
		{"no content", result(`{"action":"accept"}`), queue.PendingApproval, nil},
		{"content null", result(`{"action":"accept","content":null}`), queue.PendingApproval, nil},
		{"content a text", result(`{"action":"accept","content":"approve"}`), queue.PendingApproval, nil},
		{"content a list", result(`{"action":"accept","content":[{"decision":"approve"}]}`), queue.PendingApproval, nil},
		{"another action", result(`{"action":"approve","content":{"decision":"approve"}}`), queue.PendingApproval, nil},
		{"an action in another case", result(`{"action":"Accept","content":{"decision":"approve"}}`), queue.PendingApproval, nil},
		{"action in another case", result(`{"Action":"accept","content":{"decision":"approve"}}`), queue.PendingApproval, nil},
		{"an action twice", result(`{"action":"decline","action":"accept","content":{"decision":"approve"}}`), queue.PendingApproval, nil},
		{"no action", result(`{"content":{"decision":"approve"}}`), queue.PendingApproval, nil},
		{"an action of another kind", result(`{"action":1,"content":{"decision":"approve"}}`), queue.PendingApproval, nil},
		{"more in the result", result(`{"action":"accept","content":{"decision":"approve"},"request":"x"}`), queue.PendingApproval, nil},
		{"no UTF-8", result("{\"action\":\"accept\",\"content\":{\"decision\":\"approve\xff\"}}"), queue.PendingApproval, nil},
		{"a result that is null", result(`null`), queue.PendingApproval, nil},
		{"a result that is a text", result(`"approve"`), queue.PendingApproval, nil},
		{"a result that is a list", result(`[` + accepted("approve") + `]`), queue.PendingApproval, nil},
		{"an error", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"approve"}}`, queue.PendingApproval, nil},
		{"an error and a result", `{"jsonrpc":"2.0","id":ID,"error":{"code":1,"message":"x"},"result":` + accepted("approve") + `}`, queue.PendingApproval, nil},
		{"no jsonrpc", `{"id":ID,"result":` + accepted("approve") + `}`, queue.PendingApproval, nil},
		{"jsonrpc 1.0", `{"jsonrpc":"1.0","id":ID,"result":` + accepted("approve") + `}`, queue.PendingApproval, nil},
		{"large", result(`{"action":"accept","content":{"decision":"` + strings.Repeat("approve", 1<<18) + `"}}`), queue.PendingApproval, nil},
	} {
		d.run(c.name, func(t *testing.T) {
			k.pend(oneID, oneLock)
			before := len(k.ruled())
			g := d.visit(current, forms11)
			g.call(7, oneID)
			q := g.question()
			g.say("%s", strings.ReplaceAll(c.answer, "ID", string(q.ID)))
			g.accept(q, "approve") // an answer has been given
			wantState(t, g.answer("7"), c.state)
			g.accept(q, "approve")
			g.unasked()
			g.end()
			rulings := k.ruled()[before:]
			if c.ruling == nil && len(rulings) != 0 || c.ruling != nil && (len(rulings) != 1 || !reflect.DeepEqual(rulings[0], *c.ruling)) {
				t.Errorf("case %d: the rulings are %+v, want %+v", i, rulings, c.ruling)
			}
		})
	}
	d.verify()
}

// TestElicitGolden: the question as it goes over the wire.
func TestElicitGolden(t *testing.T) {
	d, k := elicitDisk(t)
	k.pend(oneID, oneLock)
	g := d.visit(current, forms11)
	g.call(7, oneID)
	q := g.question()
	var m any
	if err := json.Unmarshal([]byte(q.line), &m); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(m); err != nil {
		t.Fatal(err)
	}
	have := strings.Replace(b.String(), string(q.ID), `"ID"`, 1)
	have += "\n" + q.Params.Message // as a person sees it
	const name = "testdata/elicit.txt"
	if *update {
		if err := os.WriteFile(name, []byte(have), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := mustRead(t, name); have != string(want) {
		t.Errorf("%s differs; look at it, and write it with -update\n%s", name, have)
	}
	g.accept(q, "deny")
	wantState(t, g.answer("7"), queue.Denied)
}

// TestElicitOnlyWhenDeclared: a client is asked when the operator allows it and the client
// has said that it takes forms, and an answer that nobody asked for is none.
func TestElicitOnlyWhenDeclared(t *testing.T) {
	for _, c := range []struct {
		name, version, capabilities string
		allowed, asked              bool
	}{
		{"nothing said", current, `{}`, true, false},
		{"other things said", current, `{"sampling":{},"roots":{"listChanged":true},"experimental":{"elicitation":{}}}`, true, false},
		{"null", current, `{"elicitation":null}`, true, false},
		{"empty", current, `{"elicitation":{}}`, true, true},
		{"forms", current, `{"elicitation":{"form":{}}}`, true, true},
		{"both", current, `{"elicitation":{"form":{},"url":{}}}`, true, true},
		{"addresses only", current, `{"elicitation":{"url":{}}}`, true, false},
		{"2025-06-18", "2025-06-18", `{"elicitation":{}}`, true, true},
		{"before there was such a thing", "2025-03-26", `{"elicitation":{}}`, true, false},
		{"no handshake", "", ``, true, false},
		{"not allowed", current, `{"elicitation":{}}`, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, k := elicitDisk(t, func(cfg *Config) { cfg.Elicit = c.allowed })
			k.pend(oneID, oneLock)
			g := d.visit(c.version, c.capabilities)
			// What another request of the connection declares is for that one.
			g.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}}`)
			g.answer("1")
			g.call(7, oneID)
			want := queue.PendingApproval
			if c.asked {
				want = queue.Approved
				g.accept(g.question(), "approve")
			} else {
				for _, id := range []string{"1", `"1"`, `"mcp-vdisk-1"`, "null", "7", `""`} {
					g.say(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, accepted("approve"))
				}
			}
			wantState(t, g.answer("7"), want)
			if n := len(k.ruled()); n > 0 != c.asked {
				t.Errorf("%d rulings", n)
			}
		})
	}
}

// TestElicitMadeUpAnswers: while a question waits, an answer to anything else is none.
func TestElicitMadeUpAnswers(t *testing.T) {
	d, k := elicitDisk(t)
	k.pend(oneID, oneLock)
	g := d.visit(current, forms11)
	g.call(7, oneID)
	q := g.question()
	text := strings.Trim(string(q.ID), `"`)
	for _, id := range []string{`7`, `"7"`, `0`, `""`, `"` + text[:len(text)-1] + `"`, `"` + text + `x"`, `"` + strings.ToUpper(text) + `"`} {
		g.say(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, accepted("approve"))
	}
	g.say(`{"jsonrpc":"2.0","result":%s}`, accepted("approve"))
	for _, id := range []string{`["` + text + `"]`, `{"id":"` + text + `"}`, `null`} { // no ids, as ever
		g.say(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, accepted("approve"))
		g.answer("null")
	}
	g.say(`{"jsonrpc":"2.0","id":%s,"method":"ping","result":%s}`, q.ID, accepted("approve")) // is both, and so neither
	g.say(`{"jsonrpc":"2.0","id":%s}`, q.ID)
	g.answer(string(q.ID))
	g.unasked()
	if n := len(k.ruled()); n != 0 {
		t.Fatalf("%d rulings", n)
	}
	g.accept(q, "deny")
	wantState(t, g.answer("7"), queue.Denied)
}

// TestElicitNoAnswer: who does not answer is not waited for, and what he says later is
// nothing; the next call asks again.
func TestElicitNoAnswer(t *testing.T) {
	d, k := elicitDisk(t)
	d.askFor = 2 * time.Second
	k.pend(oneID, oneLock)
	g := d.visit(current, forms11)
	g.call(7, oneID)
	late := g.question()
	g.takenBack(late)
	wantState(t, g.answer("7"), queue.PendingApproval)
	g.accept(late, "approve")
	g.unasked()
	d.askFor = askFor
	g.call(8, oneID)
	q := g.question()
	if string(q.ID) == string(late.ID) {
		t.Errorf("two questions have the id %s", q.ID)
	}
	g.accept(late, "approve")
	g.unasked()
	if n := len(k.ruled()); n != 0 {
		t.Fatalf("%d rulings", n)
	}
	g.accept(q, "isolated")
	wantState(t, g.answer("8"), queue.Approved)
}

// TestElicitTwoCalls: one question at a time, and an answer is for its own.
func TestElicitTwoCalls(t *testing.T) {
	d, k := elicitDisk(t)
	k.pend(oneID, oneLock)
	k.pend(twoID, otherOne)
	g := d.visit(current, forms11)
	g.call(1, oneID)
	g.call(2, twoID)
	calls := map[string]string{oneID: "1", twoID: "2"}
	of := func(q heard) string {
		for id := range calls {
			if strings.Contains(q.Params.Message, id) {
				return id
			}
		}
		t.Fatalf("a question about nothing: %s", q.line)
		return ""
	}
	first := g.question()
	g.unasked() // the other waits for its turn
	g.accept(first, "deny")
	wantState(t, g.answer(calls[of(first)]), queue.Denied)
	second := g.question()
	g.accept(first, "approve")
	g.unasked()
	g.accept(second, "approve")
	wantState(t, g.answer(calls[of(second)]), queue.Approved)
	if of(first) == of(second) {
		t.Error("both questions are about one request")
	}
	for _, r := range k.ruled() {
		if r.Approve != (r.Lock == k.request(of(second)).Lock) {
			t.Errorf("a ruling is %+v", r)
		}
	}
}

// TestElicitTwoCallsOfOneRequest: a person is asked once about it.
func TestElicitTwoCallsOfOneRequest(t *testing.T) {
	d, k := elicitDisk(t)
	k.pend(oneID, oneLock)
	g := d.visit(current, forms11)
	g.call(1, oneID)
	q := g.question()
	g.call(2, oneID)
	g.unasked()
	g.accept(q, "approve")
	wantState(t, g.answer("1"), queue.Approved)
	g.answer("2")
	g.unasked()
	if n := len(k.ruled()); n != 1 {
		t.Errorf("%d rulings", n)
	}
}

// TestElicitTurnComesTooLate: nobody is shown a form that is taken away at once.
func TestElicitTurnComesTooLate(t *testing.T) {
	d, k := elicitDisk(t)
	k.pend(oneID, oneLock)
	k.pend(twoID, oneLock)
	g := d.visit(current, forms11)
	g.call(1, oneID)
	q := g.question()
	d.askFor = time.Second
	g.call(2, twoID)
	wantState(t, g.answer("2"), queue.PendingApproval)
	d.askFor = askFor
	g.accept(q, "approve")
	wantState(t, g.answer("1"), queue.Approved)
	g.unasked()
}

// TestElicitCancelledCall: the question ends with its call.
func TestElicitCancelledCall(t *testing.T) {
	d, k := elicitDisk(t)
	k.pend(oneID, oneLock)
	g := d.visit(current, forms11)
	g.call(7, oneID)
	q := g.question()
	g.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
	g.takenBack(q)
	g.accept(q, "approve")
	g.unasked()
	// The turn is free again, and a cancelled call is not answered.
	g.call(8, oneID)
	again := g.question()
	g.accept(q, "approve")
	g.accept(again, "deny")
	wantState(t, g.answer("8"), queue.Denied)
	g.end()
	for h := range g.heard {
		g.kept = append(g.kept, h)
	}
	for _, h := range g.kept {
		if string(h.ID) == "7" {
			t.Errorf("a cancelled call is answered: %s", h.line)
		}
	}
	if rulings := k.ruled(); len(rulings) != 1 || rulings[0].Approve {
		t.Errorf("the rulings are %+v", rulings)
	}
	d.verify()
}

// TestElicitHangUp: a client that sends no more does not answer, and is answered.
func TestElicitHangUp(t *testing.T) {
	d, k := elicitDisk(t)
	k.pend(oneID, oneLock)
	k.pend(twoID, oneLock)
	g := d.visit(current, forms11)
	g.call(1, oneID)
	q := g.question()
	g.call(2, twoID)
	g.unasked()
	began := time.Now()
	g.in.Close()
	g.takenBack(q)
	wantState(t, g.answer("1"), queue.PendingApproval)
	wantState(t, g.answer("2"), queue.PendingApproval)
	g.end()
	if took := time.Since(began); took > eofGrace {
		t.Errorf("that took %s", took)
	}
	if n := len(k.ruled()); n != 0 {
		t.Errorf("%d rulings", n)
	}
}

// TestElicitLastWord: an answer counts when it is the last that the client says.
func TestElicitLastWord(t *testing.T) {
	for range 20 {
		d, k := elicitDisk(t)
		k.pend(oneID, oneLock)
		g := d.visit(current, forms11)
		g.call(7, oneID)
		q := g.question()
		fmt.Fprintf(g.in, `{"jsonrpc":"2.0","id":%s,"result":%s}`, q.ID, accepted("approve"))
		g.in.Close()
		wantState(t, g.answer("7"), queue.Approved)
		g.end()
	}
}

// TestElicitShutdown: a server that ends does not wait for a person.
func TestElicitShutdown(t *testing.T) {
	d, k := elicitDisk(t)
	k.pend(oneID, oneLock)
	g := d.visit(current, forms11)
	g.call(7, oneID)
	g.question()
	g.cancel()
	select {
	case err := <-g.served:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end")
	}
	if n := len(k.ruled()); n != 0 {
		t.Errorf("%d rulings", n)
	}
	d.verify()
}

// TestElicitAskedAgain: who declined is not asked about the same lock again, who
// dismissed the form is.
func TestElicitAskedAgain(t *testing.T) {
	d, k := elicitDisk(t)
	k.pend(oneID, oneLock)
	g := d.visit(current, forms11)
	for id, said := range []string{"cancel", "cancel", "decline"} {
		g.call(id+1, oneID)
		q := g.question()
		g.say(`{"jsonrpc":"2.0","id":%s,"result":{"action":%q}}`, q.ID, said)
		wantState(t, g.answer(fmt.Sprint(id+1)), queue.PendingApproval)
	}
	g.call(8, oneID)
	wantState(t, g.answer("8"), queue.PendingApproval)
	g.unasked()
	k.pend(oneID, otherOne) // it was resolved anew
	g.call(9, oneID)
	g.accept(g.question(), "approve")
	wantState(t, g.answer("9"), queue.Approved)
	if rulings := k.ruled(); len(rulings) != 1 || rulings[0].Lock != otherOne {
		t.Errorf("the rulings are %+v", rulings)
	}
}

// TestElicitOvertaken: what was decided or resolved elsewhere meanwhile stays so.
func TestElicitOvertaken(t *testing.T) {
	d, k := elicitDisk(t)
	g := d.visit(current, forms11)
	for id, overtake := range []func(){
		func() { k.pend(oneID, otherOne) },
		func() { k.open[oneID] = queue.Request{ID: oneID, State: queue.Denied, Lock: oneLock} },
		func() { k.err = errors.New("the log cannot be written") },
	} {
		k.pend(oneID, oneLock)
		g.call(id+1, oneID)
		q := g.question()
		overtake()
		g.accept(q, "approve")
		wantState(t, g.answer(fmt.Sprint(id+1)), queue.PendingApproval)
	}
	k.err = nil
	g.call(9, oneID) // what could not be decided is asked again
	g.accept(g.question(), "approve")
	wantState(t, g.answer("9"), queue.Approved)
}

// TestElicitNothingToAsk: what is not pending, has no card, or one of something else.
func TestElicitNothingToAsk(t *testing.T) {
	d, k := elicitDisk(t)
	g := d.visit(current, forms11)
	other, rejected := sampleCard(oneID, otherOne), sampleCard(oneID, oneLock)
	rejected.Choices = nil
	for i, c := range []struct {
		name  string
		state queue.State
		lock  string
		card  *policy.Card
	}{
		{"at work", queue.Resolving, oneLock, nil},
		{"ready", queue.Ready, oneLock, nil},
		{"denied", queue.Denied, oneLock, nil},
		{"no lock", queue.PendingApproval, "", nil},
		{"the card of another lock", queue.PendingApproval, oneLock, &other},
		{"the card of another request", queue.PendingApproval, oneLock, new(sampleCard(twoID, oneLock))},
		{"no card", queue.PendingApproval, oneLock, &policy.Card{}},
		{"no choice", queue.PendingApproval, oneLock, &rejected},
	} {
		delete(k.cards, oneID)
		if c.card != nil {
			k.cards[oneID] = *c.card
		}
		k.open[oneID] = queue.Request{ID: oneID, State: c.state, Lock: c.lock}
		g.call(i+1, oneID)
		wantState(t, g.answer(fmt.Sprint(i+1)), c.state)
		g.unasked()
	}
	// Only what is offered can be chosen.
	iso := sampleCard(oneID, oneLock)
	iso.Choices = []policy.Choice{policy.Isolated, policy.Deny}
	k.cards[oneID] = iso
	k.pend(oneID, oneLock)
	g.call(99, oneID)
	g.accept(g.question(), "approve")
	wantState(t, g.answer("99"), queue.PendingApproval)
}

// TestElicitWithoutASession: a call that came another way asks nobody.
func TestElicitWithoutASession(t *testing.T) {
	d, k := elicitDisk(t)
	r := k.pend(oneID, oneLock)
	if got := d.elicit(t.Context(), r); got.State != queue.PendingApproval || len(k.ruled()) != 0 {
		t.Errorf("it is %+v", got)
	}
}

// TestElicitBehind: a client that does not read what it is sent is not asked.
func TestElicitBehind(t *testing.T) {
	l := &loop{quit: make(chan struct{})}
	l.unsent = maxUnsent
	if _, err := l.ask(t.Context(), "elicitation/create", nil); !errors.Is(err, errBehind) || l.question != nil || len(l.list) != 0 {
		t.Errorf("%v, %d messages", err, len(l.list))
	}
}

func TestAskUntil(t *testing.T) {
	d := newDisk(t)
	for _, c := range []struct {
		name      string
		ago, left time.Duration // since the call began, until it ends by itself
		want      time.Duration
		enough    bool
	}{
		{"a new call", 0, 0, 45 * time.Second, true},
		{"a call that worked for long", 30 * time.Second, 0, 15 * time.Second, true},
		{"one that worked for too long", 40 * time.Second, 0, 5 * time.Second, false},
		{"one that is over", time.Hour, 0, 0, false},
		{"one that ends soon", 0, 30 * time.Second, 29 * time.Second, true},
		{"too soon", 0, 10 * time.Second, 9 * time.Second, false},
		{"late", 20 * time.Second, 50 * time.Second, 25 * time.Second, true},
	} {
		ctx := WithCaller(t.Context(), Caller{began: time.Now().Add(-c.ago)})
		if c.left > 0 {
			var stop func()
			ctx, stop = context.WithTimeout(ctx, c.left)
			defer stop()
		}
		ctx, cancel, enough := d.askUntil(ctx)
		defer cancel()
		end, _ := ctx.Deadline()
		if off := time.Until(end) - c.want; enough != c.enough || c.enough && (off > 0 || off < -5*time.Second) {
			t.Errorf("%s: %s is left, enough %v", c.name, time.Until(end), enough)
		}
	}
}

func TestAsserted(t *testing.T) {
	for client, want := range map[string]string{
		"guest 1":                    "client (asserted): guest 1",
		"":                           "client (asserted)",
		" ":                          "client (asserted)",
		"a\n\x1b[2Joperator\u202e 1": "client (asserted): a??[2Joperator? 1",
		"Größe 日本 1":                 "client (asserted): Größe 日本 1",
	} {
		if got := asserted(client); got != want {
			t.Errorf("%q: %q, want %q", client, got, want)
		}
	}
}

// FuzzElicitAnswer: what approves says so, in every way to read it.
func FuzzElicitAnswer(f *testing.F) {
	for _, s := range []string{
		accepted("approve"), accepted("deny"), accepted("yes"), `{"action":"decline"}`, `{"action":"accept","content":{"decision":"deny","decision":"approve"}}`,
		`{"action":"accept","content":{"decision":"approve"}}x`, `{`, `[]`, ``, `{"action":"accept","action":"cancel"}`, `{"_meta":{"":1},"action":"cancel"}`,
	} {
		f.Add([]byte(s))
	}
	of := form{choices: []policy.Choice{policy.Approve, policy.Deny}}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if !json.Valid(raw) {
			return // no message has it
		}
		said, err := of.read(raw)
		if err != nil {
			if said != "" {
				t.Errorf("%q: %q and %v", raw, said, err)
			}
			return
		}
		var m map[string]any
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		switch said {
		case "approve", "deny":
			if m["action"] != "accept" || !reflect.DeepEqual(m["content"], map[string]any{"decision": said}) {
				t.Errorf("%q says %q", raw, said)
			}
		case "decline", "cancel":
			if m["action"] != said {
				t.Errorf("%q says %q", raw, said)
			}
		default:
			t.Errorf("%q says %q", raw, said)
		}
	})
}
