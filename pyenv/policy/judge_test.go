package policy_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
)

// TestCase07Listed: what the catalog lists, with all that it needs, is installed.
func TestCase07Listed(t *testing.T) {
	in := input(t, pkg("pandas", "3.1.1", "numpy>=2", "python-dateutil>=2.9"), pkg("python-dateutil", "4.0.0", "tzdata"), pkg("tzdata", "2026.6"))
	v := policy.Judge(in)
	wantRules(t, v, policy.Auto)
	if v.Findings != nil {
		t.Errorf("findings %+v", v.Findings)
	}
	t.Run("nothing new", func(t *testing.T) {
		in := input(t)
		request(t, &in, "numpy")
		wantRules(t, policy.Judge(in), policy.Auto)
	})
	t.Run("zero catalog", func(t *testing.T) {
		in.Catalog = policy.Catalog{}
		if v := policy.Judge(in); v.Tier != policy.Ask || !slices.Contains(rules(v), policy.NotListed) {
			t.Errorf("%+v", v)
		}
	})
}

// TestCase10Override: another version of a package of the base is a person's decision.
func TestCase10Override(t *testing.T) {
	in := input(t, pkg("pandas", "3.1.1", "numpy<2"), pkg("numpy", "1.26.4"))
	in.Lock.Kind, in.Lock.Base = lock.Iso, ""
	want := "numpy 2.4.6 of the base becomes 1.26.4, so the workspace needs a layer of its own in the place of the base; pandas 3.1.1 needs it"
	for name, replaces := range map[string][]policy.Change{"told": {{Name: "numpy", From: "2.4.6", To: "1.26.4"}}, "seen": nil} {
		t.Run(name, func(t *testing.T) {
			in.Replaces = replaces
			v := policy.Judge(in)
			wantRules(t, v, policy.Ask, policy.Override)
			wantSentence(t, v, want)
			if v.Findings[0].Package != "numpy" {
				t.Errorf("it is about %q", v.Findings[0].Package)
			}
		})
	}
	t.Run("told alone", func(t *testing.T) {
		in := input(t, pkg("pandas", "3.1.1"))
		in.Replaces = []policy.Change{{Name: "numpy", From: "2.4.6", To: "1.26.4"}}
		wantRules(t, policy.Judge(in), policy.Ask, policy.Override)
	})
	t.Run("another file", func(t *testing.T) {
		in := input(t, with(pkg("numpy", "2.4.6"), func(p *lock.Package) { p.SHA256 = strings.Repeat("e", 64) }))
		v := policy.Judge(in)
		wantRules(t, v, policy.Ask, policy.Override)
		if !strings.Contains(v.Findings[0].Sentence, "numpy 2.4.6 comes in another file than that of the base") {
			t.Error(v.Findings[0].Sentence)
		}
	})
	t.Run("the conflict itself", func(t *testing.T) {
		v := policy.FromRefusal("conflict_with_base", "foo 1.0 needs bar>=2, but bar 1.0 is pinned by "+baseID)
		wantRules(t, v, policy.Reject, "conflict_with_base")
		wantSentence(t, v, "foo 1.0 needs bar>=2, but bar 1.0 is pinned by "+baseID)
	})
}

// TestCase12NotListed: what the catalog does not list waits for a person.
func TestCase12NotListed(t *testing.T) {
	v := policy.Judge(input(t, pkg("textract", "1.6.5")))
	wantRules(t, v, policy.Ask, policy.NotListed)
	wantSentence(t, v, "textract 1.6.5 is not on the list of what is installed without asking; it was asked for")
	for name, c := range map[string]struct{ spec, version, want string }{
		"too new":     {"<3", "3.1.1", "pandas 3.1.1 is not among the versions that are installed without asking, pandas<3; it was asked for"},
		"pre-release": {"", "4.0rc1", "pandas 4.0rc1 is a pre-release, and the list is about releases; it was asked for"},
		"no version":  {"", "newest", "pandas newest does not have a version that can be compared with the list; it was asked for"},
		"bad list":    {"<<3", "1.0", "pandas 1.0 is not among the versions that are installed without asking, pandas<<3; it was asked for"},
		"fits":        {"<4,>=3", "3.1.1", ""},
		"pre fits":    {">=4.0rc1", "4.0rc1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t, pkg("pandas", c.version))
			in.Catalog.Allow = []policy.Entry{{Name: "pandas", Spec: c.spec}}
			if v := policy.Judge(in); c.want == "" {
				wantRules(t, v, policy.Auto)
			} else {
				wantRules(t, v, policy.Ask, policy.NotListed)
				wantSentence(t, v, c.want)
			}
		})
	}
}

