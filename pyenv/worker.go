package pyenv

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// serve works on a request until it is closed or waits for a person, and on nothing else
// of its workspace.
func (e *Env) serve(r queue.Request) {
	ctx := e.life
	say, end := e.beginFor(r.Workspace, "packages that were asked for")
	defer end()
	unlock, err := e.share(ctx, func() { say("waiting for another process that makes the environments") })
	if err == nil {
		w := &worker{e: e, r: r, say: say}
		err = w.work(ctx)
		unlock()
		r = w.r
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		e.putBack(r)
	default: // the host, the queue or the log: nothing is decided
		e.o.Logger.Warn("a request for packages could not be worked on; it is tried again", "request", r.ID, "error", err, "detail", detailOf(err))
		e.putBack(r)
		e.desk.rest(r.ID, e.now())
	}
}

// putBack takes a request back to where the work on it begins again, and returns it.
func (e *Env) putBack(r queue.Request) queue.Request {
	to := r.Point()
	if to == r.State {
		return r
	}
	back, err := e.o.Queue.Move(context.Background(), r.ID, r.State, func(r *queue.Request) error {
		r.State = to
		return nil
	})
	if err != nil {
		e.o.Logger.Warn("a request for packages could not be put back", "request", r.ID, "error", err)
		return r
	}
	return back
}

