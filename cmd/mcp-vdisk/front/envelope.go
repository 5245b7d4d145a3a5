package front

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// envelope is what a shim has to know of a JSON-RPC message.
type envelope struct {
	id      []byte // as it is written; nil when there is none
	idAt    int    // where it begins
	method  string
	params  []byte // as they are written
	answers bool   // it has a result or an error
}

// isAnswer says whether the message answers a request of the other side.
func (e envelope) isAnswer() bool { return e.method == "" && e.answers }

// envelopeOf reads the envelope of a message that is valid JSON as encoding/json does,
// which is how the daemon reads it: names match without regard to case, the last
// of two counts, and a method that is no string is none. It does not look into the
// rest, which may be long: strings are passed over as a whole. What is no JSON
// object has no envelope.
func envelopeOf(msg []byte) (e envelope) {
	members(msg, func(name, value []byte, at int) bool {
		e.note(unquote(name), value, at)
		return true
	})
	return e
}

// members gives the members of an object that is valid JSON, until fn returns false: a
// name as it is written, with its quotes, and a value, with the index at which it
// begins. It returns false when fn did, or when the value is no object.
func members(msg []byte, fn func(name, value []byte, at int) bool) bool {
	i := skipSpace(msg, 0)
	if i >= len(msg) || msg[i] != '{' {
		return false
	}
	for i++; i < len(msg); i++ {
		i = skipSpace(msg, i)
		if i >= len(msg) || msg[i] != '"' {
			return i < len(msg) && msg[i] == '}'
		}
		end := skipString(msg, i)
		name := msg[i:end]
		i = skipSpace(msg, end)
		if i >= len(msg) || msg[i] != ':' {
			return false
		}
		i = skipSpace(msg, i+1)
		end = skipValue(msg, i)
		if !fn(name, bytes.TrimRight(msg[i:end], " \t\r\n"), i) {
			return false
		}
		if i = end; i >= len(msg) || msg[i] != ',' {
			return i < len(msg) && msg[i] == '}'
		}
	}
	return false
}

// note takes in one member of the message, whose value begins at an index.
func (e *envelope) note(name string, value []byte, at int) {
	switch {
	case strings.EqualFold(name, "id"):
		e.id, e.idAt = value, at
	case strings.EqualFold(name, "method") && len(value) > 0 && value[0] == '"':
		e.method = unquote(value)
	case strings.EqualFold(name, "params"):
		e.params = value
	case strings.EqualFold(name, "result"), strings.EqualFold(name, "error"):
		e.answers = true
	}
}

// unquote is the text of a JSON string.
func unquote(s []byte) string {
	plain := func(r rune) bool { return r != '\\' && r < utf8.RuneSelf }
	if len(s) >= 2 && bytes.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return string(s[1 : len(s)-1])
	}
	var text string
	if json.Unmarshal(s, &text) != nil {
		return ""
	}
	return text
}

// isID says whether a value is the id of a request, and so comes back with an
// answer: MCP takes strings and numbers.
func isID(v []byte) bool {
	if len(v) == 0 || !utf8.Valid(v) {
		return false
	}
	_, err := strconv.ParseFloat(string(v), 64)
	return v[0] == '"' || err == nil
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\r' || b[i] == '\n') {
		i++
	}
	return i
}

// skipString returns the index behind the string that begins at i.
func skipString(b []byte, i int) int {
	for i++; i < len(b); {
		q := bytes.IndexByte(b[i:], '"')
		if q < 0 {
			return len(b)
		}
		i += q + 1
		slashes := 0
		for k := i - 2; k >= 0 && b[k] == '\\'; k-- {
			slashes++
		}
		if slashes%2 == 0 {
			return i
		}
	}
	return len(b)
}

// skipValue returns the index of what ends the member whose value begins at i: a
// comma or a brace.
func skipValue(b []byte, i int) int {
	for depth := 0; i < len(b); {
		n := bytes.IndexAny(b[i:], `"{}[],`)
		if n < 0 {
			return len(b)
		}
		i += n
		switch b[i] {
		case '"':
			i = skipString(b, i)
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth < 0 {
				return i
			}
		case ',':
			if depth == 0 {
				return i
			}
		}
		i++
	}
	return len(b)
}
