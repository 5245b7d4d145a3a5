package archive

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Format is what a file is by its first bytes.
type Format string

const (
	Vdisk   Format = "vdisk" // a disk image, which is none of this package's
	Tar     Format = "tar"   // also whatever is not recognised
	TarZstd Format = "tar.zst"
	TarGzip Format = "tar.gz"
)

// SniffBytes is how many first bytes Sniff wants to see.
const SniffBytes = 2 * pageSize

const pageSize = 4096 // of a disk image

// Sniff tells formats apart by their magic numbers: of bbolt's two header pages, of zstd
// (RFC 8878 §3.1.1, also a skippable frame) and of gzip (RFC 1952 §2.3.1).
func Sniff(head []byte) Format {
	for at := 16; at+4 <= len(head); at += pageSize {
		if binary.LittleEndian.Uint32(head[at:]) == 0xED0CDAED {
			return Vdisk
		}
	}
	switch {
	case len(head) >= 4 && (binary.LittleEndian.Uint32(head) == 0xFD2FB528 || binary.LittleEndian.Uint32(head)&^0xF == 0x184D2A50):
		return TarZstd
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return TarGzip
	}
	return Tar
}

// others are formats that are told by name, so that nobody has to guess.
var others = []struct{ magic, name string }{
	{"\xfd7zXZ\x00", "xz"}, {"BZh", "bzip2"}, {"PK\x03\x04", "zip"}, {"7z\xbc\xaf\x27\x1c", "7-Zip"}, {"Rar!", "RAR"},
}

// The window that a decoder keeps, and with it what a frame may ask for. It is what
// `zstd --ultra -20` takes.
const maxWindow = 32 << 20

// plain gives the tar stream of r, and in what form it came.
func plain(r io.Reader) (f Format, s io.Reader, end func(), err error) {
	in := bufio.NewReaderSize(r, 64<<10)
	head, err := in.Peek(SniffBytes)
	if len(head) == 0 {
		if err != nil && err != io.EOF {
			return f, nil, nil, err
		}
		return f, nil, nil, &Error{Kind: ErrFormat, Detail: "it is empty"}
	}
	nothing := func() {}
	switch f = Sniff(head); f {
	case Vdisk:
		return f, nil, nil, &Error{Kind: ErrFormat, Detail: "it is a disk image"}
	case TarZstd:
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(2*maxWindow))
		if err != nil {
			return f, nil, nil, err
		}
		return f, z, z.Close, nil
	case TarGzip:
		z, err := gzip.NewReader(in)
		if err != nil {
			return f, nil, nil, unpackError(err)
		}
		return f, z, nothing, nil
	}
	for _, o := range others {
		if bytes.HasPrefix(head, []byte(o.magic)) {
			return f, nil, nil, &Error{Kind: ErrFormat, Detail: "it is in the format " + o.name + "; tar is read, plain, in zstd or in gzip"}
		}
	}
	return f, in, nothing, nil
}
