package tags

import (
	"fmt"
	"slices"
	"strings"
)

// Target is a CPython 3 on Linux. The zero value is none.
type Target struct {
	Minor     int    // 12 for CPython 3.12
	Arch      string // "x86_64" or "aarch64"
	Musl      bool   // the C library is musl, not glibc
	LibcMajor int    // 2 for glibc, 1 for musl
	LibcMinor int    // 36 for glibc 2.36
}

// Tag is one combination of what a wheel can be for.
type Tag struct{ Python, ABI, Platform string }

// String is the form of file names, "cp312-abi3-manylinux_2_17_x86_64".
func (t Tag) String() string { return t.Python + "-" + t.ABI + "-" + t.Platform }

// String is the tag that fits the target best.
func (t Target) String() string {
	return Tag{t.cp(), t.cp(), t.platforms()[0]}.String()
}

// Validate says why a target cannot be used, nil if it can.
func (t Target) Validate() error {
	switch {
	case t.Minor < 2 || t.Minor > 99:
		return fmt.Errorf("there is no CPython 3.%d", t.Minor)
	case t.Arch != "x86_64" && t.Arch != "aarch64":
		return fmt.Errorf("the architecture %q is not supported", t.Arch)
	case t.Musl && (t.LibcMajor != 1 || t.LibcMinor < 1), !t.Musl && (t.LibcMajor != 2 || t.LibcMinor < 5), t.LibcMinor > 999:
		return fmt.Errorf("there is no C library %d.%d of this kind", t.LibcMajor, t.LibcMinor)
	}
	return nil
}

// Tags are all that the target can use, best first, in the order of pip.
func (t Target) Tags() []Tag {
	platforms := t.platforms()
	tags := make([]Tag, 0, (3+2*t.Minor+2)*len(platforms)+t.Minor+3)
	each := func(python, abi string) {
		for _, platform := range platforms {
			tags = append(tags, Tag{python, abi, platform})
		}
	}
	each(t.cp(), t.cp())
	each(t.cp(), "abi3")
	each(t.cp(), "none")
	for minor := t.Minor - 1; minor >= 2; minor-- { // abi3 began with 3.2 (PEP 384)
		each(fmt.Sprintf("cp3%d", minor), "abi3")
	}
	generic := t.generic()
	for _, python := range generic {
		each(python, "none")
	}
	for _, python := range append([]string{t.cp()}, generic...) {
		tags = append(tags, Tag{python, "none", "any"})
	}
	return tags
}

func (t Target) cp() string { return fmt.Sprintf("cp3%d", t.Minor) }

// generic are the Pythons whose code runs here whatever made it.
func (t Target) generic() []string {
	list := []string{fmt.Sprintf("py3%d", t.Minor), "py3"}
	for minor := t.Minor - 1; minor >= 0; minor-- {
		list = append(list, fmt.Sprintf("py3%d", minor))
	}
	return list
}

// legacy are the names that some versions of glibc had before PEP 600.
var legacy = map[int]string{17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}

// platforms are the platform tags, newest first.
func (t Target) platforms() []string {
	var list []string
	if t.Musl {
		for minor := t.LibcMinor; minor >= 0; minor-- {
			list = append(list, fmt.Sprintf("musllinux_%d_%d_%s", t.LibcMajor, minor, t.Arch))
		}
		return append(list, "linux_"+t.Arch)
	}
	oldest := 17 // no other architecture had a standard before glibc 2.17
	if t.Arch == "x86_64" {
		oldest = 5
	}
	for minor := t.LibcMinor; minor >= oldest; minor-- {
		list = append(list, fmt.Sprintf("manylinux_%d_%d_%s", t.LibcMajor, minor, t.Arch))
		if name := legacy[minor]; name != "" {
			list = append(list, name+"_"+t.Arch)
		}
	}
	return append(list, "linux_"+t.Arch)
}

// Fits says whether a wheel can be used, and how well: 0 is best.
func (t Target) Fits(f File) (rank int, ok bool) { return newRanks(t).of(f) }

// ranks is a target's tags by their place.
type ranks map[Tag]int

func newRanks(t Target) ranks {
	r := ranks{}
	for i, tag := range t.Tags() {
		r[tag] = i
	}
	return r
}

func (r ranks) of(f File) (best int, ok bool) {
	for _, tag := range f.Tags {
		if rank, fits := r[tag]; fits && (!ok || rank < best) {
			best, ok = rank, true
		}
	}
	return best, ok
}

// tagList shows the tags of files, at most 8 of them.
func tagList(files []File) string {
	const most = 8
	var list []string
	for _, f := range files {
		list = append(list, f.Tag)
	}
	slices.Sort(list)
	list = slices.Compact(list)
	if more := len(list) - most; more > 0 {
		list = append(list[:most:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, ", ")
}
