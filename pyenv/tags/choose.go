package tags

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

// The kinds of failure of Choose. Their text is a stable code.
var (
	ErrSdistOnly         = errors.New("sdist_only")          // there is source only, and building it would run it
	ErrNoCompatibleWheel = errors.New("no_compatible_wheel") // there are wheels, none for the target
	ErrNoVersion         = errors.New("no_solution")         // no version fulfils the conditions
)

// Choice is a wheel, and what was passed over for it.
type Choice struct {
	File
	Newest spec.Version // the newest version that was wanted, perhaps without a fitting wheel
}

// Note is a sentence when a newer version had to be passed over, "" if not.
func (c Choice) Note() string {
	if c.Newest.Equal(c.Version) {
		return ""
	}
	return fmt.Sprintf("the newest %s is %s, which has no wheel for this system; using %s", c.Name, c.Newest, c.Version)
}

// Choose picks the best file of a project: the newest version that is wanted and
// has a wheel for the target; of its wheels the best fitting one, of those the
// newest build. Pre-releases count only when the conditions name one, or when
// there is nothing else. Names that are neither wheels nor source archives of
// the project are passed over.
//
// Errors: ErrNoVersion, ErrSdistOnly, ErrNoCompatibleWheel with the tags that
// were seen and the target.
func (t Target) Choose(project string, files []string, want spec.Specifiers) (Choice, error) {
	project = spec.NormalizeName(project)
	found := list(project, files, want)
	if len(found) == 0 {
		return Choice{}, fmt.Errorf("%w: the index has no version of %s that fulfils %q", ErrNoVersion, project, want)
	}
	newest := found[0].version
	ranks := newRanks(t)
	for _, release := range found {
		if f, ok := best(ranks, release.wheels); ok {
			return Choice{File: f, Newest: newest}, nil
		}
	}
	return Choice{}, none(t, project, found)
}

// release is one version of a project.
type release struct {
	version spec.Version
	wheels  []File
}

// list is the versions that are wanted, newest first.
func list(project string, files []string, want spec.Specifiers) []release {
	var finals, pres []release
	for _, name := range files {
		f, isWheel, ok := parse(project, name)
		if !ok || !want.Match(f.Version) {
			continue
		}
		group := &finals
		if f.Version.IsPrerelease() && !want.Prereleases() {
			group = &pres
		}
		at := slices.IndexFunc(*group, func(r release) bool { return r.version.Equal(f.Version) })
		if at < 0 {
			at = len(*group)
			*group = append(*group, release{version: f.Version})
		}
		if isWheel {
			(*group)[at].wheels = append((*group)[at].wheels, f)
		}
	}
	if len(finals) == 0 {
		finals = pres
	}
	slices.SortStableFunc(finals, func(a, b release) int { return b.version.Compare(a.version) })
	return finals
}

// parse reads the name of a wheel, or of a source archive (of which only name
// and version are known).
func parse(project, name string) (f File, isWheel, ok bool) {
	if f, err := ParseFile(name); err == nil {
		return f, true, f.Name == project
	}
	for _, suffix := range []string{".tar.gz", ".zip", ".tar.bz2", ".tgz"} {
		stem, has := strings.CutSuffix(name, suffix)
		at := strings.LastIndexByte(stem, '-')
		if !has || at < 0 || spec.NormalizeName(stem[:at]) != project {
			continue
		}
		v, err := spec.ParseVersion(stem[at+1:])
		return File{FileName: name, Name: project, Version: v}, false, err == nil
	}
	return File{}, false, false
}

func best(r ranks, wheels []File) (File, bool) {
	var chosen File
	rank, ok := 0, false
	for _, f := range wheels {
		n, fits := r.of(f)
		if fits && (!ok || n < rank || n == rank && f.Build.Compare(chosen.Build) > 0) {
			chosen, rank, ok = f, n, true
		}
	}
	return chosen, ok
}

// none says why nothing fits: what the newest version with wheels has.
func none(t Target, project string, found []release) error {
	for _, r := range found {
		if len(r.wheels) > 0 {
			return fmt.Errorf("%w: %s %s has wheels for %s only; this system needs %s",
				ErrNoCompatibleWheel, project, r.version, tagList(r.wheels), t)
		}
	}
	return fmt.Errorf("%w: %s %s has source archives only, no wheel; building them would run their code",
		ErrSdistOnly, project, found[0].version)
}
