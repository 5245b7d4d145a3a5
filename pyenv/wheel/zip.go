package wheel

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"io"
	"slices"
)

// entry is one file or directory of the archive.
type entry struct {
	name   string
	dir    bool
	exec   bool   // any of its x bits is set
	method uint16 // stored or deflated
	flags  uint16
	crc    uint32
	packed int64 // bytes in the archive
	size   int64 // bytes unpacked
	header int64 // offset of the local header
	data   int64 // offset of the packed bytes

	hash recorded // what RECORD says, see record.go
}

// The two methods that a wheel may use.
const (
	stored   = 0
	deflated = 8
)

// scan reads all headers of a zip file and refuses whatever two readers might
// see differently. The rules are those of PyPI and more: the archive begins at
// the first byte and ends at the last, local headers and data follow each other
// without a gap up to the central directory, and say the same as it does.
//
// Nothing is inflated. Memory grows with the number of entries only.
func scan(r io.ReaderAt, size int64, o Options) ([]*entry, error) {
	end, err := readEnd(r, size, o)
	if err != nil {
		return nil, err
	}
	entries, err := readCentral(r, end, o)
	if err != nil {
		return nil, err
	}
	if err := checkSizes(entries, size, o); err != nil {
		return nil, err
	}
	if err := checkLocals(r, entries, end.offset); err != nil {
		return nil, err
	}
	return entries, checkUnique(entries, o)
}

// end is what the end record says about the central directory.
type end struct {
	entries      int
	offset, size int64
}

const (
	endLen     = 22
	locatorLen = 20
	centralLen = 46
	localLen   = 30
)

// maxCentral bounds the memory for names: 60,000 of 90 bytes, or 28,000 of the
// longest.
const maxCentral = 8 << 20

// readEnd finds the one end record, which must be the last thing of the file and
// directly behind the central directory. Archives with records of zip64 are
// refused: no wheel below 4 GiB needs them.
func readEnd(r io.ReaderAt, size int64, o Options) (end, error) {
	if size < endLen {
		return end{}, refuse(ErrZipDamaged, "", "it has %d bytes and cannot be a zip file", size)
	}
	tail := make([]byte, min(size, endLen+1<<16-1+locatorLen))
	if err := readAt(r, tail, size-int64(len(tail))); err != nil {
		return end{}, err
	}
	at := bytes.LastIndex(tail, []byte("PK\x05\x06"))
	if at < 0 {
		return end{}, refuse(ErrZipDamaged, "", "it has no end record: not a zip file, or cut off")
	}
	rec := tail[at:]
	if len(rec) < endLen || len(rec) != endLen+int(le16(rec[20:])) {
		return end{}, refuse(ErrZipAmbiguous, "", "its end record is not its end")
	}
	if bytes.ContainsAny(rec[endLen:], "\x01\x02\x03\x04\x05\x06\x07\x08") {
		return end{}, refuse(ErrZipAmbiguous, "", "its comment looks like a part of the archive")
	}
	if at >= locatorLen && bytes.HasPrefix(tail[at-locatorLen:], []byte("PK\x06\x07")) {
		return end{}, refuseZip64(r, tail[at-locatorLen:], o)
	}
	e := end{entries: int(le16(rec[10:])), size: int64(le32(rec[12:])), offset: int64(le32(rec[16:]))}
	switch {
	case le16(rec[4:]) != 0, le16(rec[6:]) != 0, le16(rec[8:]) != le16(rec[10:]):
		return end{}, refuse(ErrZipAmbiguous, "", "it is one of several volumes")
	case e.entries == 0xffff, e.size == 0xffffffff, e.offset == 0xffffffff:
		return end{}, refuse(ErrZipAmbiguous, "", "its end record leaves its numbers to another one")
	case e.entries > o.MaxEntries:
		return end{}, refuse(ErrZipBomb, "", "%d entries are over the limit of %d", e.entries, o.MaxEntries)
	case e.size > maxCentral:
		return end{}, refuse(ErrZipBomb, "", "a central directory of %d bytes is over the limit of %d", e.size, maxCentral)
	case e.offset+e.size != size-int64(len(rec)):
		return end{}, refuse(ErrZipAmbiguous, "", "its central directory is not where its end record says")
	}
	return e, nil
}

