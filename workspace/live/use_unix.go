//go:build unix

package live

import (
	"io/fs"
	"syscall"
)

// diskUse returns the bytes of disk that a file takes, and whether it may be met
// again under another name (stat(2): st_blocks counts 512 bytes).
func diskUse(st fs.FileInfo) (bytes int64, id inode, shared bool) {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return st.Size(), inode{}, false
	}
	return int64(sys.Blocks) * 512, inode{uint64(sys.Dev), uint64(sys.Ino)}, sys.Nlink > 1
}
