package lock

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/tags"
)

// ErrInvalid is a lock that breaks a rule. The error's text says which.
var ErrInvalid = errors.New("bad_lock")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// Limits of a lock.
const (
	schema      = 1
	maxPackages = 2000
	maxText     = 2048 // bytes of one URL, licence or requirement
	maxList     = 1000 // entries of one list
)

var (
	tagForm      = regexp.MustCompile(`^cp3([0-9]{1,2})$`)
	fullForm     = regexp.MustCompile(`^3\.([0-9]{1,2})\.[0-9]{1,3}(?:(?:a|b|rc)[0-9]{1,2})?\+?$`)
	platformForm = regexp.MustCompile(`^(?:many|musl)?linux_[0-9a-z_]{3,60}$`)
)

// check looks at a lock that is in order.
func (l Lock) check() error {
	switch {
	case l.Schema != schema:
		return invalid("schema %d is not known", l.Schema)
	case l.Kind != Base && l.Kind != X && l.Kind != Iso:
		return invalid("kind %s is not known", quote(string(l.Kind)))
	case l.Kind != X && l.Base != "":
		return invalid("a lock of kind %s has no base", l.Kind)
	case l.Kind == X && (!ValidLayerID(l.Base) || strings.HasPrefix(l.Base, "x-")):
		return invalid("base %s is not the id of a base layer", quote(l.Base))
	case l.PolicyRev < 0:
		return invalid("policy_rev is negative")
	case len(l.Packages) == 0:
		return invalid("it has no packages")
	case len(l.Packages) > maxPackages:
		return invalid("%d packages are over the limit of %d", len(l.Packages), maxPackages)
	}
	if err := l.Python.check(); err != nil {
		return err
	}
	if err := l.checkOrigin(); err != nil {
		return err
	}
	for i, p := range l.Packages {
		if i > 0 && p.Name == l.Packages[i-1].Name {
			return invalid("package %s is there twice", quote(p.Name))
		}
		if err := p.check(); err != nil {
			return err
		}
	}
	return nil
}

// checkOrigin looks at what led to the solution.
func (l Lock) checkOrigin() error {
	if err := checkTexts("resolver", l.Resolver); err != nil {
		return err
	}
	if err := checkTime("cutoff", l.Cutoff); err != nil {
		return err
	}
	if len(l.Requested) > maxList {
		return invalid("%d requested packages are over the limit of %d", len(l.Requested), maxList)
	}
	for _, s := range l.Requested {
		r, err := spec.ParseRequirement(s)
		if err != nil || r.URL != "" || r.String() != s {
			return invalid("requested %s is not a requirement in its normal form", quote(s))
		}
	}
	return nil
}

func (p Python) check() error {
	tag, full := tagForm.FindStringSubmatch(p.Tag), fullForm.FindStringSubmatch(p.Full)
	switch {
	case tag == nil:
		return invalid("python tag %s is not that of a CPython 3", quote(p.Tag))
	case full == nil:
		return invalid("python version %s is not a full one", quote(p.Full))
	case tag[1] != full[1]:
		return invalid("python %s is not %s", quote(p.Full), p.Tag)
	case !platformForm.MatchString(p.Platform):
		return invalid("platform %s is not known", quote(p.Platform))
	}
	return nil
}

func (p Package) check() error {
	if !spec.ValidName(p.Name) || spec.NormalizeName(p.Name) != p.Name {
		return invalid("package %s does not have a normalised name", quote(p.Name))
	}
	version, err := spec.ParseVersion(p.Version)
	if err != nil {
		return invalid("%s has no valid version", p.Name)
	}
	file, err := tags.ParseFile(p.File)
	switch {
	case err != nil:
		return invalid("%s: file %s does not have the name of a wheel", p.Name, quote(p.File))
	case file.Name != p.Name || !file.Version.Equal(version):
		return invalid("%s %s: file %s is one of another package or version", p.Name, p.Version, quote(p.File))
	case !ValidSHA256(p.SHA256):
		return invalid("%s: sha256 is not 64 hexadecimal digits in lower case", p.Name)
	case p.Size < 0:
		return invalid("%s: its size is negative", p.Name)
	}
	if err := p.checkSource(); err != nil {
		return invalid("%s: %s", p.Name, strings.TrimPrefix(err.Error(), ErrInvalid.Error()+": "))
	}
	return nil
}

// checkSource looks at what is told of a package besides its file.
func (p Package) checkSource() error {
	if err := checkTime("upload_time", p.Uploaded); err != nil {
		return err
	}
	if err := checkTexts("index, licence or reason of yanking", p.Index, p.License, p.Yanked); err != nil {
		return err
	}
	for _, list := range [][]string{p.Requires, p.Tops, p.Flags} {
		switch {
		case len(list) > maxList:
			return invalid("%d entries are over the limit of %d", len(list), maxList)
		case slices.Contains(list, ""):
			return invalid("an entry of requires, tops or flags is empty")
		}
		if err := checkTexts("requires, tops or flags", list...); err != nil {
			return err
		}
	}
	return nil
}

// checkTime refuses times that JSON cannot hold.
func checkTime(name string, t time.Time) error {
	if y := t.Year(); y < 0 || y > 9999 {
		return invalid("%s is not a time", name)
	}
	return nil
}

// checkTexts lets through printable text, which is the same after it was
// written and read.
func checkTexts(name string, list ...string) error {
	for _, s := range list {
		switch {
		case len(s) > maxText:
			return invalid("%s: %d bytes are over the limit of %d", name, len(s), maxText)
		case !utf8.ValidString(s), strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }):
			return invalid("%s: a character is not printable", name)
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
