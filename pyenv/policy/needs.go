package policy

import (
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

// needs says who needs a package, by name.
type needs struct {
	asked map[string]bool
	by    map[string][]string // "name version" of who needs it, sorted
}

// maxSteps bounds the walk: requirements are texts of strangers, and extras can make
// them lead anywhere. What is not reached is told without who needs it.
const maxSteps = 200_000

// needsOf walks from what was asked for to all that it needs, through what is there.
func needsOf(in Input) needs {
	n := needs{asked: map[string]bool{}, by: map[string][]string{}}
	w := needsWalk{
		env:      spec.CPythonLinux(in.Lock.Python.Full, machine(in.Lock.Python.Platform)),
		packages: byName(slices.Concat(in.Base, in.Held, in.Lock.Packages)),
		parsed:   map[string][]spec.Requirement{}, seen: map[visit]bool{}, needs: &n, edges: map[[2]string]bool{},
	}
	for _, r := range in.Requested {
		n.asked[r.Name] = true
		w.push(r.Name, r.Extras)
	}
	for _, s := range in.Lock.Requested { // of an isolated layer: what is in the base's list, too
		if r, err := spec.ParseRequirement(s); err == nil {
			w.push(r.Name, r.Extras)
		}
	}
	for _, p := range in.Lock.Packages {
		if isUpload(p) {
			w.push(p.Name, nil)
		}
	}
	w.run()
	for name := range n.by {
		slices.Sort(n.by[name])
	}
	return n
}

// machine is the last part of "manylinux_2_36_x86_64".
func machine(platform string) string {
	for _, m := range []string{"x86_64", "aarch64"} {
		if strings.HasSuffix(platform, "_"+m) {
			return m
		}
	}
	return ""
}

// visit is a package with one of the extras that it is needed with, or none.
type visit struct{ name, extra string }

type needsWalk struct {
	env      spec.Environment
	packages map[string]lock.Package
	parsed   map[string][]spec.Requirement
	seen     map[visit]bool
	queue    []visit
	edges    map[[2]string]bool
	needs    *needs
}

func (w *needsWalk) push(name string, extras []string) {
	for _, extra := range append([]string{""}, extras...) {
		if v := (visit{name, extra}); !w.seen[v] {
			w.seen[v] = true
			w.queue = append(w.queue, v)
		}
	}
}

func (w *needsWalk) run() {
	for steps := 0; len(w.queue) > 0; {
		v := w.queue[0]
		w.queue = w.queue[1:]
		for _, r := range w.requirements(v.name) {
			if steps++; steps > maxSteps {
				return
			}
			if applies, err := r.Applies(w.env, []string{v.extra}); err != nil || !applies {
				continue
			}
			if edge := [2]string{v.name, r.Name}; !w.edges[edge] && v.name != r.Name {
				w.edges[edge] = true
				w.needs.by[r.Name] = append(w.needs.by[r.Name], label(w.packages[v.name]))
			}
			w.push(r.Name, r.Extras)
		}
	}
}

func (w *needsWalk) requirements(name string) []spec.Requirement {
	list, ok := w.parsed[name]
	if !ok {
		for _, s := range w.packages[name].Requires {
			if r, err := spec.ParseRequirement(s); err == nil {
				list = append(list, r)
			}
		}
		w.parsed[name] = list
	}
	return list
}

// clause is the end of a sentence about a package, "" if nothing is known.
func (n needs) clause(name string) string {
	by := n.by[name]
	switch {
	case n.asked[name]:
		return "; it was asked for"
	case len(by) == 1:
		return "; " + by[0] + " needs it"
	case len(by) > 1:
		return "; " + few(by, 3) + " need it"
	}
	return ""
}
