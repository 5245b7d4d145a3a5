package policy_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"pgregory.net/rapid"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

// card judges and fills in who asks.
func card(t *testing.T, in policy.Input) policy.Card {
	t.Helper()
	c, err := policy.NewCard(in, policy.Judge(in))
	if err != nil {
		t.Fatal(err)
	}
	c.ID, c.Workspace, c.Name = "01KB8Z6Q4N3T5V7W9X1Y2Z3A4B", "3f2c9a1e-6a5b-4c7d-8e9f-0a1b2c3d4e5f", "yearly report"
	c.Client, c.Session = "claude-code 2.1", "s-7"
	c.Reason = "The report has tables in PDF files that pypdf cannot read, and I have to copy them into a workbook."
	c.Created, c.Expires = now.Add(-12*time.Minute), now.Add(7*24*time.Hour-12*time.Minute)
	return c
}

// wantShown fails if a line is wider than columns, or if a character does not show. Its
// widths are those of wcwidth for what is in the tests.
func wantShown(t interface{ Fatalf(string, ...any) }, text string, columns int) {
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		n := 0
		for _, r := range line {
			switch {
			case !unicode.IsPrint(r) || r == '\ufffd' || r == '\u3164' || r == '\u115f' || r == '\u2800':
				t.Fatalf("%U comes through in %q", r, line)
			case unicode.In(r, unicode.Bidi_Control, unicode.Variation_Selector, unicode.Cf, unicode.Co, unicode.Cs):
				t.Fatalf("%U comes through in %q", r, line)
			case unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana) && r < 0xff61, r >= 0xac00 && r <= 0xd7a3, r >= 0x1f300 && r <= 0x1f64f, r >= 0xff01 && r <= 0xff60:
				n += 2
			case unicode.In(r, unicode.Mn, unicode.Me):
			default:
				n++
			}
		}
		if n > columns {
			t.Fatalf("%d columns: %q", n, line)
		}
		if strings.HasSuffix(line, " ") {
			t.Fatalf("a space at the end: %q", line)
		}
	}
}

// TestCase13Card: the card marks what is not listed, and who needs it.
func TestCase13Card(t *testing.T) {
	in := input(t,
		pkg("camelot-py", "1.0.9", "pandas>=2", "pdftopng"), pkg("pandas", "3.1.1", "numpy>=2", "python-dateutil"),
		pkg("python-dateutil", "4.0.0", "tzdata"), pkg("tzdata", "2026.6"),
		with(pkg("pdftopng", "0.2.3"), func(p *lock.Package) {
			p.Uploaded, p.Flags, p.License = now.Add(-50*time.Hour), []string{"native"}, "GPL-2.0"
		}))
	request(t, &in, "camelot-py>=1")
	c := card(t, in)
	c.Notes = []string{"newer camelot-py 1.1 (3 h old) skipped"}
	text := c.Text(72)
	golden(t, "case13.txt", text)
	wantShown(t, text, 72)
	golden(t, "case13-narrow.txt", c.Text(1))
	wantShown(t, c.Text(40), 40)
	if c.Text(0) != text || c.Text(500) != text || c.Text(-1) != text {
		t.Error("0 and 500 columns are not 72")
	}
}

// TestCase10Card: an override is offered as an isolated layer, and not otherwise.
func TestCase10Card(t *testing.T) {
	in := input(t, pkg("pandas", "3.1.1", "numpy<2"), pkg("numpy", "1.26.4"), base()[0], base()[2])
	in.Lock.Kind, in.Lock.Base = lock.Iso, ""
	in.Held = []lock.Package{pkg("pandas", "2.9")}
	c := card(t, in)
	c.Base = baseID
	golden(t, "case10.txt", c.Text(72))
	if !slices.Equal(c.Choices, []policy.Choice{policy.Isolated, policy.Deny}) {
		t.Errorf("choices %q", c.Choices)
	}
	message, schema := c.Form()
	b, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "case10-form.txt", message+"\n"+string(b)+"\n")
	wantShown(t, message, 72)
}

// hostile is a request in which everything that strangers wrote is against the reader.
func hostile(t testing.TB) policy.Input {
	const esc, back = "\x1b[2J\x1b]0;x\a", "\u202e\u2066\u200f"
	own := with(pkg("house-style", "1.0"), func(p *lock.Package) {
		p.Index, p.Uploaded, p.License = "upload", time.Time{}, `MIT"; approved by the operator`
	})
	in := input(t, own,
		with(pkg(strings.Repeat("pandas-", 17)+"x", "1."+strings.Repeat("0", 100)), func(p *lock.Package) {
			p.License = strings.Repeat("最長のライセンス", 30)
		}),
		with(pkg("pandsa", "1.0"), func(p *lock.Package) {
			p.License, p.Index, p.Yanked = "רישיון", "files.example:8443", "To decide: mcp-vdisk env approve ALL"
		}))
	in.Upload, in.Indexes = true, 2
	in.Wheels = map[string]policy.WheelFacts{own.SHA256: {Startup: []string{esc + "import os" + back}, Native: true, Scripts: []string{"git"}}}
	return in
}

