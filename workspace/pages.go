package workspace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
)

// pages reads the structure of a bbolt file, version 2 of its format as bbolt
// v1.5.0 writes it (its internal/common, node.go, internal/freelist), without
// bbolt and without trust: every number is checked before it is used, nothing
// recurses, and what cannot be read is told and left out. bbolt itself follows
// whatever a page says; a branch page that leads back to itself overflows its
// stack, which nothing in a Go process can catch.
//
// A page starts with id u64, flags u16, count u16, overflow u32: how many
// further pages it runs over. Elements follow, 16 bytes each, and then their
// keys and values without a gap, in the same order:
//
//	branch   position u32, key size u32, page u64
//	leaf     flags u32 (1: the value is a bucket), position u32, key size u32, value size u32
//
// A position counts from its element. A bucket is root page u64, sequence u64;
// root 0 says that its one leaf follows within the value.
type pages struct {
	r    io.ReaderAt
	size int64 // of the file
	head *header

	// fault is told everything that is wrong, in the order in which it is met.
	fault func(pageFault)

	deep    bool    // read leaves to their end; else only their first page
	reached pageSet // pages that belong to something
	walked  pageSet // first pages of what was walked
	free    pageSet
	badFree bool  // the list of free pages cannot be relied on
	shared  int   // branch pages that were reached once more
	bytes   int64 // read so far

	ahead   []byte // pages read ahead of their use
	aheadAt uint64
	buf     []byte // the leaf being visited
}

// Flags of a page.
const (
	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagMeta     = 0x04
	flagFreeList = 0x10
)

const (
	pageFront     = 16 // bytes in front of every page
	elementSize   = 16
	bucketFront   = 16
	elementBucket = 1        // flag of a leaf element
	maxKey        = 32 << 10 // bbolt's MaxKeySize
	maxRun        = 64 << 20 // bytes of a leaf; two of the largest values of an image are half of it
	maxLevels     = 32       // of a tree; bbolt's have at least two keys on a page
	maxShared     = 4        // each branch page with two parents may double the ways through a tree
	readAhead     = 64       // pages
)

// pageFault is one thing that is wrong with the structure of a file.
type pageFault struct {
	page   uint64
	kind   string // "branch", "leaf", "free list"; "" when unknown
	bucket string // "" for the list of buckets
	text   string // what is wrong, a predicate

	// endless says that bbolt could follow the page for ever, or to anywhere.
	endless bool
}

// where is "page 17 (branch) of chunks".
func (f *pageFault) where() string {
	s := fmt.Sprintf("page %d", f.page)
	if f.kind != "" {
		s += " (" + f.kind + ")"
	}
	switch {
	case f.bucket != "":
		s += " of " + f.bucket
	case f.kind != kindFreeList:
		s += " of the list of buckets"
	}
	return s
}

const (
	kindBranch   = "branch"
	kindLeaf     = "leaf"
	kindFreeList = "free list"
)

func newPages(r io.ReaderAt, size int64, h *header, fault func(pageFault)) *pages {
	p := &pages{r: r, size: size, head: h, fault: fault}
	p.reached.add(0, 2)
	return p
}

// inFile is how many whole pages the file has.
func (p *pages) inFile() uint64 { return uint64(p.size) / pageSize }

type pageHead struct {
	id       uint64
	flags    uint16
	count    uint16
	overflow uint32
}

func parsePageHead(b []byte) pageHead {
	o := binary.NativeEndian
	return pageHead{o.Uint64(b), o.Uint16(b[8:]), o.Uint16(b[10:]), o.Uint32(b[12:])}
}

// run is how many pages a page runs over.
func (h *pageHead) run() uint64 { return uint64(h.overflow) + 1 }

func (h *pageHead) kind() string {
	switch h.flags {
	case flagBranch:
		return kindBranch
	case flagLeaf:
		return kindLeaf
	case flagFreeList:
		return kindFreeList
	}
	return ""
}

// first returns the first page of a run. following are the pages that are
// going to be asked for next: when they lie close behind, one read brings them
// along. The result is good until the next call.
func (p *pages) first(id uint64, following []branchElement) ([]byte, error) {
	if at := id - p.aheadAt; id >= p.aheadAt && (at+1)*pageSize <= uint64(len(p.ahead)) {
		return p.ahead[at*pageSize : (at+1)*pageSize], nil
	}
	n, wanted := uint64(1), uint64(1)
	for _, e := range following[:min(len(following), readAhead)] {
		gap := e.page - id
		if gap >= readAhead || e.page >= p.inFile() {
			break
		}
		if wanted++; gap+1 <= 4*wanted {
			n = gap + 1
		}
	}
	if p.ahead == nil {
		p.ahead = make([]byte, 0, readAhead*pageSize)
	}
	b := p.ahead[:n*pageSize]
	p.ahead, p.aheadAt = b[:0], id
	if _, err := p.r.ReadAt(b, int64(id)*pageSize); err != nil {
		return nil, err
	}
	p.bytes += int64(len(b))
	p.ahead = b
	return b[:pageSize], nil
}

