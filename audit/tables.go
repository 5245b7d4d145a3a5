package audit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/fb"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/klauspost/compress/snappy"
)

// maxBlock is the size of an unpacked block above which a length is damage:
// a block ends with the first entry that fills 4 KiB, and no entry is bigger
// than a group.
const maxBlock = 16 << 20

// errTable: the content of a table is not what Badger wrote.
var errTable = errors.New("damaged")

// checkTables reads every table of the database in dir once and compares its
// checksums. Badger opens tables in goroutines of its own and ends the process,
// by a panic or by log.Fatal, when the content of one makes no sense to it
// (badger v4.9.6 table.go, initIndex); no recover of ours would see that. That is
// also why table.OpenTable is not used here.
//
// Only the tables that the manifest names count: a process that was killed while
// it wrote one leaves half a file, which Badger removes. A manifest that cannot
// be read is left to Badger, which says so. Nothing is changed. A database that
// another process has open is not read. The error names the file.
func checkTables(dir string) error {
	return alone(dir, func() error {
		m, err := readManifest(dir)
		if err != nil {
			return nil
		}
		for id, t := range m.Tables {
			name := table.NewFilename(id, dir)
			if err := checkTable(name, t.Compression); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
}

// readManifest gives the tables that make up the database in dir.
func readManifest(dir string) (badger.Manifest, error) {
	f, err := os.Open(filepath.Join(dir, badger.ManifestFilename))
	if err != nil {
		return badger.Manifest{}, err
	}
	defer f.Close()
	m, _, err := badger.ReplayManifestFile(f, 0, tuned(dir, nil))
	return m, err
}

// checkTable gives an error unless the index and every block of a table have the
// content that was written. It reads the file instead of mapping it: a bad sector is an error then, no signal.
func checkTable(name string, packing options.CompressionType) (err error) {
	defer func() { // for an index that is whole and yet makes no sense
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errTable, p)
		}
	}()
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: not a regular file", errTable)
	}
	index, end, err := readIndex(f, info.Size())
	if err != nil {
		return err
	}
	return checkBlocks(f, fb.GetRootAsTableIndex(index, 0), end, packing)
}

// readIndex gives the checked index of a table of that size, and where the index
// begins. A table ends with
//
//	INDEX INDEXLEN CHECKSUM CHECKSUMLEN
//
// in which the lengths have four bytes, the highest first.
func readIndex(f io.ReaderAt, size int64) (index []byte, start int64, err error) {
	rest := section{f, size}
	sum, err := rest.cut()
	if err != nil {
		return nil, 0, err
	}
	if index, err = rest.cut(); err != nil {
		return nil, 0, err
	}
	if len(index) == 0 || !bytes.Equal(sum, checksum(index)) {
		return nil, 0, fmt.Errorf("%w: checksum of the index", errTable)
	}
	return index, rest.end, nil
}

// section is the beginning of a file, up to end.
type section struct {
	f   io.ReaderAt
	end int64
}

// cut takes from the end a piece that is followed by its length.
func (s *section) cut() ([]byte, error) {
	length, err := s.take(4)
	if err != nil {
		return nil, err
	}
	return s.take(int64(binary.BigEndian.Uint32(length)))
}

func (s *section) take(n int64) ([]byte, error) {
	if n > s.end {
		return nil, fmt.Errorf("%w: a length exceeds the file", errTable)
	}
	s.end -= n
	return readAt(s.f, s.end, n, nil)
}

// checkBlocks checks all blocks of a table. They fill it from its start to end.
func checkBlocks(f io.ReaderAt, index *fb.TableIndex, end int64, packing options.CompressionType) error {
	if index.OffsetsLength() == 0 {
		return fmt.Errorf("%w: no blocks", errTable)
	}
	var packed, plain []byte // for the next block
	var pos int64
	for i := range index.OffsetsLength() {
		var o fb.BlockOffset
		index.Offsets(&o, i)
		n := int64(o.Len())
		if int64(o.Offset()) != pos || n > end-pos || n > maxBlock {
			return fmt.Errorf("%w: place of block %d", errTable, i)
		}
		var err error
		if packed, err = readAt(f, pos, n, packed); err != nil {
			return err
		}
		block := packed
		if packing != options.None {
			if plain, err = unpack(plain, packed, packing); err != nil {
				return fmt.Errorf("%w: block %d: %w", errTable, i, err)
			}
			block = plain
		}
		if !soundBlock(block) {
			return fmt.Errorf("%w: checksum of block %d", errTable, i)
		}
		pos += n
	}
	if pos != end {
		return fmt.Errorf("%w: bytes after the last block", errTable)
	}
	return nil
}

// unpack reuses buf when it is big enough.
func unpack(buf, packed []byte, packing options.CompressionType) ([]byte, error) {
	if packing != options.Snappy {
		return nil, errors.New("not packed by this program")
	}
	n, err := snappy.DecodedLen(packed)
	if err != nil {
		return nil, err
	}
	if n > maxBlock {
		return nil, errors.New("too big")
	}
	return snappy.Decode(buf[:cap(buf)], packed)
}

// soundBlock: an unpacked block ends with its checksum and the length of it.
func soundBlock(b []byte) bool {
	end := len(b) - 4
	if end < 0 {
		return false
	}
	n := int64(binary.BigEndian.Uint32(b[end:]))
	if n > int64(end)-4 { // the number of its entries goes before
		return false
	}
	data := b[:end-int(n)]
	return bytes.Equal(b[len(data):end], checksum(data))
}

// checksum is how Badger writes the CRC-32C of data: a protocol buffer with the
// sum in field 2, left out when it is zero.
func checksum(data []byte) []byte {
	sum := crc32.Checksum(data, castagnoli)
	if sum == 0 {
		return nil
	}
	return binary.AppendUvarint([]byte{2 << 3}, uint64(sum))
}

// readAt reuses buf when it is big enough.
func readAt(f io.ReaderAt, pos, n int64, buf []byte) ([]byte, error) {
	if int64(cap(buf)) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := f.ReadAt(buf, pos); err != nil {
		return nil, err
	}
	return buf, nil
}
