package tools

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/google/uuid"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// trip is a tools/call of 2026-07-28, where a result may ask the client for something,
// which then makes the call again and brings the answer (SEP-2322). What it brings is
// untrusted: a state that the session did not give out, or has taken back already, is
// none.
type trip struct {
	came  mcp.MultiRoundTripParams
	form  *mcp.ElicitationParams // what the result asks for
	state string                 // under which the session knows it
}

// formKey is the name of a form in a result, and of the answer to it.
const formKey = "decision"

type tripKey struct{}

// withTrip adds what a call of 2026-07-28 brings along; nil for any other.
func withTrip(ctx context.Context, p mcp.CallToolParams) (context.Context, *trip) {
	if !server.IsModernRequest(ctx) {
		return ctx, nil
	}
	x := &trip{came: p.MultiRoundTripParams}
	return context.WithValue(ctx, tripKey{}, x), x
}

func tripOf(ctx context.Context) *trip {
	x, _ := ctx.Value(tripKey{}).(*trip)
	return x
}

// asks says that the result of the call will ask for something.
func (x *trip) asks() bool { return x != nil && x.form != nil }

// ask makes a result one that asks for what there is to ask.
func (x *trip) ask(res *mcp.CallToolResult) {
	if !x.asks() || res.IsError {
		return
	}
	res.ResultType = mcp.ResultTypeInputRequired
	res.InputRequests = mcp.InputRequests{formKey: mcp.NewElicitationInputRequest(*x.form)}
	res.RequestState = x.state
}

// answer is what the call brings; ok is false when it brings nothing.
func (x *trip) answer() (raw json.RawMessage, ok bool) {
	if len(x.came.InputResponses) == 0 && x.came.RequestState == "" {
		return nil, false
	}
	a, found := x.came.InputResponses[formKey]
	if !found || len(x.came.InputResponses) > 1 {
		return nil, true // which is malformed
	}
	raw, err := json.Marshal(a) // gives it back as it came
	if err != nil {
		raw = nil
	}
	return raw, true
}

// elicitOverTrips is elicit for a call of 2026-07-28.
func (t *Tools) elicitOverTrips(ctx context.Context, s *session, x *trip, r queue.Request) queue.Request {
	if raw, came := x.answer(); came {
		f, known := s.take(x.came.RequestState)
		if !known || f.of.ID != r.ID || f.of.Lock != r.Lock {
			return r
		}
		return t.settle(ctx, s, f, raw, nil)
	}
	if f, ok := t.form(ctx, s, r); ok {
		x.form, x.state = &f.params, s.keep(f)
	}
	return r
}

// maxForms is how many forms of results a session remembers: a client may never come
// back with the answer.
const maxForms = 32

// forms are the questions of a session: those in results that have no answer, and what
// it has asked and will not ask again. It is not safe for use by many goroutines.
type forms struct {
	open []openForm // the oldest first
	done []string   // requests with their locks, the oldest first
}

type openForm struct {
	state string
	form
}

// keep remembers a form and returns the state by which it is known.
func (s *session) keep(f form) (state string) {
	state = uuid.NewString()
	s.locked(func() { s.forms.open = last(append(s.forms.open, openForm{state, f})) })
	return state
}

// take is what keep has remembered, once.
func (s *session) take(state string) (f form, known bool) {
	s.locked(func() {
		i := slices.IndexFunc(s.forms.open, func(o openForm) bool { return o.state == state })
		if known = i >= 0; known {
			f = s.forms.open[i].form
			s.forms.open = slices.Delete(s.forms.open, i, i+1)
		}
	})
	return f, known
}

// done notes that a session does not ask about a request again, unless it gets another
// lock.
func (s *session) done(r queue.Request) {
	s.locked(func() { s.forms.done = last(append(s.forms.done, r.ID+" "+r.Lock)) })
}

func (s *session) isDone(r queue.Request) (done bool) {
	s.locked(func() { done = slices.Contains(s.forms.done, r.ID+" "+r.Lock) })
	return done
}

// last leaves the maxForms newest of a list.
func last[T any](list []T) []T {
	return slices.Delete(list, 0, max(0, len(list)-maxForms))
}
