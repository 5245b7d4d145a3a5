package python

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// manifest is python/<id>/MANIFEST: the finished tree, as it was made. The same tree
// gives the same bytes.
type manifest struct {
	Schema  int      `json:"schema"`  // 1
	Entries []listed `json:"entries"` // all but MANIFEST and FACTS, sorted by path
}

// listed is a file, a directory or a link.
type listed struct {
	Path   string `json:"path"` // in python/<id>
	Mode   string `json:"mode"` // as fs.FileMode prints it, the type included
	Size   int64  `json:"size,omitempty"`
	SHA256 string `json:"sha256,omitempty"` // of a file
	Link   string `json:"link,omitempty"`   // target of a link
}

const (
	manifestName   = "MANIFEST"
	manifestSchema = 1
	maxManifest    = 64 << 20 // bytes; that of the largest prefix has some 30 MB
)

// writeManifest writes down what is in a directory that nobody has seen yet.
func writeManifest(ctx context.Context, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	m := manifest{Schema: manifestSchema}
	err = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil || p == "." || unlisted(p) {
			return err
		}
		e, err := newListed(root, p, d)
		m.Entries = append(m.Entries, e)
		return err
	})
	if err != nil {
		return err
	}
	slices.SortFunc(m.Entries, func(a, b listed) int { return cmp.Compare(a.Path, b.Path) })
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return writeNew(filepath.Join(dir, manifestName), b)
}

// unlisted are the files that are not in the manifest: itself, and FACTS, which is
// written anew when the C library of the host is another one.
func unlisted(p string) bool { return p == manifestName || p == factsName }

// newListed looks at what is at a path, and reads it.
func newListed(root *os.Root, p string, d fs.DirEntry) (listed, error) {
	info, err := d.Info()
	if err != nil {
		return listed{}, err
	}
	e := listed{Path: p, Mode: info.Mode().String()}
	switch {
	case !utf8.ValidString(p): // JSON would have another name
		return e, refuse("it has the name %q, which is not UTF-8", p)
	case info.IsDir():
	case info.Mode()&fs.ModeSymlink != 0:
		e.Link, err = root.Readlink(p)
	case info.Mode().IsRegular():
		e.Size = info.Size()
		e.SHA256, err = hashIn(root, p)
	default:
		err = refuse("%s is neither a file, a directory nor a link", p)
	}
	return e, err
}

func hashIn(root *os.Root, p string) (string, error) {
	f, err := root.OpenFile(p, os.O_RDONLY|hostos.NonBlock, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return hash(f)
}

// readManifest reads the manifest in a directory python/<id>.
func readManifest(dir *os.Root) (m manifest, err error) {
	info, err := dir.Lstat(manifestName)
	if err != nil {
		return m, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxManifest {
		return m, fmt.Errorf("%w: %s is damaged", ErrChanged, manifestName)
	}
	f, err := dir.OpenFile(manifestName, os.O_RDONLY|hostos.NonBlock, 0)
	if err != nil {
		return m, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxManifest))
	if err != nil {
		return m, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil || d.More() || !m.valid() {
		return m, fmt.Errorf("%w: %s is damaged", ErrChanged, manifestName)
	}
	return m, nil
}

// valid says whether it is one that writeManifest writes: every directory is named
// before what is in it.
func (m manifest) valid() bool {
	last, dirs := "", map[string]bool{".": true}
	for _, e := range m.Entries {
		if !fs.ValidPath(e.Path) || e.Path <= last || unlisted(e.Path) || !dirs[path.Dir(e.Path)] || e.kind() == 'd' != strings.HasPrefix(e.Mode, "d") {
			return false
		}
		last = e.Path
		if e.kind() == 'd' {
			dirs[e.Path] = true
		}
	}
	return m.Schema == manifestSchema && dirs[prefixName]
}

// Size is how many files an interpreter has and how many bytes they are, by its
// manifest; zero when there is none that can be read.
func Size(root, id string) (files int, bytes int64) {
	dir, err := openDir(root, id)
	if err != nil {
		return 0, 0
	}
	defer dir.Close()
	m, err := readManifest(dir)
	if err != nil {
		return 0, 0
	}
	for _, e := range m.Entries {
		if e.SHA256 != "" {
			files, bytes = files+1, bytes+e.Size
		}
	}
	return files, bytes
}

// openDir opens python/<id>. Errors: ErrNotFound, those of the disk.
func openDir(root, id string) (*os.Root, error) {
	if !idForm.MatchString(id) {
		return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	dir, err := os.OpenRoot(filepath.Join(root, pythonDir, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	return dir, err
}
