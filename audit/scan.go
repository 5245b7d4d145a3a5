package audit

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// scan checks that line is canonical and finds its columns. It does not allocate.
func (v *view) scan(line []byte) error {
	if len(line) > MaxRecord {
		return fmt.Errorf("%w: %d bytes", ErrTooBig, len(line))
	}
	if !utf8.Valid(line) {
		return fmt.Errorf("%w: not UTF-8", ErrMalformed)
	}
	*v = view{}
	s := scanner{b: line, skip: true}
	s.record(v)
	if s.bad {
		return fmt.Errorf("%w: at byte %d", ErrMalformed, s.i)
	}
	return nil
}

// scanner walks over a line. Once bad, it stands still.
type scanner struct {
	b    []byte
	i    int
	bad  bool
	skip bool // only check, keep nothing
}

func (s *scanner) record(v *view) {
	s.expect('{')
	for c := column(0); c < columns && !s.bad; c++ {
		name := layout[c].name
		if !s.key(name, c > 0) {
			if c <= colEv {
				s.fail()
			}
			continue
		}
		start := s.i
		s.value(c)
		if !s.bad {
			v[c] = s.b[start:s.i]
		}
	}
	s.expect('}')
	if s.i != len(s.b) || !s.bad && v.int(colV) != Version {
		s.fail()
	}
}

func (s *scanner) value(c column) {
	optional := c > colEv
	switch layout[c].shape {
	case shapeInt:
		if n := s.int(optional); n < least[c] {
			s.fail()
		}
	case shapeString:
		s.string(optional)
	case shapeTime:
		s.time()
	case shapeFacts:
		s.facts()
	case shapeOut:
		var o Out
		s.out(&o)
	}
}

func (s *scanner) fail() { s.bad = true }

func (s *scanner) peek() byte {
	if s.bad || s.i >= len(s.b) {
		return 0
	}
	return s.b[s.i]
}

func (s *scanner) expect(c byte) {
	if s.peek() != c {
		s.fail()
		return
	}
	s.i++
}

func (s *scanner) literal(text string) bool {
	if s.bad || len(s.b)-s.i < len(text) || string(s.b[s.i:s.i+len(text)]) != text {
		return false
	}
	s.i += len(text)
	return true
}

// key steps over `,"name":` when it is next.
func (s *scanner) key(name string, comma bool) bool {
	p := s.i
	if comma {
		if s.peek() != ',' {
			return false
		}
		p++
	}
	end := p + len(name) + 3
	if s.bad || end > len(s.b) || s.b[p] != '"' || string(s.b[p+1:end-2]) != name || s.b[end-2] != '"' || s.b[end-1] != ':' {
		return false
	}
	s.i = end
	return true
}

// string steps over a canonical string. The UTF-8 was checked for the whole line.
func (s *scanner) string(nonempty bool) []byte {
	s.expect('"')
	start, i := s.i, s.i
	for !s.bad {
		for i < len(s.b) && (s.b[i] >= utf8.RuneSelf || safe[s.b[i]]) {
			i++
		}
		s.i = i
		switch s.peek() {
		case '"':
			s.i++
			if nonempty && i == start {
				s.fail()
			}
			return s.b[start:i]
		case '\\':
			s.escape()
			i = s.i
		default:
			s.fail()
		}
	}
	return nil
}

// escape steps over one escape in the only form that the encoder has for it.
func (s *scanner) escape() {
	rest := s.b[s.i+1:]
	if len(rest) > 0 && strings.IndexByte(`"\bfnrt`, rest[0]) >= 0 {
		s.i += 2
		return
	}
	if len(rest) < 5 || rest[0] != 'u' || rest[1] != '0' || rest[2] != '0' {
		s.fail()
		return
	}
	c := unhex(rest[3])<<4 | unhex(rest[4])
	var want [8]byte
	if c >= ' ' || !bytes.Equal(appendEscape(want[:0], c), s.b[s.i:s.i+6]) {
		s.fail()
		return
	}
	s.i += 6
}

func unhex(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}

func (s *scanner) int(nonzero bool) int64 {
	start := s.i
	if s.peek() == '-' {
		s.i++
	}
	digits := s.i
	var v int64
	for c := s.peek(); c >= '0' && c <= '9'; c = s.peek() {
		if v = v*10 + int64(c-'0'); v > MaxInt {
			s.fail()
			return 0
		}
		s.i++
	}
	n := s.i - digits
	if n == 0 || s.b[digits] == '0' && (n > 1 || digits > start) || nonzero && v == 0 {
		s.fail()
		return 0
	}
	if digits > start {
		return -v
	}
	return v
}

