package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/schemas"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Caller is who asks, for the audit log. It travels in the context because it
// belongs to a request and not to the tools.
type Caller struct {
	Actor    string // "agent", or "operator" for a person at a terminal
	Client   string // name and version of the client software, if it said so
	Session  string // of the transport, "" if there is none
	Protocol string // revision of MCP, or "call" from a terminal
	Request  string // JSON-RPC id as it was written

	began time.Time // of a call over MCP
}

type callerKey struct{}

// WithCaller returns a context that names who asks.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

func callerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	if c.Actor == "" {
		c.Actor = "agent"
	}
	return c
}

// call is one call on its way: what the handler works with and what the log
// will say of it.
type call struct {
	id      string
	tool    string
	caller  Caller
	raw     []byte          // arguments as they came
	args    json.RawMessage // validated and normalised
	work    work            // what is to be done
	script  *script         // or the script to run, as a job
	asks    bool            // this call of a tool that can change something does not
	beside  bool            // or it changes something else than the disk
	fence   workspace.Fence // under which it may change the disk
	started time.Time

	facts  audit.Facts // public facts of the arguments
	source string      // sha256 of the script's source, once it is known
	env    audit.Facts // interpreter, layers and lock of a script
	before string      // image commit ids around the call
	after  string
	out    audit.Out
	// changes are the paths that a script changed, saved or not.
	changes []audit.ChangeFact
}

// Call runs a tool: validate, policy, intent, effect, outcome. It never panics
// and it never returns before its records are in the log.
//
// A call that is refused before any effect, or whose context has ended before it
// begins, is recorded as call.refused, durably.
// A tool that changes something has a durable call.intent before it starts and
// a call.outcome before its result is released; a tool that only reads has one
// call.read. If the log cannot be written nothing is done and nothing is shown.
//
// A script that takes longer than Limits.Answer goes on as a job: Call then
// answers how to ask for it, with the receipt of the intent, and the outcome is
// written at its end.
func (t *Tools) Call(ctx context.Context, tool string, raw []byte) Result {
	t.active.Add(1)
	defer t.active.Add(-1)
	c := t.newCall(ctx, tool, raw)
	r := t.run(ctx, c)
	r.Tool, r.Call = tool, c.id
	if c.script == nil { // a job tells by itself
		t.tell(ctx, r)
	}
	return r
}

// tell lets the person who runs the program know of a fault of the host.
func (t *Tools) tell(ctx context.Context, r Result) { tell(ctx, t.cfg.Logger, r) }

func tell(ctx context.Context, to *slog.Logger, r Result) {
	if r.Err != nil && r.Err.ofHost() {
		to.WarnContext(ctx, "tool failed", "call", r.Call, "tool", r.Tool, "code", r.Err.Code, "cause", r.Err.cause)
	}
}

func (t *Tools) newCall(ctx context.Context, tool string, raw []byte) *call {
	return &call{id: ulid.Make().String(), tool: tool, caller: callerOf(ctx), raw: raw, started: t.now(), facts: audit.Facts{}}
}

func (t *Tools) run(ctx context.Context, c *call) Result {
	def, known := schemas.Tool(c.tool)
	if !known {
		return t.refused(ctx, c, refuse(NotFound, "the tools are "+strings.Join(schemas.Names(), ", "), "there is no tool %q", short(c.tool)))
	}
	args, err := schemas.Validate(c.tool, c.raw)
	if err != nil {
		return t.refused(ctx, c, invalid(c.tool, err))
	}
	c.args = args
	c.facts = publicFacts(args)
	if e := t.cfg.Policy.checkCall(c.tool, args); e != nil {
		return t.refused(ctx, c, e)
	}
	if err := t.prepare(c); err != nil {
		return t.refused(ctx, c, asError(err))
	}
	mutates := def.Mutates && !c.asks
	if mutates && !c.beside {
		if err := t.admit(c); err != nil {
			c.script = nil // there is no job that could tell
			return t.refused(ctx, c, asError(err))
		}
	}
	if ctx.Err() != nil { // it waited, and is not wanted any more
		c.script = nil
		return t.refused(ctx, c, asError(ended(ctx, context.Cause(ctx))))
	}
	switch {
	case c.script != nil:
		return t.runJob(ctx, c)
	case mutates:
		return t.mutate(ctx, c)
	}
	return t.read(ctx, c)
}