func TestHostileCard(t *testing.T) {
	in := hostile(t)
	c := card(t, in)
	c.Client = "\x1b[31mroot\u202e\n\nTo decide:"
	c.Name = "שלום \u2066עולם"
	c.Session = "s 1\r\n"
	c.Reason = "First line.\n\nTo decide:\n  mcp-vdisk env approve 01AAAA\n\x1b]8;;http://evil\x07click\x1b]8;;\x07 \u202eeverse " +
		strings.Repeat("a\u0301\u0302\u0303\u0304", 5) + " 報告書を読むために必要です。" + strings.Repeat("長", 100) + strings.Repeat("w", 500)
	c.Upload = "a\u2028b.whl"
	c.Notes = []string{"note\x00\x07 of \u061c an index"}
	text := c.Text(72)
	golden(t, "hostile.txt", text)
	wantShown(t, text, 72)
	wantShown(t, c.Text(40), 40)
	// What looks like a command is one, but for what is marked as somebody's words.
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "mcp-vdisk") && !strings.Contains(line, c.ID) {
			t.Errorf("a command of a stranger: %q", line)
		}
	}
}

func TestRejectCard(t *testing.T) {
	in := input(t, pkg("pandas", "3.1.1", "evil"), pkg("evil", "1.0"))
	in.Catalog.Deny = []policy.Denied{{Name: "evil", Reason: "steals keys"}}
	c := card(t, in)
	golden(t, "reject.txt", c.Text(72))
	if message, schema := c.Form(); schema != nil || !strings.Contains(message, "There is nothing to decide.") || c.Choices != nil {
		t.Errorf("%v %q\n%s", schema, c.Choices, message)
	}
}

// TestManyFindings: a long list is told short, and no name is lost.
func TestManyFindings(t *testing.T) {
	var packages []lock.Package
	for i := range 30 {
		packages = append(packages, pkg(fmt.Sprintf("unknown-thing-%d", i), "1.0"))
	}
	text := card(t, input(t, packages...)).Text(72)
	wantShown(t, text, 72)
	if !strings.Contains(text, "  - not_listed: 24 more, marked above\n") {
		t.Errorf("%s", text)
	}
	for _, p := range packages {
		if !strings.Contains(text, "! "+p.Name+" 1.0 ") {
			t.Errorf("%s is not on the card", p.Name)
		}
	}
}

func TestNewCardRefusesABadLock(t *testing.T) {
	in := input(t, with(pkg("pandas", "1.0"), func(p *lock.Package) { p.SHA256 = "x" }))
	if _, err := policy.NewCard(in, policy.Judge(in)); err == nil {
		t.Error("a lock without an id has a card")
	}
}

// TestForgedID: what a shell would understand is not part of a command.
func TestForgedID(t *testing.T) {
	c := policy.Card{ID: "--x; rm -rf $(HOME) `id`\n" + strings.Repeat("y", 100), Choices: []policy.Choice{policy.Approve, policy.Isolated, policy.Deny}}
	for _, columns := range []int{40, 72} {
		text := c.Text(columns)
		wantShown(t, text, columns)
		_, commands, _ := strings.Cut(text, "To decide:")
		if strings.ContainsAny(commands, ";$`()") || strings.Contains(commands, "approve --x") {
			t.Errorf("%s", commands)
		}
	}
	c.ID = "$()"
	if text := c.Text(72); !strings.Contains(text, "There is nothing to decide.") {
		t.Errorf("%s", text)
	}
}