// refuseZip64 refuses an archive with a zip64 locator, by the reason that the
// reader can do something about if there are too many entries.
func refuseZip64(r io.ReaderAt, locator []byte, o Options) error {
	var rec [56]byte
	at := binary.LittleEndian.Uint64(locator[8:])
	if at < 1<<62 && readAt(r, rec[:], int64(at)) == nil && bytes.HasPrefix(rec[:], []byte("PK\x06\x06")) {
		if n := binary.LittleEndian.Uint64(rec[32:]); n > uint64(o.MaxEntries) {
			return refuse(ErrZipBomb, "", "%d entries are over the limit of %d", n, o.MaxEntries)
		}
	}
	return refuse(ErrZipAmbiguous, "", "it has records of zip64, which no wheel of this size needs")
}

// readCentral reads the central directory, which must be as long as the end
// record says and have as many entries.
func readCentral(r io.ReaderAt, e end, o Options) ([]*entry, error) {
	in := bufio.NewReaderSize(io.NewSectionReader(r, e.offset, e.size), 64<<10)
	entries := make([]*entry, 0, e.entries)
	for range e.entries {
		h, err := readCentralHeader(in)
		if err != nil {
			return nil, err
		}
		ent, err := h.entry(o)
		if err != nil {
			return nil, err
		}
		entries = append(entries, ent)
	}
	if _, err := in.ReadByte(); err == nil {
		return nil, refuse(ErrZipAmbiguous, "", "its central directory goes on behind its last entry")
	} else if err != io.EOF {
		return nil, err
	}
	return entries, nil
}

// centralHeader is one header of the central directory (APPNOTE 4.3.12).
type centralHeader struct {
	fixed [centralLen]byte
	name  string
	extra []byte
}

func readCentralHeader(in *bufio.Reader) (*centralHeader, error) {
	var h centralHeader
	if err := readFull(in, h.fixed[:]); err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(h.fixed[:], []byte("PK\x01\x02")) {
		return nil, refuse(ErrZipAmbiguous, "", "its central directory has something else than entries")
	}
	nameLen, extraLen := int(le16(h.fixed[28:])), int(le16(h.fixed[30:]))
	rest := make([]byte, nameLen+extraLen+int(le16(h.fixed[32:]))) // the comment is of no use
	if err := readFull(in, rest); err != nil {
		return nil, err
	}
	h.name, h.extra = string(rest[:nameLen]), rest[nameLen:nameLen+extraLen]
	return &h, nil
}

// entry checks a header by itself.
func (h *centralHeader) entry(o Options) (*entry, error) {
	if err := checkName(h.name); err != nil {
		return nil, err
	}
	b := h.fixed[:]
	e := &entry{
		name: h.name, flags: le16(b[8:]), method: le16(b[10:]), crc: le32(b[16:]),
		packed: int64(le32(b[20:])), size: int64(le32(b[24:])), header: int64(le32(b[42:])),
	}
	if err := e.setType(le32(b[38:])); err != nil {
		return nil, err
	}
	switch {
	case e.flags&^(flagLevel|flagStream|flagUTF8) != 0:
		return nil, refuse(ErrZipAmbiguous, e.name, "it is encrypted or uses another feature that wheels have not")
	case e.method != stored && e.method != deflated:
		return nil, refuse(ErrZipAmbiguous, e.name, "compression method %d is not known", e.method)
	case e.flags&flagUTF8 == 0 && !ascii(e.name):
		return nil, refuse(ErrZipAmbiguous, e.name, "the encoding of its name is not stated")
	case le16(b[34:]) != 0:
		return nil, refuse(ErrZipAmbiguous, e.name, "it lies in another volume")
	case e.packed == 0xffffffff, e.size == 0xffffffff, e.header == 0xffffffff:
		return nil, refuse(ErrZipAmbiguous, e.name, "it uses zip64")
	case e.method == stored && e.packed != e.size:
		return nil, refuse(ErrZipAmbiguous, e.name, "it is not compressed, but has two sizes")
	case e.dir && e.size != 0:
		return nil, refuse(ErrZipType, e.name, "a directory with content")
	}
	_, err := checkExtra(e.name, h.extra, false)
	return e, err
}

