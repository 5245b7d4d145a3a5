package spec_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

func TestCase16BadSpec(t *testing.T) {
	for name, text := range map[string]string{
		"url":            "pkg @ https://example.org/pkg.zip",
		"bare url":       "https://example.org/pkg.whl",
		"file url":       "pkg@file:///etc/passwd",
		"path":           "./x.whl",
		"wheel name":     "x-1.0-py3-none-any.whl",
		"absolute path":  "/tmp/x",
		"windows path":   `..\x`,
		"vcs":            "git+https://example.org/x",
		"requirements":   "-r f",
		"index option":   "--index-url=http://example.org",
		"hash option":    "foo==1 --hash=sha256:00",
		"option behind":  "foo --pre",
		"201 bytes":      "foo==" + strings.Repeat("1", 196),
		"NUL":            "foo\x00",
		"newline":        "foo\nbar",
		"newline at end": "foo\n",
		"marker":         `foo; python_version < "3"`,
		"empty":          "",
		"blank":          "  ",
		"two":            "foo bar",
		"not UTF-8":      "foo\xff",
		"not ASCII":      "foö",
		"kelvin sign":    "pac\u212aage",
		"long s":         "reque\u017fts",
		"bad condition":  "foo>>1",
		"bare version":   "foo 1.0",
		"shell":          "foo$(id)",
		"substitution":   "foo`id`",
		"quote":          `foo"`,
		"variable":       "${HOME}",
		"comment":        "foo #x",
		"continued":      "foo \\",
		"open bracket":   "foo[a",
		"arbitrary tail": "foo===1 --x",
	} {
		if r, err := spec.ParseRequest(text); !errors.Is(err, spec.ErrBadSpec) {
			t.Errorf("%s: %q gave %v, %v", name, text, r, err)
		} else if msg := err.Error(); len(msg) > 300 || strings.ContainsAny(msg, "\n\x00") || !strings.HasPrefix(msg, "bad_spec: ") {
			t.Errorf("%s: the error reads %q", name, msg)
		}
	}
}

func TestRequest(t *testing.T) {
	for text, want := range map[string]string{
		"pandas":                          "pandas",
		"Pandas ":                         "pandas",
		"\tpandas":                        "pandas",
		"Scikit_Learn":                    "scikit-learn",
		"zope.interface":                  "zope-interface",
		"Foo[B,a , B] >= 1.0 ,<2,>=1.0":   "foo[a,b]<2,>=1.0",
		"foo (>=1)":                       "foo>=1",
		"foo == 1.0.*":                    "foo==1.0.*",
		"foo~=1.4.2":                      "foo~=1.4.2",
		"foo==1.0+Local-1":                "foo==1.0+local.1",
		"foo===weird":                     "foo===weird",
		"foo==" + strings.Repeat("1", 19): "foo==" + strings.Repeat("1", 19),
	} {
		r, err := spec.ParseRequest(text)
		if err != nil || r.String() != want {
			t.Errorf("%q is %q, %v; want %q", text, r, err, want)
		}
		if again, err := spec.ParseRequest(want); err != nil || again.String() != want {
			t.Errorf("%q does not stay what it is: %q, %v", want, again, err)
		}
	}
}

