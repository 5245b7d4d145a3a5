package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Fault is one difference between a layer and its manifest, FaultKind what differs: as
// of an interpreter.
type (
	Fault     = python.Fault
	FaultKind = python.FaultKind
)

// The kinds of faults.
const (
	Changed    = python.Changed
	Missing    = python.Missing
	Additional = python.Additional
	Mode       = python.Mode
	Unreadable = python.Unreadable
)

// Verify reads all of a layer and compares it with its manifest. The faults are
// sorted by path; none means that the layer is as it was built. Errors: the cause
// of ctx's end; ErrNotFound when there is no such directory; those of the file
// system that are not about one file.
func (r *Root) Verify(ctx context.Context, l *Layer) ([]Fault, error) {
	dir, err := r.root.OpenRoot(layersDir + "/" + l.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse(ErrNotFound, "", "there is no layer %s", l.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("verify layer %s: %w", l.ID, err)
	}
	defer dir.Close()
	v := newVerifier(ctx, dir, l.Manifest)
	if err := fs.WalkDir(dir.FS(), ".", v.visit); err != nil {
		return nil, fmt.Errorf("verify layer %s: %w", l.ID, err)
	}
	for p := range v.files {
		v.fault(p, Missing)
	}
	slices.SortFunc(v.faults, Fault.Compare)
	return v.faults, nil
}

// verifier walks a layer.
type verifier struct {
	ctx    context.Context
	dir    *os.Root
	files  map[string]wheel.Installed // not seen yet
	dirs   map[string]bool            // that have to be there
	buf    []byte
	faults []Fault
}

func newVerifier(ctx context.Context, dir *os.Root, m Manifest) *verifier {
	v := &verifier{ctx: ctx, dir: dir, files: map[string]wheel.Installed{}, dirs: map[string]bool{".": true}, buf: make([]byte, 256<<10)}
	for _, list := range [][]wheel.Installed{m.Files, m.Cache.Files} {
		for _, f := range list {
			v.files[f.Path] = f
			for d := path.Dir(f.Path); !v.dirs[d]; d = path.Dir(d) {
				v.dirs[d] = true
			}
		}
	}
	return v
}

func (v *verifier) fault(p string, kind FaultKind) {
	v.faults = append(v.faults, Fault{Path: p, Kind: kind})
}

// visit looks at one entry.
func (v *verifier) visit(p string, d fs.DirEntry, err error) error {
	if v.ctx.Err() != nil {
		return context.Cause(v.ctx)
	}
	want, listed := v.files[p]
	delete(v.files, p)
	switch {
	case err != nil:
		v.fault(p, Unreadable)
		return nil
	case p == manifestFile && d.Type().IsRegular():
		return v.checkMode(p, d, 0o444)
	case d.IsDir() && v.dirs[p]:
		return v.checkMode(p, d, 0o755)
	case d.IsDir() && !listed:
		v.fault(p, Additional)
		return fs.SkipDir
	case !listed && v.dirs[p]:
		v.fault(p, Changed) // something else where a directory was
	case !listed:
		v.fault(p, Additional)
	case !d.Type().IsRegular():
		v.fault(p, Changed)
		if d.IsDir() {
			return fs.SkipDir
		}
	default:
		return v.file(p, d, want)
	}
	return nil
}

func (v *verifier) checkMode(p string, d fs.DirEntry, want fs.FileMode) error {
	st, err := d.Info()
	switch {
	case err != nil:
		v.fault(p, Unreadable)
	case runtime.GOOS != "windows" && st.Mode()&(fs.ModePerm|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != want:
		v.fault(p, Mode)
	}
	return nil
}

// file compares mode, size and content.
func (v *verifier) file(p string, d fs.DirEntry, want wheel.Installed) error {
	mode := fs.FileMode(0o444)
	if want.Exec {
		mode = 0o555
	}
	if err := v.checkMode(p, d, mode); err != nil {
		return err
	}
	sum, size, err := v.sum(p)
	switch {
	case v.ctx.Err() != nil:
		return context.Cause(v.ctx)
	case err != nil:
		v.fault(p, Unreadable)
	case size != want.Size || sum != want.SHA256:
		v.fault(p, Changed)
	}
	return nil
}

func (v *verifier) sum(p string) (sum string, size int64, err error) {
	f, err := v.dir.OpenFile(p, os.O_RDONLY|hostos.NonBlock, 0)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{reader{v.ctx, f}}, v.buf)
	return hex.EncodeToString(h.Sum(nil)), size, err
}