// TestCase13Closure: a listed package does not bring in what is not.
func TestCase13Closure(t *testing.T) {
	in := input(t,
		pkg("pandas", "3.1.1", "helper>=1", `windows-only; sys_platform == "win32"`, `excel-thing; extra == "excel"`),
		pkg("helper", "1.0", "deep[speed]"), pkg("deep", "2.0", `quick; extra == "speed"`), pkg("quick", "0.1"),
		pkg("excel-thing", "1.0"))
	v := policy.Judge(in)
	wantRules(t, v, policy.Ask, policy.NotListed, policy.NotListed, policy.NotListed, policy.NotListed)
	var sentences []string
	for _, f := range v.Findings {
		sentences = append(sentences, strings.TrimPrefix(f.Sentence, f.Package+" "))
	}
	const not = " is not on the list of what is installed without asking"
	want := []string{"2.0" + not + "; helper 1.0 needs it", "1.0" + not, "1.0" + not + "; pandas 3.1.1 needs it", "0.1" + not + "; deep 2.0 needs it"}
	if !slices.Equal(sentences, want) {
		t.Errorf("%q\nwant %q", sentences, want)
	}
	t.Run("extra", func(t *testing.T) {
		request(t, &in, "pandas[excel]")
		if f := policy.Judge(in).Findings[1]; f.Sentence != "excel-thing 1.0"+not+"; pandas 3.1.1 needs it" {
			t.Error(f.Sentence)
		}
	})
	t.Run("many", func(t *testing.T) {
		in := input(t, pkg("pandas", "1", "x"), pkg("scipy", "1", "x"), pkg("rich", "1", "x"), pkg("regex", "1", "x"), pkg("tqdm", "1", "x"), pkg("x", "1"))
		request(t, &in, "pandas", "scipy", "rich", "regex", "tqdm")
		wantSentence(t, policy.Judge(in), "x 1"+not+"; pandas 1, regex 1, rich 1 and 2 more need it")
	})
}

// TestCase44Yanked: a withdrawn version is told with the author's reason.
func TestCase44Yanked(t *testing.T) {
	for reason, want := range map[string]string{
		"yanked":             "pandas 3.1.0 was withdrawn by its author (yanked)",
		"\x1b[2J":            `pandas 3.1.0 was withdrawn by its author (yanked): "[2J"`,
		"broken\n\"on\" 日本":  `pandas 3.1.0 was withdrawn by its author (yanked): "broken \"on\" 日本"`,
		"שלום\u202e evil":    `pandas 3.1.0 was withdrawn by its author (yanked): "\u{5e9}\u{5dc}\u{5d5}\u{5dd} evil"`,
		"\u200b\u2066\u3164": "pandas 3.1.0 was withdrawn by its author (yanked)",
	} {
		v := policy.Judge(input(t, with(pkg("pandas", "3.1.0"), func(p *lock.Package) { p.Yanked = reason })))
		wantRules(t, v, policy.Ask, policy.Yanked)
		wantSentence(t, v, want)
	}
}

