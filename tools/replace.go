package tools

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// maxEdit is the largest file that mode "replace" edits: it is held in memory.
const maxEdit = 32 << 20

// replace swaps old_text for content in the file.
func (w write) replace(ctx context.Context) (Result, error) {
	for range attempts {
		r, err := w.edit(ctx)
		if w.args.IfVersion == "" && errors.Is(err, workspace.ErrVersionConflict) && ctx.Err() == nil {
			continue
		}
		return r, err
	}
	return Result{}, busy(context.DeadlineExceeded)
}

// edit computes the change on what the file holds now and commits it on the
// condition that it still does.
func (w write) edit(ctx context.Context) (Result, error) {
	p, _, err := w.t.source(w.args.Path)
	if err != nil {
		return Result{}, err
	}
	f, err := w.t.cfg.Image.Open(p)
	if err != nil {
		return Result{}, err
	}
	if f.Node().Size > maxEdit {
		return Result{}, refuse(TooLarge, "change it with a script", "%s is %s, and mode \"replace\" takes at most %s", p, size(f.Node().Size), size(maxEdit))
	}
	old, err := io.ReadAll(f.Reader())
	if err != nil {
		return Result{}, err
	}
	pre := []workspace.Precondition{{Path: p, Version: f.Node().Version}}
	if w.args.IfVersion != "" {
		if pre[0].Version, err = parseVersion(w.args.IfVersion); err != nil {
			return Result{}, err
		}
		if pre[0].Version != f.Node().Version {
			return Result{}, w.t.conflict(ctx, &workspace.Error{Op: "write", Path: p, Kind: workspace.ErrVersionConflict}, p, w.args.IfVersion)
		}
	}
	spots := findText(old, w.args.OldText)
	if err := w.unique(p, old, spots); err != nil {
		return Result{}, err
	}
	new, first := splice(old, spots, w.args.Content)
	done, err := w.put(ctx, p, bytes.NewReader(new), pre)
	if err != nil {
		return Result{}, w.t.conflict(ctx, err, p, w.args.IfVersion)
	}
	return w.edited(p, done, new, first, len(spots)), nil
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

func (w write) edited(p workspace.Path, done workspace.Commit, new []byte, first span, count int) Result {
	n, _ := after(done, p)
	digest := hex.EncodeToString(n.SHA256[:])
	w.c.out.Bytes, w.c.out.Digest = n.Size, digest
	lines := []string{
		fmt.Sprintf("replaced %s in %s, now %s:", plural(int64(count), "match"), p, version(n.Version)),
		around(new, first, 3),
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
	needle := strings.ReplaceAll(want, "\r\n", "\n")
	flat, back := flatten(data)
	var spots []span
	for at := 0; ; {
		i := bytes.Index(flat[at:], []byte(needle))
		if i < 0 {
			return spots
		}
		from := at + i
		at = from + len(needle)
		spots = append(spots, span{back(from), back(at)})
	}
}

// flatten is data with every "\r\n" as "\n", and the way back from an offset in
// it to one in data.
func flatten(data []byte) ([]byte, func(int) int) {
	if !bytes.Contains(data, []byte("\r\n")) {
		return data, func(i int) int { return i }
	}
	flat := make([]byte, 0, len(data))
	var dropped []int // offsets in flat before which one "\r" was dropped
	for i, b := range data {
		if b == '\r' && i+1 < len(data) && data[i+1] == '\n' {
			dropped = append(dropped, len(flat))
			continue
		}
		flat = append(flat, b)
	}
	// An offset at a line end means the place before its "\r".
	return flat, func(i int) int { return i + sort.SearchInts(dropped, i) }
}

// splice puts text in place of each span, with the line ends that the file has
// there, and returns the new bytes and where the first change lies in them.
func splice(data []byte, spots []span, text string) ([]byte, span) {
	out := make([]byte, 0, len(data)+len(spots)*len(text))
	var first span
	at := 0
	for i, s := range spots {
		out = append(out, data[at:s.from]...)
		put := withLineEnds(text, lineEndAt(data, s))
		if i == 0 {
			first = span{len(out), len(out) + len(put)}
		}
		out = append(out, put...)
		at = s.to
	}
	return append(out, data[at:]...), first
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

func withLineEnds(text, end string) string {
	if end == "" {
		return text
	}
	text = strings.ReplaceAll(text, "\r\n", "\n")
	if end == "\r\n" {
		text = strings.ReplaceAll(text, "\n", "\r\n")
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
			return strings.Join(nums, ", ") + fmt.Sprintf(" and %d more", len(spots)-i)
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
	s := strings.ToValidUTF8(string(b), "�")
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	return string([]rune(s)[:limit]) + "…"
}

// nearestHint shows the lines of a file that look most like what was searched.
func nearestHint(data []byte, want string) string {
	const shown = 3
	wanted := firstWords(want)
	type near struct {
		line  int
		score float64
		text  string
	}
	var best []near
	for i, l := range bytes.Split(data, []byte("\n")) {
		text := showLine(l, 200)
		if score := likeness(wanted, strings.TrimSpace(text)); score > 0.3 {
			best = append(best, near{i + 1, score, text})
		}
	}
	sort.SliceStable(best, func(i, j int) bool { return best[i].score > best[j].score })
	if len(best) == 0 {
		return "no line is like it; read_file shows what the file holds"
	}
	hint := "old_text must be exact, spaces too; the nearest lines are"
	for _, b := range best[:min(shown, len(best))] {
		hint += fmt.Sprintf("\n%d %s", b.line, b.text)
	}
	return hint
}

// firstWords is the first line of a text that is not blank.
func firstWords(text string) string {
	for l := range strings.Lines(text) {
		if l = strings.TrimSpace(l); l != "" {
			return showLine([]byte(l), 200)
		}
	}
	return ""
}

// likeness is the Sørensen–Dice coefficient of the two texts' pairs of
// neighbouring characters: 1 for equal texts, 0 for nothing in common.
func likeness(a, b string) float64 {
	if a == b && a != "" {
		return 1
	}
	pairs := map[string]int{}
	na, nb, both := 0, 0, 0
	for _, p := range bigrams(a) {
		pairs[p]++
		na++
	}
	for _, p := range bigrams(b) {
		nb++
		if pairs[p] > 0 {
			pairs[p]--
			both++
		}
	}
	if na+nb == 0 {
		return 0
	}
	return 2 * float64(both) / float64(na+nb)
}

func bigrams(s string) []string {
	r := []rune(s)
	out := make([]string, 0, len(r))
	for i := 0; i+1 < len(r); i++ {
		out = append(out, string(r[i:i+2]))
	}
	return out
}
