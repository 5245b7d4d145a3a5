package workspace

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Txn is everything a commit needs: who asks, what must hold, what changes.
type Txn struct {
	Call, Actor, Message string // at most 64 KiB each

	// Fence is that of the lease under which the commit is made. One below
	// the highest seen, or of another install, is ErrFenced; a higher one is
	// remembered. Zero is no lease: ErrFenced once the image has seen one. A DryRun
	// needs none.
	Fence Fence

	// Base is the sequence number that the changes were computed on, 0 for no
	// check. A path that both this and a later commit changed is
	// ErrVersionConflict, as is anything below a directory that a later commit
	// removed; the detail lists the paths.
	Base uint64

	Stage         *Stage // where the contents come from; nil when there are none
	Changes       []Change
	Preconditions []Precondition

	// Source is the source of the script that makes the commit, at most 4 MiB.
	// It is stored with the commit, costs no quota, and is read by
	// Image.Source. Empty is none; a commit that changes nothing keeps none.
	Source []byte

	// Admit is asked inside the transaction, when everything else was found to
	// be in order, with what would change. Its error ends the commit and is
	// returned as it is. It must not use the image.
	Admit func([]Effect) error

	// DryRun does all of the above and then changes nothing; the Commit that
	// it returns has no ID.
	DryRun bool
}

// Precondition says which version a path must have. Version 0 means that it
// must not exist (else ErrExists); a missing path and another version are
// ErrVersionConflict.
type Precondition struct {
	Path    Path
	Version uint64
}

// Results that end a write transaction without writing, though nothing failed.
var (
	errDryRun  = errors.New("dry run")
	errNothing = errors.New("nothing to change")
)

// Commit applies changes, all or none: it is the only way in which an image
// changes. When it returns without an error the commit is durable; after a
// crash the image is as before or as after, never between. A commit in which
// nothing changes is not recorded: the result has the sequence number of the
// head, and no effects.
//
// The order of the checks is: fence, preconditions, changes one by one
// (kinds, parents, reserved names), base, quota, Admit.
//
// Errors: ErrReadOnly, ErrGone, ErrFenced, ErrVersionConflict, ErrExists, ErrNotFound,
// ErrIsDirectory, ErrNotDirectory, ErrNotEmpty, ErrReservedPath, ErrInvalidPath
// (the root), ErrTooLarge, ErrQuota, ErrNoSpace, ErrCorrupt, the error of
// Admit, the cause of ctx.
func (im *Image) Commit(ctx context.Context, t Txn) (Commit, error) {
	w := &writer{im: im, ctx: ctx, txn: &t, now: im.now()}
	if err := w.check(); err != nil {
		return Commit{}, err
	}
	size := w.packSource()
	if t.Stage != nil {
		size += t.Stage.bytes
	}
	hostos.Failpoint("commit.begin")
	err := im.update("commit", size, w.run)
	switch {
	case errors.Is(err, errDryRun):
		c := w.result.commit()
		c.ID = ""
		return c, nil
	case errors.Is(err, errNothing):
		return Commit{Seq: w.head.seq, ID: hex.EncodeToString(w.head.id[:])}, w.unused()
	case err != nil:
		return Commit{}, err
	}
	hostos.Failpoint("commit.durable")
	im.upkeep.grew(&w.result)
	im.changed.announce()
	if t.Stage != nil {
		t.Stage.finish()
	}
	im.sweepAbandoned()
	return w.result.commit(), nil
}

// unused ends the stage of a commit that changed nothing.
func (w *writer) unused() error {
	if w.txn.Stage == nil || w.txn.DryRun {
		return nil
	}
	return w.txn.Stage.Discard()
}

// writer is one Commit at work.
type writer struct {
	im  *Image
	ctx context.Context
	txn *Txn
	now time.Time

	tx      *bolt.Tx
	tree    tree
	head    *head
	touched map[Path]*touch // every path written so far
	parents map[Path]bool   // paths known to be directories
	later   map[Path]later  // what commits behind Base did
	source  *stored         // packed Txn.Source
	pending map[uint64]bool // see checkKept
	result  record
}

// touch is a path before the commit and as of now; nil is absent.
type touch struct{ before, now *Node }

// check refuses what needs no look at the image.
func (w *writer) check() error {
	t := w.txn
	if len(t.Call) > maxText || len(t.Actor) > maxText || len(t.Message) > maxText {
		return imageError("commit", ErrTooLarge, "call, actor or message of the commit is longer than 64 KiB")
	}
	if len(t.Source) > maxSource {
		return imageError("commit", ErrTooLarge, "the source of the commit's script is longer than 4 MiB")
	}
	if t.Stage != nil && t.Stage.over {
		return errors.New("commit: its stage was already discarded or committed")
	}
	for i := range t.Changes {
		c := &t.Changes[i]
		if c.Content.stage != nil && c.Content.stage != t.Stage {
			return errors.New("commit: a content comes from another stage")
		}
		if c.Content.stage == nil && !c.Content.kept && c.Content.Size != 0 {
			return errors.New("commit: a content was made neither by Stage.Add nor by Node.Content")
		}
	}
	return nil
}

