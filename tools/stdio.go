package tools

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// Limits and times of the stdio transport.
const (
	MaxMessage    = 16 << 20        // bytes of one line
	eofGrace      = 2 * time.Second // for running calls once the client hung up
	unreadGrace   = 5 * time.Second // for a client to read on, once no call runs
	progressEvery = 5 * time.Second
)

// answerCancelled decides whether a cancelled request is still answered. The
// specification says no (2025-11-25, "Cancellation"); a client that waits for
// one anyway is served by setting it.
const answerCancelled = false

// errCancelled is the cause of a call's end when its client cancelled it, and
// errHungUp when its client went away.
var (
	errCancelled = fmt.Errorf("cancelled by the client: %w", context.Canceled)
	errHungUp    = fmt.Errorf("the client hung up: %w", context.Canceled)
)

// ServeStdio speaks MCP on a pair of streams, one JSON-RPC message a line, until
// in ends or ctx does. Each request runs on a goroutine of its own, so a quick call
// never waits behind a slow one and answers come in any order.
//
// What one client can make it hold is bounded. At most 16 calls that read, 64 that
// change something and 64 scripts are at work, and none begins while 8 MiB of answers
// are not taken. Up to 1,024 requests wait for that, and when they are too many
// nothing is read any more; until then a cancel reaches what waits, too.
//
// A cancelled request is not answered. When in ends, the calls that run or wait get
// two seconds to answer, not counting the time for which they wait for the client
// to read, and are then cancelled; ServeStdio returns after the last of them, when
// its answers are written or nothing of them was read for five seconds. When out
// breaks or ctx ends, all calls are cancelled, those that wait are dropped, and the
// error is returned. A line over MaxMessage and a line that is no JSON are answered
// with an error, and the loop goes on. Only protocol messages are written to out, and
// with Config.Elicit among them requests to the client, while a call runs.
func (t *Tools) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	l := &loop{
		t: t, mcp: t.newMCP(), outbox: outbox{out: out},
		session: &session{id: uuid.NewString(), told: t.cfg.Client, turn: make(chan struct{}, 1), notes: make(chan mcp.JSONRPCNotification)},
		open:    map[string]*inFlight{}, finished: make(chan struct{}),
	}
	l.session.ask = l.ask
	l.room, l.left = sync.NewCond(&l.mu), ctx.Done()
	for i, most := range [laneCount]int{mostQuick, mostReads, mostChanges, mostScripts} {
		l.lanes[i].most = most
	}
	ctx, l.hangUp = context.WithCancelCause(l.mcp.WithContext(ctx, l.session))
	defer l.hangUp(nil)
	err := l.read(ctx, in)
	l.drain(err == nil)
	return cmp.Or(err, l.writeErr())
}

// loop is one connection.
type loop struct {
	t       *Tools
	mcp     *server.MCPServer
	session *session
	hangUp  context.CancelCauseFunc // ends every call

	in    *bufio.Reader // of the goroutine whose turn it is
	turn  chan struct{} // gives it to one that is idle
	ended chan error    // the input has
	quit  chan struct{} // closed when nothing is read any more

	mu       sync.Mutex
	open     map[string]*inFlight // by the id as it was written
	question *question            // that waits for its answer
	idle     int                  // goroutines that wait for a turn
	over     bool                 // nothing that is read is a call any more
	handling int                  // lines that were read, and requests at work
	finished chan struct{}        // closed when it is over and all is written
	backlog
	outbox
}

// inFlight is a request that is not answered yet.
type inFlight struct {
	cancel context.CancelCauseFunc
	// silent is set when the request was cancelled: nothing more is sent for
	// it.
	silent atomic.Bool
	key    string     // its place among the open ones
	work   func() any // gives the answer
	lane   int        // of the backlog
	size   int64      // bytes of its line, and of the copy of its arguments
}

// read deals with every line until the input ends. It returns an error only when
// the input failed.
//
// Whoever has read a request lets another goroutine read on and works on it
// itself: a line that changes goroutines on its way waits for two threads to wake
// up, which takes longer than a short call does. ctx may end while a goroutine is
// blocked in Read; it is left behind, holds nothing, and ends with the process.
func (l *loop) read(ctx context.Context, in io.Reader) error {
	l.in, l.ended = bufio.NewReaderSize(in, 64<<10), make(chan error, 1)
	l.turn, l.quit = make(chan struct{}, 1), make(chan struct{})
	go l.work(ctx)
	var err error
	select {
	case <-ctx.Done():
		err = context.Cause(ctx)
	case err = <-l.ended:
	}
	l.mu.Lock()
	l.over = true
	l.room.Broadcast()
	l.mu.Unlock()
	close(l.quit)
	return err
}

// work reads lines while it is this goroutine's turn.
func (l *loop) work(ctx context.Context) {
	for {
		ln := readMessage(l.in)
		if !l.accept() {
			return
		}
		r := l.line(ctx, ln)
		now := r != nil && l.admit(r)
		if ln.err != nil {
			l.end(ln.err)
		} else if now {
			l.pass(ctx)
		}
		if now {
			l.run(r)
		}
		l.handled()
		if ln.err != nil || now && !l.wait() {
			return
		}
	}
}

