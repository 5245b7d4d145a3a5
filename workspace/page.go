package workspace

import (
	"bytes"
	"unicode/utf8"
)

// Page is a piece of a file. Line numbers count from 1; a last line without a
// newline counts too. LastLine is below FirstLine when Data is empty.
type Page struct {
	Data       []byte
	FirstLine  int64 // line of the first byte of Data
	LastLine   int64 // line of the last byte of Data
	TotalLines int64
	Offset     int64 // of Data in the file
	Next       int64 // offset behind Data, where the next page starts
	Size       int64 // of the file
	More       bool  // Next < Size
}

// Lines returns up to max lines from line from on (below 1 counts as 1), in at
// most maxBytes bytes. It ends behind a whole line where it can: only a line
// that alone is longer than maxBytes is cut, on a rune border, and goes on at
// Next with Bytes. Chunks that hold none of it are not read. A from behind the
// end gives an empty page at the end. max and maxBytes must be positive.
//
// Errors: ErrCorrupt.
func (f *File) Lines(from, max int64, maxBytes int) (Page, error) {
	from = clampLow(from, 1)
	off, err := f.lineStart(from)
	if err != nil {
		return Page{}, err
	}
	data, more, err := f.read(off, maxBytes)
	if err != nil {
		return Page{}, err
	}
	if cut := behindLine(data, max); cut > 0 {
		data = data[:cut]
	} else if more {
		if cut := bytes.LastIndexByte(data, '\n') + 1; cut > 0 {
			data = data[:cut]
		} else if data, err = f.trimRune(data, off); err != nil {
			return Page{}, err
		}
	}
	if off >= f.node.Size {
		from = f.node.TotalLines() + 1
	}
	return f.page(data, off, from), nil
}

// Bytes returns up to max bytes from off on. The end is moved back to a rune
// border when the bytes around it are valid UTF-8; the start is exactly off,
// or the end of the file when it lies behind that. max must be positive.
//
// Errors: ErrCorrupt.
func (f *File) Bytes(off int64, max int) (Page, error) {
	off = min(clampLow(off, 0), f.node.Size)
	data, more, err := f.read(off, max)
	if err == nil && more {
		data, err = f.trimRune(data, off)
	}
	if err != nil {
		return Page{}, err
	}
	line, err := f.lineAt(off)
	if err != nil {
		return Page{}, err
	}
	return f.page(data, off, line), nil
}

func clampLow(n, low int64) int64 { return max(n, low) }

// page fills in what follows from the data.
func (f *File) page(data []byte, off, first int64) Page {
	p := Page{
		Data: data, FirstLine: first, LastLine: first - 1, TotalLines: f.node.TotalLines(),
		Offset: off, Next: off + int64(len(data)), Size: f.node.Size,
	}
	if len(data) > 0 {
		p.LastLine = first + countLines(data[:len(data)-1])
	}
	p.More = p.Next < p.Size
	return p
}

// read copies up to max bytes and says whether the file goes on behind them.
func (f *File) read(off int64, max int) (data []byte, more bool, err error) {
	n := min(int64(max), f.node.Size-off)
	if n <= 0 {
		return nil, off < f.node.Size, nil
	}
	data = make([]byte, 0, n)
	err = f.scan(off, func(part []byte) bool {
		data = append(data, part[:min(len(part), cap(data)-len(data))]...)
		return len(data) < cap(data)
	})
	return data, off+n < f.node.Size, err
}

// behindLine is the offset behind the max-th newline of data; 0 when there are
// not that many.
func behindLine(data []byte, max int64) int {
	off := 0
	for range max {
		i := bytes.IndexByte(data[off:], '\n')
		if i < 0 {
			return 0
		}
		off += i + 1
	}
	return off
}

// trimRune shortens data that ends within a rune which goes on in the file,
// unless nothing would be left.
func (f *File) trimRune(data []byte, off int64) ([]byte, error) {
	start := len(data)
	for start > 0 && len(data)-start < utf8.UTFMax-1 && !utf8.RuneStart(data[start-1]) {
		start--
	}
	if start--; start <= 0 || utf8.FullRune(data[start:]) {
		return data, nil
	}
	var around [utf8.UTFMax]byte
	n, err := f.ReadAt(around[:], off+int64(start))
	if n == 0 && err != nil {
		return nil, err
	}
	if r, size := utf8.DecodeRune(around[:n]); r == utf8.RuneError && size <= 1 {
		return data, nil // not a rune: these bytes are no text
	}
	return data[:start], nil
}

// lineStart is the offset of the first byte of a line; the size of the file
// when it has fewer lines. The counts in the references say which chunk holds
// it, so one chunk is read.
func (f *File) lineStart(line int64) (int64, error) {
	before := line - 1 // newlines in front of it
	if before == 0 {
		return 0, nil
	}
	if before > f.node.Lines {
		return f.node.Size, nil
	}
	off, before, err := f.skipLines(before)
	if err != nil {
		return 0, err
	}
	err = f.scan(off, func(part []byte) bool {
		off += int64(behindLine(part, before))
		return false
	})
	return off, err
}

// skipLines returns the offset of the chunk that holds the n-th newline, and
// which one of the chunk's it is.
func (f *File) skipLines(n int64) (off, rest int64, err error) {
	if f.node.Size <= maxInline {
		return 0, n, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.index(); err != nil {
		return 0, 0, err
	}
	for i, r := range f.refs {
		if n <= r.lines {
			return f.ends[i] - r.size, n, nil
		}
		n -= r.lines
	}
	return f.node.Size, 0, nil
}

// lineAt is the number of the line that holds offset off.
func (f *File) lineAt(off int64) (int64, error) {
	line, start := int64(1), int64(0)
	if f.node.Size > maxInline {
		f.mu.Lock()
		err := f.index()
		for i := 0; err == nil && i < len(f.refs) && f.ends[i] <= off; i++ {
			line, start = line+f.refs[i].lines, f.ends[i]
		}
		f.mu.Unlock()
		if err != nil {
			return 0, err
		}
	}
	if start == off {
		return line, nil
	}
	err := f.scan(start, func(part []byte) bool {
		line += countLines(part[:min(off-start, int64(len(part)))])
		return false
	})
	return line, err
}