// prepare refuses what the arguments alone show to be impossible, before the
// intent: a path that is none, and arguments that do not go together. Else the
// call has its work.
func (t *Tools) prepare(c *call) error {
	a, err := decode[struct {
		Path      *string `json:"path"`
		IfVersion *string `json:"if_version"`
		At        *string `json:"at"`
	}](c)
	if err == nil && a.Path != nil {
		var p workspace.Path
		if p, err = workspace.Clean(*a.Path); err == nil && p.IsRoot() {
			err = onRoot(c.tool)
		}
	}
	// An empty version is a mistake, and must not mean any.
	if err == nil && a.IfVersion != nil {
		_, err = parseVersion("if_version", *a.IfVersion)
	}
	if err == nil && a.At != nil {
		_, err = parseVersion("at", *a.At)
	}
	if err != nil {
		return err
	}
	c.work, err = t.table[c.tool](c)
	return err
}

func (t *Tools) refused(ctx context.Context, c *call, e *Error) Result {
	entry := t.entry(c, audit.EvCallRefused)
	entry.Dec, entry.Reason, entry.Err = "deny", e.reason(), string(e.Code)
	entry.Dur = t.now().Sub(c.started).Microseconds()
	// A client that hangs up must not keep its refusal out of the log.
	receipt, err := t.cfg.Log.Append(context.WithoutCancel(ctx), t.streamName, entry)
	if err != nil {
		return errorResult(asError(err))
	}
	r := errorResult(e)
	r.Receipt = receipt
	return r
}

func (t *Tools) read(ctx context.Context, c *call) Result {
	r := t.handle(ctx, c)
	entry := t.entry(c, audit.EvCallRead)
	entry.Dec = "allow"
	t.outcome(c, &entry, r)
	receipt, err := t.cfg.Log.Note(context.WithoutCancel(ctx), t.streamName, entry)
	if err != nil {
		return errorResult(asError(err))
	}
	r.Receipt = receipt
	return r
}

func (t *Tools) mutate(ctx context.Context, c *call) Result {
	if _, err := t.intend(ctx, c); err != nil {
		return errorResult(asError(err))
	}
	return t.conclude(c, t.handle(ctx, c))
}

// runJob starts a script and answers with its end, or with how to go on when
// that takes longer than a call may.
func (t *Tools) runJob(ctx context.Context, c *call) Result {
	t.mark(MarkChecked)
	intent, err := t.intend(ctx, c)
	t.mark(MarkIntended)
	if err != nil {
		r := errorResult(asError(err))
		r.Call, r.Tool = c.id, c.tool
		t.tell(ctx, r)
		return r
	}
	j, err := t.jobs.start(ctx, t, c)
	if err != nil {
		return t.conclude(c, errorResult(asError(err)))
	}
	return j.answer(ctx, intent)
}

// intend writes what the call is about to do, durably.
func (t *Tools) intend(ctx context.Context, c *call) (audit.Receipt, error) {
	intent := t.entry(c, audit.EvCallIntent)
	intent.Dec = "allow"
	// A client that hangs up now leaves an intent with an outcome, not one alone.
	receipt, err := t.cfg.Log.Append(context.WithoutCancel(ctx), t.streamName, intent)
	if err == nil {
		hostos.Failpoint("tools.intent")
	}
	return receipt, err
}

// conclude writes what came of the call into the log; a result that is not in
// the log is not shown.
func (t *Tools) conclude(c *call, r Result) Result {
	entry := t.entry(c, audit.EvCallOutcome)
	entry.Dec, entry.RawArgs = "allow", nil // the intent commits to the arguments
	t.outcome(c, &entry, r)
	receipt, err := t.cfg.Log.Note(context.Background(), t.streamName, entry)
	if err != nil {
		return errorResult(c.late(err, "its outcome could not be written to the audit log"))
	}
	hostos.Failpoint("tools.outcome")
	r.Receipt = receipt
	return r
}

