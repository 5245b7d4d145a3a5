package spec

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of what is asked for, and of one line of a wheel's metadata.
const (
	MaxRequest     = 200  // bytes of one requested package
	MaxRequests    = 20   // packages of one request
	maxRequirement = 8192 // bytes of one Requires-Dist line
)

// Requirement is one thing that is needed: a project, perhaps some of its
// extras, and the versions that do.
type Requirement struct {
	Name       string   // normalised, see NormalizeName
	Extras     []string // normalised, sorted, once each
	Specifiers Specifiers
	Marker     Marker // when it is needed; always, for the zero value
	URL        string // direct reference, "" for none; never followed here
}

// ParseRequest reads a package that somebody asks for: a name, extras in
// brackets, version conditions. "Pandas[excel] >=2, <3" is
// "pandas[excel]<3,>=2".
//
// Errors: ErrBadSpec for everything else, among it URLs, paths, options,
// markers, text over 200 bytes and text that is not printable ASCII.
func ParseRequest(s string) (Requirement, error) {
	if err := checkRequest(s); err != nil {
		return Requirement{}, err
	}
	r, err := ParseRequirement(s)
	switch {
	case err != nil:
		return Requirement{}, err
	case r.URL != "":
		return Requirement{}, refuse(s, "names a URL; ask for a package of the index by its name")
	case !r.Marker.IsZero():
		return Requirement{}, refuse(s, "has a marker after \";\"; ask for the package alone")
	}
	return r, nil
}

// checkRequest finds out what is not a package at all, to say so in words that
// help.
func checkRequest(s string) error {
	trimmed := strings.TrimSpace(s)
	switch {
	case trimmed == "":
		return refuse(s, "is empty")
	case len(s) > MaxRequest:
		return refuse(s, fmt.Sprintf("has %d bytes; the limit is %d", len(s), MaxRequest))
	case !utf8.ValidString(s), strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII || unicode.IsControl(r) && r != '\t' }):
		return refuse(s, "has a character that is not printable ASCII")
	case trimmed[0] == '-' || strings.Contains(s, " --"):
		return refuse(s, "has an option; only names, extras and versions are taken")
	case strings.Contains(s, "://") || strings.Contains(s, "@"):
		return refuse(s, "names a URL; ask for a package of the index by its name")
	case strings.ContainsAny(s, `/\`), strings.HasSuffix(strings.ToLower(trimmed), ".whl"):
		return refuse(s, "is a path; give a wheel of the workspace as `wheel`")
	case strings.Contains(s, ";"):
		return refuse(s, "has a marker after \";\"; ask for the package alone")
	}
	return nil
}

func refuse(s, why string) error { return fmt.Errorf("%w: %s %s", ErrBadSpec, quote(s), why) }

// ParseRequests reads what one request asks for, and returns it sorted and once
// each, so that the same wish has the same form however it was written.
// Errors: ErrBadSpec, also for none and for more than 20.
func ParseRequests(list []string) ([]Requirement, error) {
	switch {
	case len(list) == 0:
		return nil, fmt.Errorf("%w: no package is named", ErrBadSpec)
	case len(list) > MaxRequests:
		return nil, fmt.Errorf("%w: %d packages are over the limit of %d in one request", ErrBadSpec, len(list), MaxRequests)
	}
	out := make([]Requirement, 0, len(list))
	for _, s := range list {
		r, err := ParseRequest(s)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Requirement) int { return strings.Compare(a.String(), b.String()) })
	return slices.CompactFunc(out, func(a, b Requirement) bool { return a.String() == b.String() }), nil
}

// nameForm is the name at the start of a requirement.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?`)

