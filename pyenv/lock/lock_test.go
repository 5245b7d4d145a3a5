package lock_test

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
)

// example uses every field.
func example() lock.Lock {
	return lock.Lock{
		Schema: 1, Kind: lock.X,
		Python:    lock.Python{Tag: "cp312", Full: "3.12.14", Platform: "manylinux_2_36_x86_64"},
		Base:      "base-0123456789abcdef",
		Requested: []string{"tabulate", "pandas>=2"}, PolicyRev: 7, Resolver: "pip/26.2.1",
		Cutoff: time.Date(2026, 11, 22, 1, 0, 0, 7, time.FixedZone("", 3600)),
		Packages: []lock.Package{
			{Name: "tabulate", Version: "0.9.0", File: "tabulate-0.9.0-py3-none-any.whl", SHA256: strings.Repeat("b", 64)},
			{
				Name: "pandas", Version: "3.0.5", File: "pandas-3.0.5-cp312-cp312-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
				SHA256: strings.Repeat("a", 64), Size: 10998091, Index: "files.example",
				Uploaded: time.Date(2026, 8, 1, 2, 3, 4, 0, time.UTC), Yanked: "broken <on> 日本", License: "BSD-3-Clause",
				Requires: []string{"python-dateutil>=2.8.2", "numpy>=1.26"}, Tops: []string{"pandas"}, Flags: []string{"native"},
			},
		},
	}
}

// TestEncode compares with a file, since ids depend on each byte. The ids were also
// reckoned with Python's json and hashlib.
func TestEncode(t *testing.T) {
	want, err := os.ReadFile("testdata/example.json")
	if err != nil {
		t.Fatal(err)
	}
	have, err := example().Encode()
	if err != nil || !bytes.Equal(have, want) {
		t.Fatalf("%v\n%s", err, have)
	}
	l, err := lock.Parse(want)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := l.Encode(); err != nil || !bytes.Equal(again, want) {
		t.Errorf("%v\n%s", err, again)
	}
	id, err := l.ID()
	if err != nil || id != "0cc68999e038a38a" {
		t.Errorf("id %s, %v", id, err)
	}
	layer, err := l.LayerID()
	if err != nil || layer != "x-cf0759d0be5389b3" {
		t.Errorf("layer %s, %v", layer, err)
	}
	if !lock.ValidID(id) || !lock.ValidLayerID(layer) || lock.ValidID(layer) || lock.ValidLayerID(id) {
		t.Error("the ids are not told apart")
	}
}

// TestIDs: every change makes another lock, and another layer only if the layer's
// bytes depend on it.
func TestIDs(t *testing.T) {
	id, _ := example().ID()
	layer, _ := example().LayerID()
	for name, c := range map[string]struct {
		edit            func(l *lock.Lock)
		lockID, layerID bool // they change
	}{
		"nothing":       {func(l *lock.Lock) {}, false, false},
		"order":         {func(l *lock.Lock) { slices.Reverse(l.Packages); slices.Reverse(l.Requested) }, false, false},
		"order inside":  {func(l *lock.Lock) { slices.Reverse(l.Packages[1].Requires) }, false, false},
		"below seconds": {func(l *lock.Lock) { l.Cutoff = l.Cutoff.Add(time.Millisecond).UTC() }, false, false},
		"base":          {func(l *lock.Lock) { l.Base = "iso-0000000000000000" }, true, false},
		"request":       {func(l *lock.Lock) { l.Requested = l.Requested[:1] }, true, false},
		"policy":        {func(l *lock.Lock) { l.PolicyRev++ }, true, false},
		"resolver":      {func(l *lock.Lock) { l.Resolver = "uv/1" }, true, false},
		"cutoff":        {func(l *lock.Lock) { l.Cutoff = time.Time{} }, true, false},
		"index":         {func(l *lock.Lock) { l.Packages[1].Index = "other" }, true, false},
		"yanked":        {func(l *lock.Lock) { l.Packages[1].Yanked = "" }, true, false},
		"kind":          {func(l *lock.Lock) { l.Kind, l.Base = lock.Iso, "" }, true, true},
		"python":        {func(l *lock.Lock) { l.Python.Full = "3.12.15" }, true, true},
		"platform":      {func(l *lock.Lock) { l.Python.Platform = "manylinux_2_40_x86_64" }, true, true},
		"hash":          {func(l *lock.Lock) { l.Packages[0].SHA256 = strings.Repeat("c", 64) }, true, true},
		"one less":      {func(l *lock.Lock) { l.Packages = l.Packages[:1] }, true, true},
		"build":         {func(l *lock.Lock) { l.Packages[0].File = "tabulate-0.9.0-1-py3-none-any.whl" }, true, true},
	} {
		l := example()
		c.edit(&l)
		haveID, err := l.ID()
		haveLayer, err2 := l.LayerID()
		if err != nil || err2 != nil || (haveID != id) != c.lockID || (haveLayer != layer) != c.layerID {
			t.Errorf("%s: %s %s, %v %v", name, haveID, haveLayer, err, err2)
		}
	}
	if l := example(); l.Packages[0].Name != "tabulate" {
		t.Error("Encode changed the lock")
	}
}

