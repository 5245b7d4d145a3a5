package wheeltest

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Wheel describes a wheel. The zero value is demo 1.0 for py3-none-any with one
// module, demo/__init__.py.
type Wheel struct {
	Name    string // "demo"
	Version string // "1.0"
	Build   string // "" for none
	Tag     string // "py3-none-any"

	Requires       []string // Requires-Dist lines
	RequiresPython string
	EntryPoints    string // entry_points.txt, "" for none

	Metadata string // in place of the METADATA made of the fields above
	Wheel    string // in place of the WHEEL file
	Files    []File // in place of the module

	Record func(rows [][]string) [][]string // changes RECORD; nil rows leave it out
	Zip    func(*Archive)                   // changes the zip file, RECORD is written already
}

// File is one entry of a wheel.
type File struct {
	Name string // "/" at the end for a directory
	Body string
	Mode uint32 // st_mode; 0 is 0100644, or 040755 for a directory
}

// FileName is the wheel's name on an index.
func (w Wheel) FileName() string {
	parts := []string{escape(w.name()), w.version()}
	if w.Build != "" {
		parts = append(parts, w.Build)
	}
	return strings.Join(append(parts, w.tag()), "-") + ".whl"
}

// DistInfo is the name of the wheel's metadata directory.
func (w Wheel) DistInfo() string { return escape(w.name()) + "-" + w.version() + ".dist-info" }

// Data is the name of the wheel's .data directory.
func (w Wheel) Data() string { return escape(w.name()) + "-" + w.version() + ".data" }

// Bytes is the wheel.
func (w Wheel) Bytes() []byte {
	a := w.archive()
	if w.Zip != nil {
		w.Zip(a)
	}
	return a.Bytes()
}

// Write puts the wheel into a directory and returns its path.
func (w Wheel) Write(dir string) (string, error) {
	path := filepath.Join(dir, w.FileName())
	return path, os.WriteFile(path, w.Bytes(), 0o644)
}

// archive is the zip file with RECORD as its last entry.
func (w Wheel) archive() *Archive {
	files := w.Files
	if files == nil {
		files = []File{{Name: "demo/__init__.py", Body: "answer = 42\n"}}
	}
	dir := w.DistInfo() + "/"
	files = append(files[:len(files):len(files)],
		File{Name: dir + "METADATA", Body: w.metadata()},
		File{Name: dir + "WHEEL", Body: w.wheel()})
	if w.EntryPoints != "" {
		files = append(files, File{Name: dir + "entry_points.txt", Body: w.EntryPoints})
	}
	if record, ok := w.record(files, dir+"RECORD"); ok {
		files = append(files, File{Name: dir + "RECORD", Body: record})
	}
	a := &Archive{}
	for _, f := range files {
		a.Entries = append(a.Entries, NewEntry(f))
	}
	return a
}

func (w Wheel) metadata() string {
	if w.Metadata != "" {
		return w.Metadata
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Metadata-Version: 2.1\nName: %s\nVersion: %s\n", w.name(), w.version())
	if w.RequiresPython != "" {
		fmt.Fprintf(&b, "Requires-Python: %s\n", w.RequiresPython)
	}
	for _, r := range w.Requires {
		fmt.Fprintf(&b, "Requires-Dist: %s\n", r)
	}
	b.WriteString("\nA wheel for tests.\n")
	return b.String()
}

func (w Wheel) wheel() string {
	if w.Wheel != "" {
		return w.Wheel
	}
	return "Wheel-Version: 1.0\nGenerator: wheeltest\nRoot-Is-Purelib: true\nTag: " + w.tag() + "\n"
}

// record is the RECORD of the files; its own row is the last one.
func (w Wheel) record(files []File, self string) (string, bool) {
	var rows [][]string
	for _, f := range files {
		if !strings.HasSuffix(f.Name, "/") {
			rows = append(rows, []string{f.Name, "sha256=" + Digest(f.Body), fmt.Sprint(len(f.Body))})
		}
	}
	rows = append(rows, []string{self, "", ""})
	if w.Record != nil {
		if rows = w.Record(rows); rows == nil {
			return "", false
		}
	}
	var b bytes.Buffer
	out := csv.NewWriter(&b)
	if err := out.WriteAll(rows); err != nil {
		panic(err) // a buffer takes everything
	}
	return b.String(), true
}

// Digest is a SHA-256 as RECORD writes it.
func Digest(body string) string {
	sum := sha256.Sum256([]byte(body))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func (w Wheel) name() string    { return or(w.Name, "demo") }
func (w Wheel) version() string { return or(w.Version, "1.0") }
func (w Wheel) tag() string     { return or(w.Tag, "py3-none-any") }

// escape is how names stand in file names.
func escape(name string) string { return strings.NewReplacer("-", "_", ".", "_").Replace(name) }

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
