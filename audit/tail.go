package audit

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// maxTail is the size of the tail, in bytes, above which the sequencer lets
// nobody in until it is empty again.
const maxTail = 4 << 20

// errTorn: the tail may end in half a frame and could not be cut back.
var errTorn = errors.New("cannot be cut back")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// tail is the file where numbered records wait for their group. It lives in the
// page cache: it outlives the process, not the host. A frame is
//
//	T1 STREAM N BODYLEN LINELEN CRC32C\n BODY LINE \n
//
// with the checksum over everything before it and after it up to the last \n.
type tail struct {
	f    *os.File
	size int64
	buf  []byte // for the next write
}

func openTail(path string) (*tail, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &tail{f: f, size: info.Size()}, nil
}

// write adds frames with one write(2), or nothing.
func (t *tail) write(frames []byte) error {
	_, err := t.f.Write(frames)
	if err == nil {
		t.size += int64(len(frames))
		return nil
	}
	if cut := t.f.Truncate(t.size); cut != nil {
		return fmt.Errorf("%w: %w, %w", errTorn, err, cut)
	}
	return err
}

func (t *tail) empty() error {
	t.size = 0
	return t.f.Truncate(0)
}

func (t *tail) close() error { return t.f.Close() }

func appendFrame(b []byte, it *item) []byte {
	start := len(b)
	b = fmt.Appendf(b, "T1 %s %d %d %d ", it.stream.name, it.n, len(it.body), len(it.line))
	sum := crc32.Checksum(b[start:], castagnoli)
	sum = crc32.Update(sum, castagnoli, it.body)
	sum = crc32.Update(sum, castagnoli, it.line)
	b = fmt.Appendf(b, "%08x\n", sum)
	b = append(b, it.body...)
	b = append(b, it.line...)
	return append(b, '\n')
}

// frame is one record read from the tail.
type frame struct {
	stream string
	n      uint64
	body   []byte
	line   []byte
}

// read gives the frames from the start to the first one that is not whole: what
// a process that died in its write left behind, never a record that was
// acknowledged.
func (t *tail) read() ([]frame, error) {
	data, err := io.ReadAll(io.NewSectionReader(t.f, 0, t.size))
	if err != nil {
		return nil, err
	}
	var list []frame
	for len(data) > 0 {
		f, size, ok := parseFrame(data)
		if !ok {
			break
		}
		list = append(list, f)
		data = data[size:]
	}
	return list, nil
}

func parseFrame(data []byte) (f frame, size int, ok bool) {
	end := bytes.IndexByte(data, '\n')
	if end < 0 || end > 256 {
		return f, 0, false
	}
	var body, line int
	var sum uint32
	header := string(data[:end])
	if n, err := fmt.Sscanf(header, "T1 %s %d %d %d %x", &f.stream, &f.n, &body, &line, &sum); n != 5 || err != nil {
		return f, 0, false
	}
	rest := data[end+1:]
	if body < 0 || line < 0 || body > len(rest) || line > len(rest)-body || len(rest) < body+line+1 {
		return f, 0, false
	}
	f.body, f.line = rest[:body:body], rest[body:body+line:body+line]
	whole := appendFrame(nil, &item{stream: &stream{name: f.stream}, n: f.n, body: f.body, line: f.line})
	return f, len(whole), bytes.HasPrefix(data, whole) && checkStream(f.stream) == nil
}
