package tools

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

func TestWriteModes(t *testing.T) {
	d := newDisk(t)
	wantText(t, d.write("dir/a", "hello"), "created, wrote 5 bytes: /workspace/dir/a v2, sha256 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", "to get it: mcp-vdisk image get /workspace/dir/a .")
	wantText(t, d.write("dir/a", "bye"), "wrote 3 bytes: /workspace/dir/a v3")
	wantText(t, d.ok("write_file", args{"path": "dir/a", "content": "!", "mode": "append"}), "appended 1 byte, now 4 bytes: /workspace/dir/a v4")
	wantText(t, d.ok("write_file", args{"path": "b", "content": "new", "mode": "append"}), "created, wrote 3 bytes")
	wantText(t, d.ok("write_file", args{"path": "c", "content": "", "mode": "create"}), "created, wrote 0 bytes")
	d.fails(AlreadyExists, "write_file", args{"path": "c", "content": "x", "mode": "create"})
	d.fails(AlreadyExists, "write_file", args{"path": "dir", "content": "x", "mode": "create"})
	for _, mode := range []string{"overwrite", "append"} {
		d.fails(IsADirectory, "write_file", args{"path": "dir", "content": "x", "mode": mode})
		d.fails(NotADirectory, "write_file", args{"path": "b/below", "content": "x", "mode": mode})
	}
	d.fails(NotADirectory, "make_directory", args{"path": "b/below/it"})
	d.fails(NotADirectory, "list_files", args{"path": "b/below"})
	frozen := setup{image: workspace.CreateOptions{Clock: func() time.Time { return time.Unix(1e9, 0) }}}.disk(t)
	frozen.write("a", "same")
	wantText(t, frozen.write("a", "same"), "unchanged, it already held 4 bytes: /workspace/a v2, sha256")
	for path, want := range map[string]string{"dir/a": "bye!", "b": "new", "c": ""} {
		if got := d.content(path); got != want {
			t.Errorf("%s holds %q", path, got)
		}
	}
}

// TestBase64: bytes come out as they went in, white space in the encoding does
// not count.
func TestBase64(t *testing.T) {
	d := newDisk(t)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	text := base64.StdEncoding.EncodeToString(all)
	d.ok("write_file", args{"path": "a", "content": text[:100] + "\r\n " + text[100:], "encoding": "base64"})
	if got := d.content("a"); got != string(all) {
		t.Errorf("the image has %q", got)
	}
	if r := d.call("read_file", args{"path": "a", "encoding": "base64"}); r.Blocks[0].Text != text {
		t.Errorf("read %q", r.Blocks[0].Text)
	}
}

// TestModeBitsKept: a file keeps its permission bits through every mode.
func TestModeBitsKept(t *testing.T) {
	d := newDisk(t)
	d.write("a", "a")
	d.commit(workspace.Change{Op: workspace.OpMeta, Path: at("a"), Mode: 0o750})
	d.write("a", "b")
	d.ok("write_file", args{"path": "a", "content": "c", "mode": "append"})
	d.ok("write_file", args{"path": "a", "content": "d", "mode": "replace", "old_text": "b"})
	if n, _ := d.im.Lstat(at("a")); n.Mode != 0o750 || d.content("a") != "dc" {
		t.Errorf("mode %o, %q", n.Mode, d.content("a"))
	}
}