// accept counts a line as something at work, unless read has returned.
func (l *loop) accept() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.handling++
	}
	return !l.over
}

// handled ends what accept began.
func (l *loop) handled() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handling--
	l.finish()
}

// finish says that nothing is left, if that is so. mu is held.
func (l *loop) finish() {
	if l.over && l.handling == 0 && l.waiting() == 0 && !l.writing {
		select {
		case <-l.finished:
		default:
			close(l.finished)
		}
	}
}

func (l *loop) end(err error) {
	if err == io.EOF {
		l.ended <- nil
		return
	}
	l.ended <- fmt.Errorf("read a message: %w", err)
}

// maxIdle is how many goroutines wait for their turn to read.
const maxIdle = 4

// pass lets another goroutine read on.
func (l *loop) pass(ctx context.Context) {
	l.mu.Lock()
	waiting := l.idle > 0
	if waiting {
		l.idle--
	}
	l.mu.Unlock()
	if waiting {
		l.turn <- struct{}{}
		return
	}
	go l.work(ctx)
}

// wait waits for a turn to read; false says that there is none for it any more.
func (l *loop) wait() bool {
	l.mu.Lock()
	stay := l.idle < maxIdle && !l.over
	if stay {
		l.idle++
	}
	l.mu.Unlock()
	if !stay {
		return false
	}
	select {
	case <-l.turn:
		return true
	case <-l.quit:
		return false
	}
}

// line is one line of the input, or the end of it.
type line struct {
	data    []byte
	tooLong bool // data then holds only the last bytes
	err     error
}

// tailKept is how much of a line that is too long is kept: enough for an id at
// its end.
const tailKept = 512

// readMessage reads a line of at most MaxMessage bytes. A longer one is read to
// its end and dropped, so that the next line is a message again.
func readMessage(r *bufio.Reader) line {
	var ln line
	for {
		part, err := r.ReadSlice('\n')
		ln.data = append(ln.data, part...)
		if len(ln.data) > MaxMessage {
			ln.tooLong = true
			ln.data = append([]byte(nil), ln.data[len(ln.data)-tailKept:]...)
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		ln.err = err
		return ln
	}
}

// idAtEnd matches the id of a request when it is the last or the last but one
// member of the message. In valid JSON the final brace closes the message, so
// what stands right before it is a member of the message itself.
var idAtEnd = regexp.MustCompile(`[,{]\s*"id"\s*:\s*(-?\d+|"(?:[^"\\]|\\.)*")\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$`)

// line deals with a line, and returns what is to be answered.
func (l *loop) line(ctx context.Context, ln line) *inFlight {
	data := bytes.TrimSpace(ln.data)
	if ln.tooLong {
		id := json.RawMessage("null")
		if m := idAtEnd.FindSubmatch(data); m != nil && isID(m[1]) && json.Valid(m[1]) {
			id = json.RawMessage(m[1])
		}
		return l.fail(id, mcp.INVALID_REQUEST, fmt.Sprintf("the message is longer than %d bytes; write large files in parts with mode \"append\"", MaxMessage))
	}
	if len(data) == 0 {
		return nil
	}
	// Members of the wrong type stay empty, and are told as such below or by
	// what the request asks for.
	var r request
	var syntax *json.SyntaxError
	if errors.As(json.Unmarshal(data, &r), &syntax) {
		return l.fail(json.RawMessage("null"), mcp.PARSE_ERROR, "the line is not valid JSON")
	}
	if data[0] != '{' {
		return l.fail(json.RawMessage("null"), mcp.INVALID_REQUEST, "a message is one JSON object; batches are not part of MCP since 2025-06-18")
	}
	return l.message(ctx, data, r)
}

func (l *loop) message(ctx context.Context, data []byte, r request) *inFlight {
	switch {
	case len(r.ID) > 0 && !isID(r.ID):
		return l.fail(json.RawMessage("null"), mcp.INVALID_REQUEST, "the id of a request must be a string or a number")
	case r.Method == "":
		if r.Result == nil && r.Error == nil {
			return l.fail(orNull(r.ID), mcp.INVALID_REQUEST, "method must be the name of a method")
		}
		l.answered(r)
	case len(r.ID) > 0:
		return l.start(ctx, data, r)
	case r.Method == string(mcp.MethodNotificationCancelled):
		l.cancel(r.Params.RequestID)
	default:
		l.mcp.HandleMessage(ctx, data) // notifications get no answer
	}
	return nil
}

// isID tells whether a JSON value may be an id or a token, which are sent back as
// they were: MCP takes strings and numbers.
func isID(v json.RawMessage) bool {
	if len(v) == 0 || !utf8.Valid(v) {
		return false
	}
	_, err := strconv.ParseFloat(string(v), 64)
	return v[0] == '"' || err == nil
}

// start notes a request as open.
func (l *loop) start(ctx context.Context, data []byte, r request) *inFlight {
	ctx, cancel := context.WithCancelCause(ctx)
	req := &inFlight{cancel: cancel, key: string(r.ID), lane: laneOf(r), size: int64(cap(data) + len(r.Params.Arguments))}
	req.work = func() any {
		stop := l.progress(r, req)
		defer stop()
		return l.answer(ctx, data, r)
	}
	l.mu.Lock()
	_, taken := l.open[req.key]
	if !taken {
		l.open[req.key] = req
	}
	l.mu.Unlock()
	if taken {
		cancel(nil)
		return l.fail(r.ID, mcp.INVALID_REQUEST, "a request with this id is still running")
	}
	return req
}

// run works on a request that was admitted, and sends the answer.
func (l *loop) run(r *inFlight) {
	answer := r.work()
	r.work = nil // it holds the line
	r.cancel(nil)
	l.send(r, answer)
}

// answer computes the reply to a request.
func (l *loop) answer(ctx context.Context, data []byte, r request) any {
	if r.Method == string(mcp.MethodToolsCall) {
		ctx = WithCaller(ctx, Caller{Request: short(string(r.ID)), began: time.Now()})
		if err := l.t.badCall(ctx, r); err != nil {
			return failure(r.ID, mcp.INVALID_PARAMS, err.Error())
		}
	}
	m := l.mcp.HandleMessage(ctx, data)
	if e, failed := m.(mcp.JSONRPCError); failed && r.Method == string(mcp.MethodToolsCall) {
		return l.undecoded(ctx, r, e)
	}
	return reply(r.ID, m)
}

// undecoded answers a tools/call that the library could not decode and that so
// never reached its tool. It is in the log all the same. The library's text about
// a shape that is wrong names types of this program, so it is not passed on.
func (l *loop) undecoded(ctx context.Context, r request, e mcp.JSONRPCError) any {
	if res, bad := l.t.undecoded(ctx, r); bad {
		return response{JSONRPC: mcp.JSONRPC_VERSION, ID: r.ID, Result: res.MCP()}
	}
	if e.Error.Code == mcp.INVALID_REQUEST {
		return failure(r.ID, mcp.INVALID_REQUEST, "this is no valid tools/call: look at jsonrpc, params and params._meta")
	}
	return reply(r.ID, e)
}

// reply is the library's answer under the id as the client wrote it: the
// library would round a number above 2^53.
func reply(id json.RawMessage, m mcp.JSONRPCMessage) any {
	switch m := m.(type) {
	case mcp.JSONRPCResponse:
		return response{JSONRPC: mcp.JSONRPC_VERSION, ID: id, Result: m.Result}
	case mcp.JSONRPCError:
		return response{JSONRPC: mcp.JSONRPC_VERSION, ID: id, Error: m.Error}
	}
	return nil
}

type response struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  any             `json:"result,omitempty"`
	Error   any             `json:"error,omitempty"`
}

