package wheel

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/tags"
)

// Wheel is a wheel that passed every check which does not need its contents. It
// is immutable; Verify and Unpack may be called more than once, and by several
// goroutines at once.
type Wheel struct {
	File     tags.File // what its file name says
	Metadata *Metadata

	Tops       []Top     // what it adds to the import path, sorted
	Scripts    []Script  // commands, entry points first
	PthPaths   []string  // directories in site-packages that it adds to the import path
	Startup    []Startup // code that it would run at every start: StartupCode
	Native     bool      // it has shared libraries
	Sourceless []string  // modules without source, paths in site-packages
	Files      int       // that it unpacks to, without those about its installation
	Size       int64     // bytes of those that are the wheel's own

	r       io.ReaderAt
	entries []*entry
	layout  *layout
	options Options
}

// Open checks a wheel of size bytes. name is its file name, without directory.
// r must give the same bytes each time, and is used until the Wheel is not.
//
// Errors: an *Error with any of the codes that need no contents: zip_*, record_*
// (a hash that is wrong is found by Verify and Unpack), wheel_metadata,
// direct_url, stdlib_shadow, pth_path; the errors of r.
func Open(r io.ReaderAt, size int64, name string, o Options) (*Wheel, error) {
	w := &Wheel{r: r, options: o.withDefaults()}
	var err error
	if w.File, err = tags.ParseFile(name); err != nil {
		return nil, refuse(ErrWheelMetadata, name, "it does not have the name of a wheel")
	}
	if w.entries, err = scan(r, size, w.options); err != nil {
		return nil, err
	}
	dist, err := w.findDist(w.entries)
	if err != nil {
		return nil, err
	}
	if w.layout, err = newLayout(dist, w.entries, w.options); err != nil {
		return nil, err
	}
	c := newReader(context.Background(), r)
	for _, step := range []func(*reader) error{w.readDist, w.readRecord, w.readScripts, w.readStartup, w.look} {
		if err := step(c); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Paths are the files of the layer that Unpack makes, sorted, but for those that it
// adds about the installation.
func (w *Wheel) Paths() []string {
	paths := make([]string, 0, len(w.layout.items))
	for _, it := range w.layout.items {
		paths = append(paths, it.target())
	}
	slices.Sort(paths)
	return paths
}

// named says whether "name-version" is that of the file.
func (w *Wheel) named(stem string) bool {
	name, version, ok := strings.Cut(stem, "-")
	v, err := spec.ParseVersion(version)
	return ok && err == nil && spec.NormalizeName(name) == w.File.Name && v.Equal(w.File.Version)
}

// dist is a file of the .dist-info directory, nil if it is not there.
func (w *Wheel) dist(name string) *entry {
	for _, e := range w.entries {
		if e.name == w.layout.dist+name {
			return e
		}
	}
	return nil
}

// readDist reads METADATA and WHEEL.
func (w *Wheel) readDist(c *reader) error {
	metadata, wheel := w.dist("METADATA"), w.dist("WHEEL")
	if metadata == nil || wheel == nil {
		return refuse(ErrWheelMetadata, w.layout.dist, "METADATA or WHEEL is missing")
	}
	text, err := c.read(wheel, maxWheel)
	if err != nil {
		return err
	}
	if err := checkWheelFile(text); err != nil {
		return err
	}
	if text, err = c.read(metadata, maxMetadata); err != nil {
		return err
	}
	if w.Metadata, err = ParseMetadata(text); err != nil {
		return err
	}
	return w.Metadata.checkIdentity(w.File)
}

func (w *Wheel) readRecord(c *reader) error {
	record := w.dist("RECORD")
	if record == nil {
		return refuse(ErrRecordAbsent, w.layout.dist+"RECORD", "it is not there")
	}
	text, err := c.read(record, maxRecord)
	if errors.Is(err, ErrWheelMetadata) {
		return refuse(ErrRecordInvalid, record.name, "%d bytes are over the limit of %d", record.size, maxRecord)
	}
	if err != nil {
		return err
	}
	return readRecord(text, w.layout.dist, w.entries)
}

// readScripts finds the commands, and adds launchers for entry points.
func (w *Wheel) readScripts(c *reader) error {
	var own []Script
	for _, it := range w.layout.items {
		if it.script {
			own = append(own, Script{Name: it.rel})
		}
	}
	if e := w.dist(entryPointsFile); e != nil {
		text, err := c.read(e, maxEntryPoints)
		if err != nil {
			return err
		}
		if w.Scripts, err = parseEntryPoints(text); err != nil {
			return err
		}
	}
	for _, s := range w.Scripts {
		w.layout.addLauncher(s.Name, s.launcher(w.options.Interpreter))
	}
	w.Scripts = append(w.Scripts, own...)
	return w.layout.checkTargets(w.options)
}

// readStartup reads what would act at every start.
func (w *Wheel) readStartup(c *reader) error {
	for _, e := range w.layout.pth {
		if e.size > maxPth {
			return refuse(ErrPthPath, e.name, "%d bytes are over the limit of %d", e.size, maxPth)
		}
		text, err := c.read(e, maxPth)
		if err != nil {
			return err
		}
		dirs, code, err := readPth(e.name, text)
		if err != nil {
			return err
		}
		w.PthPaths = append(w.PthPaths, dirs...)
		if len(code) > 0 {
			w.Startup = append(w.Startup, Startup{File: e.name, Lines: code})
		}
	}
	return nil
}

// look fills in what the names of the files tell.
func (w *Wheel) look(*reader) error {
	w.layout.sort()
	w.Tops, w.Native, w.Sourceless = w.layout.tops()
	for _, it := range w.layout.items {
		w.Files++
		if it.from != nil {
			w.Size += it.from.size
		}
	}
	if w.options.Tool {
		return nil
	}
	return checkShadow(w.Tops, w.options.Stdlib)
}
