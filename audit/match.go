package audit

import (
	"bytes"
	"fmt"
	"path"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// matcher is a compiled query.
type matcher struct {
	since, until []byte // as they stand in a line; nil = open
	fields       []wanted
	glob         string
}

// wanted are the values that one field may have.
type wanted struct {
	col    column
	sub    string   // key below, "" for the column itself
	values [][]byte // JSON text of each, as string and bare
	hints  [][]byte // one of them is in every line that matches
}

func (q Query) compile() (*matcher, error) {
	m := &matcher{}
	if !q.Since.IsZero() {
		// Records have microseconds: those in the same one are inside.
		m.since = appendTime(nil, q.Since)
	}
	if !q.Until.IsZero() {
		m.until = appendTime(nil, q.Until)
	}
	for name, values := range q.Match {
		w, err := compileField(name, values)
		if err != nil {
			return nil, err
		}
		m.fields = append(m.fields, w)
	}
	if q.PathGlob != "" {
		m.glob = anchored(q.PathGlob)
		if !doublestar.ValidatePattern(m.glob) {
			return nil, fmt.Errorf("%w: glob %q", ErrQuery, q.PathGlob)
		}
	}
	return m, nil
}

func anchored(glob string) string {
	switch {
	case strings.HasPrefix(glob, "/"):
		return glob
	case strings.Contains(glob, "/"):
		return "/workspace/" + glob
	}
	return "/workspace/**/" + glob
}

func compileField(name string, values []string) (w wanted, err error) {
	top, sub, nested := strings.Cut(name, ".")
	w.col, w.sub = columns, sub
	for c, l := range layout {
		if l.name == top {
			w.col = column(c)
		}
	}
	if w.col == columns || nested != (layout[w.col].shape >= shapeFacts) || nested && sub == "" {
		return w, fmt.Errorf("%w: no field %q", ErrQuery, name)
	}
	for _, value := range values {
		quoted := appendString(nil, value)
		w.values = append(w.values, quoted, []byte(value))
		w.hints = append(w.hints, quoted[1:len(quoted)-1])
	}
	return w, nil
}

// may is quick and wrong only in one direction: a line it refuses does not match.
func (m *matcher) may(line []byte) bool {
	for i := range m.fields {
		if !containsAny(line, m.fields[i].hints) {
			return false
		}
	}
	if m.since == nil && m.until == nil {
		return true
	}
	t := timeIn(line)
	return t == nil || (m.since == nil || bytes.Compare(t, m.since) >= 0) && (m.until == nil || bytes.Compare(t, m.until) <= 0)
}

func containsAny(line []byte, hints [][]byte) bool {
	for _, h := range hints {
		if bytes.Contains(line, h) {
			return true
		}
	}
	return false
}

// timeIn finds the time of a line: it follows prev, before which stand only numbers.
func timeIn(line []byte) []byte {
	const key = `"t":"`
	i := bytes.Index(line, []byte(key))
	if i < 0 || len(line) < i+len(key)+len(timeLayout) {
		return nil
	}
	return line[i+len(key) : i+len(key)+len(timeLayout)]
}

// match is exact, for the fields and the glob.
func (m *matcher) match(v *view) bool {
	for i := range m.fields {
		if !m.fields[i].match(v) {
			return false
		}
	}
	return m.glob == "" || m.aboutPath(v)
}

func (w *wanted) match(v *view) bool {
	text := v[w.col]
	if w.sub != "" {
		text = member(text, w.sub)
	}
	for _, value := range w.values {
		if text != nil && bytes.Equal(text, value) {
			return true
		}
	}
	return false
}

// member is the JSON text of a value of an object, nil when it is not there.
func member(object []byte, name string) []byte {
	if object == nil {
		return nil
	}
	s := scanner{b: object, i: 1, skip: true}
	for !s.bad && s.peek() == '"' {
		key := s.string(true)
		s.expect(':')
		start := s.i
		s.anyValue()
		if string(key) == name && !s.bad {
			return object[start:s.i]
		}
		if s.peek() == ',' {
			s.i++
		}
	}
	return nil
}

// anyValue steps over what an object of a record can hold.
func (s *scanner) anyValue() {
	if s.literal(`[{`) {
		s.i -= 2
		s.changes()
		return
	}
	s.fact()
}

func (m *matcher) aboutPath(v *view) bool {
	for name, value := range decodeFacts(v[colArgs]) {
		if p, ok := value.(string); ok && pathFact(name) && m.globbed(p) {
			return true
		}
	}
	if v[colOut] == nil {
		return false
	}
	var o Out
	(&scanner{b: v[colOut]}).out(&o)
	for _, c := range o.Changes {
		if m.globbed(c.Path) {
			return true
		}
	}
	return false
}

// pathFact names the facts that hold a path of the image.
func pathFact(name string) bool {
	switch name {
	case "path", "from", "to", "wheel":
		return true
	}
	return false
}

// globbed compares with the path as the tools show it, below /workspace. A path
// with ".." was refused and stays as it was asked for.
func (m *matcher) globbed(p string) bool {
	switch {
	case strings.Contains(p, ".."):
		p = "/workspace/" + p
	case p == "/workspace" || strings.HasPrefix(p, "/workspace/"):
		p = path.Clean(p)
	default:
		p = path.Join("/workspace", p)
	}
	ok, err := doublestar.Match(m.glob, p)
	return ok && err == nil
}
