package tools

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// pathCases are the rules of paths, as text that a model may send and what it
// means: the path that results show, or the code of a refusal.
var pathCases = []struct {
	name, given, shown string
	code               Code
}{
	{"absolute alias", "/workspace/d/f", "/workspace/d/f", ""},
	{"absolute", "/d/f", "/workspace/d/f", ""},
	{"relative", "d/f", "/workspace/d/f", ""},
	{"dot", "./d/f", "/workspace/d/f", ""},
	{"dots inside", "/d/./././f", "/workspace/d/f", ""},
	{"slashes", "//d///f//", "/workspace/d/f", ""},
	{"alias with slashes", "//workspace//d/f", "/workspace/d/f", ""},
	{"alias behind a dot", "/./workspace/d/f", "/workspace/d/f", ""},
	{"trailing slash", "/d/f/", "/workspace/d/f", ""},
	{"relative workspace is a directory", "workspace/a", "/workspace/workspace/a", ""},
	{"alias twice", "/workspace/workspace/a", "/workspace/workspace/a", ""},
	{"alias as the start of a name", "/workspaces/a", "/workspace/workspaces/a", ""},
	{"backslash", `d\f`, "/workspace/d/f", ""},
	{"backslashed alias", `\workspace\d\f`, "/workspace/d/f", ""},
	{"drive letter", `C:\Windows\x`, "/workspace/C:/Windows/x", ""},
	{"drive letter with slashes", `C:/Windows/x`, "/workspace/C:/Windows/x", ""},
	{"UNC", `\\host\share\x`, "/workspace/host/share/x", ""},
	{"etc", "/etc/passwd", "/workspace/etc/passwd", ""},
	{"URL", "file:///etc/x", "/workspace/file:/etc/x", ""},
	{"tilde", "~", "/workspace/~", ""},
	{"tilde user", "~/x", "/workspace/~/x", ""},
	{"variable", "$HOME/x", "/workspace/$HOME/x", ""},
	{"two dots before a name", "..b", "/workspace/..b", ""},
	{"two dots in a name", "a..b", "/workspace/a..b", ""},
	{"three dots", "...", "/workspace/...", ""},
	{"percent encoded dots are a name", "%2e%2e/x", "/workspace/%2e%2e/x", ""},
	{"fullwidth dots are a name", "．．/x", "/workspace/．．/x", ""},
	{"dots with a space are a name", ".. /x", "/workspace/.. /x", ""},
	{"spaces kept", " a / b ", "/workspace/ a / b ", ""},
	{"control byte kept, shown quoted", "a\nb", `"/workspace/a\nb"`, ""},
	{"bell", "a\ab", `"/workspace/a\ab"`, ""},
	{"NFC and NFD stay two", "e\u0301", "/workspace/e\u0301", ""},
	{"CJK", strings.Repeat("漢", 85), "/workspace/" + strings.Repeat("漢", 85), ""},
	{"200 bytes", strings.Repeat("n", 200), "/workspace/" + strings.Repeat("n", 200), ""},
	{"255 bytes", strings.Repeat("n", 255), "/workspace/" + strings.Repeat("n", 255), ""},
	{"128 deep", strings.Repeat("a/", 127) + "a", "/workspace" + strings.Repeat("/a", 128), ""},
	{"quoted form", `"/workspace/q\x01\\z"`, `"/workspace/q\x01\\z"`, ""},
	{"quoted plain name", `"/workspace/plain"`, "/workspace/plain", ""},
	{"one quote is a name", `"a`, `/workspace/"a`, ""},
	{"like a reserved name", "/.systemx", "/workspace/.systemx", ""},
	{"reserved name in another case", "/.System", "/workspace/.System", ""},
	{"reserved name below the root", "/a/.system", "/workspace/a/.system", ""},

	{"empty", "", "", InvalidPath},
	{"blank", "   ", "", InvalidPath},
	{"tabs and newlines", "\t\n", "", InvalidPath},
	{"NUL", "/a\x00b", "", InvalidPath},
	{"NUL alone", "\x00", "", InvalidPath},
	{"quoted NUL", `"/a\x00b"`, "", InvalidPath},
	{"quoted nothing", `""`, "", InvalidPath},
	{"quoted nonsense", `"a\qb"`, "", InvalidPath},
	{"256 bytes", strings.Repeat("n", 256), "", InvalidPath},
	{"258 bytes of CJK", strings.Repeat("漢", 86), "", InvalidPath},
	{"129 deep", strings.Repeat("a/", 128) + "a", "", InvalidPath},
	{"4,097 bytes", strings.Repeat(strings.Repeat("n", 254)+"/", 17), "", InvalidPath},

	{"parent", "..", "", PathEscape},
	{"parent of a file", "../x", "", PathEscape},
	{"climbing", "/a/../../x", "", PathEscape},
	{"harmless parent", "/a/../b", "", PathEscape},
	{"trailing parent", "/a/..", "", PathEscape},
	{"backslashed parent", `..\x`, "", PathEscape},
	{"mixed separators", `a/..\..\x`, "", PathEscape},
	{"parent of the alias", "/workspace/../etc/passwd", "", PathEscape},
	{"quoted parent", `"/workspace/a/../b"`, "", PathEscape},
	{"parent of a reserved name", "/.system/../a", "", PathEscape},

	{"system", "/.system", "", ReservedPath},
	{"system file", "/.system/manifest.json", "", ReservedPath},
	{"write-ahead log", "/.system/wal.jsonl", "", ReservedPath},
	{"vectors", "/.vectors", "", ReservedPath},
	{"logs", "/.logs/x", "", ReservedPath},
	{"vector manifest", "/.vector_disk.json", "", ReservedPath},
	{"log manifest", "/.log_disk.json", "", ReservedPath},
	{"relative", ".system", "", ReservedPath},
	{"reserved below the alias", "/workspace/.system", "", ReservedPath},
	{"reserved with slashes", "//./.system//x", "", ReservedPath},
	{"reserved with backslashes", `\.system\x`, "", ReservedPath},
	{"reserved, quoted", `"/workspace/\x2esystem"`, "", ReservedPath},
}

