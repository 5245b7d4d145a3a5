package pyenv

import (
	"context"
	"maps"
	"strings"
	"sync"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
)

// input is what the policy judges: a solution, and what is around it.
func (w *worker) input(ctx context.Context, l lock.Lock) policy.Input {
	return policy.Input{
		Lock: l, Requested: w.specs, Base: w.h.under.Packages, Held: w.h.held(), Wheels: w.e.wheelFacts(ctx, &w.h, l),
		Upload: w.r.Wheel != nil, Indexes: w.supply.config.Indexes(), Now: w.e.now(), Distribution: Distribution, Catalog: w.catalog,
	}
}

// wheelFacts are the contents of what a solution is made of, as far as it is there, and
// of the layers below it.
func (e *Env) wheelFacts(ctx context.Context, h *holding, l lock.Lock) map[string]policy.WheelFacts {
	all := map[string]policy.WheelFacts{}
	for _, layer := range h.layers() {
		maps.Copy(all, e.facts.layer(layer))
	}
	for _, p := range l.Packages {
		if _, there := all[p.SHA256]; there || ctx.Err() != nil {
			continue
		}
		if f, ok := e.facts.of(h.root, h.it, p); ok {
			all[p.SHA256] = f
		}
	}
	return all
}

// layer is what a layer tells of its packages, by the hashes of their wheels: what they
// have on the import path.
func (f *facts) layer(l *store.Layer) map[string]policy.WheelFacts {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known, ok := f.layers[l.ID]; ok {
		return known
	}
	whole := modules(l.Manifest.Files)
	told := map[string]policy.WheelFacts{}
	for _, p := range l.Manifest.Packages {
		w := policy.WheelFacts{Native: p.Native, Scripts: p.Scripts}
		for _, s := range p.Startup {
			w.Startup = append(w.Startup, s.Lines...)
		}
		for _, top := range p.Tops {
			w.Tops = append(w.Tops, policy.Top{Name: top, Package: whole[top]})
		}
		told[p.SHA256] = w
	}
	if f.layers == nil || len(f.layers) >= maxFacts {
		f.layers = map[string]map[string]policy.WheelFacts{}
	}
	f.layers[l.ID] = told
	return told
}

// modules are the names at the top of the import path that are modules, or packages with
// an __init__: a directory of the same name elsewhere is hidden by these.
func modules(files []wheel.Installed) map[string]bool {
	whole := map[string]bool{}
	for _, f := range files {
		rest, ok := strings.CutPrefix(f.Path, "site-packages/")
		if !ok {
			continue
		}
		top, below, nested := strings.Cut(rest, "/")
		switch {
		case !nested:
			whole[wheel.ModuleName(top)] = true
		case wheel.ModuleName(below) == "__init__":
			whole[top] = true
		}
	}
	return whole
}

// facts are what is known of layers, by id, and of wheels of the wheelhouse, by hash and
// name. Opening a wheel reads its list of files, which takes some time for a large one.
type facts struct {
	mu     sync.Mutex
	known  map[string]policy.WheelFacts
	layers map[string]map[string]policy.WheelFacts
}

// maxFacts is how many of each are remembered.
const maxFacts = 256

// of returns the contents of a wheel; ok is false when it is not there or breaks a rule,
// which whoever builds is told.
func (f *facts) of(root *store.Root, it *python.Interpreter, p lock.Package) (w policy.WheelFacts, ok bool) {
	key := p.SHA256 + " " + p.File
	f.mu.Lock()
	w, ok = f.known[key]
	f.mu.Unlock()
	if ok {
		return w, true
	}
	if w, ok = readFacts(root, it, p); ok {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.known == nil || len(f.known) >= maxFacts {
			f.known = map[string]policy.WheelFacts{}
		}
		f.known[key] = w
	}
	return w, ok
}

func readFacts(root *store.Root, it *python.Interpreter, p lock.Package) (f policy.WheelFacts, ok bool) {
	file, w, size, err := openKept(root, it, p.SHA256, p.File)
	if err != nil {
		return f, false
	}
	defer file.Close()
	f = policy.WheelFacts{Size: size, Paths: w.Paths(), Disk: w.Size, Native: w.Native}
	for _, t := range w.Tops {
		f.Tops = append(f.Tops, policy.Top(t))
	}
	for _, s := range w.Startup {
		f.Startup = append(f.Startup, s.Lines...)
	}
	for _, s := range w.Scripts {
		f.Scripts = append(f.Scripts, s.Name)
	}
	return f, true
}

// Card is what a person sees who has to decide about a request. Name of the workspace is
// the caller's to add.
//
// Errors: *Error; those of the queue.
func (e *Env) Card(ctx context.Context, r queue.Request) (policy.Card, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return policy.Card{}, tell(context.Background(), err)
	}
	defer leave()
	c, err := e.card(ctx, r)
	return c, e.tellRequest(ctx, err)
}

func (e *Env) card(ctx context.Context, r queue.Request) (c policy.Card, err error) {
	c = policy.Card{Asked: r.Specs, Kind: lock.X, Now: e.now(), Findings: verdictOf(r)}
	if r.Lock != "" {
		if c, err = e.solved(ctx, r); err != nil {
			return c, err
		}
	}
	c.ID, c.Workspace, c.Client, c.Session, c.Reason = r.ID, r.Workspace, r.Client, r.Session, r.Reason
	c.Created, c.Expires, c.Notes = r.Created, r.Expires, r.Notes
	if r.Wheel != nil {
		c.Upload = r.Wheel.File
	}
	if r.State != queue.PendingApproval {
		c.Choices = nil
	}
	return c, nil
}

// solved is the card of a request that has a lock.
func (e *Env) solved(ctx context.Context, r queue.Request) (c policy.Card, err error) {
	h, release, err := e.holdForRequest(ctx, r.Workspace)
	if err != nil {
		return c, err
	}
	defer release()
	w := &worker{e: e, r: r, h: h, say: func(string) {}}
	if err := w.equip(); err != nil {
		return c, err
	}
	l, err := h.root.Lock(r.Lock)
	if err != nil {
		return c, err
	}
	return w.card(ctx, l)
}

func (w *worker) card(ctx context.Context, l lock.Lock) (policy.Card, error) {
	in := w.input(ctx, l)
	c, err := policy.NewCard(in, policy.Judge(in))
	if c.Base == "" {
		c.Base = w.h.base.ID
	}
	return c, err
}

// verdictOf is what a request says of itself.
func verdictOf(r queue.Request) (list []policy.Finding) {
	for _, f := range r.Findings {
		list = append(list, policy.Finding{Rule: f.Rule, Package: f.Package, Sentence: f.Sentence, Tier: policy.Tier(f.Tier)})
	}
	return list
}
