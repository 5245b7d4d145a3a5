package tools

import (
	"context"
	"errors"
	"fmt"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// Cancel stops a script and waits until its processes are gone and its outcome is
// recorded. Nothing of it is saved, unless its commit came first; one that has
// ended stays as it is. The result of the script is why, if that is an [Error]; any
// other why is not shown to the session, which learns that it was stopped on
// request.
//
// Errors: ErrNoJob; the cause of ctx, and then the script is being stopped.
func (js *Jobs) Cancel(ctx context.Context, id string, why error) error {
	j, err := js.named(id)
	if err != nil {
		return err
	}
	var e *Error
	if !errors.As(why, &e) {
		own := *errJobCancelled
		if e = &own; why != nil {
			e.cause = why
		}
	}
	j.stop(e)
	return j.wait(ctx)
}

// Evict stops every script that was started under a fencing token up to this one,
// and waits until their processes are gone and their outcomes are recorded. Their
// results are FENCED. None is started under such a token any more. It may be
// called again, and when nothing runs.
//
// What ended before stays as it is. Changes that were kept and not saved can be
// saved as ever: by a call that is admitted then, see [Lease]. Calls of the file
// tools are not waited for; what they commit late the image refuses.
//
// Errors: the cause of ctx, and then some may still run; audit.ErrUnavailable
// when an outcome could not be recorded.
func (js *Jobs) Evict(ctx context.Context, token uint64) error {
	return js.evict(ctx, token, errEvicted)
}

// TakeBack is Evict for a person who takes the disk back, and says why: the sessions
// are told that, shortened.
func (js *Jobs) TakeBack(ctx context.Context, token uint64, why string) error {
	return js.evict(ctx, token, &Error{
		Code: Fenced, Sentence: fmt.Sprintf("the script was stopped because a person took this disk back (%q); nothing was saved", short(why)), Hint: fencedHint,
		late: fmt.Sprintf("a person has taken this disk back (%q)", short(why)), cause: workspace.ErrFenced,
	})
}

func (js *Jobs) evict(ctx context.Context, token uint64, why *Error) error {
	var old []*job
	js.mu.Lock()
	if js.evicted == nil || *js.evicted < token {
		js.evicted, js.why = &token, why
	}
	for _, j := range js.all {
		if j.fence.Token <= token && !j.isOver() {
			j.stop(why)
			old = append(old, j)
		}
	}
	js.mu.Unlock()
	var failed []error
	for _, j := range old {
		if err := j.wait(ctx); err != nil {
			return fmt.Errorf("evict: job %s: %w", j.id, err)
		}
		if !j.recorded {
			failed = append(failed, fmt.Errorf("evict: job %s: %w", j.id, j.told.err))
		}
	}
	return errors.Join(failed...)
}

// wait waits for the end of a job.
func (j *job) wait(ctx context.Context) error {
	select {
	case <-j.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
