package hostos

import (
	"errors"
	"syscall"
)

// IsNoSpace tells whether a write failed because the file system, or the
// user's share of it, is full.
func IsNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, errQuota)
}
