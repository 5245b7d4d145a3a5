package resolve

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// The sentences of pip that are understood. They are the same from 23.0 on, but for
// details that are left out here. Nothing of them is shown but parsed names, versions
// and requirements.
var (
	nothingFor = pattern(`(?m)^ERROR: Could not find a (?:final )?version that satisfies the requirement (.{1,500}?)(?: \(from (.{1,200}?)\))? \(from versions: `)
	noMatching = pattern(`(?m)^ERROR: No matching distribution found for (.{1,500})$`)
	dependsOn  = pattern(`(?m)^ {4}([A-Za-z0-9._-]{1,128}(?:\[[^\]\n]{0,200}\])?) (\S{1,128}) depends on (.{1,500})$`)
	askedFor   = pattern(`(?m)^ {4}The user requested (?:\((constraint)\) )?(.{1,500})$`)
	collecting = pattern(`(?m)^ *(?:Collecting|Processing|Obtaining) ([A-Za-z0-9._-]{1,128}) ?(?:\[[^\]\n]{0,200}\])?@ ?\S+(?: \(from ([A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?)[^)\n]{0,200}\))?`)
	needPython = pattern(`(?m)^ERROR: Package '([A-Za-z0-9._-]{1,128})' requires a different Python: \S{1,40} not in '([^'\n]{1,200})'`)
	mismatch   = pattern(`(?m)^ {4}([A-Za-z0-9._-]{1,128})(?:\[[^\]\n]{0,200}\])?[^:\n]{0,400}[:\n](?s:.{0,1000}?)Expected sha256`)
	brokeOff   = pattern(`(?m)^[A-Za-z0-9_.]{0,100}(?:requests|urllib3)\.exceptions\.`) // the end of a traceback
	httpError  = pattern(`(?:HTTP error |too many )(\d{3})\b`)
)

// pattern is a regular expression that is compiled when it is first needed: with their
// bounds these take 8 ms, which the start of a process that resolves nothing is
// spared.
func pattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// explain says why pip has failed.
func (a *attempt) explain(ctx context.Context, res sandboxrun.JailResult) error {
	out := clean(string(res.Stdout.Text))
	said := clean(string(res.Stderr.Text))
	// By URL: pip would have built it, had it been able to.
	if m := collecting().FindStringSubmatch(out); m != nil {
		return a.byURL(m[1], m[2])
	}
	if strings.Contains(said, "DO NOT MATCH THE HASHES") {
		return hashMismatch(said)
	}
	if strings.Contains(said, "have conflicting dependencies") {
		return a.conflict(out + "\n" + said)
	}
	if m := needPython().FindStringSubmatch(said); m != nil {
		return a.otherPython(m[1], m[2])
	}
	if m := nothingFor().FindStringSubmatch(said); m != nil {
		return a.nothing(ctx, m[1], m[2], out, said)
	}
	if m := noMatching().FindStringSubmatch(said); m != nil {
		return a.nothing(ctx, m[1], "", out, said)
	}
	if strings.Contains(said, "resolution-too-deep") || strings.Contains(said, "ResolutionTooDeep") {
		return fail(ErrNoSolution, "pip gave up: there are too many combinations of versions to try; ask for narrower versions")
	}
	return a.notAnswered(ctx, said, out)
}

// byURL is a direct reference that pip wanted to follow.
func (a *attempt) byURL(name, by string) *Error {
	e := direct(spec.NormalizeName(name), nil)
	if spec.ValidName(by) {
		e.Blocking.NeededBy = spec.NormalizeName(by)
		e.Sentence = e.Blocking.NeededBy + " needs " + e.Blocking.Name + " by a URL instead of from the index, which is not allowed"
	}
	return e
}

// nothing: pip knows no file of a project that would do.
func (a *attempt) nothing(ctx context.Context, requirement, by, out, said string) error {
	q, err := spec.ParseRequirement(strings.TrimSpace(requirement))
	switch {
	case err != nil:
		return fail(ErrNoSolution, "no version of a package that is needed can be used here")
	case q.URL != "":
		return a.byURL(q.Name, by)
	case strings.Contains(said, "is not a trusted or secure host"):
		if e := insecure(a.q.Config); e != nil {
			return e
		}
	}
	found, err := a.pip.ask(ctx, a.q.Config, []string{q.Name}, nil)
	if err != nil {
		return err
	}
	q.Marker = spec.Marker{}
	return a.judge(q.Name, q, a.whole(by, out), found.Projects[q.Name])
}

