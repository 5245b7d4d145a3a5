package resolve

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/tags"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// answers are what the indexes say of some projects.
type answers struct {
	Projects map[string][]source `json:"projects"`
	Hashes   map[string]string   `json:"hashes"` // of files in directories of links, by path in the jail
}

// source is what one index or page of links says of a project.
type source struct {
	Host   string   `json:"host"`
	Status int      `json:"status"` // of HTTP; 0 = there was no answer
	Error  string   `json:"error"`  // names of exceptions of Python
	Files  []listed `json:"files"`
}

// listed is a file that a source has.
type listed struct {
	Name     string
	Size     int64     // 0 = not told
	Uploaded time.Time // zero = not told
	Yanked   string    // "" = it is not
	Python   string    // requires-python
}

// UnmarshalJSON reads the row that ask.py writes.
func (l *listed) UnmarshalJSON(b []byte) error {
	var uploaded string
	row := []any{&l.Name, &l.Size, &uploaded, &l.Yanked, &l.Python}
	if err := json.Unmarshal(b, &row); err != nil {
		return err
	}
	if l.Size < 0 {
		l.Size = 0
	}
	if t, err := time.Parse(time.RFC3339, uploaded); err == nil {
		l.Uploaded = t.UTC().Truncate(time.Second)
	}
	l.Yanked = line(l.Yanked, 300)
	return nil
}

// askTime bounds what is asked besides: pip has just had answers, or has just waited.
const askTime = 60 * time.Second

// ask asks all sources for the files of some projects, and for the hashes of files in
// directories of links.
func (p *Pip) ask(ctx context.Context, c Config, names, files []string) (answers, error) {
	question, err := json.Marshal(map[string][]string{"names": nonNil(names), "files": nonNil(files)})
	if err != nil {
		return answers{}, err
	}
	var out []byte
	once := 0
	c.Retries = &once
	if c.Timeout == 0 || c.Timeout > 20 {
		c.Timeout = 20
	}
	res, err := p.run(ctx, job{
		script: askPath, args: []string{"--no-input", "--no-cache-dir", "pip"}, config: c, timeout: askTime, space: maxReport,
		data: []sandboxrun.Data{{Path: "/run/vdisk/ask.json", Bytes: question}}, out: keep("answers.json", &out),
	})
	if err != nil {
		return answers{}, err
	}
	var a answers
	if res.Outcome != sandboxrun.Exited || res.ExitCode != 0 || json.Unmarshal(out, &a) != nil {
		e := fail(ErrIndexUnreachable, "the package index was asked for the files of %s and did not answer as an index does", listNames(names))
		e.Detail = c.tail(res.Stderr.Text)
		return answers{}, e
	}
	return a, nil
}

func nonNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// listNames shows at most 3 names.
func listNames(names []string) string {
	if len(names) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), len(names)-3)
	}
	return strings.Join(names, ", ")
}

// fill adds what the report lacks: sizes, times, reasons, hashes of local files, and
// notes about what was passed over. Only a missing hash is a failure.
func (a *attempt) fill(ctx context.Context, list []locked) error {
	var names, files []string
	for _, l := range list {
		names = append(names, l.Name)
		if l.local != "" && l.SHA256 == "" {
			files = append(files, l.local)
		}
	}
	found, err := a.pip.ask(ctx, a.q.Config, names, files)
	if err != nil && (ctx.Err() != nil || len(files) > 0) {
		return err
	}
	if err != nil {
		a.note("The index did not tell the sizes and times of the files.")
		return nil
	}
	for i := range list {
		l := &list[i]
		if sum := found.Hashes[l.local]; l.SHA256 == "" && isSHA256(sum) {
			l.SHA256 = sum
		}
		if l.SHA256 == "" {
			return fail(ErrResolverFailed, "the SHA-256 of %s is not known", l.File)
		}
		a.about(&l.Package, found.Projects[l.Name])
		a.passedOver(*l, list, found.Projects[l.Name])
	}
	return nil
}

// about adds what the sources say of the chosen file.
func (a *attempt) about(p *lock.Package, sources []source) {
	for _, s := range sources {
		at := slices.IndexFunc(s.Files, func(f listed) bool { return f.Name == p.File })
		if at < 0 {
			continue
		}
		f := s.Files[at]
		p.Size, p.Uploaded = f.Size, f.Uploaded
		if s.Host != "" {
			p.Index = line(s.Host, 100)
		}
		if f.Yanked != "" {
			p.Yanked = f.Yanked
		}
		return
	}
}