func (w *writer) run(tx *bolt.Tx) error {
	w.tx, w.tree = tx, w.im.tree(tx)
	w.touched, w.parents = map[Path]*touch{}, map[Path]bool{{}: true}
	var err error
	if w.head, err = readHead(tx); err != nil {
		return err
	}
	for _, step := range []struct {
		failpoint string
		do        func() error
	}{
		{"commit.fence", w.checkFence},
		{"commit.preconditions", w.checkPreconditions},
		{"commit.later", w.readLater},
		{"commit.apply", w.apply},
		{"commit.effects", w.settleEffects},
		{"commit.base", w.checkBase},
		{"commit.quota", w.checkQuota},
		{"commit.admit", w.admit},
	} {
		if err := step.do(); err != nil {
			return err
		}
		hostos.Failpoint(step.failpoint)
	}
	switch {
	case len(w.result.changes) == 0:
		return errNothing
	case w.txn.DryRun:
		return errDryRun
	}
	return w.record()
}

// checkFence refuses what comes from a lease that is over. Who only looks needs none.
func (w *writer) checkFence() error {
	if w.txn.DryRun {
		return nil
	}
	return raise(w.tx, "commit", w.txn.Fence)
}

func (w *writer) checkPreconditions() error {
	for _, c := range w.txn.Preconditions {
		n, err := w.tree.get(c.Path)
		switch {
		case err != nil:
			return err
		case n == nil && c.Version != 0:
			return pathError("commit", c.Path, ErrVersionConflict, fmt.Sprintf("it does not exist, v%d was expected", c.Version))
		case n != nil && c.Version == 0:
			return pathError("commit", c.Path, ErrExists, "")
		case n != nil && n.Version != c.Version:
			return pathError("commit", c.Path, ErrVersionConflict, fmt.Sprintf("it is v%d, v%d was expected", n.Version, c.Version))
		}
	}
	return nil
}

func (w *writer) apply() error {
	for i := range w.txn.Changes {
		if i%1024 == 0 {
			if err := context.Cause(w.ctx); err != nil {
				return fmt.Errorf("commit: %w", err)
			}
		}
		if err := w.change(&w.txn.Changes[i]); err != nil {
			return err
		}
	}
	return nil
}

// settleEffects compares every touched path with what it was. A path that
// came out equal gets its old node back, with the old version.
func (w *writer) settleEffects() error {
	effects := make([]Effect, 0, len(w.touched))
	for p, t := range w.touched {
		if e, ok := newEffect(p, t.before, t.now); ok {
			effects = append(effects, e)
		} else if t.before != nil {
			if err := w.tree.put(p, t.before); err != nil {
				return err
			}
		}
	}
	sortEffects(effects)
	w.result = record{
		seq: w.head.seq + 1, parent: w.head.id, time: w.now, changes: effects,
		call: w.txn.Call, actor: w.txn.Actor, message: w.txn.Message,
	}
	return nil
}

// checkQuota computes the exact new totals. What shrinks the disk is allowed
// even while it is over a quota that was lowered.
func (w *writer) checkQuota() error {
	var bytes, entries int64
	for i := range w.result.changes {
		b, n := w.result.changes[i].cost()
		bytes, entries = bytes+b, entries+n
	}
	r, id := &w.result, w.im.identity
	r.bytes, r.entries = w.head.bytes+bytes, w.head.entries+entries
	switch {
	case bytes > 0 && r.bytes > id.quotaBytes:
		return imageError("commit", ErrQuota, fmt.Sprintf("it would hold %d bytes of %d", r.bytes, id.quotaBytes))
	case entries > 0 && r.entries > id.quotaEntries:
		return imageError("commit", ErrQuota, fmt.Sprintf("it would hold %d entries of %d", r.entries, id.quotaEntries))
	}
	return w.checkHistory()
}

// checkHistory refuses contents that the image does not have yet while checkpoints hold
// more history than its budget: each would be held as well.
func (w *writer) checkHistory() error {
	full := w.im.upkeep.isFull()
	for i := range w.txn.Changes {
		if c := &w.txn.Changes[i]; full != nil && c.Op == OpPut && c.Content.fresh {
			return full
		}
	}
	return nil
}

func (w *writer) admit() error {
	if w.txn.Admit == nil {
		return nil
	}
	return w.txn.Admit(w.result.changes)
}

// record makes the chunks part of the image and writes the record and the head.
func (w *writer) record() error {
	if s := w.txn.Stage; s != nil {
		used := map[uint64]bool{}
		for i := range w.txn.Changes {
			w.txn.Changes[i].Content.use(used)
		}
		for id := range used {
			w.im.revive(id)
		}
		if err := s.settle(w.tx, used); err != nil {
			return err
		}
		hostos.Failpoint("commit.settled")
	}
	if err := w.putSource(); err != nil {
		return err
	}
	id, err := w.result.write(w.tx.Bucket(bucketCommits))
	if err != nil {
		return err
	}
	hostos.Failpoint("commit.recorded")
	h := head{seq: w.result.seq, id: id, bytes: w.result.bytes, entries: w.result.entries}
	return putMeta(w.tx, keyHead, h.encode())
}

// listed names some paths for a person or a model, and counts the rest.
func listed(paths []Path) string {
	const most = 20
	var b strings.Builder
	for i, p := range paths {
		if i == most {
			b.WriteString(" and " + strconv.Itoa(len(paths)-most) + " more")
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(p.String())
	}
	return b.String()
}
