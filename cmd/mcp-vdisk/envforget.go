package main

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/oklog/ulid/v2"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// A disk is a file, which its person removes or takes elsewhere as any other, so that
// nothing here can tell whether it comes back. What it is bound to is kept until the
// operator says that it does not: gc lists the bindings whose disk is not in this state
// directory, and removes one with --forget.

// boundFacts is a disk with layers of its own, as `env gc --json` tells of it.
type boundFacts struct {
	Workspace string   `json:"workspace"`
	Disk      string   `json:"disk,omitempty"`      // "" when it is neither in the state directory nor open
	Elsewhere bool     `json:"elsewhere,omitempty"` // another state directory has bound it
	Layers    []string `json:"layers"`
}

// bindings are the disks that are bound to layers, at last those of other state
// directories. Those that cannot be read are what `env doctor` tells of.
func (h *hub) bindings(env *pyenv.Env) ([]boundFacts, error) {
	facts, err := h.ownBindings()
	if err != nil {
		return facts, err
	}
	others, err := env.Elsewhere()
	for _, ws := range slices.Sorted(maps.Keys(others)) {
		facts = append(facts, boundFacts{Workspace: ws, Elsewhere: true, Layers: others[ws]})
	}
	return facts, err
}

func (h *hub) ownBindings() ([]boundFacts, error) {
	facts := []boundFacts{}
	q := h.requests()
	if q == nil {
		return facts, nil
	}
	list, err := q.Bindings()
	if err != nil || len(list) == 0 {
		return facts, err
	}
	names, err := h.diskNames()
	for _, b := range list {
		f := boundFacts{Workspace: b.Workspace, Disk: names[b.Workspace], Layers: append([]string{}, b.Layers...)}
		if b.Iso != "" {
			f.Layers = append(f.Layers, b.Iso)
		}
		facts = append(facts, f)
	}
	return facts, err
}

// diskNames are the names of the disks of the state directory, and of those that are
// open, by uuid. A disk that cannot be read has none.
func (h *hub) diskNames() (map[string]string, error) {
	names := map[string]string{}
	list, err := h.st.imageNames()
	for _, name := range list {
		d, err := h.open(context.Background(), want{ref: front.ImageRef{Name: name}, readOnly: true})
		if err != nil {
			continue
		}
		names[d.info.UUID] = name
		if err := d.release(); err != nil {
			return nil, err
		}
	}
	for _, d := range h.all() {
		if d := h.named(d.info.UUID); d != nil {
			names[d.info.UUID] = d.name
		}
	}
	return names, err
}

// forgetWorkspace removes what is kept for a disk that is gone for good: its binding, with
// which its layers go at the next collection, and its requests.
func (b *back) forgetWorkspace(ctx context.Context, env *pyenv.Env, ws string) error {
	q := b.hub.requests()
	if q == nil {
		return exit.Fail(exit.State, "mcp-vdisk env doctor says why", "the requests for packages cannot be read")
	}
	names, err := b.hub.diskNames()
	if err != nil {
		return err
	}
	if name := names[ws]; name != "" {
		return exit.Fail(exit.Refused, "remove the disk first, when it is to go", "disk %s has the uuid %s, and is there", name, ws)
	}
	bound, err := q.Binding(ws)
	if errors.Is(err, queue.ErrInvalid) {
		return exit.Fail(exit.Usage, "mcp-vdisk env gc --dry-run lists them", "--forget: %q is not the uuid of a disk", ws)
	}
	asked, lerr := q.List(queue.Filter{Workspace: ws})
	if err = errors.Join(err, lerr); err != nil {
		return exit.Because(err, exit.State, "mcp-vdisk env doctor says which", "%s", err)
	}
	others, err := env.Elsewhere()
	if err != nil {
		return b.envFailure(ctx, err)
	}
	if _, elsewhere := others[ws]; bound.Rev == 0 && len(asked) == 0 && !elsewhere {
		return exit.Fail(exit.NotFound, "mcp-vdisk env gc --dry-run lists what disks are bound to", "nothing is kept for a disk of the uuid %s", ws)
	}
	about := []fact{{"forget", true}, {"rev", bound.Rev}, {"requests", len(asked)}}
	about = append(about, some(fact{"base", bound.Base}, fact{"iso", bound.Iso})...)
	rec := audit.Record{Ev: audit.EvEnvBind, Call: ulid.Make().String(), Img: ws}
	for _, facts := range spread(b.operator(audit.Facts{}), append(about, texts("layers", bound.Layers)...)) {
		rec.Args = facts
		if err := b.st.record(ctx, ws, rec); err != nil {
			return err
		}
	}
	_, err = env.Forget(ctx, ws)
	if err != nil {
		rec.Out, rec.Reason = &audit.Out{Code: queueCode(err)}, err.Error()
		err = errors.Join(err, b.st.record(context.WithoutCancel(ctx), ws, rec))
	}
	return err
}