func (s *scanner) time() {
	text := s.string(true)
	if _, ok := timeParts(text); !ok {
		s.fail()
	}
}

// timeParts takes a time apart that is written as the encoder writes it: year,
// month, day, hour, minute, second, microsecond.
func timeParts(text []byte) (part [7]int, ok bool) {
	if len(text) != len(timeLayout) || text[4] != '-' || text[7] != '-' || text[10] != 'T' ||
		text[13] != ':' || text[16] != ':' || text[19] != '.' || text[26] != 'Z' {
		return part, false
	}
	for i, f := range [...]struct{ at, end int }{{0, 4}, {5, 7}, {8, 10}, {11, 13}, {14, 16}, {17, 19}, {20, 26}} {
		for _, c := range text[f.at:f.end] {
			if c < '0' || c > '9' {
				return part, false
			}
			part[i] = part[i]*10 + int(c-'0')
		}
	}
	month := part[1]
	return part, month >= 1 && month <= 12 && part[2] >= 1 && part[2] <= daysIn(part[0], month) &&
		part[3] < 24 && part[4] < 60 && part[5] < 60
}

func daysIn(year, month int) int {
	switch {
	case month == 2 && year%4 == 0 && (year%100 != 0 || year%400 == 0):
		return 29
	case month == 2:
		return 28
	case month == 4 || month == 6 || month == 9 || month == 11:
		return 30
	}
	return 31
}

func (s *scanner) facts() {
	s.expect('{')
	var last []byte
	for first := true; !s.bad; first = false {
		if !first {
			s.expect(',')
		}
		name := s.string(true)
		if bytes.Compare(name, last) <= 0 || !plainName(name) {
			s.fail()
			return
		}
		last = name
		s.expect(':')
		s.fact()
		if s.peek() == '}' {
			s.i++
			return
		}
	}
}

func plainName(name []byte) bool {
	for _, c := range name {
		if c <= ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

func (s *scanner) fact() {
	switch c := s.peek(); {
	case c == '"':
		s.string(false)
	case c == '[':
		s.strings()
	case c == 't' || c == 'f':
		s.bool()
	default:
		s.int(false)
	}
}

func (s *scanner) bool() bool {
	if s.literal("true") {
		return true
	}
	if !s.literal("false") {
		s.fail()
	}
	return false
}

func (s *scanner) strings() {
	s.expect('[')
	if s.peek() == ']' {
		s.i++
		return
	}
	for !s.bad {
		s.string(false)
		if s.peek() == ']' {
			s.i++
			return
		}
		s.expect(',')
	}
}

// out steps over the object of the outcome and fills o.
func (s *scanner) out(o *Out) {
	s.expect('{')
	if !s.key("ok", false) {
		s.fail()
		return
	}
	o.OK = s.bool()
	s.optional("code", &o.Code)
	if s.key("bytes", true) {
		o.Bytes = s.int(true)
	}
	s.optional("digest", &o.Digest)
	s.optional("outcome", &o.Outcome)
	if s.key("exit", true) {
		code := s.int(false)
		if !s.skip {
			o.Exit = new(int(code))
		}
	}
	if s.key("changed", true) {
		o.Changed = s.int(true)
	}
	if s.key("changes", true) {
		o.Changes = s.changes()
	}
	s.optional("changes_digest", &o.ChangesDigest)
	s.expect('}')
}

func (s *scanner) optional(name string, to *string) {
	if s.key(name, true) {
		*to = s.text(true)
	}
}

func (s *scanner) changes() (list []ChangeFact) {
	s.expect('[')
	for !s.bad {
		var c ChangeFact
		s.expect('{')
		if !s.key("path", false) {
			s.fail()
			return nil
		}
		c.Path = s.text(false)
		s.optional("path_sha256", &c.PathSHA256)
		s.optional("kind", &c.Kind)
		s.optional("sha256", &c.SHA256)
		s.expect('}')
		if !s.skip {
			list = append(list, c)
		}
		if s.peek() == ']' {
			s.i++
			return list
		}
		s.expect(',')
	}
	return nil
}

// text steps over a string and gives its value, unless nothing is to be kept.
func (s *scanner) text(nonempty bool) string {
	quoted := s.string(nonempty)
	if s.skip {
		return ""
	}
	return unquote(quoted)
}
