package store

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
)

// collide refuses a layer in which two wheels have one file, or one module in two
// forms, or that would hide a module of the layers it is used with, or be hidden.
//
// Within a layer a directory may be a package for one wheel and a plain directory
// for another: they are one directory there, and nothing is hidden. Between layers
// the same is a collision, for Python takes the first of two packages of a name and
// passes over all plain directories (PEP 420).
func (w *builder) collide() error {
	own := newImports()
	for _, o := range w.wheels {
		for _, p := range o.wheel.Paths() {
			if other := own.add(o.Name, p, false); other != "" {
				return collision(o.Name, p).suggest("%s brings it, too: install one of the two", other)
			}
		}
	}
	for _, l := range w.Over {
		if err := w.collideWith(l, own); err != nil {
			return err
		}
	}
	return nil
}

func collision(pkg, path string) *Error {
	return refuse(wheel.ErrImportCollision, pkg, "%q is there already", path)
}

// collideWith compares the layer with one that it lies over.
func (w *builder) collideWith(l *Layer, own *imports) error {
	for _, p := range l.Manifest.Packages {
		for _, o := range w.wheels {
			if o.Name == p.Name {
				return collision(o.Name, p.Name).suggest("%s is in %s, in version %s", p.Name, l.where(), p.Version)
			}
		}
	}
	theirs := newImports()
	for _, f := range l.Manifest.Files {
		theirs.add("", f.Path, true)
	}
	for _, name := range own.sorted() {
		mine, their := own.names[name], theirs.names[name]
		if their.path == "" || !mine.module && !their.module {
			continue
		}
		owner, err := l.owner(their.path)
		if err != nil {
			return err
		}
		return collision(mine.owner, strings.TrimPrefix(their.path, wheel.SitePackages+"/")).suggest("%s is in %s", owner, l.where())
	}
	return nil
}

// where is how an agent knows a layer.
func (l *Layer) where() string {
	if l.Kind == lock.Base {
		return "base"
	}
	return "layer " + l.ID
}

// imports are the names by which files can be imported, down to the first that is a
// module or a package, and all paths.
type imports struct {
	names map[string]found  // "docx", "google.cloud.storage"
	paths map[string]string // owner of each file
	dirs  map[string]string // owner of one file below each directory
}

// found is where a name is.
type found struct {
	module bool   // a package or a module, not only a directory
	file   bool   // a module, not a directory
	path   string // in the layer
	owner  string
}

func newImports() *imports {
	return &imports{names: map[string]found{}, paths: map[string]string{}, dirs: map[string]string{}}
}

// add adds a file. It returns the owner of one that is in its way, "" for none.
// Files of a finished layer cannot be in each other's way.
func (im *imports) add(owner, p string, finished bool) (other string) {
	if !finished {
		if other = im.place(owner, p); other != "" {
			return other
		}
	}
	rel, ok := strings.CutPrefix(p, wheel.SitePackages+"/")
	if !ok {
		return ""
	}
	for i := 0; ; i++ {
		name, here, more := importable(rel, i)
		if name == "" {
			return ""
		}
		here.path, here.owner = p, owner
		have, known := im.names[name]
		if known && !finished && have.owner != owner && (have.file || here.file) {
			return have.owner // docx.py beside docx/
		}
		if !known || here.module && !have.module {
			im.names[name] = here
		}
		if !more {
			return ""
		}
	}
}

// importable is what the first i+1 components of a path can be imported as, "" if
// they cannot. more says that there is something to import below.
func importable(rel string, i int) (name string, f found, more bool) {
	parts := strings.SplitN(rel, "/", i+3)
	switch {
	case i < len(parts)-1:
		if !wheel.Importable(parts[i]) {
			return "", found{}, false
		}
		f.module = i == len(parts)-2 && wheel.ModuleName(parts[i+1]) == "__init__"
		return strings.Join(parts[:i+1], "."), f, !f.module
	case wheel.ModuleName(parts[i]) == "":
		return "", found{}, false
	}
	return strings.Join(append(parts[:i:i], wheel.ModuleName(parts[i])), "."), found{module: true, file: true}, false
}

// place notes a path and the directories above it.
func (im *imports) place(owner, p string) (other string) {
	if other := cmp.Or(im.paths[p], im.dirs[p]); other != "" {
		return other
	}
	im.paths[p] = owner
	for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
		if other := im.paths[dir]; other != "" {
			return other
		}
		im.dirs[dir] = owner
	}
	return ""
}

// sorted are the names, parents first, so that the same wheels collide in the same
// way each time.
func (im *imports) sorted() []string {
	var list []string
	for name := range im.names {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// owner finds the distribution that a file of a layer belongs to, by the RECORDs
// in it. It is slow, and for messages only.
func (l *Layer) owner(file string) (string, error) {
	root, err := os.OpenRoot(l.Dir)
	if err != nil {
		return "", fmt.Errorf("read layer %s: %w", l.ID, err)
	}
	defer root.Close()
	rel := strings.TrimPrefix(file, wheel.SitePackages+"/")
	for _, f := range l.Manifest.Files {
		if !strings.HasSuffix(f.Path, ".dist-info/RECORD") || strings.Count(f.Path, "/") != 2 {
			continue
		}
		lists, err := recordLists(root, f.Path, rel)
		if err != nil {
			return "", fmt.Errorf("read layer %s: %w", l.ID, err)
		}
		if lists {
			dist, _, _ := strings.Cut(path.Base(path.Dir(f.Path)), "-")
			return spec.NormalizeName(dist), nil
		}
	}
	return "a distribution", nil
}

// recordLists says whether a RECORD has a row for a file.
func recordLists(root *os.Root, record, file string) (bool, error) {
	f, err := root.Open(record)
	if err != nil {
		return false, err
	}
	defer f.Close()
	rows := csv.NewReader(f)
	rows.ReuseRecord = true
	for {
		switch row, err := rows.Read(); {
		case errors.Is(err, io.EOF):
			return false, nil
		case err != nil:
			return false, err
		case row[0] == file:
			return true, nil
		}
	}
}
