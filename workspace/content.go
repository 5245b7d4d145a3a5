package workspace

import (
	"fmt"
	"math"
)

// Content returns the content of a file, of the head or of an older commit,
// for an OpPut of any commit to the same image: its bytes are not stored again.
// The content of what is no file is empty.
//
// Commit checks that all of it is still there. When it is not, that is
// ErrNotFound ("its content is no longer kept"), whichever commit the node
// comes from; a chunk that is there and fails its checksum is ErrCorrupt. That a version which nothing else refers to was collected is no
// damage, and whether the head still refers to it a commit cannot tell without
// reading the whole tree. Reading the file, and fsck, do say ErrCorrupt.
func (n Node) Content() Content {
	if n.Kind != KindFile {
		return Content{}
	}
	return Content{Size: n.Size, Lines: n.Lines, SHA256: n.SHA256, body: n.body, kept: true}
}

// checkKept sees to it that a new node may refer to the chunks of an old one.
// Their checksums are checked, so that a commit does not refer to what is known
// to be damaged; they are not unpacked, and the hash of a chunk is checked
// whenever it is served. That the size is the
// one that the node promises, and the hash where there is one chunk only, also
// keeps out a node of another image.
func (w *writer) checkKept(c *Change) error {
	content := &c.Content
	refs, err := w.keptRefs(c)
	if err != nil {
		return err
	}
	size := int64(len(content.body.inline))
	for _, r := range refs {
		sum, err := w.keptChunk(c.Path, r)
		if err != nil {
			return err
		}
		if len(refs) == 1 && sum != content.SHA256 {
			return pathError("commit", c.Path, ErrCorrupt, fmt.Sprintf("chunk %d of its content is another one", r.id))
		}
		size += r.size
	}
	if size != content.Size {
		return pathError("commit", c.Path, ErrCorrupt, "the size of its content is wrong")
	}
	return nil
}

// keptRefs are the references of a content, taken out of their list when they
// are in one.
func (w *writer) keptRefs(c *Change) ([]ref, error) {
	body := c.Content.body
	if body.list == nil {
		return body.refs, nil
	}
	if _, err := w.keptChunk(c.Path, *body.list); err != nil {
		return nil, err
	}
	return w.im.listedRefs(w.tx, &Node{Size: c.Content.Size, Lines: c.Content.Lines, body: body})
}

// keptChunk finds one chunk and returns the hash that it has. One that is
// pending does not count: it is of a dry run, and may be swept.
func (w *writer) keptChunk(p Path, r ref) (sum [32]byte, err error) {
	stored := w.tx.Bucket(bucketChunks).Get(uintKey(r.id))
	if stored == nil || w.isPending(r.id) || w.im.doomed(r.id) {
		return sum, pathError("commit", p, ErrNotFound, "its content is no longer kept")
	}
	defer w.im.resident.read(w.tx, len(stored))
	w.im.revive(r.id)
	if _, err := unseal(uintKey(r.id), stored); err != nil {
		return sum, pathError("commit", p, ErrCorrupt, fmt.Sprintf("chunk %d of its content is damaged: %v", r.id, err))
	}
	size, sum, err := chunkFront(stored)
	if err != nil || size != r.size {
		return sum, pathError("commit", p, ErrCorrupt, fmt.Sprintf("chunk %d of its content has another size", r.id))
	}
	return sum, nil
}

// isPending says whether a chunk waits for its commit.
func (w *writer) isPending(id uint64) bool {
	if w.pending == nil {
		w.pending = map[uint64]bool{}
		for _, m := range pendingMarks(w.tx, nil, math.MaxInt) {
			w.pending[m.id] = true
		}
	}
	return w.pending[id]
}

// chunkFront reads what a stored chunk says about itself: plain size and hash.
// It checks neither.
func chunkFront(stored []byte) (size int64, sum [32]byte, err error) {
	d := &decoder{in: stored[:max(0, len(stored)-sumSize)]}
	packing, sum := d.byte(), d.id()
	if size = int64(len(d.in)); packing == packZstd {
		size = d.int63()
	}
	return size, sum, d.err
}
