package tags_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/tags"
)

var (
	cp312 = tags.Target{Minor: 12, Arch: "x86_64", LibcMajor: 2, LibcMinor: 36}
	arm   = tags.Target{Minor: 11, Arch: "aarch64", LibcMajor: 2, LibcMinor: 17}
	musl  = tags.Target{Minor: 13, Arch: "x86_64", Musl: true, LibcMajor: 1, LibcMinor: 2}
)

// TestTagsInPackagingsOrder compares with what Python's `packaging` answered, see
// testdata/oracle.py.
func TestTagsInPackagingsOrder(t *testing.T) {
	for name, target := range map[string]tags.Target{
		"cp312-glibc236-x86_64": cp312, "cp311-glibc217-aarch64": arm, "cp313-musl12-x86_64": musl,
	} {
		raw, err := os.ReadFile("testdata/" + name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		want := strings.Fields(string(raw))
		var got []string
		for _, tag := range target.Tags() {
			got = append(got, tag.String())
		}
		if !slices.Equal(got, want) {
			for i := range min(len(got), len(want)) {
				if got[i] != want[i] {
					t.Errorf("%s: tag %d is %s, want %s", name, i, got[i], want[i])
					break
				}
			}
			t.Errorf("%s: %d tags, want %d", name, len(got), len(want))
		}
		if target.Validate() != nil {
			t.Errorf("%s: %v", name, target.Validate())
		}
	}
}

func TestTargetsThatAreNone(t *testing.T) {
	for name, target := range map[string]tags.Target{
		"zero": {}, "python 2": {Minor: 1, Arch: "x86_64", LibcMajor: 2, LibcMinor: 36}, "arch": {Minor: 12, Arch: "sparc", LibcMajor: 2, LibcMinor: 36},
		"glibc 3": {Minor: 12, Arch: "x86_64", LibcMajor: 3, LibcMinor: 1}, "musl 2": {Minor: 12, Arch: "x86_64", Musl: true, LibcMajor: 2, LibcMinor: 1},
	} {
		if target.Validate() == nil {
			t.Errorf("%s is valid", name)
		}
	}
}

func TestParseFile(t *testing.T) {
	for name, want := range map[string]string{
		"foo-1.0-py3-none-any.whl":                                       "foo 1.0 0 py3-none-any",
		"Foo_Bar-1.0.post1-1-py3-none-any.whl":                           "foo-bar 1.0.post1 1 py3-none-any",
		"foo-1.0-1000abc-py2.py3-none-any.whl":                           "foo 1.0 1000abc py2-none-any py3-none-any",
		"foo-1!2.0+local.1-CP312-Abi3-any.whl":                           "foo 1!2.0+local.1 0 cp312-abi3-any",
		"zope.interface-1-cp32-cp32m-linux.whl":                          "zope-interface 1 0 cp32-cp32m-linux",
		"a-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl": "a 1 0 cp311-cp311-manylinux2014_x86_64 cp311-cp311-manylinux_2_17_x86_64",
	} {
		f, err := tags.ParseFile(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var list []string
		for _, tag := range f.Tags {
			list = append(list, tag.String())
		}
		build := fmt.Sprint(f.Build.Number) + f.Build.Suffix
		if got := strings.Join(append([]string{f.Name, f.Version.String(), build}, list...), " "); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{
		"", ".whl", "foo.whl", "foo-1.0.whl", "foo-1.0-py3-none-any.zip", "foo-1.0-py3-none-any.whl.exe", "foo-1.0-x-py3-none-any.whl",
		"foo__bar-1.0-py3-none-any.whl", "_foo-1.0-py3-none-any.whl", "foo-french-py3-none-any.whl", "foo-1.0-py3-none-any-x-y.whl",
		"../foo-1.0-py3-none-any.whl", "foo/bar-1.0-py3-none-any.whl", "foo-1.0-py3-none-.whl", "foo-1.0-py3-none-an y.whl", "foo-1.0-py3..py2-none-any.whl",
		"foo-1.0-py3-none-any\x00.whl", "foo- 1.0-py3-none-any.whl", "föö-1.0-py3-none-any.whl", strings.Repeat("a", 300) + "-1.0-py3-none-any.whl",
		"a-1-" + strings.Repeat("a.", 20) + "a-" + strings.Repeat("b.", 20) + "b-any.whl", "foo-1.0--py3-none-any.whl",
	} {
		if f, err := tags.ParseFile(name); !errors.Is(err, tags.ErrFileName) {
			t.Errorf("%q: %+v, %v", name, f, err)
		}
	}
}

func choose(t *testing.T, target tags.Target, conditions string, files ...string) (tags.Choice, error) {
	t.Helper()
	want, err := spec.ParseSpecifiers(conditions)
	if err != nil {
		t.Fatal(err)
	}
	return target.Choose("Foo", files, want)
}

func TestCase14SdistOnly(t *testing.T) {
	_, err := choose(t, cp312, "", "foo-1.0.tar.gz", "foo-1.1.zip", "foo-0.9.tar.bz2", "other-1.0-py3-none-any.whl")
	if !errors.Is(err, tags.ErrSdistOnly) || !strings.Contains(err.Error(), "foo 1.1 ") {
		t.Errorf("got %v", err)
	}
}

func TestCase48NoCompatibleWheel(t *testing.T) {
	_, err := choose(t, cp312, "", "foo-1.0-cp312-cp312-win_amd64.whl", "foo-1.0-cp313-cp313-manylinux_2_17_x86_64.whl", "foo-1.0.tar.gz")
	if !errors.Is(err, tags.ErrNoCompatibleWheel) {
		t.Fatalf("got %v", err)
	}
	for _, part := range []string{"foo 1.0", "cp312-cp312-win_amd64", "cp313-cp313-manylinux_2_17_x86_64", "cp312-cp312-manylinux_2_36_x86_64"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %s", err, part)
		}
	}
	var many []string
	for _, python := range strings.Fields("cp36 cp37 cp38 cp39 cp310 cp311 cp313 cp314") {
		for _, platform := range strings.Fields("win32 win_amd64 macosx_11_0_arm64") {
			many = append(many, "foo-1.0-"+python+"-"+python+"-"+platform+".whl")
		}
	}
	if _, err := choose(t, cp312, "", many...); !strings.Contains(err.Error(), "and 16 more") || len(err.Error()) > 500 {
		t.Errorf("got %v", err)
	}
	if _, err := choose(t, cp312, "", "foo-1.0-cp312-cp312-manylinux_2_37_x86_64.whl", "foo-1.0-cp312-cp312-musllinux_1_2_x86_64.whl", "foo-1.0-cp312-cp312t-manylinux_2_17_x86_64.whl"); !errors.Is(err, tags.ErrNoCompatibleWheel) {
		t.Errorf("a newer glibc, musl or a free-threaded build: %v", err)
	}
	if _, err := choose(t, cp312, ">=2", "foo-1.0-py3-none-any.whl"); !errors.Is(err, tags.ErrNoVersion) {
		t.Errorf("no version: %v", err)
	}
}

func TestCase49NewestHasNoWheel(t *testing.T) {
	for name, files := range map[string][]string{
		"source only": {"foo-3.0.tar.gz", "foo-2.9-py3-none-any.whl", "foo-2.8-py3-none-any.whl"},
		"other tag":   {"foo-2.8-py3-none-any.whl", "foo-2.9-py3-none-any.whl", "foo-3.0-cp313-cp313-win_amd64.whl"},
	} {
		c, err := choose(t, cp312, "", files...)
		if err != nil || c.Version.String() != "2.9" || c.Note() != "the newest foo is 3.0, which has no wheel for this system; using 2.9" {
			t.Errorf("%s: %s, %q, %v", name, c.FileName, c.Note(), err)
		}
	}
	c, err := choose(t, cp312, "", "foo-3.0-py3-none-any.whl", "foo-2.9-py3-none-any.whl")
	if err != nil || c.Version.String() != "3.0" || c.Note() != "" {
		t.Errorf("nothing passed over: %s, %q, %v", c.FileName, c.Note(), err)
	}
}

func TestChooseTakesTheBest(t *testing.T) {
	for name, c := range map[string]struct {
		target     tags.Target
		conditions string
		files      string
		want       string
	}{
		"own before pure":     {cp312, "", "foo-1-py3-none-any.whl foo-1-cp312-cp312-manylinux_2_17_x86_64.whl", "foo-1-cp312-cp312-manylinux_2_17_x86_64.whl"},
		"newer glibc":         {cp312, "", "foo-1-cp312-cp312-manylinux2014_x86_64.whl foo-1-cp312-cp312-manylinux_2_28_x86_64.whl", "foo-1-cp312-cp312-manylinux_2_28_x86_64.whl"},
		"abi3 of older":       {cp312, "", "foo-1-cp39-abi3-manylinux_2_17_x86_64.whl foo-1-py3-none-any.whl", "foo-1-cp39-abi3-manylinux_2_17_x86_64.whl"},
		"newer build":         {cp312, "", "foo-1-2-py3-none-any.whl foo-1-10-py3-none-any.whl foo-1-py3-none-any.whl", "foo-1-10-py3-none-any.whl"},
		"no pre-release":      {cp312, "", "foo-2rc1-py3-none-any.whl foo-1-py3-none-any.whl", "foo-1-py3-none-any.whl"},
		"asked pre-release":   {cp312, ">=2rc1", "foo-2rc1-py3-none-any.whl foo-1-py3-none-any.whl", "foo-2rc1-py3-none-any.whl"},
		"only pre-release":    {cp312, "", "foo-2rc1-py3-none-any.whl", "foo-2rc1-py3-none-any.whl"},
		"conditions":          {cp312, "<2", "foo-2-py3-none-any.whl foo-1.5-py3-none-any.whl foo-1-py3-none-any.whl", "foo-1.5-py3-none-any.whl"},
		"name written freely": {cp312, "", "FOO-1-py3-none-any.whl", "FOO-1-py3-none-any.whl"},
		"arm":                 {arm, "", "foo-1-cp311-cp311-manylinux_2_17_x86_64.whl foo-1-cp311-cp311-manylinux2014_aarch64.whl", "foo-1-cp311-cp311-manylinux2014_aarch64.whl"},
		"musl":                {musl, "", "foo-1-cp313-cp313-manylinux_2_17_x86_64.whl foo-1-cp313-cp313-musllinux_1_1_x86_64.whl", "foo-1-cp313-cp313-musllinux_1_1_x86_64.whl"},
		"rubbish beside":      {cp312, "", "foo-1-py3-none-any.whl.asc x \x00 foo-9.exe foo-1-py3-none-any.whl", "foo-1-py3-none-any.whl"},
	} {
		got, err := choose(t, c.target, c.conditions, strings.Split(c.files, " ")...)
		if err != nil || got.FileName != c.want {
			t.Errorf("%s: %s, %v; want %s", name, got.FileName, err, c.want)
		}
	}
}

// FuzzFileName: whatever is taken says its project and version in the form that
// the parts of the name have, and stands for a bounded number of tags.
func FuzzFileName(f *testing.F) {
	for _, name := range []string{
		"foo-1.0-py3-none-any.whl", "Foo_Bar-1!2.0rc1.post2.dev3+l.4-12abc-cp39.cp310-abi3.none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
		"a-1-b-c-d.whl", "a-1-2-3-4-5.whl", "-----.whl", "a-1-" + strings.Repeat("x.", 40) + "y-none-any.whl",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		file, err := tags.ParseFile(name)
		if err != nil {
			if !errors.Is(err, tags.ErrFileName) {
				t.Fatal(err)
			}
			return
		}
		parts := strings.Split(strings.TrimSuffix(name, ".whl"), "-")
		v, err := spec.ParseVersion(parts[1])
		if err != nil || !v.Equal(file.Version) || spec.NormalizeName(parts[0]) != file.Name || strings.ContainsAny(name, "/\\\x00 ") {
			t.Fatalf("%q was read as %+v", name, file)
		}
		if len(file.Tags) == 0 || len(file.Tags) > 256 || !strings.HasSuffix(name, "-"+file.Tag+".whl") {
			t.Fatalf("%q has %d tags, %q", name, len(file.Tags), file.Tag)
		}
		cp312.Fits(file)
	})
}
