package policy_test

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

var now = time.Date(2026, 11, 29, 20, 4, 5, 0, time.UTC)

const baseID = "base-0123456789abcdef"

// pkg is a package with nothing unusual about it.
func pkg(name, version string, requires ...string) lock.Package {
	sum := sha256.Sum256([]byte(name + version))
	file := spec.NormalizeName(name)
	for i, c := range []byte(file) {
		if c == '-' {
			file = file[:i] + "_" + file[i+1:]
		}
	}
	return lock.Package{
		Name: name, Version: version, File: file + "-" + version + "-py3-none-any.whl", SHA256: hex.EncodeToString(sum[:]),
		Size: 1_200_000, Index: "files.example", Uploaded: now.AddDate(0, -4, 0), License: "MIT", Requires: requires,
	}
}

// with changes one thing of a package.
func with(p lock.Package, change func(*lock.Package)) lock.Package {
	change(&p)
	return p
}

// input is a request for the first of some packages.
func input(t testing.TB, packages ...lock.Package) policy.Input {
	t.Helper()
	l := lock.Lock{
		Schema: 1, Kind: lock.X, Base: baseID, PolicyRev: 1, Resolver: "pip/26.2.1", Packages: packages,
		Python: lock.Python{Tag: "cp312", Full: "3.12.14", Platform: "manylinux_2_36_x86_64"},
	}
	in := policy.Input{Lock: l, Base: base(), Indexes: 1, Now: now, Catalog: policy.Default()}
	if len(packages) > 0 {
		request(t, &in, packages[0].Name)
	}
	return in
}

// request sets what was asked for.
func request(t testing.TB, in *policy.Input, specs ...string) {
	t.Helper()
	in.Requested, in.Lock.Requested = nil, nil
	for _, s := range specs {
		r, err := spec.ParseRequest(s)
		if err != nil {
			t.Fatal(err)
		}
		in.Requested = append(in.Requested, r)
		in.Lock.Requested = append(in.Lock.Requested, r.String())
	}
}

func base() []lock.Package {
	return []lock.Package{pkg("lxml", "6.1.3"), pkg("numpy", "2.4.6"), pkg("python-docx", "1.2.0", "lxml>=3.1.0")}
}

// rules are the rules of a verdict, in its order.
func rules(v policy.Verdict) []string {
	list := []string{}
	for _, f := range v.Findings {
		list = append(list, f.Rule)
	}
	return list
}

// wantRules compares the tier and the rules.
func wantRules(t *testing.T, v policy.Verdict, tier policy.Tier, want ...string) {
	t.Helper()
	if have := rules(v); v.Tier != tier || !slices.Equal(have, append([]string{}, want...)) {
		t.Errorf("verdict %s %q, want %s %q\n%+v", v.Tier, have, tier, want, v.Findings)
	}
}

// wantSentence compares the first finding.
func wantSentence(t *testing.T, v policy.Verdict, want string) {
	t.Helper()
	if len(v.Findings) == 0 || v.Findings[0].Sentence != want {
		t.Errorf("findings %+v\nwant %q", v.Findings, want)
	}
}
