package pyenv

import (
	"context"
	"slices"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

// choose finds the lock to build, or makes one.
func (w *maker) choose(ctx context.Context) error {
	if w.q.Relock {
		return w.resolve(ctx)
	}
	w.tell(Progress{Step: StepLock, Text: "choosing the packages of the base"})
	want := w.e.requested(w.extras)
	found, best := false, lock.Lock{}
	for _, c := range w.candidates() {
		l := c.lock
		if !slices.Equal(l.Requested, want) {
			ok := false
			if l, ok = w.extend(l, want); !ok {
				continue
			}
		}
		if !found || l.Cutoff.After(best.Cutoff) {
			found, best, w.own = true, l, c.own
		}
	}
	if !found {
		return w.resolve(ctx)
	}
	w.lock = best
	return nil
}

// candidate is a lock that may be built.
type candidate struct {
	lock lock.Lock
	own  bool // it came with this program
}

// candidates are the locks for the interpreter, of which the one that looked at the
// newest uploads is taken, the first of equals.
func (w *maker) candidates() (list []candidate) {
	ids := []string{w.e.wanted()}
	if cur, err := w.root.Current(); err == nil {
		ids = append(ids, cur.Lock)
	}
	for _, id := range ids {
		if id == "" {
			continue
		}
		l, err := w.root.Lock(id)
		switch {
		case err != nil:
			w.e.o.Logger.Warn("a lock of the base cannot be used", "lock", id, "error", err)
		case l.Kind == lock.Base && l.Python == pythonOf(w.it):
			list = append(list, candidate{l, false})
		}
	}
	l, ok, err := w.e.embedded(w.it)
	if err != nil {
		w.e.o.Logger.Error("a lock of this program cannot be read", "error", err)
	}
	if ok {
		list = append(list, candidate{l, true})
	}
	return list
}

// extend makes a lock of the base list one with the packages that were imported, if
// that leaves nothing to resolve: what they need is there.
func (w *maker) extend(l lock.Lock, want []string) (lock.Lock, bool) {
	// What the lock was asked for without what was imported then.
	var asked []string
	for _, q := range l.Requested {
		if !slices.ContainsFunc(l.Packages, func(p lock.Package) bool { return p.Index == imported && q == p.Name+"=="+p.Version }) {
			asked = append(asked, q)
		}
	}
	if !slices.Equal(asked, w.e.requested(nil)) {
		return l, false
	}
	var packages []lock.Package
	for _, p := range l.Packages {
		replaced := slices.ContainsFunc(w.extras, func(x lock.Package) bool { return x.Name == p.Name })
		if p.Index != imported && !replaced {
			packages = append(packages, p)
		}
	}
	l.Packages = append(packages, w.extras...)
	l.Requested = want
	return l, complete(w.it, l.Packages)
}

// cooldown is how old a file must be: most attacks on an index are found within days.
const cooldown = 7 * 24 * time.Hour

// resolve makes a lock, by pip in its jail, and keeps it for now and the next time.
func (w *maker) resolve(ctx context.Context) error {
	if err := w.tool(ctx); err != nil {
		return err
	}
	w.tell(Progress{Step: StepLock, Text: "resolving the packages of the base"})
	config, drop, err := w.offer(ctx, w.extras)
	if err != nil {
		return err
	}
	defer drop()
	if n := w.q.Pip.Indexes(); n > 1 {
		w.note("Packages come from %d places that are merged: who can upload to one of them can replace what is on another.", n)
	}
	q := resolve.Request{Config: config, Cutoff: w.e.now().Add(-cooldown).UTC().Truncate(time.Second), Sure: true}
	for _, line := range w.e.requested(w.extras) {
		r, err := spec.ParseRequest(line)
		if err != nil {
			return err
		}
		q.Specs = append(q.Specs, r)
	}
	r, err := w.pip.Resolve(ctx, q)
	if err != nil {
		return err
	}
	for _, n := range r.Notes {
		w.note("%s", n)
	}
	l := lock.Lock{Schema: 1, Kind: lock.Base, Python: pythonOf(w.it), Requested: w.e.requested(w.extras), PolicyRev: 1, Resolver: r.Resolver, Cutoff: q.Cutoff, Packages: r.Packages}
	if err := insist(&l, w.extras); err != nil {
		return err
	}
	id, err := w.root.PutLock(l)
	if err != nil {
		return err
	}
	w.lock, w.own, w.rep.Lock = l, false, id
	return writeFile(w.root.Dir(), wantedFile, []byte(id+"\n"))
}
