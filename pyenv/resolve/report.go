package resolve

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/tags"
)

// report is pip's installation report, version 1, as far as it is of interest.
type report struct {
	Version string `json:"version"`
	Install []item `json:"install"`
}

type item struct {
	Download struct {
		URL     string          `json:"url"`
		Archive json.RawMessage `json:"archive_info"`
	} `json:"download_info"`
	Direct   bool     `json:"is_direct"`
	Yanked   bool     `json:"is_yanked"`
	Metadata metadata `json:"metadata"`
}

type metadata struct {
	Name       string   `json:"name"`
	Version    string   `json:"version"`
	Requires   []string `json:"requires_dist"`
	License    string   `json:"license"`
	Expression string   `json:"license_expression"`
	Classifier []string `json:"classifier"`
}

// Limits of a report.
const (
	maxPackages = 500
	maxRequires = 2000 // of one distribution
)

// locked is a package with what is needed to judge it.
type locked struct {
	lock.Package
	local string // path in the jail, for a file of a directory of links
	needs []spec.Requirement
}

// accept reads a report and checks that it answers the request: nothing but wheels of
// an index that fit the interpreter, one of each, all that was asked for in versions
// that were asked for, and the pins as they were.
func (a *attempt) accept(ctx context.Context, b []byte) ([]lock.Package, error) {
	var r report
	if err := json.Unmarshal(b, &r); err != nil || r.Version != "1" || len(r.Install) == 0 || len(r.Install) > maxPackages {
		return nil, fail(ErrResolverFailed, "pip wrote a report that cannot be read, or of more than %d packages", maxPackages)
	}
	list := make([]locked, 0, len(r.Install))
	for _, it := range r.Install {
		if it.Direct {
			return nil, direct(spec.NormalizeName(it.Metadata.Name), r.Install)
		}
		l, err := a.read(it)
		if err != nil {
			return nil, err
		}
		list = append(list, l)
	}
	slices.SortFunc(list, func(x, y locked) int { return strings.Compare(x.Name, y.Name) })
	if err := a.checkAll(list); err != nil {
		return nil, err
	}
	if err := a.fill(ctx, list); err != nil {
		return nil, err
	}
	packages := make([]lock.Package, len(list))
	for i, l := range list {
		packages[i] = l.Package
	}
	return packages, nil
}

// direct names what comes by URL and who needs it.
func direct(name string, all []item) *Error {
	e := fail(ErrDirectURL, "a package is needed by a URL instead of from the index, which is not allowed: what is there is unknown, and may be source that runs when it is built")
	if !spec.ValidName(name) {
		return e
	}
	e.Blocking.Name = name
	e.Sentence = name + " is needed by a URL instead of from the index, which is not allowed"
	for _, it := range all {
		for _, text := range it.Metadata.Requires {
			if q, err := spec.ParseRequirement(text); err == nil && q.URL != "" && q.Name == name {
				if by := identity(it.Metadata.Name, it.Metadata.Version); by != "" {
					e.Blocking.NeededBy = by
					e.Sentence = by + " needs " + name + " by a URL instead of from the index, which is not allowed"
				}
			}
		}
	}
	return e
}

// identity is "name version", "" if they are none.
func identity(name, version string) string {
	v, err := spec.ParseVersion(version)
	if err != nil || !spec.ValidName(name) {
		return ""
	}
	return spec.NormalizeName(name) + " " + v.String()
}

