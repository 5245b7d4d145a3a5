package workspace

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
)

// Checkpoint is a name for a commit, with what the whole tree was at it.
type Checkpoint struct {
	Name    string
	Seq     uint64
	Commit  string // id of the commit, hex
	Digest  string // of the tree, hex; see TreeDigest
	Bytes   int64  // sizes of all files and symlink targets
	Entries int64  // files, directories and symlinks, without the root
	Time    time.Time
	Message string // at most 64 KiB
}

const maxCheckpointName = 64

// Checkpoint names the head. The digest is taken in a read transaction, during
// which others may commit: the checkpoint is of the commit that was the head
// when it began. When it returns without an error the name is durable.
//
// What it holds of the history is never dropped. It is refused with ErrQuota, and
// nothing is changed, when the history that checkpoints hold and what the disk holds
// now are together more than the budget of the history, see OpenOptions: keeping the
// promise could then pass it. A GC that runs is waited for.
//
// Errors: ErrInvalid for a bad name (its detail says what a good one is);
// ErrExists when the name is taken; ErrTooLarge for the message; ErrQuota; ErrReadOnly;
// ErrNoSpace; ErrCorrupt; the cause of ctx.
func (im *Image) Checkpoint(ctx context.Context, name, message string) (Checkpoint, error) {
	if err := checkName(name); err != nil {
		return Checkpoint{}, err
	}
	if len(message) > maxText {
		return Checkpoint{}, imageError("checkpoint", ErrTooLarge, "the message of the checkpoint is longer than 64 KiB")
	}
	if im.readOnly {
		return Checkpoint{}, imageError("checkpoint", ErrReadOnly, "")
	}
	done, err := im.alone(ctx) // its commit must not be dropped before it has its name
	if err != nil {
		return Checkpoint{}, err
	}
	defer done()
	free := func(tx *bolt.Tx) error { return nameIsFree(tx, name) }
	if err := im.view("checkpoint", free); err != nil {
		return Checkpoint{}, err
	}
	if err := im.checkRoom(ctx); err != nil {
		return Checkpoint{}, err
	}
	digest, h, err := im.treeDigest(ctx)
	if err != nil {
		return Checkpoint{}, err
	}
	c := Checkpoint{
		Name: name, Seq: h.seq, Commit: hex.EncodeToString(h.id[:]), Digest: hex.EncodeToString(digest[:]),
		Bytes: h.bytes, Entries: h.entries, Time: time.Unix(0, im.now().UnixNano()).UTC(), Message: message,
	}
	err = im.update("checkpoint", len(message), func(tx *bolt.Tx) error {
		if err := free(tx); err != nil {
			return err
		}
		if err := tx.Bucket(bucketRefs).Put([]byte(name), seal([]byte(name), c.encode())); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
		return nil
	})
	if err != nil {
		return Checkpoint{}, err
	}
	return c, nil
}

// Checkpoints returns all checkpoints, by Seq, then by name.
//
// Errors: ErrCorrupt.
func (im *Image) Checkpoints() ([]Checkpoint, error) {
	var all []Checkpoint
	err := im.view("list checkpoints", func(tx *bolt.Tx) error {
		return tx.Bucket(bucketRefs).ForEach(func(name, stored []byte) error {
			c, err := openCheckpoint(name, stored)
			if err == nil {
				all = append(all, *c)
			}
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b Checkpoint) int { return cmp.Compare(a.Seq, b.Seq) }) // by name they are
	return all, nil
}

// DropCheckpoint takes a name away; the commit stays. A damaged checkpoint can
// be dropped.
//
// Errors: ErrNotFound, ErrReadOnly.
func (im *Image) DropCheckpoint(name string) error {
	err := im.update("drop checkpoint", 0, func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketRefs)
		if b.Get([]byte(name)) == nil {
			return subjectError("drop checkpoint", checkpointOf(name), ErrNotFound, "")
		}
		if err := b.Delete([]byte(name)); err != nil {
			return fmt.Errorf("drop checkpoint: %w", err)
		}
		return nil
	})
	if err == nil {
		im.upkeep.dropped()
	}
	return err
}

