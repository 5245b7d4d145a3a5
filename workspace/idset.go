package workspace

import (
	"iter"
	"maps"
	"math/bits"
	"slices"
)

// idSet is a set of ids of chunks. They rise from 1 and lie mostly close together:
// a bit each, in blocks, takes about half a byte per id and no more than some 100
// bytes for one that lies alone.
type idSet struct {
	blocks map[uint64]*idBlock
	count  int64
}

type idBlock [idBlockSize / 64]uint64

const idBlockSize = 512

// add puts an id into the set, and says whether it is new in it.
func (s *idSet) add(id uint64) bool {
	b := s.blocks[id/idBlockSize]
	if b == nil {
		if s.blocks == nil {
			s.blocks = map[uint64]*idBlock{}
		}
		b = new(idBlock)
		s.blocks[id/idBlockSize] = b
	}
	word, bit := &b[id%idBlockSize/64], uint64(1)<<(id%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	s.count++
	return true
}

func (s *idSet) has(id uint64) bool {
	b := s.blocks[id/idBlockSize]
	return b != nil && b[id%idBlockSize/64]&(1<<(id%64)) != 0
}

func (s *idSet) remove(id uint64) {
	if s.has(id) {
		s.blocks[id/idBlockSize][id%idBlockSize/64] &^= 1 << (id % 64)
		s.count--
	}
}

// sorted returns the ids in order.
func (s *idSet) sorted() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for _, n := range slices.Sorted(maps.Keys(s.blocks)) {
			for i, word := range s.blocks[n] {
				for ; word != 0; word &= word - 1 {
					if !yield(n*idBlockSize + uint64(i*64+bits.TrailingZeros64(word))) {
						return
					}
				}
			}
		}
	}
}
