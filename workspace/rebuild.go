package workspace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// repairBeside writes a new file from what the old one still has, repairs it,
// and puts it in the old one's place. Until the last rename nothing is changed;
// after it the old bytes are there under the name that is returned.
func repairBeside(k *checker, path string) (*checker, string, error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".vdisk-repair-*")
	if err != nil {
		return nil, "", fmt.Errorf("repair image: %w", err)
	}
	defer os.Remove(tmp.Name())
	im, err := openUnder(tmp)
	if err != nil {
		return nil, "", err
	}
	im.place = path
	defer im.Close()
	if err := rebuild(k, im); err != nil {
		return nil, "", err
	}
	after, err := inspect(k.ctx, tmp, k.o)
	if err != nil {
		return nil, "", err
	}
	if after.history.count == 0 {
		return nil, "", imageError("repair", ErrCorrupt, "no commit of it can be read, so nothing was changed")
	}
	if !after.identified() {
		return nil, "", errNoIdentity()
	}
	if after.plan.needed() {
		if err := im.update("repair", 0, after.plan.apply); err != nil {
			return nil, "", err
		}
		if after, err = inspect(k.ctx, tmp, k.o); err != nil {
			return nil, "", err
		}
	}
	k.tellLost(after)
	kept, err := takePlace(k, tmp, path)
	return after, kept, err
}

// tellLost adds to the second report what a damaged page may have taken along
// without a trace: commits before the oldest one, and names.
func (k *checker) tellLost(after *checker) {
	if oldest := after.history.oldest; k.lostIn[string(bucketCommits)] && oldest > 1 {
		after.findf(FindCommit, commitName(oldest-1), "It was lost with a damaged page, if the history ever reached back to it.")
	}
	if k.lostIn[""] || k.lostIn[string(bucketRefs)] {
		after.findf(FindCheckpoint, "checkpoints", "Names of checkpoints may have been lost with a damaged page; %d are left.", after.report.Checkpoints)
	}
}

