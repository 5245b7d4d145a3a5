package hostcopy

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// unnamed makes a file in a directory that has no name there and ends with the process,
// until nameIt gives it one (open(2), O_TMPFILE). Not every file system has that.
func unnamed(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// nameIt gives such a file a name that is free.
func nameIt(f *os.File, name string) error {
	return os.NewSyscallError("linkat", unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW))
}
