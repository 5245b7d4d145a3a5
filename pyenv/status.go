package pyenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
)

// Status is what a script that starts now gets.
type Status struct {
	Python   string `json:"python"`             // absolute, inside the sandbox; "" if there is none
	Version  string `json:"version"`            // "3.11.2", or "3.11" when no more is known
	Kind     string `json:"kind"`               // "prefix", "standalone", "system", "host" for one that is not managed, "" for one not made yet
	Degraded string `json:"degraded,omitempty"` // why it is less than it could be

	Base      string    `json:"base"`       // id of the base layer that is current, "" for none
	Lock      string    `json:"lock"`       // id of its lock, "" unless BaseReady
	BaseReady bool      `json:"base_ready"` // it is what a script gets
	Packages  []Package `json:"packages"`   // of the layers, sorted by name
	Layers    []string  `json:"layers"`     // ids, in the order of the import path

	// Of a workspace that is bound to layers of its own, else empty.
	Rev      int             `json:"rev,omitempty"`      // of its binding
	Iso      string          `json:"iso,omitempty"`      // id of the layer in the place of the base
	Locks    []string        `json:"locks,omitempty"`    // of its layers besides the base
	Requests []queue.Request `json:"requests,omitempty"` // of the workspace, those that are not closed, in order of arrival

	Building string `json:"building,omitempty"` // what this process is at work on
	Reason   string `json:"reason,omitempty"`   // why there is no managed interpreter, or no base
}

// Package is one distribution of a layer.
type Package struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Layer   string   `json:"layer"`
	SHA256  string   `json:"sha256"`            // of its wheel
	Modules []string `json:"modules,omitempty"` // what can be imported of it
}

// kindHost is the kind of an interpreter that is not managed.
const kindHost = "host"

// Status tells what there is for a workspace; "" is none, which has what is current. It starts no process and waits for nothing that is
// being built: it takes some milliseconds at most. Errors: that of a ctx that ended.
func (e *Env) Status(ctx context.Context, ws string) (Status, error) {
	if ctx.Err() != nil {
		return Status{}, context.Cause(ctx)
	}
	st := Status{Packages: []Package{}, Layers: []string{}}
	e.mu.Lock()
	own, failed := e.own, e.failed.err
	for _, t := range e.tasks {
		if t.ws == "" || t.ws == ws { // what others ask for is their own business
			st.Building = t.text
		}
	}
	e.mu.Unlock()
	it := own
	based, err := e.tellLayers(&st, ws)
	if err != nil {
		st.Reason = sentence(err)
	}
	if based != nil {
		it = based
	}
	if err := python.Usable(e.pythonOptions()); err != nil && failed == nil {
		failed = &Error{Code: ErrNoPython, Sentence: "the Python of the settings cannot be used", Hint: "mcp-vdisk env doctor says why", Detail: err.Error()}
	}
	switch _, unusable := e.store(); {
	case unusable != nil: // whatever is in it
		it = nil
	case it == nil && failed == nil:
		it = e.anyInterpreter()
	case it == nil:
		st.Reason = sentence(failed)
	}
	if it == nil {
		e.tellHost(&st)
		if x := e.Expected(""); x.Python == python.Executable && st.Reason == "" {
			st.Python, st.Kind, st.Degraded = x.Python, "", ""
			st.Reason = "it is made when the first script needs it"
		}
		return st, nil
	}
	if failed != nil && based != nil {
		st.Reason = "the Python that the settings lead to cannot be made, this is that of the base layer; " + sentence(failed)
	}
	st.Python, st.Version, st.Kind, st.Degraded = python.Executable, it.Facts.Full, it.Source.Kind, degraded(it)
	return st, nil
}

// tellLayers adds what the workspace is bound to or else the base layer that is current,
// and its requests, and returns the interpreter; nil if there are no layers. Where the
// layers of a workspace cannot be used it tells of the current ones, with the reason, as
// Setup does it.
func (e *Env) tellLayers(st *Status, ws string) (*python.Interpreter, error) {
	if e.o.Root == "" || e.o.Box == nil {
		return nil, nil
	}
	root, err := e.store()
	if err != nil {
		return nil, err
	}
	qerr := e.tellRequests(st, ws)
	b, err := e.binding(ws)
	if err == nil && bound(b) {
		var it *python.Interpreter
		if it, err = e.tellBound(st, root, b); err == nil {
			return it, qerr
		}
	}
	it, berr := e.tellBase(st, root)
	return it, cmp.Or(berr, err, qerr)
}

