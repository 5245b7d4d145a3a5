package workspace

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Default quotas of a new image.
const (
	DefaultQuotaBytes   = 4 << 30
	DefaultQuotaEntries = 500_000
)

// CreateOptions describe a new image. The zero value is the default.
type CreateOptions struct {
	Label        string           // a name for people, at most 1 KiB
	QuotaBytes   int64            // 0 is DefaultQuotaBytes
	QuotaEntries int64            // 0 is DefaultQuotaEntries
	Mode         os.FileMode      // of the file; 0 is 0600
	File         *os.File         // an open, empty file to make the image in, instead of a new one at the path; Create owns it from the call on
	Clock        func() time.Time // nil is time.Now
	Reserve      uint64           // see OpenOptions; it does not count before the image is made
}

// Create makes a new, empty image and opens it for writing. An existing file
// is never touched: that is ErrExists, whatever kind of file it is. The image
// is made under another name and linked into place when it is whole and
// durable, so a crash or a full disk (ErrNoSpace) leaves either no file under
// the name or a good one; a crash may leave the other name, ".vdisk-new-*". In
// a File it may leave one that is no image.
func Create(path string, o CreateOptions) (*Image, error) {
	if len(o.Label) > maxLabel {
		return nil, imageError("create", ErrTooLarge, "its label is longer than 1 KiB")
	}
	if o.File != nil {
		return createIn(path, &o)
	}
	if _, err := os.Lstat(path); err == nil {
		return nil, imageError("create", ErrExists, "")
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), tempPrefix+"*")
	if err != nil {
		return nil, createError(err)
	}
	defer os.Remove(tmp.Name())
	hostos.Failpoint("create.temp")
	im, err := initialise(tmp, &o)
	if err != nil {
		return nil, err
	}
	hostos.Failpoint("create.initialised")
	im.place, im.reserve = path, o.Reserve
	if err := publish(tmp, path, o.Mode); err != nil {
		im.Close()
		return nil, err
	}
	im.path = absolute(path)
	hostos.Failpoint("create.published")
	return im, nil
}

func createError(err error) error {
	if hostos.IsNoSpace(err) {
		return imageError("create", ErrNoSpace, "")
	}
	return fmt.Errorf("create image: %w", err)
}

// createIn makes the image in a file that the caller opened.
func createIn(path string, o *CreateOptions) (*Image, error) {
	if info, err := o.File.Stat(); err != nil || info.Size() > 0 {
		o.File.Close()
		return nil, imageError("create", ErrExists, "")
	}
	im, err := initialise(o.File, o)
	if err != nil {
		return nil, err
	}
	im.path = absolute(path)
	im.place, im.reserve = fmt.Sprintf("/proc/self/fd/%d", o.File.Fd()), o.Reserve
	return im, nil
}

// publish gives a whole image its mode and its name.
func publish(tmp *os.File, path string, mode os.FileMode) error {
	if mode == 0 {
		mode = 0o600
	}
	if err := tmp.Chmod(mode.Perm()); err != nil {
		return createError(err)
	}
	if err := tmp.Sync(); err != nil {
		return createError(err)
	}
	hostos.Failpoint("create.synced")
	if err := linkOrMove(tmp.Name(), path); errors.Is(err, fs.ErrExist) {
		return imageError("create", ErrExists, "")
	} else if err != nil {
		return createError(err)
	}
	hostos.Failpoint("create.linked")
	if err := hostos.SyncDir(filepath.Dir(path)); err != nil {
		// Nobody else has it open: its lock is ours until the caller closes it.
		return errors.Join(createError(err), os.Remove(path))
	}
	return nil
}

// linkOrMove gives a file a name that must be free.
func linkOrMove(from, to string) error {
	err := os.Link(from, to)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	return reserveAndMove(from, to)
}

// reserveAndMove is for file systems without hard links. A crash between its
// steps leaves an empty file.
func reserveAndMove(from, to string) error {
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	f.Close()
	if err := os.Rename(from, to); err != nil {
		return errors.Join(err, os.Remove(to))
	}
	return nil
}

// initialise turns an empty file into an image. It closes f when it fails.
func initialise(f *os.File, o *CreateOptions) (*Image, error) {
	im, err := openFile(f, OpenOptions{Clock: o.Clock}, func(*os.File) (string, error) { return "", nil })
	if err != nil {
		return nil, err
	}
	im.place = f.Name()
	im.identity = newIdentity(o, im.now())
	err = im.update("create", 0, func(tx *bolt.Tx) error {
		for _, name := range buckets {
			if _, err := tx.CreateBucket(name); err != nil {
				return fmt.Errorf("create image: %w", err)
			}
		}
		return im.writeFirst(tx)
	})
	if err != nil {
		im.Close()
		return nil, err
	}
	return im, nil
}

func newIdentity(o *CreateOptions, now time.Time) *identity {
	id := &identity{
		label: o.Label, created: now,
		quotaBytes: o.QuotaBytes, quotaEntries: o.QuotaEntries,
	}
	if id.quotaBytes <= 0 {
		id.quotaBytes = DefaultQuotaBytes
	}
	if id.quotaEntries <= 0 {
		id.quotaEntries = DefaultQuotaEntries
	}
	rand.Read(id.uuid[:])
	id.uuid[6] = id.uuid[6]&0x0f | 0x40 // version 4, RFC 9562 §5.4
	id.uuid[8] = id.uuid[8]&0x3f | 0x80
	return id
}

// firstMessage and the uuid are the message of the first commit.
const firstMessage = "created image "

// writeFirst writes the records of a new image, among them its first commit.
// Because of that commit every later one has a parent, and "computed on an
// empty disk" is a base like any other.
func (im *Image) writeFirst(tx *bolt.Tx) error {
	first := &record{seq: 1, message: firstMessage + im.identity.uuidString(), time: im.identity.created}
	id, err := first.write(tx.Bucket(bucketCommits))
	if err != nil {
		return err
	}
	h := &head{seq: first.seq, id: id}
	for _, m := range []struct{ key, value []byte }{
		{keyFormat, binary.AppendUvarint(nil, FormatVersion)},
		{keyIdentity, im.identity.encode()},
		{keyHead, h.encode()},
		{keyFence, Fence{}.encode()},
	} {
		if err := putMeta(tx, m.key, m.value); err != nil {
			return fmt.Errorf("create image: %w", err)
		}
	}
	return nil
}