// ParseRequirement reads a requirement as PEP 508 has it, up to 8,192 bytes.
// Errors: ErrBadSpec.
func ParseRequirement(s string) (Requirement, error) {
	if len(s) > maxRequirement {
		return Requirement{}, fmt.Errorf("%w: a requirement of %d bytes is over the limit of %d", ErrBadSpec, len(s), maxRequirement)
	}
	rest := strings.Trim(s, " \t")
	name := nameForm.FindString(rest)
	if !ValidName(name) {
		return Requirement{}, refuse(s, "does not begin with the name of a package")
	}
	r := Requirement{Name: NormalizeName(name)}
	rest = skipBlank(rest[len(name):])
	var err error
	if r.Extras, rest, err = cutExtras(s, rest); err != nil {
		return Requirement{}, err
	}
	if url, ok := strings.CutPrefix(rest, "@"); ok {
		return r.withURL(s, skipBlank(url))
	}
	conditions, marker, hasMarker := strings.Cut(rest, ";")
	if r.Specifiers, err = parseConditions(s, conditions); err != nil {
		return Requirement{}, err
	}
	return r.withMarker(s, marker, hasMarker)
}

// cutExtras takes "[a,b]" off the front.
func cutExtras(whole, rest string) ([]string, string, error) {
	inner, ok := strings.CutPrefix(rest, "[")
	if !ok {
		return nil, rest, nil
	}
	list, rest, ok := strings.Cut(inner, "]")
	if !ok {
		return nil, "", refuse(whole, "has a \"[\" without its \"]\"")
	}
	var extras []string
	for extra := range strings.SplitSeq(list, ",") {
		extra = strings.Trim(extra, " \t")
		if extra == "" && strings.Trim(list, " \t") == "" {
			break // "[]" is allowed
		}
		if !ValidName(extra) {
			return nil, "", refuse(whole, "has an invalid name between \"[\" and \"]\"")
		}
		extras = append(extras, NormalizeName(extra))
	}
	slices.Sort(extras)
	return slices.Compact(extras), skipBlank(rest), nil
}

// parseConditions reads version conditions, with or without parentheses.
func parseConditions(whole, s string) (Specifiers, error) {
	s = strings.Trim(s, " \t")
	if inner, ok := strings.CutPrefix(s, "("); ok {
		if inner, ok = strings.CutSuffix(inner, ")"); !ok {
			return Specifiers{}, refuse(whole, "has a \"(\" without its \")\"")
		}
		s = strings.Trim(inner, " \t")
	}
	set, err := ParseSpecifiers(s)
	if err != nil {
		return Specifiers{}, err
	}
	return set, nil
}

// withURL reads the URL of a direct reference. A marker follows after a blank,
// for ";" is a character of URLs.
func (r Requirement) withURL(whole, s string) (Requirement, error) {
	end := strings.IndexAny(s, " \t")
	if end < 0 {
		end = len(s)
	}
	if r.URL = s[:end]; r.URL == "" {
		return Requirement{}, refuse(whole, "has no URL after \"@\"")
	}
	rest := skipBlank(s[end:])
	marker, hasMarker := strings.CutPrefix(rest, ";")
	if rest != "" && !hasMarker {
		return Requirement{}, refuse(whole, "goes on after its URL")
	}
	return r.withMarker(whole, marker, hasMarker)
}

func (r Requirement) withMarker(whole, s string, has bool) (Requirement, error) {
	if !has {
		return r, nil
	}
	m, err := ParseMarker(s)
	if err != nil {
		return Requirement{}, refuse(whole, "has a marker that cannot be read")
	}
	r.Marker = m
	return r, nil
}

// String is the normal form without marker: the same for all ways to write the
// same requirement.
func (r Requirement) String() string {
	s := r.Name
	if len(r.Extras) > 0 {
		s += "[" + strings.Join(r.Extras, ",") + "]"
	}
	if r.URL != "" {
		return s + " @ " + r.URL
	}
	return s + r.Specifiers.String()
}

// Applies says whether the requirement holds in env for a project that was asked
// for with these extras. Errors: ErrMarker.
func (r Requirement) Applies(env Environment, extras []string) (bool, error) {
	return r.Marker.Eval(env, extras)
}

func skipBlank(s string) string { return strings.TrimLeft(s, " \t") }