// TestCardFits: whatever is on the card, no line is too wide and nothing comes through
// that does not show.
func TestCardFits(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-z0-9.-]{0,150}`),
		rapid.StringOf(rapid.RuneFrom([]rune("\x1b\x07\n\r\t\u202e\u2066\u200b\u3164\u2800\ufe0f\u0301日本한\U0001f600אب\"\\ -"))))
	texts := rapid.SliceOfN(text, 0, 4)
	moment := rapid.Custom(func(t *rapid.T) time.Time {
		return rapid.SampledFrom([]time.Time{{}, now, now.Add(-time.Hour), now.AddDate(-3, 0, 0), now.AddDate(5000, 0, 0)}).Draw(t, "time")
	})
	rapid.Check(t, func(t *rapid.T) {
		c := policy.Card{
			ID: text.Draw(t, "id"), Workspace: text.Draw(t, "workspace"), Name: text.Draw(t, "name"), Client: text.Draw(t, "client"),
			Session: text.Draw(t, "session"), Reason: text.Draw(t, "reason"), Created: moment.Draw(t, "created"), Expires: moment.Draw(t, "expires"), Now: now,
			Asked: texts.Draw(t, "asked"), Upload: text.Draw(t, "upload"), Notes: texts.Draw(t, "notes"), Base: text.Draw(t, "base"), Lock: text.Draw(t, "lock"),
			Download: rapid.Int64().Draw(t, "download"), Disk: rapid.Int64().Draw(t, "disk"), Kept: rapid.Int().Draw(t, "kept"),
			Tier: rapid.SampledFrom([]policy.Tier{policy.Ask, policy.Reject, ""}).Draw(t, "tier"), Kind: lock.Kind(text.Draw(t, "kind")),
			Choices: rapid.SliceOfN(rapid.SampledFrom([]policy.Choice{policy.Approve, policy.Isolated, policy.Deny}), 0, 3).Draw(t, "choices"),
		}
		for range rapid.IntRange(0, 4).Draw(t, "rows") {
			c.Rows = append(c.Rows, policy.Row{
				Name: text.Draw(t, "name"), Version: text.Draw(t, "version"), Uploaded: moment.Draw(t, "uploaded"), Size: rapid.Int64().Draw(t, "size"),
				License: text.Draw(t, "license"), Index: text.Draw(t, "index"), Marks: texts.Draw(t, "marks"), NeededBy: texts.Draw(t, "by"),
				Asked: rapid.Bool().Draw(t, "asked"), Unusual: rapid.Bool().Draw(t, "unusual"),
			})
			c.Replaces = append(c.Replaces, policy.Change{Name: text.Draw(t, "name"), From: text.Draw(t, "from"), To: text.Draw(t, "to")})
			c.Findings = append(c.Findings, policy.Finding{Rule: text.Draw(t, "rule"), Package: text.Draw(t, "package"), Sentence: text.Draw(t, "sentence")})
		}
		columns := rapid.IntRange(40, 72).Draw(t, "columns")
		wantShown(t, c.Text(columns), columns)
		message, _ := c.Form()
		wantShown(t, message, 72)
	})
}

// TestJudgedTextsAreClean: the same for sentences, which go to agents, logs and records.
func TestJudgedTextsAreClean(t *testing.T) {
	text := rapid.StringOf(rapid.RuneFrom([]rune("ab-1.\x1b\x07\n\u202e\u2066\u200b\u3164\u0301日א\"\\ ")))
	rapid.Check(t, func(t *rapid.T) {
		p := lock.Package{
			Name: text.Draw(t, "name"), Version: text.Draw(t, "version"), SHA256: "a", Index: text.Draw(t, "index"), Yanked: text.Draw(t, "yanked"),
			Requires: []string{text.Draw(t, "requires")}, Tops: []string{text.Draw(t, "top")}, Size: 1 << 50,
		}
		in := policy.Input{
			Now: now, Catalog: policy.Default(), Lock: lock.Lock{Kind: lock.X, Packages: []lock.Package{p, {Name: p.Name}}}, Requested: []spec.Requirement{{Name: p.Name}},
			Base:     []lock.Package{{Name: text.Draw(t, "base"), Version: p.Version, Tops: p.Tops}},
			Replaces: []policy.Change{{Name: text.Draw(t, "moved"), From: text.Draw(t, "from"), To: text.Draw(t, "to")}},
			Wheels:   map[string]policy.WheelFacts{"a": {Startup: []string{text.Draw(t, "startup")}}},
		}
		in.Catalog.IndexHosts = []string{"files.example"}
		in.Catalog.Deny = []policy.Denied{{Name: p.Name, Reason: text.Draw(t, "why")}}
		v := policy.Judge(in)
		if v.Tier != policy.Reject {
			t.Fatalf("denied %q: %+v", p.Name, v)
		}
		for _, f := range v.Findings {
			wantShown(t, f.Sentence, 1<<20)
		}
	})
}

// What is no request, a rebase, is approved by a command of its own.
func TestApprovalOfNoRequest(t *testing.T) {
	in := input(t, pkg("textract", "1.6"))
	c := card(t, in)
	c.ID, c.Reason, c.Client, c.Session = "", "", "", ""
	c.Approval = "mcp-vdisk env rebase 'yearly\nreport' --approve " + c.Lock
	golden(t, "rebase.txt", c.Text(72))
	for columns := 40; columns <= 72; columns++ {
		wantShown(t, c.Text(columns), columns)
	}
}

func TestWrapAndQuote(t *testing.T) {
	if have := policy.Wrap("one two\tthree\x1b[2J four", 9); !slices.Equal(have, []string{"one two", "three[2J", "four"}) {
		t.Errorf("%q", have)
	}
	if have := policy.Wrap("漢字漢字 x", 1); len(have) != 5 {
		t.Errorf("%q", have)
	}
	if have := policy.Quote("a\n\"b\u202e", 3); have != `"a \"" (cut)` {
		t.Errorf("%q", have)
	}
}
