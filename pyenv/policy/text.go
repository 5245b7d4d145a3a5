package policy

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/unicode/bidi"
	"golang.org/x/text/width"
)

// clean makes one line of a stranger's text. Every run of spaces and line ends becomes
// one space; what does not show is dropped: control characters and with them terminal
// escapes, direction marks, joiners, fillers, what is no valid UTF-8; and all but two of
// the accents on a letter.
func clean(s string) string {
	var b strings.Builder
	accents, space := 0, false
	for _, r := range strings.ToValidUTF8(s, "") {
		if unicode.IsSpace(r) || unicode.In(r, unicode.Zs, unicode.Zl, unicode.Zp) {
			space = true
			continue
		}
		if !shows(r) {
			continue
		}
		accents++
		if !unicode.In(r, unicode.Mn, unicode.Me) {
			accents = 0
		}
		if accents > 2 {
			continue
		}
		if space && b.Len() > 0 {
			b.WriteByte(' ')
		}
		space = false
		b.WriteRune(r)
	}
	return b.String()
}

func shows(r rune) bool {
	const brailleBlank = '\u2800'
	return unicode.IsPrint(r) && r != brailleBlank && r != unicode.ReplacementChar &&
		!unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// quote shows a stranger's text in quotes, cleaned and cut to a number of characters.
// Letters that are written from right to left are escaped: beside them a terminal may
// show our own words in another order.
func quote(s string, most int) string {
	text, cut := clip(clean(s), most)
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch p, _ := bidi.LookupRune(r); {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case p.Class() == bidi.R || p.Class() == bidi.AL || p.Class() == bidi.AN:
			fmt.Fprintf(&b, `\u{%x}`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	if cut {
		b.WriteString(" (cut)")
	}
	return b.String()
}

// Quote shows a stranger's text as cards do: on one line, in quotes, without what does not
// show or could change how a terminal shows the rest, and cut to a number of characters.
func Quote(s string, most int) string { return quote(s, most) }

// Wrap breaks a text into lines of at most so many columns of a terminal, as cards do.
// Control characters are dropped.
func Wrap(text string, columns int) []string { return wrap(clean(text), max(columns, 2)) }

// Columns is how many columns of a terminal a text takes, at most: of some letters
// it counts more than a terminal does.
func Columns(s string) int { return columnsOf(s) }

// clip cuts a text to a number of characters.
func clip(s string, most int) (string, bool) {
	runes := []rune(s)
	if len(runes) <= most {
		return s, false
	}
	return string(runes[:most]), true
}

var plainForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+!<>=~*,:\[\]-]{0,199}$`)

// show leaves names, versions and requirements as they are, and quotes what is none.
func show(s string) string {
	if plainForm.MatchString(s) {
		return s
	}
	return quote(s, 200)
}

// columnsOf is what a text takes on a terminal. Accents count as a column of their own,
// and pictures as two, so that it is too high rather than too low.
func columnsOf(s string) int {
	n := 0
	for _, r := range s {
		n += runeColumns(r)
	}
	return n
}

func runeColumns(r rune) int {
	switch kind := width.LookupRune(r).Kind(); {
	case kind == width.EastAsianWide, kind == width.EastAsianFullwidth, 0x1f300 <= r && r <= 0x1faff:
		return 2
	}
	return 1
}

// wrap breaks a text into lines of at most a number of columns, at spaces where there
// are some.
func wrap(text string, columns int) []string {
	var lines []string
	line, used := "", 0
	for word := range strings.FieldsSeq(text) {
		w := columnsOf(word)
		if used > 0 && used+1+w <= columns {
			line, used = line+" "+word, used+1+w
			continue
		}
		if used > 0 {
			lines = append(lines, line)
		}
		for w > columns {
			head, rest := splitAt(word, columns)
			lines = append(lines, head)
			word, w = rest, columnsOf(rest)
		}
		line, used = word, w
	}
	if used > 0 {
		lines = append(lines, line)
	}
	return lines
}

// splitAt takes as much off a word as fits into columns (2 or more).
func splitAt(word string, columns int) (head, rest string) {
	used := 0
	for i, r := range word {
		if used += runeColumns(r); used > columns {
			return word[:i], word[i:]
		}
	}
	return word, ""
}

// megabytes is "12.3 MB".
func megabytes(n int64) string {
	if n < 1e6 {
		return fmt.Sprintf("%d kB", (n+999)/1000)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}

const day = 24 * time.Hour

// span is a time in words, "3 hours".
func span(d time.Duration) string {
	n, unit := int64(d/time.Minute), "minute"
	switch {
	case d >= 730*day:
		n, unit = int64(d/(365*day)), "year"
	case d >= 60*day:
		n, unit = int64(d/(30*day)), "month"
	case d >= 2*day:
		n, unit = int64(d/day), "day"
	case d >= time.Hour:
		n, unit = int64(d/time.Hour), "hour"
	}
	return count(int(n), unit)
}

// count is "1 file" or "2 files".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// few joins some of a list, and says how many more there are.
func few(list []string, most int) string {
	if len(list) > most {
		list = append(slices.Clone(list[:most]), fmt.Sprintf("%d more", len(list)-most))
	}
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + " and " + list[len(list)-1]
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// Clean makes one line of a stranger's text, as the texts of a card are: what does not
// show, or changes the order of what does, is dropped.
func Clean(s string) string { return clean(s) }
