package pyenv

import (
	"context"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// Inherit binds a new workspace to the layers that another is bound to, and returns its
// binding: of revision 0 when that other has none of its own. It is recorded as every
// binding.
//
// Errors: queue.ErrConflict, when either was bound meanwhile; other errors of the queue;
// those of Options.Record, and then nothing is done; those of the file system.
func (e *Env) Inherit(ctx context.Context, from, to string) (queue.Binding, error) {
	old, err := e.binding(from)
	if err != nil || old.Rev == 0 {
		return queue.Binding{Workspace: to}, err
	}
	b := old.Heir(to)
	err = e.record(ctx, Deed{Kind: DeedBind, Binding: &b}, func() error {
		return e.rebind(queue.Binding{Workspace: to}, b, func() error { return e.o.Queue.Inherit(ctx, from, old.Rev, to) })
	})
	return b, err
}
