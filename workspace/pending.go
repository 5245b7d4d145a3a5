package workspace

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	bolt "go.etcd.io/bbolt"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// store returns the id under which these bytes are, or will be, in the image; fresh
// says that they come with this stage.
func (s *Stage) store(sum [32]byte, plain []byte) (id uint64, fresh bool, err error) {
	if id, ok := s.inWait[sum]; ok {
		return id, true, nil
	}
	id, fresh, err = s.known(sum)
	if err != nil || id != 0 {
		return id, fresh, err
	}
	id = s.im.lastChunk.Add(1)
	value := s.im.packer.pack(id, sum, plain)
	if s.bytes+len(value) > stageBytes {
		if err := s.flush(); err != nil {
			return 0, false, err
		}
	}
	s.waiting = append(s.waiting, stored{id, sum, value})
	s.bytes += len(value)
	s.inWait[sum] = id
	return id, true, nil
}

// flush writes what waits. Each chunk gets a mark in "pending", under
// pendingKey: its id. The marks are also how the stage finds its own chunks
// again; they are not in "byhash" before a commit, so no one else builds on a
// chunk that may be swept.
func (s *Stage) flush() error {
	if len(s.waiting) == 0 {
		return nil
	}
	hostos.Failpoint("stage.flush")
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
		hostos.Failpoint("stage.marked")
		return nil
	})
	if err != nil {
		return err
	}
	hostos.Failpoint("stage.flushed")
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
func (s *Stage) pendingPrefix() []byte { return stagePrefix(s.id) }

func stagePrefix(stage uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{pendingStage}, stage)
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
			hostos.Failpoint("sweep.batch")
			return nil
		})
		if err != nil || n < sweepBatch {
			return err
		}
	}
}

// abandoned are stages whose chunks wait to be swept, because the host's disk
// was too full for it when they ended.
type abandoned struct {
	mu     sync.Mutex
	stages []uint64
}

func (a *abandoned) add(stages ...uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stages = append(a.stages, stages...)
}

func (a *abandoned) take() []uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	stages := a.stages
	a.stages = nil
	return stages
}

// sweepAbandoned tries again to sweep them. A commit that found room does so:
// that there still is none is no failure of the commit.
func (im *Image) sweepAbandoned() {
	stages := im.abandoned.take()
	for i, stage := range stages {
		if im.sweepPending(stagePrefix(stage)) != nil {
			im.abandoned.add(stages[i:]...)
			return
		}
	}
}

// pendingStages lists the stages that have marks, in rising order.
func pendingStages(tx *bolt.Tx) (stages []uint64) {
	c := tx.Bucket(bucketPending).Cursor()
	for k, _ := c.Seek([]byte{pendingStage}); len(k) >= 9 && k[0] == pendingStage; {
		stage := binary.BigEndian.Uint64(k[1:9])
		if stages = append(stages, stage); stage == math.MaxUint64 {
			break
		}
		k, _ = c.Seek(stagePrefix(stage + 1))
	}
	return stages
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
		if err := s.im.putHash(tx, c.sum, c.id); err != nil {
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
		if err := s.im.putHash(tx, m.sum, m.id); err != nil {
			return err
		}
		if err := tx.Bucket(bucketPending).Delete(m.key); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
	}
	return nil
}

// putHash makes a chunk findable by its hash, unless another already is, and stays.
func (im *Image) putHash(tx *bolt.Tx, sum [32]byte, id uint64) error {
	if was := hashed(tx, sum); was != 0 && !im.doomed(was) {
		return nil
	}
	if err := tx.Bucket(bucketByHash).Put(sum[:], seal(sum[:], uintKey(id))); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}
