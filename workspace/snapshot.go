package workspace

import (
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"sync"

	bolt "go.etcd.io/bbolt"
)

// Snapshot is an image as it is at one commit, for whoever copies its file. While it
// is open the file keeps every page of it: changes go on, in pages of their own, so
// that the file grows by what they replace. Its methods are for one goroutine at a
// time.
type Snapshot struct {
	tx   *bolt.Tx
	info Info
	once sync.Once
	size int64
}

// BeginSnapshot begins a snapshot, which takes no longer than a read of the head. The
// caller closes it before the image.
//
// Errors: ErrCorrupt when the head cannot be read; one that wraps fs.ErrClosed.
func (im *Image) BeginSnapshot() (s *Snapshot, err error) {
	id := im.identity
	s = &Snapshot{info: Info{
		UUID: id.uuidString(), Label: id.label, Created: id.created, Format: FormatVersion,
		QuotaBytes: id.quotaBytes, QuotaEntries: id.quotaEntries,
	}}
	err = guard("snapshot", func() error {
		tx, err := im.begin()
		if err != nil {
			return explain("snapshot", err)
		}
		h, err := im.headFor(tx)
		if err != nil {
			tx.Rollback()
			return err
		}
		s.tx, s.size = tx, tx.Size()
		s.info.Bytes, s.info.Entries, s.info.Seq, s.info.Commit = h.bytes, h.entries, h.seq, hex.EncodeToString(h.id[:])
		s.info.FileSize = s.size
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Info describes the image at the commit of the snapshot. FileSize is how many bytes
// WriteTo writes.
func (s *Snapshot) Info() Info { return s.info }

// WriteTo writes the file, byte for byte and damage included. It may be called more
// than once.
func (s *Snapshot) WriteTo(w io.Writer) (n int64, err error) {
	if s.tx == nil {
		return 0, fmt.Errorf("snapshot: disk image: %w", fs.ErrClosed)
	}
	err = guard("snapshot", func() error {
		n, err = s.tx.WriteTo(w)
		return err
	})
	return n, err
}

// Close ends the snapshot. Closing twice is no error.
func (s *Snapshot) Close() error {
	var err error
	s.once.Do(func() {
		err = guard("snapshot", s.tx.Rollback)
		s.tx = nil
	})
	return err
}

// Pause waits for the change that is being made, and keeps every further one waiting
// until resume is called: for who has to see several images, or an image and its log,
// as of one moment. Reads go on. Nobody holds for longer than that takes, and only one at
// a time holds several.
func (im *Image) Pause() (resume func()) {
	im.writing.Lock()
	return sync.OnceFunc(im.writing.Unlock)
}
