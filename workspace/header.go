package workspace

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"os"
)

// pageSize is fixed so that images do not depend on the host that made them.
const pageSize = 4096

// checkHeader looks at bbolt's two header pages before bbolt does, which
// trusts them: a file that is something else, or shorter than its header
// promises, would end in faults of the memory map.
func checkHeader(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("open image: %w", err)
	}
	if !st.Mode().IsRegular() {
		return imageError("open", ErrNotImage, "it is not a regular file")
	}
	var best boltHeader
	known := false
	for i := range int64(2) {
		h, err := readBoltHeader(f, i*pageSize)
		known = known || err == nil
		if h.valid && h.txid >= best.txid {
			best = h
		}
	}
	switch {
	case !known, best.valid && best.pageSize != pageSize:
		return imageError("open", ErrNotImage, "")
	case !best.valid:
		return imageError("open", ErrCorrupt, "both copies of its header fail their checksum")
	case best.pages > uint64(st.Size())/pageSize:
		return imageError("open", ErrCorrupt, "its file is shorter than its header says")
	}
	return nil
}

// boltHeader is the part of a header page that checkHeader needs.
type boltHeader struct {
	valid    bool // its checksum holds
	pageSize uint32
	pages    uint64 // high water mark
	txid     uint64
}

// readBoltHeader reads a header page in the layout of bbolt's internal/common:
// 16 bytes in front of every page, then magic u32, version u32, page size u32,
// flags u32, root 2 × u64, free list u64, high water mark u64, transaction
// u64, FNV-1a of all that u64, in the byte order of the host that wrote it. It
// fails when there is no such page at all.
func readBoltHeader(f *os.File, off int64) (boltHeader, error) {
	var page [80]byte
	if _, err := f.ReadAt(page[:], off); err != nil {
		return boltHeader{}, err
	}
	meta, order := page[16:], binary.NativeEndian
	if order.Uint32(meta) != 0xED0CDAED {
		return boltHeader{}, ErrNotImage
	}
	sum := fnv.New64a()
	sum.Write(meta[:56])
	return boltHeader{
		valid:    order.Uint32(meta[4:]) == 2 && sum.Sum64() == order.Uint64(meta[56:]),
		pageSize: order.Uint32(meta[8:]),
		pages:    order.Uint64(meta[40:]),
		txid:     order.Uint64(meta[48:]),
	}, nil
}