// share waits until nobody makes a base or collects. Any number may build layers of
// workspaces at once.
func (e *Env) share(ctx context.Context, waiting func()) (unlock func(), err error) {
	if _, err := e.store(); err != nil {
		return nil, err
	}
	f, err := e.lockRoot(ctx, false, waiting)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// worker is the work on one request. The caller has the ensure lock, shared.
type worker struct {
	e       *Env
	r       queue.Request
	say     func(string)
	h       holding
	drop    func() // of h
	catalog policy.Catalog
	specs   []spec.Requirement
	supply  *supply
	old     *queue.Binding // that is replaced, when h is not what the workspace has
}

// before is what the workspace is bound to.
func (w *worker) before() queue.Binding {
	if w.old != nil {
		return *w.old
	}
	return w.h.binding
}

// begin looks at what the workspace has now.
func (w *worker) begin(ctx context.Context) (err error) {
	if w.h, w.drop, err = w.e.holdForRequest(ctx, w.r.Workspace); err != nil {
		return err
	}
	if err = w.equip(); err != nil {
		w.drop()
	}
	return err
}

// equip makes ready what the work needs besides.
func (w *worker) equip() (err error) {
	if w.catalog, err = w.e.Catalog(); err != nil {
		return err
	}
	if w.specs, err = requirements(w.r.Specs); err != nil {
		return err
	}
	w.supply = &supply{
		e: w.e, root: w.h.root, it: w.h.it, config: w.e.desk.config(w.r.Workspace),
		tell: func(p Progress) { w.say(fmt.Sprintf("%s: %s", strings.Join(w.r.Specs, ", "), p.Text)) },
		note: func(string, ...any) {},
	}
	return nil
}

// move changes the request.
func (w *worker) move(ctx context.Context, change func(*queue.Request)) error {
	r, err := w.e.o.Queue.Move(ctx, w.r.ID, w.r.State, func(r *queue.Request) error {
		change(r)
		return nil
	})
	if err == nil {
		w.r = r
	}
	return err
}

func (w *worker) to(ctx context.Context, s queue.State) error {
	return w.move(ctx, func(r *queue.Request) { r.State = s })
}

// maxTurns is how often a request is begun anew because its workspace has changed.
const maxTurns = 4

// work does what is to be done. Its error is no fault of the request.
func (w *worker) work(ctx context.Context) error {
	for range maxTurns {
		err := w.turn(ctx)
		switch {
		case err == nil && !w.r.State.AtWork():
			return nil
		case err == nil:
			continue // it was solved, or has to be anew
		case errors.Is(err, queue.ErrConflict): // somebody has decided otherwise, or the workspace has changed
			if err := w.again(); err != nil || !w.r.State.AtWork() {
				return err
			}
		case ctx.Err() != nil || errors.Is(err, errRecord) || errors.Is(err, queue.ErrUnavailable):
			return err
		default:
			return w.fail(ctx, err)
		}
	}
	return w.fail(ctx, &Error{Code: ErrFailed, Sentence: "what the workspace has changed again and again", Hint: "ask again"})
}

// again reads the request, and puts it back to where the work on it begins.
func (w *worker) again() (err error) {
	if w.r, err = w.e.o.Queue.Get(w.r.Workspace, w.r.ID); err == nil {
		w.r = w.e.putBack(w.r)
	}
	return err
}

// turn is one attempt.
func (w *worker) turn(ctx context.Context) error {
	if err := w.begin(ctx); err != nil {
		return err
	}
	defer w.drop()
	if w.r.State == queue.Received || w.r.State == queue.Resolving {
		return w.resolve(ctx)
	}
	return w.install(ctx)
}

// resolve finds a solution and judges it.
func (w *worker) resolve(ctx context.Context) error {
	if w.r.State == queue.Received {
		if err := w.to(ctx, queue.Resolving); err != nil {
			return err
		}
	}
	s, err := w.solver()
	if err != nil {
		return err
	}
	sol, err := s.solve(ctx)
	if err != nil {
		return err
	}
	return w.judge(ctx, s, sol)
}

func (w *worker) solver() (*solver, error) {
	s := &solver{supply: w.supply, h: w.h, specs: w.specs, catalog: w.catalog}
	if u := w.r.Wheel; u != nil {
		p, err := w.e.uploadedPackage(w.h.root, w.h.it, *u)
		if err != nil {
			return nil, err
		}
		s.wheel = &p
	}
	return s, nil
}

// judge moves the request to what the catalog says of a solution.
func (w *worker) judge(ctx context.Context, s *solver, sol solution) error {
	if sol.fit == nothing {
		return w.move(ctx, func(r *queue.Request) {
			r.State, r.Lock, r.Layer, r.Findings, r.Notes = queue.Ready, "", "", nil, clipNotes(s.notes)
		})
	}
	in := w.input(ctx, sol.lock)
	v := policy.Judge(in)
	if len(v.Findings) > maxFindings {
		return &Error{Code: ErrSize, Sentence: fmt.Sprintf("%d packages are needed, and %d things about them are not usual: nobody can look at all of that", len(sol.lock.Packages), len(v.Findings)), Hint: "ask for less at once"}
	}
	solved := func(r *queue.Request) {
		r.Lock, r.Iso, r.Findings, r.Notes = sol.id, sol.fit == isolated, findings(v), clipNotes(s.notes)
		r.Layer, r.Failure = "", nil
	}
	switch v.Tier {
	case policy.Auto:
		return w.approve(ctx, sol, solved)
	case policy.Ask:
		if err := w.move(ctx, func(r *queue.Request) { solved(r); r.State = queue.PendingApproval }); err != nil {
			return err
		}
		w.waits()
		return nil
	}
	return w.reject(ctx, v)
}

// waits tells whoever is to be told that the request waits for a person.
func (w *worker) waits() {
	w.e.o.Logger.Info("a request for packages waits for a person", "request", w.r.ID, "workspace", w.r.Workspace, "packages", w.r.Specs)
	if w.e.o.Waiting != nil {
		w.e.o.Waiting(w.r)
	}
}

// approve notes that the catalog allows it. What is built already is bound at once.
func (w *worker) approve(ctx context.Context, sol solution, solved func(*queue.Request)) error {
	d := queue.Decision{Approve: true, By: fmt.Sprintf("catalog rev %d", w.catalog.Rev), How: "catalog", Lock: sol.id}
	after := w.r
	solved(&after)
	after.State, after.Decision = queue.AutoApproved, &d
	return w.e.record(ctx, Deed{Kind: DeedDecide, Request: after, Lock: &sol.lock, LockID: sol.id, Decision: &d}, func() error {
		approved := func(r *queue.Request) { solved(r); r.State, r.Decision = queue.AutoApproved, &d }
		if l := w.built(sol.lock); l != nil {
			return w.bind(ctx, sol.fit, l, sol.lock, sol.id, approved)
		}
		return w.move(ctx, approved)
	})
}

// quick binds at once what is known and may be had without asking; it leaves anything
// else as it is.
func (e *Env) quick(ctx context.Context, h holding, r queue.Request) (queue.Request, error) {
	if !e.desk.take(r.Workspace, false) {
		return r, nil
	}
	defer e.desk.leave(r.Workspace)
	unlock, err := e.shareNow()
	if unlock == nil {
		return r, err
	}
	defer unlock()
	w := &worker{e: e, r: r, say: func(string) {}, h: h}
	if err := w.equip(); err != nil {
		return r, nil // it is told where the others are
	}
	s, err := w.solver()
	if err != nil {
		return r, nil
	}
	sol, ok := s.known()
	if !ok || sol.fit != nothing && (sol.id == "" || w.built(sol.lock) == nil) {
		return r, nil
	}
	err = w.judge(ctx, s, sol)
	if errors.Is(err, queue.ErrConflict) { // somebody was first
		return r, nil
	}
	return w.r, err
}

// shareNow is share without waiting: nil when somebody makes something.
func (e *Env) shareNow() (unlock func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	unlock, err = e.share(ctx, func() {})
	if errors.Is(err, hostos.ErrLocked) {
		err = nil
	}
	return unlock, err
}
