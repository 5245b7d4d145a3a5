package tools

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/google/uuid"
	"github.com/mark3labs/mcp-go/mcp"
)

// question is a request of the server that its client has not answered.
type question struct {
	// id is a text that no other request has, of either side, nor any question of a
	// server before this one: a shim may pass on an answer to somebody who is dead.
	id     string
	answer chan request // has room for one
}

// Why a question has no answer that could be used.
var (
	errBehind    = errors.New("the client does not read what it is sent")
	errMalformed = errors.New("the client's answer is not as it has to be")
	errRefused   = errors.New("the client answered with an error")
)

// ask sends the client a request and waits for its result, until ctx ends or nothing is
// read any more. A question that is given up is taken back with a
// notifications/cancelled, and an answer that comes after that is dropped like any that
// belongs to no question. Others go on reading meanwhile; but while there are so many
// requests that nothing is read (see ServeStdio), no answer is either.
//
// One question at a time: who asks holds the turn of the session.
func (l *loop) ask(ctx context.Context, method mcp.MCPMethod, params any) (json.RawMessage, error) {
	q := &question{id: "mcp-vdisk-" + uuid.NewString(), answer: make(chan request, 1)}
	if !l.pose(q, map[string]any{"jsonrpc": mcp.JSONRPC_VERSION, "id": q.id, "method": method, "params": params}) {
		return nil, errBehind
	}
	select {
	case r := <-q.answer:
		return r.result()
	case <-ctx.Done():
		l.withdraw(q)
		return nil, context.Cause(ctx)
	case <-l.quit:
	}
	if l.withdraw(q) {
		return nil, errHungUp
	}
	return (<-q.answer).result() // the last that the client said
}

// pose sends a question; false says that the client would not get it.
func (l *loop) pose(q *question, m any) bool {
	o := l.outgoing(new(inFlight), m)
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.data == nil || l.outErr != nil || l.unsent >= maxUnsent {
		return false
	}
	l.question = q
	l.add(o)
	go l.flush() // which takes as long as the client lets it
	return true
}

// withdraw ends a question; false says that it is answered.
func (l *loop) withdraw(q *question) bool {
	o := l.outgoing(new(inFlight), map[string]any{
		"jsonrpc": mcp.JSONRPC_VERSION, "method": mcp.MethodNotificationCancelled,
		"params": map[string]any{"requestId": q.id, "reason": "the server does not wait for it any more"},
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.question != q {
		return false
	}
	l.question = nil
	l.add(o)
	go l.flush()
	return true
}

// answered hands an answer of the client to who waits for it. One that belongs to no
// question, or to one that has an answer or was taken back, is dropped.
func (l *loop) answered(r request) {
	var id string
	if json.Unmarshal(r.ID, &id) != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.question; q != nil && q.id == id {
		l.question = nil
		q.answer <- r
	}
}

// result is the result of an answer.
func (r request) result() (json.RawMessage, error) {
	switch {
	case r.JSONRPC != mcp.JSONRPC_VERSION, r.Result != nil && r.Error != nil:
		return nil, errMalformed
	case r.Error != nil:
		return nil, errRefused
	}
	return r.Result, nil
}
