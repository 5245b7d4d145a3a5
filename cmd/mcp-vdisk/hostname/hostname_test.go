package hostname

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestEscape(t *testing.T) {
	windows, mac, linux := RulesOf("windows"), RulesOf("darwin"), RulesOf("linux")
	for _, c := range []struct {
		rules      Rules
		name, want string
	}{
		{linux, "plain.txt", "plain.txt"},
		{linux, "a:b\\c\xff\n.", "a:b\\c\xff\n."},
		{linux, "50%20.txt", "50%20.txt"},
		{linux, "..", "%2E%2E"},
		{linux, ".", "%2E"},
		{linux, ".hidden", ".hidden"},
		{mac, "a:b", "a%3Ab"},
		{mac, "caf\xe9", "caf%E9"},
		{mac, "café", "café"},
		{mac, "a%3Ab", "a%253Ab"},
		{mac, "100%", "100%"},
		{mac, "tab\there", "tab\there"},
		{windows, `<>:"|?*\`, "%3C%3E%3A%22%7C%3F%2A%5C"},
		{windows, "line\nfeed\x7f", "line%0Afeed%7F"},
		{windows, "dot.", "dot%2E"},
		{windows, "dots..", "dots.%2E"},
		{windows, "space ", "space%20"},
		{windows, "CON", "%43ON"},
		{windows, "con.txt", "%63on.txt"},
		{windows, "nul .tar.gz", "%6Eul .tar.gz"},
		{windows, "COM1", "%43OM1"},
		{windows, "lpt²", "%6Cpt²"},
		{windows, "CONIN$", "%43ONIN$"},
		{windows, "COM10", "COM10"},
		{windows, "CONSOLE", "CONSOLE"},
		{windows, "%2f", "%252f"},
		{windows, "%:", "%%3A"},
		{windows, "%~x", "%25~x"},
		{windows, "日本語", "日本語"},
	} {
		if got := Escape(c.name, c.rules); got != c.want {
			t.Errorf("Escape(%q) = %q, want %q", c.name, got, c.want)
		}
	}
}

// unescape undoes Escape, for what is not cut.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && isHex(s[i+1:]) {
			raw, _ := hex.DecodeString(s[i+1 : i+3])
			b.Write(raw)
			i += 2
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// What is escaped can be undone, so no two names have one form.
func TestEscapeIsInjective(t *testing.T) {
	const letters = "ab%0239AFaf~:. \\?C\xff\x80é日\n"
	rng := rand.New(rand.NewPCG(1, 2))
	for _, goos := range []string{"windows", "darwin"} {
		r := RulesOf(goos)
		for range 20_000 {
			name := make([]byte, 1+rng.IntN(8))
			for i := range name {
				name[i] = letters[rng.IntN(len(letters))]
			}
			if got := unescape(Escape(string(name), r)); got != string(name) && string(name) != "." {
				t.Fatalf("%s: %q becomes %q, and that %q", goos, name, Escape(string(name), r), got)
			}
		}
	}
}

func TestEscapeCuts(t *testing.T) {
	for name, rules := range map[string]Rules{"windows": RulesOf("windows"), "darwin": RulesOf("darwin"), "strict": Strict()} {
		seen := map[string]string{}
		for _, long := range []string{
			strings.Repeat("a", 300), strings.Repeat("a", 301), strings.Repeat(":", 120) + ".txt", strings.Repeat("\xff", 255),
			strings.Repeat("é", 127) + ".png", strings.Repeat("日", 85), "." + strings.Repeat("x", 300), strings.Repeat("a", 200) + "." + strings.Repeat("e", 80),
		} {
			got := Escape(long, rules)
			if len(got) > rules.Max || rules.UTF8 && !utf8.ValidString(got) {
				t.Errorf("%s: %.20q… becomes %q of %d bytes", name, long, got, len(got))
			}
			if strings.HasSuffix(long, ".txt") && !strings.HasSuffix(got, ".txt") {
				t.Errorf("%s: the extension of %.20q… is gone: %q", name, long, got)
			}
			if other, ok := seen[got]; ok {
				t.Errorf("%s: %.20q… and %.20q… both become %q", name, long, other, got)
			}
			seen[got] = long
			if Escape(got, rules) == got && len(long) > rules.Max && strings.Contains(got, "%~") {
				t.Errorf("%s: the cut form %q stands for itself as well", name, got)
			}
		}
	}
}

func TestBeside(t *testing.T) {
	for name, want := range map[string]string{
		"report.csv": "report (2).csv", "README": "README (2)", ".env": ".env (2)", "a.tar.gz": "a.tar (2).gz",
		strings.Repeat("n", 255): strings.Repeat("n", 251) + " (2)",
	} {
		if got := Beside(name, 2, Max); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	if got := Beside("x.y", 3, Max); got != "x (3).y" {
		t.Error(fmt.Sprint(got))
	}
}