// Flags of an entry: bits 1 and 2 tell how hard the packer tried.
const (
	flagLevel  = 0x0006
	flagStream = 0x0008 // sizes follow the data
	flagUTF8   = 0x0800
)

// setType takes the type from the external attributes: the upper half is the
// st_mode of Unix, whoever made the archive, as readers of wheels take it.
func (e *entry) setType(attr uint32) error {
	const format, regular, directory, dosDirectory = 0xf000, 0x8000, 0x4000, 0x10
	mode := attr >> 16
	e.dir = e.name[len(e.name)-1] == '/'
	e.exec = mode&0o111 != 0
	switch kind := mode & format; {
	case kind != 0 && kind != regular && kind != directory:
		return refuse(ErrZipType, e.name, "it is a link, a device or a pipe")
	case e.dir && kind == regular, !e.dir && kind == directory, !e.dir && attr&dosDirectory != 0:
		return refuse(ErrZipType, e.name, "its name and its type do not agree on whether it is a directory")
	}
	return nil
}

// checkExtra reads extra fields, which must be whole. Those that give an entry
// another name are refused, those of zip64 too except in a local header, of
// which the value is returned.
func checkExtra(name string, extra []byte, local bool) (zip64 []byte, err error) {
	for len(extra) > 0 {
		if len(extra) < 4 || len(extra) < 4+int(le16(extra[2:])) {
			return nil, refuse(ErrZipAmbiguous, name, "it has an extra field that is cut off")
		}
		id, value := le16(extra), extra[4:4+int(le16(extra[2:]))]
		extra = extra[4+len(value):]
		switch {
		case id == 0x7075:
			return nil, refuse(ErrZipAmbiguous, name, "it has a second name")
		case id == 0x0001 && local && zip64 == nil:
			zip64 = value
		case id == 0x0001:
			return nil, refuse(ErrZipAmbiguous, name, "it uses zip64")
		}
	}
	return zip64, nil
}

// checkSizes applies the limits of size to what the headers say; that they do
// not lie is found out when the data is read.
func checkSizes(entries []*entry, archive int64, o Options) error {
	var total int64
	for _, e := range entries {
		if e.size > o.MaxFile {
			return refuse(ErrZipBomb, e.name, "%d bytes are over the limit of %d for one file", e.size, o.MaxFile)
		}
		total += e.size // 65,535 sizes of 32 bits cannot overflow
	}
	switch {
	case total > o.MaxTotal:
		return refuse(ErrZipBomb, "", "%d bytes unpacked are over the limit of %d", total, o.MaxTotal)
	case total > ratioFloor && total/archive >= o.MaxRatio:
		return refuse(ErrZipBomb, "", "%d bytes unpack to %d, over the limit of 1 to %d", archive, total, o.MaxRatio)
	}
	return nil
}

// checkLocals walks the local headers from the first byte of the file to the
// central directory, without a gap.
func checkLocals(r io.ReaderAt, entries []*entry, central int64) error {
	order := slices.Clone(entries)
	slices.SortStableFunc(order, func(a, b *entry) int { return cmp.Compare(a.header, b.header) })
	var at int64
	for i, e := range order {
		if e.header != at {
			return refuse(ErrZipAmbiguous, e.name, "its data is not where the one before it ends")
		}
		next := central
		if i+1 < len(order) {
			next = order[i+1].header
		}
		if err := e.checkLocal(r, next); err != nil {
			return err
		}
		at = next
	}
	if at != central {
		return refuse(ErrZipAmbiguous, "", "something lies in front of its central directory")
	}
	return nil
}

