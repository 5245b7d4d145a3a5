package workspace

import (
	"bytes"
	"crypto/sha256"
	"hash"
	"io"
)

// ContentSum computes what ContentDigest returns, from entries that come from elsewhere:
// an archive, or the tree of an older commit. Of their nodes it needs kind, mode, time,
// size, newlines, hash and target. It is for one goroutine.
type ContentSum struct {
	sum  hash.Hash
	last []byte
	buf  []byte
}

// NewContentSum begins a sum.
func NewContentSum() *ContentSum {
	s := &ContentSum{sum: sha256.New()}
	io.WriteString(s.sum, contentHeader)
	return s
}

// Add takes in the next entry. It is false, and nothing is added, when the entry does not
// come behind the last one in the order of the tree.
func (s *ContentSum) Add(p Path, n Node) bool {
	key := treeKey(p)
	if bytes.Compare(key, s.last) <= 0 {
		return false
	}
	s.last = key
	s.buf = appendDigested(s.buf[:0], key, &n, false)
	s.sum.Write(s.buf)
	return true
}

// Sum is the digest of what was added so far.
func (s *ContentSum) Sum() (digest [32]byte) {
	s.sum.Sum(digest[:0])
	return digest
}