// TestCase45Cooldown: what is younger than the catalog's days waits, and so does what
// nobody knows the age of.
func TestCase45Cooldown(t *testing.T) {
	for name, c := range map[string]struct {
		uploaded time.Time
		index    string
		want     string
	}{
		"old":     {now.Add(-7 * 24 * time.Hour), "files.example", ""},
		"almost":  {now.Add(-7*24*time.Hour + time.Second), "files.example", "pandas 2.1 was uploaded 6 days ago; the catalog asks for 7 days"},
		"young":   {now.Add(-3 * time.Hour), "files.example", "pandas 2.1 was uploaded 3 hours ago; the catalog asks for 7 days"},
		"just":    {now, "files.example", "pandas 2.1 was uploaded 0 minutes ago; the catalog asks for 7 days"},
		"future":  {now.Add(time.Hour), "files.example", "pandas 2.1 is from the future by the clock of this host, so its age is not known"},
		"unknown": {time.Time{}, "files.example", "the index does not tell when pandas 2.1 was uploaded; the catalog asks for 7 days"},
		"import":  {time.Time{}, "import", ""},
		"year 1":  {time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC), "files.example", ""},
		"9999":    {time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), "files.example", "pandas 2.1 is from the future by the clock of this host, so its age is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t, with(pkg("pandas", "2.1"), func(p *lock.Package) { p.Uploaded, p.Index = c.uploaded, c.index }))
			v := policy.Judge(in)
			if c.want == "" {
				wantRules(t, v, policy.Auto)
			} else {
				wantRules(t, v, policy.Ask, policy.Cooldown)
				wantSentence(t, v, c.want)
			}
			in.Catalog.CooldownDays = 0
			wantRules(t, policy.Judge(in), policy.Auto)
		})
	}
}

// TestCase47Size: sizes that the index tells are enough to ask, without a wheel.
func TestCase47Size(t *testing.T) {
	sized := func(name string, n int64) lock.Package {
		return with(pkg(name, "1.0"), func(p *lock.Package) { p.Size = n })
	}
	t.Run("wheel", func(t *testing.T) {
		v := policy.Judge(input(t, sized("pandas", 120e6)))
		wantRules(t, v, policy.Ask, policy.SizeWheel)
		wantSentence(t, v, "pandas 1.0 is a wheel of 120.0 MB; the limit for one is 100.0 MB")
	})
	t.Run("closure", func(t *testing.T) {
		v := policy.Judge(input(t, sized("pandas", 100e6), sized("scipy", 100e6), sized("tqdm", 100e6)))
		wantRules(t, v, policy.Ask, policy.SizeClosure)
		wantSentence(t, v, "3 wheels of 300.0 MB have to be downloaded; the limit is 250.0 MB")
	})
	t.Run("at the limits", func(t *testing.T) {
		wantRules(t, policy.Judge(input(t, sized("pandas", 100e6), sized("scipy", 100e6), sized("tqdm", 50e6))), policy.Auto)
	})
	t.Run("no sum overflows", func(t *testing.T) {
		v := policy.Judge(input(t, sized("pandas", math.MaxInt64), sized("scipy", math.MaxInt64)))
		wantRules(t, v, policy.Ask, policy.SizeWheel, policy.SizeWheel, policy.SizeClosure)
	})
	t.Run("no negative size makes room", func(t *testing.T) {
		v := policy.Judge(input(t, sized("pandas", math.MinInt64), sized("scipy", 300e6)))
		wantRules(t, v, policy.Ask, policy.SizeWheel, policy.SizeClosure)
	})
	t.Run("the file is larger than the index says", func(t *testing.T) {
		p := sized("pandas", 1)
		in := input(t, p)
		in.Wheels = map[string]policy.WheelFacts{p.SHA256: {Size: 120e6}}
		wantRules(t, policy.Judge(in), policy.Ask, policy.SizeWheel)
	})
	t.Run("files", func(t *testing.T) {
		p := sized("pandas", 1)
		in := input(t, p)
		in.Catalog.Caps.Files = 2
		in.Wheels = map[string]policy.WheelFacts{p.SHA256: {Paths: []string{"a", "b", "c"}}}
		v := policy.Judge(in)
		wantRules(t, v, policy.Ask, policy.SizeClosure)
		wantSentence(t, v, "3 files are installed; the limit is 2")
	})
	t.Run("what is here is not downloaded", func(t *testing.T) {
		in := input(t, sized("pandas", 120e6), sized("scipy", 300e6))
		in.Held = slices.Clone(in.Lock.Packages)
		wantRules(t, policy.Judge(in), policy.Auto)
	})
}

