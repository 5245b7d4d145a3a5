package tools

import (
	"bufio"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

type listArgs struct {
	Path      string `json:"path"`
	Recursive bool   `json:"recursive"`
	Pattern   string `json:"pattern"`
	Contains  string `json:"contains"`
	Limit     int    `json:"limit"`
	Cursor    string `json:"cursor"`
}

// countMost is how far entries beyond a page are counted exactly.
const countMost = 10_000

// listFiles lists a directory, or searches the text of the files in it.
func (t *Tools) listFiles(c *call) (work, error) {
	l, err := t.newListing(c)
	if err != nil {
		return nil, err
	}
	return l.list, nil
}

func (l *listing) list(ctx context.Context) (Result, error) {
	p, n, err := l.t.source(l.args.Path)
	if err != nil {
		return Result{}, err
	}
	l.root = p
	if l.text != nil {
		return l.search(ctx, n)
	}
	if n.Kind != workspace.KindDir {
		err := l.entry(workspace.Entry{Path: p, Node: n})
		return l.result(), err
	}
	if err := l.breadthFirst(ctx); err != nil {
		return Result{}, err
	}
	return l.result(), nil
}

// listing is one list_files call.
type listing struct {
	t       *Tools
	args    listArgs
	root    workspace.Path
	text    *regexp.Regexp
	from    cursor
	resumed bool

	lines []string
	bytes int
	left  int  // entries or matches beyond the page, up to countMost
	more  bool // there are more than countMost
	last  cursor
	subs  bool // directories below were not searched

	in *bufio.Reader // of the file that is searched
}

// cursor is the last thing that a page showed. It is opaque to callers.
type cursor struct {
	Path string `json:"p"`           // in the quoted form that Clean reads
	Line int64  `json:"l,omitempty"` // of a search
}

func (c cursor) encode() string {
	b, _ := json.Marshal(c) // a struct of a string and a number: it cannot fail
	return base64.RawURLEncoding.EncodeToString(b)
}

// newListing checks the pattern, the regular expression and the cursor.
func (t *Tools) newListing(c *call) (*listing, error) {
	a, err := decode[listArgs](c)
	if err != nil {
		return nil, err
	}
	a.Path = cmp.Or(a.Path, workspace.Mount)
	if a.Limit == 0 {
		a.Limit = t.cfg.Limits.ListEntries
	}
	l := &listing{t: t, args: a}
	if a.Pattern != "" && !doublestar.ValidatePattern(a.Pattern) {
		return nil, refuse(InvalidArgument, "use * ? [a-z] {a,b} and ** for directories", "pattern: %q is not a glob", short(a.Pattern))
	}
	// A pattern with a directory in it can only match below.
	if strings.Contains(a.Pattern, "/") {
		l.args.Recursive = true
	}
	if a.Contains != "" {
		re, err := regexp.Compile(a.Contains)
		if err != nil {
			return nil, refuse(InvalidArgument, `escape the characters . * + ? ( ) [ ] { } ^ $ | \ with a backslash when they are meant as such`, "contains: is not an RE2 regular expression: %s", plainRegexpError(err))
		}
		l.text = re
	}
	if a.Cursor != "" {
		b, err := base64.RawURLEncoding.DecodeString(a.Cursor)
		if err == nil {
			err = json.Unmarshal(b, &l.from)
		}
		if err == nil {
			_, err = workspace.Clean(l.from.Path)
		}
		if err != nil {
			return nil, refuse(InvalidArgument, "pass the cursor exactly as the page before gave it", "cursor: is not one that list_files gave")
		}
		l.resumed = true
	}
	return l, nil
}

func plainRegexpError(err error) string {
	return short(strings.TrimPrefix(err.Error(), "error parsing regexp: "))
}

// matches tells whether the pattern takes an entry: by its name if the pattern
// has no directory in it, else by its path below the listed directory.
func (l *listing) matches(e workspace.Entry) bool {
	if l.args.Pattern == "" {
		return true
	}
	name := e.Path.Base()
	if strings.Contains(l.args.Pattern, "/") {
		name = strings.TrimPrefix(strings.TrimPrefix(e.Path.Rel(), l.root.Rel()), "/")
	}
	ok, err := doublestar.Match(strings.TrimPrefix(l.args.Pattern, "/"), name)
	return err == nil && ok
}

// errEnough ends a walk early.
var errEnough = errors.New("enough")

// breadthFirst lists the directory and then, if asked, the directories in it,
// level by level, each level sorted by path. It resumes after the cursor by
// passing over whole directories that lie before it.
func (l *listing) breadthFirst(ctx context.Context) error {
	after, err := l.after()
	if err != nil {
		return err
	}
	level := []workspace.Path{l.root}
	for depth := l.root.Depth() + 1; len(level) > 0; depth++ {
		var below []workspace.Path
		for _, dir := range level {
			subs, err := l.directory(ctx, dir, depth, after)
			if errors.Is(err, errEnough) {
				return nil
			}
			if err != nil {
				return err
			}
			below = append(below, subs...)
		}
		if !l.args.Recursive {
			return nil
		}
		level = below
	}
	return nil
}

func (l *listing) after() (*workspace.Path, error) {
	if !l.resumed {
		return nil, nil
	}
	p, err := workspace.Clean(l.from.Path)
	return &p, err
}

const listBatch = 512 // entries read in one transaction

// directory handles the entries of one directory and returns the directories
// among them.
func (l *listing) directory(ctx context.Context, dir workspace.Path, depth int, after *workspace.Path) ([]workspace.Path, error) {
	var subs []workspace.Path
	name := ""
	// Only in a flat listing can a page start in the middle of a directory
	// without its earlier entries: below, their subdirectories are needed.
	if after != nil && !l.args.Recursive {
		name = after.Base()
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		entries, more, err := l.t.cfg.Image.List(dir, name, listBatch)
		if errors.Is(err, workspace.ErrNotFound) {
			return subs, nil // deleted while the list was being made
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			name = e.Path.Base()
			if e.Node.Kind == workspace.KindDir {
				subs = append(subs, e.Path)
			}
			if after != nil && !later(e.Path, depth, *after) || !l.matches(e) {
				continue
			}
			if err := l.entry(e); err != nil {
				return nil, err
			}
			if l.left > 0 && !l.args.Recursive && l.args.Pattern == "" {
				return nil, l.countRest(dir, e.Path.Base())
			}
		}
		if !more {
			return subs, nil
		}
	}
}

// countRest counts what follows the first entry that did not fit. Without a
// pattern the entries need not be read for that.
func (l *listing) countRest(dir workspace.Path, first string) error {
	n, err := l.t.cfg.Image.Count(dir, first, countMost)
	if err != nil {
		return err
	}
	l.left, l.more = min(n+1, countMost), n == countMost
	return errEnough
}

// later tells whether a path comes after another in breadth-first order.
func later(p workspace.Path, depth int, than workspace.Path) bool {
	if d := than.Depth(); depth != d {
		return depth > d
	}
	return comparePaths(p, than) > 0
}

// comparePaths orders paths as the image does: component by component, as bytes.
func comparePaths(a, b workspace.Path) int { return slices.Compare(a.Components(), b.Components()) }

func (l *listing) entry(e workspace.Entry) error {
	return l.add(entryLine(e), cursor{Path: e.Path.String()})
}

// add shows a line, or counts it once the page is full. After a line that did
// not fit none is shown, however short: the next page starts with that line.
func (l *listing) add(line string, at cursor) error {
	switch {
	case l.left == 0 && len(l.lines) < l.args.Limit && l.bytes+len(line) <= MaxText:
		l.lines = append(l.lines, line)
		l.bytes += len(line) + 1
		l.last = at
	case l.left == countMost:
		l.more = true
		return errEnough
	default:
		l.left++
	}
	return nil
}

func entryLine(e workspace.Entry) string {
	switch e.Node.Kind {
	case workspace.KindDir:
		return fmt.Sprintf("dir  %9s  %s", "-", slashed(e.Path))
	case workspace.KindSymlink:
		return fmt.Sprintf("link %9d  %s -> %s", e.Node.Size, e.Path, quoteOdd(e.Node.Target))
	}
	return fmt.Sprintf("file %9d  %s", e.Node.Size, e.Path)
}

func slashed(p workspace.Path) string {
	s := p.String()
	if strings.HasSuffix(s, `"`) {
		return s
	}
	return s + "/"
}

// quoteOdd shows a link's target, which may be any bytes.
func quoteOdd(s string) string {
	if q := fmt.Sprintf("%q", s); q[1:len(q)-1] != s {
		return q
	}
	return s
}

func (l *listing) result() Result {
	facts := map[string]any{"path": l.root.String(), "shown": len(l.lines), "left": l.left, "left_is_minimum": l.more}
	lines := l.lines
	if len(lines) == 0 && l.left == 0 {
		lines = append(lines, l.nothing())
	}
	if l.left > 0 {
		next := l.last.encode()
		facts["cursor"] = next
		count := thousands(int64(l.left))
		if l.more {
			count += "+"
		}
		lines = append(lines, fmt.Sprintf("[%s more; next page: \"cursor\": %q]", count, next))
	}
	if l.subs {
		lines = append(lines, "[directories below were not searched; recursive:true searches them too]")
	}
	return textResult(facts, lines...)
}

func (l *listing) nothing() string {
	switch {
	case l.resumed:
		return "[nothing after the cursor]"
	case l.text != nil:
		return fmt.Sprintf("[no line in %s matches]", l.root)
	case l.args.Pattern != "":
		return fmt.Sprintf("[nothing in %s matches the pattern]", l.root)
	}
	return fmt.Sprintf("[%s is empty]", l.root)
}

// search shows the lines that match in the files of the directory, or in one
// file.
func (l *listing) search(ctx context.Context, n workspace.Node) (Result, error) {
	after, err := l.after()
	if err != nil {
		return Result{}, err
	}
	l.in = bufio.NewReaderSize(nil, maxLine)
	each := func(e workspace.Entry) error {
		if e.Node.Kind == workspace.KindDir && !l.args.Recursive {
			l.subs = true
			return fs.SkipDir
		}
		if e.Node.Kind != workspace.KindFile || !l.matches(e) {
			return nil
		}
		if after != nil && comparePaths(e.Path, *after) < 0 {
			return nil
		}
		return l.file(ctx, e, after)
	}
	if n.Kind == workspace.KindDir {
		err = l.t.cfg.Image.Walk(ctx, l.root, func(e workspace.Entry) error {
			if err := each(e); err != nil {
				return err
			}
			return ctx.Err()
		})
	} else {
		err = l.file(ctx, workspace.Entry{Path: l.root, Node: n}, after)
	}
	if err != nil && !errors.Is(err, errEnough) {
		return Result{}, err
	}
	return l.result(), nil
}
