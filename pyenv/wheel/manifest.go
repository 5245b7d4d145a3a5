package wheel

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Manifest is what Unpack wrote.
type Manifest struct {
	Name    string      `json:"name"` // normalised
	Version string      `json:"version"`
	File    string      `json:"file"` // name of the wheel
	Files   []Installed `json:"files"`
}

// Installed is one file, with mode 0444, or 0555 if it is executable.
type Installed struct {
	Path   string `json:"path"` // in the layer
	Exec   bool   `json:"exec,omitempty"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // hexadecimal
}

// Digest is the SHA-256 of a tree of files, in hexadecimal: over one line of
// "mode size sha256 path" for each, in the order of their paths. It does not
// depend on the order of files.
func Digest(files []Installed) string {
	sorted := slices.Clone(files)
	slices.SortFunc(sorted, func(a, b Installed) int { return strings.Compare(a.Path, b.Path) })
	h := sha256.New()
	for _, f := range sorted {
		mode := "0444"
		if f.Exec {
			mode = "0555"
		}
		fmt.Fprintf(h, "%s %d %s %q\n", mode, f.Size, f.SHA256, f.Path)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// record is the RECORD of an installation, which will lie at self: paths are
// relative to site-packages, and the file itself has no hash.
func (m *Manifest) record(self string) ([]byte, error) {
	files := slices.Clone(m.Files)
	files = append(files, Installed{Path: self})
	slices.SortFunc(files, func(a, b Installed) int { return strings.Compare(a.Path, b.Path) })
	var b bytes.Buffer
	out := csv.NewWriter(&b)
	for _, f := range files {
		path, below := strings.CutPrefix(f.Path, SitePackages+"/")
		if !below {
			path = "../" + path
		}
		row := []string{path, "", ""}
		if f.Path != self {
			sum, err := hex.DecodeString(f.SHA256)
			if err != nil {
				return nil, err
			}
			row[1], row[2] = "sha256="+base64.RawURLEncoding.EncodeToString(sum), fmt.Sprint(f.Size)
		}
		if err := out.Write(row); err != nil {
			return nil, err
		}
	}
	out.Flush()
	return b.Bytes(), out.Error()
}
