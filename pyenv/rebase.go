package pyenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
)

// RebaseRequest is what Rebase is asked for.
type RebaseRequest struct {
	Workspace string
	Approve   string // id of the lock that a person has approved; "" for none
	By, How   string // who asks
	Pip       *resolve.Config
	Progress  func(Progress) // is told of every step, if it is set
}

// RebaseReport is what came of it.
type RebaseReport struct {
	Changed bool          `json:"changed"`
	Before  queue.Binding `json:"before"`
	After   queue.Binding `json:"after"`
	Notes   []string      `json:"notes,omitempty"` // sentences of the resolver
	// Card is what a person has to approve first: the same call with Approve set to the
	// lock of the card does it. Nil when nobody had to be asked.
	Card *policy.Card `json:"-"`
}

// Rebase resolves all that a workspace has asked for anew, over the base that is current,
// and binds it. When that is not possible, nothing changes. Scripts that run keep what
// they have; a request of the workspace that waits is solved anew when it is approved.
//
// Errors: *Error, ErrInUse while a request of the workspace is worked on; those of the
// queue and of Options.Record; the cause of ctx, wrapped.
func (e *Env) Rebase(ctx context.Context, q RebaseRequest) (RebaseReport, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return RebaseReport{}, tell(context.Background(), err)
	}
	defer leave()
	if e.o.Queue == nil {
		return RebaseReport{}, &Error{Code: ErrNoQueue, Sentence: "there are no bindings here"}
	}
	if !e.desk.take(q.Workspace, false) {
		return RebaseReport{}, &Error{Code: ErrInUse, Sentence: "a request of the workspace is being worked on", Hint: "try again when it has ended"}
	}
	defer e.pump()
	defer e.desk.leave(q.Workspace)
	e.desk.pip(q.Workspace, q.Pip)
	say, end := e.beginFor(q.Workspace, "a new base for the workspace")
	defer end()
	unlock, err := e.share(ctx, func() { say("waiting for another process that makes the environments") })
	if err != nil {
		return RebaseReport{}, tell(ctx, err)
	}
	defer unlock()
	w := &worker{e: e, r: queue.Request{Workspace: q.Workspace}, say: say}
	rep, err := w.rebase(ctx, q)
	return rep, e.tellRequest(ctx, err)
}

func (w *worker) rebase(ctx context.Context, q RebaseRequest) (rep RebaseReport, err error) {
	root, err := w.e.store()
	if err != nil {
		return rep, err
	}
	before, err := w.e.binding(q.Workspace)
	if err != nil {
		return rep, err
	}
	rep.Before, rep.After = before, before
	if !bound(before) {
		return rep, nil // it has what is current already
	}
	asked, had, err := past(root, before)
	if err != nil {
		return rep, err
	}
	// What it would have with nothing of its own, over the base of today.
	var drop func()
	w.h, drop, err = w.e.hold(ctx, root, queue.Binding{Rev: before.Rev})
	if errors.Is(err, store.ErrNotFound) {
		return rep, errNoBase()
	}
	if err != nil {
		return rep, err
	}
	defer drop()
	if err = w.h.read(); err != nil {
		return rep, err
	}
	w.r.Specs, w.old = asked, &before
	if err := w.equip(); err != nil {
		return rep, err
	}
	if q.Progress != nil {
		w.supply.tell = func(p Progress) { w.say(p.Text); q.Progress(p) }
	}
	s := &solver{supply: w.supply, h: w.h, specs: w.specs, catalog: w.catalog, offered: had}
	sol, err := s.solve(ctx)
	rep.Notes = clipNotes(s.notes)
	if err != nil {
		return rep, err
	}
	return rep, w.replace(ctx, had, sol, q, &rep)
}

// replace binds the workspace to a solution in the place of all that it has.
func (w *worker) replace(ctx context.Context, had []lock.Package, sol solution, q RebaseRequest, rep *RebaseReport) error {
	b := queue.Binding{}
	if sol.fit != nothing {
		w.r.Lock, w.r.Iso, w.r.Decision = sol.id, sol.fit == isolated, &queue.Decision{Approve: true, By: q.By, How: q.How, Lock: sol.id}
		id, err := sol.lock.LayerID()
		if err != nil {
			return err
		}
		now := w.h.with(sol.fit, &store.Layer{ID: id}, sol.id, "", false)
		if now.Startup = w.old.Startup; same(now, *w.old) && w.built(sol.lock) != nil {
			return nil // it is what the workspace has
		}
		if rep.Card, err = w.toAsk(ctx, had, sol, q); rep.Card != nil || err != nil {
			return err
		}
		layer, err := w.build(ctx, sol.lock, sol.fit)
		if err != nil {
			return err
		}
		free, err := w.h.root.Use(layer.ID)
		if err != nil {
			return err
		}
		defer free()
		if err := w.probe(ctx, layer, sol.fit); err != nil {
			return err
		}
		b = w.h.with(sol.fit, layer, sol.id, "", w.startup(w.r, layer))
		b.Requests = w.old.Requests
	}
	b.Workspace, b.Rev = q.Workspace, w.old.Rev+1
	if same(b, *w.old) {
		return nil
	}
	return w.e.record(ctx, Deed{Kind: DeedBind, Request: w.r, Lock: &sol.lock, LockID: sol.id, Binding: &b, Decision: w.r.Decision}, func() error {
		err := w.e.rebind(*w.old, b, func() error { return w.e.o.Queue.Bind(ctx, q.Workspace, w.old.Rev, b) })
		if err == nil {
			rep.Changed, rep.After = true, b
		}
		return err
	})
}

// same says that two bindings show a script the same.
func same(a, b queue.Binding) bool {
	a.Workspace, a.Rev, a.Locks, a.Requests = b.Workspace, b.Rev, b.Locks, b.Requests
	return fmt.Sprint(a) == fmt.Sprint(b)
}

// toAsk is the card that a person has to approve first, nil when there is nothing to ask
// any more; then the wheels are there.
func (w *worker) toAsk(ctx context.Context, had []lock.Package, sol solution, q RebaseRequest) (*policy.Card, error) {
	if q.Approve != "" && q.Approve != sol.id {
		return nil, fmt.Errorf("%w: what was approved is lock %s, and what comes of it now is %s", queue.ErrConflict, q.Approve, sol.id)
	}
	for _, fetched := range []bool{false, true} {
		if fetched {
			if _, _, err := w.supply.fetch(ctx, sol.lock); err != nil {
				return nil, err
			}
		}
		in := w.input(ctx, sol.lock)
		// What the workspace has, by hash, was decided about when it came.
		in.Held = append(in.Held, had...)
		v := policy.Judge(in)
		approved := q.Approve != "" && (!fetched || w.told(v))
		switch {
		case v.Tier == policy.Reject:
			return nil, &Error{Code: Code(v.Findings[0].Rule), Sentence: v.Findings[0].Sentence, Hint: "the workspace is left as it was"}
		case v.Tier == policy.Ask && !approved:
			c, err := policy.NewCard(in, v)
			c.Workspace, c.Base = q.Workspace, cmp.Or(c.Base, w.h.base.ID)
			return &c, err
		}
		w.r.Findings = findings(v)
	}
	return nil, nil
}
