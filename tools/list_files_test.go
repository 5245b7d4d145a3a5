package tools

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

var nextCursor = regexp.MustCompile(`\[([0-9,]+\+?) more; next page: "cursor": "([^"]+)"\]`)

// listAll follows the cursors of a listing to its end and returns all its
// lines. On the way it checks every count.
func (d *disk) listAll(a args, line func(string) []string) []string {
	d.t.Helper()
	var all []string
	var left []int
	for {
		r := d.call("list_files", a)
		if !r.OK() {
			d.t.Fatalf("%v: %s", a, r)
		}
		d.checkSize(r)
		if len(r.String()) > MaxText+7000 {
			d.t.Errorf("a page of %d bytes", len(r.String()))
		}
		page := line(r.String())
		all = append(all, page...)
		m := nextCursor.FindStringSubmatch(r.String())
		if (m != nil) != (r.Facts["cursor"] != nil) || len(page) != r.Facts["shown"] {
			d.t.Fatalf("%d lines, facts %v", len(page), r.Facts)
		}
		if m == nil {
			break
		}
		if len(page) == 0 {
			d.t.Fatal("an empty page with a cursor")
		}
		left = append(left, len(all), r.Facts["left"].(int))
		a["cursor"] = m[2]
	}
	for i := 0; i < len(left); i += 2 {
		if rest := len(all) - left[i]; left[i+1] != min(rest, countMost) {
			d.t.Errorf("after %d lines: %d are said to be left, %d are", left[i], left[i+1], rest)
		}
	}
	return all
}

// hits are the lines of a search.
func hits(text string) []string {
	var out []string
	for l := range strings.Lines(text) {
		if l = strings.TrimSuffix(l, "\n"); !strings.HasPrefix(l, "[") {
			out = append(out, l)
		}
	}
	return out
}

func files(paths ...string) []workspace.Change {
	var list []workspace.Change
	for _, p := range paths {
		list = append(list, workspace.Change{Op: workspace.OpPut, Path: at(p), Parents: true})
	}
	return list
}

// TestListPages: following the cursors shows every entry exactly once, in
// order, whatever the size of the page.
func TestListPages(t *testing.T) {
	t.Parallel()
	flat := make([]string, 3000)
	for i := range flat {
		flat[i] = fmt.Sprintf("/workspace/flat/f%04d", i)
	}
	var deep []string
	for i := range 3000 {
		deep = append(deep, fmt.Sprintf("/workspace/deep/%c/%c%c/f%d", 'a'+i%7, 'a'+i%3, 'a'+i%11, i))
	}
	long := make([]string, 400)
	for i := range long { // short and long names side by side: pages end by size
		long[i] = fmt.Sprintf("/workspace/long/%03d%s", i, strings.Repeat("x", i%7*40))
	}
	d := setup{seed: files(slices.Concat(flat, deep, long)...)}.disk(t)
	for _, limit := range []int{0, 1, 7, 200, 999, 1000} {
		if limit != 1 { // 3,000 calls tell no more than 400
			d.run(fmt.Sprint("flat by ", limit), func(t *testing.T) {
				a := args{"path": "flat"}
				if limit > 0 {
					a["limit"] = limit
				}
				if got := d.listAll(a, names); !slices.Equal(got, flat) {
					t.Errorf("%d entries, %d wanted", len(got), len(flat))
				}
			})
		}
		d.run(fmt.Sprint("long names by ", limit), func(t *testing.T) {
			a := args{"path": "long"}
			if limit > 0 {
				a["limit"] = limit
			}
			if got := d.listAll(a, names); !slices.Equal(got, long) {
				t.Errorf("%d entries, %d wanted", len(got), len(long))
			}
		})
	}
	want := breadthFirst(d, "/workspace/deep")
	for _, limit := range []int{50, 200, 1000} {
		d.run(fmt.Sprint("recursive by ", limit), func(t *testing.T) {
			if got := d.listAll(args{"path": "deep", "recursive": true, "limit": limit}, names); !slices.Equal(got, want) {
				t.Errorf("%d entries, %d wanted", len(got), len(want))
			}
		})
	}
	d.run("pattern", func(t *testing.T) {
		var want []string
		for _, p := range flat {
			if strings.HasSuffix(p, "7") {
				want = append(want, p)
			}
		}
		if got := d.listAll(args{"path": "flat", "pattern": "f*7", "limit": 99}, names); !slices.Equal(got, want) {
			t.Errorf("%d entries, %d wanted", len(got), len(want))
		}
	})
}

