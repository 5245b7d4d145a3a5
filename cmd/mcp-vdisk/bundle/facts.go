package bundle

import (
	"errors"
	"regexp"
	"time"
)

// Format is the revision of all this.
const Format = 1

// Facts tell of what a backup is.
type Facts struct {
	Format  int       `json:"format"`
	ID      string    `json:"id"`      // ULID, as the log of the original names it
	Program string    `json:"program"` // version that made it
	Time    time.Time `json:"time"`    // of the moment that it shows
	Install string    `json:"install"` // whose leases the disks were under, hex
	Keys    bool      `json:"keys"`    // operator tokens go on to work
	Disks   []Disk    `json:"disks"`
	LeftOut []string  `json:"left_out,omitempty"` // sentences about what is not in it
	Held    int64     `json:"held_us"`            // for how long changes were held up, microseconds
	Entries []Entry   `json:"entries"`            // that follow, in order
}

// Disk is one disk at the moment of the backup.
type Disk struct {
	Name   string `json:"name"`
	UUID   string `json:"uuid"`
	Seq    uint64 `json:"seq"`
	Commit string `json:"commit"`
	Bytes  int64  `json:"bytes"` // of its files
	Damage string `json:"damage,omitempty"`
}

// Entry is one file.
type Entry struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"` // in the manifest
}

type manifest struct {
	Format  int     `json:"format"`
	Entries []Entry `json:"entries"`
}

// Entries that every backup has.
const (
	Version = "VERSION"
	Log     = "log"
)

// Config is the name of the settings.
const Config = "config.toml"

const (
	factsName    = "backup.json"
	manifestName = "manifest.json"
)

// MaxFacts bounds backup.json and the manifest, in bytes.
const MaxFacts = 8 << 20

// known is the table of names.
var known = []struct {
	name *regexp.Regexp
	most int64 // bytes
}{
	{regexp.MustCompile(`^VERSION$`), 64},
	{regexp.MustCompile(`^config\.toml$`), 1 << 20},
	{regexp.MustCompile(`^log$`), 1 << 62},
	{regexp.MustCompile(`^images/[A-Za-z0-9][A-Za-z0-9._-]{0,63}\.vdisk$`), 1 << 62},
	{regexp.MustCompile(`^envs/(catalog|extras)\.json$`), 8 << 20},
	{regexp.MustCompile(`^envs/wanted$`), 4 << 10},
	{regexp.MustCompile(`^envs/locks/[0-9a-f]{16}\.json$`), 8 << 20},
	{regexp.MustCompile(`^envs/wheelhouse/[0-9a-f]{64}\.whl$`), 1 << 30},
	{regexp.MustCompile(`^envs/archives/[0-9a-f]{64}\.tar\.(gz|zst)$`), 1 << 30},
}

// Known says whether a backup may hold an entry of this name and size.
func Known(name string, size int64) bool {
	for _, k := range known {
		if k.name.MatchString(name) {
			return size >= 0 && size <= k.most
		}
	}
	return false
}

// Sentinels of errors.
var (
	ErrNotBackup = errors.New("it is no backup of mcp-vdisk")
	ErrVersion   = errors.New("it was made by another version of mcp-vdisk")
	ErrDamaged   = errors.New("the backup is damaged or cut off")
)

// Total is how many bytes the entries have.
func (f Facts) Total() (n int64) {
	for _, e := range f.Entries {
		n += e.Size
	}
	return n
}