func TestDenied(t *testing.T) {
	in := input(t, pkg("pandas", "3.1.1", "evil"), pkg("evil", "1.0"))
	in.Catalog.Deny = []policy.Denied{{Name: "evil", Reason: "steals keys"}}
	in.Catalog.Allow = append(in.Catalog.Allow, policy.Entry{Name: "evil"})
	want := `evil 1.0 is never installed here, the operator's catalog says: "steals keys"; pandas 3.1.1 needs it`
	v := policy.Judge(in)
	wantRules(t, v, policy.Reject, policy.DeniedName)
	wantSentence(t, v, want)
	t.Run("also when it is here", func(t *testing.T) {
		in.Held = slices.Clone(in.Lock.Packages)
		wantRules(t, policy.Judge(in), policy.Reject, policy.DeniedName)
	})
	t.Run("before anything was resolved", func(t *testing.T) {
		in := input(t)
		request(t, &in, "Evil>=2")
		in.Catalog.Deny = []policy.Denied{{Name: "evil"}}
		wantSentence(t, policy.Judge(in), "evil is never installed here, the operator's catalog says; it was asked for")
	})
	t.Run("worst first", func(t *testing.T) {
		in := input(t, pkg("aaa-unknown", "1.0"), pkg("evil", "1.0"))
		in.Catalog.Deny, in.Indexes = []policy.Denied{{Name: "evil"}}, 2
		wantRules(t, policy.Judge(in), policy.Reject, policy.DeniedName, policy.NotListed, policy.NotListed, policy.SeveralIndexes)
	})
}

func TestUpload(t *testing.T) {
	own := with(pkg("house-style", "1.0", "pandas"), func(p *lock.Package) {
		p.Index, p.Uploaded, p.Size = "upload", time.Time{}, 40_000
	})
	in := input(t, own, pkg("pandas", "3.1.1"))
	in.Upload = true
	v := policy.Judge(in)
	wantRules(t, v, policy.Ask, policy.Upload)
	wantSentence(t, v, "house-style 1.0 is a wheel of the workspace: no index knows it, and whoever can write there may have made it")
	in.Upload = false
	wantRules(t, policy.Judge(in), policy.Ask, policy.Upload)
	t.Run("of a listed name", func(t *testing.T) {
		wantRules(t, policy.Judge(input(t, with(pkg("pandas", "99"), func(p *lock.Package) { p.Flags = []string{"upload"} }))), policy.Ask, policy.Upload)
	})
	t.Run("without a mark", func(t *testing.T) {
		in := input(t, pkg("pandas", "3.1.1"))
		in.Upload = true
		wantRules(t, policy.Judge(in), policy.Ask, policy.Upload)
	})
}

func TestStartupCode(t *testing.T) {
	p := pkg("pandas", "3.1.1")
	in := input(t, p)
	in.Wheels = map[string]policy.WheelFacts{p.SHA256: {Startup: []string{"import os;\x1b[31m os.system('x')", "import b", "import c"}}}
	v := policy.Judge(in)
	wantRules(t, v, policy.Ask, policy.StartupCode)
	wantSentence(t, v, `pandas 3.1.1 has code that would run at every start of Python: "import os;[31m os.system('x')" and 2 more lines`)
	in.Catalog.StartupCode = policy.StartupReject
	wantRules(t, policy.Judge(in), policy.Reject, policy.StartupCode)
	flagged := input(t, with(p, func(p *lock.Package) { p.Flags = []string{"startup_code"} }))
	wantRules(t, policy.Judge(flagged), policy.Ask, policy.StartupCode)
}

