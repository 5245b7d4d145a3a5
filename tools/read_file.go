package tools

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

type readArgs struct {
	Path       string `json:"path"`
	Offset     int64  `json:"offset"`
	Limit      int64  `json:"limit"`
	ByteOffset *int64 `json:"byte_offset"`
	ByteLimit  int64  `json:"byte_limit"`
	Encoding   string `json:"encoding"`
	At         string `json:"at"`
}

// Limits of one page of read_file that are not settings.
const (
	maxPicture   = 480_000 // bytes of a picture; its base64 must fit a reply
	maxPage      = 640_000 // bytes of text on request
	defaultBytes = 30_000  // bytes in base64 unless asked otherwise
	maxBytes     = 480_000 // bytes in base64 on request
)

// readFile shows one page of a file: text as it is stored, a picture, or bytes
// in base64.
func (t *Tools) readFile(c *call) (work, error) {
	a, err := decode[readArgs](c)
	if err == nil {
		err = a.check()
	}
	return func(context.Context) (Result, error) { return t.show(c, a) }, err
}

func (t *Tools) show(c *call, a readArgs) (Result, error) {
	f, err := t.open(a)
	if err != nil {
		return Result{}, err
	}
	r := reading{t: t, f: f, args: a}
	res, err := r.page()
	if err == nil {
		c.out.Bytes, c.out.Digest = f.Node().Size, hexDigest(f.Node())
	}
	return res, err
}

// open finds the file, as it is or as it was.
func (t *Tools) open(a readArgs) (*workspace.File, error) {
	if a.At != "" {
		return t.openAt(a)
	}
	p, n, err := t.source(a.Path)
	if err != nil {
		return nil, err
	}
	if n.Kind == workspace.KindDir {
		return nil, refuse(IsADirectory, "list_files shows what is in it", "%s is a directory", p)
	}
	return t.cfg.Image.OpenNode(p, n)
}

// openAt finds the file that stood at the path after an older commit; it may be
// gone by now.
func (t *Tools) openAt(a readArgs) (*workspace.File, error) {
	p, err := workspace.Clean(a.Path)
	if err != nil {
		return nil, err
	}
	seq, err := parseVersion("at", a.At)
	if err != nil {
		return nil, err
	}
	info, err := t.cfg.Image.Info()
	if err != nil {
		return nil, err
	}
	if seq > info.Seq {
		return nil, refuse(NotFound, "leave at out to read what is there now", "there is no %s of this disk yet: its newest version is %s", version(seq), version(info.Seq))
	}
	f, err := t.cfg.Image.OpenAt(p, seq)
	switch {
	case errors.Is(err, workspace.ErrNotFound):
		e := asError(err)
		e.Sentence = fmt.Sprintf("at %s: %s", version(seq), e.Sentence)
		e.Hint = "it was not there at that version, or the disk's history no longer reaches back so far; leave at out to read what is there now"
		return nil, e
	case errors.Is(err, workspace.ErrIsDirectory):
		return nil, refuse(IsADirectory, "name a file that was in it", "at %s: %s is a directory", version(seq), p)
	}
	return f, err
}

// check checks that the arguments page one way.
func (a readArgs) check() error {
	byLines, byBytes := a.Offset != 0 || a.Limit != 0, a.ByteOffset != nil || a.ByteLimit != 0
	if a.At != "" {
		if _, err := parseVersion("at", a.At); err != nil {
			return err
		}
	}
	switch {
	case byLines && byBytes:
		return refuse(InvalidArgument, "page by lines (offset, limit) or by bytes (byte_offset, byte_limit)", "offset and byte_offset do not go together")
	case byLines && a.Encoding == "base64":
		return refuse(InvalidArgument, "page with byte_offset and byte_limit", "offset and limit count lines, and base64 has none")
	}
	return nil
}

func hexDigest(n workspace.Node) string { return hex.EncodeToString(n.SHA256[:]) }

// reading is one read_file call on an open file.
type reading struct {
	t    *Tools
	f    *workspace.File
	args readArgs
}

func (r reading) page() (Result, error) {
	if r.args.Encoding == "base64" {
		return r.base64()
	}
	if r.args.Encoding != "utf-8" && r.args.Offset == 0 && r.args.ByteOffset == nil {
		if mime := r.picture(); mime != "" {
			return r.show(mime)
		}
	}
	return r.text()
}

