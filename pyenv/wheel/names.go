package wheel

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// Limits of the names in a wheel.
const (
	maxPath  = 240 // bytes
	maxDepth = 40  // components
)

// checkName lets through plain relative paths: valid UTF-8 in normal form, no
// control characters and no backslash, every component a name of its own. The
// name of a directory ends in "/".
func checkName(name string) error {
	path := strings.TrimSuffix(name, "/")
	switch {
	case path == "":
		return refuse(ErrZipPath, name, "it has no name")
	case len(name) > maxPath:
		return refuse(ErrZipPath, name, "%d bytes are over the limit of %d", len(name), maxPath)
	case !utf8.ValidString(name):
		return refuse(ErrZipPath, name, "it is not valid UTF-8")
	case strings.ContainsFunc(name, func(r rune) bool { return r == '\\' || unicode.IsControl(r) }):
		return refuse(ErrZipPath, name, "it has a control character or a backslash")
	case !norm.NFC.IsNormalString(name):
		return refuse(ErrZipPath, name, "it is not in Unicode normal form C")
	case path[0] == '/', len(path) > 1 && path[1] == ':':
		return refuse(ErrZipPath, name, "it is an absolute path")
	case strings.Count(path, "/") >= maxDepth:
		return refuse(ErrZipPath, name, "it is over %d levels deep", maxDepth)
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." {
			return refuse(ErrZipPath, name, "a component of it is empty, \".\" or \"..\"")
		}
	}
	return nil
}

// checkUnique refuses names that are, or on some file systems could be, one
// file, and files that lie where a directory must be.
func checkUnique(entries []*entry, o Options) error {
	u := newUnique(o)
	for _, e := range entries {
		if err := u.add(e.name, e.dir); err != nil {
			return err
		}
	}
	return nil
}

// unique knows the paths of a tree by their folded form.
type unique struct {
	fold  cases.Caser
	kinds map[string]kind
	most  int
}

type kind uint8

const (
	isFile     kind = iota + 1
	isDir           // because something lies in it
	isDirEntry      // because it has an entry of its own
)

// newUnique takes as many directories as entries, so that a few deep names are
// not a way to fill the memory.
func newUnique(o Options) *unique {
	return &unique{cases.Fold(), map[string]kind{}, 2 * o.MaxEntries}
}

// add adds a file or a directory, and the directories above it.
func (u *unique) add(path string, dir bool) error {
	key := strings.TrimSuffix(u.key(path), "/")
	have := u.kinds[key]
	switch {
	case have == 0, dir && have == isDir:
	case (have == isFile) != dir:
		return refuse(ErrZipDuplicate, path, "the name is used twice; upper and lower case count as one")
	default:
		return refuse(ErrZipDuplicate, path, "it is a file and a directory")
	}
	u.kinds[key] = isFile
	if dir {
		u.kinds[key] = isDirEntry
	}
	for at := strings.LastIndexByte(key, '/'); at > 0; at = strings.LastIndexByte(key, '/') {
		key = key[:at]
		switch u.kinds[key] {
		case isFile:
			return refuse(ErrZipDuplicate, path, "it lies in what is a file")
		case isDir, isDirEntry:
			return nil // and so are those above it
		}
		u.kinds[key] = isDir
	}
	if len(u.kinds) > u.most {
		return refuse(ErrZipBomb, path, "it has over %d files and directories", u.most)
	}
	return nil
}

// key folds case, and normalises again, for folding can undo that.
func (u *unique) key(path string) string {
	if ascii(path) {
		return strings.ToLower(path)
	}
	return norm.NFC.String(u.fold.String(path))
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
