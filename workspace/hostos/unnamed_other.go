//go:build !linux || portable

package hostos

import "os"

// Unnamed makes a file for this process alone, mode 0600, and takes its name
// away at once. A crash in between leaves an empty file in dir, which is the
// system's temporary directory when it is empty.
func Unnamed(dir string) (*os.File, error) { return unlinked(dir) }
