package pyenv

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// pinDir holds a file for each workspace that is bound, with the ids of what it is bound
// to: a root may serve several state directories, and who collects it sees the queue of
// one. The queue is what counts; these files follow it, and are written anew by Resume.
const (
	pinDir    = "bound"
	pinPrefix = "ws-"
)

// pin notes what a workspace is bound to, or is about to be.
func (e *Env) pin(ws string, list ...queue.Binding) error {
	var ids []string
	for _, b := range list {
		ids = append(ids, idsOf(b)...)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	name := filepath.Join(e.o.Root, pinDir, pinPrefix+ws)
	if len(ids) == 0 {
		return unlessGone(os.Remove(name))
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	// Not synced: after a loss of power Resume writes it again. What a killed process left
	// the next one replaces.
	tmp := filepath.Join(e.o.Root, pinDir, topTmp+ws)
	if err := os.WriteFile(tmp, []byte(strings.Join(ids, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}

// idsOf are the ids of what a binding needs, none for one to nothing.
func idsOf(b queue.Binding) []string {
	return slices.DeleteFunc(slices.Concat([]string{b.Python, b.Base, b.Iso}, b.Layers, b.Locks), func(id string) bool { return id == "" })
}

func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// rebind does what binds a workspace to something else; what it is bound to before and
// after is pinned meanwhile.
func (e *Env) rebind(before, after queue.Binding, do func() error) error {
	if err := e.pin(after.Workspace, before, after); err != nil {
		return err
	}
	err := do()
	now := after
	if err != nil {
		now = before
	}
	if perr := e.pin(after.Workspace, now); perr != nil { // it names both then, until Resume
		e.o.Logger.Warn("what a workspace is bound to could not be noted", "workspace", after.Workspace, "error", perr)
	}
	return err
}

// repin writes the files of all workspaces of the queue.
func (e *Env) repin() error {
	list, err := e.o.Queue.Bindings()
	if err != nil || len(list) == 0 {
		return err
	}
	if _, err := e.store(); err != nil {
		return err
	}
	var errs []error
	for _, b := range list {
		errs = append(errs, e.pin(b.Workspace, b))
	}
	return errors.Join(errs...)
}

// Elsewhere tells which workspaces of other state directories are bound in the same root,
// and to which layers. One whose state directory is gone stays among them until Forget.
//
// Errors: *Error; those of the queue.
func (e *Env) Elsewhere() (map[string][]string, error) {
	pins, err := e.pins()
	if err != nil {
		return nil, e.tellRequest(context.Background(), err)
	}
	for ws, ids := range pins {
		pins[ws] = slices.DeleteFunc(ids, func(id string) bool { return !lock.ValidLayerID(id) || strings.HasPrefix(id, string(lock.Base)) })
	}
	return pins, nil
}

// pins are the ids of what workspaces are bound to that are not of this queue.
func (e *Env) pins() (map[string][]string, error) {
	if _, err := e.store(); err != nil {
		return nil, err
	}
	own := map[string]bool{}
	if e.o.Queue != nil {
		list, err := e.o.Queue.Bindings()
		if err != nil {
			return nil, err
		}
		for _, b := range list {
			own[b.Workspace] = true
		}
	}
	dir := filepath.Join(e.o.Root, pinDir)
	files, err := os.ReadDir(dir)
	if unlessGone(err) != nil {
		return nil, err
	}
	pins := map[string][]string{}
	for _, f := range files {
		ws, ok := strings.CutPrefix(f.Name(), pinPrefix)
		if !ok || own[ws] || !f.Type().IsRegular() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if unlessGone(err) != nil {
			return nil, err
		}
		pins[ws] = strings.Fields(string(text))
	}
	return pins, nil
}

// Forget removes what is kept for a workspace that is gone for good: its binding, with
// which its layers go at the next GC, and its requests. It returns the open ones, which
// end. One that is worked on ends at its next step.
//
// Errors: those of queue.Forget, and then nothing is removed; those of the file system.
func (e *Env) Forget(ctx context.Context, ws string) (cancelled []queue.Request, err error) {
	if e.o.Queue != nil {
		if cancelled, err = e.o.Queue.Forget(ctx, ws); err != nil {
			return nil, err
		}
	}
	return cancelled, e.pin(ws)
}
