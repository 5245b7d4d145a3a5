package wheel

import (
	"path"
	"strings"
	"unicode/utf8"
)

// Startup is code that a wheel would run at every start of Python, needed or
// not. It is not part of what Unpack writes.
type Startup struct {
	File  string   `json:"file"`  // the .pth or .start file
	Lines []string `json:"lines"` // each is one line of code, or of a .start file
}

// maxPth bounds a .pth file and what is told of it.
const maxPth = 64 << 10

// readPth tells the lines of a .pth file apart, as the site module of Python
// does: code when a line begins with "import", else a directory for the import
// path. A directory must lie within site-packages; it is told with "/" between
// its parts. All lines of a .start file (PEP 829) name code.
//
// Lines end wherever str.splitlines ends one, for newer versions of site use
// that.
//
// Errors: ErrPthPath.
func readPth(name string, text []byte) (dirs, code []string, err error) {
	if !utf8.Valid(text) || strings.IndexByte(string(text), 0) >= 0 {
		return nil, nil, refuse(ErrPthPath, name, "it is not text in UTF-8")
	}
	start := strings.HasSuffix(name, ".start")
	for line := range strings.FieldsFuncSeq(strings.TrimPrefix(string(text), "\ufeff"), lineEnd) {
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "" || trimmed[0] == '#':
		case start, strings.HasPrefix(trimmed, "import ") || strings.HasPrefix(trimmed, "import\t"):
			code = append(code, trimmed)
		default:
			dir, ok := within(strings.TrimRight(line, " \t"))
			if !ok {
				return nil, nil, refuse(ErrPthPath, name, "the line %s leads out of the layer", quote(line))
			}
			dirs = append(dirs, dir)
		}
	}
	return dirs, code, nil
}

// within normalises a relative path, and says whether it stays below where it
// begins.
func within(dir string) (string, bool) {
	if dir == "" || path.IsAbs(dir) || strings.ContainsAny(dir, "\\:") {
		return "", false
	}
	dir = path.Clean(dir)
	return dir, dir != ".." && !strings.HasPrefix(dir, "../")
}

func lineEnd(r rune) bool {
	switch r {
	case '\n', '\r', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
		return true
	}
	return false
}