func failure(id json.RawMessage, code int, text string) any {
	return response{JSONRPC: mcp.JSONRPC_VERSION, ID: id, Error: mcp.NewJSONRPCErrorDetails(code, text, nil)}
}

// fail is the answer to what is no request.
func (l *loop) fail(id json.RawMessage, code int, text string) *inFlight {
	return &inFlight{cancel: func(error) {}, work: func() any { return failure(id, code, text) }}
}

func orNull(id json.RawMessage) json.RawMessage {
	if len(id) == 0 {
		return json.RawMessage("null")
	}
	return id
}

// progress sends a note every few seconds for a tools/call whose client asked
// for them, until stop is called; none follows the result.
func (l *loop) progress(r request, call *inFlight) (stop func()) {
	token := r.Params.Meta.ProgressToken
	if r.Method != string(mcp.MethodToolsCall) || !isID(token) {
		return func() {}
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	begin := time.Now()
	go func() {
		defer close(ended)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				l.note(token, call, time.Since(begin))
				go l.flush() // which takes as long as the client lets it
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
		l.note(token, call, time.Since(begin)) // it is written with the answer
	}
}

func (l *loop) note(token json.RawMessage, call *inFlight, d time.Duration) {
	secs := d.Seconds()
	l.put(call, map[string]any{
		"jsonrpc": mcp.JSONRPC_VERSION, "method": "notifications/progress",
		"params": map[string]any{"progressToken": token, "progress": secs, "message": fmt.Sprintf("running for %.0f s", secs)},
	})
}

// cancel ends a request. From here on nothing is sent for it.
func (l *loop) cancel(id json.RawMessage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.open[string(id)]
	if r == nil {
		return
	}
	r.silent.Store(!answerCancelled)
	r.cancel(errCancelled)
	if !answerCancelled && l.remove(r) {
		delete(l.open, r.key)
	}
}

// encode is JSON on one line, with "<", ">" and "&" as they are.
func encode(m any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
