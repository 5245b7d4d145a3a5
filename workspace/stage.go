package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	chunkers "github.com/PlakarKorp/go-cdc-chunkers"
	_ "github.com/PlakarKorp/go-cdc-chunkers/chunkers/fastcdc" // registers the algorithm
	bolt "go.etcd.io/bbolt"
)

// Stage takes contents ahead of the commit that will refer to them, so that a
// commit is short and memory stays bounded whatever the size: at most
// stageBytes of packed chunks wait in memory, what is more goes to the image in
// updates of that size. Chunks written so are marked as pending until a commit
// uses them; those of a process that died are swept at the next Open.
//
// A Stage belongs to one goroutine.
type Stage struct {
	im  *Image
	ctx context.Context
	id  uint64

	waiting []stored            // packed, not written yet
	bytes   int                 // in waiting
	inWait  map[[32]byte]uint64 // ids of those
	written bool                // some chunks lie in the image as pending
	total   int64               // plain bytes added
	over    bool                // discarded, or used by a commit
}

// stored is a packed chunk on its way into the image.
type stored struct {
	id    uint64
	sum   [32]byte
	value []byte
}

const stageBytes = 8 << 20

// Content is what Add made of a stream, good for changes of one commit that
// names the same Stage. The zero value is an empty file.
type Content struct {
	Size   int64
	Lines  int64 // newlines
	SHA256 [32]byte

	body  body
	refs  []ref // all of its chunks, also when body has them in a list
	stage *Stage
}

// Stage begins to take contents. The context covers the whole stage.
func (im *Image) Stage(ctx context.Context) *Stage {
	return &Stage{im: im, ctx: ctx, id: im.lastStage.Add(1), inWait: map[[32]byte]uint64{}}
}

// Add reads r to its end. Contents that the image has already are recognised
// by their hash and not stored again.
//
// Errors: whatever r returns, wrapped; the cause of the context; ErrQuota when
// the contents of this stage alone are over the quota; ErrReadOnly; ErrNoSpace.
func (s *Stage) Add(r io.Reader) (Content, error) {
	if s.over {
		return Content{}, errors.New("stage: already discarded or committed")
	}
	if s.im.readOnly {
		return Content{}, imageError("stage", ErrReadOnly, "")
	}
	buf := s.im.scratch.get()
	defer s.im.scratch.put(buf)
	n, err := io.ReadFull(r, buf.head[:])
	switch {
	case err == nil:
		return s.addLarge(r, buf)
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return s.addSmall(buf.head[:n])
	}
	return Content{}, fmt.Errorf("stage: %w", err)
}

// addSmall takes a content that is inline or one chunk.
func (s *Stage) addSmall(plain []byte) (Content, error) {
	c := Content{Size: int64(len(plain)), Lines: countLines(plain), SHA256: sha256.Sum256(plain), stage: s}
	c.body.open = unended(plain)
	if err := s.account(len(plain)); err != nil {
		return Content{}, err
	}
	if len(plain) <= maxInline {
		c.body.inline = bytes.Clone(plain)
		return c, nil
	}
	id, err := s.store(c.SHA256, plain)
	if err != nil {
		return Content{}, err
	}
	c.refs = []ref{{id: id, size: c.Size, lines: c.Lines}}
	c.body.refs = c.refs
	return c, nil
}

// addLarge takes a content whose first maxSingle+1 bytes are in buf.head, cut
// into chunks where the bytes themselves say so: an edit moves the borders
// near it only, so that versions of a file share the rest.
func (s *Stage) addLarge(r io.Reader, buf *scratch) (Content, error) {
	cut, err := chunkers.NewChunkerBuffer("fastcdc-v1.0.0", io.MultiReader(bytes.NewReader(buf.head[:]), r),
		&chunkers.ChunkerOpts{MinSize: minChunk, NormalSize: avgChunk, MaxSize: maxChunk}, buf.window())
	if err != nil {
		return Content{}, fmt.Errorf("stage: %w", err)
	}
	c := Content{stage: s}
	whole := sha256.New()
	for {
		plain, end := cut.Next()
		if end != nil && end != io.EOF {
			return Content{}, fmt.Errorf("stage: %w", end)
		}
		if len(plain) > 0 {
			whole.Write(plain)
			if err := s.addChunk(&c, plain); err != nil {
				return Content{}, err
			}
		}
		if end == io.EOF {
			break
		}
	}
	whole.Sum(c.SHA256[:0])
	return c, s.fold(&c)
}