// checkLocal compares the local header (APPNOTE 4.3.7) and the descriptor behind
// the data with the central header. The next thing of the archive is at next.
func (e *entry) checkLocal(r io.ReaderAt, next int64) error {
	var fixed [localLen]byte
	if e.header+localLen > next {
		return refuse(ErrZipAmbiguous, e.name, "its local header overlaps what follows")
	}
	if err := readAt(r, fixed[:], e.header); err != nil {
		return err
	}
	b := fixed[:]
	if !bytes.HasPrefix(b, []byte("PK\x03\x04")) {
		return refuse(ErrZipAmbiguous, e.name, "it has no local header")
	}
	nameLen, extraLen := int64(le16(b[26:])), int64(le16(b[28:]))
	e.data = e.header + localLen + nameLen + extraLen
	if e.data+e.packed > next {
		return refuse(ErrZipAmbiguous, e.name, "its data overlaps what follows")
	}
	rest := make([]byte, nameLen+extraLen)
	if err := readAt(r, rest, e.header+localLen); err != nil {
		return err
	}
	if string(rest[:nameLen]) != e.name || le16(b[6:]) != e.flags || le16(b[8:]) != e.method {
		return refuse(ErrZipAmbiguous, e.name, "its local header has another name or method")
	}
	zip64, err := checkExtra(e.name, rest[nameLen:], true)
	if err != nil {
		return err
	}
	if !e.sameNumbers(b, zip64) {
		return refuse(ErrZipAmbiguous, e.name, "its local header has another size or checksum")
	}
	return e.checkDescriptor(r, next, zip64 != nil)
}

// sameNumbers compares CRC and sizes. A streamed entry may leave them zero. Some
// packers write the sizes as zip64 into every local header.
func (e *entry) sameNumbers(b, zip64 []byte) bool {
	crc, packed, size := le32(b[14:]), uint64(le32(b[18:])), uint64(le32(b[22:]))
	if zip64 != nil {
		if packed != 0xffffffff || size != 0xffffffff || len(zip64) != 16 {
			return false
		}
		size, packed = binary.LittleEndian.Uint64(zip64), binary.LittleEndian.Uint64(zip64[8:])
	}
	if e.flags&flagStream != 0 && crc == 0 && packed == 0 && size == 0 {
		return true
	}
	return crc == e.crc && packed == uint64(e.packed) && size == uint64(e.size)
}

// checkDescriptor reads what lies between the data and the next thing: nothing,
// or for a streamed entry its CRC and sizes, with or without a signature
// (APPNOTE 4.3.9).
func (e *entry) checkDescriptor(r io.ReaderAt, next int64, zip64 bool) error {
	gap := next - e.data - e.packed
	if e.flags&flagStream == 0 {
		if gap != 0 {
			return refuse(ErrZipAmbiguous, e.name, "%d bytes behind its data belong to nothing", gap)
		}
		return nil
	}
	want := binary.LittleEndian.AppendUint32([]byte("PK\x07\x08"), e.crc)
	if zip64 {
		want = binary.LittleEndian.AppendUint64(want, uint64(e.packed))
		want = binary.LittleEndian.AppendUint64(want, uint64(e.size))
	} else {
		want = binary.LittleEndian.AppendUint32(want, uint32(e.packed))
		want = binary.LittleEndian.AppendUint32(want, uint32(e.size))
	}
	if gap != int64(len(want)) && gap != int64(len(want))-4 {
		return refuse(ErrZipAmbiguous, e.name, "%d bytes behind its data are no descriptor", gap)
	}
	have := make([]byte, gap)
	if err := readAt(r, have, e.data+e.packed); err != nil {
		return err
	}
	if !bytes.HasSuffix(want, have) {
		return refuse(ErrZipAmbiguous, e.name, "its descriptor has another size or checksum")
	}
	return nil
}

// readAt fills b; a file that ends too early is damaged.
func readAt(r io.ReaderAt, b []byte, at int64) error {
	n, err := r.ReadAt(b, at)
	switch {
	case n == len(b):
		return nil
	case err == io.EOF:
		return refuse(ErrZipDamaged, "", "it is shorter than it says")
	}
	return err
}

func readFull(in io.Reader, b []byte) error {
	_, err := io.ReadFull(in, b)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return refuse(ErrZipAmbiguous, "", "its central directory ends inside an entry")
	}
	return err
}

func le16(b []byte) uint16 { return binary.LittleEndian.Uint16(b) }
func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
