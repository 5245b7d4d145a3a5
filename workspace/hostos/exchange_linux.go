//go:build linux && !portable

package hostos

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Exchange lets two names of one file system change places, in one step: whoever looks
// finds both, before and after (renameat2(2), RENAME_EXCHANGE). The error wraps
// errors.ErrUnsupported where the file system cannot, and nothing was changed.
func Exchange(a, b string) error {
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	if err == unix.EINVAL || err == unix.ENOSYS {
		return errors.Join(errors.ErrUnsupported, err)
	}
	return err
}