func TestRequestsHaveOneForm(t *testing.T) {
	got, err := spec.ParseRequests([]string{"scipy", "Pandas>=2,<3", "pandas <3, >=2", "scipy "})
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, r := range got {
		texts = append(texts, r.String())
	}
	if want := []string{"pandas<3,>=2", "scipy"}; !slices.Equal(texts, want) {
		t.Errorf("got %q, want %q", texts, want)
	}
	for name, list := range map[string][]string{
		"none": {}, "21": slices.Repeat([]string{"foo"}, 21), "one bad": {"foo", "./bar"},
	} {
		if _, err := spec.ParseRequests(list); !errors.Is(err, spec.ErrBadSpec) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNormalizeName(t *testing.T) {
	for name, want := range map[string]string{
		"foo": "foo", "Foo": "foo", "fOo": "foo", "foo.bar": "foo-bar", "Foo.Bar": "foo-bar", "Foo.....Bar": "foo-bar",
		"foo_bar": "foo-bar", "foo___bar": "foo-bar", "foo-bar": "foo-bar", "foo----bar": "foo-bar", "a-_.b": "a-b", "x1": "x1",
	} {
		if got := spec.NormalizeName(name); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
		if !spec.ValidName(name) {
			t.Errorf("%q is not valid", name)
		}
	}
	for _, name := range []string{"", "-", "-a", "a-", "a b", "ä", "a/b", "a\n", "..", strings.Repeat("a", 129)} {
		if spec.ValidName(name) {
			t.Errorf("%q is valid", name)
		}
	}
}

func TestExactPin(t *testing.T) {
	for text, want := range map[string]string{"==1.0": "1.0", ">=1,==1.2": "1.2", "===1.0": "1.0", ">=1": "", "==1.*": "", "": ""} {
		s, err := spec.ParseSpecifiers(text)
		if err != nil {
			t.Fatal(err)
		}
		v, ok := s.Exact()
		if ok != (want != "") || ok && v.String() != want {
			t.Errorf("%q pins %s, %t; want %q", text, v, ok, want)
		}
	}
}

func TestLongTextsAreRefused(t *testing.T) {
	long := strings.Repeat("9", 1<<16)
	if _, err := spec.ParseVersion(long); !errors.Is(err, spec.ErrVersion) {
		t.Errorf("version: %v", err)
	}
	if _, err := spec.ParseRequirement("a>=" + long); !errors.Is(err, spec.ErrBadSpec) {
		t.Errorf("requirement: %v", err)
	}
	if _, err := spec.ParseSpecifiers(strings.Repeat(">=1,", 100)); !errors.Is(err, spec.ErrBadSpec) {
		t.Errorf("specifiers: %v", err)
	}
	if _, err := spec.ParseMarker(strings.Repeat("(", 1000) + "os_name == 'a'"); !errors.Is(err, spec.ErrMarker) {
		t.Errorf("marker: %v", err)
	}
}

// FuzzRequirement: whatever is taken has a normal form that is taken again and
// stays the same, and a request never becomes more than a name and versions.
func FuzzRequirement(f *testing.F) {
	for _, text := range []string{
		"pandas", "Foo[a,B]>=1.0,<2 ; python_version < '3.9' and (extra == 'x' or os_name in \"a b\")", "a @ https://example.org/x.whl ; extra == 'y'",
		"a (==1.0.*)", "a===x", "a ~= 1!2.3.post4.dev5+l.6", "-r f", "a==1 --hash=x", "a\x00", "a[", "[", ";", "a;", "a @", "a~=1.0rc1,!=1.*",
	} {
		f.Add(text)
	}
	env := spec.CPythonLinux("3.12.14", "x86_64")
	v, err := spec.ParseVersion("1.0rc1.post2.dev3+x")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := spec.ParseRequirement(text)
		if err != nil {
			if !errors.Is(err, spec.ErrBadSpec) {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		r.Specifiers.Match(v)
		r.Applies(env, []string{"x"})
		if r.URL == "" {
			again, err := spec.ParseRequirement(r.String())
			if err != nil || again.String() != r.String() {
				t.Fatalf("%q became %q, then %q, %v", text, r, again, err)
			}
		}
		if asked, err := spec.ParseRequest(text); err == nil {
			if s := asked.String(); s[0] == '-' || strings.ContainsAny(s, "/\\@; \t\n\x00") || s != r.String() {
				t.Fatalf("the request %q became %q", text, s)
			}
		}
	})
}

func BenchmarkParseRequest(b *testing.B) {
	for b.Loop() {
		if _, err := spec.ParseRequest("Pandas[excel] >=2.1, <3"); err != nil {
			b.Fatal(err)
		}
	}
}
