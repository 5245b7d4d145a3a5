package audit

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// timeLayout has a fixed width, so that times compare as bytes.
const timeLayout = "2006-01-02T15:04:05.000000Z"

const hexDigits = "0123456789abcdef"

// append writes the record as its canonical line: the keys in the order of the
// struct, no white space, strings escaped and integers written as RFC 8785 says.
func (r *Record) append(b []byte) []byte {
	b = appendPlace(b, r.V, r.N, r.Prev, r.T, r.Mono)
	b = r.appendRest(b)
	return append(b, '}')
}

// appendPlace writes what the sequencer alone can know, the front of the line.
func appendPlace(b []byte, v int, n uint64, prev string, t time.Time, mono int64) []byte {
	b = append(b, `{"v":`...)
	b = strconv.AppendInt(b, int64(v), 10)
	b = append(b, `,"n":`...)
	b = strconv.AppendUint(b, min(n, MaxInt), 10)
	b = append(b, `,"prev":`...)
	b = appendString(b, prev)
	b = append(b, `,"t":"`...)
	b = appendTime(b, t)
	b = append(b, `","mono":`...)
	return appendInt(b, mono)
}

// appendRest writes everything from boot on, without the closing brace.
func (r *Record) appendRest(b []byte) []byte {
	b = append(b, `,"boot":`...)
	b = appendString(b, r.Boot)
	b = append(b, `,"run":`...)
	b = appendString(b, r.Run)
	b = append(b, `,"ev":`...)
	b = appendString(b, string(r.Ev))
	b = appendField(b, "call", r.Call)
	b = appendField(b, "tool", r.Tool)
	b = appendField(b, "act", r.Act)
	b = appendField(b, "cli", r.Cli)
	b = appendField(b, "proto", r.Proto)
	b = appendField(b, "rid", r.Rid)
	b = appendField(b, "img", r.Img)
	b = appendFactsField(b, "args", r.Args)
	b = appendField(b, "argd", r.Argd)
	b = appendField(b, "src", r.Src)
	b = appendFactsField(b, "cap", r.Cap)
	b = appendFactsField(b, "env", r.Env)
	b = appendField(b, "dec", r.Dec)
	b = appendField(b, "reason", r.Reason)
	b = appendField(b, "err", r.Err)
	if r.Out != nil {
		b = append(b, `,"out":`...)
		b = r.Out.append(b)
	}
	b = appendField(b, "hb", r.Hb)
	b = appendField(b, "ha", r.Ha)
	b = appendIntField(b, "fence", int64(min(r.Fence, MaxInt)))
	b = appendIntField(b, "dur", r.Dur)
	b = appendIntField(b, "red", r.Red)
	return appendField(b, "body", r.Body)
}

func (o *Out) append(b []byte) []byte {
	b = append(b, `{"ok":`...)
	b = strconv.AppendBool(b, o.OK)
	b = appendField(b, "code", o.Code)
	b = appendIntField(b, "bytes", o.Bytes)
	b = appendField(b, "digest", o.Digest)
	b = appendField(b, "outcome", o.Outcome)
	if o.Exit != nil {
		b = append(b, `,"exit":`...)
		b = appendInt(b, int64(*o.Exit))
	}
	b = appendIntField(b, "changed", o.Changed)
	if len(o.Changes) > 0 {
		b = append(b, `,"changes":[`...)
		for i := range o.Changes {
			if i > 0 {
				b = append(b, ',')
			}
			b = o.Changes[i].append(b)
		}
		b = append(b, ']')
	}
	b = appendField(b, "changes_digest", o.ChangesDigest)
	return append(b, '}')
}

func (c *ChangeFact) append(b []byte) []byte {
	b = append(b, `{"path":`...)
	b = appendString(b, c.Path)
	b = appendField(b, "path_sha256", c.PathSHA256)
	b = appendField(b, "kind", c.Kind)
	b = appendField(b, "sha256", c.SHA256)
	return append(b, '}')
}

func appendField(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return appendString(appendName(b, name), value)
}

func appendIntField(b []byte, name string, value int64) []byte {
	if value == 0 {
		return b
	}
	return appendInt(appendName(b, name), value)
}

func appendFactsField(b []byte, name string, f Facts) []byte {
	if len(f) == 0 {
		return b
	}
	return appendFacts(appendName(b, name), f)
}

