package hostcopy

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
)

// tally tells a person the first few of many things, and counts the rest.
type tally struct {
	w     io.Writer
	what  string // the rest is, such as "more are left out"
	count int
}

const tallied = 5 // are told one by one

func (t *tally) add(format string, a ...any) {
	if t.count++; t.count <= tallied {
		fmt.Fprintf(t.w, "mcp-vdisk: "+format+"\n", a...)
	}
}

func (t *tally) end() {
	if rest := t.count - tallied; rest > 0 {
		fmt.Fprintf(t.w, "mcp-vdisk: %d %s\n", rest, t.what)
	}
}

// Shown is a name as it can be printed: one that a terminal would obey, or that is
// no text, is quoted as Go does.
func Shown(name string) string {
	odd := func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) }
	if name == "" || strings.ContainsFunc(name, odd) {
		return strconv.Quote(name)
	}
	return name
}