func (s *Stage) addChunk(c *Content, plain []byte) error {
	if err := s.account(len(plain)); err != nil {
		return err
	}
	id, err := s.store(sha256.Sum256(plain), plain)
	if err != nil {
		return err
	}
	r := ref{id: id, size: int64(len(plain)), lines: countLines(plain)}
	c.refs = append(c.refs, r)
	c.body.open = unended(plain)
	c.Size, c.Lines = c.Size+r.size, c.Lines+r.lines
	return nil
}

// fold puts the references into the body, or into a chunk when they are too
// many for a node.
func (s *Stage) fold(c *Content) error {
	if len(c.refs) <= maxRefs {
		c.body.refs = c.refs
		return nil
	}
	list := appendRefs(nil, c.refs)
	if len(list) > maxList {
		return imageError("stage", ErrTooLarge, "a file of this size has too many chunks")
	}
	id, err := s.store(sha256.Sum256(list), list)
	if err != nil {
		return err
	}
	c.body.list = &ref{id: id, size: int64(len(list))}
	return nil
}

// account refuses early what no commit could accept.
func (s *Stage) account(n int) error {
	if err := context.Cause(s.ctx); err != nil {
		return fmt.Errorf("stage: %w", err)
	}
	if s.total += int64(n); s.total > s.im.identity.quotaBytes {
		return imageError("stage", ErrQuota, fmt.Sprintf("the new contents alone are over its %d bytes", s.im.identity.quotaBytes))
	}
	return nil
}

// store returns the id under which these bytes are, or will be, in the image.
func (s *Stage) store(sum [32]byte, plain []byte) (uint64, error) {
	if id, ok := s.inWait[sum]; ok {
		return id, nil
	}
	var id uint64
	err := s.im.view("stage", func(tx *bolt.Tx) error {
		if id = hashed(tx, sum); id == 0 && s.written {
			id = s.pendingID(tx, sum)
		}
		return nil
	})
	if err != nil || id != 0 {
		return id, err
	}
	id = s.im.lastChunk.Add(1)
	value := s.im.packer.pack(id, sum, plain)
	if s.bytes+len(value) > stageBytes {
		if err := s.flush(); err != nil {
			return 0, err
		}
	}
	s.waiting = append(s.waiting, stored{id, sum, value})
	s.bytes += len(value)
	s.inWait[sum] = id
	return id, nil
}

