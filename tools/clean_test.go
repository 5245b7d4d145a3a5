package tools

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// inPieces cleans a stream that comes cut at the given places.
func inPieces(b []byte, cut func(i int) bool) string {
	var c cleaner
	var out strings.Builder
	start := 0
	for i := range b {
		if cut(i) {
			out.Write(c.write(b[start:i]))
			start = i
		}
	}
	out.Write(c.write(b[start:]))
	out.Write(c.end())
	return out.String()
}

func TestClean(t *testing.T) {
	for name, c := range map[string][2]string{
		"text":                 {"a\tb\nc", "a\tb\nc"},
		"colours":              {"\x1b[1;31mred\x1b[0m", "red"},
		"title":                {"\x1b]0;title\ax\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "xlink"},
		"DCS":                  {"\x1bP1$r\x1b\\x", "x"},
		"short escapes":        {"\x1b7\x1b8\x1bc\x1b(Bx", "x"},
		"a lone escape":        {"a\x1b", "a"},
		"an open CSI":          {"a\x1b[1;3", "a1;3"},
		"an open title":        {"a\x1b]0;title", "a0;title"},
		"a title of two lines": {"\x1b]0;ti\ntle\a", "0;ti\ntle"},
		"a CSI that is none":   {"\x1b[\x01x", "x"},
		"a long title":         {"\x1b]" + strings.Repeat("t", maxEscape) + "\a", strings.Repeat("t", maxEscape)},
		"control characters":   {"a\x00\a\b\x7fb\u0085\u009bc", "abc"},
		"carriage returns":     {"10%\r20%\rdone\r\nnext\r", "10%\n20%\ndone\nnext\n"},
		"two returns":          {"a\r\r\nb", "a\n\nb"},
		"return and colour":    {"a\r\x1b[K\nb", "a\nb"},
		"no UTF-8":             {"a\xff\xfeb\xe9\n\xc3", "a�b�\n�"},
		"UTF-8":                {"é漢🎉", "é漢🎉"},
	} {
		for how, cut := range map[string]func(int) bool{
			"whole": func(int) bool { return false }, "bytes": func(int) bool { return true }, "threes": func(i int) bool { return i%3 == 0 },
		} {
			if got := inPieces([]byte(c[0]), cut); got != c[1] {
				t.Errorf("%s in %s: %.60q, want %.60q", name, how, got, c[1])
			}
		}
		if got := cleanOutput([]byte(c[1])); got != c[1] {
			t.Errorf("%s: cleaned twice it is %.60q", name, got)
		}
	}
}

// FuzzClean: however a stream is cut, the same comes out, and that is safe to show.
func FuzzClean(f *testing.F) {
	for _, s := range []string{"a\x1b[31mb\r\nc", "\x1b]0;t\x1b\\é\xc3", "\x1b(B\r\x1bP\n\xff\xfe", "漢\x1b[?25l🎉\r\r"} {
		f.Add([]byte(s), uint64(0x5555))
	}
	f.Fuzz(func(t *testing.T, b []byte, places uint64) {
		whole := cleanOutput(b)
		if got := inPieces(b, func(i int) bool { return places>>(i%64)&1 == 1 }); got != whole {
			t.Errorf("whole %q, in pieces %q", whole, got)
		}
		if !utf8.ValidString(whole) || strings.ContainsFunc(whole, func(c rune) bool { return unicode.IsControl(c) && c != '\n' && c != '\t' }) {
			t.Errorf("%q", whole)
		}
	})
}
