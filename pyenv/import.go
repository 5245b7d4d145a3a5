package pyenv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
)

// ImportReport is what is known of a wheel that was imported.
type ImportReport struct {
	Name     string   `json:"name"` // normalised
	Version  string   `json:"version"`
	File     string   `json:"file"`
	SHA256   string   `json:"sha256"`
	Size     int64    `json:"size"`
	Modules  []string `json:"modules"`
	Requires []string `json:"requires"` // by the interpreter that scripts run
	Base     bool     `json:"base"`     // the next base has it
	Notes    []string `json:"notes"`    // sentences for the operator
}

// maxImport is the size of the largest wheel that is imported, in bytes.
const maxImport = 512 << 20

// Import takes a wheel of the operator's into the wheelhouse, once it has passed every
// rule that a wheel of an index has to pass, its contents included. With base it is put
// on the list of what the base has besides base.txt, in the place of another version of
// it; the next Ensure builds such a base. fileName is the name of the wheel's file;
// directories in it are dropped.
//
// A failure leaves nothing. Errors: *Error, of any code of package wheel too, ErrNoFit,
// ErrSize; the cause of ctx, wrapped; those of r, as ErrFailed.
func (e *Env) Import(ctx context.Context, fileName string, r io.Reader, base bool) (ImportReport, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return ImportReport{}, tell(context.Background(), err)
	}
	defer leave()
	_, end := e.begin("importing a wheel")
	defer end()
	rep, err := e.importWheel(ctx, filepath.Base(filepath.ToSlash(fileName)), r, base)
	return rep, tell(ctx, err)
}

// Remove takes packages that were imported for the base out of what the next base has.
// Their wheels stay until GC. Names may be spelt in any way.
//
// Errors: *Error, of code not_found when one was not imported, and then nothing is
// taken out; the cause of ctx, wrapped.
func (e *Env) Remove(ctx context.Context, names ...string) error {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return tell(context.Background(), err)
	}
	defer leave()
	return tell(ctx, e.removeExtras(ctx, names))
}

func (e *Env) removeExtras(ctx context.Context, names []string) error {
	if _, err := e.store(); err != nil {
		return err
	}
	unlock, err := e.claim(ctx, func() {})
	if err != nil {
		return err
	}
	defer unlock()
	list, err := e.extras()
	if err != nil {
		return err
	}
	normal := map[string]bool{}
	for _, name := range names {
		if normal[spec.NormalizeName(name)] {
			continue
		}
		normal[spec.NormalizeName(name)] = true
		at := slices.IndexFunc(list, func(p lock.Package) bool { return p.Name == spec.NormalizeName(name) })
		if at < 0 {
			return &Error{Code: ErrNotFound, Sentence: fmt.Sprintf("%q was not imported for the base", harmless(name)), Hint: importedForBase(list)}
		}
		list = slices.Delete(list, at, at+1)
	}
	return e.setExtras(list)
}

// importedForBase says what was imported for the base, as a hint; "" for nothing.
func importedForBase(list []lock.Package) string {
	var names []string
	for _, p := range list {
		names = append(names, p.Name)
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("imported for the base: %s; mcp-vdisk env remove NAME takes one out", strings.Join(names, ", "))
}

func (e *Env) importWheel(ctx context.Context, name string, r io.Reader, base bool) (rep ImportReport, err error) {
	root, err := e.store()
	if err != nil {
		return rep, err
	}
	it, err := e.make(ctx)
	if err != nil {
		return rep, err
	}
	t, err := takeWheel(ctx, root, it, name, r, imported)
	if err != nil {
		return rep, err
	}
	defer t.Close()
	p := t.pkg
	rep = ImportReport{Name: p.Name, Version: p.Version, File: name, SHA256: p.SHA256, Size: p.Size, Modules: p.Tops, Requires: p.Requires, Base: base}
	if len(t.wheel.Startup) > 0 {
		rep.Notes = append(rep.Notes, "It has code that wants to run at every start of Python, which is left out.")
	}
	return rep, e.keep(ctx, root, t, base)
}

// spool copies what r gives into a file without a name, and hashes it.
func spool(dir string, r io.Reader) (f *os.File, sum string, size int64, err error) {
	if f, err = os.CreateTemp(dir, topTmp+"import-"); err != nil {
		return nil, "", 0, err
	}
	if err = os.Remove(f.Name()); err == nil {
		h := sha256.New()
		size, err = io.Copy(io.MultiWriter(f, h), io.LimitReader(r, maxImport+1))
		sum = hex.EncodeToString(h.Sum(nil))
	}
	if err == nil && size > maxImport {
		err = &Error{Code: ErrSize, Sentence: fmt.Sprintf("the wheel has more than %d MiB", maxImport>>20), Hint: "no wheel is that large; was another file given that name?"}
	}
	if err != nil {
		f.Close()
		return nil, "", 0, err
	}
	return f, sum, size, nil
}

// fits refuses a wheel that the interpreter cannot use.
func fits(w *wheel.Wheel, it *python.Interpreter) error {
	target := it.Facts.Target
	if _, ok := target.Fits(w.File); !ok {
		return &Error{Code: ErrNoFit, Sentence: fmt.Sprintf("the wheel is for %s, wanted is %s", w.File.Tag, target), Hint: "build it for this system, or as py3-none-any"}
	}
	v, err := spec.ParseVersion(it.Facts.Full)
	if err == nil && !w.Metadata.RequiresPython.Match(v) {
		err = &Error{Code: ErrNoFit, Sentence: fmt.Sprintf("the wheel needs Python %s, and scripts run %s", w.Metadata.RequiresPython, it.Facts.Full), Hint: "use a release for that Python, or give scripts another one (env.python)"}
	}
	return err
}

// packageOf adds to p what a wheel says of itself, as a lock names it: of what it needs
// it has what is needed with this interpreter.
func packageOf(w *wheel.Wheel, it *python.Interpreter, p lock.Package) (lock.Package, error) {
	p.Name, p.Version, p.License = w.File.Name, w.File.Version.String(), harmless(w.Metadata.License)
	env := spec.CPythonLinux(it.Facts.Full, it.Facts.Target.Arch)
	for _, q := range w.Metadata.Requires {
		needed, err := q.Applies(env, nil)
		if err != nil {
			return p, &Error{Code: "wheel_metadata", Sentence: "a condition in what the wheel needs cannot be read", Hint: wheelHint(wheel.ErrWheelMetadata), Detail: err.Error()}
		}
		if needed {
			p.Requires = append(p.Requires, q.String())
		}
	}
	for _, t := range w.Tops {
		p.Tops = append(p.Tops, t.Name)
	}
	slices.Sort(p.Tops)
	p.Tops = slices.Compact(p.Tops)
	return p, nil
}

// keep puts the wheel where Ensure finds it.
func (e *Env) keep(ctx context.Context, root *store.Root, t *taken, base bool) error {
	if err := t.store(ctx, root); err != nil || !base {
		return err
	}
	unlock, err := e.claim(ctx, func() {})
	if err != nil {
		return err
	}
	defer unlock()
	return e.addExtra(t.pkg)
}
