package pyenv

import (
	"context"
	"errors"
	"fmt"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
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
	Layers    []string  `json:"layers"`     // ids

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

// Status tells what there is. It starts no process and waits for nothing that is
// being built: it takes some milliseconds at most. Errors: that of a ctx that ended.
func (e *Env) Status(ctx context.Context) (Status, error) {
	if ctx.Err() != nil {
		return Status{}, context.Cause(ctx)
	}
	st := Status{Packages: []Package{}, Layers: []string{}}
	e.mu.Lock()
	own, failed := e.own, e.failed.err
	for _, t := range e.tasks {
		st.Building = t.text
	}
	e.mu.Unlock()
	it := own
	based, err := e.tellBase(&st)
	if err != nil {
		st.Reason = sentence(err)
	} else if based != nil {
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
		if x := e.Expected(); x.Python == python.Executable && st.Reason == "" {
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

// tellBase adds the base layer that is current, and returns its interpreter; nil if
// there is none.
func (e *Env) tellBase(st *Status) (*python.Interpreter, error) {
	if e.o.Root == "" || e.o.Box == nil {
		return nil, nil
	}
	root, err := e.store()
	if err != nil {
		return nil, err
	}
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
