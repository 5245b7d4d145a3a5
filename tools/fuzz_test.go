package tools

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/mcp-vdisk/mcp-vdisk/schemas"
)

// FuzzCall: whatever a caller sends, the answer is text that is one of the
// results or codes, the log has its records, and nothing inside is shown.
func FuzzCall(f *testing.F) {
	names := append(schemas.Names(), "nope")
	for i, name := range names {
		if a := good[name]; a != nil {
			f.Add(byte(i), rawJSON(f, a))
		}
	}
	for _, raw := range []string{
		``, `null`, `[]`, `{"path":"\ud800"}`, `{"path":"a","path":"b"}`, `{"path":"a","content":"b","mode":"replace","old_text":"x"}`,
		`{"path":"\"\\xff\"","content":"x"}`, `{"contains":"(a*)*b","recursive":"true","cursor":"e30"}`, `{"path":"a","offset":1e3}`, `{"path":"d/../x"}`,
	} {
		for i := range names {
			f.Add(byte(i), []byte(raw))
		}
	}
	d := newDisk(f)
	d.write("a", "some text\r\nmore\n")
	all := codes(f)
	f.Fuzz(func(t *testing.T, tool byte, raw []byte) {
		d.t = t
		r := d.call(names[int(tool)%len(names)], raw)
		if !utf8.ValidString(r.String()) || r.String() == "" {
			t.Errorf("the text is %q", r)
		}
		if b, err := json.Marshal(r.MCP()); err != nil || len(b) > MaxReply {
			t.Errorf("a reply of %d bytes, %v", len(b), err)
		}
		if r.OK() {
			return
		}
		code, _, _ := strings.Cut(r.String(), ":")
		if r.Err.Code == Internal || string(r.Err.Code) != code || !slices.Contains(all, r.Err.Code) {
			t.Errorf("%s: %q", r, raw)
		}
	})
}
