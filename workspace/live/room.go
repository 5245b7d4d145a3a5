package live

import "github.com/mcp-vdisk/mcp-vdisk/workspace"

// room sees to it that a view is not what fills the disk of its host: the image
// and the log need it too.
type room struct {
	free  func(path string) (bytes, inodes uint64, err error)
	place string
	keep  uint64 // bytes that stay free
	wrote int64  // since it last looked
}

const (
	roomMargin = 16 << 20 // stays free; more than the image asks for itself
	roomStep   = 4 << 20  // written between two looks
	blockSize  = 4096     // of the usual file systems: what a short file or directory takes
	entrySize  = 64       // of a name in a directory, on average and rounded up
)

// need refuses what does not fit. A file system that does not tell is not full;
// one that says it has no inodes mostly does not count them (btrfs).
func (r *room) need(bytes, files int64) error {
	free, inodes, err := r.free(r.place)
	if err != nil {
		return nil
	}
	if free < uint64(bytes)+max(r.keep, roomMargin) || inodes > 0 && inodes < uint64(files) {
		return &workspace.Error{Op: "pin live view", Kind: workspace.ErrNoSpace, Detail: "scripts need a copy of the disk's files, and it does not fit"}
	}
	return nil
}

// take is told of everything that is about to be written, and looks now and
// then: not all of it is known beforehand.
func (r *room) take(bytes int64) error {
	if r.wrote += bytes; r.wrote < roomStep {
		return nil
	}
	r.wrote = 0
	return r.need(bytes, 1)
}

// fits refuses changes for which there is no room. Those that only remove
// are tried on a full disk too.
func (r *room) fits(changes []change) error {
	var bytes, files int64
	for _, c := range changes {
		if c.node != nil {
			bytes += (c.node.Size + blockSize - 1) / blockSize * blockSize
			files++
		}
	}
	if files == 0 {
		return nil
	}
	return r.need(bytes, files)
}
