package hostos

import (
	"errors"
	"syscall"
)

// NonBlock is the flag of os.OpenFile with which opening a FIFO or a device
// does not wait for anybody. It means nothing for regular files.
const NonBlock = syscall.O_NONBLOCK

// IsReadOnly tells whether an operation failed because the file system is
// mounted read-only.
func IsReadOnly(err error) bool { return errors.Is(err, syscall.EROFS) }

// IsNoSpace tells whether a write failed because the file system, or the
// user's share of it, is full.
func IsNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, errQuota)
}
