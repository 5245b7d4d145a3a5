package policy

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
)

// collision asks about two packages of one module, of which one would hide the other.
// Within a layer directories are joined, so there it is a file that both have; between
// layers it is a name that one of them has as a package (PEP 420). Package store refuses
// to build either; this is so that a person hears of it before.
func (j *judgement) collision() {
	own := j.all
	if j.Lock.Kind != lock.Iso { // else there is nothing but the lock
		own = j.fresh
		j.collideWith(j.Base, "the base", own)
		j.collideWith(j.Held, "the workspace", own)
	}
	j.collideWithin(own)
}

// collideWith compares with what is mounted beside the new layer.
func (j *judgement) collideWith(there []lock.Package, of string, own []lock.Package) {
	type owner struct {
		lock.Package
		whole bool
	}
	owners := map[string][]owner{}
	for _, p := range there {
		for _, top := range j.tops(p) {
			owners[top.Name] = append(owners[top.Name], owner{p, top.Package})
		}
	}
	for _, p := range own {
		told := map[string]bool{}
		for _, top := range j.tops(p) {
			for _, o := range owners[top.Name] {
				if o.Name == p.Name || !top.Package && !o.whole || told[o.Name] {
					continue
				}
				told[o.Name] = true
				j.collides(p, fmt.Sprintf("%s of %s", label(o.Package), of), "module "+quote(top.Name, 80))
			}
		}
	}
}

// collideWithin compares the wheels of a layer with each other.
func (j *judgement) collideWithin(own []lock.Package) {
	owners := map[string]lock.Package{}
	for _, p := range own {
		told := map[string]bool{}
		for _, path := range j.Wheels[p.SHA256].Paths {
			o, taken := owners[path]
			if !taken {
				owners[path] = p
			} else if o.Name != p.Name && !told[o.Name] {
				told[o.Name] = true
				j.collides(p, label(o), "file "+quote(path, 120))
			}
		}
	}
}

func (j *judgement) collides(p lock.Package, other, what string) {
	j.ask(ImportCollision, p.Name, fmt.Sprintf("%s brings the %s, and so does %s: one of them would be hidden", label(p), what, other))
}

// tops are those of the wheel, or else of the lock, which does not tell whether they are
// packages.
func (j *judgement) tops(p lock.Package) []Top {
	list := slices.Clone(j.Wheels[p.SHA256].Tops)
	if list == nil {
		for _, name := range p.Tops {
			list = append(list, Top{name, true})
		}
	}
	slices.SortFunc(list, func(a, b Top) int { return cmp.Compare(a.Name, b.Name) })
	return list
}
