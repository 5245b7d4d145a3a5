package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// documented is a table of docs/conformance.md, as it should be.
func documented(suite string) string {
	var b strings.Builder
	b.WriteString("| rule | what is tried | passes on |\n|---|---|---|\n")
	for _, r := range Rules() {
		if r.Suite == suite {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.ID, escape(r.Meaning), escape(r.Expected))
		}
	}
	return b.String()
}

func escape(s string) string {
	return strings.NewReplacer("|", `\|`, "*", `\*`, "$", `\$`).Replace(s)
}

// TestDocument: docs/conformance.md lists every rule of the host suite with what
// makes it pass, and no other.
func TestDocument(t *testing.T) {
	var text string
	for _, dir := range []string{"..", "testdata/documents"} {
		if b, err := os.ReadFile(filepath.Join(dir, "docs", "conformance.md")); err == nil {
			text = string(b)
			break
		}
	}
	if text == "" {
		t.Fatal("docs/conformance.md is not to be found from here")
	}
	begin, end := "<!-- suite host -->\n", "<!-- end -->\n"
	_, rest, ok := strings.Cut(text, begin)
	got, _, ok2 := strings.Cut(rest, end)
	if want := documented(SuiteHost); !ok || !ok2 || got != want {
		t.Errorf("docs/conformance.md needs this between %q and %q:\n%s", begin, end, want)
	}
}

// TestRuleIDs: they are unique and say their suite.
func TestRuleIDs(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rules() {
		if seen[r.ID] || r.Meaning == "" {
			t.Errorf("%q is double or means nothing", r.ID)
		}
		if r.Suite == SuiteHost && (!strings.HasPrefix(r.ID, "host.") || r.Expected == "") {
			t.Errorf("%s of suite %s, expected %q", r.ID, r.Suite, r.Expected)
		}
		seen[r.ID] = true
	}
}
