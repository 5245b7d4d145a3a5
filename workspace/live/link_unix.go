//go:build unix && !portable

package live

import (
	"os"

	"golang.org/x/sys/unix"
)

// linkAt gives the file or symlink name of one directory the same name in
// another. By descriptors, that is three times as fast as os.Root.Link, which
// opens every directory on the way for every file.
func linkAt(from, to *os.File, name string) error {
	if err := unix.Linkat(int(from.Fd()), name, int(to.Fd()), name, 0); err != nil {
		return &os.LinkError{Op: "linkat", Old: name, New: name, Err: err}
	}
	return nil
}