// checkName keeps names apart from everything else that Revision takes, and
// harmless in a shell and in a file name.
func checkName(name string) error {
	const others = "._-"
	good := name != "" && len(name) <= maxCheckpointName && !strings.ContainsRune(others, rune(name[0]))
	for i := 0; good && i < len(name); i++ {
		b := name[i]
		good = b >= '0' && b <= '9' || b|0x20 >= 'a' && b|0x20 <= 'z' || strings.IndexByte(others, b) >= 0
	}
	if _, version := versionDigits(name); good && !version && !strings.EqualFold(name, "head") {
		return nil
	}
	return subjectError("checkpoint", "the checkpoint name "+strconv.Quote(short(name)), ErrInvalid,
		`use 1 to 64 of A-Z a-z 0-9 . _ -, first a letter or digit, not "head" and not like a version (v12, 12)`)
}

func checkpointOf(name string) string { return "the checkpoint " + strconv.Quote(short(name)) }

func nameIsFree(tx *bolt.Tx, name string) error {
	if tx.Bucket(bucketRefs).Get([]byte(name)) == nil {
		return nil
	}
	detail := ""
	if c, err := readCheckpoint(tx, name); err == nil && c != nil {
		detail = fmt.Sprintf("it names v%d", c.Seq)
	}
	return subjectError("checkpoint", checkpointOf(name), ErrExists, detail)
}

// readCheckpoint returns a checkpoint by its name; nil when there is none.
func readCheckpoint(tx *bolt.Tx, name string) (*Checkpoint, error) {
	stored := tx.Bucket(bucketRefs).Get([]byte(name))
	if stored == nil {
		return nil, nil
	}
	return openCheckpoint([]byte(name), stored)
}

func openCheckpoint(name, stored []byte) (*Checkpoint, error) {
	value, err := unseal(name, stored)
	if err != nil {
		return nil, subjectError("read checkpoint", checkpointOf(string(name)), ErrCorrupt, err.Error())
	}
	c, err := decodeCheckpoint(value)
	if err == nil && checkName(string(name)) != nil {
		err = errors.New("its name is not a valid one")
	}
	if err != nil {
		return nil, subjectError("read checkpoint", checkpointOf(string(name)), ErrCorrupt, err.Error())
	}
	c.Name = string(name)
	return c, nil
}

// The encoding of a checkpoint, under its name, version 1:
//
//	version 1 · seq · commit id (32 raw bytes) · digest (32) · bytes · entries · time ns · message
const checkpointVersion = 1

func (c *Checkpoint) encode() []byte {
	b := binary.AppendUvarint([]byte{checkpointVersion}, c.Seq)
	for _, id := range [2]string{c.Commit, c.Digest} {
		raw, _ := hex.DecodeString(id)
		b = append(b, raw...)
	}
	b = binary.AppendUvarint(b, uint64(c.Bytes))
	b = binary.AppendUvarint(b, uint64(c.Entries))
	b = appendInt(b, c.Time.UnixNano())
	return appendText(b, c.Message)
}

// decodeCheckpoint is the inverse of encode.
func decodeCheckpoint(in []byte) (*Checkpoint, error) {
	d := &decoder{in: bytes.Clone(in)}
	if v := d.byte(); d.err == nil && v != checkpointVersion {
		return nil, errors.New("unknown version of a checkpoint")
	}
	c := &Checkpoint{Seq: d.uint()}
	id, digest := d.id(), d.id()
	c.Commit, c.Digest = hex.EncodeToString(id[:]), hex.EncodeToString(digest[:])
	c.Bytes, c.Entries = d.int63(), d.int63()
	c.Time = time.Unix(0, d.int()).UTC()
	c.Message = d.text(maxText)
	return c, d.end()
}