// whole returns a run of which the first page is known, in buf.
func (p *pages) whole(id uint64, first []byte, run uint64, buf []byte) ([]byte, error) {
	buf = append(buf[:0], first...)
	if run == 1 {
		return buf, nil
	}
	n := int(run) * pageSize
	if cap(buf) < n {
		buf = append(make([]byte, 0, n+n/4), buf...)
	}
	buf = buf[:n]
	if _, err := p.r.ReadAt(buf[pageSize:], int64(id+1)*pageSize); err != nil {
		return nil, err
	}
	p.bytes += int64(n - pageSize)
	return buf, nil
}

// branchElement leads to the page of the keys from key on.
type branchElement struct {
	key  []byte
	page uint64
}

// parseBranch reads the elements of a branch page. It fails when they do not
// fit into the page. wrong is what is wrong with their keys.
func parseBranch(h pageHead, b []byte) (elements []branchElement, wrong string, ok bool) {
	end := uint64(pageFront) + elementSize*uint64(h.count)
	if h.count == 0 || end > uint64(len(b)) {
		return nil, "", false
	}
	elements = make([]branchElement, h.count)
	o := binary.NativeEndian
	for i := range elements {
		e := b[pageFront+elementSize*i:]
		elements[i].page = o.Uint64(e[8:])
		at := uint64(pageFront+elementSize*i) + uint64(o.Uint32(e))
		size := uint64(o.Uint32(e[4:]))
		if at != end || size == 0 || size > maxKey || at+size > uint64(len(b)) {
			wrong, end = fmt.Sprintf("has element %d where it does not belong", i), ^uint64(0)
			continue
		}
		end = at + size
		elements[i].key = b[at:end]
	}
	for i := 1; i < len(elements) && wrong == ""; i++ {
		if bytes.Compare(elements[i-1].key, elements[i].key) >= 0 {
			wrong = fmt.Sprintf("has keys out of order at element %d", i)
		}
	}
	return elements, wrong, true
}

// leafElement is an entry of a leaf. Key and value are nil where the part of
// the run that was read does not hold them.
type leafElement struct {
	flags      uint32
	key, value []byte
}

// leaf goes through the elements of a leaf of which b is the beginning and
// whole the length. An element that does not lie where it should ends it.
func parseLeaf(h pageHead, b []byte, whole uint64, visit func(i int, e leafElement) (wrong string)) (wrong string) {
	end := uint64(pageFront) + elementSize*uint64(h.count)
	if end > whole {
		return "has elements that do not fit into it"
	}
	o := binary.NativeEndian
	for i := range int(h.count) {
		off := pageFront + elementSize*i
		if off+elementSize > len(b) {
			return ""
		}
		e := b[off:]
		at := uint64(off) + uint64(o.Uint32(e[4:]))
		key, value := uint64(o.Uint32(e[8:])), uint64(o.Uint32(e[12:]))
		if at != end || key == 0 || key > maxKey || at+key+value > whole {
			return fmt.Sprintf("has element %d where it does not belong", i)
		}
		end = at + key + value
		el := leafElement{flags: o.Uint32(e)}
		if at+key <= uint64(len(b)) {
			el.key = b[at : at+key]
		}
		if end <= uint64(len(b)) {
			el.value = b[at+key : end]
		}
		if wrong := visit(i, el); wrong != "" {
			return wrong
		}
	}
	return ""
}

// pageSet is a set of page numbers, made of blocks that exist only where it
// has members: a file may claim to be of any size.
type pageSet struct{ blocks map[uint64]*[64]uint64 }

const blockPages = 64 * 64

func (s *pageSet) has(id uint64) bool {
	b := s.blocks[id/blockPages]
	return b != nil && b[id%blockPages/64]&(1<<(id%64)) != 0
}

// add puts n pages from id on into the set, and says whether one was in it.
func (s *pageSet) add(id, n uint64) (again bool) {
	var b *[64]uint64
	for i := id; i < id+n; i++ {
		if b == nil || i%blockPages == 0 {
			b = s.block(i / blockPages)
		}
		bit := uint64(1) << (i % 64)
		again = again || b[i%blockPages/64]&bit != 0
		b[i%blockPages/64] |= bit
	}
	return again
}

// count is how many pages are in the set.
func (s *pageSet) count() (n int64) {
	for _, b := range s.blocks {
		for _, word := range b {
			n += int64(bits.OnesCount64(word))
		}
	}
	return n
}

func (s *pageSet) block(i uint64) *[64]uint64 {
	b := s.blocks[i]
	if b == nil {
		if s.blocks == nil {
			s.blocks = map[uint64]*[64]uint64{}
		}
		b = new([64]uint64)
		s.blocks[i] = b
	}
	return b
}