// flush writes what waits. Each chunk gets a mark in "pending", under
// pendingKey: its id. The marks are also how the stage finds its own chunks
// again; they are not in "byhash" before a commit, so no one else builds on a
// chunk that may be swept.
func (s *Stage) flush() error {
	if len(s.waiting) == 0 {
		return nil
	}
	err := s.im.update("stage", s.bytes, func(tx *bolt.Tx) error {
		for _, c := range s.waiting {
			if err := putChunk(tx, &c); err != nil {
				return err
			}
			key := s.pendingKey(c.sum)
			if err := tx.Bucket(bucketPending).Put(key, seal(key, uintKey(c.id))); err != nil {
				return fmt.Errorf("stage: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.written = true
	s.forget()
	return nil
}

// forget drops what waits in memory.
func (s *Stage) forget() {
	clear(s.waiting)
	s.waiting, s.bytes = s.waiting[:0], 0
	clear(s.inWait)
}

// putChunk stores a packed chunk and remembers its id as used.
func putChunk(tx *bolt.Tx, c *stored) error {
	b := tx.Bucket(bucketChunks)
	if err := b.Put(uintKey(c.id), c.value); err != nil {
		return fmt.Errorf("store chunk: %w", err)
	}
	if c.id > b.Sequence() {
		return b.SetSequence(c.id)
	}
	return nil
}

// Keys of "pending": one letter for what is kept, then whose it is.
const pendingStage = 's'

// pendingPrefix is what the marks of a stage start with.
func (s *Stage) pendingPrefix() []byte {
	return binary.BigEndian.AppendUint64([]byte{pendingStage}, s.id)
}

func (s *Stage) pendingKey(sum [32]byte) []byte { return append(s.pendingPrefix(), sum[:]...) }

func (s *Stage) pendingID(tx *bolt.Tx, sum [32]byte) uint64 {
	key := s.pendingKey(sum)
	value, err := unseal(key, tx.Bucket(bucketPending).Get(key))
	if err != nil || len(value) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(value)
}

// Discard gives back what the stage stored. It may be called any number of
// times, and does nothing once a commit used the stage.
func (s *Stage) Discard() error {
	if s.over {
		return nil
	}
	s.over = true
	s.forget()
	if !s.written {
		return nil
	}
	return s.im.sweepPending(s.pendingPrefix())
}

// finish ends a stage whose chunks a commit has settled.
func (s *Stage) finish() {
	s.over = true
	s.forget()
}

// sweepBatch is how many pending chunks one update takes away.
const sweepBatch = 4096

// sweepPending removes pending chunks whose marks start with prefix.
func (im *Image) sweepPending(prefix []byte) error {
	for {
		n := 0
		err := im.update("sweep", 0, func(tx *bolt.Tx) error {
			marks := pendingMarks(tx, prefix, sweepBatch)
			n = len(marks)
			for _, m := range marks {
				if err := m.drop(tx); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil || n < sweepBatch {
			return err
		}
	}
}

// mark says that a chunk is pending.
type mark struct {
	key []byte
	sum [32]byte
	id  uint64 // 0 when the mark is damaged
}

// pendingMarks reads up to most marks; they do not point into the map.
func pendingMarks(tx *bolt.Tx, prefix []byte, most int) []mark {
	var marks []mark
	c := tx.Bucket(bucketPending).Cursor()
	for k, v := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix) && len(marks) < most; k, v = c.Next() {
		m := mark{key: bytes.Clone(k)}
		if value, err := unseal(k, v); err == nil && len(value) == 8 && len(k) == 1+8+sha256.Size {
			m.id = binary.BigEndian.Uint64(value)
			copy(m.sum[:], k[1+8:])
		}
		marks = append(marks, m)
	}
	return marks
}

// drop removes a mark and its chunk.
func (m *mark) drop(tx *bolt.Tx) error {
	if m.id != 0 {
		if err := tx.Bucket(bucketChunks).Delete(uintKey(m.id)); err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
	}
	if err := tx.Bucket(bucketPending).Delete(m.key); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	return nil
}

// settle makes the chunks that a commit uses part of the image, within the
// commit's transaction, and drops those it does not use.
func (s *Stage) settle(tx *bolt.Tx, used map[uint64]bool) error {
	for i := range s.waiting {
		c := &s.waiting[i]
		if !used[c.id] {
			continue
		}
		if err := putChunk(tx, c); err != nil {
			return err
		}
		if err := putHash(tx, c.sum, c.id); err != nil {
			return err
		}
	}
	if !s.written {
		return nil
	}
	for _, m := range pendingMarks(tx, s.pendingPrefix(), math.MaxInt) {
		if !used[m.id] {
			if err := m.drop(tx); err != nil {
				return err
			}
			continue
		}
		if err := putHash(tx, m.sum, m.id); err != nil {
			return err
		}
		if err := tx.Bucket(bucketPending).Delete(m.key); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
	}
	return nil
}

// putHash makes a chunk findable by its hash, unless another already is.
func putHash(tx *bolt.Tx, sum [32]byte, id uint64) error {
	if hashed(tx, sum) != 0 {
		return nil
	}
	if err := tx.Bucket(bucketByHash).Put(sum[:], seal(sum[:], uintKey(id))); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// use adds the ids of all chunks that a content needs.
func (c *Content) use(ids map[uint64]bool) {
	if c.body.list != nil {
		ids[c.body.list.id] = true
	}
	for _, r := range c.refs {
		ids[r.id] = true
	}
}

// scratch are the buffers with which one content is read.
type scratch struct {
	head [maxSingle + 1]byte
	win  []byte
}

// window is where the chunker works.
func (b *scratch) window() []byte {
	if b.win == nil {
		b.win = make([]byte, 2*maxChunk)
	}
	return b.win
}

type scratchPool struct{ pool sync.Pool }

func (p *scratchPool) get() *scratch {
	if b, ok := p.pool.Get().(*scratch); ok {
		return b
	}
	return new(scratch)
}

func (p *scratchPool) put(b *scratch) { p.pool.Put(b) }