// insecure names an index that pip does not use: http, and nobody has said that this will do.
func insecure(c Config) *Error {
	for _, raw := range append([]string{c.IndexURL}, c.ExtraIndexURLs...) {
		if strings.HasPrefix(raw, "http://") {
			e := fail(ErrBadConfig, "pip does not use the package index %s: its URL is http, and it is not in trusted-host", hostOf(raw))
			e.Suggestions = []string{"Ask the operator to use https, or to add the host to trusted-host in the pip configuration."}
			return e
		}
	}
	return nil
}

// whole adds the version to the name of who needs something, where pip has said
// which one it took.
func (a *attempt) whole(by, out string) string {
	name, _, _ := strings.Cut(by, "==")
	name, _, _ = strings.Cut(name, "->")
	name = spec.NormalizeName(strings.TrimSpace(name))
	if !spec.ValidName(name) {
		return ""
	}
	version := ""
	for _, m := range regexp.MustCompile(`(?m)^ *(?:Downloading|Using cached|Obtaining dependency information for|Processing|Link requires) .*?([A-Za-z0-9._]+)-([0-9][A-Za-z0-9.!+_]*)-[^/\s]*\.whl`).FindAllStringSubmatch(out, 10_000) {
		if spec.NormalizeName(m[1]) == name {
			if id := identity(m[1], m[2]); id != "" {
				version = id
			}
		}
	}
	return or(version, name)
}

func (a *attempt) otherPython(name, needs string) *Error {
	set, err := spec.ParseSpecifiers(needs)
	if err != nil {
		return fail(ErrNoSolution, "%s needs another Python than %s", spec.NormalizeName(name), a.pip.Python.Facts.Full)
	}
	e := fail(ErrNoSolution, "%s needs Python %s; this environment has %s", spec.NormalizeName(name), set, a.pip.Python.Facts.Full)
	e.Blocking.Name = spec.NormalizeName(name)
	return e
}

// cause is one line of a conflict.
type cause struct {
	by    string // "name version"; "" = it was asked for
	wants spec.Requirement
}

// conflict reads what pip says of a conflict. The pins that cannot be kept come first:
// without them there may be a solution.
func (a *attempt) conflict(text string) *Error {
	var causes []cause
	for _, m := range dependsOn().FindAllStringSubmatch(text, 200) {
		name, _, _ := strings.Cut(m[1], "[")
		if q, err := spec.ParseRequirement(m[3]); err == nil {
			causes = append(causes, cause{identity(name, m[2]), q})
		}
	}
	for _, m := range askedFor().FindAllStringSubmatch(text, 200) {
		if q, err := spec.ParseRequirement(m[2]); err == nil && m[1] == "" {
			causes = append(causes, cause{"", q})
		}
	}
	for _, c := range causes {
		if pin, pinned := a.q.Pins[c.wants.Name]; pinned {
			if v, err := spec.ParseVersion(pin); err == nil && !c.wants.Specifiers.Match(v) {
				return a.pinned(c, pin)
			}
		}
	}
	return opposed(causes)
}

func (a *attempt) pinned(c cause, pin string) *Error {
	owner := "base"
	if a.q.PinsOf != nil {
		owner = a.q.PinsOf(c.wants.Name)
	}
	e := fail(ErrConflictWithBase, "%s; %s has %s %s", c, owner, c.wants.Name, pin)
	e.Blocking = Blocking{Name: c.wants.Name, Version: pin, PinnedBy: owner, NeededBy: c.by, Wanted: c.wants.String()}
	e.Suggestions = []string{"Ask for a version that works with " + c.wants.Name + " " + pin + ".", "An environment of its own (isolated) may have another version; a person decides that."}
	return e
}

// String is "foo 1.0 needs bar>=2".
func (c cause) String() string {
	q := c.wants
	q.URL, q.Marker = "", spec.Marker{}
	if c.by == "" {
		return q.String() + " was asked for"
	}
	return c.by + " needs " + q.String()
}