// read takes one item of the report.
func (a *attempt) read(it item) (locked, error) {
	broken := func(what string) (locked, error) {
		name := "a package"
		if spec.ValidName(it.Metadata.Name) {
			name = spec.NormalizeName(it.Metadata.Name)
		}
		return locked{}, fail(ErrResolverFailed, "what the index has of %s cannot be used: %s", name, what)
	}
	u, err := url.Parse(it.Download.URL)
	if err != nil {
		return broken("its URL is none")
	}
	f, err := tags.ParseFile(path.Base(u.Path))
	switch {
	case strings.HasSuffix(u.Path, ".tar.gz") || strings.HasSuffix(u.Path, ".zip"):
		return locked{}, sdistOnly(spec.NormalizeName(it.Metadata.Name), "")
	case err != nil:
		return broken("its file does not have the name of a wheel")
	}
	if _, fits := a.pip.Python.Facts.Target.Fits(f); !fits {
		e := fail(ErrNoCompatibleWheel, "%s %s has a wheel for %s; this system needs %s", f.Name, f.Version, f.Tag, a.pip.Python.Facts.Target)
		e.Blocking = Blocking{Name: f.Name, Version: f.Version.String()}
		return locked{}, e
	}
	v, err := spec.ParseVersion(it.Metadata.Version)
	if err != nil || spec.NormalizeName(it.Metadata.Name) != f.Name || !v.Equal(f.Version) {
		return broken("its metadata contradicts the name of its file")
	}
	l := locked{Package: lock.Package{
		Name: f.Name, Version: f.Version.String(), File: f.FileName, SHA256: sha256Of(it.Download.Archive), License: it.Metadata.license(),
	}}
	if it.Yanked {
		l.Yanked = "yanked"
	}
	switch u.Scheme {
	case "http", "https":
		l.Index = line(u.Host, 100) // an index may have a secret anywhere else in its addresses
	case "file":
		if l.local = path.Clean(u.Path); !strings.HasPrefix(l.local, linksPath+"/") {
			return broken("it is a file outside of the configured directories")
		}
		l.Index = "find-links"
	default:
		return broken("it is neither on the web nor in a configured directory")
	}
	if l.SHA256 == "" && l.local == "" {
		return broken("the index does not tell its SHA-256")
	}
	return l, l.require(it.Metadata.Requires)
}

// require keeps what the package needs. A line that is no requirement would have
// stopped pip.
func (l *locked) require(texts []string) error {
	if len(texts) > maxRequires {
		return fail(ErrResolverFailed, "%s needs more than %d packages", l.Name, maxRequires)
	}
	for _, text := range texts {
		q, err := spec.ParseRequirement(text)
		if err != nil {
			return fail(ErrResolverFailed, "%s %s says that it needs what is no package", l.Name, l.Version)
		}
		l.needs = append(l.needs, q)
		l.Requires = append(l.Requires, line(text, 512))
	}
	return nil
}

// sha256Of is the hash of a report's archive_info, in either of its two forms.
func sha256Of(raw json.RawMessage) string {
	var info struct {
		Hash   string            `json:"hash"`
		Hashes map[string]string `json:"hashes"`
	}
	if json.Unmarshal(raw, &info) != nil {
		return ""
	}
	sum := info.Hashes["sha256"]
	if sum == "" {
		sum, _ = strings.CutPrefix(info.Hash, "sha256=")
	}
	if !isSHA256(sum) {
		return ""
	}
	return strings.ToLower(sum)
}

func isSHA256(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 32
}

// license is the short name that the metadata have, "" if there is none.
func (m metadata) license() string {
	const most = 80
	for _, text := range []string{m.Expression, m.License} {
		if text = line(text, 1000); text != "" && len(text) <= most && text != "UNKNOWN" {
			return text
		}
	}
	for _, c := range m.Classifier {
		if rest, ok := strings.CutPrefix(c, "License :: "); ok {
			parts := strings.Split(rest, " :: ")
			return line(parts[len(parts)-1], most)
		}
	}
	return ""
}

// checkAll compares the solution with the request.
func (a *attempt) checkAll(list []locked) error {
	versions := map[string]spec.Version{}
	for _, l := range list {
		if _, twice := versions[l.Name]; twice {
			return fail(ErrResolverFailed, "pip wants %s twice", l.Name)
		}
		versions[l.Name], _ = spec.ParseVersion(l.Version)
	}
	for _, s := range a.q.Specs {
		if v, ok := versions[s.Name]; !ok || !s.Specifiers.Match(v) {
			return fail(ErrResolverFailed, "pip has no solution for %s and did not say so", s)
		}
	}
	for name, pin := range a.q.Pins {
		want, _ := spec.ParseVersion(pin)
		if v, ok := versions[name]; ok && !v.Equal(want) {
			return fail(ErrResolverFailed, "pip chose %s %s although %s is pinned", name, v, pin)
		}
	}
	return nil
}
