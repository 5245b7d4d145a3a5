package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
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
	Wait     time.Duration    // how long to wait for the lock; 0 is 1.5 seconds
	Clock    func() time.Time // nil is time.Now

	// Reserve is how many bytes of the host's file system contents leave free for
	// others, such as the log that has to tell of them: a commit that would leave
	// less is ErrNoSpace.
	Reserve uint64

	// HistoryBytes is what the history may take in the file; 0 is as much as the quota of
	// the disk. See Trim.
	HistoryBytes int64
}

// Open opens an existing image; symlinks are followed. For writing it takes the
// file's exclusive lock, for reading a shared one. What an earlier process
// staged and never committed is swept, on a full disk by a later commit. It
// never waits for longer than for the lock, whatever kind of file it is given.
//
// The structure of the file is looked at first. Damage that leaves a part of
// it readable is no error: Damage tells it, what is undamaged can be read, and
// every update is refused with ErrCorrupt. Such a file is locked shared in
// either case, and nothing is swept.
//
// Errors: ErrNotFound, ErrLocked (names the holder where the system tells),
// ErrNotImage, ErrFormat, ErrCorrupt; ErrReadOnly when the file may not be
// written, or its file system is read-only.
func Open(path string, o OpenOptions) (*Image, error) {
	f, err := openPath(path, o.File, !o.ReadOnly)
	if err != nil {
		return nil, err
	}
	im, err := openFile(f, o, survey)
	if err != nil {
		return nil, err
	}
	im.path, im.place, im.reserve = absolute(path), path, o.Reserve
	if o.File != nil {
		im.place = fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	}
	if err := im.load(); err != nil {
		im.Close()
		return nil, err
	}
	return im, nil
}

// absolute is a path that stays the same when the process changes its directory;
// "" when that is not known.
func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if path == "" || err != nil {
		return ""
	}
	return abs
}

// openPath opens the file of an image, unless it is open already, without waiting
// for anybody, as opening a FIFO would, and without a side effect, as opening a
// device may have. Symlinks are followed: the name is the person's.
func openPath(path string, f *os.File, write bool) (*os.File, error) {
	if f != nil {
		return f, nil
	}
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, openError(err)
	case !st.Mode().IsRegular():
		return nil, imageError("open", ErrNotImage, "it is not a regular file")
	}
	flag := os.O_RDONLY
	if write {
		flag = os.O_RDWR
	}
	f, err = os.OpenFile(path, flag|hostos.NonBlock, 0) // it may be another file by now
	if err != nil {
		return nil, openError(err)
	}
	return f, nil
}

func openError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return imageError("open", ErrNotFound, "")
	case hostos.IsReadOnly(err):
		return imageError("open", ErrReadOnly, "the file system that holds it is read-only")
	case errors.Is(err, fs.ErrPermission):
		return imageError("open", ErrReadOnly, "permission to open its file was denied")
	}
	return fmt.Errorf("open image: %w", err)
}

// openFile locks f, checks it, and opens it as a database without looking
// inside. It closes f when it fails. A file in which check finds damage is
// opened so that bbolt cannot write and leaves the list of free pages alone.
func openFile(f *os.File, o OpenOptions, check func(*os.File) (damage string, err error)) (im *Image, err error) {
	im = &Image{file: f, readOnly: o.ReadOnly, clock: o.Clock, budget: o.HistoryBytes, collecting: make(chan struct{}, 1)}
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
	if im.damage, err = check(f); err != nil {
		return nil, err
	}
	if im.damage != "" && !o.ReadOnly {
		if err := lock(f, false, o.Wait); err != nil { // as bbolt does below
			return nil, err
		}
	}
	err = guard("open", func() error {
		im.db, err = bolt.Open(f.Name(), 0, boltOptions(f, o.ReadOnly || im.damage != ""))
		return translate(err)
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

// translate gives bbolt's errors about a file their sentinels.
func translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrVersionMismatch):
		return imageError("open", ErrNotImage, "")
	case errors.Is(err, bolterrors.ErrTimeout): // where hostos has no lock that other processes see
		return imageError("open", ErrLocked, "")
	case errors.Is(err, bolterrors.ErrChecksum):
		return imageError("open", ErrCorrupt, "both copies of its header fail their checksum")
	case hostos.IsNoSpace(err): // a new file
		return imageError("open", ErrNoSpace, "")
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

// defaultWait is long enough for a process that is just ending, and leaves time
// to say within two seconds who has the image.
const defaultWait = 1500 * time.Millisecond

// lock takes the lock of the image file.
func lock(f *os.File, exclusive bool, wait time.Duration) error {
	if wait <= 0 {
		wait = defaultWait
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
		detail = fmt.Sprintf("held by process %d on %s (%s)", pid, host, shortCommand(command))
	}
	return imageError("open", ErrLocked, detail)
}

// shortCommand is the program and its subcommand: the other arguments are
// paths of the host, and none of a reader's business.
func shortCommand(command string) string {
	args := strings.Fields(command)
	if len(args) == 0 {
		return "unknown"
	}
	short := filepath.Base(args[0])
	if len(args) > 1 && !strings.ContainsAny(args[1], "-/.=") {
		short += " " + args[1]
	}
	return short
}

// load reads what an open image keeps in memory, and sweeps. A disk that is too
// full to sweep is no reason not to open: how else would anybody make room?
func (im *Image) load() error {
	var stages []uint64
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
			if err = im.liveWith(err); err != nil {
				return err
			}
		}
		if im.damage != "" {
			return nil // nothing is going to be written
		}
		im.lastChunk.Store(lastChunkID(tx))
		first, _ := tx.Bucket(bucketPending).Cursor().First()
		stale, stages = first != nil, pendingStages(tx)
		return nil
	})
	if err != nil || im.readOnly || im.damage != "" || !stale {
		return err
	}
	hostos.Failpoint("open.sweep")
	err = im.sweepPending(nil)
	if errors.Is(err, ErrNoSpace) {
		im.abandoned.add(stages...)
		if len(stages) > 0 {
			im.lastStage.Store(stages[len(stages)-1]) // theirs are not to be mixed with new ones
		}
		return nil
	}
	hostos.Failpoint("open.swept")
	return err
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
	return knownFormat(value)
}

// knownFormat is nil for the version that this program reads.
func knownFormat(value []byte) error {
	d := &decoder{in: value}
	if v := d.uint(); d.end() != nil || v != FormatVersion {
		return imageError("open", ErrFormat, fmt.Sprintf("it is version %d, this program reads version %d", v, FormatVersion))
	}
	return nil
}
