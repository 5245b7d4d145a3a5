package workspace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	bolt "go.etcd.io/bbolt"
)

// Damage says what Open found wrong with the structure of the file: an error
// that wraps ErrCorrupt, nil for nothing. With damage, reading works as far as
// it goes, and every update is refused with ErrCorrupt.
//
// Open does not look at values: damage in one is ErrCorrupt when it is read.
// Check finds both.
func (im *Image) Damage() error {
	if im.damage == "" {
		return nil
	}
	return imageError("open", ErrCorrupt, im.damage)
}

// writable says why nothing may be written, if so.
func (im *Image) writable(op string) error {
	switch {
	case im.readOnly:
		return imageError(op, ErrReadOnly, "")
	case im.damage != "":
		return imageError(op, ErrCorrupt, fmt.Sprintf(
			"it was found damaged when it was opened (%s); only reading works until it is repaired by fsck", im.damage))
	}
	return nil
}

// survey looks at the structure of a file before bbolt does: at all branch
// pages, at the first page of every leaf, at the list of free pages. It fails
// on what bbolt could follow for ever, which would end the process; other
// damage is for the caller to live with.
//
// It costs a read of 4 KiB for each leaf, or of up to 256 KiB for leaves that
// lie close together.
func survey(f *os.File) (damage string, err error) {
	h, err := readHeader(f)
	if err != nil {
		return "", err
	}
	st, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("open image: %w", err)
	}
	var first, endless *pageFault
	p := newPages(f, st.Size(), h, func(fault pageFault) {
		if first == nil {
			first = &fault
		}
		if endless == nil && fault.endless {
			endless = &fault
		}
	})
	buckets, err := p.buckets()
	for i := 0; i < len(buckets) && err == nil; i++ {
		err = p.walk(buckets[i], nil)
	}
	p.freeList()
	switch {
	case err != nil:
		return "", err
	case endless != nil:
		return "", imageError("open", ErrCorrupt, endless.sentence()+"; it has to be repaired by fsck")
	case h.pages > p.inFile():
		return fmt.Sprintf("its file was cut short, %d of %d pages are left", p.inFile(), h.pages), nil
	case first != nil:
		return first.sentence(), nil
	}
	return "", nil
}

// sentence is "page 17 of its chunks leads to page 3, which …".
func (f *pageFault) sentence() string {
	switch {
	case f.bucket != "":
		return fmt.Sprintf("page %d of its %s %s", f.page, f.bucket, f.text)
	case f.kind == kindFreeList:
		return fmt.Sprintf("page %d, its list of free pages, %s", f.page, f.text)
	}
	return fmt.Sprintf("page %d of its list of buckets %s", f.page, f.text)
}

// liveWith makes an error of load about one record a damage of the image.
func (im *Image) liveWith(err error) error {
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, ErrCorrupt) {
		return err
	}
	if im.damage == "" {
		im.damage = e.Detail
	}
	return nil
}

// headFor is the head for a description of the image. When the record of the
// head is what is damaged, the newest commit says the same.
func (im *Image) headFor(tx *bolt.Tx) (*head, error) {
	h, err := readHead(tx)
	if err == nil || im.damage == "" {
		return h, err
	}
	key, _ := tx.Bucket(bucketCommits).Cursor().Last()
	if len(key) < 8 {
		return nil, err
	}
	r, err := readRecord(tx, binary.BigEndian.Uint64(key))
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, recordError(binary.BigEndian.Uint64(key), nil)
	}
	return r.head(), nil
}

// head is what the record of the head says after this commit.
func (r *record) head() *head { return &head{seq: r.seq, id: r.id, bytes: r.bytes, entries: r.entries} }
