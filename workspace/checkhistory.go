package workspace

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
)

// history is the replay of all commits: what they leave must be the tree.
type history struct {
	count    int64
	oldest   uint64
	at       uint64            // the last commit, damaged or not
	last     *head             // the newest commit that is whole
	now      map[digest]digest // path → node after the last commit; the zero digest is none
	gap      bool              // a commit is missing, damaged, or does not fit to the one before
	gaps     map[uint64]bool   // those that are damaged or missing
	identity *identity         // from the first commit
	told     map[string]bool   // chunks that an older version lacks, and that were reported
}

// digest is the beginning of a SHA-256.
type digest [16]byte

func shortSum(b []byte) (d digest) {
	sum := sha256.Sum256(b)
	copy(d[:], sum[:])
	return d
}

func pathDigest(p Path) digest { return shortSum([]byte(p.rel)) }

// nodeDigest is over everything that a node says, its version included.
func nodeDigest(n *Node) digest {
	if n == nil {
		return digest{}
	}
	return shortSum(appendNode(nil, n))
}

// chained says that the ids prove all commits from the oldest that is kept to
// the newest.
func (h *history) chained() bool { return h.last != nil && !h.gap }

// whole says that they reach back to the empty disk, too.
func (h *history) whole() bool { return h.chained() && h.oldest == 1 }

func commitName(seq uint64) string { return fmt.Sprintf("commit v%d", seq) }

// checkHistory reads all commits in their order. A record is taken in piece by
// piece, for one may change every path of the disk.
func (k *checker) checkHistory() error {
	k.history.now, k.history.gaps = map[digest]digest{}, map[uint64]bool{}
	k.history.told = map[string]bool{}
	var r recordCheck
	err := k.walk(k.pages, bucketCommits, func(key, stored []byte) error {
		if len(key) != 8 && len(key) != 12 {
			k.findf(FindCommit, "commit with the key "+showKey(key), "Its key is no number.")
			k.history.gap = true
			return nil
		}
		if len(key) == 8 {
			r.end()
			r = recordCheck{k: k, seq: binary.BigEndian.Uint64(key)}
			r.follow()
		}
		r.part(key, stored)
		return nil
	})
	r.end()
	return err
}

// recordCheck is one commit while its record is read.
type recordCheck struct {
	k      *checker
	seq    uint64
	record record
	parts  int
	sum    hash.Hash
	wrong  string
	fresh  bool // nothing is known from before it

	expected       uint64
	changes        uint64
	stats          [len(statKinds)]int64
	bytes, entries int64
}

// fail keeps the first thing that is wrong with a record.
func (r *recordCheck) fail(format string, args ...any) {
	if r.wrong == "" {
		r.wrong = fmt.Sprintf(format, args...)
	}
}

// follow says whether a commit is the next one.
func (r *recordCheck) follow() {
	h := &r.k.history
	before := h.at
	switch {
	case h.count == 0:
		h.oldest, r.fresh = r.seq, true
	case r.seq <= before:
		h.gap = true
		r.k.findf(FindCommit, commitName(r.seq), "It comes behind v%d.", before)
	case r.seq > before+1:
		h.gap = true
		r.k.findf(FindCommit, commitName(before+1), "It is missing; the next one is v%d.", r.seq)
		for seq := before + 1; seq < r.seq && len(h.gaps) < maxFindings; seq++ {
			h.gaps[seq] = true
		}
	}
	h.count++
	h.at = r.seq
}

// part takes in one value of a record.
func (r *recordCheck) part(key, stored []byte) {
	if r.k == nil {
		return
	}
	if !bytes.HasPrefix(key, uintKey(r.seq)) || !bytes.Equal(key, partKey(r.seq, r.parts)) {
		r.fail("a part of it is missing")
		return
	}
	value, err := unseal(key, stored)
	if err != nil {
		r.fail("%v", err)
		return
	}
	d := &decoder{in: value}
	if r.parts++; r.parts == 1 {
		r.sum = sha256.New()
		if len(value) > sha256.Size {
			r.sum.Write(value[sha256.Size:])
		}
		r.expected = r.record.decodeHead(d)
	} else {
		r.sum.Write(value)
	}
	r.record.changes = r.record.changes[:0]
	r.record.decodeChanges(d)
	if err := d.end(); err != nil {
		r.fail("%v", err)
		return
	}
	r.replay()
}

