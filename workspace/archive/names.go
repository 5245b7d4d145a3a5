package archive

import (
	"fmt"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// names are the paths of an archive, in raw bytes, and what is at each.
type names map[string]kind

// kind is what an entry makes of its path.
type kind byte

const (
	isFile kind = iota + 1
	isLink
	isDir
	isParent // a folder that has no entry, or not yet
)

func (k kind) String() string {
	return [...]string{"", "a file", "a link", "a folder", "a folder"}[k]
}

// path is where an entry goes. "." and empty components are left out, as everywhere.
func path(name string) (workspace.Path, error) {
	if strings.HasPrefix(name, "/") {
		return workspace.Path{}, &Error{Entry: name, Kind: ErrEntry, Detail: "its name begins at the root of a file system"}
	}
	parts := make([]string, 0, 8)
	for part := range strings.SplitSeq(name, "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	p, err := workspace.FromBytes([]byte(strings.Join(parts, "/")))
	if err != nil {
		return p, &Error{Entry: name, Kind: ErrEntry, Detail: err.Error()}
	}
	return p, nil
}

// add takes in an entry. A path has one, and what is above it is a folder.
func (n names) add(p workspace.Path, name string, k kind) error {
	for dir := p.Dir(); !dir.IsRoot(); dir = dir.Dir() {
		switch at := n[dir.Rel()]; at {
		case isDir, isParent: // and so is what is above it
		case 0:
			n[dir.Rel()] = isParent
			continue
		default:
			return &Error{Entry: name, Kind: ErrEntry, Detail: fmt.Sprintf("%s, which it lies below, is %s", dir, at)}
		}
		break
	}
	switch at := n[p.Rel()]; {
	case at == isParent && k == isDir, at == 0:
	case at == isParent:
		return &Error{Entry: name, Kind: ErrEntry, Detail: fmt.Sprintf("it is %s, and other entries lie below it", k)}
	default:
		return &Error{Entry: name, Kind: ErrEntry, Detail: fmt.Sprintf("there are two entries for %s", p)}
	}
	n[p.Rel()] = k
	return nil
}