// pathVerbs are the tools that take a path, with what else they need.
var pathVerbs = []struct {
	tool string
	more args
}{
	{"write_file", args{"content": "x"}},
	{"write_file", args{"content": "x", "mode": "create"}},
	{"write_file", args{"content": "x", "mode": "append"}},
	{"write_file", args{"content": "x", "mode": "replace", "old_text": "y"}},
	{"read_file", nil},
	{"list_files", nil},
	{"list_files", args{"recursive": true}},
	{"list_files", args{"contains": "x"}},
	{"make_directory", nil},
	{"delete_file", nil},
	{"delete_file", args{"recursive": true}},
	{"run_script", args{"language": "bash"}},
	{"run_script", args{"language": "python", "commit": "always"}},
}

func with(more args, path any) args {
	a := args{"path": path}
	for k, v := range more {
		a[k] = v
	}
	return a
}

// TestRefusedPaths: every verb refuses what is no path, with the right code,
// before any effect and with one record.
func TestRefusedPaths(t *testing.T) {
	d := newDisk(t)
	d.write("a/b", "b")
	before := d.tree()
	for _, c := range pathCases {
		if c.code == "" {
			continue
		}
		for _, v := range pathVerbs {
			d.run(fmt.Sprintf("%s/%s", v.tool, c.name), func(t *testing.T) {
				text := d.refused(c.code, v.tool, with(v.more, c.given))
				wantText(t, text, "\nhint: ")
				if len(text) > 600 {
					t.Errorf("the refusal has %d bytes: %s", len(text), text)
				}
			})
		}
	}
	if d.tree() != before {
		t.Errorf("the disk changed from\n%s\nto\n%s", before, d.tree())
	}
	d.verify()
}

