package workspace

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
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
	path     string   // absolute, where it was opened; "" = unknown
	place    string   // a host path on the image's file system, to ask for free space
	reserve  uint64   // bytes of it that are left to others
	readOnly bool
	damage   string // what Open found wrong with the file, "" for nothing
	clock    func() time.Time
	identity *identity
	packer   packer
	scratch  scratchPool

	writing sync.Mutex  // one update at a time; bbolt's own lock is not given back after a fault
	opening sync.Mutex  // held while a read transaction begins, for the same reason
	stopped atomic.Bool // no update any more, see transact

	collecting chan struct{} // holds one while chunks are being counted or collected
	sharing    sharing
	gc         *collection // under writing, and sharing's lock to change it; nil while none runs
	upkeep     upkeep
	budget     int64 // of the history; 0 is the quota in bytes

	changed   announcement
	lastChunk atomic.Uint64 // highest chunk id given out
	lastStage atomic.Uint64
	abandoned abandoned
	resident  resident
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
		h, err := im.headFor(tx)
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

// Stat describes the file of the image, so that os.SameFile can tell whether a
// path or a descriptor leads to it.
func (im *Image) Stat() (os.FileInfo, error) { return im.file.Stat() }

// Gone says that no name leads to the image's file any more, or that its own name
// leads to another one, because it was removed or replaced: what was written to it
// would not be found again. Every change is then refused with ErrGone; reading goes
// on. A file that was only renamed is still there.
func (im *Image) Gone() bool {
	ours, err := im.file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(im.path)
	return hostos.Removed(ours) || err == nil && !os.SameFile(named, ours)
}

// Snapshot writes the file of the image as it is at one commit, byte for byte and
// damage included, and returns its size. Changes go on meanwhile; those that come
// later are not in it.
func (im *Image) Snapshot(w io.Writer) (n int64, err error) {
	err = im.view("snapshot", func(tx *bolt.Tx) error {
		n, err = tx.WriteTo(w)
		return err
	})
	return n, err
}

// ReadOnly says whether the image was opened for reading only.
func (im *Image) ReadOnly() bool { return im.readOnly }

// Close waits for running calls and closes the file, with which its lock goes.
// Later calls fail with an error that wraps fs.ErrClosed. Closing twice is no error.
func (im *Image) Close() error {
	im.writing.Lock()
	defer im.writing.Unlock()
	if im.stopped.Load() {
		// bbolt may wait for ever for a lock of its own. The memory map stays.
		im.file.Close()
		return nil
	}
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
	return guard(op, func() error {
		tx, err := im.begin()
		if err != nil {
			return explain(op, err)
		}
		defer tx.Rollback()
		return fn(tx)
	})
}

func (im *Image) begin() (*bolt.Tx, error) {
	im.opening.Lock()
	defer im.opening.Unlock()
	return im.db.Begin(false)
}

// update runs fn in the one write transaction: all of it becomes durable, or
// nothing. size is how many bytes of chunks it is going to write; when the
// host's file system does not have them beyond the reserve the update is refused
// before it begins. What writes none, such as a removal, is tried on a full disk
// too: it mostly finds room within the file.
func (im *Image) update(op string, size int, fn func(*bolt.Tx) error) error {
	if err := im.writable(op); err != nil {
		return err
	}
	im.writing.Lock()
	defer im.writing.Unlock()
	if im.Gone() {
		return imageError(op, ErrGone, "")
	}
	if size > 0 && im.full(uint64(size)+spareBytes+im.reserve) {
		return imageError(op, ErrNoSpace, "")
	}
	if im.stopped.Load() {
		return imageError(op, ErrCorrupt, "an earlier write failed halfway; it has to be opened again")
	}
	return guard(op, func() error { return explain(op, im.transact(op, fn)) })
}

// transact is bbolt's Update, written out: where that is left by a panic it
// may keep its lock, or roll back over the page that just faulted.
func (im *Image) transact(op string, fn func(*bolt.Tx) error) error {
	sound := false
	defer func() {
		if !sound {
			im.stopped.Store(true)
		}
	}()
	tx, err := im.db.Begin(true)
	if err != nil {
		sound = true
		return err
	}
	if err := attempt(op, tx, fn); err != nil {
		sound = tx.Rollback() == nil
		return err
	}
	id := tx.ID()
	hostos.Failpoint("update.filled")
	if err := tx.Commit(); err != nil {
		sound = !im.visible(id)
		if hostos.IsNoSpace(err) || im.full(spareBytes) {
			return imageError(op, ErrNoSpace, "")
		}
		return fmt.Errorf("%s: write image: %w", op, err)
	}
	hostos.Failpoint("update.durable")
	sound = true
	return nil
}

// attempt runs fn so that damage it runs into is an error. A panic of our own
// goes on, but not without a rollback.
func attempt(op string, tx *bolt.Tx, fn func(*bolt.Tx) error) error {
	done := false
	defer func() {
		if !done {
			_ = tx.Rollback()
		}
	}()
	err := guard(op, func() error { return fn(tx) })
	done = true
	return err
}

// visible says whether a transaction whose commit failed can be seen all the
// same: its header page was written, and what failed was making it durable.
// Nothing may be built on it, for a power cut could take it away.
func (im *Image) visible(id int) bool {
	tx, err := im.begin()
	if err != nil {
		return true
	}
	defer tx.Rollback()
	return tx.ID() >= id
}

// spareBytes is what has to be free beyond the chunks of an update: copied
// pages, the free list, and a step in which the file grows.
const spareBytes = 2 * growStep

// full says whether the host's file system has less than this free. One that
// does not tell is not full.
func (im *Image) full(need uint64) bool {
	free, _, err := hostos.Free(im.place)
	return err == nil && free < need
}

// explain turns an error of bbolt into one of ours.
func explain(op string, err error) error {
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		return fmt.Errorf("%s: disk image: %w", op, fs.ErrClosed)
	}
	return err
}

// now is the clock's time, in the form in which nodes keep it.
func (im *Image) now() time.Time { return im.clock().UTC() }
