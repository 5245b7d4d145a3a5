package workspace

import (
	"bytes"

	bolt "go.etcd.io/bbolt"
)

// marker finds out which chunks are needed, by everything that refers to one. A
// reference that cannot be read ends it with ErrCorrupt: what it needs is not known.
type marker struct {
	im    *Image
	lists *bolt.Tx // where lists of chunks are read; it may be another image than the nodes'
	needs idSet

	// With count, bytes is what the chunks that are needed take, and trail the ones that
	// were added since it was last emptied.
	count bool
	bytes int64
	trail []uint64
}

// add marks one chunk, and says whether it is new.
func (m *marker) add(id uint64) bool {
	if !m.needs.add(id) {
		return false
	}
	if m.count {
		m.bytes += m.size(id)
		m.trail = append(m.trail, id)
	}
	return true
}

func (m *marker) size(id uint64) int64 {
	m.im.resident.touch(m.lists)
	return entrySize(uintKey(id), m.lists.Bucket(bucketChunks).Get(uintKey(id)))
}

// takeBack forgets what was added since trail was emptied.
func (m *marker) takeBack() {
	for _, id := range m.trail {
		m.needs.remove(id)
		m.bytes -= m.size(id)
	}
	m.trail = m.trail[:0]
}

// entrySize is what an entry takes: none when there is no value.
func entrySize(key, stored []byte) int64 {
	if stored == nil {
		return 0
	}
	return int64(len(key) + len(stored))
}

// node marks what the content of a node needs.
func (m *marker) node(n *Node) error {
	for _, r := range n.body.refs {
		m.add(r.id)
	}
	if n.body.list == nil || !m.add(n.body.list.id) {
		return nil
	}
	refs, err := m.im.listedRefs(m.lists, n)
	if err != nil {
		return err
	}
	for _, r := range refs {
		m.add(r.id)
	}
	return nil
}

// recordPart marks what one value of a commit's record needs: the contents before
// and after each change, and the source of a script.
func (m *marker) recordPart(key, stored []byte) error {
	return scanPart(key, stored, func(source uint64) {
		if source != 0 {
			m.add(source)
		}
	}, m.node)
}

// scanPart visits what one value of a record refers to, in the order before, after.
func scanPart(key, stored []byte, source func(uint64), node func(*Node) error) error {
	seq, err := partOf(key)
	if err != nil {
		return err
	}
	value, err := unseal(key, stored)
	if err != nil {
		return recordError(seq, err)
	}
	d := &decoder{in: value}
	if len(key) == 8 {
		var r record
		if r.decodeHead(d); d.err == nil {
			source(r.source)
		}
	}
	for d.err == nil && len(d.in) > 0 {
		c := d.change()
		for _, b := range [2][]byte{c.before, c.after} {
			if d.err != nil || len(b) == 0 {
				continue
			}
			n, err := decodeNode(b)
			if err != nil {
				return recordError(seq, err)
			}
			if err := node(n); err != nil {
				return err
			}
		}
	}
	if d.err != nil {
		return recordError(seq, d.err)
	}
	return nil
}

// partOf is the commit that a key of the history belongs to.
func partOf(key []byte) (seq uint64, err error) {
	if len(key) != 8 && len(key) != 12 {
		return 0, imageError("read", ErrCorrupt, "it has a commit under an impossible key")
	}
	return keyUint(key), nil
}

// indexed is the id under which the index has a chunk with this hash; 0 when it has
// none, or leads to a chunk that says it has another.
func indexed(tx *bolt.Tx, sum [32]byte) uint64 {
	id := hashed(tx, sum)
	if id == 0 {
		return 0
	}
	stored := tx.Bucket(bucketChunks).Get(uintKey(id))
	if _, has, err := chunkFront(stored); err != nil || !bytes.Equal(has[:], sum[:]) {
		return 0
	}
	return id
}