// picture names the type of a picture that clients show, by its first bytes
// (WHATWG MIME Sniffing §6.1), or is empty. What only begins like one is none:
// a client that cannot show a picture may drop the whole conversation.
func (r reading) picture() string {
	head, err := r.f.Bytes(0, 64)
	if err != nil || utf8.Valid(head.Data) && bytes.IndexByte(head.Data, 0) < 0 {
		return "" // a note that starts with "GIF89a" is text
	}
	switch mime := http.DetectContentType(head.Data); mime {
	case "image/png", "image/jpeg", "image/gif":
		if _, _, err := image.DecodeConfig(r.f.Reader()); err == nil {
			return mime
		}
	case "image/webp":
		return mime
	}
	return ""
}

func (r reading) show(mime string) (Result, error) {
	n := r.f.Node()
	if n.Size > maxPicture {
		return Result{}, refuse(TooLarge, `make a smaller copy with a script, or read it in parts with encoding:"base64"`,
			"%s is a picture of %s, and at most %s can be shown", r.f.Path(), size(n.Size), size(maxPicture))
	}
	data, err := io.ReadAll(r.f.Reader())
	if err != nil {
		return Result{}, err
	}
	pic := Block{MIME: mime, Data: data}
	line := fmt.Sprintf("[%s, %s]", pic.describe(), r.version())
	facts := r.facts(workspace.Page{Size: n.Size, Next: n.Size})
	facts["mime"] = mime
	return Result{Blocks: []Block{pic, {Text: line}}, Facts: facts}, nil
}

func (r reading) text() (Result, error) {
	byLines := r.args.ByteOffset == nil && r.args.ByteLimit == 0
	limit := r.t.cfg.Limits.ReadChars
	if r.args.Limit > 0 || r.args.ByteLimit > 0 {
		limit = maxPage
	}
	for {
		page, err := r.cut(byLines, limit)
		if err != nil {
			return Result{}, err
		}
		text, note, err := r.decode(page)
		if err != nil {
			return Result{}, err
		}
		if n := encodedLen(text); n > MaxReply-4096 {
			limit = int(int64(len(page.Data)) * (MaxReply - 8192) / int64(n))
			continue
		}
		closing := r.closing(page, byLines, note)
		return Result{Blocks: []Block{{Text: text}, {Text: closing}}, Facts: r.facts(page)}, nil
	}
}

// cut reads one page of at most limit bytes.
func (r reading) cut(byLines bool, limit int) (workspace.Page, error) {
	if !byLines {
		from, err := r.border()
		if err != nil {
			return workspace.Page{}, err
		}
		if r.args.ByteLimit > 0 {
			limit = int(min(int64(limit), r.args.ByteLimit))
		}
		page, err := r.f.Bytes(from, limit)
		if err == nil && limit < utf8.UTFMax && !utf8.Valid(page.Data) { // less than one character
			page, err = r.f.Bytes(from, utf8.UTFMax)
		}
		return page, err
	}
	lines := r.args.Limit
	if lines == 0 {
		lines = r.t.cfg.Limits.ReadLines
	}
	return r.f.Lines(max(r.args.Offset, 1), lines, limit)
}

// border is the place where a page by bytes begins: byte_offset, or the start of
// the character that it lies in.
func (r reading) border() (int64, error) {
	if r.args.ByteOffset == nil {
		return 0, nil
	}
	off := *r.args.ByteOffset
	start := max(off-utf8.UTFMax+1, 0)
	var around [2*utf8.UTFMax - 1]byte
	n, err := r.f.ReadAt(around[:], start)
	if err != nil && err != io.EOF {
		return 0, err
	}
	for at := start; at < off && at-start < int64(n); at++ {
		if _, size := utf8.DecodeRune(around[at-start : n]); at+int64(size) > off {
			return at, nil
		}
	}
	return off, nil
}

// decode checks that a page is text. With encoding "utf-8" bytes that are not
// become U+FFFD, and the closing line says how many.
func (r reading) decode(page workspace.Page) (text, note string, err error) {
	if utf8.Valid(page.Data) {
		return string(page.Data), "", nil
	}
	if r.args.Encoding != "utf-8" {
		return "", "", refuse(BinaryFile, `read it with encoding:"base64", or with encoding:"utf-8" to see what is not UTF-8 as U+FFFD; a script can convert it`,
			"%s is not UTF-8 text", r.f.Path())
	}
	bad := 0
	for b := page.Data; len(b) > 0; {
		c, n := utf8.DecodeRune(b)
		if c == utf8.RuneError && n == 1 {
			bad++
		}
		b = b[n:]
	}
	text = string(bytes.ToValidUTF8(page.Data, []byte("�")))
	return text, fmt.Sprintf("; %s not UTF-8, shown as �", plural(int64(bad), "byte")), nil
}

