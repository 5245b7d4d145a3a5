package tools

import (
	"context"
	"errors"
	"io"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// askPackages makes a request and waits for its end, or until a person is needed.
func (t *Tools) askPackages(c *call, a pythonArgs) (work, error) {
	if err := c.checkPackages(a.Packages); err != nil {
		return nil, err
	}
	if a.Wheel != "" {
		if err := checkWheel(a.Wheel); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) (Result, error) { return t.request(ctx, c, a) }, nil
}

func (t *Tools) request(ctx context.Context, c *call, a pythonArgs) (Result, error) {
	ask := pyenv.Ask{
		Workspace: t.streamName, Packages: a.Packages, Reason: a.Reason,
		Session: c.caller.Session, Client: c.caller.Client, Call: c.id, Pip: t.cfg.Pip(),
	}
	if a.Wheel != "" {
		w, err := t.wheel(a.Wheel)
		if err != nil {
			return Result{}, badPath(err)
		}
		ask.Wheel = w
	}
	r, err := t.cfg.Python.Request(ctx, ask)
	switch {
	case errors.Is(err, pyenv.ErrNoQueue) && !t.hasBase(ctx): // that is what the person does first
		return Result{}, notReady(pyenv.ErrNoBase)
	case err != nil:
		return envRefusal(err)
	}
	within, stop := context.WithTimeout(ctx, a.within(requestWait))
	defer stop()
	r, err = t.follow(within, a.asking(ctx, within), r, false)
	if err != nil { // it was made all the same, and the answer says which it is
		t.cfg.Logger.WarnContext(ctx, "a request for packages could not be followed", "request", r.ID, "err", err)
	}
	return t.told(ctx, c, r), nil
}

func (t *Tools) hasBase(ctx context.Context) bool {
	st, err := t.cfg.Python.Status(ctx, t.streamName)
	return err == nil && st.BaseReady
}

// awaitPackages waits for the end of a request.
func (t *Tools) awaitPackages(ctx context.Context, c *call, a pythonArgs) (Result, error) {
	within, stop := context.WithTimeout(ctx, a.within(packageWait))
	defer stop()
	r, err := t.cfg.Python.Wait(within, t.streamName, a.RequestID, false)
	if err == nil {
		r, err = t.follow(within, a.asking(ctx, within), r, true)
	}
	switch {
	case ctx.Err() != nil:
		return Result{}, context.Cause(ctx)
	case err != nil:
		return envRefusal(err)
	}
	return t.told(ctx, c, r), nil
}

// asking is the context in which the person at the client may be asked: until when the
// agent waits, or as long as a call may take where it did not say.
func (a pythonArgs) asking(ctx, within context.Context) context.Context {
	if a.TimeoutS == nil {
		return ctx
	}
	return within
}

// follow waits for the end of a request until ctx ends. The person at the client is asked
// when one has to decide; if they do not, the wait is over, unless it is to go on toEnd.
// With an error it returns the request as it was last seen.
func (t *Tools) follow(ctx, asking context.Context, r queue.Request, toEnd bool) (queue.Request, error) {
	for ctx.Err() == nil && !r.State.Closed() {
		pending := r.State == queue.PendingApproval
		if pending {
			r = t.elicit(asking, r)
			pending = r.State == queue.PendingApproval
		}
		if pending && (!toEnd || tripOf(ctx).asks()) { // the answer comes with another call
			break
		}
		seen, err := t.cfg.Python.Wait(ctx, t.streamName, r.ID, pending)
		if err != nil {
			return r, err
		}
		r = seen
	}
	return r, nil
}

// told is the answer about a request. What the workspace has comes from its status; an
// answer without that is better than none.
func (t *Tools) told(ctx context.Context, c *call, r queue.Request) Result {
	c.out.Outcome = string(r.State)
	st, err := t.cfg.Python.Status(context.WithoutCancel(ctx), t.streamName)
	if err != nil {
		t.cfg.Logger.WarnContext(ctx, "the Python environments do not tell their status", "err", err)
	}
	return requestResult(r, st, t.cfg.EnvArgs)
}

// maxWheel is the size of the largest wheel that is taken, in bytes.
const maxWheel = 512 << 20

// wheel finds a wheel on the disk, as it is in the newest commit. What a commit changes
// later does not change what is read.
func (t *Tools) wheel(path string) (*pyenv.Wheel, error) {
	p, n, err := t.target(path, false)
	switch {
	case err != nil:
		return nil, t.missing(err, path, p)
	case n == nil:
		return nil, t.missing(&workspace.Error{Op: "open", Path: p, Kind: workspace.ErrNotFound}, path, p)
	}
	if err := wheelFault(p, *n); err != nil {
		return nil, err
	}
	f, err := t.cfg.Image.OpenNode(p, *n)
	if err != nil {
		return nil, err
	}
	open := func(context.Context) (io.ReadCloser, error) { return io.NopCloser(f.Reader()), nil }
	return &pyenv.Wheel{Path: p.String(), Open: open}, nil
}

// wheelFault says why what is at a path cannot be a wheel; nil if it may be one. A link is
// none: the person decides about the file that they see.
func wheelFault(p workspace.Path, n workspace.Node) error {
	switch {
	case n.Kind == workspace.KindSymlink:
		return refuse(InvalidPath, "name the file itself, not a link to it", "%s is a symlink", p)
	case n.Kind == workspace.KindDir:
		return refuse(IsADirectory, "name a .whl file inside it; list_files shows what it holds", "%s is a directory", p)
	case n.Size == 0:
		return refuse(InvalidArgument, "build the wheel again, then ask for it", "%s is empty", p)
	case n.Size > maxWheel:
		return &Error{Code: TooLarge, Rule: "env.size", Sentence: p.String() + " has " + size(n.Size) + ", and a wheel has " + size(maxWheel) + " at most", Hint: "no wheel is that large; was another file given that name?"}
	}
	return nil
}

// badPath gives the refusal of a wheel's path its rule. What is wrong with the disk keeps
// its own.
func badPath(err error) error {
	e := *asError(err)
	switch e.Code {
	case InvalidArgument, InvalidPath, PathEscape, ReservedPath, NotFound, IsADirectory, NotADirectory:
		e.Rule = "env.bad_path"
	}
	return &e
}
