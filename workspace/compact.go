package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// CompactOptions say how to compact an image.
type CompactOptions struct {
	Wait     time.Duration // how long to wait for the lock; 0 is 1.5 seconds
	Reserve  uint64        // bytes of the host's file system that are left to others
	Progress func(done, total int64)
}

// Compact puts a copy without free pages, see CopyTo, in the place of an image's file,
// and returns the lengths of the two. The copy has the same mode, and the same owner
// where that may be given. Nobody may have the image open; symlinks are followed. A
// crash leaves the old file or the new one under the name, and perhaps what was written
// so far under another, ".vdisk-new-*".
//
// Errors: those of Open and CopyTo.
func Compact(ctx context.Context, path string, o CompactOptions) (before, after int64, err error) {
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return 0, 0, openError(err)
	}
	im, err := Open(path, OpenOptions{Wait: o.Wait, Reserve: o.Reserve})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, im.Close()) }()
	if err := im.writable("compact"); err != nil {
		return 0, 0, err
	}
	old, err := im.Stat()
	if err != nil {
		return 0, 0, fmt.Errorf("compact image: %w", err)
	}
	if im.full(uint64(old.Size()) + o.Reserve) {
		// Half of it may do, but that shows only when the rest is gone as well.
		s, err := im.Sizes(ctx)
		if err != nil {
			return 0, 0, err
		}
		if im.full(uint64(s.Head+s.History) + spareBytes + o.Reserve) {
			return 0, 0, imageError("compact", ErrNoSpace, "")
		}
	}
	after, err = im.replace(ctx, path, old.Mode().Perm(), &o)
	return old.Size(), after, err
}

// replace writes the copy beside the file and gives it its name.
func (im *Image) replace(ctx context.Context, path string, mode os.FileMode, o *CompactOptions) (size int64, err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".vdisk-new-*")
	if err != nil {
		return 0, createError(err)
	}
	defer os.Remove(tmp.Name())
	if err = tmp.Chmod(mode); err == nil {
		err = hostos.CopyOwner(tmp, im.file)
	}
	if err != nil {
		tmp.Close()
		return 0, createError(err)
	}
	info, err := im.CopyTo(ctx, "", CopyOptions{File: tmp, Progress: o.Progress})
	if err != nil {
		return 0, err
	}
	hostos.Failpoint("compact.copied")
	if im.Gone() {
		return 0, imageError("compact", ErrGone, "")
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return 0, createError(err)
	}
	hostos.Failpoint("compact.renamed")
	if err := hostos.SyncDir(filepath.Dir(path)); err != nil {
		return 0, createError(err)
	}
	return info.FileSize, nil
}
