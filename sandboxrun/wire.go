package sandboxrun

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// The stage reports to its parent in frames: one byte of kind, the length of
// the payload as a uvarint, the payload. Numbers in payloads are uvarints
// (varints where they can be negative), strings have their length in front.
const (
	frameTaken    byte = 't' // the orders have come, nothing is done yet; empty
	frameReleased byte = 'r' // the command may start; empty
	frameMark     byte = 'm' // a step is done: see appendMark
	frameFailed   byte = 'f' // step, errno, detail: the stage gives up
	frameGone     byte = 'x' // the sandbox is dead: see gone
	frameEntry    byte = 'e' // one entry of the upper: see entry
	frameBytes    byte = 'd' // bytes of the file announced last
	frameHole     byte = 'h' // a count of zero bytes of that file
	frameEnd      byte = 'q' // the end of the upper: see end
)

const (
	maxFrame     = 128 << 10 // above the longest entry: 256 names of 255 bytes and a target
	maxBytes     = 64 << 10  // payload of one frameBytes
	maxTreeDepth = 256
	maxNameLen   = 255
	maxTargetLen = 4096
)

// frameWriter writes frames. The first error sticks and is returned by flush.
type frameWriter struct {
	w   *bufio.Writer
	err error
}

func newFrameWriter(w io.Writer) *frameWriter {
	return &frameWriter{w: bufio.NewWriterSize(w, maxBytes+16)}
}

func (f *frameWriter) write(kind byte, payload []byte) {
	if f.err != nil {
		return
	}
	head := binary.AppendUvarint([]byte{kind}, uint64(len(payload)))
	if _, f.err = f.w.Write(head); f.err == nil {
		_, f.err = f.w.Write(payload)
	}
}

func (f *frameWriter) flush() error {
	if f.err == nil {
		f.err = f.w.Flush()
	}
	return f.err
}

// frameReader reads frames. It trusts nothing: every length has a limit.
type frameReader struct {
	r   *bufio.Reader
	buf []byte
}

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, maxBytes+16)}
}

// head reads kind and length; the caller reads exactly that many bytes from f.r.
func (f *frameReader) head() (kind byte, size int, err error) {
	kind, err = f.r.ReadByte()
	if err != nil {
		return 0, 0, fmt.Errorf("%w: ended early: %w", ErrStream, err)
	}
	n, err := binary.ReadUvarint(f.r)
	if err != nil || n > maxFrame {
		return 0, 0, fmt.Errorf("%w: frame length", ErrStream)
	}
	return kind, int(n), nil
}

// next reads a whole frame. The payload is valid until the next call.
func (f *frameReader) next() (kind byte, payload []byte, err error) {
	kind, n, err := f.head()
	if err != nil {
		return 0, nil, err
	}
	if cap(f.buf) < n {
		f.buf = make([]byte, n)
	}
	payload = f.buf[:n]
	if _, err := io.ReadFull(f.r, payload); err != nil {
		return 0, nil, fmt.Errorf("%w: ended inside a frame: %w", ErrStream, err)
	}
	return kind, payload, nil
}

func appendString[T ~string | ~[]byte](b []byte, s T) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendStrings(b []byte, list []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, s := range list {
		b = appendString(b, s)
	}
	return b
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// payloadReader takes values from a payload. After the first fault every value
// is zero and bad is set.
type payloadReader struct {
	rest []byte
	bad  bool
}

func (p *payloadReader) fail() { p.bad, p.rest = true, nil }

func (p *payloadReader) uint() uint64 {
	v, n := binary.Uvarint(p.rest)
	if n <= 0 {
		p.fail()
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

func (p *payloadReader) int() int64 {
	v, n := binary.Varint(p.rest)
	if n <= 0 {
		p.fail()
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

// count is a uint that cannot be more than what is left, so that it is safe to
// make room for so many things.
func (p *payloadReader) count() int {
	n := p.uint()
	if n > uint64(len(p.rest)) {
		p.fail()
		return 0
	}
	return int(n)
}

func (p *payloadReader) bytes() []byte {
	n := p.count()
	s := p.rest[:n:n]
	p.rest = p.rest[n:]
	return s
}

func (p *payloadReader) string() string { return string(p.bytes()) }

func (p *payloadReader) strings() []string {
	list := make([]string, p.count())
	for i := range list {
		list[i] = p.string()
	}
	return list
}

func (p *payloadReader) bool() bool {
	v := p.uint()
	if v > 1 {
		p.fail()
	}
	return v == 1
}

// done reports whether everything was read and nothing was wrong.
func (p *payloadReader) done() bool { return !p.bad && len(p.rest) == 0 }
