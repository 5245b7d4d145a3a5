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
	switch suite {
	case SuiteSandbox:
		b.WriteString("| rule | what is promised | by the declaration |\n|---|---|---|\n")
	case SuiteLease:
		b.WriteString("| rule | what is promised | required |\n|---|---|---|\n")
	default:
		b.WriteString("| rule | what is tried | passes on |\n|---|---|---|\n")
	}
	for _, r := range Rules() {
		switch {
		case r.Suite != suite:
		case suite == SuiteSandbox:
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.ID, escape(r.Meaning), r.Capability)
		case suite == SuiteLease:
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.ID, escape(r.Meaning), map[bool]string{true: "yes", false: "where its hook is given"}[r.Required])
		default:
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.ID, escape(r.Meaning), escape(r.Expected))
		}
	}
	return b.String()
}

func escape(s string) string {
	return strings.NewReplacer("|", `\|`, "*", `\*`, "$", `\$`).Replace(s)
}

// TestDocument: docs/conformance.md lists every rule with what makes it pass, and
// no other.
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
	for _, suite := range []string{SuiteSandbox, SuiteLease, SuiteHost} {
		begin, end := "<!-- suite "+suite+" -->\n", "<!-- end -->\n"
		_, rest, ok := strings.Cut(text, begin)
		got, _, ok2 := strings.Cut(rest, end)
		if want := documented(suite); !ok || !ok2 || got != want {
			t.Errorf("docs/conformance.md needs this between %q and %q:\n%s", begin, end, want)
		}
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