// tellRequests adds the open requests of a workspace.
func (e *Env) tellRequests(st *Status, ws string) error {
	if e.o.Queue == nil || ws == "" {
		return nil
	}
	list, err := e.o.Queue.Open()
	for _, r := range list {
		if r.Workspace == ws {
			st.Requests = append(st.Requests, r)
		}
	}
	return err
}

// tellBound adds what a workspace is bound to, all or nothing.
func (e *Env) tellBound(st *Status, root *store.Root, b queue.Binding) (*python.Interpreter, error) {
	it, err := e.peek(b.Python)
	if err != nil {
		return nil, err
	}
	base := cmp.Or(b.Iso, b.Base)
	told := Status{Layers: append(slices.Clone(b.Layers), base)}
	for _, id := range told.Layers {
		l, err := root.Layer(id)
		if err != nil {
			return nil, unusable(id, err)
		}
		told.Packages = append(told.Packages, packagesOf(l)...)
		if id == base {
			told.Lock = l.Manifest.Lock
		}
	}
	slices.SortStableFunc(told.Packages, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	st.BaseReady, st.Base, st.Lock, st.Layers, st.Packages = true, base, told.Lock, told.Layers, told.Packages
	st.Rev, st.Iso, st.Locks = b.Rev, b.Iso, b.Locks
	return it, nil
}

// tellBase adds the base layer that is current, if there is one.
func (e *Env) tellBase(st *Status, root *store.Root) (*python.Interpreter, error) {
	cur, err := root.Current()
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	st.Base = cur.Layer
	layer, err := root.Layer(cur.Layer)
	if err != nil {
		return nil, err
	}
	it, err := e.peek(cur.Python)
	if err != nil {
		return nil, err
	}
	st.BaseReady, st.Lock, st.Layers = true, cur.Lock, []string{layer.ID}
	st.Packages = packagesOf(layer)
	return it, nil
}

// peek is an interpreter for showing.
func (e *Env) peek(id string) (*python.Interpreter, error) {
	e.mu.Lock()
	it := e.known[id]
	e.mu.Unlock()
	if it != nil {
		return it, nil
	}
	return python.Peek(e.o.Root, id)
}

// anyInterpreter is one that an earlier process made, which the first script will
// probably get.
func (e *Env) anyInterpreter() *python.Interpreter {
	if e.o.Root == "" || e.o.Box == nil {
		return nil
	}
	ids, err := python.List(e.o.Root)
	for i := len(ids) - 1; err == nil && i >= 0; i-- {
		if it, err := python.Peek(e.o.Root, ids[i]); err == nil {
			return it
		}
	}
	return nil
}

// tellHost fills in the Python of the host.
func (e *Env) tellHost(st *Status) {
	st.Python, st.Version = e.hostPython()
	switch {
	case st.Python == "":
		if st.Reason == "" {
			st.Reason = "there is no Python 3 below /usr on this host"
		}
	default:
		st.Kind, st.Degraded = kindHost, "it is the Python of the host, with what is installed there"
	}
}

// degraded says why a managed interpreter is less than it could be.
func degraded(it *python.Interpreter) string {
	if it.Source.Kind == python.KindSystem {
		return "it was made from the Python of the host"
	}
	return ""
}

func packagesOf(l *store.Layer) []Package {
	list := make([]Package, 0, len(l.Manifest.Packages))
	for _, p := range l.Manifest.Packages {
		list = append(list, Package{Name: p.Name, Version: p.Version, Layer: l.ID, SHA256: p.SHA256, Modules: p.Tops})
	}
	return list
}

// sentence is an error for anybody's eyes.
func sentence(err error) string {
	var e *Error
	if errors.As(tell(context.Background(), err), &e) {
		if e.Hint != "" {
			return fmt.Sprintf("%s; %s", e.Sentence, e.Hint)
		}
		return e.Sentence
	}
	return ""
}