// breadthFirst lists a tree by the image's own means.
func breadthFirst(d *disk, root string) []string {
	var out []string
	level := []workspace.Path{at(root)}
	for len(level) > 0 {
		var below []workspace.Path
		for _, dir := range level {
			entries, _, err := d.im.List(dir, "", 1<<20)
			if err != nil {
				d.t.Fatal(err)
			}
			for _, e := range entries {
				if e.Node.Kind == workspace.KindDir {
					below = append(below, e.Path)
					out = append(out, e.Path.String()+"/")
					continue
				}
				out = append(out, e.Path.String())
			}
		}
		level = below
	}
	return out
}

// TestListCount: what is left out is counted exactly up to 10,000.
func TestListCount(t *testing.T) {
	t.Parallel()
	paths := make([]string, 10_003)
	for i := range paths {
		paths[i] = fmt.Sprintf("f%05d", i)
	}
	d := setup{seed: files(paths...)}.disk(t)
	for limit, want := range map[int]string{1: "10,000+ more", 2: "10,000+ more", 3: "10,000 more", 4: "9,999 more", 1000: "9,003 more"} {
		r := d.call("list_files", args{"limit": limit})
		wantText(t, r.String(), "["+want+";")
		if minimum := strings.Contains(want, "+"); r.Facts["left_is_minimum"] != minimum {
			t.Errorf("limit %d: facts %v", limit, r.Facts)
		}
	}
}

// TestListForm: the lines of a listing.
func TestListForm(t *testing.T) {
	d := newDisk(t)
	d.write("b.txt", "12345")
	d.write("a/x/y", "")
	d.commit(link("link", "a"), link("dangling", "nowhere"), link("loop", "."))
	const flat = "dir          -  /workspace/a/\nfile         5  /workspace/b.txt\nlink         7  /workspace/dangling -> nowhere\nlink         1  /workspace/link -> a\nlink         1  /workspace/loop -> ."
	if got := d.ok("list_files", nil); got != flat {
		t.Errorf("got\n%s\nwant\n%s", got, flat)
	}
	const deep = flat + "\ndir          -  /workspace/a/x/\nfile         0  /workspace/a/x/y"
	if got := d.ok("list_files", args{"recursive": true}); got != deep {
		t.Errorf("got\n%s\nwant\n%s", got, deep)
	}
	for path, want := range map[string]string{
		"a/x":   "file         0  /workspace/a/x/y",
		"link":  "dir          -  /workspace/a/x/",
		"b.txt": "file         5  /workspace/b.txt",
	} {
		if got := d.ok("list_files", args{"path": path}); got != want {
			t.Errorf("%s: %s", path, got)
		}
	}
	d.ok("make_directory", args{"path": "none"})
	wantText(t, d.ok("list_files", args{"path": "none"}), "[/workspace/none is empty]")
	wantText(t, d.ok("list_files", args{"path": "none", "contains": "x"}), "[no line in /workspace/none matches]")
	d.fails(NotFound, "list_files", args{"path": "nowhere"})
	d.fails(NotFound, "list_files", args{"path": "dangling"})
}