// TestIfVersion: a change on a version that is no longer there is refused in
// every mode, and what is there now is shown when it is short text.
func TestIfVersion(t *testing.T) {
	for name, a := range map[string]args{
		"overwrite": {"content": "x"},
		"append":    {"content": "x", "mode": "append"},
		"replace":   {"content": "x", "mode": "replace", "old_text": "one"},
		"delete":    nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDisk(t)
			tool := "write_file"
			if a == nil {
				tool = "delete_file"
			}
			a = with(a, "a")
			d.write("a", "one\n")
			old := d.version("a")
			d.write("a", "one two\n")
			a["if_version"] = old
			before := d.tree()
			wantText(t, d.fails(VersionConflict, tool, a), "/workspace/a is at v3, not v2", "it holds:\none two\n")
			if d.tree() != before {
				t.Errorf("the disk changed to\n%s", d.tree())
			}
			d.write("a", strings.Repeat("one\n", 3000))
			if text := d.fails(VersionConflict, tool, a); strings.Contains(text, "it holds:") {
				t.Errorf("a long file is shown: %.200s", text)
			}
			d.ok("write_file", args{"path": "a", "content": "/w==", "encoding": "base64"})
			if text := d.fails(VersionConflict, tool, a); strings.Contains(text, "it holds:") {
				t.Errorf("bytes are shown: %q", text)
			}
			d.write("a", "one\n")
			a["if_version"] = strings.TrimPrefix(d.version("a"), "v") // without the v too
			d.ok(tool, a)
			if name == "delete" {
				wantText(t, d.fails(NotFound, tool, a), "/workspace/a does not exist")
				return
			}
			d.ok("delete_file", args{"path": "a"})
			code := VersionConflict
			if name == "replace" {
				code = NotFound
			}
			d.fails(code, tool, a)
		})
	}
}

// TestAppends: 8 writers append 200 lines (each, in a soak) to a file that is not
// there yet; none is lost or torn.
func TestAppends(t *testing.T) {
	t.Parallel()
	writers, lines := 8, 25
	if soak() {
		lines = 200
	}
	d := newDisk(t)
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range lines {
				r := d.Call(t.Context(), "write_file", rawJSON(t, args{"path": "log", "content": fmt.Sprintf("writer %d line %d\n", w, i), "mode": "append"}))
				if !r.OK() {
					t.Error(r)
				}
			}
		})
	}
	all.Wait()
	next := map[int]int{}
	for l := range strings.Lines(d.content("log")) {
		var w, i int
		if _, err := fmt.Sscanf(l, "writer %d line %d\n", &w, &i); err != nil || next[w] != i {
			t.Fatalf("line %q, want line %d of writer %d", l, next[w], w)
		}
		next[w]++
	}
	for w := range writers {
		if next[w] != lines {
			t.Errorf("writer %d: %d lines", w, next[w])
		}
	}
	if rep := d.verify(); rep.Records != uint64(2*writers*lines) {
		t.Errorf("%d records", rep.Records)
	}
	if n := len(d.records(audit.Query{Match: map[string][]string{"ev": {"call.intent"}}})); n != writers*lines {
		t.Errorf("%d intents", n)
	}
}

// TestCreateRace: of many that create one file, one does.
func TestCreateRace(t *testing.T) {
	d := newDisk(t)
	made := make(chan bool, 20)
	var all sync.WaitGroup
	for i := range cap(made) {
		all.Go(func() {
			r := d.Call(t.Context(), "write_file", rawJSON(t, args{"path": "d/a", "content": fmt.Sprint(i), "mode": "create"}))
			if made <- r.OK(); !r.OK() && r.Err.Code != AlreadyExists {
				t.Error(r)
			}
		})
	}
	all.Wait()
	close(made)
	n := 0
	for ok := range made {
		if ok {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d created it", n)
	}
}

// TestLargeFiles: what is larger than a chunk goes in and comes out whole, and
// is overwritten by something shorter.
func TestLargeFiles(t *testing.T) {
	d := newDisk(t)
	for _, size := range []int{100_000, 4 << 20} {
		body := bytes.Repeat([]byte("0123456789\n"), size/11+1)[:size]
		d.write("big", string(body))
		if got := d.content("big"); got != string(body) {
			t.Errorf("%d bytes came out as %d", size, len(got))
		}
	}
	d.ok("write_file", args{"path": "big", "content": strings.Repeat("x", 600_000), "mode": "append"})
	if n := len(d.content("big")); n != 4<<20+600_000 {
		t.Errorf("%d bytes", n)
	}
	d.write("big", "short")
	if got := d.read("big"); got != "short" {
		t.Errorf("%q", got)
	}
}
