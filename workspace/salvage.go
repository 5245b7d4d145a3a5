package workspace

import (
	"bytes"
	"encoding/binary"
	"io"
)

// salvage visits the elements of a damaged leaf from one on, each for itself.
// bbolt goes by the position and the sizes that an element has, wherever they
// lead; so what it could read is found again, and with it what only one wrong
// number hides. An element counts only when its value passes its checksum.
type salvage struct {
	r     io.ReaderAt
	base  int64 // of the leaf
	size  int64 // of what r has
	left  int64 // bytes that may still be read
	index []byte
	buf   []byte
}

// newSalvage is for a leaf that begins at base. left bounds what a leaf full of
// overlapping elements may cost.
func newSalvage(r io.ReaderAt, base, size int64) *salvage {
	return &salvage{r: r, base: base, size: size, left: maxRun}
}

// run visits elements from number from on. It returns how much it read.
func (s *salvage) run(h pageHead, from int, visit func(leafElement)) (read int64) {
	s.readIndex(int(h.count))
	end := int64(0) // of the element before, 0 when that is not known
	if from > 0 && elementSize*from <= len(s.index) {
		e := s.element(from - 1) // which was sound
		end = e.at + e.key + e.value
	}
	for i := from; i < len(s.index)/elementSize; i++ {
		e := s.element(i)
		at, key, value := s.sound(i, e, end)
		if end = 0; key == nil {
			continue
		}
		end = at + int64(len(key)+len(value))
		visit(leafElement{flags: e.flags, key: key, value: value})
	}
	return maxRun - s.left
}

// readIndex reads the elements. Keys follow them without a gap, so the position
// of the first says how many there are, too.
func (s *salvage) readIndex(count int) {
	most := (s.size - s.base - pageFront) / elementSize
	s.index = s.at(pageFront, min(int64(max(count, 1)), most)*elementSize)
	if len(s.index) == 0 {
		return
	}
	if n := (s.element(0).at - pageFront) / elementSize; n > int64(count) && n < 0xFFFF {
		s.index = s.at(pageFront, min(n, most)*elementSize)
	}
	s.index = bytes.Clone(s.index)
}

// placed is an element with its position counted from the leaf.
type placed struct {
	flags          uint32
	at, key, value int64
}

func (s *salvage) element(i int) placed {
	o, e := binary.NativeEndian, s.index[elementSize*i:]
	return placed{
		flags: o.Uint32(e), at: int64(pageFront+elementSize*i) + int64(o.Uint32(e[4:])),
		key: int64(o.Uint32(e[8:])), value: int64(o.Uint32(e[12:])),
	}
}

// sound tries element i as it is, then with its position behind the element
// before, then with either size so that it ends where the next one begins.
func (s *salvage) sound(i int, e placed, end int64) (at int64, key, value []byte) {
	tries := []placed{e}
	if end != 0 && end != e.at {
		tries = append(tries, placed{at: end, key: e.key, value: e.value})
	}
	if elementSize*(i+1) < len(s.index) {
		all := s.element(i+1).at - e.at
		tries = append(tries, placed{at: e.at, key: all - e.value, value: e.value}, placed{at: e.at, key: e.key, value: all - e.key})
	}
	for _, t := range tries {
		if t.key <= 0 || t.key > maxKey || t.value < sumSize || t.value > maxRun {
			continue
		}
		b := s.at(t.at, t.key+t.value)
		if b == nil {
			continue
		}
		if _, err := unseal(b[:t.key], b[t.key:]); err == nil {
			return t.at, b[:t.key:t.key], b[t.key:]
		}
	}
	return 0, nil, nil
}

// at reads n bytes of the leaf, and of what lies behind it; nil when they cannot
// be had.
func (s *salvage) at(off, n int64) []byte {
	if n <= 0 || n > s.left || off+n > s.size-s.base {
		return nil
	}
	s.left -= n
	if int64(cap(s.buf)) < n {
		s.buf = make([]byte, n)
	}
	b := s.buf[:n]
	if _, err := s.r.ReadAt(b, s.base+off); err != nil {
		return nil
	}
	return b
}
