package sandboxrun

import (
	"bytes"
	"fmt"
	"io"
	"slices"
)

// validPath reports whether a path of the stream is relative, has no empty,
// "." or ".." component, and respects the limits on names and depth.
func validPath(p []byte) bool {
	if hasNUL(p) {
		return false
	}
	depth := 0
	for name := range bytes.SplitSeq(p, []byte{'/'}) {
		depth++
		if len(name) == 0 || len(name) > maxNameLen || string(name) == "." || string(name) == ".." {
			return false
		}
	}
	return depth <= maxTreeDepth+1
}

func hasNUL(b []byte) bool { return bytes.IndexByte(b, 0) >= 0 }

func clone(b []byte) []byte { return slices.Clone(b) }

// comparePaths orders paths as a depth-first walk with sorted names meets them.
func comparePaths(a, b []byte) int {
	return slices.CompareFunc(bytes.Split(a, []byte{'/'}), bytes.Split(b, []byte{'/'}), bytes.Compare)
}

// parentOf returns the path of the directory of p, empty for the root.
func parentOf(p []byte) []byte {
	return p[:max(bytes.LastIndexByte(p, '/'), 0)]
}

// diffReader turns frames into Changes.
type diffReader struct {
	f    *frameReader
	last []byte // path of the last entry
	dir  []byte // path of the last directory
	body *body  // of the last file, to be read to its end before the next
}

// next returns the next Change, or ok == false and the end.
func (d *diffReader) next() (c Change, e end, ok bool, err error) {
	if d.body != nil {
		if _, err := io.Copy(io.Discard, skipper{d.body}); err != nil {
			return Change{}, end{}, false, err
		}
		d.body = nil
	}
	kind, payload, err := d.f.next()
	if err != nil {
		return Change{}, end{}, false, err
	}
	switch kind {
	case frameEntry:
		c, err = parseEntry(payload)
		if err == nil {
			err = d.order(c)
		}
		if err == nil && c.Kind == File {
			d.body = &body{f: d.f, left: c.Size}
			c.Body = d.body
		}
		return c, end{}, err == nil, err
	case frameEnd:
		e, err = parseEnd(payload)
		return Change{}, e, false, err
	case frameFailed:
		f, err := parseFailure(payload)
		if err == nil {
			err = fmt.Errorf("%w: %s: %s", ErrStream, f.Step, f.Detail)
		}
		return Change{}, end{}, false, err
	}
	return Change{}, end{}, false, fmt.Errorf("%w: unexpected frame %q", ErrStream, kind)
}

// order refuses an entry that is out of order, double, or whose directory was
// not announced: consumers may rely on parents first.
func (d *diffReader) order(c Change) error {
	if d.last != nil && comparePaths(d.last, c.Path) >= 0 {
		return fmt.Errorf("%w: entries out of order", ErrStream)
	}
	parent := parentOf(c.Path)
	for !bytes.Equal(d.dir, parent) {
		if len(d.dir) == 0 {
			return fmt.Errorf("%w: entry outside of its directory", ErrStream)
		}
		d.dir = parentOf(d.dir)
	}
	d.last = c.Path
	if c.Kind == Dir || c.Kind == OpaqueDir {
		d.dir = c.Path
	}
	return nil
}

// body reads the bytes of one file out of the stream.
type body struct {
	f     *frameReader
	left  int64 // bytes of the file to come
	frame int64 // bytes of the current frame to come
	hole  bool  // the current frame is a hole
	err   error
}

func (b *body) Read(p []byte) (int, error) {
	if err := b.fill(); err != nil {
		return 0, err
	}
	n := int(min(int64(len(p)), b.frame))
	if b.hole {
		clear(p[:n])
	} else if m, err := io.ReadFull(b.f.r, p[:n]); err != nil {
		b.err = fmt.Errorf("%w: ended inside a file: %w", ErrStream, err)
		return m, b.err
	}
	b.frame -= int64(n)
	b.left -= int64(n)
	return n, nil
}

// fill reads frame heads until there is a byte to give, or says io.EOF.
func (b *body) fill() error {
	if b.err != nil {
		return b.err
	}
	if b.frame > 0 {
		return nil
	}
	if b.left == 0 {
		return io.EOF
	}
	b.frame, b.hole, b.err = b.nextFrame()
	return b.err
}

func (b *body) nextFrame() (size int64, hole bool, err error) {
	kind, n, err := b.f.head()
	if err != nil {
		return 0, false, err
	}
	size = int64(n)
	switch kind {
	case frameBytes:
	case frameHole:
		payload := make([]byte, min(n, 16))
		if _, err := io.ReadFull(b.f.r, payload); err != nil {
			return 0, false, fmt.Errorf("%w: ended inside a frame: %w", ErrStream, err)
		}
		p := payloadReader{rest: payload}
		size, hole = int64(p.uint()&(1<<63-1)), true
		if n > 16 || !p.done() {
			return 0, false, fmt.Errorf("%w: hole", ErrStream)
		}
	case frameFailed:
		return 0, false, fmt.Errorf("%w: a file could not be read", ErrStream)
	default:
		return 0, false, fmt.Errorf("%w: unexpected frame %q inside a file", ErrStream, kind)
	}
	if size == 0 || size > b.left {
		return 0, false, fmt.Errorf("%w: length of a piece of a file", ErrStream)
	}
	return size, hole, nil
}

// skipper reads a body without making the zeros of its holes.
type skipper struct{ b *body }

func (s skipper) Read(p []byte) (int, error) {
	for {
		if err := s.b.fill(); err != nil {
			return 0, err
		}
		if !s.b.hole {
			return s.b.Read(p)
		}
		s.b.left -= s.b.frame
		s.b.frame = 0
	}
}
