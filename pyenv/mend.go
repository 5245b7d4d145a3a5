package pyenv

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
)

// repairBound builds again what workspaces are bound to and what is not as it was built,
// by the same locks: under the same ids, so that no binding changes.
func (w *maker) repairBound(ctx context.Context) error {
	if !w.q.Repair || w.e.o.Queue == nil {
		return nil
	}
	list, err := w.e.o.Queue.Bindings()
	if err != nil {
		return err
	}
	done := map[string]bool{w.layer.ID: true}
	for _, b := range list {
		base := cmp.Or(b.Iso, b.Base)
		for i, id := range append([]string{base}, b.Layers...) {
			if id == "" || done[id] {
				continue
			}
			done[id] = true
			over := []string{}
			if i > 0 {
				over = append(slices.Clone(b.Layers[:i-1]), base)
			}
			if err := w.mend(ctx, b, id, over); err != nil {
				return err
			}
		}
	}
	return nil
}

// mend builds a layer again if a file of it differs, or if it is gone.
func (w *maker) mend(ctx context.Context, b queue.Binding, id string, over []string) error {
	w.tell(Progress{Step: StepBuild, Text: "looking at every file of layer " + id})
	layer, err := w.root.Layer(id)
	if err == nil {
		faults, err := w.root.Verify(ctx, layer)
		if err != nil || len(faults) == 0 {
			return err
		}
		w.note("Layer %s was not as it was built, first %s (%s).", id, faults[0].Path, faults[0].Kind)
	} else {
		w.note("Layer %s, which a disk is bound to, was gone or damaged.", id)
	}
	l, err := w.lockOf(b, id)
	if err != nil { // another base than today's, say
		w.note("There is no lock any more to build layer %s by: mcp-vdisk env rebase builds anew what disk %s has asked for.", id, b.Workspace)
		return nil
	}
	build := store.Build{Lock: l, Box: w.e.o.Box}
	if build.Python, err = w.e.load(ctx, b.Python); err != nil {
		return err
	}
	for _, under := range over {
		layer, err := w.root.Layer(under)
		if err != nil {
			return unusable(under, err)
		}
		build.Over = append(build.Over, layer)
	}
	if _, _, err := w.supply.fetch(ctx, l); err != nil {
		return err
	}
	if err := w.root.Drop(id); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if _, err = w.root.Build(ctx, build); err == nil {
		w.rep.Mended = append(w.rep.Mended, id)
		w.note("Layer %s was built again.", id)
	}
	return err
}

// lockOf is the lock of a layer that a workspace is bound to.
func (w *maker) lockOf(b queue.Binding, id string) (lock.Lock, error) {
	ids := slices.Clone(b.Locks)
	if layer, err := w.root.Layer(id); err == nil {
		ids = append(ids, layer.Manifest.Lock)
	}
	for _, lockID := range ids {
		l, err := w.root.Lock(lockID)
		if err != nil {
			return l, err
		}
		if of, err := l.LayerID(); err == nil && of == id {
			return l, nil
		}
	}
	return lock.Lock{}, unusable(id, store.ErrNotFound)
}
