package tools

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// TestReplace: what a replacement makes of the bytes of a file.
func TestReplace(t *testing.T) {
	for _, c := range []struct{ name, file, old, new, want string }{
		{"a word", "one two three", "two", "2", "one 2 three"},
		{"the whole file", "one", "one", "two", "two"},
		{"deletes", "one two three", " two", "", "one three"},
		{"inserts", "a\nc\n", "a\nc", "a\nb\nc", "a\nb\nc\n"},
		{"first bytes", "one two", "one", "1", "1 two"},
		{"last bytes", "one two", "two", "2", "one 2"},
		{"white space counts", "a  b\na b\n", "a b", "x", "a  b\nx\n"},
		{"not a pattern", "a.*b\naxxb\n", "a.*b", "$1", "$1\naxxb\n"},
		{"CRLF matched by LF", "a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\n", "x\r\ny\r\nc\r\n"},
		{"CRLF matched by CRLF", "a\r\nb\r\nc\r\n", "a\r\nb\r\n", "x\r\ny\r\n", "x\r\ny\r\nc\r\n"},
		{"LF matched by CRLF", "a\nb\nc\n", "a\r\nb\r\n", "x\r\ny\r\n", "x\ny\nc\n"},
		{"CRLF, new lines", "a\r\nb\r\n", "b", "b\nc\nd", "a\r\nb\r\nc\r\nd\r\n"},
		{"CRLF, lines deleted", "a\r\nb\r\nc\r\n", "a\nb\n", "a\n", "a\r\nc\r\n"},
		{"CRLF, match ends before the line end", "a\r\nb\r\n", "a", "x", "x\r\nb\r\n"},
		{"CRLF, last line without an end", "a\r\nb", "b", "b\nc", "a\r\nb\r\nc"},
		{"CRLF, up to the end of a line", "a;\r\nb;\r\n", "b;\n", "c;\n", "a;\r\nc;\r\n"},
		{"mixed ends, LF there", "a\r\nb\nc\r\n", "b", "b\nx", "a\r\nb\nx\nc\r\n"},
		{"mixed ends, CRLF there", "a\nb\r\nc\n", "b", "b\nx", "a\nb\r\nx\r\nc\n"},
		{"mixed ends around stay", "a\r\nb\nc\r\nd\n", "a\nb\nc\nd\n", "a\nb\nX\nd\n", "a\r\nb\nX\r\nd\n"},
		{"mixed ends, a line inserted", "a\nb\r\nc\r\n", "a\nb\nc", "a\nb\nx\nc", "a\nb\r\nx\r\nc\r\n"},
		{"mixed ends, a line deleted", "a\nb\r\nc\nd", "a\nb\nc\nd", "a\nc\nd", "a\nc\nd"},
		{"carriage returns alone stay", "a\rb\rc\n", "b", "x", "a\rx\rc\n"},
		{"no line end in the file", "abc", "b", "1\r\n2", "a1\r\n2c"},
		{"BOM", "\ufeffa = 1\r\n", "a = 1", "a = 2", "\ufeffa = 2\r\n"},
		{"Latin-1 before and behind", "caf\xe9 one\xff\n", "one", "two", "caf\xe9 two\xff\n"},
		{"Latin-1 touching", "\xe9one\xe9", "one", "é", "\xe9é\xe9"},
		{"half a rune before", "\xc3one", "one", "two", "\xc3two"},
		{"NUL bytes", "a\x00b\x00c", "b", "x", "a\x00x\x00c"},
		{"runes", "héllo wörld", "ö", "o", "héllo world"},
		{"runes with a byte in common", "a é b", "é", "è", "a è b"},
		{"overlapping would match twice", "aaa", "aa", "b", "ba"},
		{"common beginning and end", "aXbXa", "aXbXa", "aXcXa", "aXcXa"},
		{"grows by its own text", "aa", "aa", "aaaa", "aaaa"},
		{"shrinks to its own text", "aaaa", "aaaa", "aa", "aa"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newDisk(t)
			d.ok("write_file", args{"path": "f", "content": b64(c.file), "encoding": "base64"})
			text := d.ok("write_file", args{"path": "f", "content": c.new, "mode": "replace", "old_text": c.old})
			if got := d.content("f"); got != c.want {
				t.Errorf("got %q\nwant %q", got, c.want)
			}
			wantText(t, text, "replaced 1 match in /workspace/f, now v3:\n")
		})
	}
}

