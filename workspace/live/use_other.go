//go:build !unix

package live

import "io/fs"

// diskUse returns the length of a file; there are no links here (see linkAt).
func diskUse(st fs.FileInfo) (bytes int64, id inode, shared bool) {
	return st.Size(), inode{}, false
}
