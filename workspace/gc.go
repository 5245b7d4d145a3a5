package workspace

import (
	"bytes"
	"context"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// GCOptions say what of the history stays. The zero value keeps what checkpoints need.
type GCOptions struct {
	// KeepSince keeps the commits from the first one on that was made then or later, by
	// the clock of when they were made. KeepCommits keeps so many of the newest. With
	// both, the one counts that keeps more.
	KeepSince   time.Time
	KeepCommits uint64

	// Budget is how many bytes the history may take: the oldest commits go until it
	// takes no more, also of those that the rules above would keep. With it and no such
	// rule, none goes that need not. 0 is no limit.
	Budget int64

	DryRun bool // only tell; also what is open for reading only

	// Admit is asked before anything is changed, if anything would be, with what would
	// come of it. Its error ends the GC and is returned as it is.
	Admit func(GCResult) error

	// Progress is told how many bytes were freed, of how many.
	Progress func(done, total int64)
}

// GCResult is what a GC did, or would do.
type GCResult struct {
	Commits int64 // that were dropped
	Chunks  int64 // that were freed
	Bytes   int64 // that those two took in the file
	Sizes   Sizes // as they are then; free pages as they were before
}

// none says that there was nothing to do.
func (r *GCResult) none() bool { return r.Commits == 0 && r.Chunks == 0 }

// GC drops the oldest commits, up to the first that a checkpoint or a rule needs, and
// frees the chunks that nothing needs any more. Since the past is read backwards from
// the head, a checkpoint needs its commit and all behind it. The newest commit always
// stays, as do those behind the base of a script that runs, see Hold. The file does not
// become smaller: its free pages are written to before it grows, and CopyTo makes a
// file without them.
//
// Commits go on meanwhile. It holds one read transaction while it finds out what is
// needed, about a second for a million paths and commits, and takes memory for a byte
// or two for each chunk. What it then changes it changes in steps of at most 8 MiB or
// some thousand entries. A crash between two leaves a whole image, and to the next GC
// what is left to do. One GC runs at a time; others wait, as do Checkpoint and Sizes.
//
// A version that was dropped is ErrNotFound ("no longer reaches back"), also to a File
// that was opened on it.
//
// Errors: ErrReadOnly; ErrNoSpace; ErrCorrupt, also when what is needed cannot be told,
// and nothing was changed then; the error of Admit; the cause of ctx, after some steps.
func (im *Image) GC(ctx context.Context, o GCOptions) (GCResult, error) {
	if err := im.writable("gc"); err != nil && !o.DryRun {
		return GCResult{}, err
	}
	done, err := im.alone(ctx)
	if err != nil {
		return GCResult{}, err
	}
	defer done()
	c := &collector{im: im, ctx: ctx, o: &o}
	defer c.end()
	if err := c.survey(); err != nil || o.DryRun {
		return c.result, err
	}
	c.decide()
	if o.Admit != nil && !c.result.none() {
		if err := o.Admit(c.result); err != nil {
			return GCResult{}, err
		}
	}
	for _, step := range []func() error{c.dropCommits, c.indexOthers, c.sweep} {
		if err := step(); err != nil {
			return c.done(), err
		}
	}
	im.upkeep.collected(c.sizes, im.historyBudget())
	return c.done(), nil
}

// collector is one GC at work.
type collector struct {
	im  *Image
	ctx context.Context
	o   *GCOptions

	tx      *bolt.Tx // of the survey
	began   *head
	must    uint64 // the oldest commit that stays whatever the budget is
	rule    uint64 // the oldest that stays by the rules
	pinned  uint64 // the oldest that a checkpoint needs
	floor   uint64 // the oldest that stays
	marks   marker
	loose   []uint64 // chunks that are needed and not what the index has for their hash
	unused  idSet    // chunks that nothing needs
	running collection

	sizes  Sizes
	result GCResult // as planned

	commits, chunks, bytes int64 // done
}

// survey finds out what is needed, as of one commit.
func (c *collector) survey() error {
	return guard("gc", func() error {
		if err := c.begin(); err != nil {
			return explain("gc", err)
		}
		defer c.tx.Rollback()
		for _, step := range []func() error{c.bounds, c.markTree, c.markHistory, c.findUnused, c.countDropped} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	})
}

// begin takes the state that is looked at, and has later commits note what they use.
func (c *collector) begin() (err error) {
	c.im.writing.Lock()
	defer c.im.writing.Unlock()
	if c.tx, err = c.im.begin(); err != nil {
		return err
	}
	c.sizes.Free = c.im.freePages() * pageSize
	if st, err := c.im.file.Stat(); err == nil {
		c.sizes.File = st.Size()
		c.sizes.Free += max(st.Size()-c.tx.Size(), 0) // pages that were never used
	}
	if !c.o.DryRun {
		c.im.upkeep.begin()
		c.im.sharing.Lock()
		defer c.im.sharing.Unlock()
		c.im.gc = &c.running
	}
	return nil
}

// end lets stages and commits use again whatever there is.
func (c *collector) end() {
	c.im.writing.Lock()
	defer c.im.writing.Unlock()
	c.im.sharing.Lock()
	defer c.im.sharing.Unlock()
	c.im.gc = nil
}

// bounds says which commits stay whatever they need.
func (c *collector) bounds() (err error) {
	if c.began, err = c.im.headFor(c.tx); err != nil {
		return err
	}
	head := c.began.seq
	if c.pinned, err = oldestCheckpoint(c.tx, head+1); err != nil {
		return err
	}
	c.must = c.im.sharing.oldest(min(head, c.pinned))
	c.sizes.Budget = c.im.historyBudget()
	c.marks = marker{im: c.im, lists: c.tx, count: true}
	c.rule = head
	switch {
	case c.o.KeepCommits > 0:
		c.rule = head - min(head, c.o.KeepCommits) + 1
	case c.o.KeepSince.IsZero() && c.o.Budget > 0:
		c.rule = 1
	}
	if !c.o.KeepSince.IsZero() {
		return c.boundSince()
	}
	return nil
}

// boundSince finds the first commit that is not older than the rule. The clock may have
// been set back: those behind it stay, whatever their times.
func (c *collector) boundSince() error {
	for seq := c.oldest(); seq > 0 && seq < c.rule; seq++ {
		r, err := recordHead(c.tx, seq)
		if err != nil || r == nil {
			return err
		}
		if !r.time.Before(c.o.KeepSince) {
			c.rule = seq
		}
		if err := c.tick(seq); err != nil {
			return err
		}
	}
	return nil
}

// oldest is the oldest commit that is there; 0 for none.
func (c *collector) oldest() uint64 {
	k, _ := c.tx.Bucket(bucketCommits).Cursor().First()
	if len(k) < 8 {
		return 0
	}
	return keyUint(k)
}

// tick is called for every item.
func (c *collector) tick(n uint64) error {
	if n%1024 != 0 || c.ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("gc: %w", context.Cause(c.ctx))
}

func (c *collector) markTree() error {
	n := uint64(0)
	err := c.tx.Bucket(bucketTree).ForEach(func(key, stored []byte) error {
		node, err := openNode(key, stored)
		if err != nil {
			return err
		}
		c.sizes.Head += entrySize(key, stored)
		c.im.resident.read(c.tx, len(stored))
		c.marks.trail = c.marks.trail[:0]
		if err := c.marks.node(node); err != nil {
			return err
		}
		n++
		return c.tick(n)
	})
	c.sizes.Head += c.marks.bytes
	c.marks.bytes = 0
	return err
}

// markHistory marks what the commits need, the newest first, so that it is known of each
// what the history takes that ends with it. The first that need not stay ends it.
func (c *collector) markHistory() error {
	for seq := c.began.seq; seq > 0 && (seq >= c.must || seq >= c.rule); seq-- {
		c.marks.trail = c.marks.trail[:0]
		size, err := c.markRecord(seq)
		if err != nil {
			return err
		}
		if size == 0 {
			return c.noRecord(seq)
		}
		if seq < c.must && c.o.Budget > 0 && c.sizes.History+c.marks.bytes+size > c.o.Budget {
			c.marks.takeBack()
			break
		}
		c.sizes.History += size
		c.sizes.Commits++
		c.sizes.Oldest = seq
		if seq >= c.pinned {
			c.sizes.Pinned = c.sizes.History + c.marks.bytes
		}
		if err := c.tick(seq); err != nil {
			return err
		}
	}
	c.sizes.History += c.marks.bytes
	c.floor = c.sizes.Oldest
	return nil
}

// markRecord returns what the record takes; 0 when there is none.
func (c *collector) markRecord(seq uint64) (size int64, err error) {
	first := uintKey(seq)
	cursor := c.tx.Bucket(bucketCommits).Cursor()
	for k, v := cursor.Seek(first); k != nil && bytes.HasPrefix(k, first); k, v = cursor.Next() {
		size += entrySize(k, v)
		c.im.resident.read(c.tx, len(v))
		if err := c.marks.recordPart(k, v); err != nil {
			return 0, err
		}
	}
	return size, nil
}

// noRecord ends the history where it has been cut before, and refuses one with a gap.
func (c *collector) noRecord(seq uint64) error {
	before, err := commitBefore(c.tx, seq)
	if err == nil && (before > 0 || seq == c.began.seq) {
		err = imageError("gc", ErrCorrupt, fmt.Sprintf("its commit %d is missing", seq))
	}
	c.sizes.History += c.marks.bytes
	c.floor = c.sizes.Oldest
	return err
}

// findUnused finds the chunks that nothing needs.
func (c *collector) findUnused() error {
	indexed, pending := c.indexed(), c.pending()
	n := uint64(0)
	return c.tx.Bucket(bucketChunks).ForEach(func(key, stored []byte) error {
		c.im.resident.touch(c.tx)
		if len(key) != 8 {
			return nil
		}
		id := keyUint(key)
		switch {
		case c.marks.needs.has(id):
			if !indexed.has(id) {
				c.loose = append(c.loose, id)
			}
		case pending.has(id):
			c.sizes.Pending += entrySize(key, stored)
		default:
			c.unused.add(id)
			c.sizes.Unused += entrySize(key, stored)
		}
		n++
		return c.tick(n)
	})
}

// indexed are the chunks that the index leads to.
func (c *collector) indexed() (set idSet) {
	cursor := c.tx.Bucket(bucketByHash).Cursor()
	for k, v := cursor.First(); k != nil; k, v = cursor.Next() {
		c.im.resident.read(c.tx, len(k)+len(v))
		if value, err := unseal(k, v); err == nil && len(value) == 8 {
			set.add(keyUint(value))
		}
	}
	return set
}

func (c *collector) pending() (set idSet) {
	cursor := c.tx.Bucket(bucketPending).Cursor()
	for k, v := cursor.First(); k != nil; k, v = cursor.Next() {
		if value, err := unseal(k, v); err == nil && len(value) == 8 {
			set.add(keyUint(value))
		}
	}
	return set
}

// countDropped says what is going to be done.
func (c *collector) countDropped() error {
	r := &c.result
	cursor := c.tx.Bucket(bucketCommits).Cursor()
	for k, v := cursor.First(); len(k) >= 8 && keyUint(k) < c.floor; k, v = cursor.Next() {
		if r.Bytes += entrySize(k, v); len(k) == 8 {
			r.Commits++
		}
		c.im.resident.touch(c.tx)
		if err := c.tick(uint64(r.Commits)); err != nil {
			return err
		}
	}
	r.Chunks = c.unused.count
	r.Bytes += c.sizes.Unused
	r.Sizes = c.sizes
	r.Sizes.Unused = 0
	return nil
}

// decide fixes what goes: nothing that a commit began to use since the survey, or that a
// stage refers to.
func (c *collector) decide() {
	c.im.writing.Lock()
	defer c.im.writing.Unlock()
	c.im.sharing.Lock()
	defer c.im.sharing.Unlock()
	for id := range c.running.revived.sorted() {
		c.unused.remove(id)
	}
	c.im.sharing.alive(func(s *Stage) {
		for id := range s.shares.sorted() {
			c.unused.remove(id)
		}
	})
	c.result.Chunks = c.unused.count
	c.running.doomed, c.running.decided = c.unused, true
	hostos.Failpoint("gc.decided")
}

// gcBatch is how many entries one update of a GC takes away, and gcBatchBytes how much
// it reads for that.
const (
	gcBatch      = 2048
	gcBatchBytes = 8 << 20
)

// dropCommits drops the records below the floor, the oldest first and each as a whole,
// so that what is left is always a history without a gap.
func (c *collector) dropCommits() error {
	for more := true; more; {
		if err := c.tick(0); err != nil {
			return err
		}
		n := int64(0)
		size := int64(0)
		err := c.im.update("gc", 0, func(tx *bolt.Tx) error {
			n, size, more = 0, 0, false
			b := tx.Bucket(bucketCommits)
			var keys [][]byte
			cursor := b.Cursor()
			for k, v := cursor.First(); len(k) >= 8 && keyUint(k) < c.floor; k, v = cursor.Next() {
				if len(k) == 8 {
					if more = len(keys) >= gcBatch; more {
						break
					}
					n++
				}
				keys = append(keys, bytes.Clone(k))
				size += entrySize(k, v)
			}
			for _, k := range keys {
				if err := b.Delete(k); err != nil {
					return fmt.Errorf("gc: %w", err)
				}
			}
			hostos.Failpoint("gc.dropped")
			return nil
		})
		if err != nil {
			return err
		}
		c.commits, c.bytes = c.commits+n, c.bytes+size
		c.progress()
	}
	return nil
}

// indexOthers has the index lead to chunks that stay, where it leads to one with the
// same bytes that goes.
func (c *collector) indexOthers() error {
	for len(c.loose) > 0 {
		batch := c.loose[:min(len(c.loose), gcBatch)]
		err := c.im.update("gc", 0, func(tx *bolt.Tx) error {
			for _, id := range batch {
				stored := tx.Bucket(bucketChunks).Get(uintKey(id))
				if _, err := unseal(uintKey(id), stored); err != nil {
					continue
				}
				_, sum, err := chunkFront(stored)
				if err == nil {
					err = c.im.putHash(tx, sum, id)
				}
				if err != nil {
					return err
				}
			}
			hostos.Failpoint("gc.indexed")
			return nil
		})
		if err != nil {
			return err
		}
		c.loose = c.loose[len(batch):]
	}
	return nil
}

// sweep frees the chunks that go, each with its entry in the index.
func (c *collector) sweep() error {
	ids := make([]uint64, 0, gcBatch)
	for id := range c.running.doomed.sorted() {
		if ids = append(ids, id); len(ids) < gcBatch {
			continue
		}
		if err := c.free(ids); err != nil {
			return err
		}
		ids = ids[:0]
	}
	return c.free(ids)
}

// free frees some chunks, in as many updates as that takes.
func (c *collector) free(ids []uint64) error {
	for len(ids) > 0 {
		if err := c.tick(0); err != nil {
			return err
		}
		var seen int
		var n, size int64
		err := c.im.update("gc", 0, func(tx *bolt.Tx) error {
			seen, n, size = 0, 0, 0
			for _, id := range ids {
				if size >= gcBatchBytes {
					break
				}
				seen++
				freed, err := c.im.freeChunk(tx, id)
				if err != nil {
					return err
				}
				if size += freed; freed > 0 {
					n++
				}
			}
			hostos.Failpoint("gc.freed")
			return nil
		})
		if err != nil {
			return err
		}
		c.chunks, c.bytes = c.chunks+n, c.bytes+size
		c.progress()
		ids = ids[seen:]
	}
	return nil
}

// freeChunk takes a chunk and its entry in the index away, and returns what it took. One
// that is damaged stays: which entry is its own is not known.
func (im *Image) freeChunk(tx *bolt.Tx, id uint64) (size int64, err error) {
	key := uintKey(id)
	stored := tx.Bucket(bucketChunks).Get(key)
	if _, err := unseal(key, stored); err != nil {
		return 0, nil
	}
	_, sum, err := chunkFront(stored)
	if err != nil {
		return 0, nil
	}
	size = entrySize(key, stored)
	im.resident.read(tx, len(stored))
	if hashed(tx, sum) == id {
		if err := tx.Bucket(bucketByHash).Delete(sum[:]); err != nil {
			return 0, fmt.Errorf("gc: %w", err)
		}
	}
	if err := tx.Bucket(bucketChunks).Delete(key); err != nil {
		return 0, fmt.Errorf("gc: %w", err)
	}
	return size, nil
}

func (c *collector) progress() {
	if c.o.Progress != nil {
		c.o.Progress(min(c.bytes, c.result.Bytes), c.result.Bytes)
	}
}

// done is the result as far as it came.
func (c *collector) done() GCResult {
	r := c.result
	r.Commits, r.Chunks, r.Bytes = c.commits, c.chunks, c.bytes
	return r
}