func appendName(b []byte, name string) []byte {
	b = append(b, ',', '"')
	b = append(b, name...)
	return append(b, '"', ':')
}

// appendFacts writes the facts sorted by name, bytewise.
func appendFacts(b []byte, f Facts) []byte {
	b = append(b, '{')
	var room [16]string
	for i, name := range sortedNames(room[:0], f) {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, name)
		b = append(b, ':')
		b = appendValue(b, f[name])
	}
	return append(b, '}')
}

// sortedNames puts the names into the slice given, which spares an allocation.
func sortedNames(names []string, f Facts) []string {
	for name := range f {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func appendValue(b []byte, value any) []byte {
	switch v := plain(value).(type) {
	case string:
		return appendString(b, v)
	case bool:
		return strconv.AppendBool(b, v)
	case int64:
		return appendInt(b, v)
	case []string:
		return appendStrings(b, v)
	}
	return append(b, `""`...)
}

func appendStrings(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, ']')
}

// plain brings a value of a fact to string, bool, int64 or []string. An integer
// that JSON readers would round is written as text.
func plain(value any) any {
	switch v := value.(type) {
	case string, bool, []string:
		return v
	case int:
		return plainInt(int64(v))
	case int64:
		return plainInt(v)
	case fmt.Stringer, error:
		return fmt.Sprint(v)
	}
	switch v := reflect.ValueOf(value); {
	case v.CanInt():
		return plainInt(v.Int())
	case v.CanUint() && v.Uint() <= MaxInt:
		return int64(v.Uint())
	case v.Kind() == reflect.String:
		return v.String()
	}
	return fmt.Sprint(value)
}

func plainInt(v int64) any {
	if v > MaxInt || v < -MaxInt {
		return strconv.FormatInt(v, 10)
	}
	return v
}

// appendInt writes an integer that every JSON reader keeps exact.
func appendInt(b []byte, v int64) []byte {
	return strconv.AppendInt(b, min(max(v, -MaxInt), MaxInt), 10)
}

// appendTime writes t in UTC. A clock outside the years 0 to 9999, which RFC
// 3339 cannot write, is shown as the nearest time it can.
func appendTime(b []byte, t time.Time) []byte {
	t = t.UTC()
	switch {
	case t.Year() < 0:
		t = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
	case t.Year() > 9999:
		t = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)
	}
	return t.AppendFormat(b, timeLayout)
}

// appendString writes s quoted as RFC 8785 §3.2.2.2 says: the two-letter escapes,
// \u00xx in lower case for the other control characters, everything else as it
// is, U+2028 too. A byte that is not UTF-8 becomes the four characters \xNN, so
// that no input fails and the byte can still be read.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if safe[c] {
				i++
				continue
			}
			b = append(b, s[start:i]...)
			b = appendEscape(b, c)
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			b = append(b, s[start:i]...)
			b = append(b, '\\', '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
			i++
			start = i
			continue
		}
		i += size
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

func appendEscape(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\b':
		return append(b, '\\', 'b')
	case '\f':
		return append(b, '\\', 'f')
	case '\n':
		return append(b, '\\', 'n')
	case '\r':
		return append(b, '\\', 'r')
	case '\t':
		return append(b, '\\', 't')
	}
	return append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}

// safe are the ASCII characters that stand for themselves.
var safe = func() (t [utf8.RuneSelf]bool) {
	for c := range t {
		t[c] = c >= ' ' && c != '"' && c != '\\'
	}
	return
}()

// quotedLen is the number of bytes that appendString writes between the quotes.
// It stops counting above limit.
func quotedLen(s string, limit int) int {
	n := 0
	for i := 0; i < len(s) && n <= limit; {
		if c := s[i]; c < utf8.RuneSelf && safe[c] {
			n++
			i++
			continue
		}
		w, size := quotedRune(s[i:])
		n += w
		i += size
	}
	return n
}

// quotedRune gives the written width of the first rune of s and its size in s.
func quotedRune(s string) (width, size int) {
	c := s[0]
	switch {
	case c < utf8.RuneSelf && safe[c]:
		return 1, 1
	case c < utf8.RuneSelf:
		var esc [8]byte
		return len(appendEscape(esc[:0], c)), 1
	}
	r, size := utf8.DecodeRuneInString(s)
	if r == utf8.RuneError && size == 1 {
		return 5, 1
	}
	return size, size
}
