package workspace

import (
	"sync/atomic"

	bolt "go.etcd.io/bbolt"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// resident counts what was read through the memory map. Every page of the file
// that was looked at stays part of the process until the kernel wants memory
// back, and who accounts for it sees a process as large as its images.
type resident struct{ bytes atomic.Int64 }

// maxResident is how many bytes of chunks are read before the pages are given
// back. They stay in the page cache: to look at one again costs a minor fault.
const maxResident = 8 << 20

// read notes n bytes. The transaction keeps the map where it is meanwhile.
func (r *resident) read(tx *bolt.Tx, n int) {
	if r.bytes.Add(int64(n)) < maxResident {
		return
	}
	r.bytes.Store(0)
	hostos.ReleaseMap(tx.DB().Info().Data, uintptr(tx.Size()))
}

// touch notes a look at one page. Linux maps those around it, too, when they are in
// the page cache (fault-around, 64 KiB).
func (r *resident) touch(tx *bolt.Tx) { r.read(tx, 64<<10) }
