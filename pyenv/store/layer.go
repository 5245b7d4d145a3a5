package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheel"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Layer is a finished layer. It is immutable.
type Layer struct {
	ID       string
	Kind     lock.Kind
	Dir      string // on the host
	Manifest Manifest
}

// MountDir is where layers are in the sandbox, each in a directory of its id:
// their bytecode and font cache say so.
const MountDir = "/opt/mcp/layers"

// Target is the layer's directory in the sandbox.
func (l *Layer) Target() string { return MountDir + "/" + l.ID }

// Manifest is manifest.json of a layer. It is written last, so that a layer with
// one is complete.
type Manifest struct {
	Schema   int               `json:"schema"` // 1
	ID       string            `json:"id"`
	Kind     lock.Kind         `json:"kind"`
	Python   lock.Python       `json:"python"`
	Lock     string            `json:"lock"`     // id of the lock that it was built from; others may lead here, too
	Packages []Installed       `json:"packages"` // sorted by name
	Files    []wheel.Installed `json:"files"`    // all but manifest.json and the cache, sorted by path; bytecode too
	Digest   string            `json:"digest"`   // wheel.Digest of Files: equal for all builds of a layer
	Size     int64             `json:"size"`     // bytes of Files
	Cache    Cache             `json:"cache"`
}

// Cache is what a layer has for speed only. It was made on this host and tells
// where its fonts are, so it differs between builds and is no part of the Digest.
type Cache struct {
	Files []wheel.Installed `json:"files"`          // below cache/
	Note  string            `json:"note,omitempty"` // why there is none although there could be
}

// Installed is one distribution of a layer.
type Installed struct {
	Name     string          `json:"name"` // normalised
	Version  string          `json:"version"`
	File     string          `json:"file"` // name of the wheel
	SHA256   string          `json:"sha256"`
	Tops     []string        `json:"tops"` // what it adds at the top of the import path
	Native   bool            `json:"native,omitempty"`
	PthPaths []string        `json:"pth_paths,omitempty"` // more directories for the import path, in site-packages
	Startup  []wheel.Startup `json:"startup,omitempty"`   // code for every start, which is not in the layer
	Scripts  []string        `json:"scripts,omitempty"`   // files in bin
}

const (
	manifestFile   = "manifest.json"
	manifestSchema = 1
	maxManifest    = 64 << 20 // bytes
	cacheDir       = "cache"
)

// known is a layer that was read, and the file that it was read from.
type known struct {
	layer *Layer
	file  fs.FileInfo
}

// Layer returns a finished layer. What was read once is not read again while the
// file stays the same. Its files are not looked at: see Verify.
//
// Errors: ErrNotFound; ErrLayerTampered when the manifest is not one that a build
// of this layer writes.
func (r *Root) Layer(id string) (*Layer, error) {
	if !lock.ValidLayerID(id) {
		return nil, refuse(ErrNotFound, "", "there is no such layer")
	}
	dir := layersDir + "/" + id
	if st, err := r.root.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		r.forget(id)
		return nil, refuse(ErrNotFound, "", "there is no layer %s", id)
	} else if err != nil || !st.IsDir() {
		return nil, damaged(id).because(err)
	}
	f, err := r.root.OpenFile(dir+"/"+manifestFile, os.O_RDONLY|hostos.NonBlock, 0)
	if err != nil {
		return nil, damaged(id).because(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() > maxManifest {
		return nil, damaged(id).because(err)
	}
	if l := r.recall(id, st); l != nil {
		return l, nil
	}
	b, err := io.ReadAll(io.LimitReader(f, maxManifest))
	if err != nil {
		return nil, damaged(id).because(err)
	}
	m, err := parseManifest(b, id)
	if err != nil {
		return nil, damaged(id).because(err)
	}
	l := &Layer{ID: id, Kind: m.Kind, Dir: r.path(dir), Manifest: m}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[id] = known{l, st}
	return l, nil
}

func damaged(id string) *Error {
	return refuse(ErrLayerTampered, "", "layer %s has no manifest of its own any more", id).
		suggest("build it again: it is replaced then")
}

// recall returns a layer that was read from the same file.
func (r *Root) recall(id string, st fs.FileInfo) *Layer {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, ok := r.known[id]
	if !ok || !os.SameFile(k.file, st) || k.file.Size() != st.Size() || !k.file.ModTime().Equal(st.ModTime()) {
		delete(r.known, id)
		return nil
	}
	return k.layer
}

func (r *Root) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, id)
}

func parseManifest(b []byte, id string) (Manifest, error) {
	var m Manifest
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return Manifest{}, err
	}
	return m, m.check(id)
}

// check looks whether the manifest fits the layer's id and itself.
func (m Manifest) check(id string) error {
	key := lock.LayerKey{Kind: m.Kind, Python: m.Python}
	for _, p := range m.Packages {
		key.Wheels = append(key.Wheels, lock.Wheel{Name: p.Name, Version: p.Version, File: p.File, SHA256: p.SHA256})
	}
	have, err := key.ID()
	switch {
	case err != nil:
		return err
	case m.Schema != manifestSchema:
		return fmt.Errorf("schema %d is not known", m.Schema)
	case m.ID != id || have != id || !lock.ValidID(m.Lock):
		return errors.New("it is that of another layer")
	}
	size, err := checkFiles(m.Files, "site-packages/", "bin/", "data/", "include/")
	if err != nil {
		return err
	}
	if _, err := checkFiles(m.Cache.Files, cacheDir+"/"); err != nil {
		return err
	}
	if size != m.Size || wheel.Digest(m.Files) != m.Digest {
		return errors.New("its digest or size is not that of its files")
	}
	return nil
}

// checkFiles lets through sorted, plain paths below the given directories, and
// adds up their sizes.
func checkFiles(files []wheel.Installed, below ...string) (size int64, err error) {
	last := ""
	for _, f := range files {
		placed := false
		for _, dir := range below {
			placed = placed || strings.HasPrefix(f.Path, dir)
		}
		if !placed || !fs.ValidPath(f.Path) || f.Path <= last || f.Size < 0 || !lock.ValidSHA256(f.SHA256) {
			return 0, fmt.Errorf("the entry %q has no place in it", f.Path)
		}
		last = f.Path
		size += f.Size
	}
	return size, nil
}
