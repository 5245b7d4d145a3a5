package tools

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// maxEdit is the largest file that mode "replace" edits: it is held in memory.
const maxEdit = 32 << 20

// replace swaps old_text for content in what the file holds now, and commits
// that on the condition that it still does.
func (w write) replace(ctx context.Context) (Result, error) {
	p, n, err := w.t.source(w.args.Path)
	if err != nil {
		return Result{}, err
	}
	pre, err := w.precondition(p, &n)
	if err != nil {
		return Result{}, w.t.conflict(err, p, w.args.IfVersion)
	}
	if n.Size > maxEdit {
		return Result{}, refuse(TooLarge, "change it with a script", "%s is %s, and mode \"replace\" takes at most %s", p, size(n.Size), size(maxEdit))
	}
	f, err := w.t.cfg.Image.OpenNode(p, n)
	if err != nil {
		return Result{}, err
	}
	old, err := io.ReadAll(f.Reader())
	if err != nil {
		return Result{}, err
	}
	spots := findText(old, w.args.OldText)
	if err := w.unique(p, old, spots); err != nil {
		return Result{}, err
	}
	edited, first := splice(old, spots, w.args.OldText, w.args.Content)
	done, err := w.put(ctx, p, bytes.NewReader(edited), pre)
	if err != nil {
		return Result{}, w.t.conflict(err, p, w.args.IfVersion)
	}
	return w.replaced(p, done, edited, first, len(spots)), nil
}

func (w write) unique(p workspace.Path, old []byte, spots []span) error {
	switch {
	case len(spots) == 0:
		return refuse(NoMatch, nearestHint(old, w.args.OldText), "old_text is not in %s", p)
	case len(spots) > 1 && !w.args.ReplaceAll:
		return refuse(AmbiguousMatch, "add lines around it to old_text until it is unique, or pass replace_all:true",
			"old_text is %d times in %s, at lines %s", len(spots), p, lineList(old, spots))
	}
	return nil
}

func (w write) replaced(p workspace.Path, done workspace.Commit, edited []byte, first span, count int) Result {
	n, _ := after(done, p)
	digest := hexDigest(n)
	w.c.out.Bytes, w.c.out.Digest = n.Size, digest
	lines := []string{
		fmt.Sprintf("replaced %s in %s, now %s:", plural(int64(count), "match"), p, version(n.Version)),
		around(edited, first, 3),
		w.t.getLine(p),
	}
	return textResult(map[string]any{
		"path": p.String(), "bytes": n.Size, "sha256": digest, "version": version(n.Version), "replaced": count,
	}, lines...)
}

// span is a half-open range of bytes.
type span struct{ from, to int }

// findText finds every occurrence of want in data, left to right and not
// overlapping. A line end in either is "\n" or "\r\n": models write "\n" also
// for files that hold "\r\n". Every other byte must be equal, so bytes that are
// not UTF-8 are never part of a match.
func findText(data []byte, want string) []span {
	needle := []byte(withLF(want))
	flat, back := flatten(data)
	var spots []span
	for at := 0; ; {
		i := bytes.Index(flat[at:], needle)
		if i < 0 {
			return spots
		}
		from := at + i
		at = from + len(needle)
		spots = append(spots, span{back(from), back(at)})
	}
}

// withLF is a text with "\n" as its line ends.
func withLF(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }

// flatten is data with every "\r\n" as "\n", and the way back from an offset in
// it to one in data. An offset at a line end means the place before its "\r".
func flatten(data []byte) ([]byte, func(int) int) {
	if !bytes.Contains(data, []byte("\r\n")) {
		return data, func(i int) int { return i }
	}
	flat := make([]byte, 0, len(data))
	var ends []int // offsets in flat of the line ends that lost a "\r"
	for i, b := range data {
		if b == '\r' && i+1 < len(data) && data[i+1] == '\n' {
			ends = append(ends, len(flat))
			continue
		}
		flat = append(flat, b)
	}
	return flat, func(i int) int { return i + sort.SearchInts(ends, i) }
}

