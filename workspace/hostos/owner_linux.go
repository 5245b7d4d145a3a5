//go:build linux && !portable

package hostos

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// CopyOwner gives to the owner and the group of from, so that a file which
// root replaces stays its user's. Without the right to do so it does nothing.
func CopyOwner(to, from *os.File) error {
	var have, want unix.Stat_t
	stat := func(f *os.File, st *unix.Stat_t) error {
		return control(f, func(fd int) error { return unix.Fstat(fd, st) })
	}
	if err := stat(to, &have); err != nil {
		return fmt.Errorf("owner of %s: %w", to.Name(), err)
	}
	if err := stat(from, &want); err != nil {
		return fmt.Errorf("owner of %s: %w", from.Name(), err)
	}
	if have.Uid == want.Uid && have.Gid == want.Gid {
		return nil
	}
	err := control(to, func(fd int) error { return unix.Fchown(fd, int(want.Uid), int(want.Gid)) })
	if err != nil && err != unix.EPERM {
		return fmt.Errorf("owner of %s: %w", to.Name(), err)
	}
	return nil
}
