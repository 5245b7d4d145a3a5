package spec

import (
	"fmt"
	"strings"

	pep440 "github.com/aquasecurity/go-pep440-version"
)

// maxVersion is the length of the longest text that is read as a version.
const maxVersion = 128

// Version is a version by PEP 440. The zero value is no version; make one with
// ParseVersion.
type Version struct{ v pep440.Version }

// ParseVersion reads a version in any form that PEP 440 allows, up to 128
// bytes. A number over 64 bits is refused. Errors: ErrVersion.
func ParseVersion(s string) (Version, error) {
	if len(s) > maxVersion {
		return Version{}, fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrVersion, len(s), maxVersion)
	}
	v, err := pep440.Parse(normalizeLocal(s))
	if err != nil {
		return Version{}, fmt.Errorf("%w: %s", ErrVersion, quote(s))
	}
	return Version{v}, nil
}

// normalizeLocal brings a local version label into its normal form, which the
// library keeps as it was given: "-" and "_" separate like ".", numbers have no
// leading zeros.
func normalizeLocal(s string) string {
	public, local, ok := strings.Cut(s, "+")
	if !ok {
		return s
	}
	local = strings.ToLower(strings.TrimSpace(local))
	parts := strings.Split(strings.NewReplacer("-", ".", "_", ".").Replace(local), ".")
	for i, part := range parts {
		if part != "" && strings.Trim(part, "0123456789") == "" {
			if parts[i] = strings.TrimLeft(part, "0"); parts[i] == "" {
				parts[i] = "0"
			}
		}
	}
	return public + "+" + strings.Join(parts, ".")
}

// String is the version's normal form.
func (v Version) String() string { return v.v.String() }

// IsZero says whether v is no version.
func (v Version) IsZero() bool { return v.v.Original() == "" }

// Compare orders versions: negative when v is older than o.
func (v Version) Compare(o Version) int {
	// Equal numbers may be written differently (1.0 and 1.0.0).
	return v.v.Compare(o.v)
}

// Equal says whether two versions are the same one, as 1.0 and 1.0.0 are.
func (v Version) Equal(o Version) bool { return v.Compare(o) == 0 }

// IsPrerelease says whether it is an alpha, beta, candidate or development
// release.
func (v Version) IsPrerelease() bool { return v.v.IsPreRelease() }

// public is the version without its local label.
func (v Version) public() Version { return v.part(v.v.Public()) }

// base is the epoch and the release numbers alone.
func (v Version) base() Version { return v.part(v.v.BaseVersion()) }

func (v Version) part(text string) Version {
	if text == v.String() {
		return v
	}
	return Version{pep440.MustParse(text)} // a part of a version is a version
}

// release is the epoch ("0" when there is none) and the release numbers,
// without leading zeros.
func (v Version) release() (epoch string, numbers []string) {
	base := v.v.BaseVersion()
	epoch = "0"
	if e, rest, ok := strings.Cut(base, "!"); ok {
		epoch, base = e, rest
	}
	return epoch, strings.Split(base, ".")
}
