package workspace

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"runtime"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// OpenOptions say how to open an image. The zero value opens the path for
// reading and writing.
type OpenOptions struct {
	ReadOnly bool             // needs read permission only and changes no byte of the file
	File     *os.File         // an open descriptor of the image, used instead of the path; Open owns it from the call on
	Wait     time.Duration    // how long to wait for the lock; 0 is two seconds
	Clock    func() time.Time // nil is time.Now
}

// Open opens an existing image. For writing it takes the file's exclusive
// lock, for reading a shared one. What an earlier process staged and never
// committed is swept.
//
// Errors: ErrNotFound, ErrLocked (names the holder where the system tells),
// ErrNotImage, ErrFormat, ErrCorrupt; ErrReadOnly when the file may not be
// written.
func Open(path string, o OpenOptions) (*Image, error) {
	f := o.File
	if f == nil {
		flag := os.O_RDWR
		if o.ReadOnly {
			flag = os.O_RDONLY
		}
		var err error
		if f, err = os.OpenFile(path, flag, 0); err != nil {
			return nil, openError(err)
		}
	}
	im, err := openFile(f, o, checkHeader)
	if err != nil {
		return nil, err
	}
	im.place = path
	if o.File != nil {
		im.place = fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	}
	if err := im.load(); err != nil {
		im.Close()
		return nil, err
	}
	return im, nil
}

func openError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return imageError("open", ErrNotFound, "")
	case errors.Is(err, fs.ErrPermission):
		return imageError("open", ErrReadOnly, "permission to open its file was denied")
	}
	return fmt.Errorf("open image: %w", err)
}

// openFile locks f, checks it, and opens it as a database without looking
// inside. It closes f when it fails.
func openFile(f *os.File, o OpenOptions, check func(*os.File) error) (im *Image, err error) {
	im = &Image{file: f, readOnly: o.ReadOnly, clock: o.Clock}
	if im.clock == nil {
		im.clock = time.Now
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := lock(f, !o.ReadOnly, o.Wait); err != nil {
		return nil, err
	}
	if err := check(f); err != nil {
		return nil, err
	}
	err = guard("open", func() error {
		im.db, err = bolt.Open(f.Name(), 0, boltOptions(f, o.ReadOnly))
		return notImage(err)
	})
	if err != nil {
		return nil, err
	}
	im.db.AllocSize = growStep
	return im, nil
}

// growStep is by how much the file grows at a time: each step costs an fsync,
// and is room that a small image has for nothing.
const growStep = 4 << 20

// notImage translates what bbolt says about a file that is not its own.
func notImage(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrVersionMismatch):
		return imageError("open", ErrNotImage, "")
	case errors.Is(err, bolterrors.ErrChecksum):
		return imageError("open", ErrCorrupt, "both copies of its header fail their checksum")
	}
	return fmt.Errorf("open image: %w", err)
}

// boltOptions are the ones in which an image is always opened. The lock is
// taken before, on the same descriptor, where bbolt's own attempt succeeds at
// once.
func boltOptions(f *os.File, readOnly bool) *bolt.Options {
	o := &bolt.Options{
		ReadOnly: readOnly, Timeout: time.Second, PageSize: pageSize, NoStatistics: true,
		FreelistType: bolt.FreelistMapType,
		OpenFile:     func(string, int, os.FileMode) (*os.File, error) { return f, nil },
	}
	// A map that is larger than the file costs address space only. Without it
	// a growing file has to be mapped anew, for which the writer waits until
	// no reader is left, and new readers wait behind the writer.
	if runtime.GOOS == "linux" && ^uint(0)>>63 == 1 {
		o.InitialMmapSize = 64 << 30
	}
	return o
}

