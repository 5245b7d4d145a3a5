package pyenv

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
)

// Ruling is an answer of a person to a request.
type Ruling struct {
	Approve  bool
	Isolated bool   // approve, as a layer in the place of the base
	Lock     string // id of the lock that the person has seen; "" with a denial
	By       string // "operator uid 1000 at /dev/pts/3"
	How      string // "terminal", "token", "elicitation"
	Note     string // why, for the one who asked
	Pip      *resolve.Config
}

// Decide answers a request that waits for a person; id may be its beginning. Approved, it
// goes on in the background.
//
// An approval is for the lock that the person has seen. Isolated turns it into one of the
// same wheels with those of the base, and Request.Lock is then another.
//
// Errors: queue.ErrNotFound, *queue.Ambiguous; queue.ErrConflict when the request does not
// wait, or has another lock than the ruling is about; store.ErrTampered as an *Error;
// those of Options.Record, and then nothing is decided; the cause of ctx, wrapped.
func (e *Env) Decide(ctx context.Context, id string, g Ruling) (queue.Request, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return queue.Request{}, tell(context.Background(), err)
	}
	defer leave()
	if e.o.Queue == nil {
		return queue.Request{}, queue.ErrNotFound
	}
	r, err := e.decide(ctx, id, g)
	return r, e.tellRequest(ctx, err)
}

func (e *Env) decide(ctx context.Context, id string, g Ruling) (r queue.Request, err error) {
	if r, err = e.o.Queue.Any(id); err != nil {
		return r, err
	}
	if r.State != queue.PendingApproval {
		return r, fmt.Errorf("%w: request %s is %s and waits for nobody", queue.ErrConflict, r.ID, r.State)
	}
	if g.Lock != r.Lock && (g.Approve || g.Lock != "") {
		return r, fmt.Errorf("%w: what was looked at is lock %q, and request %s has lock %s now", queue.ErrConflict, g.Lock, r.ID, r.Lock)
	}
	var l *lock.Lock
	change := func(r *queue.Request) { r.State = queue.Denied }
	lockID := r.Lock
	if g.Approve {
		given, iso := lock.Lock{}, r.Iso
		if given, lockID, iso, err = e.approved(ctx, r, g); err != nil {
			return e.undecidable(ctx, r, err)
		}
		l = &given
		change = func(r *queue.Request) { r.State, r.Lock, r.Iso = queue.Approved, lockID, iso }
	}
	d := queue.Decision{Approve: g.Approve, By: g.By, How: g.How, Note: cut(g.Note, maxNote), Lock: lockID}
	after := r
	change(&after)
	after.Decision = &d
	err = e.record(ctx, Deed{Kind: DeedDecide, Request: after, Lock: l, LockID: lockID, Decision: &d}, func() error {
		moved, err := e.o.Queue.Move(ctx, r.ID, queue.PendingApproval, func(r *queue.Request) error {
			change(r)
			r.Decision = &d
			return nil
		})
		if err == nil {
			r = moved
		}
		return err
	})
	if err == nil && g.Approve {
		e.desk.pip(r.Workspace, g.Pip)
		e.pump()
	}
	return r, err
}

// undecidable ends a request whose lock is not the one that its id stands for any more:
// nobody can approve it, and asked again it gets another.
func (e *Env) undecidable(ctx context.Context, r queue.Request, err error) (queue.Request, error) {
	if !errors.Is(err, store.ErrTampered) && !errors.Is(err, store.ErrNotFound) {
		return r, err
	}
	w := &worker{e: e, r: r, say: func(string) {}}
	return w.r, errors.Join(err, w.fail(ctx, err))
}

// maxNote is how much a person can say, in bytes.
const maxNote = 2000

// approved is the lock that an approval is for.
func (e *Env) approved(ctx context.Context, r queue.Request, g Ruling) (l lock.Lock, id string, iso bool, err error) {
	h, release, err := e.holdForRequest(ctx, r.Workspace)
	if err != nil {
		return l, "", false, err
	}
	defer release()
	if l, err = h.root.Lock(r.Lock); err != nil || !g.Isolated || l.Kind == lock.Iso {
		return l, r.Lock, r.Iso, err
	}
	l = h.isolate(l)
	id, err = h.root.PutLock(l)
	return l, id, true, err
}

// isolate makes a solution one that takes the place of the base: of the same wheels, with
// those that the workspace has.
func (h *holding) isolate(l lock.Lock) lock.Lock {
	var all []lock.Package
	there := h.packages()
	if h.fits(l) == instead {
		there = h.under.Packages
	}
	for _, p := range there {
		if !has(l.Packages, p.Name) {
			all = append(all, p)
		}
	}
	l.Requested = slices.Concat(l.Requested, h.under.Requested, h.asked())
	slices.Sort(l.Requested)
	l.Requested = slices.Compact(l.Requested)
	l.Kind, l.Base, l.Packages = lock.Iso, "", append(all, l.Packages...)
	return l
}
