package policy

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

// denied is the one rule for all packages of the lock, and for what is asked for: a
// name may have been denied since the workspace got it.
func (j *judgement) denied() {
	names := map[string]string{} // to how they are shown
	for _, r := range j.Requested {
		names[r.Name] = show(r.Name)
	}
	for _, p := range j.all {
		names[spec.NormalizeName(p.Name)] = label(p)
	}
	for _, name := range sortedKeys(names) {
		d, ok := j.Catalog.denied(name)
		if !ok {
			continue
		}
		sentence := names[name] + " is never installed here, the operator's catalog says"
		if reason := clean(d.Reason); reason != "" {
			sentence += ": " + quote(reason, maxReason)
		}
		j.find(DeniedName, name, Reject, sentence+j.needs.clause(name))
	}
}

// upload is about wheels that no index has, whoever made them.
func (j *judgement) upload() {
	found := false
	for _, p := range j.fresh {
		if isUpload(p) {
			found = true
			j.ask(Upload, p.Name, label(p)+" is a wheel of the workspace: no index knows it, and whoever can write there may have made it")
		}
	}
	if j.Upload && !found {
		j.ask(Upload, "", "a wheel of the workspace is part of this: no index knows it, and whoever can write there may have made it")
	}
}

// listed asks about what the catalog does not allow. A name of the base is a known one:
// that it comes in another version is for the rule override.
func (j *judgement) listed() {
	for _, p := range j.fresh {
		if _, ok := j.base[p.Name]; ok || isUpload(p) {
			continue
		}
		why := j.unlisted(p)
		if why == "" {
			continue
		}
		j.ask(NotListed, p.Name, why+j.needs.clause(p.Name))
		if near := j.near(p.Name); near != "" {
			j.ask(NearName, p.Name, near)
		}
	}
}

// unlisted says why the catalog does not allow a package, "" if it does.
func (j *judgement) unlisted(p lock.Package) string {
	e, ok := j.allow[p.Name]
	if !ok {
		return label(p) + " is not on the list of what is installed without asking"
	}
	v, err := spec.ParseVersion(p.Version)
	if err != nil {
		return label(p) + " does not have a version that can be compared with the list"
	}
	set, err := spec.ParseSpecifiers(e.Spec)
	switch {
	case err != nil || !set.Match(v):
		return fmt.Sprintf("%s is not among the versions that are installed without asking, %s", label(p), show(e.Name+e.Spec))
	case v.IsPrerelease() && !set.Prereleases():
		return label(p) + " is a pre-release, and the list is about releases"
	}
	return ""
}

// cooldown asks about what nobody has had the time to look at. A time that lies in the
// future is one, too: a clock is wrong, the index's or ours.
func (j *judgement) cooldown() {
	days := j.Catalog.CooldownDays
	if days <= 0 {
		return
	}
	for _, p := range j.fresh {
		age := j.Now.Sub(p.Uploaded)
		switch {
		case isUpload(p) || p.Index == imported:
		case p.Uploaded.IsZero():
			j.ask(Cooldown, p.Name, fmt.Sprintf("the index does not tell when %s was uploaded; the catalog asks for %s", label(p), count(days, "day")))
		case age < 0:
			j.ask(Cooldown, p.Name, label(p)+" is from the future by the clock of this host, so its age is not known")
		case int64(age/day) < int64(days):
			j.ask(Cooldown, p.Name, fmt.Sprintf("%s was uploaded %s ago; the catalog asks for %s", label(p), span(age), count(days, "day")))
		}
	}
}

func (j *judgement) yanked() {
	for _, p := range j.fresh {
		if p.Yanked == "" {
			continue
		}
		sentence := label(p) + " was withdrawn by its author (yanked)"
		if reason := clean(p.Yanked); reason != "" && reason != "yanked" {
			sentence += ": " + quote(reason, 300)
		}
		j.ask(Yanked, p.Name, sentence)
	}
}