// passedOver notes that a newer version than the chosen one would do, but for its
// wheels or its age.
func (a *attempt) passedOver(l locked, list []locked, sources []source) {
	version, err := spec.ParseVersion(l.Version)
	want, ok := wanted(l.Name, a, list)
	if err != nil || !ok {
		return
	}
	var old, all []string
	times := map[string]time.Time{}
	for _, f := range a.usable(sources) {
		all = append(all, f.Name)
		times[f.Name] = f.Uploaded
		if !a.young(f) {
			old = append(old, f.Name)
		}
	}
	target := a.pip.Python.Facts.Target
	if c, err := target.Choose(l.Name, all, want); err == nil && c.Version.Compare(version) > 0 && !a.q.Cutoff.IsZero() {
		a.note("%s %s was passed over: it was uploaded on %s, which is too new; using %s.", l.Name, c.Version, times[c.FileName].Format(time.DateOnly), version)
	}
	if c, err := target.Choose(l.Name, old, want); err == nil && c.Version.Equal(version) && c.Note() != "" {
		a.note("%s.", upper(c.Note()))
		return
	}
	var others []string
	for _, s := range sources {
		for _, f := range s.Files {
			if f.Yanked == "" && !a.young(f) {
				others = append(others, f.Name)
			}
		}
	}
	// For another Python there may be a wheel; how new it is says the newest file.
	if c, err := target.Choose(l.Name, others, want); err == nil && c.Newest.Compare(version) > 0 {
		a.note("The newest %s is %s, which needs another Python than %s; using %s.", l.Name, c.Newest, a.pip.Python.Facts.Full, version)
	}
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// young says whether a file is too new.
func (a *attempt) young(f listed) bool {
	return !a.q.Cutoff.IsZero() && !f.Uploaded.IsZero() && !f.Uploaded.Before(a.q.Cutoff)
}

// usable are the files that are not yanked and take this Python.
func (a *attempt) usable(sources []source) []listed {
	var list []listed
	full, err := spec.ParseVersion(a.pip.Python.Facts.Full)
	for _, s := range sources {
		for _, f := range s.Files {
			needs, perr := spec.ParseSpecifiers(f.Python)
			if f.Yanked == "" && (err != nil || perr != nil || needs.Match(full)) {
				list = append(list, f)
			}
		}
	}
	return list
}

// wanted is all that the request, the pins and the chosen packages ask of a project.
func wanted(name string, a *attempt, list []locked) (spec.Specifiers, bool) {
	var texts []string
	for _, s := range a.q.Specs {
		if s.Name == name {
			texts = append(texts, s.Specifiers.String())
		}
	}
	if pin, ok := a.q.Pins[name]; ok {
		texts = append(texts, "=="+pin)
	}
	env := spec.CPythonLinux(a.pip.Python.Facts.Full, a.pip.Python.Facts.Target.Arch)
	for _, l := range list {
		for _, q := range l.needs {
			if applies, err := q.Applies(env, nil); q.Name == name && err == nil && applies {
				texts = append(texts, q.Specifiers.String())
			}
		}
	}
	texts = slices.DeleteFunc(texts, func(s string) bool { return s == "" })
	slices.Sort(texts)
	set, err := spec.ParseSpecifiers(strings.Join(slices.Compact(texts), ","))
	return set, err == nil
}

// judge says why a project that pip found nothing of cannot be had: its sources do
// not answer, or do not know it, or have no file of it that will do.
func (a *attempt) judge(name string, q spec.Requirement, by string, sources []source) *Error {
	if e := unreachable(name, sources); e != nil {
		return e
	}
	e := a.noFile(name, q, sources)
	e.Blocking = Blocking{Name: name, NeededBy: by, Wanted: q.String()}
	if by != "" {
		e.Sentence += "; " + by + " needs it"
	}
	return e
}

func (a *attempt) noFile(name string, q spec.Requirement, sources []source) *Error {
	var all, usable, old []string
	for _, s := range sources {
		for _, f := range s.Files {
			all = append(all, f.Name)
		}
	}
	for _, f := range a.usable(sources) {
		usable = append(usable, f.Name)
		if !a.young(f) {
			old = append(old, f.Name)
		}
	}
	if len(all) == 0 {
		return a.unknown(name, sources)
	}
	target := a.pip.Python.Facts.Target
	if _, err := target.Choose(name, usable, q.Specifiers); err == nil {
		if _, err := target.Choose(name, old, q.Specifiers); err != nil && !a.q.Cutoff.IsZero() {
			return fail(ErrCooldown, "every version of %s that would do was uploaded on or after %s, which is too new", q, a.q.Cutoff.Format(time.DateOnly))
		}
		return fail(ErrNoSolution, "pip found no version of %s that it can use, although the index has one", q)
	} else if e := fromChoose(err); e.Code != ErrNoSolution {
		return e
	}
	// No version: perhaps only for this Python, or only yanked ones.
	if _, err := target.Choose(name, all, q.Specifiers); err == nil || fromChoose(err).Code != ErrNoSolution {
		return fail(ErrNoSolution, "every version of %s was withdrawn (yanked) or needs another Python than %s", q, a.pip.Python.Facts.Full)
	}
	return fail(ErrNoSolution, "the index has no version of %s", q)
}

// unknown is the error for a project of which no source has a file.
func (a *attempt) unknown(name string, sources []source) *Error {
	e := notFound(name, sources)
	if !a.q.Sure {
		e.Suggestions = []string{"Check the name: the name of a package often differs from what is imported."}
	}
	return e
}

// notFound says which sources do not have a project, by their hosts, and where else
// they may have been looked for.
func notFound(name string, sources []source) *Error {
	var hosts []string
	for _, s := range sources {
		if s.Host != "" && !slices.Contains(hosts, s.Host) {
			hosts = append(hosts, s.Host)
		}
	}
	e := fail(ErrNotFound, "the package index %s has no project %q", line(strings.Join(hosts, " "), 100), name)
	e.Suggestions = []string{"The pip configuration (index-url) probably leads elsewhere than to a package index that has it: `pip config list` shows where."}
	switch {
	case len(hosts) == 0: // directories only
		e.Sentence = fmt.Sprintf("no directory of the pip setting find-links has a file of %q", name)
		e.Suggestions = []string{"Put a wheel of it there, or allow an index in the pip configuration (no-index)."}
	case len(hosts) > 1:
		e.Sentence = fmt.Sprintf("none of the package indexes %s has a project %q", line(listNames(hosts), 300), name)
	}
	return e
}

// fromChoose is an error of tags.Choose, whose text is complete.
func fromChoose(err error) *Error {
	code, sentence, _ := strings.Cut(err.Error(), ": ")
	e := fail(Code(code), "%s", sentence)
	if e.Code == Code(tags.ErrSdistOnly.Error()) {
		e.Suggestions = []string{"Ask for another version or another package that has wheels."}
	}
	return e
}

func sdistOnly(name, by string) *Error {
	e := fail(ErrSdistOnly, "%s has source archives only, no wheel; building them would run their code", name)
	e.Blocking = Blocking{Name: name, NeededBy: by}
	if by != "" {
		e.Sentence += "; " + by + " needs it"
	}
	return e
}

// unreachable is an error if a source did not answer, or not as an index does. One
// that does not know the project (404) has answered.
func unreachable(name string, sources []source) *Error {
	for _, s := range sources {
		host := line(or(s.Host, "an index"), 100)
		what := ""
		switch {
		case s.Status == 401 || s.Status == 403:
			what = fmt.Sprintf("refused access (HTTP %d): credentials are missing in the pip configuration, or are wrong", s.Status)
		case s.Status == 407:
			what = "could not be asked: the proxy wants credentials (HTTP 407)"
		case s.Status != 0 && s.Status != 200 && s.Status != 404 && s.Status != 410:
			what = fmt.Sprintf("answered with HTTP %d", s.Status)
		case strings.HasPrefix(s.Error, "Directory "):
			return fail(ErrBadConfig, "a directory of the pip setting find-links cannot be read")
		case s.Error != "":
			what = inWords(s.Error)
		}
		if what != "" {
			e := fail(ErrIndexUnreachable, "the package index %s %s; it was asked for %s", host, what, name)
			e.Suggestions = []string{"Try again later, or ask the operator to check the pip configuration (index-url, proxy, cert)."}
			return e
		}
	}
	return nil
}

const (
	noIndex  = "answered with something that is no list of files: it is no package index, or the network wants a login first"
	badProxy = "could not be asked: the proxy of the configuration is no address of one"
)

// inWords turns names of exceptions of Python and of pip into what they mean.
func inWords(names string) string {
	for _, m := range []struct{ word, says string }{
		{"TooLarge", "answered with a page of more than 64 MiB"},
		{"NoIndex", noIndex},
		{"Socks", "could not be asked: pip cannot use a SOCKS proxy here"},
		{"ProxyURL", badProxy}, {"ProxySchemeUnknown", badProxy}, {"LocationParseError", badProxy},
		{"ContentDecodingError", noIndex}, {"DecodeError", noIndex},
		{"IncompleteRead", "broke off its answer"}, {"ChunkedEncodingError", "broke off its answer"},
		{"InvalidSchema", "sent us to something that is not on the web"},
		{"Garbage", noIndex},
		{"SSL", "could not be asked: its certificate is not trusted"}, {"CertificateError", "could not be asked: its certificate is not trusted"},
		{"ProxyError", "could not be asked: the proxy does not answer"}, {"ProxyConnectionError", "could not be asked: the proxy does not answer"},
		{"NameResolutionError", "could not be asked: its name is not known here"}, {"gaierror", "could not be asked: its name is not known here"},
		{"Timeout", "did not answer in time"}, {"timeout", "did not answer in time"},
		{"TooManyRedirects", "sent us in circles"},
		{"ConnectionRefused", "refused the connection"},
		{"Protocol", "broke off its answer"}, {"RemoteDisconnected", "broke off its answer"},
	} {
		if strings.Contains(names, m.word) {
			return m.says
		}
	}
	return "could not be reached"
}