// TestReplaceMany: several matches are refused with their lines, or replaced.
func TestReplaceMany(t *testing.T) {
	d := newDisk(t)
	d.write("f", "x\n a x\n\nx x\r\n")
	wantText(t, d.fails(AmbiguousMatch, "write_file", args{"path": "f", "content": "y", "mode": "replace", "old_text": "x"}),
		"4 times in /workspace/f, at lines 1, 2, 4, 4", "replace_all:true")
	wantText(t, d.ok("write_file", args{"path": "f", "content": "y", "mode": "replace", "old_text": "x", "replace_all": true}), "replaced 4 matches")
	if got := d.content("f"); got != "y\n a y\n\ny y\r\n" {
		t.Errorf("%q", got)
	}
	d.ok("write_file", args{"path": "f", "content": "once", "mode": "replace", "old_text": " a ", "replace_all": true})
	d.write("many", strings.Repeat("x\n", 3000))
	text := d.fails(AmbiguousMatch, "write_file", args{"path": "many", "content": "y", "mode": "replace", "old_text": "x"})
	wantText(t, text, "3000 times", "lines 1, 2, 3,", ", 50 and 2,950 more")
	d.ok("write_file", args{"path": "many", "content": "y\nz", "mode": "replace", "old_text": "x", "replace_all": true})
	if got := d.content("many"); got != strings.Repeat("y\nz\n", 3000) {
		t.Errorf("%.40q…", got)
	}
}

// TestNoMatch: the hint shows where the text nearly is, and nothing is written.
func TestNoMatch(t *testing.T) {
	const file = "package main\n\nfunc main() {\n\tfmt.Println(\"hello, world\")\n}\n\nfunc other() {\n\tfmt.Println(\"bye\")\n}\n"
	for _, c := range []struct{ name, old, hint string }{
		{"spaces for a tab", "    fmt.Println(\"hello, world\")", "\n4 \tfmt.Println(\"hello, world\")"},
		{"another word", "fmt.Println(\"hallo, world\")", "\n4 \tfmt.Println(\"hello, world\")"},
		{"the second line differs", "func other() {\n\tfmt.Println(\"goodbye\")\n}", "\n8 \tfmt.Println(\"bye\")"},
		{"the last line differs", "func other() {\n\tfmt.Println(\"bye\")\n)", "\n9 }"},
		{"blank lines first", "\n\nfunc  main() {", "\n3 func main() {"},
		{"past the end of the file", "\tfmt.Println(\"bye\")\n}\nmore", "\n9 }"},
		{"nothing like it", "zzz qqq", "no line is like it"},
		{"blank", "   \n\t\t\n", "no line is like it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDisk(t)
			d.write("f.go", file)
			head := d.head()
			text := d.fails(NoMatch, "write_file", args{"path": "f.go", "content": "x", "mode": "replace", "old_text": c.old})
			wantText(t, text, "old_text is not in /workspace/f.go", c.hint)
			if d.head() != head || len(text) > 1500 {
				t.Errorf("%d bytes; %s", len(text), text)
			}
		})
	}
	d := newDisk(t)
	d.write("empty", "")
	d.fails(NoMatch, "write_file", args{"path": "empty", "content": "x", "mode": "replace", "old_text": "y"})
	d.fails(NotFound, "write_file", args{"path": "none", "content": "x", "mode": "replace", "old_text": "y"})
	d.ok("make_directory", args{"path": "dir"})
	d.fails(IsADirectory, "write_file", args{"path": "dir", "content": "x", "mode": "replace", "old_text": "y"})
}

// TestReplaceCost: a change of one line in a file of 2,000 costs at most 400
// bytes of arguments and reply together.
func TestReplaceCost(t *testing.T) {
	d := newDisk(t)
	var file strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&file, "setting_%04d = %d\n", i, i*7)
	}
	d.write("settings.ini", file.String())
	raw := rawJSON(t, args{"path": "settings.ini", "mode": "replace", "old_text": "setting_1234 = 8638", "content": "setting_1234 = 9000"})
	text := d.ok("write_file", raw)
	if n := len(raw) + len(text); n > 400 {
		t.Errorf("%d bytes: %s\n%s", n, raw, text)
	}
	wantText(t, text, "1232 setting_1231", "1235 setting_1234 = 9000", "1238 setting_1237")
	want := strings.Replace(file.String(), "= 8638\n", "= 9000\n", 1)
	if d.content("settings.ini") != want {
		t.Error("other bytes changed")
	}
}

// TestReplaceAround: the lines around a change are shown, cut when it is long.
func TestReplaceAround(t *testing.T) {
	d := newDisk(t)
	d.write("f", "1\n2\n3\n")
	wantText(t, d.ok("write_file", args{"path": "f", "content": "one", "mode": "replace", "old_text": "1"}), ":\n1 one\n2 2\n3 3\nto get it")
	wantText(t, d.ok("write_file", args{"path": "f", "content": "", "mode": "replace", "old_text": "one\n2\n3\n"}), ":\n1 \nto get it")
	d.write("f", "x")
	text := d.ok("write_file", args{"path": "f", "content": strings.Repeat(strings.Repeat("long ", 400)+"\n", 500), "mode": "replace", "old_text": "x"})
	wantText(t, text, "\n1 long long", "… 488 lines …", "\n500 long")
	if len(text) > 3000 {
		t.Errorf("%d bytes", len(text))
	}
}

