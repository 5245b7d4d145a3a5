package audit

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// A column is one key of the line.
type column int

const (
	colV column = iota
	colN
	colPrev
	colT
	colMono
	colBoot
	colRun
	colEv
	colCall
	colTool
	colAct
	colCli
	colProto
	colRid
	colImg
	colArgs
	colArgd
	colSrc
	colCap
	colEnv
	colDec
	colReason
	colErr
	colOut
	colHb
	colHa
	colFence
	colDur
	colRed
	colBody
	columns
)

// shape says how the value of a column is written.
type shape byte

const (
	shapeInt shape = iota
	shapeString
	shapeTime
	shapeFacts
	shapeOut
)

// layout is the order of the keys. Up to ev every one is there; from call on a
// key is there only with a value that says something.
var layout = [columns]struct {
	name  string
	shape shape
}{
	{"v", shapeInt}, {"n", shapeInt}, {"prev", shapeString}, {"t", shapeTime}, {"mono", shapeInt},
	{"boot", shapeString}, {"run", shapeString}, {"ev", shapeString}, {"call", shapeString},
	{"tool", shapeString}, {"act", shapeString}, {"cli", shapeString}, {"proto", shapeString},
	{"rid", shapeString}, {"img", shapeString}, {"args", shapeFacts}, {"argd", shapeString},
	{"src", shapeString}, {"cap", shapeFacts}, {"env", shapeFacts}, {"dec", shapeString},
	{"reason", shapeString}, {"err", shapeString}, {"out", shapeOut}, {"hb", shapeString},
	{"ha", shapeString}, {"fence", shapeInt}, {"dur", shapeInt}, {"red", shapeInt}, {"body", shapeString},
}

// least is the smallest value of an integer column.
var least = [columns]int64{colN: 1, colMono: -MaxInt, colDur: -MaxInt, colRed: -MaxInt}

// view is a line taken apart: the JSON text of each column, nil when absent. It
// points into the line.
type view [columns][]byte

// Decode reads a record. It takes exactly the lines that the encoder writes:
// what it accepts encodes to the same bytes again. The error wraps
// [ErrMalformed] or [ErrTooBig].
func Decode(line []byte) (Record, error) {
	var v view
	if err := v.scan(line); err != nil {
		return Record{}, err
	}
	return v.record(), nil
}

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

// unquote gives the text of a canonical string that stood between quotes.
func unquote(text []byte) string {
	if bytes.IndexByte(text, '\\') < 0 {
		return string(text)
	}
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 == len(text) {
			out = append(out, text[i])
			continue
		}
		i++
		switch text[i] {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			out = append(out, unhex(text[i+3])<<4|unhex(text[i+4]))
			i += 4
		default:
			out = append(out, text[i])
		}
	}
	return string(out)
}

// text is the value of a string column.
func (v *view) text(c column) string {
	if len(v[c]) < 2 {
		return ""
	}
	return unquote(v[c][1 : len(v[c])-1])
}

// bare is a string column as it stands in the line, without its quotes.
func (v *view) bare(c column) []byte {
	if len(v[c]) < 2 {
		return nil
	}
	return v[c][1 : len(v[c])-1]
}

func (v *view) int(c column) int64 {
	n, _ := strconv.ParseInt(string(v[c]), 10, 64)
	return n
}

func (v *view) time() time.Time {
	p, ok := timeParts(v.bare(colT))
	if !ok {
		return time.Time{}
	}
	return time.Date(p[0], time.Month(p[1]), p[2], p[3], p[4], p[5], p[6]*1000, time.UTC)
}

func (v *view) record() Record {
	r := Record{
		V: int(v.int(colV)), N: uint64(v.int(colN)), Prev: v.text(colPrev), T: v.time(), Mono: v.int(colMono),
		Boot: v.text(colBoot), Run: v.text(colRun), Ev: Event(v.text(colEv)),
		Call: v.text(colCall), Tool: v.text(colTool), Act: v.text(colAct), Cli: v.text(colCli),
		Proto: v.text(colProto), Rid: v.text(colRid), Img: v.text(colImg),
		Args: decodeFacts(v[colArgs]), Argd: v.text(colArgd), Src: v.text(colSrc),
		Cap: decodeFacts(v[colCap]), Env: decodeFacts(v[colEnv]),
		Dec: v.text(colDec), Reason: v.text(colReason), Err: v.text(colErr),
		Hb: v.text(colHb), Ha: v.text(colHa),
		Fence: uint64(v.int(colFence)), Dur: v.int(colDur), Red: v.int(colRed), Body: v.text(colBody),
	}
	if v[colOut] != nil {
		r.Out = new(Out)
		(&scanner{b: v[colOut]}).out(r.Out)
	}
	return r
}

func decodeFacts(text []byte) Facts {
	if text == nil {
		return nil
	}
	f := Facts{}
	s := scanner{b: text, i: 1}
	for !s.bad {
		name := string(s.string(true))
		s.expect(':')
		f[name] = s.factValue()
		if s.peek() == '}' {
			return f
		}
		s.expect(',')
	}
	return f
}

func (s *scanner) factValue() any {
	switch c := s.peek(); {
	case c == '"':
		return unquote(s.string(false))
	case c == 't' || c == 'f':
		return s.bool()
	case c != '[':
		return s.int(false)
	}
	list := []string{}
	for s.i++; s.peek() != ']' && !s.bad; {
		if s.peek() == ',' {
			s.i++
		}
		list = append(list, unquote(s.string(false)))
	}
	s.i++
	return list
}

func (v *view) recordOf(stream string) Record {
	r := v.record()
	r.Stream = stream
	return r
}