// TestPathsThatAreNoText: a path of another type is an invalid path too.
func TestPathsThatAreNoText(t *testing.T) {
	d := newDisk(t)
	for name, path := range map[string]string{
		"number": `7`, "boolean": `true`, "list": `["a"]`, "object": `{"a":1}`,
		"lone surrogate": `"\ud800"`, "low surrogate first": `"\udc00\ud800"`, "invalid UTF-8": "\"a\xff\"",
	} {
		for _, v := range pathVerbs {
			raw := string(rawJSON(t, with(v.more, "PATH")))
			d.run(v.tool+"/"+name, func(t *testing.T) {
				d.refused(InvalidPath, v.tool, strings.Replace(raw, `"PATH"`, path, 1))
			})
		}
	}
}

// TestGoodPaths: one path in all its spellings is one file, for every verb, and
// results show it in one form.
func TestGoodPaths(t *testing.T) {
	for _, c := range pathCases {
		if c.code != "" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newDisk(t)
			p := at(c.shown)
			wantText(t, d.write(c.given, "body\n"), c.shown+" v")
			if got := d.content(c.shown); got != "body\n" {
				t.Errorf("the image has %q", got)
			}
			if got := d.read(c.given); got != "body\n" {
				t.Errorf("read %q", got)
			}
			if got := d.read(c.shown); got != "body\n" {
				t.Errorf("read as shown: %q", got)
			}
			d.ok("write_file", args{"path": c.given, "mode": "append", "content": "more\n"})
			d.ok("write_file", args{"path": c.given, "mode": "replace", "old_text": "body", "content": "soul"})
			d.fails(AlreadyExists, "write_file", args{"path": c.given, "mode": "create", "content": ""})
			if got := d.content(c.shown); got != "soul\nmore\n" {
				t.Errorf("the image has %q", got)
			}
			if got := names(d.ok("list_files", args{"path": c.given})); len(got) != 1 || got[0] != c.shown {
				t.Errorf("listed as %q", got)
			}
			if got := names(d.ok("list_files", args{"path": p.Dir().String()})); len(got) != 1 || got[0] != c.shown {
				t.Errorf("its directory lists %q", got)
			}
			wantText(t, d.ok("list_files", args{"contains": "soul", "recursive": true}), c.shown+":1: soul")
			d.fails(NotADirectory, "make_directory", args{"path": c.given})
			wantText(t, d.ok("delete_file", args{"path": c.given}), "deleted "+c.shown)
			d.fails(NotFound, "read_file", args{"path": c.given})
			wantText(t, d.ok("make_directory", args{"path": c.given}), "created "+c.shown)
			wantText(t, d.ok("make_directory", args{"path": c.shown}), "already there: "+c.shown)
			d.fails(IsADirectory, "read_file", args{"path": c.given})
			d.fails(IsADirectory, "write_file", args{"path": c.given, "content": "x"})
		})
	}
}