// closing is the line that says what was shown and how to go on.
func (r reading) closing(p workspace.Page, byLines bool, note string) string {
	switch {
	case p.Size == 0:
		return fmt.Sprintf("[empty file, %s]", r.version())
	case byLines && len(p.Data) == 0:
		return fmt.Sprintf("[offset %d is past the end: the file has %s, %s]", r.args.Offset, plural(p.TotalLines, "line"), r.version())
	case len(p.Data) == 0:
		return fmt.Sprintf("[byte_offset is past the end: the file has %s, %s]", plural(p.Size, "byte"), r.version())
	}
	var b strings.Builder
	if byLines {
		fmt.Fprintf(&b, "[lines %d-%d of %d, ", p.FirstLine, p.LastLine, p.TotalLines)
	} else {
		fmt.Fprintf(&b, "[bytes %d-%d of ", p.Offset, p.Next-1)
	}
	fmt.Fprintf(&b, "%s, %s%s", plural(p.Size, "byte"), r.version(), note)
	if p.More {
		b.WriteString("; next page: ")
		b.WriteString(r.next(p, byLines))
	}
	return b.String() + "]"
}

// version is which version is shown. A path that did not change for a while has
// the same one at several versions of the disk.
func (r reading) version() string {
	v := version(r.f.Node().Version)
	if r.args.At == "" {
		return v
	}
	return v + " as it was at v" + strings.TrimPrefix(r.args.At, "v")
}

// next is the argument that shows the page after this one. A line longer than a
// page can only be continued by bytes.
func (r reading) next(p workspace.Page, byLines bool) string {
	at := ""
	if r.args.At != "" {
		at = fmt.Sprintf(`"at": %q, `, r.args.At)
	}
	if byLines && bytes.HasSuffix(p.Data, []byte("\n")) {
		return fmt.Sprintf(`%s"offset": %d`, at, p.LastLine+1)
	}
	return fmt.Sprintf(`%s"byte_offset": %d`, at, p.Next)
}

func (r reading) base64() (Result, error) {
	limit := int64(defaultBytes)
	if r.args.ByteLimit > 0 {
		limit = min(r.args.ByteLimit, maxBytes)
	}
	var from int64
	if r.args.ByteOffset != nil {
		from = *r.args.ByteOffset
	}
	n := r.f.Node()
	buf := make([]byte, max(min(limit, n.Size-from), 0))
	got, err := r.f.ReadAt(buf, from)
	if err != nil && err != io.EOF {
		return Result{}, err
	}
	page := workspace.Page{Data: buf[:got], Offset: from, Next: from + int64(got), Size: n.Size, More: from+int64(got) < n.Size}
	facts := r.facts(page)
	facts["encoding"] = "base64"
	return Result{Blocks: []Block{{Text: base64.StdEncoding.EncodeToString(page.Data)}, {Text: r.closing(page, false, "")}}, Facts: facts}, nil
}

func (r reading) facts(p workspace.Page) map[string]any {
	n := r.f.Node()
	f := map[string]any{"path": r.f.Path().String(), "bytes": n.Size, "version": version(n.Version), "sha256": hexDigest(n), "more": p.More}
	if p.More {
		f["next_byte_offset"] = p.Next
	}
	if r.args.At != "" {
		f["at"] = "v" + strings.TrimPrefix(r.args.At, "v")
	}
	return f
}

// encodedLen is the length of a text as a JSON string.
func encodedLen(s string) int {
	b, err := json.Marshal(s)
	if err != nil {
		return len(s)
	}
	return len(b)
}

// wholeText reads a small text file as it was at a node; ok is false for anything
// else.
func (t *Tools) wholeText(p workspace.Path, n workspace.Node) (string, bool) {
	f, err := t.cfg.Image.OpenNode(p, n)
	if err != nil {
		return "", false
	}
	data, err := io.ReadAll(io.LimitReader(f.Reader(), maxShown))
	return string(data), err == nil && utf8.Valid(data)
}
