package pyenv

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

// solver finds out what a workspace needs besides what it has.
type solver struct {
	*supply
	h       holding
	specs   []spec.Requirement // without the wheel
	wheel   *lock.Package      // of the workspace, nil for none
	catalog policy.Catalog
	offered []lock.Package // that may be needed, and that no index may have
	notes   []string
}

// solution is what a request comes to. Without packages there is nothing to add.
type solution struct {
	lock lock.Lock
	id   string // of the lock
	fit  fit
}

// known is a solution for which nobody has to be asked: what is there already, or what
// the resolver has said before.
func (s *solver) known() (sol solution, ok bool) {
	if s.wheel == nil {
		if satisfied(s.specs, s.h.packages()) {
			return solution{fit: nothing}, true
		}
		id, found := s.e.o.Queue.Memo(s.memoKey())
		if !found {
			return sol, false
		}
		l, err := s.root.Lock(id)
		if err != nil {
			return sol, false
		}
		sol = solution{l, id, s.h.fits(l)}
		return sol, sol.fit != stale
	}
	if slices.ContainsFunc(s.h.packages(), func(p lock.Package) bool { return p.Name == s.wheel.Name && p.SHA256 == s.wheel.SHA256 }) &&
		satisfied(s.specs, s.h.packages()) {
		return solution{fit: nothing}, true
	}
	// A wheel that needs nothing more needs no index.
	l := s.lock(lock.X, s.requested(nil), resolve.Resolution{Packages: []lock.Package{*s.wheel}, Resolver: "none"}, time.Time{})
	if satisfied(s.specs, append(s.h.packages(), *s.wheel)) && s.h.fits(l) == beside {
		return solution{lock: l, fit: beside}, true
	}
	return sol, false
}

// solve finds a solution, by pip if need be, and keeps its lock.
func (s *solver) solve(ctx context.Context) (sol solution, err error) {
	sol, ok := s.known()
	if !ok {
		if sol, err = s.ask(ctx); err != nil {
			return sol, err
		}
	}
	if sol.fit == nothing || sol.id != "" {
		return sol, nil
	}
	if sol.id, err = s.root.PutLock(sol.lock); err != nil {
		return sol, err
	}
	if s.wheel == nil {
		err = s.e.o.Queue.SetMemo(ctx, s.memoKey(), sol.id, queue.MemoTTL)
	}
	return sol, err
}

// memoKey names the question: what is asked, on top of what, and of whom.
func (s *solver) memoKey() string {
	var specs, over []string
	for _, q := range s.specs {
		specs = append(specs, q.String())
	}
	for _, l := range s.h.layers() {
		over = append(over, l.ID)
	}
	slices.Sort(over)
	return queue.MemoKey(specs, strings.Join(over, " "), s.config.Sources(), s.catalog.Rev)
}

