package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/bundle"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Of the Python environments a backup has what a person decided or brought: the catalog,
// what was imported for the base, every lock, the archives of interpreters, and the
// wheels that no index is known to have. Interpreters, layers and the other wheels are
// made again from that by env ensure --repair, and what is bound to which disk is in the
// database. A root outside of the state directory may be others' too: it is left out.

// envParts are those entries.
func (h *hub) envParts() ([]part, error) {
	if h.envs != h.st.path("envs") {
		return nil, nil
	}
	root, err := os.OpenRoot(h.envs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at the Python environments: %w", err)
	}
	defer root.Close()
	e := &envReader{root: root, dir: h.envs, indexed: map[string]bool{}}
	for _, name := range []string{"catalog.json", "extras.json", "wanted"} {
		e.text(name)
	}
	e.each("locks", func(name string) {
		if text := e.text(name); text != nil {
			e.look(text)
		}
	})
	e.each("archives", e.file)
	e.each("wheelhouse", func(name string) {
		if !e.indexed[strings.TrimSuffix(filepath.Base(name), ".whl")] {
			e.file(name)
		}
	})
	return e.parts, e.err
}

// envReader collects them; it goes on after an error, and does nothing.
type envReader struct {
	root    *os.Root
	dir     string
	indexed map[string]bool // hashes of wheels that an index has
	parts   []part
	err     error
}

// each calls fn for the files of a directory that a backup may hold.
func (e *envReader) each(dir string, fn func(name string)) {
	list, err := fs.ReadDir(e.root.FS(), dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.err = errors.Join(e.err, err)
	}
	for _, d := range list {
		if name := dir + "/" + d.Name(); d.Type().IsRegular() && bundle.Known("envs/"+name, 0) {
			fn(name)
		}
	}
}

// text adds a small file as it is now; nil when there is none.
func (e *envReader) text(name string) []byte {
	if e.err != nil {
		return nil
	}
	f, size, err := e.open(name)
	if err != nil || f == nil {
		e.err = err
		return nil
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, size))
	if e.err = err; err == nil {
		e.parts = append(e.parts, small("envs/"+name, text))
	}
	return text
}

// file adds a file that never changes. One that is collected meanwhile ends the backup.
func (e *envReader) file(name string) {
	if e.err != nil {
		return
	}
	f, size, err := e.open(name)
	if err != nil || f == nil {
		e.err = err
		return
	}
	f.Close()
	path := filepath.Join(e.dir, filepath.FromSlash(name))
	e.parts = append(e.parts, part{"envs/" + name, size, func(w io.Writer) error {
		f, err := os.OpenFile(path, os.O_RDONLY|hostos.NonBlock, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	}})
}

// open gives nil for what is not there or cannot be part of a backup.
func (e *envReader) open(name string) (*os.File, int64, error) {
	f, err := e.root.OpenFile(name, os.O_RDONLY|hostos.NonBlock, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || !bundle.Known("envs/"+name, st.Size()) {
		f.Close()
		return nil, 0, err
	}
	return f, st.Size(), nil
}

// look notes which wheels of a lock an index has. One that cannot be read tells of none,
// so that its wheels are kept.
func (e *envReader) look(text []byte) {
	l, err := lock.Parse(text)
	if err != nil {
		return
	}
	for _, p := range l.Packages {
		if !slices.Contains([]string{"upload", "import"}, p.Index) {
			e.indexed[p.SHA256] = true
		}
	}
}
