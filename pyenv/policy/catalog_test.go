package policy_test

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares with a file of testdata.
func golden(t *testing.T, name, have string) {
	t.Helper()
	name = "testdata/" + name
	if *update {
		if err := os.WriteFile(name, []byte(have), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if have != string(want) {
		t.Errorf("%s differs; look at it, and write it with -update\n%s", name, have)
	}
}

func TestDefault(t *testing.T) {
	b, err := policy.Default().Encode()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "default.json", string(b))
	c, err := policy.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Encode(); err != nil || !bytes.Equal(again, b) {
		t.Errorf("%v\n%s", err, again)
	}
	if c.Caps != (policy.Caps{WheelBytes: 100e6, ClosureBytes: 250e6, Files: 60_000}) || c.CooldownDays != 7 {
		t.Errorf("%+v", c)
	}
}

const small = `{
  "schema": 1,
  "policy_rev": 3,
  "allow": [
    {"name": "Pan_das", "spec": ">= 2 , <4"},
    {"name": "abc"}
  ],
  "deny": [{"name": "evil", "reason": "it is"}],
  "caps": {"wheel_bytes": 1, "closure_bytes": 2, "files": 3},
  "cooldown_days": 0,
  "index_hosts": ["Files.example:8443", "[::1]:80", "find-links"],
  "startup_code": "reject"
}`

func TestParse(t *testing.T) {
	c, err := policy.Parse([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "small.json", string(b))
}

func TestParseRefuses(t *testing.T) {
	swap := func(old, new string) string {
		if !strings.Contains(small, old) {
			t.Fatalf("%q is not in the example", old)
		}
		return strings.Replace(small, old, new, 1)
	}
	for name, c := range map[string]struct{ text, want string }{
		"empty":          {"", "line 1: it is not complete"},
		"cut":            {small[:90], "line 5: it is not complete"},
		"syntax":         {swap(`"abc"}`, `abc}`), "line 6: it is not JSON"},
		"not UTF-8":      {swap("evil", "ev\xffil"), "it is not text in UTF-8"},
		"BOM":            {"\ufeff" + small, "line 1: it is not JSON"},
		"no object":      {"[]", "line 1: it is not an object"},
		"null":           {swap("0,", "null,"), "cooldown_days: line 10: it is not a whole number, or too large"},
		"float":          {swap("0,", "0.5,"), "cooldown_days: line 10: it is not a whole number, or too large"},
		"exponent":       {swap("0,", "1e2,"), "cooldown_days: line 10: it is not a whole number, or too large"},
		"number as text": {swap("0,", `"0",`), "cooldown_days: line 10: it is not a whole number, or too large"},
		"huge":           {swap("0,", "99999999999999999999,"), "cooldown_days: line 10: it is not a whole number, or too large"},
		"no list":        {swap(`[{"name": "evil", "reason": "it is"}]`, `{}`), "deny: line 8: it is not a list"},
		"no text":        {swap(`"evil"`, "5"), "deny[0].name: line 8: it is not a text"},
		"unknown key":    {swap("cooldown_days", "cooldown"), `"cooldown": line 10: the key is not known`},
		"other case":     {swap("startup_code", "Startup_code"), `"Startup_code": line 12: the key is not known`},
		"unknown inside": {swap(`"reason"`, `"why"`), `deny[0]."why": line 8: the key is not known`},
		"escape in key":  {swap(`"reason"`, `"\u001b[2J"`), `deny[0]."[2J": line 8: the key is not known`},
		"double key":     {swap(`"files": 3`, `"files": 3, "files": 4`), "caps.files: line 9: the key is there twice"},
		"missing key":    {swap(`, "files": 3`, ""), "caps.files: line 9: it is missing"},
		"missing at top": {swap("\"cooldown_days\": 0,\n", ""), "cooldown_days: line 12: it is missing"},
		"no name":        {swap(`{"name": "abc"}`, `{"spec": "<2"}`), "allow[1].name: line 6: it is missing"},
		"more":           {small + "\n{}", "line 13: something follows after its end"},
		"bad name":       {swap("evil", "e vil"), `deny[0].name: "e vil" is not the name of a package`},
		"bad spec":       {swap(">= 2 , <4", "latest"), `allow[0].spec: "latest" is no version condition, such as >=1.0,<2`},
		"URL as spec":    {swap(">= 2 , <4", "@ https://x"), `allow[0].spec: "@ https://x" is no version condition, such as >=1.0,<2`},
		"double name":    {swap("abc", "pan-das"), "allow: pan-das is there twice"},
		"double denied":  {swap(`"it is"}`, `"it is"}, {"name": "Evil"}`), "deny: evil is there twice"},
		"double host":    {swap("find-links", "FILES.example:8443"), "index_hosts: files.example:8443 is there twice"},
		"reason":         {swap("it is", "a\\nb"), "deny[0].reason: it is not one line of printable text"},
		"long reason":    {swap("it is", strings.Repeat("x", 501)), "deny[0].reason: 501 bytes are over the limit of 500"},
		"URL as host":    {swap("find-links", "https://files.example/simple"), `index_hosts[2]: "https://files.example/simple" is not a host, such as files.example or files.example:8443`},
		"schema":         {swap(`"schema": 1`, `"schema": 2`), "schema: 2 is not known; this program knows 1"},
		"negative":       {swap("0,", "-1,"), "cooldown_days: -1 is not between 0 and 3650"},
		"no room":        {swap(`"files": 3`, `"files": 0`), "caps.files: 0 is not between 1 and 10000000"},
		"startup":        {swap(`"reject"`, `"allow"`), `startup_code: "allow" is neither "ask" nor "reject"`},
		"too large":      {strings.Repeat(" ", 1<<20) + "{", "1048577 bytes are over the limit of 1048576"},
		"deep":           {swap("[{", strings.Repeat("[", 100_000)), "deny[0]: line 8: it is not an object"},
	} {
		t.Run(name, func(t *testing.T) {
			have, err := policy.Parse([]byte(c.text))
			if !errors.Is(err, policy.ErrInvalid) || err.Error() != "bad_catalog: "+c.want {
				t.Errorf("%v\nwant %s", err, c.want)
			}
			if have.Schema != 0 {
				t.Error("a refused catalog was returned")
			}
		})
	}
}

func TestAllowName(t *testing.T) {
	c := policy.Default()
	c.Deny = []policy.Denied{{Name: "evil"}}
	more, err := c.AllowName("Text_ract", " >=1, <2")
	if err != nil || more.Rev != c.Rev+1 || len(more.Allow) != len(c.Allow)+1 {
		t.Fatalf("%v %+v", err, more)
	}
	again, err := more.AllowName("text-ract", "<2,>=1")
	if err != nil || again.Rev != more.Rev {
		t.Errorf("the same again: revision %d, %v", again.Rev, err)
	}
	other, err := more.AllowName("text-ract", "")
	if err != nil || other.Rev != more.Rev+1 || len(other.Allow) != len(more.Allow) {
		t.Errorf("other versions: revision %d, %v", other.Rev, err)
	}
	if _, err := c.AllowName("Evil", ""); !errors.Is(err, policy.ErrDenied) {
		t.Errorf("a denied name: %v", err)
	}
	for _, bad := range [][2]string{{"", ""}, {"a b", ""}, {"-r", ""}, {"foo", "latest"}, {"foo", "@ https://x"}} {
		if _, err := c.AllowName(bad[0], bad[1]); !errors.Is(err, policy.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	c.Rev = 1<<31 - 1
	if _, err := c.AllowName("foo", ""); !errors.Is(err, policy.ErrInvalid) {
		t.Errorf("the last revision: %v", err)
	}
	in := input(t, pkg("text-ract", "1.5"))
	in.Catalog = more
	wantRules(t, policy.Judge(in), policy.Auto)
}

// FuzzParse: what is taken is written in one form, which gives the same catalog.
func FuzzParse(f *testing.F) {
	b, err := policy.Default().Encode()
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{small, string(b), "{}", "[", `{"schema":1,"schema":1}`, small[:200]} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := policy.Parse(b)
		if err != nil {
			if !errors.Is(err, policy.ErrInvalid) {
				t.Fatalf("another error: %v", err)
			}
			wantShown(t, err.Error(), 1<<20)
			return
		}
		first, err := c.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := policy.Parse(first)
		if err != nil {
			t.Fatalf("%v\n%s", err, first)
		}
		if second, err := again.Encode(); err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%v\n%s\n%s", err, first, second)
		}
		for _, e := range c.Allow {
			if _, err := spec.ParseRequest(e.Name + e.Spec); err != nil && len(e.Name+e.Spec) <= spec.MaxRequest {
				t.Fatalf("the list has what nobody can ask for: %v", err)
			}
		}
	})
}

func TestDenyName(t *testing.T) {
	c, err := policy.Default().AllowName("text-ract", ">=1")
	if err != nil {
		t.Fatal(err)
	}
	no, err := c.DenyName("Text_Ract", "it sends files away")
	if err != nil || no.Rev != c.Rev+1 || len(no.Allow) != len(c.Allow)-1 {
		t.Fatalf("%v %+v", err, no)
	}
	if want := []policy.Denied{{Name: "text-ract", Reason: "it sends files away"}}; !slices.Equal(no.Deny, want) {
		t.Errorf("%+v", no.Deny)
	}
	again, err := no.DenyName("text-ract", "it sends files away")
	if err != nil || again.Rev != no.Rev {
		t.Errorf("the same again: revision %d, %v", again.Rev, err)
	}
	other, err := no.DenyName("text-ract", "")
	if err != nil || other.Rev != no.Rev+1 || len(other.Deny) != 1 || other.Deny[0].Reason != "" {
		t.Errorf("without its reason: %v %+v", err, other.Deny)
	}
	if len(c.Deny) != 0 || len(no.Deny) != 1 || no.Deny[0].Reason == "" {
		t.Error("the catalog that was given has changed")
	}
	in := input(t, pkg("text-ract", "1.5"))
	in.Catalog = no
	wantRules(t, policy.Judge(in), policy.Reject, policy.DeniedName, policy.NotListed)
	for _, bad := range [][2]string{{"", ""}, {"a b", ""}, {"-r", ""}, {"foo", "two\nlines"}, {"foo", "\x1b[2J"}, {"foo", strings.Repeat("x", 501)}, {"foo", " "}} {
		if _, err := c.DenyName(bad[0], bad[1]); !errors.Is(err, policy.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	c.Rev = 1<<31 - 1
	if _, err := c.DenyName("foo", ""); !errors.Is(err, policy.ErrInvalid) {
		t.Errorf("the last revision: %v", err)
	}
}

func TestRemoveName(t *testing.T) {
	c := policy.Default()
	c.Deny = []policy.Denied{{Name: "evil"}}
	for _, name := range []string{"Evil", "pandas"} {
		less, err := c.RemoveName(name)
		if err != nil || less.Rev != c.Rev+1 || len(less.Allow)+len(less.Deny) != len(c.Allow)+len(c.Deny)-1 {
			t.Errorf("%s: revision %d, %v", name, less.Rev, err)
		}
	}
	if same, err := c.RemoveName("never-heard-of"); err != nil || same.Rev != c.Rev {
		t.Errorf("what is on no list: revision %d, %v", same.Rev, err)
	}
	if _, err := c.RemoveName("a b"); !errors.Is(err, policy.ErrInvalid) {
		t.Errorf("no name: %v", err)
	}
	if len(c.Deny) != 1 {
		t.Error("the catalog that was given has changed")
	}
}

func TestParseEntry(t *testing.T) {
	e, err := policy.ParseEntry(" Pan_das >= 2 , <4")
	if want := (policy.Entry{Name: "pan-das", Spec: "<4,>=2"}); err != nil || e != want {
		t.Errorf("%+v, %v", e, err)
	}
	if e, err := policy.ParseEntry("foo"); err != nil || e != (policy.Entry{Name: "foo"}) {
		t.Errorf("%+v, %v", e, err)
	}
	for _, bad := range []string{"", "foo[bar]", "foo; python_version<'3'", "foo @ https://x", "--index-url=x", "./foo.whl", "foo\x1b[2J", "é", strings.Repeat("x", 300)} {
		if _, err := policy.ParseEntry(bad); !errors.Is(err, policy.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		} else {
			wantShown(t, err.Error(), 300)
		}
	}
}
