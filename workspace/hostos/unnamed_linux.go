//go:build linux && !portable

package hostos

import (
	"os"

	"golang.org/x/sys/unix"
)

// Unnamed makes a file for this process alone, mode 0600, that is in no
// directory: it ends with its last descriptor, also when the process is killed.
// It takes its space from the file system of dir, or of the system's temporary
// directory when dir is empty.
func Unnamed(dir string) (*os.File, error) {
	if dir == "" {
		dir = os.TempDir()
	}
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return unlinked(dir) // not every file system has O_TMPFILE
	}
	return os.NewFile(uintptr(fd), dir), nil
}
