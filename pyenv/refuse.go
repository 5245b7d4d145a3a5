package pyenv

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
)

// reject closes a request that nobody can approve.
func (w *worker) reject(ctx context.Context, v policy.Verdict) error {
	f := v.Findings[0]
	failure := queue.Failure{Code: f.Rule, Sentence: clip(f.Sentence), Hint: "do without it; the operator of this server has decided so"}
	if f.Package != "" {
		failure.Blocking = &queue.Blocking{Name: f.Package}
	}
	return w.close(ctx, queue.Rejected, failure, findings(v))
}

// fail closes a request that could not be fulfilled: as rejected when it is its own
// fault, as failed when it may be another one's.
func (w *worker) fail(ctx context.Context, err error) error {
	var e *Error
	if !errors.As(tell(ctx, err), &e) {
		return err
	}
	w.e.o.Logger.Info("a request for packages was not fulfilled", "request", w.r.ID, "error", err, "detail", e.Detail)
	failure := queue.Failure{Code: string(e.Code), Sentence: clip(e.Sentence), Hint: clip(strings.Join(hints(e), "; "))}
	if b := e.Blocking; b != (resolve.Blocking{}) {
		failure.Blocking = &queue.Blocking{Name: b.Name, Version: b.Version, PinnedBy: b.PinnedBy, NeededBy: b.NeededBy, Wanted: b.Wanted}
	}
	state := queue.Failed
	if !hostsFault(e) {
		state = queue.Rejected
		if failure.Blocking == nil && len(w.r.Specs) > 0 { // nobody knows more than what was asked for
			failure.Blocking = &queue.Blocking{Name: nameOf(w.r.Specs[0]), Wanted: w.r.Specs[0]}
		}
	}
	return w.close(ctx, state, failure, w.r.Findings)
}

func hints(e *Error) (list []string) {
	for _, s := range append([]string{e.Hint}, e.Suggestions...) {
		if s = strings.TrimSuffix(s, "."); s != "" {
			list = append(list, s)
		}
	}
	return list
}

func (w *worker) close(ctx context.Context, state queue.State, f queue.Failure, found []queue.Finding) error {
	change := func(r *queue.Request) { r.State, r.Failure, r.Findings = state, &f, found }
	after := w.r
	change(&after)
	return w.e.record(ctx, Deed{Kind: DeedDecide, Request: after, LockID: after.Lock, Decision: after.Decision}, func() error {
		return w.move(ctx, change)
	})
}

// hostsFault says that another time, or another host, the same request may be fulfilled.
func hostsFault(err error) bool {
	var e *Error
	if !errors.As(tell(context.Background(), err), &e) {
		return true
	}
	switch resolve.Code(e.Code) {
	case resolve.ErrSdistOnly, resolve.ErrNoCompatibleWheel, resolve.ErrNoSolution, resolve.ErrConflictWithBase, resolve.ErrDirectURL, resolve.ErrCooldown, resolve.ErrNotFound:
		return false
	}
	switch e.Code {
	case ErrSize, Code(wheel.ErrStdlibShadow), Code(wheel.ErrImportCollision), Code(wheel.ErrWheelMetadata), Code(wheel.ErrPthPath):
		return false
	}
	return !strings.HasPrefix(string(e.Code), "zip_") && !strings.HasPrefix(string(e.Code), "record_")
}

// clip cuts a sentence to what a record of the queue takes.
func clip(s string) string { return cut(s, 4000) }

func cut(s string, most int) string {
	if len(s) <= most {
		return strings.ToValidUTF8(s, "?")
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// clipNotes are the first of some notes.
func clipNotes(notes []string) (list []string) {
	const most = 40
	for _, n := range notes {
		if n = clip(n); !slices.Contains(list, n) && len(list) < most {
			list = append(list, n)
		}
	}
	return list
}

// Limits of what a person can be asked about; a record of the queue has room for it.
const (
	maxFindings = 300
	maxFinding  = 500 // bytes of a sentence
)

func findings(v policy.Verdict) (list []queue.Finding) {
	for _, f := range v.Findings {
		list = append(list, queue.Finding{Rule: f.Rule, Package: f.Package, Sentence: cut(f.Sentence, maxFinding), Tier: string(f.Tier)})
	}
	return list
}
