package workspace

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"maps"
	"slices"
)

// checkCheckpoints checks the names for commits: that the commit is the one that
// was named, and that the history leads from the tree back to the very tree of
// which the digest was taken. Where a history was dropped, this is what proves
// its beginning.
func (k *checker) checkCheckpoints() error {
	var all []*Checkpoint
	err := k.walk(k.pages, bucketRefs, func(name, stored []byte) error {
		k.report.Checkpoints++
		c, err := openCheckpoint(name, stored)
		if err != nil {
			k.findf(FindCheckpoint, checkpointName(string(name)), "It is damaged: %v.", err)
			return nil
		}
		all = append(all, c)
		return nil
	})
	if err != nil || len(all) == 0 {
		return err
	}
	heads := map[uint64]*head{}
	for _, c := range all {
		heads[c.Seq] = nil
	}
	if err := k.findHeads(heads); err != nil {
		return err
	}
	for _, c := range all {
		if err := k.checkCheckpoint(c, heads[c.Seq]); err != nil {
			return err
		}
	}
	return nil
}

func checkpointName(name string) string { return "checkpoint " + showKey([]byte(name)) }

// findHeads fills in what the records of some commits say.
func (k *checker) findHeads(heads map[uint64]*head) error {
	return k.walkRecords(func(r *record, first bool) {
		if _, wanted := heads[r.seq]; wanted && first {
			heads[r.seq] = r.head()
		}
	})
}

// walkRecords visits every value of the history that can be read, in order. r
// has the changes of that value only; first says that it begins a record.
func (k *checker) walkRecords(visit func(r *record, first bool)) error {
	r := new(record)
	return k.walk(k.again(), bucketCommits, func(key, stored []byte) error {
		value, err := unseal(key, stored)
		if err != nil {
			return nil // reported already
		}
		d := &decoder{in: value}
		first := len(key) == 8
		if first {
			r.decodeHead(d)
		}
		r.changes = r.changes[:0]
		if r.decodeChanges(d); d.err == nil {
			visit(r, first)
		}
		return nil
	})
}

// checkCheckpoint compares one checkpoint with its commit, h, and with the tree
// as it was then.
func (k *checker) checkCheckpoint(c *Checkpoint, h *head) error {
	where := checkpointName(c.Name)
	switch {
	case h == nil && k.history.gaps[c.Seq]:
		return nil // reported with the commit
	case h == nil:
		k.findf(FindCheckpoint, where, "It names v%d, which does not exist.", c.Seq)
		return nil
	case hex.EncodeToString(h.id[:]) != c.Commit:
		k.findf(FindCheckpoint, where, "It names another commit than v%d is.", c.Seq)
		return nil
	case h.bytes != c.Bytes || h.entries != c.Entries:
		k.findf(FindCheckpoint, where, "It says %d bytes in %d entries, and v%d had %d in %d.", c.Bytes, c.Entries, c.Seq, h.bytes, h.entries)
	}
	if !k.history.chained() || !k.tree.sound {
		return nil // nothing can be proved by what is damaged itself
	}
	digest, err := k.digestAt(c.Seq)
	if err == nil && digest != c.Digest {
		k.findf(FindCheckpoint, where, "The tree of v%d has another digest than was noted.", c.Seq)
	}
	return err
}

// digestAt is the digest of the tree as it was at a commit: the tree of now, with
// every path that changed since as it was before the first of those changes.
func (k *checker) digestAt(seq uint64) (string, error) {
	then := map[string]*Node{} // by key of the tree
	err := k.walkRecords(func(r *record, _ bool) {
		for i := range r.changes {
			key := string(treeKey(r.changes[i].Path))
			if _, known := then[key]; !known && r.seq > seq {
				then[key] = r.changes[i].Before
			}
		}
	})
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	out := bufio.NewWriterSize(sum, 64<<10)
	io.WriteString(out, digestHeader)
	write := func(key string, n *Node) {
		if n != nil {
			out.Write(appendDigested(nil, []byte(key), n, true))
		}
	}
	changed := slices.Sorted(maps.Keys(then))
	err = k.walk(k.again(), bucketTree, func(key, stored []byte) error {
		for len(changed) > 0 && changed[0] < string(key) {
			write(changed[0], then[changed[0]])
			changed = changed[1:]
		}
		if len(changed) > 0 && changed[0] == string(key) {
			write(changed[0], then[changed[0]])
			changed = changed[1:]
			return nil
		}
		n, err := openNode(key, stored)
		if err == nil {
			write(string(key), n)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	for _, key := range changed {
		write(key, then[key])
	}
	if err := out.Flush(); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