// replay applies the changes of one value.
func (r *recordCheck) replay() {
	counts := countKinds(r.record.changes)
	for i := range counts {
		r.stats[i] += counts[i]
	}
	r.changes += uint64(len(r.record.changes))
	for i := range r.record.changes {
		e := &r.record.changes[i]
		b, n := e.cost()
		r.bytes, r.entries = r.bytes+b, r.entries+n
		if e.After != nil && e.After.Version != r.seq {
			r.fail("it leaves %v with version %d", e.Path, e.After.Version)
		}
		r.k.replay(r.seq, e)
		for _, n := range [2]*Node{e.Before, e.After} {
			if n != nil {
				r.k.useOld(r.seq, e.Path, n)
			}
		}
	}
}

// end compares what is known when a record is complete.
func (r *recordCheck) end() {
	if r.k == nil {
		return
	}
	h := &r.k.history
	rec := &r.record
	var id [32]byte
	if r.sum != nil {
		r.sum.Sum(id[:0])
	}
	switch {
	case r.wrong != "":
	case rec.seq != r.seq:
		r.fail("it is that of v%d", rec.seq)
	case r.changes != r.expected, r.stats != rec.stats:
		r.fail("it does not have the changes that it counts")
	case id != rec.id:
		r.fail("its id is not the hash of it")
	case !h.gap && !r.fresh && rec.parent != h.last.id:
		r.fail("its parent is not the commit before it")
	case r.seq == 1 && rec.parent != [32]byte{}:
		r.fail("the first commit has a parent")
	case !h.gap && (!r.fresh || r.seq == 1) && !r.addsUp():
		r.fail("its totals are not those before it and its changes")
	}
	if r.wrong == "" && rec.source != 0 {
		r.useSource()
	}
	if r.wrong != "" {
		h.gap, h.gaps[r.seq] = true, true
		r.k.findf(FindCommit, commitName(r.seq), "It is damaged: %s.", r.wrong)
		return
	}
	if r.seq == 1 {
		r.k.identityFrom(rec)
	}
	h.last = rec.head()
}

func (r *recordCheck) addsUp() bool {
	bytes, entries := r.bytes, r.entries
	if last := r.k.history.last; last != nil {
		bytes, entries = bytes+last.bytes, entries+last.entries
	}
	return bytes == r.record.bytes && entries == r.record.entries
}

// useSource marks the chunk that holds the source of a script.
func (r *recordCheck) useSource() {
	c := r.k.chunks.get(r.record.source)
	if c == nil || c.marks&isBad != 0 {
		r.k.findf(FindContent, commitName(r.seq), "The source of its script cannot be read: chunk %d is missing or damaged.", r.record.source)
		return
	}
	c.marks |= usedBefore
}

// replay compares what a change says was there with what the commits before
// left, and remembers what it leaves.
func (k *checker) replay(seq uint64, e *Effect) {
	h := &k.history
	p, before := pathDigest(e.Path), nodeDigest(e.Before)
	was, known := h.now[p]
	if !known && h.oldest > 1 && !k.hasCommitted(e.Before) {
		known, was = true, before // it comes from commits that are not kept
	}
	if was != before && !h.excused(e.Before) {
		k.findPath(FindHistory, commitName(seq), e.Path, "It says that this was something else before than the commits before it left.")
		h.gap = true
	}
	if h.now[p] = nodeDigest(e.After); e.After == nil && h.oldest == 1 {
		delete(h.now, p)
	}
}

// hasCommitted says whether the commit that made a node is one that is kept.
func (k *checker) hasCommitted(n *Node) bool { return n != nil && n.Version >= k.history.oldest }

// excused says whether a commit that cannot be read may be why a node is not
// the expected one.
func (h *history) excused(n *Node) bool {
	if n == nil {
		return len(h.gaps) > 0
	}
	return h.gaps[n.Version]
}

// useOld marks what a node of the history refers to.
func (k *checker) useOld(seq uint64, p Path, n *Node) {
	wrong := k.use(n, usedBefore)
	if wrong == "" || k.history.told[wrong] {
		return
	}
	k.history.told[wrong] = true
	k.findPath(FindContent, commitName(seq), p, "An older version of it cannot be read: %s.", wrong)
}
