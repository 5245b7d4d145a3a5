package wheel

import (
	"bufio"
	"bytes"
	"compress/flate"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io"
)

// CheckSHA256 reads a file of size bytes and compares it with the hash of a
// lock, in hexadecimal. Errors: ErrHashMismatch; those of r.
func CheckSHA256(r io.ReaderAt, size int64, want string) error {
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(r, 0, size)); err != nil {
		return err
	}
	if have := hex.EncodeToString(h.Sum(nil)); have != want {
		return refuse(ErrHashMismatch, "", "the file has SHA-256 %s, the lock says %s", have, quote(want))
	}
	return nil
}

// reader reads contents, one after the other. It is not for concurrent use.
type reader struct {
	ctx     context.Context
	r       io.ReaderAt
	packed  *bufio.Reader
	inflate io.ReadCloser
	buf     []byte
}

func newReader(ctx context.Context, r io.ReaderAt) *reader {
	packed := bufio.NewReaderSize(nil, 64<<10)
	return &reader{ctx, r, packed, flate.NewReader(packed), make([]byte, 64<<10)}
}

// copy writes the content of an entry to dst. It must be exactly as long as the
// headers say, and no byte of the packed data may be left over. Errors:
// ErrZipBomb, ErrZipAmbiguous, ErrZipDamaged; those of dst and of the archive.
func (c *reader) copy(dst io.Writer, e *entry) error {
	section := io.NewSectionReader(c.r, e.data, e.packed)
	c.packed.Reset(section)
	var plain io.Reader = c.packed
	if e.method == deflated {
		if err := c.inflate.(flate.Resetter).Reset(c.packed, nil); err != nil {
			return err
		}
		plain = c.inflate
	}
	crc := crc32.NewIEEE()
	n, err := c.pump(io.MultiWriter(dst, crc), plain, e.size)
	switch {
	case broken(err):
		return refuse(ErrZipDamaged, e.name, "its data cannot be inflated")
	case err != nil:
		return err
	case n < e.size:
		return refuse(ErrZipAmbiguous, e.name, "it has %d bytes and says that it has %d", n, e.size)
	}
	if err := c.finish(plain, e); err != nil {
		return err
	}
	if crc.Sum32() != e.crc {
		return refuse(ErrZipDamaged, e.name, "its checksum is wrong")
	}
	return nil
}

// pump copies at most size bytes, and stops when ctx ends.
func (c *reader) pump(dst io.Writer, plain io.Reader, size int64) (n int64, err error) {
	for n < size {
		if err := c.ctx.Err(); err != nil {
			return n, context.Cause(c.ctx)
		}
		k, err := plain.Read(c.buf[:min(int64(len(c.buf)), size-n)])
		if _, err := dst.Write(c.buf[:k]); err != nil {
			return n, err
		}
		n += int64(k)
		if err == io.EOF {
			break
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// finish checks that both the content and the packed data are at their end.
func (c *reader) finish(plain io.Reader, e *entry) error {
	n, err := io.ReadFull(plain, c.buf[:1])
	switch {
	case n > 0:
		return refuse(ErrZipBomb, e.name, "it has more than the %d bytes that it says it has", e.size)
	case broken(err):
		return refuse(ErrZipDamaged, e.name, "its data cannot be inflated")
	case err != io.EOF:
		return err
	}
	switch _, err := c.packed.ReadByte(); err {
	case io.EOF:
		return nil
	case nil:
		return refuse(ErrZipAmbiguous, e.name, "bytes are left over behind its compressed data")
	default:
		return err
	}
}

// broken says whether an error means that the data is no deflate stream.
func broken(err error) bool {
	var corrupt flate.CorruptInputError
	return errors.As(err, &corrupt) || errors.Is(err, io.ErrUnexpectedEOF)
}

// read returns the content of a small file. Errors: as for copy; wheel_metadata
// when it is over most bytes.
func (c *reader) read(e *entry, most int64) ([]byte, error) {
	if e.size > most {
		return nil, refuse(ErrWheelMetadata, e.name, "%d bytes are over the limit of %d", e.size, most)
	}
	b := bytes.NewBuffer(make([]byte, 0, e.size))
	if err := c.copy(b, e); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
