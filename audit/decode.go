package audit

import (
	"bytes"
	"strconv"
	"time"
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