// requested is what the solution is for, sorted, with what was asked for before. A package
// that is asked for again is wanted as it is asked for now.
func (s *solver) requested(before []string) []string {
	list := slices.DeleteFunc(slices.Clone(before), func(line string) bool {
		return slices.ContainsFunc(s.specs, func(q spec.Requirement) bool { return q.Name == nameOf(line) })
	})
	for _, q := range s.specs {
		list = append(list, q.String())
	}
	if s.wheel != nil {
		list = append(list, s.wheel.Name+"=="+s.wheel.Version)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// requirements reads what was asked for, in the order in which it is.
func requirements(specs []string) (list []spec.Requirement, err error) {
	for _, line := range specs {
		q, err := spec.ParseRequirement(line)
		if err != nil {
			return nil, err
		}
		list = append(list, q)
	}
	return list, nil
}

// nameOf is the name of a requirement in its normal form.
func nameOf(line string) string {
	q, err := spec.ParseRequirement(line)
	if err != nil {
		return ""
	}
	return q.Name
}

// ask has pip find a solution: on top of all that the workspace has; else, where one of
// its own layers is in the way, one for all that it has asked for; else, where the base
// is, one that takes its place.
func (s *solver) ask(ctx context.Context) (solution, error) {
	if err := s.tool(ctx); err != nil {
		return solution{}, err
	}
	s.tell(Progress{Step: StepLock, Text: "finding out which packages are needed"})
	config, drop, err := s.offer(ctx, s.withoutIndex())
	if err != nil {
		return solution{}, err
	}
	defer drop()
	a := asking{s, config}
	var conflict error
	if len(s.h.own) < maxLayers {
		sol, err := a.beside(ctx)
		if conflict = err; !errors.Is(err, resolve.ErrConflictWithBase) {
			return sol, err
		}
	}
	if len(s.h.own) > 0 && (conflict == nil || has(s.h.held(), blockedBy(conflict))) {
		sol, err := a.instead(ctx)
		if errors.Is(err, resolve.ErrNoSolution) && conflict != nil {
			return sol, s.excludes(conflict)
		}
		if conflict = err; !errors.Is(err, resolve.ErrConflictWithBase) {
			return sol, err
		}
	}
	sol, err := a.isolated(ctx, conflict)
	if err != nil && ctx.Err() == nil && !hostsFault(err) {
		err = conflict // says who is in the way
	}
	return sol, err
}

// excludes says that what is asked for and what the workspace has cannot be had together,
// and who of those needs what is in the way.
func (s *solver) excludes(conflict error) error {
	var e *resolve.Error
	if !errors.As(conflict, &e) {
		return conflict
	}
	told := *e
	told.Code, told.Suggestions = resolve.ErrNoSolution, nil
	var who []string
	for _, p := range s.h.packages() {
		for _, line := range p.Requires {
			if q, err := spec.ParseRequirement(line); err == nil && q.Name == e.Blocking.Name && !q.Specifiers.Empty() {
				who = append(who, p.Name+" "+p.Version+" needs "+q.String())
			}
		}
	}
	for _, line := range s.h.asked() {
		if q, err := spec.ParseRequirement(line); err == nil && q.Name == e.Blocking.Name {
			who = append(who, q.String()+" was asked for before")
		}
	}
	if len(who) > 0 {
		told.Sentence += ": " + strings.Join(who[:min(3, len(who))], ", ")
	}
	return &told
}

// withoutIndex are the packages that have to be offered to pip, because no index has them.
func (s *solver) withoutIndex() (list []lock.Package) {
	for _, p := range slices.Concat(s.h.packages(), s.offered) {
		own := p.Index == imported || p.Index == uploaded
		if own && !has(list, p.Name) && (s.wheel == nil || p.Name != s.wheel.Name) {
			list = append(list, p)
		}
	}
	if s.wheel != nil {
		list = append(list, *s.wheel)
	}
	return list
}

// blockedBy is the distribution that an error of the resolver names.
func blockedBy(err error) string {
	var e *resolve.Error
	if errors.As(err, &e) {
		return e.Blocking.Name
	}
	return ""
}

// asking is one run of ask.
type asking struct {
	*solver
	config resolve.Config
}

// beside finds what is needed besides everything that is there.
func (a asking) beside(ctx context.Context) (solution, error) {
	r, cutoff, err := a.pipe(ctx, a.requested(nil), pins(a.h.packages()))
	if err != nil {
		return solution{}, err
	}
	return a.found(lock.X, a.requested(nil), r, cutoff, a.h.packages())
}

// instead finds what takes the place of all of the workspace's own layers.
func (a asking) instead(ctx context.Context) (solution, error) {
	specs := a.requested(a.h.asked())
	r, cutoff, err := a.pipe(ctx, specs, pins(a.h.under.Packages))
	if err != nil {
		return solution{}, err
	}
	return a.found(lock.X, specs, r, cutoff, a.h.under.Packages)
}

// maxRounds is how many pins of the base are let go, one after the other.
const maxRounds = 5

// isolated finds what takes the place of the base: all that the base is for and that was
// asked for, with as much of the base in its version as goes. The pins that are in the way
// are let go one by one, the first is that of the conflict.
func (a asking) isolated(ctx context.Context, conflict error) (sol solution, err error) {
	specs := a.requested(append(slices.Clone(a.h.under.Requested), a.h.asked()...))
	kept := pins(a.h.under.Packages)
	err = conflict
	for range maxRounds {
		name := blockedBy(err)
		if _, pinned := kept[name]; !pinned {
			return sol, err
		}
		delete(kept, name)
		r, cutoff, rerr := a.pipe(ctx, specs, kept)
		if rerr == nil {
			return a.found(lock.Iso, specs, r, cutoff, nil)
		}
		if err = rerr; !errors.Is(err, resolve.ErrConflictWithBase) {
			break
		}
	}
	return sol, err
}

// pipe runs the resolver. What is young only is looked at when nothing else will do.
func (a asking) pipe(ctx context.Context, specs []string, kept map[string]string) (r resolve.Resolution, cutoff time.Time, err error) {
	q := resolve.Request{Pins: kept, PinsOf: a.h.pinnedBy, Config: a.config}
	if q.Specs, err = requirements(specs); err != nil {
		return r, cutoff, err
	}
	if days := a.catalog.CooldownDays; days > 0 {
		q.Cutoff = a.e.now().Add(-time.Duration(days) * 24 * time.Hour).UTC().Truncate(time.Second)
	}
	r, err = a.pip.Resolve(ctx, q)
	if errors.Is(err, resolve.ErrCooldown) {
		q.Cutoff = time.Time{}
		r, err = a.pip.Resolve(ctx, q)
	}
	return r, q.Cutoff, err
}

// pins are the versions of packages.
func pins(list []lock.Package) map[string]string {
	m := make(map[string]string, len(list))
	for _, p := range list {
		m[p.Name] = p.Version
	}
	return m
}

// found makes a solution of what the resolver found, without what is there.
func (a asking) found(kind lock.Kind, specs []string, r resolve.Resolution, cutoff time.Time, there []lock.Package) (solution, error) {
	a.notes = append(a.notes, r.Notes...)
	r.Packages = slices.DeleteFunc(slices.Clone(r.Packages), func(p lock.Package) bool { return has(there, p.Name) })
	if len(r.Packages) == 0 {
		return solution{fit: nothing}, nil
	}
	l := a.lock(kind, specs, r, cutoff)
	var own []lock.Package
	for _, p := range a.withoutIndex() {
		if has(l.Packages, p.Name) {
			own = append(own, p)
		}
	}
	if err := insist(&l, own); err != nil {
		return solution{}, err
	}
	sol := solution{lock: l, fit: a.h.fits(l)}
	if sol.fit == stale { // pip and what the packages say of themselves are not of one mind
		return sol, &Error{Code: Code(resolve.ErrNoSolution), Sentence: "what the index offers for " + strings.Join(specs, ", ") + " does not go with what the workspace has", Hint: "ask for other versions"}
	}
	return sol, nil
}

func (s *solver) lock(kind lock.Kind, specs []string, r resolve.Resolution, cutoff time.Time) lock.Lock {
	l := lock.Lock{
		Schema: 1, Kind: kind, Python: pythonOf(s.h.it), Requested: specs, PolicyRev: s.catalog.Rev,
		Resolver: r.Resolver, Cutoff: cutoff, Packages: r.Packages,
	}
	if kind == lock.X {
		l.Base = s.h.base.ID
	}
	return l
}
