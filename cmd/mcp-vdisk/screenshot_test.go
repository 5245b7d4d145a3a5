package main_test

import (
	"encoding/xml"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

// screenshot writes lines as a picture of a terminal, for a page of docs. The first is
// what was typed.
func screenshot(t testing.TB, name string, lines ...string) {
	t.Helper()
	const em, row, edge = 8.4, 20, 12
	wide := 0
	for _, l := range lines {
		wide = max(wide, utf8.RuneCountInString(l))
	}
	var b strings.Builder
	width, height := em*float64(wide)+2*edge, row*len(lines)+2*edge
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" width="%.0f" height="%d" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" rx="6" fill="#1d1f21"/>`+"\n")
	for i, l := range lines {
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="#e0e0e0" xml:space="preserve">`, edge, edge+row*i+15)
		if err := xml.EscapeText(&b, []byte(l)); err != nil {
			t.Fatal(err)
		}
		b.WriteString("</text>\n")
	}
	b.WriteString("</svg>\n")
	if err := os.WriteFile("../../docs/images/"+name, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