func TestImportCollision(t *testing.T) {
	held, a, b := pkg("seen", "1.0"), pkg("pandas", "1.0"), pkg("scipy", "1.0")
	docx := base()[2]
	module := func(name string) policy.WheelFacts {
		return policy.WheelFacts{Tops: []policy.Top{{Name: name, Package: true}}, Paths: []string{"site-packages/" + name + "/__init__.py"}}
	}
	space := func(name, part string) policy.WheelFacts {
		return policy.WheelFacts{Tops: []policy.Top{{Name: name}}, Paths: []string{"site-packages/" + name + "/" + part + ".py"}}
	}
	for name, c := range map[string]struct {
		facts map[string]policy.WheelFacts
		iso   bool
		want  string
	}{
		"with the base":          {map[string]policy.WheelFacts{docx.SHA256: module("docx"), a.SHA256: module("docx")}, false, `pandas 1.0 brings the module "docx", and so does python-docx 1.2.0 of the base: one of them would be hidden`},
		"with a namespace there": {map[string]policy.WheelFacts{docx.SHA256: space("docx", "a"), a.SHA256: module("docx")}, false, `pandas 1.0 brings the module "docx", and so does python-docx 1.2.0 of the base: one of them would be hidden`},
		"namespaces":             {map[string]policy.WheelFacts{docx.SHA256: space("g", "a"), a.SHA256: space("g", "b"), b.SHA256: space("g", "c")}, false, ""},
		"with what is held":      {map[string]policy.WheelFacts{held.SHA256: module("x"), a.SHA256: module("x")}, false, `pandas 1.0 brings the module "x", and so does seen 1.0 of the workspace: one of them would be hidden`},
		"with each other":        {map[string]policy.WheelFacts{a.SHA256: module("cv2"), b.SHA256: module("cv2")}, false, `scipy 1.0 brings the file "site-packages/cv2/__init__.py", and so does pandas 1.0: one of them would be hidden`},
		"joined in one layer":    {map[string]policy.WheelFacts{a.SHA256: module("g"), b.SHA256: space("g", "c")}, false, ""},
		"base out of the way":    {map[string]policy.WheelFacts{docx.SHA256: module("docx"), a.SHA256: module("docx")}, true, ""},
		"not known":              {nil, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t, a, b)
			in.Held, in.Wheels = []lock.Package{held}, c.facts
			if c.iso {
				in.Lock.Kind, in.Lock.Base = lock.Iso, ""
			}
			v := policy.Judge(in)
			if c.want == "" {
				wantRules(t, v, policy.Auto)
			} else {
				wantRules(t, v, policy.Ask, policy.ImportCollision)
				wantSentence(t, v, c.want)
			}
		})
	}
	t.Run("by the lock alone", func(t *testing.T) {
		in := input(t, with(a, func(p *lock.Package) { p.Tops = []string{"docx"} }))
		in.Base[2].Tops = []string{"docx"}
		wantRules(t, policy.Judge(in), policy.Ask, policy.ImportCollision)
	})
}

func TestOrigin(t *testing.T) {
	in := input(t, pkg("pandas", "3.1.1"))
	in.Indexes = 2
	v := policy.Judge(in)
	wantRules(t, v, policy.Ask, policy.SeveralIndexes)
	wantSentence(t, v, "2 indexes are configured: a package of one could take the place of another's, if they have the same name")
	for name, c := range map[string]struct {
		hosts []string
		index string
		want  string
	}{
		"any":       {nil, "", ""},
		"named":     {[]string{"files.example"}, "Files.example", ""},
		"links":     {[]string{"find-links"}, "find-links", ""},
		"imported":  {[]string{"files.example"}, "import", ""},
		"other":     {[]string{"files.example"}, "evil.example", "pandas 1.0 comes from evil.example, which is not among the hosts of the catalog"},
		"not known": {[]string{"files.example"}, "", "it is not known from which host pandas 1.0 comes"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t, with(pkg("pandas", "1.0"), func(p *lock.Package) { p.Index = c.index }))
			in.Catalog.IndexHosts = c.hosts
			if v := policy.Judge(in); c.want == "" {
				wantRules(t, v, policy.Auto)
			} else {
				wantRules(t, v, policy.Ask, policy.IndexHost)
				wantSentence(t, v, c.want)
			}
		})
	}
}

