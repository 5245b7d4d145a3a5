package tools

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	_ "image/gif"  // to read the size of a picture
	_ "image/jpeg" // to read the size of a picture
	_ "image/png"  // to read the size of a picture
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
)

// Reply limits. MaxReply bounds the encoded content of one result, because
// clients drop larger ones; MaxText is what a result holds unless the caller
// asked for more.
const (
	MaxReply = 700_000 // bytes of JSON
	MaxText  = 40_000  // characters
)

// Block is one part of a result's content: text, or a picture when MIME is
// set.
type Block struct {
	Text string
	MIME string
	Data []byte
}

// Result is what a call answers. Its text is complete: whatever a model needs
// to go on is in it, hints included.
type Result struct {
	Tool   string
	Call   string // the call's ULID, as in the audit log
	Err    *Error // nil when the tool did what it was asked
	Blocks []Block
	Facts  map[string]any // the same, for programs
	// Receipt is the call's last record in the audit log.
	Receipt audit.Receipt

	told *ending // of a script that ran
}

// OK tells whether the tool did what it was asked.
func (r Result) OK() bool { return r.Err == nil }

// String is the result as one text; a picture is told by kind and size.
func (r Result) String() string {
	parts := make([]string, 0, len(r.Blocks))
	for _, b := range r.Blocks {
		if b.MIME == "" {
			parts = append(parts, b.Text)
			continue
		}
		parts = append(parts, b.describe())
	}
	return strings.Join(parts, "\n")
}

func (b Block) describe() string {
	kind := strings.ToUpper(strings.TrimPrefix(b.MIME, "image/"))
	if c, _, err := image.DecodeConfig(bytes.NewReader(b.Data)); err == nil {
		return fmt.Sprintf("%s %d×%d, %s", kind, c.Width, c.Height, size(int64(len(b.Data))))
	}
	return fmt.Sprintf("%s, %s", kind, size(int64(len(b.Data))))
}

func (b Block) base64() string { return base64.StdEncoding.EncodeToString(b.Data) }

func textResult(facts map[string]any, lines ...string) Result {
	return Result{Blocks: []Block{{Text: strings.Join(lines, "\n")}}, Facts: facts}
}

// errorResult renders an error; body is what the tool still has to say, such as
// the output of a script whose changes were refused.
func errorResult(e *Error, body ...string) Result {
	text := e.Error()
	if e.Hint != "" {
		text += "\nhint: " + e.Hint
	}
	for _, b := range body {
		text += "\n" + b
	}
	return Result{Err: e, Blocks: []Block{{Text: text}}}
}

// size is a byte count for people, in the decimal units of the SI.
func size(n int64) string {
	switch {
	case n < 1000:
		return plural(n, "byte")
	case n < 1_000_000:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	case n < 1_000_000_000:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.1f GB", float64(n)/1e9)
}

// plural is "1 file", "2 files", "1,234 files".
func plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if strings.HasSuffix(noun, "y") {
		noun = strings.TrimSuffix(noun, "y") + "ie"
	} else if strings.HasSuffix(noun, "ch") {
		noun += "e"
	}
	return thousands(n) + " " + noun + "s"
}

// thousands writes a count with commas, as English does.
func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