// opposed tells the first few lines of a conflict without pins.
func opposed(causes []cause) *Error {
	const most = 4
	var texts []string
	for _, c := range causes {
		texts = append(texts, c.String())
	}
	slices.Sort(texts)
	texts = slices.Compact(texts)
	if len(texts) == 0 {
		return fail(ErrNoSolution, "the packages that were asked for need versions of others that exclude each other")
	}
	e := fail(ErrNoSolution, "what is needed excludes each other: %s", strings.Join(texts[:min(most, len(texts))], "; "))
	e.Blocking = Blocking{Name: causes[0].wants.Name, NeededBy: causes[0].by, Wanted: causes[0].wants.String()}
	return e
}

// hashMismatch names the package whose bytes are others.
func hashMismatch(said string) *Error {
	e := fail(ErrHashMismatch, "the index sent a file whose SHA-256 is not the one that it should be; nothing of it was kept")
	if m := mismatch().FindStringSubmatch(said); m != nil {
		name := spec.NormalizeName(m[1])
		e.Sentence = "the index sent a file of " + name + " whose SHA-256 is not the one that it should be; nothing of it was kept"
		e.Blocking.Name = name
	}
	e.Suggestions = []string{"Tell the operator: the file on the index was changed, or something on the way changes it."}
	return e
}

// network are words of failures on the way to an index, in pip's texts and in the
// names of its exceptions.
var network = []string{"connection", "Connection", "timed out", "Timeout", "HTTP error", "Client Error", "Server Error", "SSL", "certificate",
	"Max retries", "IncompleteRead", "Incomplete", "ProtocolError", "urllib3", "requests.exceptions", "Proxy", "proxy", "SOCKS", "content-encoding", "redirects", "Traceback"}

// collected is what pip has begun to look for.
var collected = pattern(`(?m)^ *Collecting ([A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?)`)

// notAnswered: pip has failed by an error of the network, or at an answer that it could
// not read, or in a way that is not known. The indexes are asked once more for what it
// looked for, since they can tell it best.
func (a *attempt) notAnswered(ctx context.Context, said, out string) error {
	if !slices.ContainsFunc(network, func(w string) bool { return strings.Contains(said, w) }) {
		return fail(ErrResolverFailed, "pip failed in a way that is not known here")
	}
	var names []string
	for _, s := range a.q.Specs {
		names = append(names, s.Name)
	}
	for _, m := range collected().FindAllStringSubmatch(out, 200) {
		names = append(names, spec.NormalizeName(m[1]))
	}
	slices.Sort(names)
	return a.pip.whyNot(ctx, a.q.Config, slices.Compact(names), said)
}

// whyNot asks the sources for projects after pip has failed on the way to them.
func (p *Pip) whyNot(ctx context.Context, c Config, names []string, said string) error {
	found, err := p.ask(ctx, c, names, nil)
	if err != nil {
		return err
	}
	for _, name := range names {
		if e := unreachable(name, found.Projects[name]); e != nil {
			return e
		}
	}
	if strings.Contains(said, "Traceback") && !brokeOff().MatchString(said) {
		return fail(ErrResolverFailed, "pip broke down, although the package index answers")
	}
	return undelivered(said, c)
}

// undelivered: the index answers, and does not deliver a file that it lists.
func undelivered(said string, c Config) *Error {
	host := "the package index"
	switch {
	case c.NoIndex:
		host = "a page of the pip setting find-links"
	case c.IndexURL != "":
		host += " " + hostOf(c.IndexURL)
	}
	e := fail(ErrIndexUnreachable, "%s did not deliver a file that it lists", host)
	m := httpError().FindStringSubmatch(said)
	switch {
	case m != nil && (m[1] == "401" || m[1] == "403"):
		e.Sentence = host + " refused access to a file (HTTP " + m[1] + "): credentials are missing in the pip configuration, or are wrong"
	case m != nil:
		e.Sentence += " (HTTP " + m[1] + ")"
	case strings.Contains(said, "timed out") || strings.Contains(said, "Timeout"):
		e.Sentence += ": it was too slow"
	case strings.Contains(said, "ncomplete") || strings.Contains(said, "ProtocolError"):
		e.Sentence += ": it broke off"
	}
	e.Suggestions = []string{"Try again later."}
	return e
}