func TestNearName(t *testing.T) {
	for name, want := range map[string]string{
		"pandsa":        "the name pandsa is almost pandas: look whether it is what was meant",
		"panda":         "the name panda is almost pandas: look whether it is what was meant",
		"numpi":         "the name numpi is almost numpy: look whether it is what was meant",
		"beautifulso":   "",
		"beautifulsoup": "the name beautifulsoup is almost beautifulsoup4: look whether it is what was meant",
		"sxi":           "", // short names are close to everything
		"docx":          "the module docx comes in python-docx, which is another package than docx, and is in the base already",
		"sklearn":       "the module sklearn comes in scikit-learn, which is another package than sklearn",
		"something":     "",
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t, pkg(name, "1.0"))
			in.Distribution = func(module string) string {
				return map[string]string{"docx": "python-docx", "sklearn": "scikit-learn"}[module]
			}
			v := policy.Judge(in)
			if want == "" {
				wantRules(t, v, policy.Ask, policy.NotListed)
				return
			}
			wantRules(t, v, policy.Ask, policy.NearName, policy.NotListed)
			wantSentence(t, v, want)
		})
	}
	t.Run("a listed name is no warning", func(t *testing.T) {
		in := input(t, pkg("pandas", "1.0"), pkg("pandsa", "1.0"))
		in.Catalog.Allow = append(in.Catalog.Allow, policy.Entry{Name: "pandsa"})
		wantRules(t, policy.Judge(in), policy.Auto)
	})
}

func TestFromRefusal(t *testing.T) {
	v := policy.FromRefusal("sdist_only", "foo 1.0 has source only,\n\x1b[2Jand "+strings.Repeat("x", 5000))
	wantRules(t, v, policy.Reject, "sdist_only")
	if s := v.Findings[0].Sentence; !strings.HasPrefix(s, "foo 1.0 has source only, [2Jand xxx") || len(s) != 2000 {
		t.Errorf("%d bytes: %.60q", len(s), s)
	}
	if v := policy.FromRefusal("", ""); v.Tier != policy.Reject || len(v.Findings) != 1 {
		t.Errorf("%+v", v)
	}
}

// TestJudgeIsPure: the order of what is given does not matter, and nothing of it is
// changed.
func TestJudgeIsPure(t *testing.T) {
	in := hostile(t)
	want := policy.Judge(in)
	before := slices.Clone(in.Lock.Packages)
	slices.Reverse(in.Lock.Packages)
	slices.Reverse(in.Catalog.Allow)
	slices.Reverse(in.Base)
	if have := policy.Judge(in); !slices.Equal(have.Findings, want.Findings) {
		t.Errorf("%+v\n%+v", have, want)
	}
	slices.Reverse(in.Lock.Packages)
	for i, p := range before {
		if in.Lock.Packages[i].Name != p.Name {
			t.Error("the lock was sorted")
		}
	}
}

// TestNeedsEnd: requirements that lead in circles, with ever more extras, take no time.
func TestNeedsEnd(t *testing.T) {
	loop := pkg("loop", "1.0")
	var extras []string
	for i := range 1000 {
		extras = append(extras, "e"+strings.Repeat("x", i%100)+strings.Repeat("y", i/100))
	}
	for range 900 {
		loop.Requires = append(loop.Requires, "loop["+strings.Join(extras[:30], ",")+"]", "other["+strings.Join(extras[30:60], ",")+"]")
	}
	other := with(loop, func(p *lock.Package) { p.Name = "other" })
	start := time.Now()
	v := policy.Judge(input(t, loop, other))
	wantRules(t, v, policy.Ask, policy.NotListed, policy.NotListed)
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestTierOfARecord(t *testing.T) {
	var tier policy.Tier
	for _, text := range []string{"auto", "ask", "reject"} {
		if err := tier.UnmarshalText([]byte(text)); err != nil || string(tier) != text {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := tier.UnmarshalText([]byte("Auto")); err == nil || tier != policy.Reject {
		t.Errorf("%q, %v", tier, err)
	}
}
