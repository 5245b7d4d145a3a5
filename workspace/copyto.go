package workspace

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// CopyOptions say what copy of an image to make. The zero value is the whole of it.
type CopyOptions struct {
	Seq   uint64  // the commit that is to be the head of the copy; 0 is the newest
	Fresh bool    // another uuid, no fence: a disk of its own, and not the same one elsewhere
	Label *string // of the copy, at most 1 KiB; nil keeps it

	Mode os.FileMode // of the file; 0 is 0600
	File *os.File    // an open, empty file to write, instead of a new one at the path; CopyTo owns it from the call on

	// Progress is told how many bytes were copied, of at most how many; at the end
	// the two are equal.
	Progress func(done, total int64)
}

// CopyTo writes a compacted copy of the image: the tree, the history up to it, the
// checkpoints in that, and the contents that these need, nothing else. What was
// committed behind Seq is not in it. The copy is under its name when it is whole and
// durable, or not at all; a crash may leave another name, ".vdisk-new-*", and in a
// File one that is no image.
//
// Chunks keep their ids, commits theirs, and every path its version: the digests of
// the two trees are equal. A Fresh one has the history of the image as its own, and
// only its uuid, its creation time and its fence are others. Everything is checked as
// it is copied, contents against their hashes: a copy has no damage of its source.
//
// It holds one read transaction, so that nothing it needs can be collected meanwhile.
// Changes go on; those that come later are not in the copy, and what they replace is
// free again when the copy is done. It takes at most 64 MiB of memory, and beyond
// that a byte or so for each chunk.
//
// Errors: ErrExists; ErrNotFound when there is no commit Seq or the history no longer
// reaches back to it; ErrTooLarge for the label; ErrNoSpace; ErrCorrupt; the cause of ctx.
func (im *Image) CopyTo(ctx context.Context, path string, o CopyOptions) (Info, error) {
	if o.Label != nil && len(*o.Label) > maxLabel {
		closeFile(o.File)
		return Info{}, imageError("copy", ErrTooLarge, "its label is longer than 1 KiB")
	}
	if o.File != nil {
		return im.copyIn(ctx, &o)
	}
	if _, err := os.Lstat(path); err == nil {
		return Info{}, imageError("copy", ErrExists, "")
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".vdisk-new-*")
	if err != nil {
		return Info{}, createError(err)
	}
	defer os.Remove(tmp.Name())
	hostos.Failpoint("copy.temp")
	return im.copyFile(ctx, tmp, &o, func(to *Image) { to.place, to.reserve = path, im.reserve }, func() error { return publish(tmp, path, o.Mode) })
}

func closeFile(f *os.File) {
	if f != nil {
		f.Close()
	}
}

// copyIn writes the copy into a file that the caller opened; it is empty again when
// that fails.
func (im *Image) copyIn(ctx context.Context, o *CopyOptions) (Info, error) {
	if st, err := o.File.Stat(); err != nil || st.Size() > 0 {
		o.File.Close()
		return Info{}, imageError("copy", ErrExists, "")
	}
	place := fmt.Sprintf("/proc/self/fd/%d", o.File.Fd())
	return im.copyFile(ctx, o.File, o, func(to *Image) { to.place = place }, o.File.Sync)
}

// copyFile makes the copy in f, which it closes. place tells the copy where it is, and
// publish makes it last.
func (im *Image) copyFile(ctx context.Context, f *os.File, o *CopyOptions, place func(*Image), publish func() error) (Info, error) {
	to, err := openUnder(f)
	if err != nil {
		return Info{}, err
	}
	defer to.Close()
	place(to)
	to.db.AllocSize = copyGrowStep
	c := &copier{im: im, ctx: ctx, o: o, to: to}
	err = im.view("copy", func(tx *bolt.Tx) error {
		c.from = tx
		return c.run()
	})
	var info Info
	if err == nil {
		info, err = to.Info()
	}
	if err == nil {
		err = publish()
	}
	if err != nil {
		_ = f.Truncate(0) // it has no name, or one that the caller gave it
		return Info{}, err
	}
	return info, nil
}

// copyGrowStep is by how much the file of a copy grows at a time: each step costs an
// fsync. What is too much is cut off at the end.
const copyGrowStep = 32 << 20

// copier is one CopyTo at work.
type copier struct {
	im   *Image
	ctx  context.Context
	o    *CopyOptions
	from *bolt.Tx

	to   *Image
	tx   *bolt.Tx // of to; nil between two
	size int      // put in it

	newest      *head // of the image
	head        *head // of the copy
	marks       marker
	done, total int64
}

