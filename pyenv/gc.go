package pyenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
)

// minPython is the least time since its last use after which an interpreter is
// removed: no script runs for so long.
const minPython = 24 * time.Hour

// GC removes what nobody needs and what was not used for minAge: layers, locks and
// wheels as store.Root.GC says, interpreters of no layer that stays, and the files that
// put layers that are gone on the import path. Kept are what is current, the lock that
// the next base is built from, what was imported for it, and what Options.Queue has bound or asked for. A
// dry run only tells.
//
// It goes on when one thing cannot be removed. Errors: *Error; the cause of ctx,
// wrapped.
func (e *Env) GC(ctx context.Context, minAge time.Duration, dryRun bool) (store.Report, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return store.Report{}, tell(context.Background(), err)
	}
	defer leave()
	rep, err := e.collect(ctx, minAge, dryRun)
	return rep, tell(ctx, err)
}

func (e *Env) collect(ctx context.Context, minAge time.Duration, dryRun bool) (rep store.Report, err error) {
	root, err := e.store()
	if err != nil {
		return rep, err
	}
	// Who builds keeps its lock and wheels by being the only one here.
	unlock, err := e.claim(ctx, func() {})
	if err != nil {
		return rep, err
	}
	defer unlock()
	keep, err := e.kept()
	if err != nil {
		return rep, fmt.Errorf("what is bound: %w", err)
	}
	rep, err = root.GC(ctx, keep, minAge, e.now, dryRun)
	if ctx.Err() != nil {
		return rep, err
	}
	return rep, errors.Join(err, e.collectPythons(ctx, root, keep, &rep, max(minAge, minPython), dryRun), e.collectPths(root, &rep, dryRun))
}

// kept are the ids and hashes that stay, besides what is current.
func (e *Env) kept() (map[string]bool, error) {
	keep, err := e.bindings()
	if err != nil {
		return nil, err
	}
	if id := e.wanted(); id != "" {
		keep[id] = true
	}
	extras, err := e.extras()
	for _, x := range extras {
		keep[x.SHA256] = true
	}
	return keep, err
}

// bindings are the ids of what workspaces are bound to, also those of other state
// directories, and of what open requests are about. Of a queue that cannot be read nothing
// is known, and so nothing is removed.
func (e *Env) bindings() (map[string]bool, error) {
	keep := map[string]bool{}
	pins, err := e.pins()
	for _, ids := range pins {
		for _, id := range ids {
			keep[id] = true
		}
	}
	if err != nil || e.o.Queue == nil {
		return keep, err
	}
	list, err := e.o.Queue.Bindings()
	if err != nil {
		return nil, err
	}
	for _, b := range list {
		for _, id := range idsOf(b) {
			keep[id] = true
		}
	}
	open, err := e.o.Queue.Open()
	for _, r := range open {
		keep[r.Lock], keep[r.Layer] = true, true
		if r.Wheel != nil {
			keep[r.Wheel.SHA256] = true
		}
	}
	return keep, err
}

// collectPythons removes interpreters that no layer is for, and that are neither this
// process's nor were used lately.
func (e *Env) collectPythons(ctx context.Context, root *store.Root, keep map[string]bool, rep *store.Report, minAge time.Duration, dryRun bool) error {
	ids, errs := python.List(root.Dir())
	needed := map[string]bool{}
	e.mu.Lock()
	for id := range e.known {
		needed[id] = true
	}
	e.mu.Unlock()
	if cur, err := root.Current(); err == nil {
		needed[cur.Python] = true
	}
	versions := map[string]bool{}
	for _, item := range rep.Kept {
		if l, err := root.Layer(item.ID); item.Kind == "layer" && err == nil {
			versions[l.Manifest.Python.Full] = true
		}
	}
	for _, id := range ids {
		item := store.Item{Kind: "python", ID: id}
		st, err := os.Stat(filepath.Join(root.Dir(), "python", id))
		it, perr := python.Peek(root.Dir(), id)
		switch {
		case err != nil:
			continue // gone meanwhile
		case needed[id]:
			item.Why = "current"
		case keep[id]:
			item.Why = "bound"
		case perr == nil && versions[it.Facts.Full]:
			item.Why = "of a kept layer"
		case e.now().Sub(st.ModTime()) < minAge:
			item.Why = "young"
		}
		if item.Why != "" {
			rep.Kept = append(rep.Kept, item)
			continue
		}
		if !dryRun {
			err = python.Drop(ctx, root.Dir(), id)
		}
		if errors.Is(err, python.ErrInUse) {
			item.Why = "in use"
			rep.Kept = append(rep.Kept, item)
			continue
		}
		if err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		rep.Removed = append(rep.Removed, item)
	}
	return errs
}

// collectPths removes the files of boot/ that name a layer which is gone: no run can
// ask for them any more.
func (e *Env) collectPths(root *store.Root, rep *store.Report, dryRun bool) error {
	dir := filepath.Join(root.Dir(), "boot", "pth")
	list, _ := os.ReadDir(dir) // none is as good as empty
	var errs []error
	for _, d := range list {
		path := filepath.Join(dir, d.Name())
		b, err := os.ReadFile(path)
		if err != nil || !strings.HasSuffix(d.Name(), ".pth") || !e.orphaned(root, string(b)) {
			continue
		}
		if !dryRun {
			if err := os.Remove(path); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		rep.Removed = append(rep.Removed, store.Item{Kind: "rest", ID: "boot/pth/" + d.Name(), Bytes: int64(len(b))})
		rep.Bytes += int64(len(b))
	}
	return errors.Join(errs...)
}

// orphaned tells whether a file names a layer that is not there.
func (e *Env) orphaned(root *store.Root, pth string) bool {
	for line := range strings.Lines(pth) {
		rest, below := strings.CutPrefix(strings.TrimSpace(line), store.MountDir+"/")
		if !below {
			continue
		}
		id, _, _ := strings.Cut(rest, "/")
		if _, err := root.Layer(id); errors.Is(err, store.ErrNotFound) {
			return true
		}
	}
	return false
}
