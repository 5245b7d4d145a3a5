package spec

import "strings"

// maxName is the length of the longest project name or extra. PyPI takes no
// longer ones.
const maxName = 128

// NormalizeName is the form in which project names and extras compare: lower
// case, with every run of "-", "_" and "." as one "-" (PEP 503, PEP 685). It
// does not say whether the name is a valid one, see ValidName.
func NormalizeName(name string) string {
	var b strings.Builder
	b.Grow(len(name))
	gap := false
	for i := range len(name) {
		c := name[i]
		if c == '-' || c == '_' || c == '.' {
			gap = true
			continue
		}
		if gap {
			b.WriteByte('-')
			gap = false
		}
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		b.WriteByte(c)
	}
	if gap {
		b.WriteByte('-')
	}
	return b.String()
}

// ValidName says whether a name may be that of a project or an extra: ASCII
// letters, digits, "-", "_" and ".", with a letter or digit at both ends, of at
// most 128 bytes.
func ValidName(name string) bool {
	if name == "" || len(name) > maxName || !alnum(name[0]) || !alnum(name[len(name)-1]) {
		return false
	}
	for i := range len(name) {
		if !nameByte(name[i]) {
			return false
		}
	}
	return true
}

func nameByte(c byte) bool { return alnum(c) || c == '-' || c == '_' || c == '.' }

func alnum(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
