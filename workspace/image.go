package workspace

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Image is an open disk image. All methods may be used concurrently: reads run
// side by side on the newest commit, commits one after the other.
type Image struct {
	db       *bolt.DB
	file     *os.File // db's own; for the lock and the size
	place    string   // a host path on the image's file system, to ask for free space
	readOnly bool
	clock    func() time.Time
	identity *identity
	packer   packer
	scratch  scratchPool

	lastChunk atomic.Uint64 // highest chunk id given out
	lastStage atomic.Uint64
}

// Info is a description of an image at one commit.
type Info struct {
	UUID         string
	Label        string
	Created      time.Time
	Format       int
	QuotaBytes   int64  // limit of Bytes
	QuotaEntries int64  // limit of Entries
	Bytes        int64  // sizes of all files and symlink targets
	Entries      int64  // files, directories and symlinks, without the root
	Seq          uint64 // of the newest commit; a new image has 1, the commit that made it
	Commit       string // id of the newest commit, hex
	FileSize     int64  // length of the image file on the host; parts of it may be sparse
}

// Info describes the image as of now.
func (im *Image) Info() (Info, error) {
	id := im.identity
	info := Info{
		UUID: id.uuidString(), Label: id.label, Created: id.created, Format: FormatVersion,
		QuotaBytes: id.quotaBytes, QuotaEntries: id.quotaEntries,
	}
	err := im.view("info", func(tx *bolt.Tx) error {
		h, err := readHead(tx)
		if err != nil {
			return err
		}
		info.Bytes, info.Entries, info.Seq, info.Commit = h.bytes, h.entries, h.seq, hex.EncodeToString(h.id[:])
		return nil
	})
	if err != nil {
		return Info{}, err
	}
	if st, err := im.file.Stat(); err == nil {
		info.FileSize = st.Size()
	}
	return info, nil
}

// ReadOnly says whether the image was opened for reading only.
func (im *Image) ReadOnly() bool { return im.readOnly }

// Close waits for running calls and closes the file, with which its lock goes.
// Later calls fail with an error that wraps fs.ErrClosed. Closing twice is no error.
func (im *Image) Close() error {
	return guard("close", func() error {
		if err := im.db.Close(); err != nil {
			return fmt.Errorf("close image: %w", err)
		}
		im.packer.close()
		return nil
	})
}

// view runs fn in a read transaction. It sees one commit and blocks nobody.
func (im *Image) view(op string, fn func(*bolt.Tx) error) error {
	return guard(op, func() error { return im.explain(op, im.db.View(fn)) })
}

// update runs fn in the one write transaction: all of it becomes durable, or
// nothing. size is about how many bytes it is going to write; when the host's
// file system does not have them the update is refused before it begins.
func (im *Image) update(op string, size int, fn func(*bolt.Tx) error) error {
	if im.readOnly {
		return imageError(op, ErrReadOnly, "")
	}
	if free, _, err := hostos.Free(im.place); err == nil && free < uint64(size)+spareBytes {
		return imageError(op, ErrNoSpace, fmt.Sprintf("%d bytes are free", free))
	}
	return guard(op, func() error { return im.explain(op, im.db.Update(fn)) })
}

// spareBytes is what an update leaves free on the host's file system: copied
// pages, the free list, and the steps in which the file grows.
const spareBytes = 16 << 20

// explain turns an error of bbolt into one of ours.
func (im *Image) explain(op string, err error) error {
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		return fmt.Errorf("%s: disk image: %w", op, fs.ErrClosed)
	}
	return err
}

// now is the clock's time, in the form in which nodes keep it.
func (im *Image) now() time.Time { return im.clock().UTC() }