// run fills the copy. The records about it come last and by themselves: before they
// are there the file is no image.
func (c *copier) run() error {
	defer c.rollback()
	c.to.db.NoSync = true // all of it is made durable at once, before those records
	for _, step := range []func() error{
		c.look, c.begin, c.makeBuckets, c.copyTree, c.rewind, c.copyCommits, c.copyCheckpoints, c.commit,
		c.mark, c.begin, c.copyChunks, c.copyIndex, c.commit, c.finish,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// look finds the commit that is to be the head.
func (c *copier) look() (err error) {
	if c.newest, err = readHead(c.from); err != nil {
		return err
	}
	seq := c.o.Seq
	if seq == 0 {
		seq = c.newest.seq
	}
	if _, err := checkVersion(c.from, "copy", seq); err != nil {
		return err
	}
	r, err := recordHead(c.from, seq)
	switch {
	case err != nil:
		return err
	case r == nil:
		return notReached("copy", seq)
	}
	c.head = r.head()
	if seq == c.newest.seq && *c.head != *c.newest {
		return imageError("copy", ErrCorrupt, "its newest commit is not the one of its head record")
	}
	c.marks = marker{im: c.im, lists: c.from}
	c.total = c.from.Size()
	return nil
}

func (c *copier) begin() error {
	if c.to.full(copyTxBytes + spareBytes + c.to.reserve) {
		return imageError("copy", ErrNoSpace, "")
	}
	if err := c.tick(); err != nil {
		return err
	}
	tx, err := c.to.db.Begin(true)
	if err != nil {
		return fmt.Errorf("copy image: %w", err)
	}
	c.tx, c.size = tx, 0
	return nil
}

// tick is called now and then.
func (c *copier) tick() error {
	if err := context.Cause(c.ctx); err != nil {
		return fmt.Errorf("copy image: %w", err)
	}
	if c.o.Progress != nil {
		c.o.Progress(min(c.done, c.total), c.total)
	}
	return nil
}

func (c *copier) rollback() {
	if c.tx != nil {
		_ = c.tx.Rollback()
		c.tx = nil
	}
}

func (c *copier) commit() error {
	err := c.tx.Commit()
	c.tx = nil
	switch {
	case err != nil && (hostos.IsNoSpace(err) || c.to.full(spareBytes)):
		return imageError("copy", ErrNoSpace, "")
	case err != nil:
		return fmt.Errorf("copy image: %w", err)
	}
	hostos.Failpoint("copy.batch")
	return nil
}

// wrote begins a new transaction when the present one is large.
func (c *copier) wrote(n int) error {
	c.size += n
	if c.size < copyTxBytes {
		return nil
	}
	if err := c.commit(); err != nil {
		return err
	}
	return c.begin()
}

// copyTxBytes is how much one transaction writes: bbolt needs about three times that
// in memory.
const copyTxBytes = 4 << 20

// put stores an entry of the image as it is. Entries come in the order of their keys.
func (c *copier) put(bucket, key, stored []byte) error {
	b := c.tx.Bucket(bucket)
	b.FillPercent = 0.95
	// bbolt keeps the value until the transaction ends: not one that may fault.
	if err := b.Put(key, bytes.Clone(stored)); err != nil {
		return fmt.Errorf("copy image: %w", err)
	}
	n := len(key) + len(stored)
	c.done += int64(n)
	c.im.resident.read(c.from, n)
	return c.wrote(n)
}

func (c *copier) makeBuckets() error {
	for _, name := range buckets {
		if _, err := c.tx.CreateBucket(name); err != nil {
			return fmt.Errorf("copy image: %w", err)
		}
	}
	return nil
}

func (c *copier) copyTree() error {
	return c.from.Bucket(bucketTree).ForEach(func(key, stored []byte) error {
		if _, err := openNode(key, stored); err != nil {
			return err
		}
		return c.put(bucketTree, key, stored)
	})
}

// rewind takes out of the copied tree what later commits changed, the newest first.
func (c *copier) rewind() error {
	for seq := c.newest.seq; seq > c.head.seq; seq-- {
		var failed error // scanRecord takes any error for damage
		r, err := scanRecord(c.from, seq, func(change rawChange) error {
			e, err := change.effect()
			if err == nil && failed == nil {
				failed = c.takeBack(&e, len(change.path)+len(change.before))
			}
			return err
		})
		switch {
		case failed != nil:
			return failed
		case err != nil:
			return err
		case r == nil:
			return notReached("copy", c.head.seq)
		}
		if seq%1024 == 0 {
			if err := c.tick(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *copier) takeBack(e *Effect, size int) error {
	t := tree{b: c.tx.Bucket(bucketTree)}
	c.to.resident.touch(c.tx)
	put := func() error { return t.put(e.Path, e.Before) }
	if e.Before == nil {
		put = func() error { return t.delete(e.Path) }
	}
	if err := put(); err != nil {
		return err
	}
	return c.wrote(size)
}

func (c *copier) copyCommits() error {
	cursor := c.from.Bucket(bucketCommits).Cursor()
	for k, v := cursor.First(); k != nil; k, v = cursor.Next() {
		seq, err := partOf(k)
		if err != nil {
			return err
		}
		if seq > c.head.seq {
			return nil
		}
		if _, err := unseal(k, v); err != nil {
			return recordError(seq, err)
		}
		if err := c.put(bucketCommits, k, v); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) copyCheckpoints() error {
	return c.from.Bucket(bucketRefs).ForEach(func(name, stored []byte) error {
		p, err := openCheckpoint(name, stored)
		if err != nil || p.Seq > c.head.seq {
			return err
		}
		return c.put(bucketRefs, name, stored)
	})
}

// mark finds the chunks that the copied tree and the copied commits need, and counts
// what the tree holds.
func (c *copier) mark() error {
	var bytes, entries int64
	err := c.to.view("copy", func(tx *bolt.Tx) error {
		err := tx.Bucket(bucketTree).ForEach(func(key, stored []byte) error {
			n, err := openNode(key, stored)
			if err != nil {
				return err
			}
			bytes, entries = bytes+n.Size, entries+1
			c.to.resident.read(tx, len(stored))
			return c.marks.node(n)
		})
		if err != nil {
			return err
		}
		return tx.Bucket(bucketCommits).ForEach(func(key, stored []byte) error {
			c.to.resident.read(tx, len(stored))
			return c.marks.recordPart(key, stored)
		})
	})
	if err == nil && (bytes != c.head.bytes || entries != c.head.entries) {
		err = imageError("copy", ErrCorrupt, fmt.Sprintf("its commits lead back to a tree with other totals than v%d had", c.head.seq))
	}
	return err
}

// copyChunks copies what is needed, each checked against its hash.
func (c *copier) copyChunks() error {
	var plain []byte
	found := int64(0)
	cursor := c.from.Bucket(bucketChunks).Cursor()
	for k, v := cursor.First(); k != nil; k, v = cursor.Next() {
		if len(k) != 8 || !c.marks.needs.has(keyUint(k)) {
			continue
		}
		info := chunkInfo{id: keyUint(k)}
		var err error
		if plain, err = checkChunk(&c.im.packer, &info, v, plain); err != nil {
			return imageError("copy", ErrCorrupt, fmt.Sprintf("its chunk %d: %v", info.id, err))
		}
		if err := c.put(bucketChunks, k, v); err != nil {
			return err
		}
		found++
		c.im.resident.touch(c.from)
		if id := indexed(c.from, info.sum); id == 0 || !c.marks.needs.has(id) {
			if err := c.to.putHash(c.tx, info.sum, info.id); err != nil {
				return err
			}
		}
	}
	if missing := c.marks.needs.count - found; missing > 0 {
		return imageError("copy", ErrCorrupt, fmt.Sprintf("%d chunks that it needs are missing", missing))
	}
	return c.tx.Bucket(bucketChunks).SetSequence(lastChunkID(c.from))
}

// copyIndex copies those entries of the index that lead to a chunk of the copy.
func (c *copier) copyIndex() error {
	return c.from.Bucket(bucketByHash).ForEach(func(key, stored []byte) error {
		if len(key) != 32 {
			return nil
		}
		c.im.resident.touch(c.from)
		if id := indexed(c.from, [32]byte(key)); id == 0 || !c.marks.needs.has(id) {
			return nil
		}
		return c.put(bucketByHash, key, stored)
	})
}

// finish makes the contents durable, and then the file an image.
func (c *copier) finish() error {
	if err := c.to.db.Sync(); err != nil {
		return createError(err)
	}
	hostos.Failpoint("copy.filled")
	c.to.db.NoSync = false
	if err := c.describe(); err != nil {
		return err
	}
	if err := c.begin(); err != nil {
		return err
	}
	fence, err := metaValue(c.from, keyFence, decodeFence)
	if err != nil {
		return err
	}
	if c.o.Fresh {
		fence = Fence{}
	}
	for _, m := range []struct{ key, value []byte }{
		{keyFormat, binary.AppendUvarint(nil, FormatVersion)},
		{keyIdentity, c.to.identity.encode()},
		{keyHead, c.head.encode()},
		{keyFence, fence.encode()},
	} {
		if err := putMeta(c.tx, m.key, m.value); err != nil {
			return fmt.Errorf("copy image: %w", err)
		}
	}
	if err := c.commit(); err != nil {
		return err
	}
	if err := c.trim(); err != nil {
		return err
	}
	if c.o.Progress != nil {
		c.o.Progress(c.done, c.done)
	}
	return nil
}

// describe says what the copy is.
func (c *copier) describe() error {
	id, err := metaValue(c.from, keyIdentity, decodeIdentity)
	if err != nil {
		return err
	}
	if c.o.Fresh {
		fresh := newIdentity(&CreateOptions{}, c.im.now())
		id.uuid, id.created = fresh.uuid, fresh.created
	}
	if c.o.Label != nil {
		id.label = *c.o.Label
	}
	c.to.identity = id
	return nil
}

// trim cuts off the room in which the file could have grown.
func (c *copier) trim() error {
	var size int64
	if err := c.to.view("copy", func(tx *bolt.Tx) error { size = tx.Size(); return nil }); err != nil {
		return err
	}
	if st, err := c.to.file.Stat(); err != nil || st.Size() <= size {
		return err
	}
	if err := c.to.file.Truncate(size); err != nil {
		return createError(err)
	}
	return nil
}
