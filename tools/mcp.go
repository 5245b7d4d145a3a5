package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/mcp-vdisk/mcp-vdisk/schemas"
)

// Keys of what a result carries for programs in its _meta.
const (
	MetaResult = "mcp-vdisk/result"
	MetaAudit  = "mcp-vdisk/audit"
)

// newMCP registers the tools with the MCP library, which decodes requests of
// both eras and routes them. Validation is not left to it: a bad argument is a
// record of the log like any other refusal.
func (t *Tools) newMCP() *server.MCPServer {
	hooks := &server.Hooks{}
	hooks.AddAfterListTools(func(ctx context.Context, _ any, _ *mcp.ListToolsRequest, r *mcp.ListToolsResult) {
		r.Tools = t.listed(ctx, r.Tools)
	})
	hooks.AddAfterInitialize(func(ctx context.Context, _ any, r *mcp.InitializeRequest, _ *mcp.InitializeResult) {
		if s, ok := server.ClientSessionFromContext(ctx).(*session); ok {
			s.greeted(r.Params.Capabilities)
		}
	})
	s := server.NewMCPServer("mcp-vdisk", t.cfg.Version,
		server.WithToolCapabilities(false),
		server.WithLogging(),
		server.WithInstructions(t.instructions()),
		server.WithHooks(hooks),
		server.WithTitle("A disk of its own for an agent"),
	)
	for _, name := range schemas.Names() {
		def, _ := schemas.Tool(name)
		s.AddTool(describe(def), func(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			ctx, trip := withTrip(t.withRequest(ctx), req.Params)
			res := t.Call(ctx, def.Name, req.Params.RawArguments).MCP()
			trip.ask(res)
			return res, nil
		})
	}
	return s
}

// instructions are what a client is told when it connects.
func (t *Tools) instructions() string {
	if t.cfg.Outbox {
		return schemas.Instructions() + "\n" + outboxInstruction
	}
	return schemas.Instructions()
}

// outboxInstruction is for sessions with an outbox. With the others it is within the
// 2,048 characters that clients keep.
const outboxInstruction = "Files in /workspace/out are copied to that computer by themselves."

// listed puts the tools into their fixed order and leaves out what the session
// does not offer. The library sorts by name.
func (t *Tools) listed(ctx context.Context, all []mcp.Tool) []mcp.Tool {
	out := make([]mcp.Tool, 0, len(all))
	for _, name := range schemas.Names() {
		i := slices.IndexFunc(all, func(m mcp.Tool) bool { return m.Name == name })
		if i < 0 || !t.cfg.Policy.Listed(name) {
			continue
		}
		tool := all[i]
		if name == "run_script" && !t.scriptsWork(ctx) {
			tool.Description = "UNAVAILABLE ON THIS HOST. " + tool.Description
		}
		out = append(out, tool)
	}
	return out
}

func describe(d schemas.Def) mcp.Tool {
	tool := mcp.NewToolWithRawSchema(d.Name, d.Description, d.Schema)
	tool.Annotations = mcp.ToolAnnotation{
		Title:           d.Annotations.Title,
		ReadOnlyHint:    mcp.ToBoolPtr(d.Annotations.ReadOnly),
		DestructiveHint: mcp.ToBoolPtr(d.Annotations.Destructive),
		IdempotentHint:  mcp.ToBoolPtr(d.Annotations.Idempotent),
		OpenWorldHint:   mcp.ToBoolPtr(d.Annotations.OpenWorld),
	}
	return tool
}

// MCP is the result as the protocol has it.
func (r Result) MCP() *mcp.CallToolResult {
	out := &mcp.CallToolResult{IsError: !r.OK(), Content: []mcp.Content{}}
	for _, b := range r.Blocks {
		if b.MIME != "" {
			out.Content = append(out.Content, mcp.NewImageContent(b.base64(), b.MIME))
			continue
		}
		out.Content = append(out.Content, mcp.NewTextContent(b.Text))
	}
	meta := map[string]any{}
	if r.Receipt.Leaf != "" {
		meta[MetaAudit] = r.Receipt
	}
	facts := map[string]any{"call": r.Call, "ok": r.OK()}
	for k, v := range r.Facts {
		facts[k] = v
	}
	if r.Err != nil {
		facts["code"] = r.Err.Code
		if r.Err.Rule != "" {
			facts["rule"] = r.Err.Rule
		}
	}
	meta[MetaResult] = facts
	out.Meta = mcp.NewMetaFromMap(meta)
	return out
}

// session is one client. The library wants to keep in it what the client said
// of itself; besides that it has what elicit needs, and nothing else of a session is
// kept.
type session struct {
	id   string
	told func(client string) // of Config
	turn chan struct{}       // held, as its one element, by who asks the client something
	// ask sends the client a request and waits for the result: see loop.
	ask func(ctx context.Context, method mcp.MCPMethod, params any) (json.RawMessage, error)

	mu       sync.Mutex
	ready    bool
	client   mcp.Implementation
	caps     mcp.ClientCapabilities
	greeting mcp.ClientCapabilities // those of the handshake: any request of 2026-07-28 sets caps
	forms    forms
	level    mcp.LoggingLevel
	protocol string
	notes    chan mcp.JSONRPCNotification // never read: what is sent belongs to a call, see loop
}

var (
	_ server.SessionWithLogging         = (*session)(nil)
	_ server.SessionWithClientInfo      = (*session)(nil)
	_ server.SessionWithProtocolVersion = (*session)(nil)
)

