package tags

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

// ErrFileName is a file name that is not that of a wheel.
var ErrFileName = errors.New("bad_file_name")

// File is what the name of a wheel says.
type File struct {
	FileName string
	Name     string // of the project, normalised
	Version  spec.Version
	Build    Build
	Tag      string // as written: "py2.py3-none-any"
	Tags     []Tag  // what Tag stands for
}

// Build tells wheels of one version apart; the zero value is none, and least.
type Build struct {
	Number int
	Suffix string
	set    bool
}

// Compare orders builds: negative when b is older than o.
func (b Build) Compare(o Build) int {
	switch {
	case b.set != o.set:
		if o.set {
			return -1
		}
		return 1
	case b.Number != o.Number:
		return cmp.Compare(b.Number, o.Number)
	default:
		return strings.Compare(b.Suffix, o.Suffix)
	}
}

// Limits of a file name.
const (
	maxFileName = 255
	maxTags     = 256 // that one name may stand for
)

var (
	buildForm = regexp.MustCompile(`^([0-9]{1,9})([A-Za-z0-9._]*)$`)
	tagForm   = regexp.MustCompile(`^[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*$`)
)

// ParseFile reads the name of a wheel,
// "{name}-{version}(-{build})-{python}-{abi}-{platform}.whl". Errors:
// ErrFileName.
func ParseFile(fileName string) (File, error) {
	bad := func(why string) (File, error) {
		return File{}, fmt.Errorf("%w: %s %s", ErrFileName, quote(fileName), why)
	}
	stem, ok := strings.CutSuffix(fileName, ".whl")
	parts := strings.Split(stem, "-")
	switch {
	case len(fileName) > maxFileName:
		return bad("is longer than 255 bytes")
	case !ok:
		return bad("does not end in .whl")
	case len(parts) != 5 && len(parts) != 6:
		return bad("is not name-version-python-abi-platform.whl")
	case strings.Contains(parts[0], "__") || !spec.ValidName(parts[0]):
		return bad("does not begin with the name of a package")
	}
	version, err := spec.ParseVersion(parts[1])
	if err != nil || strings.TrimSpace(parts[1]) != parts[1] {
		return bad("has no valid version")
	}
	f := File{FileName: fileName, Name: spec.NormalizeName(parts[0]), Version: version}
	if len(parts) == 6 {
		m := buildForm.FindStringSubmatch(parts[2])
		if m == nil {
			return bad("has a build number that does not begin with a digit")
		}
		number, _ := strconv.Atoi(m[1]) // nine digits fit
		f.Build = Build{Number: number, Suffix: m[2], set: true}
	}
	if err := f.setTags(parts[len(parts)-3:]); err != nil {
		return bad(err.Error())
	}
	return f, nil
}

// setTags reads compressed sets: "py2.py3-none-any" is two tags.
func (f *File) setTags(parts []string) error {
	number := 1
	for _, part := range parts {
		if !tagForm.MatchString(part) {
			return errors.New("has a tag with other characters than letters, digits and \"_\"")
		}
		number *= 1 + strings.Count(part, ".")
	}
	if number > maxTags {
		return fmt.Errorf("stands for %d tags, the limit is %d", number, maxTags)
	}
	f.Tag = strings.Join(parts, "-")
	for python := range strings.SplitSeq(strings.ToLower(parts[0]), ".") {
		for abi := range strings.SplitSeq(strings.ToLower(parts[1]), ".") {
			for platform := range strings.SplitSeq(strings.ToLower(parts[2]), ".") {
				f.Tags = append(f.Tags, Tag{python, abi, platform})
			}
		}
	}
	return nil
}

// quote shows a stranger's text, cut to 120 bytes.
func quote(s string) string {
	const most = 120
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.Quote(s)
}
