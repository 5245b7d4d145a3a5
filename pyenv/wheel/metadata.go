package wheel

import (
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/tags"
)

// Metadata is what a METADATA file says (core metadata 1.x and 2.x), as far as
// it matters for installing.
type Metadata struct {
	Name           string // as written
	Version        spec.Version
	RequiresPython spec.Specifiers
	Requires       []spec.Requirement // Requires-Dist
	Extras         []string           // Provides-Extra, normalised
	License        string             // License-Expression, or License, or ""; one line
	Summary        string             // one line
}

// Limits of the files in .dist-info.
const (
	maxMetadata    = 4 << 20
	maxWheel       = 64 << 10
	maxRecord      = 16 << 20
	maxEntryPoints = 1 << 20
	maxRequires    = 5000 // lines
)

// metadataFile is how errors name the file.
const metadataFile = "METADATA"

// ParseMetadata reads a METADATA file, from a wheel or from an index. It is
// bounded by its length, of which 4 MiB are allowed.
//
// Errors: ErrWheelMetadata; ErrDirectURL when it needs something by URL, under
// whatever marker.
func ParseMetadata(text []byte) (*Metadata, error) {
	if len(text) > maxMetadata {
		return nil, refuse(ErrWheelMetadata, metadataFile, "%d bytes are over the limit of %d", len(text), maxMetadata)
	}
	list, err := parseHeaders(metadataFile, text)
	if err != nil {
		return nil, err
	}
	format, err := one(metadataFile, list, "Metadata-Version")
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(format, "1.") && !strings.HasPrefix(format, "2.") {
		return nil, refuse(ErrWheelMetadata, metadataFile, "Metadata-Version %s is not known", quote(format))
	}
	m := &Metadata{License: first(list, "License-Expression"), Summary: first(list, "Summary")}
	if m.License == "" {
		m.License = first(list, "License")
	}
	if err := m.setIdentity(list); err != nil {
		return nil, err
	}
	return m, m.setRequires(list)
}

func (m *Metadata) setIdentity(list []header) (err error) {
	if m.Name, err = one(metadataFile, list, "Name"); err != nil {
		return err
	}
	if !spec.ValidName(m.Name) {
		return refuse(ErrWheelMetadata, metadataFile, "Name %s is not valid", quote(m.Name))
	}
	version, err := one(metadataFile, list, "Version")
	if err != nil {
		return err
	}
	if m.Version, err = spec.ParseVersion(version); err != nil {
		return refuse(ErrWheelMetadata, metadataFile, "Version %s is not valid", quote(version))
	}
	python, err := one(metadataFile, list, "Requires-Python")
	if err != nil {
		return err
	}
	if m.RequiresPython, err = spec.ParseSpecifiers(python); err != nil {
		return refuse(ErrWheelMetadata, metadataFile, "Requires-Python %s is not valid", quote(python))
	}
	return nil
}

func (m *Metadata) setRequires(list []header) error {
	lines, err := all(metadataFile, list, "Requires-Dist")
	if err != nil {
		return err
	}
	if len(lines) > maxRequires {
		return refuse(ErrWheelMetadata, metadataFile, "%d requirements are over the limit of %d", len(lines), maxRequires)
	}
	for _, line := range lines {
		r, err := spec.ParseRequirement(line)
		switch {
		case err != nil && strings.Contains(line, "@"):
			return refuse(ErrDirectURL, metadataFile, "Requires-Dist %s cannot be read and may name a URL", quote(line))
		case err != nil:
			return refuse(ErrWheelMetadata, metadataFile, "Requires-Dist %s cannot be read", quote(line))
		case r.URL != "":
			return refuse(ErrDirectURL, metadataFile, "Requires-Dist %s names a URL; only packages of the index are taken", quote(line))
		}
		m.Requires = append(m.Requires, r)
	}
	extras, err := all(metadataFile, list, "Provides-Extra")
	for _, extra := range extras {
		m.Extras = append(m.Extras, spec.NormalizeName(extra))
	}
	return err
}

// checkIdentity compares with what the name of the file says.
func (m *Metadata) checkIdentity(f tags.File) error {
	if spec.NormalizeName(m.Name) != f.Name || !m.Version.Equal(f.Version) {
		return refuse(ErrWheelMetadata, metadataFile, "it is for %s %s, the name of the file for %s %s", m.Name, m.Version, f.Name, f.Version)
	}
	return nil
}

// checkWheelFile reads the WHEEL file: version 1 of the format is known.
func checkWheelFile(text []byte) error {
	list, err := parseHeaders("WHEEL", text)
	if err != nil {
		return err
	}
	version, err := one("WHEEL", list, "Wheel-Version")
	if err != nil {
		return err
	}
	if major, _, _ := strings.Cut(version, "."); major != "1" {
		return refuse(ErrWheelMetadata, "WHEEL", "Wheel-Version %s is not known", quote(version))
	}
	return nil
}
