package pyenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/tags"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
)

// upload takes a wheel of a workspace into the wheelhouse, once it has passed every rule.
func (e *Env) upload(ctx context.Context, h holding, w Wheel) (*queue.Upload, error) {
	r, err := w.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	name := path.Base(w.Path)
	t, err := takeWheel(ctx, h.root, h.it, name, r, uploaded)
	if err != nil {
		return nil, ofWheel(ctx, name, err)
	}
	defer t.Close()
	if other := slices.IndexFunc(h.packages(), func(p lock.Package) bool {
		return p.Name == t.pkg.Name && p.Version == t.pkg.Version && p.SHA256 != t.pkg.SHA256
	}); other >= 0 {
		return nil, &Error{
			Code: "hash_mismatch", Sentence: fmt.Sprintf("the disk has %s %s already, from a wheel with other contents", t.pkg.Name, t.pkg.Version),
			Hint: "give the package another version and build the wheel again", Blocking: resolve.Blocking{Name: t.pkg.Name, Version: t.pkg.Version},
		}
	}
	if err := t.store(ctx, h.root); err != nil {
		return nil, err
	}
	return &queue.Upload{File: t.pkg.File, SHA256: t.pkg.SHA256, Path: w.Path}, nil
}

// ofWheel says of which wheel an error is.
func ofWheel(ctx context.Context, file string, err error) error {
	var e *Error
	if !errors.As(tell(ctx, err), &e) {
		return err
	}
	told := *e
	told.Sentence = harmless(file) + ": " + told.Sentence
	if f, ferr := tags.ParseFile(file); ferr == nil && told.Blocking == (resolve.Blocking{}) {
		told.Blocking = resolve.Blocking{Name: f.Name, Version: f.Version.String()}
	}
	return &told
}

// uploadedPackage is what a wheel of a workspace is in a lock.
func (e *Env) uploadedPackage(root *store.Root, it *python.Interpreter, u queue.Upload) (p lock.Package, err error) {
	f, w, size, err := openKept(root, it, u.SHA256, u.File)
	if errors.Is(err, store.ErrMissingWheel) {
		return p, lost(lock.Package{Name: u.File, Index: uploaded})
	}
	if err != nil {
		return p, err
	}
	defer f.Close()
	if err := fits(w, it); err != nil {
		return p, err
	}
	return packageOf(w, it, lock.Package{File: u.File, SHA256: u.SHA256, Size: size, Index: uploaded})
}

// openKept opens a wheel of the wheelhouse and looks at it. The caller closes the file
// when it needs the wheel no more. Errors: store.ErrMissingWheel; those of wheel.Open.
func openKept(root *store.Root, it *python.Interpreter, sha256, name string) (f *os.File, w *wheel.Wheel, size int64, err error) {
	if f, err = root.OpenWheel(sha256); err != nil {
		return nil, nil, 0, err
	}
	st, err := f.Stat()
	if err == nil {
		size = st.Size()
		w, err = wheel.Open(f, size, name, wheel.Options{Stdlib: it.Facts.Stdlib})
	}
	if err != nil {
		f.Close()
		return nil, nil, 0, err
	}
	return f, w, size, nil
}

// taken is a wheel that has passed every rule, its contents included.
type taken struct {
	io.Closer
	file  io.ReadSeeker
	wheel *wheel.Wheel
	pkg   lock.Package
}

// takeWheel reads a wheel of somebody's into a file without a name and looks at it. from
// is what lock.Package.Index says of it.
func takeWheel(ctx context.Context, root *store.Root, it *python.Interpreter, name string, r io.Reader, from string) (*taken, error) {
	f, sum, size, err := spool(filepath.Join(root.Dir(), "jobs"), r)
	if err != nil {
		return nil, err
	}
	t := &taken{Closer: f, file: f}
	t.wheel, err = wheel.Open(f, size, name, wheel.Options{Stdlib: it.Facts.Stdlib})
	if err == nil {
		err = fits(t.wheel, it)
	}
	if err == nil {
		err = t.wheel.Verify(ctx)
	}
	if err == nil {
		t.pkg, err = packageOf(t.wheel, it, lock.Package{File: name, SHA256: sum, Size: size, Index: from})
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return t, nil
}

// store puts it where layers are built from.
func (t *taken) store(ctx context.Context, root *store.Root) error {
	if _, err := t.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return root.AddWheel(ctx, t.file, t.pkg.SHA256, t.pkg.Size)
}