// TestRoot: the root can be listed and made (it is there), and nothing else.
func TestRoot(t *testing.T) {
	for _, root := range []string{"/", ".", "./", "/workspace", "/workspace/", `\`, "//", "/./", `"/workspace"`} {
		t.Run(root, func(t *testing.T) {
			d := newDisk(t)
			d.write("a/b", "b")
			before := d.tree()
			d.refused(IsADirectory, "write_file", args{"path": root, "content": "x"})
			d.refused(IsADirectory, "write_file", args{"path": root, "content": "x", "mode": "append"})
			d.refused(IsADirectory, "write_file", args{"path": root, "content": "x", "mode": "create"})
			d.refused(IsADirectory, "write_file", args{"path": root, "content": "x", "mode": "replace", "old_text": "y"})
			d.refused(InvalidPath, "delete_file", args{"path": root})
			d.refused(InvalidPath, "delete_file", args{"path": root, "recursive": true})
			d.refused(IsADirectory, "run_script", args{"language": "bash", "path": root})
			d.fails(IsADirectory, "read_file", args{"path": root})
			wantText(t, d.ok("make_directory", args{"path": root}), "already there: /workspace")
			wantText(t, d.ok("list_files", args{"path": root}), "/workspace/a/")
			if d.tree() != before {
				t.Errorf("the disk changed to\n%s", d.tree())
			}
			d.verify()
		})
	}
}

// TestNotPlainNames: what scripts may have made is listed quoted, one line
// each, and reached in that form.
func TestNotPlainNames(t *testing.T) {
	put := func(rel string) workspace.Change {
		p, err := workspace.FromBytes([]byte(rel))
		if err != nil {
			t.Fatal(err)
		}
		return workspace.Change{Op: workspace.OpPut, Path: p, Parents: true}
	}
	raw := []string{"new\nline", `back\slash`, "latin1-\xe9", "esc\x1b[31m", "turn\u202eed", "sep\u2028arated", "dir\x01/below", "\x7f", `"quoted"`}
	var seed []workspace.Change
	for _, n := range raw {
		seed = append(seed, put(n))
	}
	d := setup{seed: seed}.disk(t)
	list := names(d.ok("list_files", args{"recursive": true}))
	if len(list) != len(raw)+1 {
		t.Fatalf("%d of %d entries: %q", len(list), len(raw)+1, list)
	}
	for _, shown := range list {
		n, err := d.im.Lstat(at(shown))
		if err != nil {
			t.Errorf("%s: %v", shown, err)
			continue
		}
		if n.Kind == workspace.KindDir {
			continue
		}
		d.ok("write_file", args{"path": shown, "content": "text of " + shown})
		if got := d.read(shown); got != "text of "+shown {
			t.Errorf("%s holds %q", shown, got)
		}
		d.ok("delete_file", args{"path": shown})
	}
	if got := names(d.ok("list_files", args{"recursive": true})); len(got) != 1 {
		t.Errorf("left: %q", got)
	}
}

// TestSimilarNames: a miss names the one sibling that differs only in how its
// characters are written.
func TestSimilarNames(t *testing.T) {
	for _, c := range []struct {
		name, there, asked string
		hint               bool
	}{
		{"NFD is there", "caf\u0065\u0301.txt", "caf\u00e9.txt", true},
		{"NFC is there", "caf\u00e9.txt", "caf\u0065\u0301.txt", true},
		{"narrow space is there", "Shot at 1.02\u202fPM.png", "Shot at 1.02 PM.png", true},
		{"two spaces", "a  b", "a b", true},
		{"in a directory", "u\u0308ber/x", "\u00fcber/x", true},
		{"another name", "b.txt", "a.txt", false},
		{"another case", "A.txt", "a.txt", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDisk(t)
			d.write(c.there, "x")
			for _, v := range []struct {
				tool string
				more args
			}{{"read_file", nil}, {"list_files", nil}, {"delete_file", nil}, {"write_file", args{"content": "y", "mode": "replace", "old_text": "x"}}} {
				text := d.fails(NotFound, v.tool, with(v.more, c.asked))
				if got := strings.Contains(text, at(c.there).String()); got != c.hint {
					t.Errorf("%s: hint %v, want %v: %s", v.tool, got, c.hint, text)
				}
			}
		})
	}
}

// TestHints: a path that means the user's computer, or a place that vanishes,
// is told so.
func TestHints(t *testing.T) {
	const note = "not on the user's computer"
	const gone = "vanishes after each run"
	d := newDisk(t)
	for _, path := range []string{"/home/me/a", "/Users/me/a", "/tmp/a", "/mnt/data/a", `D:\a`, "c:/a"} {
		wantText(t, d.write(path, "x"), note)
		wantText(t, d.ok("make_directory", args{"path": path + "-d"}), note)
	}
	for _, path := range []string{"/homework/a", "/a/tmp/b", "tmp/c", "tmpfile", "/mnt/a"} {
		if text := d.write(path, "x"); strings.Contains(text, note) {
			t.Errorf("%s: %s", path, text)
		}
	}
	for _, path := range []string{"/tmp/b", "/dev/shm/b", "~/b", "~", "/home/user/b", "$HOME/b"} {
		for _, tool := range []string{"read_file", "list_files", "delete_file"} {
			wantText(t, d.fails(NotFound, tool, args{"path": path}), gone)
		}
	}
	for _, path := range []string{"/home/me/b", "/Users/me/b", "/mnt/data/b", `D:\b`} {
		wantText(t, d.fails(NotFound, "read_file", args{"path": path}), note)
	}
	e := newDisk(t)
	wantText(t, e.fails(NotFound, "list_files", args{"path": "/tmp"}), gone)
}

// TestGetLine: what was made is told how to take out, quoted for a shell.
func TestGetLine(t *testing.T) {
	d := setup{config: func(c *Config) { c.GetArgs = "--image work --state '/my state' " }}.disk(t)
	for path, word := range map[string]string{
		"a.txt": "/workspace/a.txt", "a b": "'/workspace/a b'", "it's": `'/workspace/it'\''s'`, "$(x)": "'/workspace/$(x)'", "-rf": "/workspace/-rf",
	} {
		text := d.write(path, "x")
		if line := "\nto get it: mcp-vdisk image get --image work --state '/my state' " + word + " ."; !strings.HasSuffix(text, line) {
			t.Errorf("%s does not end with %q", text, line)
		}
	}
}