func (s *session) SessionID() string                                   { return s.id }
func (s *session) NotificationChannel() chan<- mcp.JSONRPCNotification { return s.notes }

func (s *session) Initialize() { s.locked(func() { s.ready = true }) }

func (s *session) Initialized() (ok bool) { s.locked(func() { ok = s.ready }); return ok }

func (s *session) SetLogLevel(l mcp.LoggingLevel) { s.locked(func() { s.level = l }) }

func (s *session) GetLogLevel() (l mcp.LoggingLevel) { s.locked(func() { l = s.level }); return l }

func (s *session) SetClientInfo(c mcp.Implementation) {
	s.locked(func() { s.client = c })
	if s.told != nil && c.Name != "" {
		s.told(short(c.Name + " " + c.Version))
	}
}

func (s *session) GetClientInfo() (c mcp.Implementation) { s.locked(func() { c = s.client }); return c }

func (s *session) SetClientCapabilities(c mcp.ClientCapabilities) { s.locked(func() { s.caps = c }) }

func (s *session) GetClientCapabilities() (c mcp.ClientCapabilities) {
	s.locked(func() { c = s.caps })
	return c
}

func (s *session) greeted(c mcp.ClientCapabilities) { s.locked(func() { s.greeting = c }) }

// takesForms says whether the client of a call has declared that it shows forms to a
// person: with the call itself since 2026-07-28, before in the handshake. Elicitation is
// of 2025-06-18, and "elicitation": {} means forms.
func (s *session) takesForms(ctx context.Context) (ok bool) {
	declared := func(c mcp.ClientCapabilities) bool {
		e := c.Elicitation
		return e != nil && (e.Form != nil || e.URL == nil)
	}
	if server.IsModernRequest(ctx) {
		c := server.RequestProtocolInfoFromContext(ctx).ClientCapabilities
		return c != nil && declared(*c)
	}
	s.locked(func() { ok = s.protocol >= mcp.ProtocolVersion20250618 && declared(s.greeting) })
	return ok
}

// takeTurn waits until nobody else asks the client something; false says that ctx ended.
func (s *session) takeTurn(ctx context.Context) bool {
	select {
	case s.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *session) passTurn() { <-s.turn }

func (s *session) SetProtocolVersion(v string) { s.locked(func() { s.protocol = v }) }

func (s *session) ProtocolVersion() (v string) { s.locked(func() { v = s.protocol }); return v }

func (s *session) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// withRequest adds what the client said of itself to the caller in ctx.
func (t *Tools) withRequest(ctx context.Context) context.Context {
	c := callerOf(ctx)
	c.Protocol = server.RequestProtocolVersion(ctx)
	if s, ok := server.ClientSessionFromContext(ctx).(*session); ok {
		c.Session = s.SessionID()
		if info := s.GetClientInfo(); info.Name != "" {
			c.Client = short(info.Name + " " + info.Version)
		}
	}
	return WithCaller(ctx, c)
}

// request is the part of a message that the loop looks at before the library
// does.
type request struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result"`
	Error   json.RawMessage `json:"error"`
	Method  string          `json:"method"`
	Params  struct {
		Name      json.RawMessage `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
		RequestID json.RawMessage `json:"requestId"`
		Meta      struct {
			ProgressToken json.RawMessage    `json:"progressToken"`
			Protocol      string             `json:"io.modelcontextprotocol/protocolVersion"` // since 2026-07-28
			Client        mcp.Implementation `json:"io.modelcontextprotocol/clientInfo"`
		} `json:"_meta"`
	} `json:"params"`
}

// badCall finds a tools/call that is a protocol error: no usable name, or no
// tool of that name. It is in the log all the same.
func (t *Tools) badCall(ctx context.Context, r request) error {
	var name string
	err := json.Unmarshal(r.Params.Name, &name)
	if err == nil {
		if _, ok := schemas.Tool(name); ok {
			return nil
		}
	}
	t.Call(t.withMeta(t.withRequest(ctx), r), name, r.Params.Arguments)
	if err != nil {
		return errors.New("params.name must be the name of a tool")
	}
	return fmt.Errorf("unknown tool %q", short(name))
}

// withMeta adds what the request itself says of its client. The library, which
// does so for the calls that it routes, has not seen this one.
func (t *Tools) withMeta(ctx context.Context, r request) context.Context {
	c, m := callerOf(ctx), r.Params.Meta
	if m.Protocol != "" {
		c.Protocol, c.Client = short(m.Protocol), short(m.Client.Name+" "+m.Client.Version)
	}
	return WithCaller(ctx, c)
}

// undecoded records a call that the library refused to decode. Where its
// arguments are at fault, such as a number that is none, that is an answer of the
// tool like for any bad argument, and bad is true.
func (t *Tools) undecoded(ctx context.Context, r request) (res Result, bad bool) {
	var name string
	_ = json.Unmarshal(r.Params.Name, &name) // badCall has seen that it is a name
	ctx = t.withMeta(t.withRequest(ctx), r)
	if _, err := schemas.Validate(name, r.Params.Arguments); err != nil {
		return t.Call(ctx, name, r.Params.Arguments), true
	}
	c := t.newCall(ctx, name, r.Params.Arguments)
	return t.refused(ctx, c, refuse(InvalidArgument, "", "the request around the arguments is malformed")), false
}