// lock takes the lock of the image file.
func lock(f *os.File, exclusive bool, wait time.Duration) error {
	if wait <= 0 {
		wait = 2 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	err := hostos.Lock(ctx, f, exclusive)
	if !errors.Is(err, hostos.ErrLocked) {
		if err != nil {
			return fmt.Errorf("lock image: %w", err)
		}
		return nil
	}
	detail := ""
	if pid, command, ok := hostos.LockHolder(f); ok {
		host, _ := os.Hostname()
		detail = fmt.Sprintf("held by process %d on %s (%s)", pid, host, command)
	}
	return imageError("open", ErrLocked, detail)
}

// load reads what an open image keeps in memory, and sweeps.
func (im *Image) load() error {
	stale := false
	err := im.view("open", func(tx *bolt.Tx) error {
		if tx.Bucket(bucketMeta) == nil {
			return imageError("open", ErrNotImage, "")
		}
		if err := checkFormat(tx); err != nil {
			return err
		}
		for _, name := range buckets {
			if tx.Bucket(name) == nil {
				return imageError("open", ErrCorrupt, fmt.Sprintf("its bucket %s is missing", name))
			}
		}
		var err error
		if im.identity, err = metaValue(tx, keyIdentity, decodeIdentity); err != nil {
			return err
		}
		if _, err := readHead(tx); err != nil {
			return err
		}
		im.lastChunk.Store(lastChunkID(tx))
		first, _ := tx.Bucket(bucketPending).Cursor().First()
		stale = first != nil
		return nil
	})
	if err != nil || im.readOnly || !stale {
		return err
	}
	return im.sweepPending(nil)
}

func checkFormat(tx *bolt.Tx) error {
	stored := tx.Bucket(bucketMeta).Get(keyFormat)
	if stored == nil {
		return imageError("open", ErrNotImage, "")
	}
	value, err := unseal(keyFormat, stored)
	if err != nil {
		return imageError("open", ErrCorrupt, fmt.Sprintf("its format record: %v", err))
	}
	d := &decoder{in: value}
	if v := d.uint(); d.end() != nil || v != FormatVersion {
		return imageError("open", ErrFormat, fmt.Sprintf("it is version %d, this program reads version %d", v, FormatVersion))
	}
	return nil
}

// pageSize is fixed so that images do not depend on the host that made them.
const pageSize = 4096

// checkHeader looks at bbolt's two header pages before bbolt does, which
// trusts them: a file that is something else, or shorter than its header
// promises, would end in faults of the memory map.
func checkHeader(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("open image: %w", err)
	}
	if !st.Mode().IsRegular() {
		return imageError("open", ErrNotImage, "it is not a regular file")
	}
	var best boltHeader
	known := false
	for i := range int64(2) {
		h, err := readBoltHeader(f, i*pageSize)
		known = known || err == nil
		if h.valid && h.txid >= best.txid {
			best = h
		}
	}
	switch {
	case !known, best.valid && best.pageSize != pageSize:
		return imageError("open", ErrNotImage, "")
	case !best.valid:
		return imageError("open", ErrCorrupt, "both copies of its header fail their checksum")
	case best.pages > uint64(st.Size())/pageSize:
		return imageError("open", ErrCorrupt, "its file is shorter than its header says")
	}
	return nil
}

// boltHeader is the part of a header page that checkHeader needs.
type boltHeader struct {
	valid    bool // its checksum holds
	pageSize uint32
	pages    uint64 // high water mark
	txid     uint64
}

// readBoltHeader reads a header page in the layout of bbolt's internal/common:
// 16 bytes in front of every page, then magic u32, version u32, page size u32,
// flags u32, root 2 × u64, free list u64, high water mark u64, transaction
// u64, FNV-1a of all that u64, in the byte order of the host that wrote it. It
// fails when there is no such page at all.
func readBoltHeader(f *os.File, off int64) (boltHeader, error) {
	var page [80]byte
	if _, err := f.ReadAt(page[:], off); err != nil {
		return boltHeader{}, err
	}
	meta, order := page[16:], binary.NativeEndian
	if order.Uint32(meta) != 0xED0CDAED {
		return boltHeader{}, ErrNotImage
	}
	sum := fnv.New64a()
	sum.Write(meta[:56])
	return boltHeader{
		valid:    order.Uint32(meta[4:]) == 2 && sum.Sum64() == order.Uint64(meta[56:]),
		pageSize: order.Uint32(meta[8:]),
		pages:    order.Uint64(meta[40:]),
		txid:     order.Uint64(meta[48:]),
	}, nil
}
