package tools

import (
	"strings"
	"testing"
)

// TestReadAt: a file as it was, also when it is gone by now.
func TestReadAt(t *testing.T) {
	d := newDisk(t)
	d.write("a", "one\n")                               // v2
	d.write("b", "b")                                   // v3
	d.write("a", "two\nlines\n")                        // v4
	d.ok("delete_file", args{"path": "a"})              // v5
	d.write("dir/f", "f")                               // v6
	d.write("a", strings.Repeat("many lines\n", 3_000)) // v7
	for at, words := range map[string][]string{
		"v2": {"one\n", "[lines 1-1 of 1, 4 bytes, v2 as it was at v2]"},
		"3":  {"one\n", "v2 as it was at v3]"},
		"v4": {"two\nlines\n", "v4 as it was at v4]"},
		"v7": {"lines 1-2000 of 3000", `next page: "at": "v7", "offset": 2001]`},
	} {
		r := d.call("read_file", args{"path": "/workspace/a", "at": at})
		wantText(t, r.String(), words...)
		if r.Facts["at"] != "v"+strings.TrimPrefix(at, "v") {
			t.Errorf("facts %v", r.Facts)
		}
	}
	wantText(t, d.ok("read_file", args{"path": "a", "at": "v4", "offset": 2}), "lines 2-2 of 2")
	wantText(t, d.ok("read_file", args{"path": "a", "at": "v4", "encoding": "base64"}), b64("two\nlines\n"), "v4 as it was at v4]")
	wantText(t, d.fails(NotFound, "read_file", args{"path": "a", "at": "v5"}), "at v5: ", "does not exist", "hint: it was not there at that version")
	wantText(t, d.fails(NotFound, "read_file", args{"path": "a", "at": "v1"}), "at v1: ")
	wantText(t, d.fails(NotFound, "read_file", args{"path": "a", "at": "v8"}), "there is no v8 of this disk yet: its newest version is v7")
	d.fails(NotFound, "read_file", args{"path": "a", "at": "v18446744073709551615"})
	d.fails(NotFound, "read_file", args{"path": "none", "at": "v3"})
	d.fails(IsADirectory, "read_file", args{"path": "dir", "at": "v6"})
	for _, bad := range []string{"latest", "v0", "-1", "vv2", "v2 ", "v18446744073709551616", "v2.5"} {
		wantText(t, d.refused(InvalidArgument, "read_file", args{"path": "a", "at": bad}), "at: ", "is not a version")
	}
	d.refused(InvalidArgument, "read_file", args{"path": "a", "at": 2})
	d.refused(PathEscape, "read_file", args{"path": "../a", "at": "v2"})
	d.verify()
}