// late is an error that came when the call may have changed the disk already:
// it says so if it has.
func (c *call) late(err error, what string) *Error {
	e := asError(err)
	if c.after != "" && c.after != c.before {
		e.Sentence = "the change was saved, but " + what
		e.Hint = "tell the person; read the file before changing it again"
	}
	return e
}

// handle does the work and turns a panic into INTERNAL.
func (t *Tools) handle(ctx context.Context, c *call) (r Result) {
	defer func() {
		if p := recover(); p != nil {
			err := fmt.Errorf("panic in %s: %v\n%s", c.tool, p, debug.Stack())
			r = errorResult(c.late(err, "something went wrong inside mcp-vdisk after that"))
		}
	}()
	if ctx.Err() != nil {
		return errorResult(asError(ended(ctx, context.Cause(ctx))))
	}
	r, err := c.work(ctx)
	if err != nil {
		return errorResult(asError(ended(ctx, err)))
	}
	return r
}

// ended makes what ended ctx a cancellation, whatever cause it was given. A cause
// that is an error with a code, or of a kind that has one, keeps it.
func ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", err, context.Canceled)
	}
	return err
}

// entry fills what every record of a call holds.
func (t *Tools) entry(c *call, ev audit.Event) audit.Entry {
	return audit.Entry{
		Record: audit.Record{
			Ev: ev, Call: c.id, Tool: short(c.tool), Act: c.caller.Actor, Cli: c.caller.Client,
			Proto: c.caller.Protocol, Rid: c.caller.Request, Img: t.streamName,
			Args: c.facts, Src: c.source, Cap: t.capFacts, Env: c.env, Fence: c.fence.Token,
		},
		RawArgs: c.raw,
	}
}

// outcome adds what came of the call.
func (t *Tools) outcome(c *call, e *audit.Entry, r Result) {
	out := c.out
	out.OK = r.OK()
	if r.Err != nil {
		out.Code = string(r.Err.Code)
		e.Err, e.Reason = string(r.Err.Code), r.Err.reason()
	}
	e.Out, e.Hb, e.Ha, e.Src, e.Changes = &out, c.before, c.after, c.source, c.changes
	e.Dur = t.now().Sub(c.started).Microseconds()
}

// commit makes a change durable through the image's one door and notes the
// commits around it for the log.
func (t *Tools) commit(ctx context.Context, c *call, txn workspace.Txn) (workspace.Commit, error) {
	txn.Call, txn.Actor, txn.Fence, txn.Admit = c.id, c.caller.Actor, c.fence, t.cfg.Policy.admit
	if txn.Message == "" {
		txn.Message = c.tool
	}
	done, err := t.cfg.Image.Commit(ctx, txn)
	if err == nil {
		hostos.Failpoint("tools.committed")
		c.before, c.after = done.Heads()
	}
	return done, err
}

// publicFacts are the arguments that the log may show: never a body, a source
// or standard input, of which only the size is told.
func publicFacts(args json.RawMessage) audit.Facts {
	var m map[string]any
	f := audit.Facts{}
	d := json.NewDecoder(bytes.NewReader(args))
	d.UseNumber()
	if d.Decode(&m) != nil {
		return f
	}
	for k, v := range m {
		switch k {
		case "content", "old_text", "source", "stdin":
			if s, ok := v.(string); ok {
				f[k+"_bytes"] = int64(len(s))
			}
			continue
		}
		switch v := v.(type) {
		case string:
			f[k] = v
		case bool:
			f[k] = v
		case json.Number:
			f[k] = v.String()
			if n, err := v.Int64(); err == nil {
				f[k] = n
			}
		case []any:
			if k == "packages" {
				f[k] = texts(v)
			} else {
				f[k+"_count"] = int64(len(v))
			}
		}
	}
	return f
}

func texts(list []any) []string {
	out := make([]string, 0, len(list))
	for _, v := range list {
		if s, ok := v.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// short makes what a caller made up fit a message: valid UTF-8, and cut.
func short(s string) string {
	const limit = 80
	if len(s) <= limit {
		return strings.ToValidUTF8(s, "�")
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
