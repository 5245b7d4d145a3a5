package workspace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Every value of the image ends in four bytes of CRC-32C over key and value,
// since bbolt's data pages have no checksum of their own. The key is part of
// it, so a value that got under another key does not pass either.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const sumSize = 4

// seal appends the checksum to a value that is going to be stored under key.
func seal(key, value []byte) []byte {
	sum := crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
	return binary.LittleEndian.AppendUint32(value, sum)
}

// unseal checks a stored value and returns it without its checksum. The result
// points into the value.
func unseal(key, stored []byte) ([]byte, error) {
	if len(stored) < sumSize {
		return nil, errors.New("value too short for its checksum")
	}
	value := stored[:len(stored)-sumSize]
	want := binary.LittleEndian.Uint32(stored[len(value):])
	if sum := crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value); sum != want {
		return nil, fmt.Errorf("checksum is %08x, not %08x", sum, want)
	}
	return value, nil
}

// decoder reads the canonical encoding: integers are minimal varints, text and
// bytes have their length in front. The first fault sticks; what is read after
// it is zero.
type decoder struct {
	in  []byte
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
		d.in = nil
	}
}

func (d *decoder) byte() byte {
	if len(d.in) == 0 {
		d.fail("value ends early")
		return 0
	}
	b := d.in[0]
	d.in = d.in[1:]
	return b
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.in)
	if n <= 0 || n > 1 && d.in[n-1] == 0 {
		d.fail("bad or padded integer")
		return 0
	}
	d.in = d.in[n:]
	return v
}

// int63 is an unsigned number that must fit in an int64.
func (d *decoder) int63() int64 {
	v := d.uint()
	if v > 1<<63-1 {
		d.fail("integer out of range")
		return 0
	}
	return int64(v)
}

func (d *decoder) int() int64 {
	v := d.uint()
	return int64(v>>1) ^ -int64(v&1)
}

// raw takes n bytes without copying them.
func (d *decoder) raw(n uint64) []byte {
	if uint64(len(d.in)) < n {
		d.fail("value ends early")
		return nil
	}
	b := d.in[:n:n]
	d.in = d.in[n:]
	return b
}

// bytes takes bytes with their length in front, at most most of them.
func (d *decoder) bytes(most uint64) []byte {
	n := d.uint()
	if n > most {
		d.fail("length %d is over the limit of %d", n, most)
		return nil
	}
	return d.raw(n)
}

func (d *decoder) text(most uint64) string { return string(d.bytes(most)) }

func (d *decoder) id() (id [32]byte) {
	copy(id[:], d.raw(32))
	return id
}

// end reports the first fault, or bytes that are left over.
func (d *decoder) end() error {
	if d.err == nil && len(d.in) > 0 {
		d.fail("%d bytes too many", len(d.in))
	}
	return d.err
}

func appendInt(b []byte, v int64) []byte {
	return binary.AppendUvarint(b, uint64(v)<<1^uint64(v>>63))
}

func appendText[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
