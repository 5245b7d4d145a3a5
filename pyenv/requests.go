package pyenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

// Ask is a request for packages, from a session of one workspace.
type Ask struct {
	Workspace string   // uuid of the disk
	Packages  []string // requirements as they came
	Wheel     *Wheel   // of the workspace, nil for none
	Reason    string   // for the person who decides, in the words of who asks

	Session, Client, Call string          // for the person and the log
	Pip                   *resolve.Config // of the session; nil: the one that was told last
}

// Wheel is a wheel that lies in a workspace.
type Wheel struct {
	Path string // in the workspace
	Open func(ctx context.Context) (io.ReadCloser, error)
}

// Deed is what happens to a request, or to a binding, for the log. It is told before it
// is done, and once more with Err if it could not be done.
type Deed struct {
	Kind     DeedKind
	Request  queue.Request // as it will be
	Lock     *lock.Lock    // what is decided about, built or bound; nil when there is nothing to add
	LockID   string
	Binding  *queue.Binding // of DeedBind: what the workspace has from now on
	Decision *queue.Decision
	Err      error
}

// DeedKind is a kind of Deed.
type DeedKind string

// The kinds of deeds.
const (
	DeedRequest DeedKind = "request" // a request was made
	DeedDecide  DeedKind = "decide"  // the catalog, a person or a rule has decided
	DeedBuild   DeedKind = "build"   // a layer is built
	DeedBind    DeedKind = "bind"    // a workspace gets other layers
)

// record does something that has to be in the log first.
func (e *Env) record(ctx context.Context, d Deed, do func() error) error {
	if e.o.Record == nil {
		return do()
	}
	if err := e.o.Record(ctx, d); err != nil {
		return fmt.Errorf("%w: %w", errRecord, err)
	}
	err := do()
	if d.Err = err; err != nil {
		if rerr := e.o.Record(context.WithoutCancel(ctx), d); rerr != nil {
			err = errors.Join(err, fmt.Errorf("%w: %w", errRecord, rerr))
		}
	}
	return err
}

// Request asks for packages. What is known already, and may be had without asking, is
// bound when it returns; anything else goes on in the background: see Wait. While a
// request for the same is open, that one is returned.
//
// Errors: spec.ErrBadSpec; *Error: ErrNoBase, ErrNoQueue, ErrModule, ErrCatalog, those of
// a wheel; queue.ErrFull, queue.ErrUnavailable; those of Options.Record, and then nothing
// is asked for; the cause of ctx, wrapped.
func (e *Env) Request(ctx context.Context, a Ask) (queue.Request, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return queue.Request{}, tell(context.Background(), err)
	}
	defer leave()
	r, err := e.request(ctx, a)
	return r, e.tellRequest(ctx, err)
}

// tellRequest is tell, but for errors that have a meaning of their own.
func (e *Env) tellRequest(ctx context.Context, err error) error {
	for _, is := range []error{
		spec.ErrBadSpec, queue.ErrFull, queue.ErrNotFound, queue.ErrAmbiguous, queue.ErrConflict,
		queue.ErrInvalid, queue.ErrUnreadable, queue.ErrUnavailable, errRecord,
	} {
		if errors.Is(err, is) {
			return err
		}
	}
	return tell(ctx, err)
}

// errRecord marks errors of Options.Record, which are the caller's own.
var errRecord = errors.New("the log")

func (e *Env) request(ctx context.Context, a Ask) (r queue.Request, err error) {
	if e.o.Queue == nil || e.o.Box == nil {
		return r, &Error{Code: ErrNoQueue, Sentence: "packages can be added by the person who runs this server only"}
	}
	asked := queue.Request{Workspace: a.Workspace, Reason: a.Reason, Session: a.Session, Client: a.Client, Call: a.Call}
	var specs []spec.Requirement
	if len(a.Packages) > 0 || a.Wheel == nil {
		if specs, err = spec.ParseRequests(a.Packages); err != nil {
			return r, err
		}
	}
	h, release, err := e.holdForRequest(ctx, a.Workspace)
	if err != nil {
		return r, err
	}
	defer release()
	for _, q := range specs {
		if err := h.meant(q); err != nil {
			return r, err
		}
		asked.Specs = append(asked.Specs, q.String())
	}
	if a.Wheel != nil {
		if asked.Wheel, err = e.upload(ctx, h, *a.Wheel); err != nil {
			return r, err
		}
	}
	e.desk.pip(a.Workspace, a.Pip)
	r, err = e.submit(ctx, h, asked)
	if err == nil && r.State.AtWork() {
		e.pump()
	}
	return r, err
}

// submit queues a request, and writes it into the log before any work on it begins.
func (e *Env) submit(ctx context.Context, h holding, asked queue.Request) (queue.Request, error) {
	done := e.desk.holdOff(asked.Workspace)
	defer done()
	r, fresh, err := e.o.Queue.Submit(ctx, asked)
	if err != nil || !fresh {
		return r, err
	}
	// Submitted, it has an id. What the log does not take is withdrawn.
	if err := e.record(ctx, Deed{Kind: DeedRequest, Request: r}, func() error { return nil }); err != nil {
		_, undo := e.o.Queue.Move(context.WithoutCancel(ctx), r.ID, queue.Received, func(r *queue.Request) error {
			r.State = queue.Cancelled
			return nil
		})
		return r, errors.Join(err, undo)
	}
	return e.quick(ctx, h, r)
}

// meant refuses what is the name of a module and not of its package: the index may know
// the name, as something that nobody means.
func (h *holding) meant(q spec.Requirement) error {
	name := ""
	for module, d := range distributions {
		if strings.EqualFold(module, q.Name) && d != q.Name {
			name = d
		}
	}
	if name == "" || !q.Specifiers.Empty() { // who names a version has looked
		return nil
	}
	e := &Error{
		Code: ErrModule, Sentence: fmt.Sprintf("%s is the name of a module; the package that it comes in is %s", q.Name, name),
		Hint: fmt.Sprintf("ask for %s; a version names the package %s itself: %s==VERSION", name, q.Name, q.Name), Blocking: resolve.Blocking{Name: q.Name},
	}
	if at := slices.IndexFunc(h.packages(), func(p lock.Package) bool { return p.Name == name }); at >= 0 {
		e.Hint = fmt.Sprintf("%s %s is installed: import it", name, h.packages()[at].Version)
	}
	e.Suggestions = []string{e.Hint}
	return e
}

// Wait returns a request of a workspace when it is closed or, unless closed is set, waits
// for a person. When ctx ends first it returns the request as it is, and no error.
//
// Errors: queue.ErrNotFound, also for a request of another workspace; ErrNoQueue;
// queue.ErrUnreadable, queue.ErrUnavailable.
func (e *Env) Wait(ctx context.Context, ws, id string, closed bool) (queue.Request, error) {
	if e.o.Queue == nil {
		return queue.Request{}, queue.ErrNotFound
	}
	inner, leave, err := e.enter(ctx)
	if err != nil {
		return queue.Request{}, tell(context.Background(), err)
	}
	defer leave()
	r, err := e.o.Queue.Wait(inner, ws, id, closed)
	if err != nil && r.ID != "" && inner.Err() != nil {
		err = nil
	}
	return r, err
}

// Bound tells how a workspace is bound, Rev 0 if it never was. Errors: those of the queue.
func (e *Env) Bound(ws string) (queue.Binding, error) { return e.binding(ws) }
