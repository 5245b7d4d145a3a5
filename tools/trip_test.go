package tools

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// trip makes a call of 2026-07-28; more are further params.
func (g *guest) trip(id int, request, capabilities, more string) heard {
	g.t.Helper()
	g.say(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"python_env","arguments":{"action":"wait","request_id":%q},"_meta":{`+
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"modern","version":"2"},"io.modelcontextprotocol/clientCapabilities":%s}%s}}`,
		id, request, capabilities, more)
	return g.answer(fmt.Sprint(id))
}

// wantForm fails unless a result asks for a decision about a request.
func wantForm(t *testing.T, h heard, id string) {
	t.Helper()
	form := h.Result.InputRequests[formKey]
	if h.Result.ResultType != "input_required" || h.Result.RequestState == "" || form.Method != "elicitation/create" || !strings.Contains(form.Params.Message, id) {
		t.Fatalf("it asks for nothing about %s: %s", id, h.line)
	}
}

// wantComplete fails unless a result asks for nothing.
func wantComplete(t *testing.T, h heard, state queue.State) {
	t.Helper()
	wantState(t, h, state)
	if h.Result.ResultType != "complete" || h.Result.RequestState != "" || len(h.Result.InputRequests) != 0 {
		t.Errorf("it asks for something: %s", h.line)
	}
}

// back is what a client brings that comes back.
func back(h heard, answer string) string {
	return fmt.Sprintf(`,"requestState":%q,"inputResponses":{"decision":%s}`, h.Result.RequestState, answer)
}

// TestElicitOverTrips: in 2026-07-28 the result asks, and the call is made again.
func TestElicitOverTrips(t *testing.T) {
	d, k := elicitDisk(t)
	k.pend(oneID, oneLock)
	g := d.visit("", "")
	asks := g.trip(1, oneID, forms11, "")
	wantForm(t, asks, oneID)
	wantComplete(t, g.trip(2, oneID, forms11, back(asks, accepted("isolated"))), queue.Approved)
	rulings := k.ruled()
	if len(rulings) != 1 || rulings[0].By != "client (asserted): modern 2" || !rulings[0].Isolated || rulings[0].Lock != oneLock || rulings[0].How != "elicitation" {
		t.Errorf("the rulings are %+v", rulings)
	}
	k.pend(oneID, oneLock)
	wantComplete(t, g.trip(3, oneID, forms11, back(asks, accepted("approve"))), queue.PendingApproval) // it was told once
	wantComplete(t, g.trip(4, oneID, forms11, ""), queue.PendingApproval)                              // and nobody is asked again
	g.unasked()
	if n := len(k.ruled()); n != 1 {
		t.Errorf("%d rulings", n)
	}
	d.verify()
}

// TestElicitOverTripsNot: what a client brings back that decides nothing.
func TestElicitOverTripsNot(t *testing.T) {
	for _, c := range []struct {
		name string
		back func(asks heard) string
	}{
		{"decline", func(a heard) string { return back(a, `{"action":"decline"}`) }},
		{"cancel", func(a heard) string { return back(a, `{"action":"cancel","content":{"decision":"approve"}}`) }},
		{"another value", func(a heard) string { return back(a, accepted("yes")) }},
		{"a key more", func(a heard) string {
			return back(a, `{"action":"accept","content":{"decision":"approve","x":1}}`)
		}},
		{"a key twice", func(a heard) string {
			return back(a, `{"action":"accept","content":{"decision":"deny","decision":"approve"}}`)
		}},
		{"a list", func(a heard) string { return back(a, `[]`) }},
		{"null", func(a heard) string { return back(a, `null`) }},
		{"no state", func(heard) string { return `,"inputResponses":{"decision":` + accepted("approve") + `}` }},
		{"another state", func(heard) string {
			return `,"requestState":"x","inputResponses":{"decision":` + accepted("approve") + `}`
		}},
		{"a state alone", func(a heard) string { return fmt.Sprintf(`,"requestState":%q`, a.Result.RequestState) }},
		{"an answer to something else", func(a heard) string {
			return fmt.Sprintf(`,"requestState":%q,"inputResponses":{"Decision":%s}`, a.Result.RequestState, accepted("approve"))
		}},
		{"two answers", func(a heard) string {
			return fmt.Sprintf(`,"requestState":%q,"inputResponses":{"decision":%s,"x":{}}`, a.Result.RequestState, accepted("approve"))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, k := elicitDisk(t)
			k.pend(oneID, oneLock)
			g := d.visit("", "")
			asks := g.trip(1, oneID, forms11, "")
			wantForm(t, asks, oneID)
			wantComplete(t, g.trip(2, oneID, forms11, c.back(asks)), queue.PendingApproval)
			g.unasked()
			if n := len(k.ruled()); n != 0 {
				t.Errorf("%d rulings", n)
			}
		})
	}
}

// TestElicitOverTripsBinds: an answer is for the request, the lock and the session that
// were asked about.
func TestElicitOverTripsBinds(t *testing.T) {
	d, k := elicitDisk(t)
	k.pend(oneID, oneLock)
	k.pend(twoID, oneLock)
	g, other := d.visit("", ""), d.visit("", "")
	one := g.trip(1, oneID, forms11, "")
	wantForm(t, one, oneID)
	wantComplete(t, other.trip(2, oneID, forms11, back(one, accepted("approve"))), queue.PendingApproval)
	wantComplete(t, g.trip(3, twoID, forms11, back(one, accepted("approve"))), queue.PendingApproval)

	one = g.trip(4, oneID, forms11, "")
	wantForm(t, one, oneID)
	k.pend(oneID, otherOne)
	wantComplete(t, g.trip(5, oneID, forms11, back(one, accepted("approve"))), queue.PendingApproval)

	one, two := g.trip(6, oneID, forms11, ""), g.trip(7, twoID, forms11, "")
	wantForm(t, one, oneID)
	wantForm(t, two, twoID)
	wantComplete(t, g.trip(8, twoID, forms11, back(two, accepted("approve"))), queue.Approved)
	wantComplete(t, g.trip(9, oneID, forms11, back(one, accepted("deny"))), queue.Denied)
	if rulings := k.ruled(); len(rulings) != 2 || rulings[0].Lock != oneLock || rulings[1].Lock != otherOne {
		t.Errorf("the rulings are %+v", rulings)
	}
}

// TestElicitOverTripsOnlyWhenDeclared: with the very request, whatever the handshake said.
func TestElicitOverTripsOnlyWhenDeclared(t *testing.T) {
	d, k := elicitDisk(t)
	k.pend(oneID, oneLock)
	g := d.visit(current, forms11)
	for id, capabilities := range []string{`{}`, `{"elicitation":{"url":{}}}`, `{"sampling":{}}`} {
		wantComplete(t, g.trip(id+1, oneID, capabilities, ""), queue.PendingApproval)
	}
	asks := g.trip(8, oneID, forms11, "")
	wantForm(t, asks, oneID)
	wantComplete(t, g.trip(9, oneID, `{}`, back(asks, accepted("approve"))), queue.PendingApproval)
	if n := len(k.ruled()); n != 0 {
		t.Errorf("%d rulings", n)
	}
	// A call of the era before is asked as it was then.
	g.call(10, oneID)
	g.accept(g.question(), "approve")
	wantState(t, g.answer("10"), queue.Approved)
}

// TestFormsAreBounded: a session does not remember every question that nobody answers.
func TestFormsAreBounded(t *testing.T) {
	s := new(session)
	var states []string
	for i := range 3 * maxForms {
		r := queue.Request{ID: fmt.Sprint(i), Lock: oneLock}
		states = append(states, s.keep(form{of: r}))
		s.done(r)
	}
	if len(s.forms.open) != maxForms || len(s.forms.done) != maxForms {
		t.Errorf("it remembers %d and %d", len(s.forms.open), len(s.forms.done))
	}
	if _, known := s.take(states[0]); known {
		t.Error("it remembers the first")
	}
	newest := states[len(states)-1]
	if f, known := s.take(newest); !known || f.of.ID != fmt.Sprint(3*maxForms-1) {
		t.Errorf("the last is %+v", f.of)
	}
	if _, known := s.take(newest); known {
		t.Error("a form is taken twice")
	}
}
