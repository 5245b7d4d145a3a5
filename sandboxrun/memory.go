package sandboxrun

import "math"

// smallTmpfs is the size of a tmpfs that holds mount points only.
const smallTmpfs = 1 << 20

// Memory returns how many bytes of memory a run with these limits may fill by
// writing: its /tmp, /dev/shm and home directory, and, as long as they are not
// kept on disk, its changes. A caller that runs several at once bounds their
// sum by a share of MemoryTotal. Not counted are what the processes of the run
// use themselves, which Limits.MemoryBytes bounds, and the kernel's own for each
// file, about a kilobyte, which a control group counts with that.
//
// The answer changes once, at most: on a kernel whose tmpfs cannot hold the
// changes the first run moves them to Config.Scratch.
func (r *Runner) Memory(l Limits) int64 {
	l = l.Filled()
	changes := l.WriteBytes
	if r.onDisk() {
		changes = smallTmpfs
	}
	sum := int64(smallTmpfs) // the root of the sandbox
	for _, n := range []int64{changes, l.TmpBytes, l.ShmBytes, l.HomeBytes} {
		if sum > math.MaxInt64-n {
			return math.MaxInt64
		}
		sum += n
	}
	return sum
}
