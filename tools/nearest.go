package tools

import (
	"bytes"
	"fmt"
	"slices"
	"sort"
	"strings"
)

// nearestHint shows the lines of a file where a text that is not in it nearly
// is: the first line there that is not as the text has it.
func nearestHint(data []byte, want string) string {
	const shown = 3
	wanted := strings.Split(withLF(want), "\n")
	for len(wanted) > 1 && strings.TrimSpace(wanted[0]) == "" {
		wanted = wanted[1:]
	}
	lines := bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
	var hint strings.Builder
	var told []int
	for _, i := range nearest(lines, wanted[0], shown) {
		i = min(i+differs(lines[i:], wanted), len(lines)-1)
		if !slices.Contains(told, i) {
			told = append(told, i)
			fmt.Fprintf(&hint, "\n%d %s", i+1, showLine(lines[i], 200))
		}
	}
	if len(told) == 0 {
		return "no line is like it; read_file shows what the file holds"
	}
	return "old_text must be exact, spaces too; the nearest lines are" + hint.String()
}

// differs is how many lines at the start are as wanted. The first wanted line
// may be the end of a line and the last one the start of one.
func differs(lines [][]byte, wanted []string) int {
	for i, w := range wanted {
		if i == len(lines) {
			return i
		}
		line := string(bytes.TrimSuffix(lines[i], []byte("\r")))
		if i == 0 && !strings.HasSuffix(line, w) || i > 0 && line != w && (i < len(wanted)-1 || !strings.HasPrefix(line, w)) {
			return i
		}
	}
	return 0
}

// nearest are the indexes of the n lines that are most like a text, best first.
func nearest(lines [][]byte, text string, n int) []int {
	type match struct {
		line  int
		score float64
	}
	const least = 0.3 // below, lines have little more in common than the language
	like := newLikeness(text)
	var best []match
	for i, l := range lines {
		if s := like.score(l); s > least && (len(best) < n || s > best[len(best)-1].score) {
			best = append(best, match{i, s})
			sort.SliceStable(best, func(i, j int) bool { return best[i].score > best[j].score })
			best = best[:min(len(best), n)]
		}
	}
	var out []int
	for _, m := range best {
		out = append(out, m.line)
	}
	return out
}

// likeness compares many lines with one text by the Sørensen–Dice coefficient of
// their pairs of neighbouring bytes: 1 for equal texts, 0 for nothing in common.
// The case of ASCII letters does not count.
type likeness struct {
	have  [1 << 16]uint16 // how often the text has each pair
	pairs int
	taken []uint16 // pairs of the line at hand that the text has too
}

// maxCompared is how many bytes of a line are looked at.
const maxCompared = 800

func newLikeness(text string) *likeness {
	l := &likeness{}
	b := trimmed([]byte(text))
	for i := 1; i < len(b); i++ {
		l.have[pair(b, i)]++
		l.pairs++
	}
	return l
}

func (l *likeness) score(line []byte) float64 {
	line = trimmed(line)
	l.taken = l.taken[:0]
	for i := 1; i < len(line); i++ {
		if p := pair(line, i); l.have[p] > 0 {
			l.have[p]--
			l.taken = append(l.taken, p)
		}
	}
	for _, p := range l.taken {
		l.have[p]++
	}
	if all := l.pairs + len(line) - 1; len(line) > 1 && all > 0 {
		return 2 * float64(len(l.taken)) / float64(all)
	}
	return 0
}

func trimmed(b []byte) []byte {
	b = bytes.TrimSpace(b)
	return b[:min(len(b), maxCompared)]
}

func pair(b []byte, i int) uint16 { return uint16(lower(b[i-1]))<<8 | uint16(lower(b[i])) }

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}
