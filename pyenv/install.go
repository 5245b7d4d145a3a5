package pyenv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
)

// install gets, builds, tries and binds what was approved.
func (w *worker) install(ctx context.Context) error {
	l, err := w.h.root.Lock(w.r.Lock)
	if err != nil {
		return err
	}
	how := w.h.fits(l)
	if how == stale || how == nothing { // the workspace has changed since
		return w.restart(ctx)
	}
	if missing, _ := w.supply.missing(l); len(missing) > 0 && w.built(l) == nil {
		if err := w.to(ctx, queue.Fetching); err != nil {
			return err
		}
		if _, _, err := w.supply.fetch(ctx, l); err != nil {
			return err
		}
	}
	if done, err := w.judgeAgain(ctx, l); done || err != nil {
		return err
	}
	if err := w.to(ctx, queue.Building); err != nil {
		return err
	}
	layer, err := w.build(ctx, l, how)
	if err != nil {
		return err
	}
	if err := w.to(ctx, queue.Probing); err != nil {
		return err
	}
	if err := w.probe(ctx, layer, how); err != nil {
		return err
	}
	return w.bind(ctx, how, layer, l, w.r.Lock, func(*queue.Request) {})
}

// restart has the request solved anew.
func (w *worker) restart(ctx context.Context) error {
	return w.move(ctx, func(r *queue.Request) {
		r.State, r.Lock, r.Layer, r.Iso, r.Decision, r.Findings = queue.Received, "", "", false, nil, nil
	})
}

// judgeAgain judges what was approved when its wheels are there: what is in them shows
// now, and the catalog may have changed. What nobody has been told of is asked again.
func (w *worker) judgeAgain(ctx context.Context, l lock.Lock) (done bool, err error) {
	v := policy.Judge(w.input(ctx, l))
	switch {
	case v.Tier == policy.Reject:
		return true, w.reject(ctx, v)
	case v.Tier == policy.Auto, !w.r.Auto && w.told(v):
		return false, nil
	case len(v.Findings) > maxFindings:
		return true, &Error{Code: ErrSize, Sentence: fmt.Sprintf("%d things about its packages are not usual: nobody can look at all of that", len(v.Findings)), Hint: "ask for less at once"}
	}
	err = w.move(ctx, func(r *queue.Request) {
		r.State, r.Findings, r.Decision = queue.PendingApproval, findings(v), nil
	})
	if err == nil {
		w.waits()
	}
	return true, err
}

// told says that whoever approved the request knew of all findings.
func (w *worker) told(v policy.Verdict) bool {
	for _, f := range v.Findings {
		known := slices.ContainsFunc(w.r.Findings, func(k queue.Finding) bool { return k.Rule == f.Rule && k.Package == f.Package })
		if !known {
			return false
		}
	}
	return true
}

// build builds the layer, unless it is there.
func (w *worker) build(ctx context.Context, l lock.Lock, how fit) (*store.Layer, error) {
	b := store.Build{Lock: l, Python: w.h.it, Box: w.e.o.Box, Progress: func(s store.Step) {
		w.supply.tell(Progress{Step: StepBuild, Text: buildText(s)})
	}}
	switch how {
	case beside:
		b.Over = w.h.layers()
	case instead:
		b.Over = []*store.Layer{w.h.base}
	}
	if layer := w.built(l); layer != nil {
		return layer, nil
	}
	var layer *store.Layer
	err := w.e.record(ctx, Deed{Kind: DeedBuild, Request: w.r, Lock: &l, LockID: w.r.Lock, Decision: w.r.Decision}, func() (err error) {
		layer, err = w.h.root.Build(ctx, b)
		return err
	})
	return layer, err
}

// probeRequest is for the imports of what one request asked for.
const probeRequest = 20 * time.Second

// probe imports what was asked for, as a script of the workspace will.
func (w *worker) probe(ctx context.Context, layer *store.Layer, how fit) error {
	after := w.h
	after.binding = w.h.with(how, layer, w.r.Lock, "", w.startup(w.r, layer))
	within := probeRequest
	switch how {
	case beside:
		after.own = append(slices.Clone(w.h.own), layer)
	case instead:
		after.own = []*store.Layer{layer}
	case isolated:
		after.base, after.own, within = layer, nil, probeTime
	}
	w.supply.tell(Progress{Step: StepProbe, Text: "importing the packages once"})
	err := w.e.imports(ctx, w.h.root, after.set(), w.modules(layer, how), within)
	var failed *Error
	if errors.As(err, &failed) && failed.Code == ErrProbe {
		failed.Hint = "the workspace is left as it was; another version may work, and the operator finds more in the log of the server"
	}
	return err
}

// modules are what was asked for as a script imports it, and for what takes the place of
// the base what the base is for.
func (w *worker) modules(layer *store.Layer, how fit) (list []string) {
	if how == isolated {
		for _, it := range w.e.base {
			if slices.ContainsFunc(layer.Manifest.Packages, func(p store.Installed) bool { return p.Name == it.spec.Name }) {
				list = append(list, it.module)
			}
		}
	}
	for _, p := range layer.Manifest.Packages {
		asked := slices.ContainsFunc(w.specs, func(q spec.Requirement) bool { return q.Name == p.Name })
		if asked || w.r.Wheel != nil && w.r.Wheel.SHA256 == p.SHA256 {
			list = append(list, importable(p.Tops)...)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// built is the layer of a lock, if it is there.
func (w *worker) built(l lock.Lock) *store.Layer {
	id, err := l.LayerID()
	if err != nil {
		return nil
	}
	layer, err := w.h.root.Layer(id)
	if err != nil {
		return nil
	}
	return layer
}

// bind gives the workspace the layer, and closes the request, in one step. change is what
// becomes of the request besides, and sees it as approved.
func (w *worker) bind(ctx context.Context, how fit, layer *store.Layer, l lock.Lock, lockID string, change func(*queue.Request)) error {
	release, err := w.h.root.Use(layer.ID)
	if err != nil {
		return err
	}
	defer release()
	after := w.r
	change(&after)
	after.Layer, after.State = layer.ID, queue.Ready
	b := w.h.with(how, layer, lockID, w.r.ID, w.startup(after, layer))
	b.Workspace, b.Rev = w.r.Workspace, w.h.binding.Rev+1
	return w.e.record(ctx, Deed{Kind: DeedBind, Request: after, Lock: &l, LockID: lockID, Binding: &b, Decision: after.Decision}, func() error {
		return w.e.rebind(w.h.binding, b, func() error {
			r, err := w.e.o.Queue.Finish(ctx, w.r.ID, w.r.State, w.h.binding.Rev, b, func(r *queue.Request) error {
				change(r)
				r.Layer = layer.ID
				return nil
			})
			if err == nil {
				w.r = r
				w.e.o.Logger.Info("a workspace has other packages", "workspace", r.Workspace, "layer", layer.ID, "request", r.ID)
			}
			return err
		})
	})
}

// startup says whether the startup code of a layer runs in this workspace: a person has
// approved all of it, now or when it came in another layer.
func (w *worker) startup(r queue.Request, l *store.Layer) bool {
	approved := started(w.h.root, w.before())
	if r.Decision != nil && r.Decision.Approve && r.Decision.How != "catalog" {
		for _, f := range r.Findings {
			if f.Rule == policy.StartupCode {
				approved[f.Package] = true
			}
		}
	}
	any := false
	for _, p := range l.Manifest.Packages {
		if len(p.Startup) > 0 {
			if !approved[p.Name] {
				return false
			}
			any = true
		}
	}
	return any
}
