package pyenv

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/attach"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
)

// holding is what a workspace has: what its scripts see, and what a request is solved
// on top of.
type holding struct {
	root    *store.Root
	binding queue.Binding // Rev is 0 if there never was one; Base and Iso are "" when it has what is current
	it      *python.Interpreter
	base    *store.Layer   // of kind iso for a workspace that has one in its place
	own     []*store.Layer // of kind x, in the order of the import path

	under lock.Lock   // of base
	locks []lock.Lock // of own, in their order
}

// bound says that a workspace has layers of its own.
func bound(b queue.Binding) bool { return b.Base != "" || b.Iso != "" }

// binding is how a workspace is bound; the zero Binding for what is nobody's.
func (e *Env) binding(ws string) (queue.Binding, error) {
	if e.o.Queue == nil || ws == "" {
		return queue.Binding{}, nil
	}
	return e.o.Queue.Binding(ws)
}

// hold returns what a workspace has, kept from being removed until release is called.
// Without a base it is store.ErrNotFound.
func (e *Env) hold(ctx context.Context, root *store.Root, b queue.Binding) (h holding, release func(), err error) {
	h = holding{root: root, binding: b}
	pythonID, baseID := b.Python, b.Base
	if b.Iso != "" {
		baseID = b.Iso
	}
	if !bound(b) {
		cur, err := root.Current()
		if err != nil {
			return h, nil, err
		}
		pythonID, baseID = cur.Python, cur.Layer
	}
	if h.it, err = e.load(ctx, pythonID); err != nil {
		return h, nil, err
	}
	leave, err := python.Use(root.Dir(), h.it.ID)
	if err != nil {
		return h, nil, err
	}
	ids := append(slices.Clone(b.Layers), baseID)
	leaveLayers, err := root.Use(ids...)
	if err != nil {
		leave()
		for _, id := range ids {
			if _, lerr := root.Layer(id); lerr != nil {
				return h, nil, unusable(id, err)
			}
		}
		return h, nil, err
	}
	release = func() { leaveLayers(); leave() }
	for _, id := range ids {
		l, err := root.Layer(id)
		if err != nil {
			release()
			return h, nil, unusable(id, err)
		}
		h.own = append(h.own, l)
	}
	h.base, h.own = h.own[len(h.own)-1], h.own[:len(h.own)-1]
	return h, release, nil
}

// read adds the locks, which say what was asked for and what needs what.
func (h *holding) read() (err error) {
	if h.under, err = h.root.Lock(h.base.Manifest.Lock); err != nil {
		return err
	}
	ids := h.binding.Locks
	if h.binding.Iso != "" && len(ids) > 0 { // the one that led to it is the first
		if h.under, err = h.root.Lock(ids[0]); err != nil {
			return err
		}
		ids = ids[1:]
	}
	for i, l := range h.own {
		id := l.Manifest.Lock
		if i < len(ids) {
			id = ids[i]
		}
		own, err := h.root.Lock(id)
		if err != nil {
			return err
		}
		h.locks = append(h.locks, own)
	}
	return nil
}

// past is what a workspace was given its own layers for, and what was in them; also when
// the layers are gone.
func past(root *store.Root, b queue.Binding) (asked []string, had []lock.Package, err error) {
	for _, id := range b.Locks {
		l, err := root.Lock(id)
		if err != nil {
			return nil, nil, err
		}
		asked, had = append(asked, l.Requested...), append(had, l.Packages...)
	}
	slices.Sort(asked)
	return slices.Compact(asked), had, nil
}

// started are the packages of layers whose startup code runs in a workspace.
func started(root *store.Root, b queue.Binding) map[string]bool {
	names := map[string]bool{}
	for _, id := range b.Startup {
		l, err := root.Layer(id)
		if err != nil {
			continue // it is gone, and with it what was approved
		}
		for _, p := range l.Manifest.Packages {
			names[p.Name] = true
		}
	}
	return names
}

// layers are all of them, in the order of the import path.
func (h *holding) layers() []*store.Layer { return append(slices.Clone(h.own), h.base) }

// set is what a run is shown.
func (h *holding) set() attach.Set {
	return attach.Set{Python: h.it, Layers: h.layers(), Startup: startupOf(h.layers(), h.binding.Startup)}
}

// startupOf are the lines of startup code of the layers for which a person has approved it.
func startupOf(layers []*store.Layer, approved []string) map[string][]string {
	lines := map[string][]string{}
	for _, l := range layers {
		if !slices.Contains(approved, l.ID) {
			continue
		}
		for _, p := range l.Manifest.Packages {
			for _, s := range p.Startup {
				lines[l.ID] = append(lines[l.ID], s.Lines...)
			}
		}
	}
	return lines
}

// held are the packages of the workspace's own layers.
func (h *holding) held() (list []lock.Package) {
	for _, l := range h.locks {
		list = append(list, l.Packages...)
	}
	return list
}

// packages are all that a script can import.
func (h *holding) packages() []lock.Package { return append(h.held(), h.under.Packages...) }

