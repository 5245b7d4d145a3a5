package workspace

import (
	"context"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// Sizes say what takes the room in an image, in bytes as stored. What the database
// itself needs, some percent, is in none of them but File.
type Sizes struct {
	Head    int64 // the tree as it is, with its contents
	History int64 // the records of the commits, and contents that only older versions have
	Pinned  int64 // of History, what checkpoints hold
	Budget  int64 // what History may take
	Pending int64 // contents whose commit has not come
	Unused  int64 // contents that nothing refers to any more
	Free    int64 // free pages of the file, which are written to before it grows
	File    int64 // length of the file

	Commits int64  // in the history
	Oldest  uint64 // the oldest of them
}

// Sizes looks at every path and every commit: about a second for a million. It holds
// one read transaction, waits for a GC that runs, and takes memory for about a byte for
// each chunk.
//
// Errors: ErrCorrupt; the cause of ctx.
func (im *Image) Sizes(ctx context.Context) (Sizes, error) {
	done, err := im.alone(ctx)
	if err != nil {
		return Sizes{}, err
	}
	defer done()
	return im.sizes(ctx)
}

// alone waits until no other work of this kind is done.
func (im *Image) alone(ctx context.Context) (done func(), err error) {
	select {
	case im.collecting <- struct{}{}:
		return func() { <-im.collecting }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("collect: %w", context.Cause(ctx))
	}
}

func (im *Image) sizes(ctx context.Context) (Sizes, error) {
	c := &collector{im: im, ctx: ctx, o: &GCOptions{KeepCommits: 1<<64 - 1, DryRun: true}}
	if err := c.survey(); err != nil {
		return Sizes{}, err
	}
	return c.sizes, nil
}

// historyBudget is what the history may take.
func (im *Image) historyBudget() int64 {
	if im.budget > 0 {
		return im.budget
	}
	return im.identity.quotaBytes
}

// freePages counts the pages that the list of free pages has. No update runs meanwhile.
func (im *Image) freePages() int64 {
	h, err := readHeader(im.file)
	if err != nil {
		return 0
	}
	st, err := im.file.Stat()
	if err != nil {
		return 0
	}
	p := newPages(im.file, st.Size(), h, func(pageFault) {})
	p.freeList()
	return p.free.count()
}

// checkRoom refuses a checkpoint that might not be kept within the budget of the
// history: when everything that is on the disk now has been replaced, the history that
// checkpoints hold is what it is now and all of that.
func (im *Image) checkRoom(ctx context.Context) error {
	budget := im.historyBudget()
	if st, err := im.file.Stat(); err == nil && st.Size() <= budget {
		return nil // it is not even that large with everything in it
	}
	s, err := im.sizes(ctx)
	if err != nil || s.Pinned+s.Head <= budget {
		return err
	}
	return imageError("checkpoint", ErrQuota, fmt.Sprintf(
		"of the %d bytes that its history may take, checkpoints hold %d, and the disk as it is needs %d more; dropping an older checkpoint makes room",
		budget, s.Pinned, s.Head))
}

// oldestCheckpoint is the oldest commit that a checkpoint names; most when none does.
func oldestCheckpoint(tx *bolt.Tx, most uint64) (uint64, error) {
	err := tx.Bucket(bucketRefs).ForEach(func(name, stored []byte) error {
		c, err := openCheckpoint(name, stored)
		if err == nil {
			most = min(most, c.Seq)
		}
		return err
	})
	return most, err
}
