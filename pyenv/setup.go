package pyenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/attach"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// Setup is what one run of a script gets of Python, whatever its language: a bash
// script calls python3, too.
type Setup struct {
	Python string            // absolute, inside the sandbox; "" if there is none
	ID     string            // of the managed interpreter; "" for that of the host
	Binds  []sandboxrun.Bind // for sandboxrun.Run, in this order
	Data   []sandboxrun.Data // the same
	Env    []string          // the same, KEY=VALUE; PATH is among them
	Layers []string          // ids, in the order of the import path
	Base   string            // id of the base layer among them, "" for none; an isolated one is none
	Lock   string            // id of its lock
	Locks  []string          // ids of those of the workspace's own layers
}

// Expected is what Setup would probably give a workspace now, without mounts. It waits
// for nothing.
func (e *Env) Expected(ws string) Setup {
	plain, _ := e.hostPython()
	if e.o.Root == "" || e.o.Box == nil {
		return Setup{Python: plain}
	}
	if b, err := e.binding(ws); err == nil && bound(b) {
		return Setup{Python: python.Executable, ID: b.Python, Layers: append(slices.Clone(b.Layers), cmp.Or(b.Iso, b.Base)), Base: b.Base, Locks: b.Locks}
	}
	if root, err := e.store(); err == nil {
		if cur, err := root.Current(); err == nil {
			return Setup{Python: python.Executable, ID: cur.Python, Layers: []string{cur.Layer}, Base: cur.Layer, Lock: cur.Lock}
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.own != nil:
		return Setup{Python: python.Executable, ID: e.own.ID}
	case e.failed.err != nil:
		return Setup{Python: plain}
	}
	return Setup{Python: python.Executable}
}

// Setup returns what a run of a workspace gets that begins now; "" is none, which has what
// is current. What it names stays where it is until release is called.
//
// The managed interpreter is made on first use, which takes some seconds once; all who
// need it wait for that one making, for 15 seconds at most. When it cannot be had, the
// run gets the Python of the host, without layers, and the reason is logged and in
// Status. So the only error is that of a ctx that ended.
//
// With Options.Strict nothing takes the place of what cannot be had, and what is there is
// read and compared first, which takes some tenths of a second each time. Errors are an
// *Error then, too: ErrChanged when something differs. What is changed after it was
// compared and before it is mounted is not found.
func (e *Env) Setup(ctx context.Context, ws string) (s Setup, release func(), err error) {
	if e.o.Root == "" || e.o.Box == nil {
		return e.host(), func() {}, nil
	}
	waiting, stop := context.WithTimeoutCause(ctx, makeWait, errWait)
	defer stop()
	s, release, err = e.managed(waiting, ws)
	if err == nil && e.o.Strict {
		if err = e.compare(ctx, s); err != nil {
			release()
		}
	}
	switch {
	case err == nil:
		return s, release, nil
	case ctx.Err() != nil:
		return Setup{}, nil, context.Cause(ctx)
	case e.o.Strict:
		err = tell(context.Background(), err)
		e.notice(context.WithoutCancel(ctx), err, "a script was refused")
		return Setup{}, nil, err
	}
	e.notice(context.WithoutCancel(ctx), err, "a script gets the Python of the host, without packages")
	return e.host(), func() {}, nil
}

// host is the Python of the host, as a Setup.
func (e *Env) host() Setup {
	plain, _ := e.hostPython()
	if plain == "" {
		return Setup{}
	}
	m := attach.Host(plain)
	return Setup{Python: plain, Data: m.Data, Env: m.Env}
}

// notice logs why something is less than it could be, once for each reason.
func (e *Env) notice(ctx context.Context, err error, what string) {
	e.mu.Lock()
	news := e.told != err.Error()
	e.told = err.Error()
	e.mu.Unlock()
	if news {
		e.o.Logger.WarnContext(ctx, what, "error", err, "detail", detailOf(err))
	}
}

// managed is Setup with the managed interpreter, or an error.
func (e *Env) managed(ctx context.Context, ws string) (s Setup, release func(), err error) {
	root, err := e.store()
	if err != nil {
		return s, nil, err
	}
	set, b, lockID, release, err := e.layered(ctx, root, ws)
	if err != nil {
		return s, nil, err
	}
	m, err := e.plan(root, set)
	if err != nil {
		release()
		return s, nil, err
	}
	e.touch(set.Python)
	s = Setup{Python: python.Executable, ID: set.Python.ID, Binds: m.Binds, Data: m.Data, Env: m.Env, Lock: lockID, Locks: b.Locks}
	for _, l := range set.Layers {
		if s.Layers = append(s.Layers, l.ID); l.Kind == lock.Base {
			s.Base = l.ID
		}
	}
	return s, release, nil
}

// layered is what a workspace gets, held: what it is bound to or else what is current; or,
// without a base layer that can be used, an interpreter alone.
func (e *Env) layered(ctx context.Context, root *store.Root, ws string) (set attach.Set, b queue.Binding, lockID string, release func(), err error) {
	if b, err = e.binding(ws); err == nil && bound(b) {
		if set, lockID, release, err = e.based(ctx, root, b); err == nil {
			return set, b, lockID, release, nil
		}
	}
	switch {
	case context.Cause(ctx) != nil:
		return set, b, "", nil, context.Cause(ctx)
	case err != nil && e.o.Strict:
		return set, b, "", nil, err
	case err != nil:
		e.notice(ctx, err, "a workspace does not get the packages that it is bound to")
	}
	set, lockID, release, err = e.current(ctx, root)
	return set, queue.Binding{}, lockID, release, err
}

// current is what a workspace gets that is bound to nothing.
func (e *Env) current(ctx context.Context, root *store.Root) (set attach.Set, lockID string, release func(), err error) {
	if set, lockID, release, err = e.based(ctx, root, queue.Binding{}); err == nil {
		return set, lockID, release, nil
	}
	if context.Cause(ctx) != nil {
		return attach.Set{}, "", nil, context.Cause(ctx)
	}
	if !errors.Is(err, store.ErrNotFound) {
		if e.o.Strict {
			return attach.Set{}, "", nil, err
		}
		e.notice(ctx, err, "scripts get no base layer")
	}
	it, err := e.interpreter(ctx)
	if err == nil {
		release, err = python.Use(root.Dir(), it.ID)
	}
	return attach.Set{Python: it}, "", release, err
}

// based is a base layer, with what a workspace is bound to besides.
func (e *Env) based(ctx context.Context, root *store.Root, b queue.Binding) (set attach.Set, lockID string, release func(), err error) {
	h, release, err := e.hold(ctx, root, b)
	if err != nil {
		return set, "", nil, err
	}
	if h.base.Kind == lock.Base {
		lockID = h.base.Manifest.Lock
	}
	if cur, err := root.Current(); err == nil && cur.Layer == h.base.ID {
		lockID = cur.Lock
	}
	return h.set(), lockID, release, nil
}

// unusable says that a layer is not there, or not whole.
func unusable(id string, err error) *Error {
	e := &Error{
		Code: ErrChanged, Sentence: fmt.Sprintf("the layer %s cannot be used: its directory or its manifest is gone or damaged", id),
		Hint: "mcp-vdisk env ensure --repair builds it again", Detail: err.Error(),
	}
	if strings.HasPrefix(id, string(lock.Base)) {
		e.Sentence = "the base " + strings.TrimPrefix(e.Sentence, "the ")
		e.Hint = "mcp-vdisk env ensure builds it again"
	}
	return e
}

// plan makes the mounts, and boot/ when this process has not yet, or when it is gone.
func (e *Env) plan(root *store.Root, set attach.Set) (attach.Mounts, error) {
	e.mu.Lock()
	booted := e.booted
	e.mu.Unlock()
	if booted {
		if m, err := attach.Plan(root.Dir(), set); err == nil {
			return m, nil
		}
	}
	if err := attach.Prepare(root.Dir()); err != nil {
		return attach.Mounts{}, err
	}
	e.mu.Lock()
	e.booted = true
	e.mu.Unlock()
	return attach.Plan(root.Dir(), set)
}
