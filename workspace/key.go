package workspace

import (
	"encoding/binary"
	"strings"
)

// The buckets of an image; doc.go says what lies in them.
var (
	bucketMeta    = []byte("meta")
	bucketTree    = []byte("tree")
	bucketChunks  = []byte("chunks")
	bucketByHash  = []byte("byhash")
	bucketPending = []byte("pending")
	bucketCommits = []byte("commits")
	bucketRefs    = []byte("refs")

	buckets = [][]byte{bucketMeta, bucketTree, bucketChunks, bucketByHash, bucketPending, bucketCommits, bucketRefs}
)

// treeKey joins the components by 0x00. Since no name holds that byte and it
// is lower than all others, a directory's subtree is one range of keys, and
// siblings sort by their raw bytes. The root has no key: bbolt knows no empty
// one, and nothing about the root ever changes.
func treeKey(p Path) []byte { return []byte(strings.ReplaceAll(p.rel, "/", "\x00")) }

// keyPath is the inverse of treeKey.
func keyPath(key []byte) Path { return Path{strings.ReplaceAll(string(key), "\x00", "/")} }

// childPrefix is what the keys of everything below a directory start with.
func childPrefix(dir Path) []byte {
	if dir.IsRoot() {
		return nil
	}
	return append(treeKey(dir), 0)
}

// afterSubtree is the first key behind an entry and everything below it: 0x01
// sorts behind the 0x00 that separates components, and before or equal to
// whatever a longer name can go on with.
func afterSubtree(key []byte) []byte { return append(key[:len(key):len(key)], 1) }

// uintKey is a number as a key that sorts like the number.
func uintKey(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// keyUint is the number that such a key begins with.
func keyUint(key []byte) uint64 { return binary.BigEndian.Uint64(key) }