// TestInvalid are locks that break one rule.
func TestInvalid(t *testing.T) {
	pkg := func(edit func(p *lock.Package)) func(l *lock.Lock) {
		return func(l *lock.Lock) { edit(&l.Packages[1]) }
	}
	for name, edit := range map[string]func(l *lock.Lock){
		"schema":            func(l *lock.Lock) { l.Schema = 2 },
		"kind":              func(l *lock.Lock) { l.Kind = "y" },
		"no base":           func(l *lock.Lock) { l.Base = "" },
		"base is x":         func(l *lock.Lock) { l.Base = "x-0123456789abcdef" },
		"base of a base":    func(l *lock.Lock) { l.Kind = lock.Base },
		"policy":            func(l *lock.Lock) { l.PolicyRev = -1 },
		"tag":               func(l *lock.Lock) { l.Python.Tag = "pp312" },
		"version":           func(l *lock.Lock) { l.Python.Full = "3.12" },
		"tag and version":   func(l *lock.Lock) { l.Python.Full = "3.11.2" },
		"platform":          func(l *lock.Lock) { l.Python.Platform = "win_amd64" },
		"resolver":          func(l *lock.Lock) { l.Resolver = "a\nb" },
		"resolver, long":    func(l *lock.Lock) { l.Resolver = strings.Repeat("x", 4000) },
		"cutoff":            func(l *lock.Lock) { l.Cutoff = time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"requested":         func(l *lock.Lock) { l.Requested = []string{"Pandas >= 2"} },
		"requested URL":     func(l *lock.Lock) { l.Requested = []string{"x @ https://e.example/x.whl"} },
		"requested, many":   func(l *lock.Lock) { l.Requested = many("r", 1001) },
		"no packages":       func(l *lock.Lock) { l.Packages = nil },
		"many packages":     func(l *lock.Lock) { l.Packages = make([]lock.Package, 2001) },
		"twice":             func(l *lock.Lock) { l.Packages = append(l.Packages, l.Packages[0]) },
		"name":              pkg(func(p *lock.Package) { p.Name = "Pandas" }),
		"name, path":        pkg(func(p *lock.Package) { p.Name = "../x" }),
		"package version":   pkg(func(p *lock.Package) { p.Version = "x" }),
		"other version":     pkg(func(p *lock.Package) { p.Version = "3.0.6" }),
		"file":              pkg(func(p *lock.Package) { p.File = "pandas.whl" }),
		"file, path":        pkg(func(p *lock.Package) { p.File = "../" + p.File }),
		"file of another":   pkg(func(p *lock.Package) { p.File = "tabulate-3.0.5-py3-none-any.whl" }),
		"hash":              pkg(func(p *lock.Package) { p.SHA256 = strings.Repeat("A", 64) }),
		"hash, short":       pkg(func(p *lock.Package) { p.SHA256 = "a" }),
		"size":              pkg(func(p *lock.Package) { p.Size = -1 }),
		"licence":           pkg(func(p *lock.Package) { p.License = "\xff" }),
		"yanked":            pkg(func(p *lock.Package) { p.Yanked = "\x1b[31m" }),
		"uploaded":          pkg(func(p *lock.Package) { p.Uploaded = time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC) }),
		"empty requirement": pkg(func(p *lock.Package) { p.Requires = []string{""} }),
		"flags":             pkg(func(p *lock.Package) { p.Flags = []string{"a\x00"} }),
		"many tops":         pkg(func(p *lock.Package) { p.Tops = many("t", 1001) }),
	} {
		l := example()
		edit(&l)
		_, err := l.Encode()
		_, err2 := l.ID()
		_, err3 := l.LayerID()
		if !errors.Is(err, lock.ErrInvalid) || !errors.Is(err2, lock.ErrInvalid) || !errors.Is(err3, lock.ErrInvalid) {
			t.Errorf("%s: %v, %v, %v", name, err, err2, err3)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error tells the credentials: %v", name, err)
		}
	}
}

func many(prefix string, n int) (list []string) {
	for i := range n {
		list = append(list, prefix+strings.Repeat("a", 1+i/100)+string(rune('a'+i%26))+string(rune('a'+i/26%26)))
	}
	return list
}

// TestParseIsStrict: what a lock says in another form is no lock.
func TestParseIsStrict(t *testing.T) {
	b, err := example().Encode()
	if err != nil {
		t.Fatal(err)
	}
	swap := func(from, to string) []byte {
		out := bytes.Replace(b, []byte(from), []byte(to), 1)
		if bytes.Equal(out, b) {
			t.Fatalf("%q is not in it", from)
		}
		return out
	}
	for name, text := range map[string][]byte{
		"empty": nil, "null": []byte("null\n"), "list": []byte("[]\n"), "binary": {0, 0xff}, "cut": b[:len(b)-10],
		"twice": append(slices.Clone(b), b...), "no newline": b[:len(b)-1], "space": append([]byte(" "), b...),
		"unknown key": swap(`  "base"`, `  "a": 1,`+"\n"+`  "base"`), "double key": swap(`  "base"`, `  "base": "",`+"\n"+`  "base"`),
		"other case": swap(`"base"`, `"Base"`), "order": swap("\"numpy>=1.26\",\n        \"python-dateutil>=2.8.2\"", "\"python-dateutil>=2.8.2\",\n        \"numpy>=1.26\""),
		"float": swap("10998091", "10998091.0"), "exponent": swap("10998091", "1e7"), "escape": swap("<on>", `\u003con>`),
		"number as text": swap(`: 7`, `: "7"`), "bad hash": swap("aaaa", "aaaA"), "other zone": swap("T02:03:04Z", "T02:03:04+00:00"),
		"huge": append(slices.Clone(b), bytes.Repeat([]byte(" "), 5<<20)...),
	} {
		if _, err := lock.Parse(text); !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzParse: what is taken is what Encode writes.
func FuzzParse(f *testing.F) {
	b, err := example().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := lock.Parse(b)
		if err != nil {
			if !errors.Is(err, lock.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		again, err := l.Encode()
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%v\n%s", err, again)
		}
		if id, err := l.LayerID(); err != nil || !lock.ValidLayerID(id) {
			t.Fatalf("%s, %v", id, err)
		}
	})
}
