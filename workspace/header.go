package workspace

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// pageSize is fixed so that images do not depend on the host that made them.
const pageSize = 4096

// header is what bbolt's two header pages say about the file.
type header struct {
	boltHeader          // the copy that bbolt goes by: the newest whose checksum holds
	copy       int      // which one that is
	faults     []string // what is wrong with a copy
}

// readHeader looks at bbolt's two header pages before bbolt does, which trusts
// them: a file that is something else would end in faults of the memory map.
//
// Errors: ErrNotImage; ErrCorrupt when neither copy is good.
func readHeader(f *os.File) (*header, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open image: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, imageError("open", ErrNotImage, "it is not a regular file")
	}
	var h header
	known := false
	for i := range 2 {
		c, err := readBoltHeader(f, int64(i)*pageSize)
		known = known || err == nil
		if c.valid && c.pageSize != pageSize {
			return nil, imageError("open", ErrNotImage, "")
		}
		switch {
		case !c.valid:
			h.faults = append(h.faults, fmt.Sprintf("copy %d of its header fails its checksum", i))
		case !c.framed:
			h.faults = append(h.faults, fmt.Sprintf("the page of copy %d of its header is not marked as one", i))
		}
		if c.valid && (!h.valid || c.txid > h.txid) {
			h.boltHeader, h.copy = c, i
		}
	}
	switch {
	case !known:
		return nil, imageError("open", ErrNotImage, "")
	case !h.valid:
		return nil, imageError("open", ErrCorrupt, "both copies of its header fail their checksum")
	}
	return &h, nil
}

// boltHeader is one copy of the header.
type boltHeader struct {
	valid    bool // its checksum holds
	framed   bool // its page is marked as a header page
	pageSize uint32
	root     uint64 // page of the list of buckets
	freeList uint64 // page of the list of free pages
	pages    uint64 // high water mark
	txid     uint64
}

// readBoltHeader reads a header page in the layout of bbolt's internal/common:
// 16 bytes in front of every page, then magic u32, version u32, page size u32,
// flags u32, root 2 × u64, free list u64, high water mark u64, transaction
// u64, FNV-1a of all that u64, in the byte order of the host that wrote it. It
// fails when there is no such page at all.
func readBoltHeader(r io.ReaderAt, off int64) (boltHeader, error) {
	var page [80]byte
	if _, err := r.ReadAt(page[:], off); err != nil {
		return boltHeader{}, err
	}
	meta, order := page[16:], binary.NativeEndian
	if order.Uint32(meta) != 0xED0CDAED {
		return boltHeader{}, ErrNotImage
	}
	sum := fnv.New64a()
	sum.Write(meta[:56])
	front := parsePageHead(page[:])
	return boltHeader{
		valid:    order.Uint32(meta[4:]) == 2 && sum.Sum64() == order.Uint64(meta[56:]),
		framed:   front.flags == flagMeta && front.id == uint64(off/pageSize),
		pageSize: order.Uint32(meta[8:]),
		root:     order.Uint64(meta[16:]),
		freeList: order.Uint64(meta[32:]),
		pages:    order.Uint64(meta[40:]),
		txid:     order.Uint64(meta[48:]),
	}, nil
}