// TestReplaceRace: 20 replaces of 20 lines at once all land.
func TestReplaceRace(t *testing.T) {
	const n = 20
	d := newDisk(t)
	var file, want strings.Builder
	for i := range n {
		fmt.Fprintf(&file, "line %02d old\r\n", i)
		fmt.Fprintf(&want, "line %02d new\r\n", i)
	}
	d.write("f", file.String())
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			r := d.Call(t.Context(), "write_file", rawJSON(t, args{
				"path": "f", "mode": "replace", "old_text": fmt.Sprintf("line %02d old\n", i), "content": fmt.Sprintf("line %02d new\n", i),
			}))
			if !r.OK() {
				t.Error(r)
			}
		})
	}
	all.Wait()
	if got := d.content("f"); got != want.String() {
		t.Errorf("%q", got)
	}
	d.verify()
}

// TestReplaceLarge: a file of many lines is edited, and a miss in it hinted at
// in no time; one that is too large is refused.
func TestReplaceLarge(t *testing.T) {
	d := newDisk(t)
	line := strings.Repeat("some text that is like other text ", 3) + "\n"
	d.write("f", strings.Repeat(line, 3_000_000/len(line))+"the end\n")
	d.ok("write_file", args{"path": "f", "content": "THE END", "mode": "replace", "old_text": "the end"})
	start := time.Now()
	wantText(t, d.fails(NoMatch, "write_file", args{"path": "f", "content": "x", "mode": "replace", "old_text": "the and"}), " THE END")
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("took %s", took)
	}
	stage := d.im.Stage(t.Context())
	defer stage.Discard()
	content, err := stage.Add(bytes.NewReader(make([]byte, maxEdit+1)))
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.im.Commit(t.Context(), workspace.Txn{Stage: stage, Changes: []workspace.Change{{Op: workspace.OpPut, Path: at("big"), Content: content}}})
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, d.fails(TooLarge, "write_file", args{"path": "big", "content": "x", "mode": "replace", "old_text": "y"}), "33.6 MB", "change it with a script")
}

// FuzzReplace: bytes outside the matches never change, and what the matches
// become is the new text but for its line ends.
func FuzzReplace(f *testing.F) {
	for _, s := range [][3]string{
		{"a\r\nb\nc", "a\nb", "x\ny"}, {"\xe9one\xff", "one", "é"}, {"aaa", "aa", "a"}, {"\r\r\n\n\r", "\n", "\r\n\r\n"},
		{"a\r\nb\r\n", "\r\n", ""}, {"x\ny\r\nz", "x\ny\nz", "x\nz"}, {"é", "\xa9", "b"}, {"", "a", "b"}, {"a\r", "a\r", "b"},
	} {
		f.Add([]byte(s[0]), s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, data []byte, want, text string) {
		if want == "" {
			return
		}
		spots := findText(data, want)
		got, first := splice(data, spots, want, text)
		if len(spots) == 0 {
			if !bytes.Equal(got, data) {
				t.Fatalf("no match, and %q became %q", data, got)
			}
			return
		}
		if first.from < 0 || first.to < first.from || first.to > len(got) {
			t.Fatalf("the first change is at %v of %d", first, len(got))
		}
		rest, at := got, 0
		for i, s := range spots {
			if s.from < at || s.to < s.from || s.to > len(data) || withLF(string(data[s.from:s.to])) != withLF(want) {
				t.Fatalf("match %v of %q in %q", s, want, data)
			}
			between := data[at:s.from]
			if !bytes.HasPrefix(rest, between) {
				t.Fatalf("%q became %q: the bytes before match %d changed", data, got, i)
			}
			rest, at = rest[len(between):], s.to
			n := putLen(rest, text)
			if n < 0 {
				t.Fatalf("%q became %q: match %d is not %q", data, got, i, text)
			}
			rest = rest[n:]
		}
		if !bytes.Equal(rest, data[at:]) {
			t.Fatalf("%q became %q: the bytes behind the last match changed", data, got)
		}
	})
}

// putLen is how many bytes at the start of b are text, whatever their line
// ends; -1 when they are not.
func putLen(b []byte, text string) int {
	n := 0
	for _, c := range []byte(withLF(text)) {
		if c == '\n' && n+1 < len(b) && b[n] == '\r' && b[n+1] == '\n' {
			n++
		}
		if n == len(b) || b[n] != c {
			return -1
		}
		n++
	}
	return n
}