// override asks about what the base has otherwise.
func (j *judgement) override() {
	for _, c := range j.changes() {
		what := fmt.Sprintf("%s of the base becomes %s", show(c.Name)+" "+show(c.From), show(c.To))
		if c.From == c.To {
			what = fmt.Sprintf("%s comes in another file than that of the base", show(c.Name)+" "+show(c.To))
		}
		j.ask(Override, c.Name, what+", so the workspace needs a layer of its own in the place of the base"+j.needs.clause(c.Name))
	}
}

// changes are the packages of the base that the lock has otherwise: those that the
// caller tells, and those that are seen, by name.
func (in Input) changes() []Change {
	found := map[string]Change{}
	for _, c := range in.Replaces {
		found[c.Name] = c
	}
	base := byName(in.Base)
	for _, p := range in.Lock.Packages {
		if b, ok := base[p.Name]; ok && !same(p, b) {
			found[p.Name] = Change{p.Name, b.Version, p.Version}
		}
	}
	var list []Change
	for _, name := range sortedKeys(found) {
		list = append(list, found[name])
	}
	return list
}

// startup tells the code itself: there is mostly one line of it.
func (j *judgement) startup() {
	tier := Ask
	if j.Catalog.StartupCode == StartupReject {
		tier = Reject
	}
	for _, p := range j.fresh {
		lines := j.Wheels[p.SHA256].Startup
		if len(lines) == 0 && !slices.Contains(p.Flags, StartupCode) {
			continue
		}
		sentence := label(p) + " has code that would run at every start of Python"
		if len(lines) > 0 {
			sentence += ": " + quote(lines[0], 160)
		}
		if len(lines) > 1 {
			sentence += fmt.Sprintf(" and %s", count(len(lines)-1, "more line"))
		}
		j.find(StartupCode, p.Name, tier, sentence)
	}
}

// origin is about where wheels come from.
func (j *judgement) origin() {
	if j.Indexes > 1 {
		j.ask(SeveralIndexes, "", fmt.Sprintf("%d indexes are configured: a package of one could take the place of another's, if they have the same name", j.Indexes))
	}
	if len(j.Catalog.IndexHosts) == 0 {
		return
	}
	for _, p := range j.fresh {
		switch host := strings.ToLower(p.Index); {
		case isUpload(p), host == imported, slices.Contains(j.Catalog.IndexHosts, host):
		case host == "":
			j.ask(IndexHost, p.Name, "it is not known from which host "+label(p)+" comes")
		default:
			j.ask(IndexHost, p.Name, label(p)+" comes from "+show(host)+", which is not among the hosts of the catalog")
		}
	}
}

// sizes are those that the index tells, or that the files have, whichever is larger.
func (j *judgement) sizes() {
	caps := j.Catalog.Caps
	for _, p := range j.fresh {
		if n := j.size(p); n > caps.WheelBytes {
			j.ask(SizeWheel, p.Name, fmt.Sprintf("%s is a wheel of %s; the limit for one is %s", label(p), megabytes(n), megabytes(caps.WheelBytes)))
		}
	}
	total, files := j.total(), 0
	for _, p := range j.fresh {
		files += len(j.Wheels[p.SHA256].Paths)
	}
	if total > caps.ClosureBytes {
		j.ask(SizeClosure, "", fmt.Sprintf("%s of %s have to be downloaded; the limit is %s", count(len(j.fresh), "wheel"), megabytes(total), megabytes(caps.ClosureBytes)))
	}
	if files > caps.Files {
		j.ask(SizeClosure, "", fmt.Sprintf("%d files are installed; the limit is %d", files, caps.Files))
	}
}

// size is 0 if it is not known.
func (j *judgement) size(p lock.Package) int64 { return max(p.Size, j.Wheels[p.SHA256].Size, 0) }

// total adds them up, and stops at the largest number.
func (j *judgement) total() int64 {
	var n int64
	for _, p := range j.fresh {
		n = saturate(n, j.size(p))
	}
	return n
}

func saturate(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}
