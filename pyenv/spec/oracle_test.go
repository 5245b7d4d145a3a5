package spec_test

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

// oracle is what Python's `packaging` answered, see testdata/oracle.py.
type oracle struct {
	Versions     map[string]*string
	Order        []string
	Specifiers   []specifierCase
	Requirements []requirementCase
	Markers      []markerCase
}

type specifierCase struct {
	spec, version string
	match         *bool
	prereleases   bool
}

func (c *specifierCase) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&c.spec, &c.version, &c.match, &c.prereleases})
}

type requirementCase struct {
	text string
	want *struct {
		Name, Spec, URL string
		Extras          []string
		Marker          bool
	}
}

func (c *requirementCase) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&c.text, &c.want})
}

type markerCase struct {
	text   string
	extras []string
	want   *bool
}

func (c *markerCase) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&c.text, &c.extras, &c.want})
}

func load(t *testing.T) oracle {
	t.Helper()
	raw, err := os.ReadFile("testdata/oracle.json")
	if err != nil {
		t.Fatal(err)
	}
	var o oracle
	if err := json.Unmarshal(raw, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestVersionsAsPackagingReadsThem(t *testing.T) {
	for text, want := range load(t).Versions {
		got, err := spec.ParseVersion(text)
		switch {
		case want == nil && err == nil:
			t.Errorf("%q was read as %s; it is no version", text, got)
		case want != nil && err != nil:
			t.Errorf("%q: %v; want %s", text, err, *want)
		case want != nil && got.String() != *want:
			t.Errorf("%q was read as %s; want %s", text, got, *want)
		}
	}
}

func TestVersionsInPackagingsOrder(t *testing.T) {
	order := load(t).Order
	var versions []spec.Version
	for _, text := range order {
		v, err := spec.ParseVersion(text)
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, v)
	}
	if len(versions) < 50 {
		t.Fatalf("only %d versions", len(versions))
	}
	for i, a := range versions {
		for j, b := range versions[i+1:] {
			if a.Compare(b) > 0 || b.Compare(a) < 0 {
				t.Errorf("%s and %s (%d after it) are in the wrong order", a, b, j+1)
			}
		}
	}
}

func TestSpecifiersAsPackagingMatchesThem(t *testing.T) {
	cases := load(t).Specifiers
	if len(cases) < 3000 {
		t.Fatalf("only %d cases", len(cases))
	}
	for _, c := range cases {
		v, err := spec.ParseVersion(c.version)
		if err != nil {
			t.Fatal(err)
		}
		s, err := spec.ParseSpecifiers(c.spec)
		switch {
		case (err != nil) != (c.match == nil):
			t.Errorf("%q: %v; packaging: valid %t", c.spec, err, c.match != nil)
		case err == nil && s.Match(v) != *c.match:
			t.Errorf("%q matches %s: %t; want %t", c.spec, v, s.Match(v), *c.match)
		case err == nil && s.Prereleases() != c.prereleases:
			t.Errorf("%q asks for pre-releases: %t; want %t", c.spec, s.Prereleases(), c.prereleases)
		}
	}
}

func TestRequirementsAsPackagingReadsThem(t *testing.T) {
	for _, c := range load(t).Requirements {
		r, err := spec.ParseRequirement(c.text)
		if (err != nil) != (c.want == nil) {
			t.Errorf("%q: %v; packaging: valid %t", c.text, err, c.want != nil)
			continue
		}
		if err != nil {
			continue
		}
		if r.Name != c.want.Name || !slices.Equal(r.Extras, c.want.Extras) || r.URL != c.want.URL || !r.Marker.IsZero() != c.want.Marker {
			t.Errorf("%q is %+v; want %+v", c.text, r, *c.want)
		}
	}
}

func TestMarkersAsPackagingEvaluatesThem(t *testing.T) {
	env := spec.CPythonLinux("3.12.14", "x86_64")
	cases := load(t).Markers
	if len(cases) < 600 {
		t.Fatalf("only %d cases", len(cases))
	}
	for _, c := range cases {
		m, err := spec.ParseMarker(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		got, err := m.Eval(env, c.extras)
		if (err != nil) != (c.want == nil) || err == nil && got != *c.want {
			t.Errorf("%q with %q is %t, %v; want %v", c.text, c.extras, got, err, c.want)
		}
	}
}
