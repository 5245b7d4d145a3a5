package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// decider is what elicit needs of a *pyenv.Env. It is an interface for the tests, which
// ask about requests that no resolver has seen.
type decider interface {
	Card(ctx context.Context, r queue.Request) (policy.Card, error)
	Decide(ctx context.Context, id string, r pyenv.Ruling) (queue.Request, error)
}

// How long a person may take.
const (
	// askFor is counted from when the call began, like Limits.Answer and for the same
	// reason: clients give up on a call after a minute.
	askFor = 45 * time.Second
	// askMargin is what is left of a call's own time for the decision and the answer.
	askMargin = time.Second
)

// elicit lets the person at the client decide about a request that waits for one, and
// returns the request as it then is. In every other case it returns r as it came, and
// the request waits on: without Config.Elicit, for a client that did not say that it
// takes forms, when there is not a quarter of askFor left for the call, without an
// answer in time, and for any answer that is not exactly one of those that were offered.
//
// An answer counts for the request and the lock of the form, once. "decline" decides
// nothing, and the session does not ask about that lock again; after "cancel", and
// without an answer, the next call asks again. What is decided is recorded as asserted
// by the client, for it may answer without a person.
//
// Up to 2025-11-25 the question is a request of the server (elicitation/create) while
// the call runs, one at a time in a session; others wait for their turn. A call that is
// cancelled, and a client that hangs up, end it. In 2026-07-28 the server may send no
// requests, so the question is part of the result (SEP-2322): the client makes the call
// again with the answer, and elicit takes it there. A call that brings an answer is not
// asked another time.
func (t *Tools) elicit(ctx context.Context, r queue.Request) queue.Request {
	s, ok := server.ClientSessionFromContext(ctx).(*session)
	if !t.cfg.Elicit || !ok || !s.takesForms(ctx) || r.State != queue.PendingApproval || r.Lock == "" {
		return r
	}
	if x := tripOf(ctx); x != nil {
		return t.elicitOverTrips(ctx, s, x, r)
	}
	ctx, cancel, enough := t.askUntil(ctx)
	defer cancel()
	if !enough || !s.takeTurn(ctx) {
		return r
	}
	defer s.passTurn()
	if _, _, enough = t.askUntil(ctx); !enough {
		return r // it was another one's turn for too long
	}
	f, ok := t.form(ctx, s, r)
	if !ok {
		return r
	}
	raw, err := s.ask(ctx, mcp.MethodElicitationCreate, f.params)
	if err == nil {
		err = ctx.Err() // the call is over: the answer is late
	}
	return t.settle(ctx, s, f, raw, err)
}

// askUntil bounds a context by how long may be asked in a call; enough says whether a
// person could read the form in that.
func (t *Tools) askUntil(ctx context.Context) (_ context.Context, cancel context.CancelFunc, enough bool) {
	end := callerOf(ctx).began.Add(t.askFor)
	if d, ok := ctx.Deadline(); ok && d.Add(-askMargin).Before(end) {
		end = d.Add(-askMargin)
	}
	ctx, cancel = context.WithDeadline(ctx, end)
	return ctx, cancel, time.Until(end) >= t.askFor/4
}

// form is a question about one request.
type form struct {
	of      queue.Request
	params  mcp.ElicitationParams
	choices []policy.Choice
}

// form makes the question about a request, unless there is nothing to decide or the
// session is done with it.
func (t *Tools) form(ctx context.Context, s *session, r queue.Request) (form, bool) {
	if s.isDone(r) {
		return form{}, false
	}
	card, err := t.decider.Card(ctx, r)
	if err != nil {
		t.cfg.Logger.WarnContext(ctx, "no card for a request for packages", "request", r.ID, "cause", err)
		return form{}, false
	}
	card.Name = t.cfg.Disk
	message, schema := card.Form()
	// What is shown must be what is decided about: it may have been resolved anew.
	if schema == nil || card.Lock != r.Lock || card.ID != r.ID {
		return form{}, false
	}
	return form{r, mcp.ElicitationParams{Message: message, RequestedSchema: schema}, card.Choices}, true
}

// settle does what the answer to a form says; err is why there is none.
func (t *Tools) settle(ctx context.Context, s *session, f form, raw json.RawMessage, err error) queue.Request {
	var said string
	if err == nil {
		said, err = f.read(raw)
	}
	r, choice := f.of, policy.Choice(said)
	if err == nil && slices.Contains(f.choices, choice) {
		// Once it is said it holds, also when the call is cancelled now.
		r, err = t.decider.Decide(context.WithoutCancel(ctx), f.of.ID, pyenv.Ruling{
			Approve: choice != policy.Deny, Isolated: choice == policy.Isolated, Lock: f.of.Lock,
			By: asserted(callerOf(ctx).Client), How: "elicitation",
		})
	}
	if err != nil {
		t.cfg.Logger.InfoContext(ctx, "the client has decided nothing about a request for packages", "request", f.of.ID, "cause", err)
		return f.of
	}
	if said != string(mcp.ElicitationResponseActionCancel) {
		s.done(f.of)
	}
	t.cfg.Logger.InfoContext(ctx, "the client has answered about a request for packages", "request", f.of.ID, "answer", said)
	return r
}

// asserted is who has decided when a client says that its person did.
func asserted(client string) string {
	client = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) { // it is shown on terminals
			return '?'
		}
		return r
	}, client)
	if strings.TrimSpace(client) == "" {
		return "client (asserted)"
	}
	return "client (asserted): " + client
}

// read tells what an answer says: one of the choices, "decline" or "cancel". It is
// strict, for who does not say it right may mean something else: names are as they are
// written in the protocol, none stands twice, and there is no other.
func (f form) read(raw json.RawMessage) (string, error) {
	result, err := members(raw, "action", "content", "_meta", "resultType")
	if err != nil {
		return "", err
	}
	var said string
	if json.Unmarshal(result["action"], &said) != nil {
		return "", errMalformed
	}
	switch mcp.ElicitationResponseAction(said) {
	case mcp.ElicitationResponseActionDecline, mcp.ElicitationResponseActionCancel:
		return said, nil
	case mcp.ElicitationResponseActionAccept:
	default:
		return "", errMalformed
	}
	content, err := members(result["content"], "decision")
	if err == nil && (json.Unmarshal(content["decision"], &said) != nil || !slices.Contains(f.choices, policy.Choice(said))) {
		err = errMalformed
	}
	if err != nil {
		return "", err
	}
	return said, nil
}

// members takes a JSON object apart whose names are among those given, each once.
func members(raw json.RawMessage, names ...string) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, errMalformed
	}
	found := map[string]json.RawMessage{}
	for d.More() {
		t, err := d.Token()
		name, _ := t.(string)
		var value json.RawMessage
		if err == nil {
			err = d.Decode(&value)
		}
		if err != nil || found[name] != nil || !slices.Contains(names, name) {
			return nil, fmt.Errorf("%w: it has a member too many", errMalformed)
		}
		found[name] = value
	}
	return found, nil
}
