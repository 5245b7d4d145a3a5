package lock

import "time"

// Kind is what a layer is for; it is the first part of its id.
type Kind string

// The kinds of layers.
const (
	Base Kind = "base" // under every workspace
	X    Kind = "x"    // what a workspace has besides
	Iso  Kind = "iso"  // in the place of a base, for one workspace
)

// Lock is one solution. Its id covers all of it.
type Lock struct {
	Schema    int       `json:"schema"` // 1
	Kind      Kind      `json:"kind"`
	Python    Python    `json:"python"`
	Base      string    `json:"base,omitempty"` // id of the base layer that it was resolved over; of kind X only
	Requested []string  `json:"requested"`      // normalised requirements, sorted
	PolicyRev int       `json:"policy_rev"`
	Resolver  string    `json:"resolver"`        // "pip/26.2.1"
	Cutoff    time.Time `json:"cutoff,omitzero"` // nothing uploaded later was looked at; UTC, whole seconds
	Packages  []Package `json:"packages"`        // sorted by name
}

// Python is the interpreter that a lock is for.
type Python struct {
	Tag      string `json:"tag"`      // "cp311"
	Full     string `json:"full"`     // "3.11.2": bytecode depends on it
	Platform string `json:"platform"` // "manylinux_2_36_x86_64"
}

// Package is one distribution and the wheel that it comes from.
type Package struct {
	Name     string    `json:"name"` // normalised
	Version  string    `json:"version"`
	File     string    `json:"file"`
	SHA256   string    `json:"sha256"` // hexadecimal
	Size     int64     `json:"size,omitempty"`
	Index    string    `json:"index,omitempty"` // host of the index; "upload", "import"
	Uploaded time.Time `json:"upload_time,omitzero"`
	Yanked   string    `json:"yanked,omitempty"` // the reason, "yanked" if none was given
	License  string    `json:"license,omitempty"`
	Requires []string  `json:"requires,omitempty"`
	Tops     []string  `json:"tops,omitempty"`  // importable names, when they are known
	Flags    []string  `json:"flags,omitempty"` // "native", "startup_code", "scripts", "upload"
}
