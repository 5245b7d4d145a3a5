package sandboxrun

import (
	"io"
	"time"
)

// ChangeKind says what stands at a path after the script.
type ChangeKind byte

const (
	// Removed: what the workspace had at the path, with all below it, is gone.
	Removed ChangeKind = iota + 1
	// Dir: a directory, new or already there; what is below it and not
	// mentioned stays. It is also reported when only something below changed.
	Dir
	// OpaqueDir: a new directory in place of whatever was there; what the
	// workspace had below the path is gone.
	OpaqueDir
	// File: a file with the bytes of Body, new or in place of whatever was there.
	File
	// Symlink: a link to Target, new or in place of whatever was there.
	Symlink
)

// String returns the word for the kind: "removed", "dir", "opaque_dir", "file", "symlink".
func (k ChangeKind) String() string {
	switch k {
	case Removed:
		return "removed"
	case Dir:
		return "dir"
	case OpaqueDir:
		return "opaque_dir"
	case File:
		return "file"
	case Symlink:
		return "symlink"
	}
	return "unknown"
}

// Change is one entry of what a script did to its workspace. It is what
// stands there at the end: a file written with the bytes it had is a File.
type Change struct {
	// Path is relative and separated by "/". Its components are raw bytes:
	// any but 0 and "/", at most 255 of them, never "." or "..".
	Path []byte
	Kind ChangeKind
	// Mode holds the permission bits 0777 of a File, Dir or OpaqueDir.
	Mode    uint32
	ModTime time.Time
	// Size of a File is its logical size. A sparse file or a second link to a
	// file costs the script nothing, so the sum of sizes can be far above
	// Limits.WriteBytes: look at Size before reading Body.
	Size int64
	// Target of a Symlink, as the script gave it.
	Target []byte
	// Body yields the Size bytes of a File, until the callback returns.
	// It need not be read.
	Body io.Reader
}
