package spec

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Specifiers are the conditions that a version must fulfil, all of them; the
// zero value has none.
type Specifiers struct{ clauses []clause }

// clause is one condition, such as ">=1.0".
type clause struct {
	op      string
	text    string  // the version as String writes it
	version Version // not for "==="
	prefix  bool    // "==1.*"
}

// maxClauses is the most conditions that one set may have.
const maxClauses = 64

// ParseSpecifiers reads conditions separated by commas, such as ">=1.0,<2". The
// empty text has none. Errors: ErrBadSpec.
func ParseSpecifiers(s string) (Specifiers, error) {
	var set Specifiers
	if strings.Trim(s, " \t") == "" {
		return set, nil
	}
	parts := strings.Split(s, ",")
	if len(parts) > 1 && strings.Trim(parts[len(parts)-1], " \t") == "" {
		parts = parts[:len(parts)-1] // one comma may trail
	}
	if len(parts) > maxClauses {
		return set, fmt.Errorf("%w: %d version conditions are over the limit of %d", ErrBadSpec, len(parts), maxClauses)
	}
	for _, part := range parts {
		c, err := parseClause(strings.Trim(part, " \t"))
		if err != nil {
			return Specifiers{}, err
		}
		set.clauses = append(set.clauses, c)
	}
	return set, nil
}

// clauseForm splits an operator from its version.
var clauseForm = regexp.MustCompile(`^(===|~=|==|!=|<=|>=|<|>)[ \t]*([^\s;)]+)$`)

func parseClause(s string) (clause, error) {
	m := clauseForm.FindStringSubmatch(s)
	if m == nil {
		return clause{}, fmt.Errorf("%w: %s is no version condition, such as >=1.0", ErrBadSpec, quote(s))
	}
	c := clause{op: m[1], text: m[2]}
	if c.op == "===" {
		if len(c.text) > maxVersion {
			return clause{}, fmt.Errorf("%w: the version after === is too long", ErrBadSpec)
		}
		return c, nil
	}
	equality := c.op == "==" || c.op == "!="
	text := c.text
	if equality {
		text, c.prefix = strings.CutSuffix(text, ".*")
	}
	v, err := ParseVersion(text)
	if err != nil {
		return clause{}, fmt.Errorf("%w: %s has no valid version", ErrBadSpec, quote(s))
	}
	_, numbers := v.release()
	switch {
	case c.prefix && !v.Equal(v.base()), c.prefix && v.String() != v.base().String():
		return clause{}, fmt.Errorf("%w: in %s the * may only follow release numbers", ErrBadSpec, quote(s))
	case !equality && v.v.Local() != "":
		return clause{}, fmt.Errorf("%w: in %s a local version goes with == and != only", ErrBadSpec, quote(s))
	case c.op == "~=" && len(numbers) < 2:
		return clause{}, fmt.Errorf("%w: in %s two release numbers are needed after ~=", ErrBadSpec, quote(s))
	}
	c.version, c.text = v, v.String()
	if c.prefix {
		c.text += ".*"
	}
	return c, nil
}

// Match says whether a version fulfils all conditions. It takes pre-releases
// like any other version; whether they are wanted is for the caller to say, see
// Prereleases.
func (s Specifiers) Match(v Version) bool {
	for _, c := range s.clauses {
		if !c.match(v) {
			return false
		}
	}
	return true
}

// Prereleases says whether a condition names a pre-release, which is how PEP
// 440 lets one ask for them.
func (s Specifiers) Prereleases() bool {
	for _, c := range s.clauses {
		switch c.op {
		case "===":
			if v, err := ParseVersion(c.text); err == nil && v.IsPrerelease() {
				return true
			}
		case "!=": // leaving one out asks for none
		default:
			if c.version.IsPrerelease() {
				return true
			}
		}
	}
	return false
}

// Exact is the version that the conditions pin with "==" or "===", if they do.
func (s Specifiers) Exact() (Version, bool) {
	for _, c := range s.clauses {
		if c.op == "===" || c.op == "==" && !c.prefix {
			v, err := ParseVersion(c.text)
			return v, err == nil
		}
	}
	return Version{}, false
}

// Empty says whether there are no conditions.
func (s Specifiers) Empty() bool { return len(s.clauses) == 0 }

// String is the normal form: conditions sorted and once each, joined by commas.
func (s Specifiers) String() string {
	texts := make([]string, len(s.clauses))
	for i, c := range s.clauses {
		texts[i] = c.op + c.text
	}
	slices.Sort(texts)
	return strings.Join(slices.Compact(texts), ",")
}

// match is written here because the library's own check of specifiers differs
// from PEP 440 where a prefix has an epoch or more numbers than the version.
func (c clause) match(v Version) bool {
	switch c.op {
	case "===":
		return strings.EqualFold(v.String(), c.text)
	case "==":
		return c.equal(v)
	case "!=":
		return !c.equal(v)
	case "~=":
		_, numbers := c.version.release()
		return c.ordered(">=", v) && hasPrefix(v, c.version, len(numbers)-1)
	default:
		return c.ordered(c.op, v)
	}
}

func (c clause) equal(v Version) bool {
	if c.prefix {
		_, numbers := c.version.release()
		return hasPrefix(v, c.version, len(numbers))
	}
	if c.version.v.Local() == "" {
		v = v.public()
	}
	return v.Equal(c.version)
}

// ordered is the comparisons by order. Exclusive ones are about releases: "<2"
// takes no pre-release of 2, ">2" no post-release and no local version of 2 (PEP
// 440, exclusive ordered comparison).
func (c clause) ordered(op string, v Version) bool {
	switch op {
	case ">=":
		return v.public().Compare(c.version) >= 0
	case "<=":
		return v.public().Compare(c.version) <= 0
	case "<":
		return v.Compare(c.version) < 0 && !v.precedes(c.version)
	default: // ">"
		return v.Compare(c.version) > 0 && !v.public().Equal(c.version) && !v.follows(c.version)
	}
}

// precedes says whether v is a pre-release of the release r.
func (v Version) precedes(r Version) bool {
	if r.IsPrerelease() || !v.IsPrerelease() {
		return false
	}
	if r.v.IsPostRelease() {
		return v.without(".dev").Equal(r)
	}
	return v.base().Equal(r.base())
}

// follows says whether v is a post-release of r.
func (v Version) follows(r Version) bool {
	return v.v.IsPostRelease() && v.without(".post").Equal(r)
}

// without is the public version up to a mark that the normal form has once.
func (v Version) without(mark string) Version {
	text, _, _ := strings.Cut(v.v.Public(), mark)
	return v.part(text)
}

// hasPrefix says whether v has the epoch and the first n release numbers of p.
func hasPrefix(v, p Version, n int) bool {
	epoch, have := v.release()
	wantEpoch, want := p.release()
	if epoch != wantEpoch {
		return false
	}
	for i := range n {
		number := "0"
		if i < len(have) {
			number = have[i]
		}
		if number != want[i] {
			return false
		}
	}
	return true
}
