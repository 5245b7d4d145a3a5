package workspace

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of paths. They are the limits of Linux, so that every path of an
// image also works inside a script.
const (
	MaxName     = 255  // bytes of one component
	MaxPath     = 4096 // bytes of a whole path as it is shown, "/workspace/" included
	MaxDepth    = 128  // components of a path
	MaxSymlinks = 40   // links followed while one path is resolved
)

// Mount is where scripts see the image, and how its paths are shown.
const Mount = "/workspace"

// reserved are the names at the root that belong to the container itself. No
// tool, script or import reads, lists or makes them, nor anything below them.
var reserved = map[string]bool{
	".system": true, ".vectors": true, ".logs": true,
	".vector_disk.json": true, ".log_disk.json": true,
}

// Path names a place in an image. The zero value is the root. A Path can only
// be made by Clean, FromBytes and the methods of Path, so one that exists is
// within the limits, has no "..", and names nothing reserved. Paths compare
// with ==.
type Path struct {
	rel string // components joined by "/", raw bytes
}

// Clean is the door for paths given by a model or a person. "/workspace/a/b",
// "/a/b", "a/b", "./a/b" and "//a/b/" are one path. "\" separates like "/". A
// string in double quotes is read as Go's %q wrote it (see String), and there
// only "/" separates. A ".." component is refused, never resolved.
//
// Errors: ErrInvalidPath (empty, blank, NUL, not UTF-8, over a limit),
// ErrPathEscape (".."), ErrReservedPath.
func Clean(path string) (Path, error) {
	switch {
	case strings.TrimSpace(path) == "":
		return Path{}, inputError(path, ErrInvalidPath, "it is empty")
	case !utf8.ValidString(path):
		return Path{}, inputError(path, ErrInvalidPath, "it is not valid UTF-8")
	}
	raw := path
	if quoted(path) {
		var err error
		if raw, err = strconv.Unquote(path); err != nil {
			return Path{}, inputError(path, ErrInvalidPath, "it is in double quotes but not in the quoted form")
		}
		if strings.TrimSpace(raw) == "" {
			return Path{}, inputError(path, ErrInvalidPath, "it is empty")
		}
	} else {
		raw = strings.ReplaceAll(raw, `\`, "/")
	}
	parts := make([]string, 0, 8)
	for part := range strings.SplitSeq(raw, "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	if raw[0] == '/' && len(parts) > 0 && parts[0] == Mount[1:] {
		parts = parts[1:]
	}
	return newPath(parts, path)
}

// quoted says whether a path is in the form that String gives to names which
// are not plain. A name that merely starts with a quote is an ordinary one.
func quoted(path string) bool {
	return len(path) >= 2 && path[0] == '"' && path[len(path)-1] == '"'
}

// FromBytes makes a Path from a relative path found by a scan: raw bytes,
// separated by "/", with control bytes and invalid UTF-8 allowed. The empty
// slice is the root. An absolute path and empty or "." components are
// ErrInvalidPath, since no scan makes them.
//
// Errors: as for Clean.
func FromBytes(rel []byte) (Path, error) {
	if len(rel) == 0 {
		return Path{}, nil
	}
	parts := strings.Split(string(rel), "/")
	for _, part := range parts {
		if part == "" || part == "." {
			return Path{}, inputError(string(rel), ErrInvalidPath, "it has an empty component")
		}
	}
	return newPath(parts, string(rel))
}

// newPath checks components and joins them; input is what errors name.
func newPath(parts []string, input string) (Path, error) {
	size := len(Mount)
	for _, part := range parts {
		if part == ".." {
			return Path{}, inputError(input, ErrPathEscape, `a ".." component is never followed`)
		}
		if strings.IndexByte(part, 0) >= 0 {
			return Path{}, inputError(input, ErrInvalidPath, "it contains a NUL byte")
		}
		if len(part) > MaxName {
			return Path{}, inputError(input, ErrInvalidPath, fmt.Sprintf("a name of %d bytes is over the limit of %d", len(part), MaxName))
		}
		size += 1 + len(part)
	}
	switch {
	case len(parts) > MaxDepth:
		return Path{}, inputError(input, ErrInvalidPath, fmt.Sprintf("a depth of %d is over the limit of %d", len(parts), MaxDepth))
	case size > MaxPath:
		return Path{}, inputError(input, ErrInvalidPath, fmt.Sprintf("a path of %d bytes is over the limit of %d", size, MaxPath))
	case len(parts) > 0 && reserved[parts[0]]:
		return Path{}, inputError(input, ErrReservedPath, "")
	}
	return Path{strings.Join(parts, "/")}, nil
}

// inputError is about text that never became a Path. Long text is cut, for
// the message goes back to a model.
func inputError(input string, kind error, detail string) *Error {
	const most = 120
	if len(input) > most {
		input = strings.ToValidUTF8(input[:most], "") + "…"
	}
	return &Error{Op: "clean", Kind: kind, Detail: detail, subject: "the path " + strconv.Quote(input)}
}

// Compare orders paths as the tree does: by components, and these by raw bytes, so that
// a directory comes before what is below it, and that before its next sibling.
func (p Path) Compare(o Path) int {
	for i := range min(len(p.rel), len(o.rel)) {
		a, b := p.rel[i], o.rel[i]
		switch {
		case a == b:
		case a == '/':
			return -1
		case b == '/':
			return 1
		default:
			return cmp.Compare(a, b)
		}
	}
	return cmp.Compare(len(p.rel), len(o.rel))
}

// IsRoot says whether p is the root of the image.
func (p Path) IsRoot() bool { return p.rel == "" }

// Depth is the number of components; the root has none.
func (p Path) Depth() int {
	if p.rel == "" {
		return 0
	}
	return 1 + strings.Count(p.rel, "/")
}

// Base is the last component as raw bytes, "" for the root.
func (p Path) Base() string { return p.rel[strings.LastIndexByte(p.rel, '/')+1:] }

// Dir is the path without its last component; the root's is the root.
func (p Path) Dir() Path {
	if i := strings.LastIndexByte(p.rel, '/'); i >= 0 {
		return Path{p.rel[:i]}
	}
	return Path{}
}

// Join appends one component, given as raw bytes. Errors: as for Clean; a name
// that is empty, "." or has a "/" is ErrInvalidPath.
func (p Path) Join(name string) (Path, error) {
	if name == "" || name == "." || strings.IndexByte(name, '/') >= 0 {
		return Path{}, inputError(name, ErrInvalidPath, "it is not the name of a directory entry")
	}
	return newPath(append(p.Components(), name), p.join(name).rel)
}

// join is Join for a name that is known to be good.
func (p Path) join(name string) Path {
	if p.rel == "" {
		return Path{name}
	}
	return Path{p.rel + "/" + name}
}

// Components are the raw names from the root down; nil for the root.
func (p Path) Components() []string {
	if p.rel == "" {
		return nil
	}
	return strings.Split(p.rel, "/")
}

// Rel is "a/b" in raw bytes, "" for the root.
func (p Path) Rel() string { return p.rel }

// String is "/workspace/a/b", the path that also works inside scripts. When a
// name is not plain (it has control characters, "\" or invalid UTF-8) it is
// that in Go's quoted form, which Clean reads back.
func (p Path) String() string {
	s := Mount
	if p.rel != "" {
		s += "/" + p.rel
	}
	if plain(p.rel) {
		return s
	}
	return strconv.Quote(s)
}

// plain says whether a path can be shown as it is. Characters that would let a
// name forge another line of a listing, or turn its reading direction, count
// as control characters.
func plain(rel string) bool {
	if !utf8.ValidString(rel) {
		return false
	}
	for _, r := range rel {
		switch {
		case r == '\\', unicode.IsControl(r), r == '\u2028', r == '\u2029':
			return false
		case r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069':
			return false
		}
	}
	return true
}

// isBelow says whether p lies somewhere below dir.
func (p Path) isBelow(dir Path) bool {
	if dir.rel == "" {
		return p.rel != ""
	}
	return len(p.rel) > len(dir.rel) && p.rel[len(dir.rel)] == '/' && p.rel[:len(dir.rel)] == dir.rel
}