// asked is what the workspace was given its own layers for, sorted; an isolated one is for
// what the base is for, too.
func (h *holding) asked() (list []string) {
	if h.base.Kind == lock.Iso {
		list = append(list, h.under.Requested...)
	}
	for _, l := range h.locks {
		list = append(list, l.Requested...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// pinnedBy says whose a package is, for whoever cannot have another version of it.
func (h *holding) pinnedBy(name string) string {
	for i, l := range h.locks {
		if has(l.Packages, name) {
			return h.own[i].ID
		}
	}
	return h.base.ID
}

func has(list []lock.Package, name string) bool {
	return slices.ContainsFunc(list, func(p lock.Package) bool { return p.Name == name })
}

// fit is how a solution goes with what a workspace has.
type fit int

const (
	stale    fit = iota // not at all: it was found for something else
	nothing             // it adds nothing
	beside              // as a layer besides those that are there
	instead             // in the place of all of the workspace's own layers
	isolated            // in the place of the base, too
)

// fits tells how a solution goes with it. It was found for this workspace, then or now,
// or for another one.
func (h *holding) fits(l lock.Lock) fit {
	switch {
	case l.Python != pythonOf(h.it):
		return stale
	case l.Kind == lock.Iso:
		if h.covers(l) && h.complete(l.Packages) {
			return isolated
		}
	case l.Base != h.base.ID:
		return stale
	case len(l.Packages) == 0:
		return nothing
	case len(h.own) < maxLayers && h.complete(h.packages(), l.Packages):
		return beside
	case h.covers(l) && h.complete(h.under.Packages, l.Packages):
		return instead
	}
	return stale
}

// maxLayers is how many layers of its own a workspace has at most; the next solution is
// one for all that it asked for.
const maxLayers = 8

// covers says that a solution is for all that the workspace has asked for, too, if perhaps
// in other versions.
func (h *holding) covers(l lock.Lock) bool {
	names := map[string]bool{}
	for _, s := range l.Requested {
		names[nameOf(s)] = true
	}
	return !slices.ContainsFunc(h.asked(), func(s string) bool { return !names[nameOf(s)] })
}

func (h *holding) complete(lists ...[]lock.Package) bool {
	return complete(h.it, slices.Concat(lists...))
}

// complete tells whether everything that some packages need is among them, and none is
// there twice.
func complete(it *python.Interpreter, packages []lock.Package) bool {
	versions := map[string]spec.Version{}
	for _, p := range packages {
		v, err := spec.ParseVersion(p.Version)
		if err != nil || !versions[p.Name].IsZero() {
			return false
		}
		versions[p.Name] = v
	}
	env := spec.CPythonLinux(it.Facts.Full, it.Facts.Target.Arch)
	for _, p := range packages {
		own := p.Index == imported || p.Index == uploaded // no resolver has looked at what it needs
		for _, line := range p.Requires {
			q, err := spec.ParseRequirement(line)
			if err != nil {
				return false
			}
			needed, err := q.Applies(env, nil)
			if err != nil || needed && (len(q.Extras) > 0 && own || versions[q.Name].IsZero() || !q.Specifiers.Match(versions[q.Name])) {
				return false
			}
		}
	}
	return true
}

// satisfied says that packages are all that was asked for. What has extras needs a
// resolver.
func satisfied(specs []spec.Requirement, packages []lock.Package) bool {
	for _, q := range specs {
		at := slices.IndexFunc(packages, func(p lock.Package) bool { return p.Name == q.Name })
		if at < 0 || len(q.Extras) > 0 {
			return false
		}
		v, err := spec.ParseVersion(packages[at].Version)
		if err != nil || !q.Specifiers.Match(v) {
			return false
		}
	}
	return true
}

// with is the binding that a layer leads to.
func (h *holding) with(how fit, l *store.Layer, lockID, request string, startup bool) queue.Binding {
	b := queue.Binding{Python: h.it.ID, Startup: slices.Clone(h.binding.Startup), Requests: slices.Clone(h.binding.Requests)}
	switch {
	case how == isolated:
		b.Iso, b.Locks = l.ID, []string{lockID}
	case h.base.Kind == lock.Iso:
		b.Iso, b.Locks = h.base.ID, h.binding.Locks[:1:1]
	default:
		b.Base = h.base.ID
	}
	switch how {
	case beside:
		b.Layers = append(slices.Clone(h.binding.Layers), l.ID)
		b.Locks = append(slices.Clone(h.binding.Locks), lockID)
	case instead:
		b.Layers, b.Locks = []string{l.ID}, append(b.Locks, lockID)
	}
	if startup {
		b.Startup = append(b.Startup, l.ID)
	}
	b.Startup = slices.DeleteFunc(b.Startup, func(id string) bool { return id != b.Iso && id != b.Base && !slices.Contains(b.Layers, id) })
	slices.Sort(b.Startup)
	b.Startup = slices.Compact(b.Startup)
	if request != "" {
		b.Requests = append(b.Requests, request)
	}
	b.Requests = b.Requests[max(0, len(b.Requests)-maxRequests):]
	return b
}

// maxRequests is how many requests a binding names, the newest ones.
const maxRequests = 60

// errNoBase says that there is nothing to put packages on.
func errNoBase() *Error {
	return &Error{
		Code: ErrNoBase, Sentence: "this host has no package layers, so nothing can be installed",
		Hint: "mcp-vdisk env ensure makes the first one",
	}
}

// holdForRequest is hold with the locks, for who adds something.
func (e *Env) holdForRequest(ctx context.Context, ws string) (h holding, release func(), err error) {
	root, err := e.store()
	if err != nil {
		return h, nil, err
	}
	b, err := e.binding(ws)
	if err != nil {
		return h, nil, err
	}
	h, release, err = e.hold(ctx, root, b)
	if errors.Is(err, store.ErrNotFound) && !bound(b) {
		return h, nil, errNoBase()
	}
	if err != nil {
		return h, nil, fmt.Errorf("what the workspace has: %w", err)
	}
	if err := h.read(); err != nil {
		release()
		return h, nil, err
	}
	return h, release, nil
}
