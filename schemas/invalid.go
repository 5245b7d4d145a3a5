package schemas

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Kind says what sort of rule a fault broke, so that a caller can choose an error code without reading words.
type Kind byte

const (
	KindSyntax   Kind = iota + 1 // not JSON, a key given twice, nested too deep, too many values
	KindEncoding                 // text that is not Unicode: invalid UTF-8, half of a surrogate pair
	KindType                     // a value of another JSON type than the schema wants; the arguments are no object
	KindMissing                  // a required argument is absent or null
	KindUnknown                  // no argument has this name
	KindEnum                     // not one of the words the schema lists
	KindRange                    // a number too small or too large, too many items, too many characters
)

// Fault is one thing that is wrong with the arguments. Both texts are bounded, valid UTF-8 and free of control bytes.
type Fault struct {
	Path    string // argument, as "mode" or "packages[3]"; empty when the arguments as a whole are at fault
	Message string // goes after the path and a colon, or stands alone when the path is empty
	Kind    Kind
}

// String is "path: message".
func (f Fault) String() string {
	if f.Path == "" {
		return f.Message
	}
	return f.Path + ": " + f.Message
}

// Invalid is the error of arguments that do not fit the tool. Faults has at least one and at most 20 of them, sorted by
// path, then message; More counts those left out.
type Invalid struct {
	Tool   string
	Faults []Fault
	More   int
}

const (
	maxFaults  = 20
	maxMessage = 2000 // bytes of Error()
	maxShown   = 60   // bytes of one value or name, before quoting
)

// Error joins the faults with "; ", at most 2,000 bytes.
func (e *Invalid) Error() string {
	var b strings.Builder
	for i, f := range e.Faults {
		text := f.String()
		if i > 0 {
			text = "; " + text
		}
		if b.Len()+len(text) > maxMessage-len(" (and 10000 more)") {
			return b.String() + more(len(e.Faults)-i+e.More)
		}
		b.WriteString(text)
	}
	return b.String() + more(e.More)
}

func more(n int) string {
	if n == 0 {
		return ""
	}
	return " (and " + strconv.Itoa(n) + " more)"
}

// invalid sorts and bounds faults. The same arguments always give the same error.
func invalid(tool string, faults ...Fault) *Invalid {
	slices.SortFunc(faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Message, b.Message))
	})
	e := &Invalid{Tool: tool, Faults: faults}
	if len(faults) > maxFaults {
		e.Faults, e.More = faults[:maxFaults:maxFaults], len(faults)-maxFaults
	}
	return e
}

// quote shows text that came from outside: in Go's quoted form, cut on a rune border.
func quote(s string) string {
	return strconv.Quote(cut(s))
}

// cut bounds text to maxShown bytes and three dots.
func cut(s string) string {
	if len(s) <= maxShown {
		return s
	}
	n := maxShown
	for n > maxShown-utf8.UTFMax && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

// argument shows a key of the arguments: as it is when it is a plain word, else quoted.
func argument(key string) string {
	for i := range len(key) {
		c := key[i] | 0x20
		if (c < 'a' || c > 'z') && (key[i] < '0' || key[i] > '9') && key[i] != '_' && key[i] != '-' {
			return quote(key)
		}
	}
	if key == "" || len(key) > maxShown {
		return quote(key)
	}
	return key
}
