package workspace

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"slices"
)

// chunkInfo is what a check remembers of a chunk.
type chunkInfo struct {
	id     uint64
	sum    [32]byte
	size   uint32 // plain
	lines  uint32
	stored uint32
	marks  chunkMark
}

type chunkMark uint8

const (
	isBad      chunkMark = 1 << iota
	usedNow              // by the tree
	usedBefore           // by the history
	isPending
	isIndexed // the index leads to it
)

// chunkTable finds chunks by their id.
type chunkTable struct{ all []chunkInfo }

func (t *chunkTable) get(id uint64) *chunkInfo {
	i, ok := slices.BinarySearchFunc(t.all, id, func(c chunkInfo, id uint64) int { return cmp.Compare(c.id, id) })
	if !ok {
		return nil
	}
	return &t.all[i]
}

// checkChunks unpacks and hashes every chunk, once, and feeds those contents
// that consist of several with it.
func (k *checker) checkChunks() error {
	var plain []byte
	err := k.walk(k.pages, bucketChunks, func(key, stored []byte) error {
		if len(key) != 8 {
			k.findf(FindChunk, "chunk with the key "+showKey(key), "Its key is no number.")
			k.plan.drop(bucketChunks, key)
			return nil
		}
		c := chunkInfo{id: binary.BigEndian.Uint64(key), stored: uint32(len(stored))}
		var err error
		if plain, err = checkChunk(&k.packer, &c, stored, plain); err != nil {
			c.marks = isBad
			k.findf(FindChunk, chunkName(c.id), "It is damaged: %v.", err)
			k.contents.fail(c.id, "is damaged")
		} else {
			k.contents.feed(c.id, plain)
		}
		k.chunks.all = append(k.chunks.all, c)
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(k.chunks.all, func(a, b chunkInfo) int { return cmp.Compare(a.id, b.id) })
	return k.finishContents()
}

func chunkName(id uint64) string { return fmt.Sprintf("chunk %d", id) }

// checkChunk unpacks a stored chunk and fills in c.
func checkChunk(packer *packer, c *chunkInfo, stored, dst []byte) (plain []byte, err error) {
	size, err := plainSize(c.id, stored)
	if err != nil {
		return dst, err
	}
	plain, c.sum, err = packer.unpack(c.id, stored, size, dst)
	if err != nil {
		return dst, err
	}
	c.size, c.lines = uint32(size), uint32(countLines(plain))
	return plain, nil
}

// plainSize is what a stored chunk says it unpacks to.
func plainSize(id uint64, stored []byte) (int64, error) {
	value, err := unseal(uintKey(id), stored)
	if err != nil {
		return 0, err
	}
	d := &decoder{in: value}
	packing := d.byte()
	d.raw(sha256.Size)
	size := int64(len(d.in))
	if packing == packZstd {
		size = d.int63()
	}
	if d.err == nil && (size == 0 || size > maxList) {
		return 0, errors.New("its size is wrong")
	}
	return size, d.err
}

// load reads one chunk by its id, aside from the order of the walk.
func (k *checker) load(p *pages, id uint64, dst []byte) ([]byte, error) {
	b, ok := k.buckets[string(bucketChunks)]
	if !ok {
		return dst, errors.New("is missing")
	}
	stored := p.find(b, uintKey(id))
	if stored == nil {
		return dst, errors.New("is missing")
	}
	plain, err := checkChunk(&k.packer, &chunkInfo{id: id}, stored, dst)
	if err != nil {
		return dst, errors.New("is damaged")
	}
	return plain, nil
}

// contents are the files of more than one chunk, on their way to the hash of
// the whole. Since the chunks of a file were mostly stored one after the other,
// one walk over the chunks feeds all of them.
type contents struct {
	all  map[digest]*content
	wait map[uint64][]*content // by the chunk they need next
	late []*content            // those that need an earlier chunk once more, or one that did not come
}

type content struct {
	refs  []ref
	next  int
	sum   hash.Hash
	want  [32]byte
	wrong string // why it cannot be had
}

// contentKey tells contents apart: by hash and by where their bytes lie.
func contentKey(n *Node) digest {
	return shortSum(appendBody(bytes.Clone(n.SHA256[:]), &n.body))
}

func (c *contents) add(n *Node, refs []ref) {
	key := contentKey(n)
	if c.all[key] != nil {
		return
	}
	if c.all == nil {
		c.all, c.wait = map[digest]*content{}, map[uint64][]*content{}
	}
	one := &content{refs: refs, sum: sha256.New(), want: n.SHA256}
	c.all[key] = one
	if len(refs) > 0 {
		c.wait[refs[0].id] = append(c.wait[refs[0].id], one)
	}
}

// feed hands a chunk to those that wait for it.
func (c *contents) feed(id uint64, plain []byte) {
	waiting := c.wait[id]
	if waiting == nil {
		return
	}
	delete(c.wait, id)
	for _, one := range waiting {
		one.take(id, plain)
		switch {
		case one.wrong != "" || one.next == len(one.refs):
		case one.refs[one.next].id > id:
			next := one.refs[one.next].id
			c.wait[next] = append(c.wait[next], one)
		default:
			c.late = append(c.late, one)
		}
	}
}

// take hashes a chunk as often as it comes next.
func (c *content) take(id uint64, plain []byte) {
	for c.wrong == "" && c.next < len(c.refs) && c.refs[c.next].id == id {
		r := c.refs[c.next]
		if int64(len(plain)) != r.size || countLines(plain) != r.lines {
			c.wrong = fmt.Sprintf("its chunk %d is not the one that it refers to", id)
			return
		}
		c.sum.Write(plain)
		c.next++
	}
	if c.wrong == "" && c.next == len(c.refs) && !bytes.Equal(c.sum.Sum(nil), c.want[:]) {
		c.wrong = "the hash of the whole is wrong"
	}
}

// fail ends the contents that wait for a chunk which cannot be had.
func (c *contents) fail(id uint64, why string) {
	for _, one := range c.wait[id] {
		one.wrong = fmt.Sprintf("its chunk %d %s", id, why)
	}
	delete(c.wait, id)
}

// finishContents ends what the walk over the chunks could not.
func (k *checker) finishContents() error {
	c := &k.contents
	for _, waiting := range c.wait {
		c.late = append(c.late, waiting...)
	}
	c.wait = nil
	p := k.again()
	var plain []byte
	for _, one := range c.late {
		for one.wrong == "" && one.next < len(one.refs) {
			id := one.refs[one.next].id
			var err error
			if plain, err = k.load(p, id, plain); err != nil {
				one.wrong = fmt.Sprintf("its chunk %d %v", id, err)
				break
			}
			one.take(id, plain)
		}
		if err := k.tick(); err != nil {
			return err
		}
	}
	c.late = nil
	return nil
}

// gatherContents looks at the tree for files of more than one chunk.
func (k *checker) gatherContents() error {
	side := k.again()
	return k.walk(k.pages, bucketTree, func(key, stored []byte) error {
		value, err := unseal(key, stored)
		if err != nil {
			return nil // reported when the tree is checked
		}
		n, err := decodeNode(value)
		if err != nil {
			return nil
		}
		if n.body.list != nil {
			if refs := k.listed(side, n); refs != nil {
				k.contents.add(n, refs)
			}
		} else if len(n.body.refs) > 1 {
			k.contents.add(n, n.body.refs)
		}
		return nil
	})
}

// listKey is a list of chunks, and what a node says of it.
type listKey struct {
	chunk       uint64
	size, lines int64
}

// listed reads the references of a file that has them in a chunk; nil when
// they cannot be had.
func (k *checker) listed(p *pages, n *Node) []ref {
	id := listKey{n.body.list.id, n.Size, n.Lines}
	if refs, ok := k.lists[id]; ok {
		return refs
	}
	if k.lists == nil {
		k.lists = map[listKey][]ref{}
	}
	k.lists[id] = nil
	plain, err := k.load(p, id.chunk, nil)
	if err != nil || int64(len(plain)) != n.body.list.size {
		return nil
	}
	d := &decoder{in: plain}
	refs := d.refs(n.Size, n.Lines, maxList)
	if d.end() == nil {
		k.lists[id] = refs
	}
	return k.lists[id]
}

// use marks the chunks of a node, and says what is wrong with them. Whether
// the whole has its hash is known for what the tree has.
func (k *checker) use(n *Node, mark chunkMark) (wrong string) {
	if n.Kind != KindFile || n.Size <= maxInline {
		if n.Kind == KindFile && sha256.Sum256(n.body.inline) != n.SHA256 {
			return "its content is not the one that its hash is of"
		}
		return ""
	}
	refs := n.body.refs
	if n.body.list != nil {
		if wrong = k.useOne(*n.body.list, mark, true); wrong != "" {
			return wrong
		}
		if refs = k.listed(k.again(), n); refs == nil {
			return fmt.Sprintf("its list of chunks, chunk %d, is damaged", n.body.list.id)
		}
	}
	for _, r := range refs {
		if w := k.useOne(r, mark, false); wrong == "" {
			wrong = w
		}
	}
	switch {
	case wrong != "":
	case len(refs) == 1 && n.body.list == nil:
		if k.chunks.get(refs[0].id).sum != n.SHA256 {
			wrong = fmt.Sprintf("its chunk %d has other bytes than were written", refs[0].id)
		}
	case mark == usedNow:
		if c := k.contents.all[contentKey(n)]; c != nil {
			wrong = c.wrong
		}
	}
	return wrong
}

// useOne marks one chunk; a list of chunks counts no lines.
func (k *checker) useOne(r ref, mark chunkMark, list bool) (wrong string) {
	c := k.chunks.get(r.id)
	if c == nil {
		return fmt.Sprintf("its chunk %d is missing", r.id)
	}
	c.marks |= mark
	switch {
	case c.marks&isBad != 0:
		return fmt.Sprintf("its chunk %d is damaged", r.id)
	case int64(c.size) != r.size || !list && int64(c.lines) != r.lines:
		return fmt.Sprintf("its chunk %d is not the one that it refers to", r.id)
	}
	return ""
}
