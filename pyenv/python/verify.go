package python

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
)

// Fault is one difference between what was made, an interpreter or a layer, and its
// manifest.
type Fault struct {
	Path string    `json:"path"` // in python/<id>, where what the sandbox shows begins with "prefix/"; or in the layer
	Kind FaultKind `json:"kind"`
}

// Compare sorts faults by path, and those of one path by kind.
func (f Fault) Compare(o Fault) int {
	return cmp.Or(cmp.Compare(f.Path, o.Path), cmp.Compare(f.Kind, o.Kind))
}

// FaultKind says what differs.
type FaultKind string

// The kinds of faults.
const (
	Changed    FaultKind = "changed"    // another content, type or target
	Missing    FaultKind = "missing"    // listed, and not there
	Additional FaultKind = "additional" // there, and not listed
	Mode       FaultKind = "mode"       // other permissions
	Unreadable FaultKind = "unreadable" // the disk does not give it
)

// Verify reads all of an interpreter and compares it with its manifest. The faults
// are sorted by path; none means that it is as it was made. A directory that is
// missing, additional or something else now is one fault, whatever was in it.
//
// Without a manifest that can be read nothing can be compared, and that is the fault.
// An interpreter that was made before there were manifests has this one: Repair makes
// it again.
//
// Whoever can write to the environment root can also write a manifest: Verify finds
// damage and what was changed by hand, and is no signature.
//
// It takes about a tenth of a second for the 32 MB of a Python of the system. Errors: ErrNotFound; the cause of ctx's end; those of the file
// system that are not about one file.
func Verify(ctx context.Context, root, id string) ([]Fault, error) {
	dir, err := openDir(root, id)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	m, err := readManifest(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []Fault{{manifestName, Missing}}, nil
	case errors.Is(err, ErrChanged):
		return []Fault{{manifestName, Changed}}, nil
	case err != nil:
		return []Fault{{manifestName, Unreadable}}, nil
	}
	v := &verifier{ctx: ctx, dir: dir, left: make(map[string]listed, len(m.Entries)), gone: map[string]bool{}}
	for _, e := range m.Entries {
		v.left[e.Path] = e
	}
	if err := fs.WalkDir(dir.FS(), ".", v.visit); err != nil {
		return nil, fmt.Errorf("verify the Python %s: %w", id, err)
	}
	v.missing(m)
	slices.SortFunc(v.faults, Fault.Compare)
	return v.faults, nil
}

// verifier walks an interpreter.
type verifier struct {
	ctx    context.Context
	dir    *os.Root
	left   map[string]listed // not seen yet
	gone   map[string]bool   // what is in them is of no matter any more
	faults []Fault
}

func (v *verifier) fault(p string, kind FaultKind) {
	v.faults = append(v.faults, Fault{p, kind})
}

// visit looks at one entry.
func (v *verifier) visit(p string, d fs.DirEntry, err error) error {
	if v.ctx.Err() != nil {
		return context.Cause(v.ctx)
	}
	want, known := v.left[p]
	delete(v.left, p)
	switch {
	case err != nil: // a directory, the second time that it is visited
		v.gone[p] = true
		v.fault(p, Unreadable)
	case p == "." || unlisted(p) && d.Type().IsRegular():
	case !known:
		v.fault(p, Additional)
		return below(d)
	default:
		return v.compare(p, d, want)
	}
	return nil
}

// below passes over what is in a directory.
func below(d fs.DirEntry) error {
	if d.IsDir() {
		return fs.SkipDir
	}
	return nil
}

// compare holds what is there against what was.
func (v *verifier) compare(p string, d fs.DirEntry, want listed) error {
	info, err := d.Info()
	if err != nil {
		v.gone[p] = true
		v.fault(p, Unreadable)
		return below(d)
	}
	mode := info.Mode().String()
	if kindOf(info.Mode()) != want.kind() {
		v.gone[p] = true
		v.fault(p, Changed)
		return below(d)
	}
	link := info.Mode()&fs.ModeSymlink != 0
	if runtime.GOOS != "windows" && mode != want.Mode && !link { // that of a link means nothing
		v.fault(p, Mode)
	}
	switch {
	case link:
		v.content(p, func() (bool, error) {
			to, err := v.dir.Readlink(p)
			return to == want.Link, err
		})
	case info.Mode().IsRegular():
		v.content(p, func() (bool, error) {
			if info.Size() != want.Size {
				return false, nil
			}
			sum, err := hashIn(v.dir, p)
			return sum == want.SHA256, err
		})
	}
	return nil
}

// content notes a fault when what is read is not the same.
func (v *verifier) content(p string, same func() (bool, error)) {
	switch ok, err := same(); {
	case err != nil:
		v.fault(p, Unreadable)
	case !ok:
		v.fault(p, Changed)
	}
}

func kindOf(m fs.FileMode) byte {
	switch {
	case m.IsDir():
		return 'd'
	case m&fs.ModeSymlink != 0:
		return 'l'
	case m.IsRegular():
		return '-'
	}
	return '?'
}

// kind is what kindOf says of an entry.
func (e listed) kind() byte {
	switch {
	case e.SHA256 != "":
		return '-'
	case e.Link != "":
		return 'l'
	}
	return 'd'
}

// missing adds what was not seen, but for what was in a directory that is gone itself.
func (v *verifier) missing(m manifest) {
	for _, e := range m.Entries { // a directory before what is in it
		if _, ok := v.left[e.Path]; !ok {
			continue
		}
		if !v.gone[path.Dir(e.Path)] {
			v.fault(e.Path, Missing)
		}
		v.gone[e.Path] = true
	}
}