// splice puts text in place of each match of want, and returns the new bytes and
// where the first change lies in them. New line ends are those that the file
// has there, and what want and text begin and end with alike stays as it is: a
// model repeats whole lines around what it changes, and in a file of mixed line
// ends those must not change with it.
func splice(data []byte, spots []span, want, text string) ([]byte, span) {
	head, tail := 0, 0
	if bytes.IndexByte(data, '\n') >= 0 {
		text = withLF(text)
		head, tail = common(withLF(want), text)
	}
	out := make([]byte, 0, len(data)+len(spots)*len(text))
	var first span
	at := 0
	for i, s := range spots {
		s = s.narrow(data, head, tail)
		out = append(out, data[at:s.from]...)
		put := withLineEnds(text[head:len(text)-tail], lineEndAt(data, s))
		if i == 0 {
			first = span{len(out), len(out) + len(put)}
		}
		out = append(out, put...)
		at = s.to
	}
	return append(out, data[at:]...), first
}

// common is how many bytes two texts begin with alike, and how many of the rest
// they end with alike.
func common(a, b string) (head, tail int) {
	most := min(len(a), len(b))
	for head < most && a[head] == b[head] {
		head++
	}
	for tail < most-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	return head, tail
}

// narrow leaves out head bytes at the start of a span and tail bytes at its end,
// where a "\r\n" counts as one byte.
func (s span) narrow(data []byte, head, tail int) span {
	for ; head > 0; head-- {
		if data[s.from] == '\r' && s.from+1 < s.to && data[s.from+1] == '\n' {
			s.from++
		}
		s.from++
	}
	for ; tail > 0; tail-- {
		s.to--
		if data[s.to] == '\n' && s.to > s.from && data[s.to-1] == '\r' {
			s.to--
		}
	}
	return s
}

// lineEndAt is the line end in force at a place: the one inside it, else the
// next one, else the one before, else none is known.
func lineEndAt(data []byte, s span) string {
	i := bytes.IndexByte(data[s.from:], '\n')
	if i >= 0 {
		i += s.from
	} else {
		i = bytes.LastIndexByte(data[:s.from], '\n')
	}
	switch {
	case i < 0:
		return ""
	case i > 0 && data[i-1] == '\r':
		return "\r\n"
	}
	return "\n"
}

// withLineEnds is a text with the given line ends; with none known, as it is.
func withLineEnds(text, end string) string {
	if end == "\r\n" {
		return strings.ReplaceAll(withLF(text), "\n", "\r\n")
	}
	return text
}

// lineOf is the number of the line, from 1, that holds an offset.
func lineOf(data []byte, off int) int { return bytes.Count(data[:off], []byte("\n")) + 1 }

const maxLinesListed = 50

func lineList(data []byte, spots []span) string {
	var nums []string
	line, at := 1, 0
	for i, s := range spots {
		line += bytes.Count(data[at:s.from], []byte("\n"))
		at = s.from
		if i == maxLinesListed {
			return strings.Join(nums, ", ") + fmt.Sprintf(" and %s more", thousands(int64(len(spots)-i)))
		}
		nums = append(nums, fmt.Sprint(line))
	}
	return strings.Join(nums, ", ")
}

// around shows the lines of a place with n lines before and after, numbered.
func around(data []byte, s span, n int) string {
	lines := bytes.Split(data, []byte("\n"))
	if len(lines) > 1 && len(lines[len(lines)-1]) == 0 {
		lines = lines[:len(lines)-1]
	}
	from := max(lineOf(data, s.from)-n, 1)
	to := min(lineOf(data, max(s.from, s.to-1))+n, len(lines))
	const most = 12 // lines shown of a long replacement
	var out []string
	for i := from; i <= to; i++ {
		if to-from >= most && i == from+most/2 {
			skip := to - from + 1 - most
			out = append(out, fmt.Sprintf("… %s …", plural(int64(skip), "line")))
			i += skip
		}
		out = append(out, fmt.Sprintf("%d %s", i, showLine(lines[i-1], 120)))
	}
	return strings.Join(out, "\n")
}

// showLine is a line as text: valid UTF-8, without its line end, cut.
func showLine(b []byte, limit int) string {
	b = bytes.TrimSuffix(b, []byte("\r"))
	cut := len(b) > limit*utf8.UTFMax
	if cut {
		b = b[:limit*utf8.UTFMax]
	}
	r := []rune(strings.ToValidUTF8(string(b), "�"))
	if !cut && len(r) <= limit {
		return string(r)
	}
	return string(r[:min(limit, len(r))]) + "…"
}
