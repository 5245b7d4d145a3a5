package tools

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// Limits of a search in files.
const (
	maxLine  = 64 << 10 // bytes of a line that are searched; the rest is skipped
	lineShow = 200      // characters of a line that are shown
	sniff    = 8 << 10  // bytes that decide whether a file is binary
)

// file searches one file. A file with a NUL byte near its start is binary and
// passed over, as grep does.
func (l *listing) file(ctx context.Context, e workspace.Entry, after *workspace.Path) error {
	f, err := l.t.cfg.Image.Open(e.Path)
	if errors.Is(err, workspace.ErrNotFound) {
		return nil // deleted while the search went on
	}
	if err != nil {
		return err
	}
	l.in.Reset(f.Reader())
	if head, err := l.in.Peek(sniff); bytes.IndexByte(head, 0) >= 0 {
		return nil
	} else if err != nil && err != io.EOF {
		return err
	}
	var from int64
	if after != nil && e.Path == *after {
		from = l.from.Line
	}
	for n := int64(1); ; n++ {
		line, err := readLine(l.in)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if n <= from || !l.text.Match(line) {
			continue
		}
		if err := l.hit(e.Path, n, line); err != nil {
			return err
		}
	}
}

// readLine returns the next line without its end, cut at maxLine bytes. It is
// valid until the next call.
func readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		line = bytes.Clone(line)
		for err == bufio.ErrBufferFull {
			_, err = in.ReadSlice('\n')
		}
	}
	if err == io.EOF && len(line) > 0 || err == nil {
		return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), nil
	}
	return nil, err
}

// hit shows a matching line: the part around the first match if it is long.
func (l *listing) hit(p workspace.Path, n int64, line []byte) error {
	text := fmt.Sprintf("%s:%d: %s", p, n, excerpt(line, l.text.FindIndex(line)))
	return l.add(text, cursor{Path: p.String(), Line: n})
}

func excerpt(line []byte, at []int) string {
	if utf8.RuneCount(line) <= lineShow {
		return showLine(line, lineShow)
	}
	from := max(at[0]-lineShow/4, 0)
	for from > 0 && !utf8.RuneStart(line[from]) {
		from--
	}
	cut := showLine(line[from:], lineShow)
	if from > 0 {
		cut = "…" + cut
	}
	return cut
}