// TestWorthGetting: the command takes what was made, and little else.
func TestWorthGetting(t *testing.T) {
	for _, c := range []struct{ made, got []string }{
		{[]string{"a"}, []string{"/workspace/a"}},
		{[]string{"d/e/a"}, []string{"/workspace/d/e/a"}},
		{[]string{"d/e/a", "d/f/b"}, []string{"/workspace/d"}},
		{[]string{"d/e/a", "d/e/b", "d/e/f/c"}, []string{"/workspace/d/e"}},
		{[]string{"a", "b"}, []string{"/workspace/a", "/workspace/b"}},
		{[]string{"a", "d/e/x", "d/e/y", "z/b"}, []string{"/workspace/a", "/workspace/d/e", "/workspace/z/b"}},
		{[]string{"a", "b", "c", "d"}, []string{"/workspace"}},
		{[]string{"a", "d/a"}, []string{"/workspace/a", "/workspace/d"}}, // of one name
		{[]string{"p/e/x", "q/x"}, []string{"/workspace/p", "/workspace/q"}},
		{[]string{"link@"}, nil},
		{[]string{"a", "link@", "dir/", "gone-", "same="}, []string{"/workspace/a"}},
		{nil, nil},
	} {
		var ch change
		for _, name := range c.made {
			e := workspace.Effect{What: workspace.Created, After: &workspace.Node{Kind: workspace.KindFile}}
			switch name[len(name)-1] {
			case '@':
				e.After.Kind = workspace.KindSymlink
			case '/':
				e.After.Kind = workspace.KindDir
			case '-':
				e.After, e.What = nil, workspace.Deleted
			case '=':
				e.What = workspace.Touched
			}
			p, err := workspace.Clean(strings.TrimRight(name, "@/-="))
			if err != nil {
				t.Fatal(err)
			}
			e.Path = p
			ch.effects = append(ch.effects, e)
		}
		var got []string
		for _, p := range ch.worthGetting() {
			got = append(got, p.String())
		}
		if !slices.Equal(got, c.got) {
			t.Errorf("of %q the command gets %q, not %q", c.made, got, c.got)
		}
	}
}
