package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
)

// opened is a wheel of the layer.
type opened struct {
	lock.Package
	file  *os.File
	wheel *wheel.Wheel
	files []wheel.Installed // when it was unpacked
}

// maxUnpackers bounds the memory of a build: an unpacker may take 64 MiB.
const maxUnpackers = 4

// open opens all wheels, and checks what can be checked without their contents.
func (w *builder) open(ctx context.Context) error {
	w.stage(StageOpen)
	var missing []string
	for _, p := range w.Lock.Packages {
		if !w.root.HasWheel(p.SHA256) {
			missing = append(missing, p.Name)
		}
		w.wheels = append(w.wheels, &opened{Package: p})
	}
	if len(missing) > 0 {
		return refuse(ErrMissingWheel, missing[0], "%d of %d wheels are not in the wheelhouse: %s", len(missing), len(w.wheels), strings.Join(missing[:min(8, len(missing))], ", ")).
			suggest("fetch them from the package index")
	}
	slices.SortFunc(w.wheels, func(a, b *opened) int { return strings.Compare(a.Name, b.Name) })
	return w.each(ctx, func(_ context.Context, o *opened) error {
		if err := w.openOne(o); err != nil {
			return err
		}
		w.wheelDone(StageOpen, o.Name)
		return nil
	})
}

func (w *builder) openOne(o *opened) (err error) {
	if o.file, err = w.root.OpenWheel(o.SHA256); err != nil {
		return err
	}
	st, err := o.file.Stat()
	if err != nil {
		return err
	}
	o.Size = st.Size() // the lock need not have it
	err = wheel.CheckSHA256(o.file, o.Size, o.SHA256)
	if errors.Is(err, wheel.ErrHashMismatch) {
		_ = w.root.root.Remove(wheelName(o.SHA256)) // so that it can be fetched again
		return refuse(wheel.ErrHashMismatch, o.Name, "its wheel in the wheelhouse was changed, and is removed").
			because(err).suggest("fetch it again from the package index")
	}
	if err != nil {
		return err
	}
	o.wheel, err = wheel.Open(o.file, o.Size, o.File, wheel.Options{
		Stdlib: w.Python.Facts.Stdlib, Interpreter: python.Executable, NoSync: true,
	})
	if err != nil {
		return fmt.Errorf("%s: %w", o.Name, err)
	}
	return nil
}

// unpack unpacks all wheels. That none has a file of another is known already.
func (w *builder) unpack(ctx context.Context) error {
	w.stage(StageUnpack)
	return w.each(ctx, func(ctx context.Context, o *opened) error {
		m, err := o.wheel.Unpack(ctx, w.tree)
		if err != nil {
			return fmt.Errorf("%s: %w", o.Name, err)
		}
		o.files = m.Files
		w.wheelDone(StageUnpack, o.Name)
		return nil
	})
}

// each does something for all wheels, large ones first so that none is left for
// the end, several at once.
func (w *builder) each(ctx context.Context, do func(context.Context, *opened) error) error {
	bySize := slices.Clone(w.wheels)
	slices.SortStableFunc(bySize, func(a, b *opened) int { return cmp.Compare(b.Size, a.Size) })
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(runtime.GOMAXPROCS(0), maxUnpackers))
	for _, o := range bySize {
		g.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return do(ctx, o)
		})
	}
	return g.Wait()
}

func (w *builder) close() {
	for _, o := range w.wheels {
		if o.file != nil {
			o.file.Close()
		}
	}
}

// installed is what the manifest says of a wheel.
func (o *opened) installed() Installed {
	in := Installed{
		Name: o.Name, Version: o.Version, File: o.File, SHA256: o.SHA256, Tops: []string{},
		Native: o.wheel.Native, PthPaths: o.wheel.PthPaths, Startup: o.wheel.Startup,
	}
	for _, top := range o.wheel.Tops {
		in.Tops = append(in.Tops, top.Name)
	}
	for _, s := range o.wheel.Scripts {
		in.Scripts = append(in.Scripts, s.Name)
	}
	return in
}

// writeManifest completes the manifest and writes it.
func (w *builder) writeManifest() error {
	m := &w.layer
	m.Schema, m.ID, m.Kind, m.Python, m.Lock = manifestSchema, w.id, w.Lock.Kind, w.Lock.Python, w.lockID
	for _, o := range w.wheels {
		m.Packages = append(m.Packages, o.installed())
		m.Files = append(m.Files, o.files...)
	}
	if m.Cache.Files == nil {
		m.Cache.Files = []wheel.Installed{}
	}
	slices.SortFunc(m.Files, func(a, b wheel.Installed) int { return strings.Compare(a.Path, b.Path) })
	for _, f := range m.Files {
		m.Size += f.Size
	}
	m.Digest = wheel.Digest(m.Files)
	if err := m.check(w.id); err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	return writeFile(w.tree, manifestFile, append(b, '\n'))
}

// writeFile makes a file of the layer.
func writeFile(dir *os.Root, name string, b []byte) error {
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Chmod(0o444), f.Close())
}