// takePlace makes the new file durable and gives it the name of the old one.
func takePlace(k *checker, tmp *os.File, path string) (kept string, err error) {
	st, err := k.f.Stat()
	if err == nil {
		err = tmp.Chmod(st.Mode().Perm())
	}
	if err == nil {
		err = hostos.CopyOwner(tmp, k.f)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if err == nil {
		kept, err = keepOld(path, k.o.Clock())
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err == nil {
		err = hostos.SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return "", fmt.Errorf("repair image: %w", err)
	}
	return filepath.Base(kept), nil
}

// keepOld gives the damaged file a second name. Where there are no hard links
// it loses the first one, until the new file takes it.
func keepOld(path string, now time.Time) (string, error) {
	base := path + ".damaged-" + now.UTC().Format("20060102T150405Z")
	for i := 1; ; i++ {
		name := base
		if i > 1 {
			name = fmt.Sprintf("%s-%d", base, i)
		}
		err := os.Link(path, name)
		switch {
		case err == nil:
			return name, nil
		case errors.Is(err, os.ErrExist) && i < 100:
			continue
		}
		return name, reserveAndMove(path, name)
	}
}

// copyBatch is how many bytes one transaction of a rebuild writes.
const copyBatch = 16 << 20

// rebuilder copies entries into a new image.
type rebuilder struct {
	k    *checker
	im   *Image
	tx   *bolt.Tx
	size int
	last uint64 // highest chunk id

	side    *pages // by which two good entries with one key are told apart; nil: the first stays
	foreign bool   // a bucket leads to entries of another one
}

// rebuild fills an empty image with every entry of the old one: first what the
// pages lead to, a damaged value too, since nothing may vanish unseen; then
// what they lead to from the wrong bucket, and what lies on leaves that nothing
// leads to any more. An entry that makes sense in its bucket is never replaced
// by such a find.
func rebuild(k *checker, im *Image) (err error) {
	im.db.NoSync = true // all of it is made durable at once, at the end
	defer func() { im.db.NoSync = false }()
	b := &rebuilder{k: k, im: im}
	return guard("repair", func() error {
		defer b.rollback()
		for _, step := range []func() error{b.begin, b.makeBuckets, b.copyKnown, b.copyForeign, b.copyLost, b.finish} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *rebuilder) begin() (err error) {
	b.size = 0
	if b.tx, err = b.im.db.Begin(true); err != nil {
		return fmt.Errorf("repair image: %w", err)
	}
	return nil
}

func (b *rebuilder) rollback() {
	if b.tx != nil {
		_ = b.tx.Rollback()
	}
}

func (b *rebuilder) commit() error {
	tx := b.tx
	b.tx = nil
	err := tx.Commit()
	switch {
	case err != nil && (hostos.IsNoSpace(err) || b.im.full(spareBytes)):
		return imageError("repair", ErrNoSpace, "")
	case err != nil:
		return fmt.Errorf("repair image: %w", err)
	}
	return nil
}

func (b *rebuilder) makeBuckets() error {
	for _, name := range buckets {
		if _, err := b.tx.CreateBucket(name); err != nil {
			return fmt.Errorf("repair image: %w", err)
		}
	}
	return putMeta(b.tx, keyFormat, binary.AppendUvarint(nil, FormatVersion))
}

// put stores an entry, unless there is a better one.
func (b *rebuilder) put(bucket, key, stored []byte) error {
	if b.size > copyBatch {
		if err := b.commit(); err != nil {
			return err
		}
		if err := b.k.tick(); err != nil {
			return err
		}
		if err := b.begin(); err != nil {
			return err
		}
		if b.im.full(2 * copyBatch) {
			return imageError("repair", ErrNoSpace, "")
		}
	}
	t := b.tx.Bucket(bucket)
	t.FillPercent = 0.9
	if old := t.Get(key); old != nil && !b.better(bucket, key, stored, old) {
		return nil
	}
	if string(bucket) == string(bucketChunks) && len(key) == 8 {
		b.last = max(b.last, binary.BigEndian.Uint64(key))
	}
	b.size += len(key) + len(stored)
	if err := t.Put(append([]byte(nil), key...), append([]byte(nil), stored...)); err != nil {
		return fmt.Errorf("repair image: %w", err)
	}
	return nil
}

// better says whether the new one of two values takes the place of the old one:
// when only it makes sense, or when both do and it is the one that bbolt finds.
func (b *rebuilder) better(bucket, key, stored, old []byte) bool {
	switch {
	case bytes.Equal(stored, old), !b.belongs(bucket, key, stored):
		return false
	case !b.belongs(bucket, key, old):
		return true
	}
	return b.side != nil && bytes.Equal(b.side.find(b.k.buckets[string(bucket)], key), stored)
}

// copyKnown copies what each bucket leads to and what is its own. Each is read
// for itself: a page that two buckets lead to is looked at from both.
func (b *rebuilder) copyKnown() error {
	b.side = b.k.again()
	defer func() { b.side = nil }()
	for _, name := range buckets {
		err := b.k.walk(b.k.again(), name, func(key, stored []byte) error {
			if b.ownOf(name, key, stored) {
				return b.put(name, key, stored)
			}
			b.foreign = true
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ownOf says whether an entry that a bucket leads to is taken for one of it: it
// makes sense there, or it is damaged and makes sense nowhere.
func (b *rebuilder) ownOf(name, key, stored []byte) bool {
	return b.belongs(name, key, stored) || fits(name, key) && b.bucketOf(key, stored) == nil
}

// copyForeign takes what damaged pages led to from the wrong bucket. Such a
// page may as well be left over from before.
func (b *rebuilder) copyForeign() error {
	if !b.foreign {
		return nil
	}
	for _, name := range buckets {
		err := b.k.walk(b.k.again(), name, func(key, stored []byte) error {
			if b.ownOf(name, key, stored) {
				return nil
			}
			return b.adopt(key, stored, true)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// fits says whether a key may be one of a bucket.
func fits(bucket, key []byte) bool {
	switch string(bucket) {
	case string(bucketTree):
		_, err := keyToPath(key)
		return err == nil
	case string(bucketChunks):
		return len(key) == 8
	case string(bucketCommits):
		return len(key) == 8 || len(key) == 12
	case string(bucketByHash):
		return len(key) == 32
	}
	return true
}

// copyLost takes entries of which the bucket is not known. Of pages that may
// be left over from before, it takes only what does not change: chunks and
// commits, which are checked against their hashes and ids.
func (b *rebuilder) copyLost() error {
	p := b.k.pages // which knows what was reached
	err := p.lost(func(key, stored []byte) error { return b.adopt(key, stored, p.badFree) })
	if err != nil {
		return err
	}
	for name, stray := range b.k.buckets {
		if isOurs(name) {
			continue
		}
		if err := b.k.again().walk(stray, func(key, stored []byte) error { return b.adopt(key, stored, false) }); err != nil {
			return err
		}
	}
	return nil
}

func (b *rebuilder) adopt(key, stored []byte, stale bool) error {
	bucket := b.bucketOf(key, stored)
	if bucket == nil || stale && string(bucket) == string(bucketTree) {
		return nil
	}
	return b.put(bucket, key, stored)
}

// bucketOf tells by its form to which bucket an entry belongs; nil when it
// does not tell. The index is made anew, and a name or a mark that nothing leads
// to may have been taken away.
func (b *rebuilder) bucketOf(key, stored []byte) []byte {
	for _, name := range [][]byte{bucketTree, bucketCommits, bucketChunks} {
		if b.belongs(name, key, stored) {
			return name
		}
	}
	return nil
}

// belongs says whether an entry makes sense in a bucket: its checksum holds, and
// it decodes as what the bucket keeps.
func (b *rebuilder) belongs(bucket, key, stored []byte) bool {
	value, err := unseal(key, stored)
	if err != nil || !fits(bucket, key) {
		return false
	}
	switch string(bucket) {
	case string(bucketTree):
		_, err = decodeNode(value)
	case string(bucketChunks):
		_, err = checkChunk(&b.im.packer, &chunkInfo{id: binary.BigEndian.Uint64(key)}, stored, nil)
	case string(bucketCommits):
		return isRecordPart(key, value)
	case string(bucketByHash):
		return len(value) == 8
	case string(bucketRefs):
		_, err = openCheckpoint(key, stored)
	case string(bucketPending):
		return len(key) > 0 && (key[0] != pendingStage || len(key) == 1+8+32 && len(value) == 8)
	case string(bucketMeta):
		err = new(checker).metaRecord(key, value)
	}
	return err == nil
}

// isRecordPart says whether a value is one of the commit that its key names.
func isRecordPart(key, value []byte) bool {
	d := &decoder{in: value}
	var r record
	if len(key) == 8 {
		if r.decodeHead(d); r.seq != binary.BigEndian.Uint64(key) {
			return false
		}
	}
	r.decodeChanges(d)
	return d.end() == nil && (len(key) == 8 || len(r.changes) > 0)
}

// finish keeps the ids of chunks rising, and makes all of it durable.
func (b *rebuilder) finish() error {
	last := max(b.last, b.k.buckets[string(bucketChunks)].sequence)
	if err := b.tx.Bucket(bucketChunks).SetSequence(last); err != nil {
		return fmt.Errorf("repair image: %w", err)
	}
	if err := b.commit(); err != nil {
		return err
	}
	if err := b.im.db.Sync(); err != nil {
		return fmt.Errorf("repair image: %w", err)
	}
	return nil
}