func TestListPattern(t *testing.T) {
	d := setup{seed: files("main.py", "main_test.py", "README.md", "src/a.py", "src/b.go", "src/deep/c.py", "src/deep/.hidden", "data[1].csv")}.disk(t)
	for _, c := range []struct {
		pattern string
		a       args
		want    []string
	}{
		{"*.py", args{}, []string{"main.py", "main_test.py"}},
		{"*.py", args{"recursive": true}, []string{"main.py", "main_test.py", "src/a.py", "src/deep/c.py"}},
		{"**/*.py", args{}, []string{"main.py", "main_test.py", "src/a.py", "src/deep/c.py"}},
		{"src/*.py", args{}, []string{"src/a.py"}},
		{"/src/*.py", args{}, []string{"src/a.py"}},
		{"src/**", args{}, []string{"src/", "src/a.py", "src/b.go", "src/deep/", "src/deep/.hidden", "src/deep/c.py"}},
		{"*.{py,md}", args{}, []string{"README.md", "main.py", "main_test.py"}},
		{"main?test.py", args{}, []string{"main_test.py"}},
		{"[!m]*.md", args{}, []string{"README.md"}},
		{"data\\[1\\].csv", args{}, []string{"data[1].csv"}},
		{"deep/*", args{"path": "src"}, []string{"src/deep/.hidden", "src/deep/c.py"}},
		{"src", args{}, []string{"src/"}},
		{"none*", args{}, nil},
	} {
		t.Run(c.pattern, func(t *testing.T) {
			a := with(c.a, "/")
			if c.a["path"] != nil {
				a["path"] = c.a["path"]
			}
			a["pattern"] = c.pattern
			text := d.ok("list_files", a)
			got := names(text)
			for i := range got {
				got[i] = strings.TrimPrefix(got[i], "/workspace/")
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if c.want == nil {
				wantText(t, text, "[nothing in /workspace matches the pattern]")
			}
		})
	}
}

// TestSearch: contains finds lines in text files, with paging.
func TestSearch(t *testing.T) {
	d := newDisk(t)
	d.write("a.py", "import os\nprint(os.getcwd())\r\n\nimport sys")
	d.write("sub/b.py", "import re\n")
	d.write("sub/c.txt", "import nothing\n")
	d.putBytes("bin", []byte("import \x00 binary\n"))
	d.putBytes("latin", []byte("import caf\xe9\n"))
	d.write("long", strings.Repeat("x", 5000)+"NEEDLE"+strings.Repeat("y", 5000)+"\n"+strings.Repeat("é", 70_000)+"AFTER 64 KiB\nnext NEEDLE")
	d.commit(link("link", "a.py"), link("dir", "sub"))
	for _, c := range []struct {
		name string
		a    args
		want []string
	}{
		{"flat", args{"contains": "import"}, []string{"/workspace/a.py:1: import os", "/workspace/a.py:4: import sys", "/workspace/latin:1: import caf\ufffd"}},
		{"recursive", args{"contains": "^import", "recursive": true, "pattern": "*.py"}, []string{"/workspace/a.py:1: import os", "/workspace/a.py:4: import sys", "/workspace/sub/b.py:1: import re"}},
		{"end of a CRLF line", args{"contains": `\)$`}, []string{"/workspace/a.py:2: print(os.getcwd())"}},
		{"ignoring case", args{"contains": "(?i)IMPORT RE", "recursive": true}, []string{"/workspace/sub/b.py:1: import re"}},
		{"one file", args{"contains": "import", "path": "sub/c.txt"}, []string{"/workspace/sub/c.txt:1: import nothing"}},
		{"through a link", args{"contains": "sys", "path": "link"}, []string{"/workspace/a.py:4: import sys"}},
		{"empty line", args{"contains": "^$", "path": "a.py"}, []string{"/workspace/a.py:3: "}},
		{"behind 64 KiB of a line", args{"contains": "AFTER"}, nil},
		{"nothing", args{"contains": "zzz"}, nil},
	} {
		d.run(c.name, func(t *testing.T) {
			if got := hits(d.ok("list_files", c.a)); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	wantText(t, d.ok("list_files", args{"contains": "import"}), "directories below were not searched; recursive:true")
	text := d.ok("list_files", args{"contains": "NEEDLE", "path": "long"})
	wantText(t, text, "/workspace/long:1: …xxx", "NEEDLEyyy", "…\n/workspace/long:3: next NEEDLE")
	if len(text) > 600 {
		t.Errorf("%d bytes: %s", len(text), text)
	}
}

// TestSearchPages: following the cursors shows every line exactly once.
func TestSearchPages(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	var want []string
	for f := range 12 {
		var body strings.Builder
		for l := range 100 {
			line := fmt.Sprintf("hit %d %s", l, strings.Repeat("z", l%5*60))
			fmt.Fprintf(&body, "%s\nmiss\n", line)
			if len(line) > lineShow {
				line = line[:lineShow] + "…"
			}
			want = append(want, fmt.Sprintf("/workspace/d%d/f%02d:%d: %s", f/6, f, 2*l+1, line))
		}
		d.write(fmt.Sprintf("d%d/f%02d", f/6, f), body.String())
	}
	for _, limit := range []int{7, 100, 1000} {
		d.run(fmt.Sprint(limit), func(t *testing.T) {
			if got := d.listAll(args{"contains": "^hit", "recursive": true, "limit": limit}, hits); !slices.Equal(got, want) {
				t.Errorf("%d lines, %d wanted", len(got), len(want))
			}
		})
	}
}

// TestListWhileChanging: a cursor stays good when what it names is gone.
func TestListWhileChanging(t *testing.T) {
	d := setup{seed: files("a/1", "a/2", "b/1", "b/2", "c")}.disk(t)
	for _, a := range []args{{"limit": 1}, {"limit": 1, "recursive": true}, {"limit": 4, "recursive": true}} {
		r := d.call("list_files", a)
		shown := names(r.String())
		last := strings.TrimSuffix(shown[len(shown)-1], "/")
		d.ok("delete_file", args{"path": last, "recursive": true})
		a["cursor"], a["limit"] = r.Facts["cursor"], 1000
		for _, n := range names(d.ok("list_files", a)) {
			if slices.Contains(shown, n) {
				t.Errorf("%s is shown twice", n)
			}
		}
	}
}
