//go:build linux && !portable

package hostos

import (
	"io/fs"
	"syscall"
)

// Owner is the user id that a file belongs to. ok is false where the system does
// not tell.
func Owner(info fs.FileInfo) (uid int, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
