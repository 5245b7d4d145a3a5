package front

import (
	"bytes"
	"encoding/json"
	"slices"
)

// pending are the requests of a client that have no answer, and its handshake:
// what a next daemon has to be told. It is not safe for use by many goroutines.
type pending struct {
	open []unanswered // the oldest first
	kept int          // bytes of their lines
	// questions are requests of the daemon, by id, that the client has not answered.
	questions []string
	// The handshake, to be repeated.
	init        []byte
	initID      string
	initialized []byte
}

// unanswered is a request that is not answered yet.
type unanswered struct {
	id    string
	line  []byte // nil when repeating it could do something twice
	asked int    // how often it was repeated
}

// maxKept is how many bytes of lines are kept to be repeated. A request that comes
// when there are more is not.
const maxKept = 4 << 20

// maxAsked is how often a request is repeated: one that daemons die of is not
// asked for ever.
const maxAsked = 2

// againID is the id of a handshake that is repeated, which the client never sees.
const againID = `"mcp-vdisk: the handshake, repeated"`

// longLine is the length in bytes from which on a line is sent first and looked
// through for mistakes then, while the daemon does the same.
const longLine = 32 << 10

// say notes a line that is sent. It is noted before it is sent, so that it is
// answered whatever happens. What the daemon answers under no id is not noted; of
// a long line isBroken tells that.
func (p *pending) say(line []byte) {
	line = bytes.TrimSpace(line)
	e := envelopeOf(line)
	if e.id == nil && e.method == "" || len(line) < longLine && !json.Valid(line) {
		return
	}
	switch {
	case e.id == nil && e.method == "notifications/initialized":
		p.initialized = whole(line)
	case e.id == nil && e.method == "notifications/cancelled":
		p.cancel(e.params)
	}
	if e.isAnswer() {
		p.settled(string(e.id))
		return
	}
	if !isID(e.id) {
		return
	}
	r := unanswered{id: string(e.id)}
	if (e.method != "tools/call" || asks(line)) && p.kept < maxKept {
		r.line = whole(line)
	}
	if e.method == "initialize" {
		p.init, p.initID = again(whole(line), e), r.id
	}
	p.kept += len(r.line)
	p.open = append(p.open, r)
}

// isBroken says whether a long line, which was noted, is no message after all.
func isBroken(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) >= longLine && !json.Valid(line)
}

// unsay takes back that a line was noted.
func (p *pending) unsay(line []byte) {
	e := envelopeOf(bytes.TrimSpace(line))
	if e.isAnswer() { // to a question of the daemon, which has ids of its own
		return
	}
	p.answered(string(e.id))
	if p.initID == string(e.id) {
		p.init = nil
	}
}

// takeBack forgets a call that was noted, and says whether it was there.
func (p *pending) takeBack(line []byte) bool {
	e := envelopeOf(bytes.TrimSpace(line))
	for i := len(p.open) - 1; i >= 0 && !e.isAnswer(); i-- {
		if r := p.open[i]; r.id == string(e.id) && r.line == nil {
			p.forget(i)
			return true
		}
	}
	return false
}

// whole is a copy of a line with its end.
func whole(line []byte) []byte { return append(slices.Clip(line), '\n') }

// again is the handshake under an id of our own.
func again(line []byte, e envelope) []byte {
	return slices.Concat(line[:e.idAt], []byte(againID), line[e.idAt+len(e.id):])
}

// cancel forgets a request that the client gave up: it is not answered.
func (p *pending) cancel(params []byte) { p.answered(cancelled(params)) }

// cancelled is the id of the request that a notifications/cancelled is about.
func cancelled(params []byte) string {
	var which struct {
		RequestID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(params, &which) != nil {
		return ""
	}
	return string(which.RequestID)
}

// hear notes what a daemon says unasked: its questions, and that it takes one back.
func (p *pending) hear(e envelope) {
	switch {
	case e.method == "notifications/cancelled":
		p.settled(cancelled(e.params))
	case e.method != "" && isID(e.id):
		p.questions = append(p.questions, string(e.id))
	}
}

// settled forgets a question of the daemon.
func (p *pending) settled(id string) {
	p.questions = slices.DeleteFunc(p.questions, func(q string) bool { return q == id })
}

// orphaned takes out the questions, and returns their ids.
func (p *pending) orphaned() (ids []string) {
	ids, p.questions = p.questions, nil
	return ids
}

// answered forgets a request. Of two with one id each has an answer of its own.
func (p *pending) answered(id string) {
	if i := slices.IndexFunc(p.open, func(r unanswered) bool { return r.id == id }); i >= 0 {
		p.forget(i)
	}
}

// forget takes out the request at an index.
func (p *pending) forget(i int) {
	p.kept -= len(p.open[i].line)
	p.open = slices.Delete(p.open, i, i+1)
}

// lost takes out the requests that are not repeated, and returns their ids.
func (p *pending) lost() (ids []string) {
	p.open = slices.DeleteFunc(p.open, func(r unanswered) bool {
		over := r.line == nil || r.asked == maxAsked
		if over {
			ids = append(ids, r.id)
			p.kept -= len(r.line)
		}
		return over
	})
	return ids
}

// greeting is the handshake, when the client has the answer to it.
func (p *pending) greeting() []byte {
	if slices.ContainsFunc(p.open, func(r unanswered) bool { return r.id == p.initID }) {
		return nil
	}
	return p.init
}

// repeat gives the lines that the next daemon is told after the greeting.
func (p *pending) repeat() (lines [][]byte) {
	var rest [][]byte
	if p.initialized != nil {
		rest = append(rest, p.initialized)
	}
	if p.greeting() != nil {
		lines, rest = rest, nil
	}
	for i := range p.open {
		p.open[i].asked++
		lines = append(lines, p.open[i].line)
	}
	return append(lines, rest...)
}

// all takes out every request, and returns their ids.
func (p *pending) all() (ids []string) {
	for _, r := range p.open {
		ids = append(ids, r.id)
	}
	p.open, p.kept = nil, 0
	return ids
}

// lostAnswer is what a client gets for a call that was on its way when the daemon
// died.
func lostAnswer(id string) []byte {
	const text = "OUTCOME_UNKNOWN: the server was interrupted while this call ran, so it may have happened or not. " +
		"hint: look before you repeat it: read_file or list_files show what is on the disk now; the next call is served as usual"
	return errorAnswer(id, lostCode, text)
}

// takenBack is what a client gets about a question of a daemon that died: whoever is
// shown it need not answer.
func takenBack(id string) []byte {
	line, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "method": "notifications/cancelled",
		"params": map[string]any{"requestId": json.RawMessage(id), "reason": "the server was interrupted"},
	})
	if err != nil {
		return nil // an id that is none was never noted
	}
	return append(line, '\n')
}

// lostCode is of the range that JSON-RPC 2.0 leaves to servers (§5.1).
const lostCode = -32001

func errorAnswer(id string, code int, text string) []byte {
	line, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": json.RawMessage(id), "error": map[string]any{"code": code, "message": text},
	})
	if err != nil {
		return nil // an id that is none was never noted
	}
	return append(line, '\n')
}
