package tools

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/schemas"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// The cases are a numbered list of what a disk for an agent has to do, made from
// the tests, bugs and gaps of an earlier system of the same purpose. Tested
// here and in cases_linux_test.go are those that concern the tools. The others:
//
//	20–23, 49–54  tampering, retention, crashes of the log   audit
//	24            order and bounds of queries                audit (query_test.go)
//	29            host directories for scripts               there are none; sandboxrun tests what scripts see
//	30            verbs of a script language                 there is none
//	33            statistics                                 `image show`, cmd/mcp-vdisk
//	34            several calls at a time over MCP           stdio_test.go; here for Call
//	38, 39, 44    transactions                               workspace
//	40, 41, 59    locks, foreign files                       workspace, workspace/hostos
//	62            what --no-delete keeps                     policy_test.go, policy_linux_test.go
//	64            check of an image                          workspace (verify in its tests)

// TestCases are the cases that need no script.
func TestCases(t *testing.T) {
	for number, f := range map[string]func(t *testing.T, d *disk){
		"1 survives reopening": func(t *testing.T, d *disk) {
			d.write("/notes.md", "text")
			first := d.records(audit.Query{})
			d.reopen(setup{}, workspace.OpenOptions{})
			if got := d.records(audit.Query{}); len(got) != 2 || got[0].Run != first[0].Run {
				t.Errorf("after reopening: %+v", got)
			}
			if got := d.read("/notes.md"); got != "text" {
				t.Errorf("%q", got)
			}
			if got := d.records(audit.Query{}); len(got) != 3 || got[2].Run == got[0].Run {
				t.Errorf("the runs are not told apart: %+v", got)
			}
			d.verify()
		},
		"2 the tools": func(t *testing.T, d *disk) {
			want := []string{"write_file", "read_file", "list_files", "make_directory", "delete_file", "run_script", "python_env"}
			var got []string
			for _, tool := range d.tools(t) {
				got = append(got, tool.Name)
				if tool.Description == "" || len(tool.RawInputSchema) == 0 && tool.InputSchema.Type != "object" {
					t.Errorf("%s has no description or no schema", tool.Name)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("got %v", got)
			}
		},
		"3 write": func(t *testing.T, d *disk) { wantText(t, d.write("/a.txt", "hello"), "5 bytes", "/workspace/a.txt") },
		"4 read": func(t *testing.T, d *disk) {
			d.write("/a.txt", "hello")
			if got := d.read("/a.txt"); got != "hello" {
				t.Errorf("%q", got)
			}
		},
		"5 list": func(t *testing.T, d *disk) {
			d.write("/a.txt", "hello")
			wantText(t, d.ok("list_files", args{"path": "/"}), "file         5  /workspace/a.txt")
		},
		"6 make directories": func(t *testing.T, d *disk) {
			wantText(t, d.ok("make_directory", args{"path": "/d/e"}), "created")
			wantText(t, d.ok("make_directory", args{"path": "/d/e"}), "already there")
			wantText(t, d.ok("list_files", args{"path": "/d"}), "/workspace/d/e/")
		},
		"7 delete": func(t *testing.T, d *disk) {
			d.write("/a.txt", "hello")
			d.ok("delete_file", args{"path": "/a.txt"})
			d.fails(NotFound, "read_file", args{"path": "/a.txt"})
		},
		"8 unknown tool": func(t *testing.T, d *disk) {
			text := d.Dispatch(t.Context(), "nope", nil)
			wantText(t, text, "NOT_FOUND: ", "nope")
			if got := d.records(audit.Query{Match: map[string][]string{"ev": {"call.refused"}, "tool": {"nope"}}}); len(got) != 1 {
				t.Errorf("%d records", len(got))
			}
		},
		"9 missing argument": func(t *testing.T, d *disk) {
			wantText(t, d.refused(InvalidArgument, "write_file", `{"path":"a"}`), "content: is missing")
		},
		"10 missing file": func(t *testing.T, d *disk) { d.fails(NotFound, "read_file", args{"path": "none"}) },
		"11 escapes": func(t *testing.T, d *disk) {
			for _, p := range []string{"../outside.txt", "/a/../../outside.txt", `..\outside.txt`} {
				d.refused(PathEscape, "write_file", args{"path": p, "content": "x"})
			}
			if d.tree() != "" {
				t.Error(d.tree())
			}
		},
		"12 drive letter": func(t *testing.T, d *disk) {
			d.write(`C:\Windows\evil.txt`, "x")
			if got := d.content("/C:/Windows/evil.txt"); got != "x" {
				t.Errorf("%q", got)
			}
		},
		"13 no paths": func(t *testing.T, d *disk) {
			for _, p := range []string{"", "   ", "/a\x00b"} {
				d.refused(InvalidPath, "read_file", args{"path": p})
			}
		},
		"14 reserved": func(t *testing.T, d *disk) {
			for _, p := range []string{"/.system/manifest.json", "/.system/wal.jsonl", "/.vectors", "/.logs", "/.vector_disk.json"} {
				wantText(t, d.refused(ReservedPath, "read_file", args{"path": p}), "reserved for the container itself")
			}
		},
		"15 reserved is not listed": func(t *testing.T, d *disk) {
			d.write("a/.system", "x")
			if got := names(d.ok("list_files", args{"recursive": true})); !slices.Equal(got, []string{"/workspace/a/", "/workspace/a/.system"}) {
				t.Errorf("%q", got)
			}
		},
		"18 three records": func(t *testing.T, d *disk) {
			raw := rawJSON(t, args{"path": "a", "content": "text"})
			d.ok("write_file", raw)
			d.fails(NotFound, "read_file", args{"path": "none"})
			d.fails(NotFound, "nope", nil)
			var got []string
			for _, r := range d.records(audit.Query{}) {
				got = append(got, fmt.Sprint(r.Ev, " ", r.Err))
				if r.Run == "" || !slices.IsSorted(sortedKeys(r.Cap)) {
					t.Errorf("record %+v", r)
				}
			}
			if want := []string{"call.intent ", "call.outcome ", "call.read NOT_FOUND", "call.refused NOT_FOUND"}; !slices.Equal(got, want) {
				t.Errorf("got %q", got)
			}
			for match, n := range map[string]int{"tool=write_file": 2, "out.ok=true": 1, "err=NOT_FOUND": 2, "args.path=a": 2, "dec=deny": 1} {
				field, value, _ := strings.Cut(match, "=")
				if got := d.records(audit.Query{Match: map[string][]string{field: {value}}}); len(got) != n {
					t.Errorf("%s: %d records, want %d", match, len(got), n)
				}
			}
		},
		"19 one record": func(t *testing.T, d *disk) {
			d.ok("list_files", nil)
			if rep := d.verify(); rep.Records != 1 || rep.First != 1 {
				t.Errorf("%+v", rep)
			}
		},
		"34 many calls": func(t *testing.T, d *disk) {
			ids := make(chan string, 50)
			var all sync.WaitGroup
			for i := range cap(ids) {
				all.Go(func() {
					r := d.Call(t.Context(), "write_file", rawJSON(t, args{"path": fmt.Sprint("f", i), "content": fmt.Sprint(i)}))
					if ids <- r.Call; !r.OK() || r.Facts["path"] != fmt.Sprint("/workspace/f", i) {
						t.Error(r)
					}
				})
			}
			all.Wait()
			close(ids)
			seen := map[string]bool{}
			for id := range ids {
				seen[id] = true
			}
			if len(seen) != 50 {
				t.Errorf("%d ids", len(seen))
			}
			d.verify()
		},
		"35 closed": func(t *testing.T, d *disk) {
			d.write("a", "a")
			d.close()
			for tool, a := range good {
				if text := d.Dispatch(t.Context(), tool, rawJSON(t, a)); !strings.HasPrefix(text, "AUDIT_UNAVAILABLE: ") {
					t.Errorf("%s: %s", tool, text)
				}
			}
		},
		"36 sizes": func(t *testing.T, d *disk) {
			d.write("a", strings.Repeat("long ", 100))
			d.write("a", "short")
			d.ok("write_file", args{"path": "a", "content": "er", "mode": "append"})
			if got := d.read("a"); got != "shorter" {
				t.Errorf("%q", got)
			}
			d.write("empty", "")
			if got := d.read("empty"); got != "" {
				t.Errorf("%q", got)
			}
			for _, size := range []int{100_000, 4_000_000} {
				d.putBytes("big", noise(size))
				if got := d.content("big"); got != string(noise(size)) {
					t.Errorf("%d bytes came out as %d", size, len(got))
				}
			}
			for i := range 200 {
				d.write(fmt.Sprintf("dir/f%d", i), "x")
			}
			if got := names(d.ok("list_files", args{"path": "dir"})); len(got) != 200 {
				t.Errorf("%d entries", len(got))
			}
		},
		"37 symlink loops": func(t *testing.T, d *disk) {
			d.commit(link("a", "b"), link("b", "a"), link("self", "self"), link("deep/x", "../deep/x/y"))
			for _, p := range []string{"a", "self", "a/below", "deep/x"} {
				d.fails(InvalidPath, "read_file", args{"path": p})
				d.fails(InvalidPath, "write_file", args{"path": p, "content": "x"})
				d.fails(InvalidPath, "list_files", args{"path": p})
			}
			d.ok("list_files", args{"recursive": true})
			d.ok("list_files", args{"recursive": true, "contains": "x"})
			d.ok("delete_file", args{"path": "self"})
		},
		"45 write on a directory": func(t *testing.T, d *disk) {
			d.write("dir/f", "f")
			before := d.tree()
			for _, p := range []string{"/", ".", "dir", "dir/"} {
				for _, mode := range []string{"overwrite", "append"} {
					d.fails(IsADirectory, "write_file", args{"path": p, "content": "x", "mode": mode})
				}
			}
			d.reopen(setup{}, workspace.OpenOptions{})
			if d.tree() != before {
				t.Error(d.tree())
			}
			d.verify()
		},
		"46 delete the root": func(t *testing.T, d *disk) {
			d.write("a/b", "b")
			before := d.tree()
			for _, p := range []string{"/", ".", "/workspace", "//"} {
				for _, recursive := range []bool{false, true} {
					d.refused(InvalidPath, "delete_file", args{"path": p, "recursive": recursive})
				}
			}
			if d.tree() != before {
				t.Error(d.tree())
			}
			d.verify()
		},
		"47 directory on a file": func(t *testing.T, d *disk) {
			d.write("f", "f")
			before, _ := d.im.Info()
			d.fails(NotADirectory, "make_directory", args{"path": "f"})
			d.fails(NotADirectory, "make_directory", args{"path": "f/d/e"})
			if after, _ := d.im.Info(); after.Entries != before.Entries || after.Commit != before.Commit {
				t.Errorf("%+v", after)
			}
		},
		"48 bad arguments": func(t *testing.T, d *disk) { // all of them in TestRefusedArguments
			d.write("dir/f", "f")
			before := d.tree()
			for _, c := range []struct{ tool, raw string }{
				{"write_file", `{"path":"dir/f","content":"x","extra":"\ud800"}`}, {"write_file", `{"path":"dir/f","content":"x","extra":1}`},
				{"write_file", `{"path":"dir/f","content":5}`}, {"delete_file", `["dir/f"]`}, {"delete_file", `{"path":"dir","recursive":"maybe"}`},
			} {
				d.refused(InvalidArgument, c.tool, c.raw)
			}
			d.fails(DirectoryNotEmpty, "delete_file", `{"path":"dir","recursive":"false"}`)
			if d.tree() != before {
				t.Error(d.tree())
			}
		},
		"58 names and refusals": func(t *testing.T, d *disk) {
			d.write(strings.Repeat("n", 200), "x")
			d.write(strings.Repeat("漢", 85), "x")
			d.refused(InvalidPath, "write_file", args{"path": strings.Repeat("漢", 86), "content": "x"})
			before, _ := d.im.Info()
			routines := runtime.NumGoroutine()
			times := 100
			if soak() {
				times = 500
			}
			long := rawJSON(t, args{"path": strings.Repeat("n", 256), "content": "x"})
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() {
					for range times {
						if r := d.Call(t.Context(), "write_file", long); r.OK() || r.Err.Code != InvalidPath {
							t.Error(r)
						}
					}
				})
			}
			all.Wait()
			if after, _ := d.im.Info(); after != before {
				t.Errorf("the disk was %+v and is %+v", before, after)
			}
			if n := runtime.NumGoroutine(); n > routines+10 {
				t.Errorf("%d goroutines, %d before", n, routines)
			}
			if n := d.verify().Records; n != uint64(5+10*times) {
				t.Errorf("%d records", n)
			}
		},
		"60 a file that may not be written": func(t *testing.T, d *disk) {
			d.write("a", "a")
			d.close()
			if err := os.Chmod(d.path, 0o444); err != nil {
				t.Fatal(err)
			}
			before := sha256.Sum256(mustRead(t, d.path))
			d.reopen(setup{config: func(c *Config) { c.Policy.ReadOnly = true }}, workspace.OpenOptions{ReadOnly: true})
			if got := d.read("a"); got != "a" {
				t.Errorf("%q", got)
			}
			d.ok("list_files", args{"recursive": true, "contains": "a"})
			d.refused(ReadOnly, "write_file", args{"path": "a", "content": "b"})
			d.close()
			if sha256.Sum256(mustRead(t, d.path)) != before {
				t.Error("the image file changed")
			}
		},
		"63 symlinks that lead astray": func(t *testing.T, d *disk) {
			d.write("real/f", "f")
			d.commit(link("sys", ".system"), link("abs", "/workspace/.system/manifest.json"), link("out", "/etc/passwd"), link("up", "../../etc"),
				link("real/root", "/"), link("real/ws", "/workspace"), link("real/up", ".."), link("ok", "/workspace/real/f"), link("dir", "real"), link("none", "nowhere"))
			before := d.tree()
			for p, code := range map[string]Code{
				"sys": ReservedPath, "sys/x": ReservedPath, "abs": ReservedPath, "real/ws/.system": ReservedPath, "out": PathEscape, "out/x": PathEscape,
				"up": PathEscape, "up/passwd": PathEscape, "real/root": PathEscape, "real/root/etc/passwd": PathEscape, "real/up/up": PathEscape, "none": NotFound,
			} {
				for _, v := range pathVerbs {
					switch {
					case v.tool == "delete_file", v.tool == "make_directory", v.more["mode"] == "create":
						continue // they act on the link itself
					case v.tool == "run_script":
						continue // needs a sandbox: TestPath
					}
					if text := d.fails(code, v.tool, with(v.more, p)); strings.Contains(text, "root:x") {
						t.Errorf("%s", text)
					}
				}
			}
			if d.tree() != before {
				t.Errorf("the disk changed to\n%s", d.tree())
			}
			for _, p := range []string{"real/ws/real/f", "real/up/ok", "dir/f", "dir/ws/dir/f"} {
				if got := d.read(p); got != "f" {
					t.Errorf("%s: %q", p, got)
				}
			}
			if got := names(d.ok("list_files", args{"recursive": true})); len(got) != 12 {
				t.Errorf("%q", got)
			}
			wantText(t, d.ok("list_files", args{"path": "real/ws"}), "/workspace/real/")
			wantText(t, d.write("ok", "through the link"), "/workspace/real/f v")
			d.fails(AlreadyExists, "write_file", args{"path": "ok", "content": "", "mode": "create"})
			wantText(t, d.ok("make_directory", args{"path": "dir/new"}), "created /workspace/real/new")
			wantText(t, d.ok("delete_file", args{"path": "ok"}), "deleted /workspace/ok")
			wantText(t, d.ok("delete_file", args{"path": "dir", "recursive": true}), "deleted /workspace/dir")
			wantText(t, d.ok("delete_file", args{"path": "out"}), "deleted /workspace/out")
			if got := d.content("real/f"); got != "through the link" {
				t.Errorf("%q", got)
			}
		},
		"65 100,000 entries": func(t *testing.T, d *disk) {
			paths := make([]string, 100_000)
			for i := range paths {
				paths[i] = fmt.Sprintf("dir/f%06d", i)
			}
			d.commit(files(paths...)...)
			start := time.Now()
			r := d.call("list_files", args{"path": "dir", "limit": 1000})
			if got := names(r.String()); len(got) != 1000 || got[999] != "/workspace/dir/f000999" {
				t.Errorf("%d entries", len(got))
			}
			wantText(t, r.String(), "[10,000+ more;")
			r = d.call("list_files", args{"path": "dir", "limit": 1000, "cursor": cursor{Path: "/workspace/dir/f099500"}.encode()})
			if got := names(r.String()); len(got) != 499 {
				t.Errorf("%d entries on the last page", len(got))
			}
			if took := time.Since(start); took > 3*time.Second {
				t.Errorf("two pages took %s", took)
			}
		},
		"66 a client": func(t *testing.T, d *disk) {
			var res struct {
				Result struct {
					IsError bool
					Content []struct{ Type, Text string }
					Meta    map[string]any `json:"_meta"`
				}
			}
			d.rpc(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"write_file","arguments":{"path":"a","content":"x"}}}`, &res)
			if res.Result.IsError || len(res.Result.Content) == 0 || res.Result.Content[0].Type != "text" || res.Result.Meta[MetaAudit] == nil {
				t.Errorf("%+v", res)
			}
			d.rpc(t, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"write_file","arguments":{"path":"../a","content":"x"}}}`, &res)
			if !res.Result.IsError || !strings.HasPrefix(res.Result.Content[0].Text, "PATH_ESCAPE: ") {
				t.Errorf("%+v", res)
			}
		},
	} {
		t.Run(number, func(t *testing.T) { f(t, newDisk(t)) })
	}
	t.Run("16 read-only", func(t *testing.T) { // the layer below in TestReadOnlyBelow
		d := withPolicy(t, Policy{ReadOnly: true})
		if got := d.tools(t); len(got) != 2 || got[0].Name != "read_file" || got[1].Name != "list_files" {
			t.Errorf("%+v", got)
		}
		d.refused(ReadOnly, "write_file", args{"path": "a", "content": "a"})
	})
	t.Run("17 no delete", func(t *testing.T) {
		d := withPolicy(t, Policy{NoDelete: true})
		d.write("a", "a")
		d.refused(DeleteDisabled, "delete_file", args{"path": "a"})
		if got := d.read("a"); got != "a" {
			t.Errorf("%q", got)
		}
		for _, tool := range d.tools(t) {
			if tool.Name == "delete_file" {
				t.Error("delete_file is listed")
			}
		}
	})
}

// rpc sends one message to the MCP server of the disk, without a transport.
func (d *disk) rpc(t *testing.T, message string, v any) {
	t.Helper()
	answer := d.newMCP().HandleMessage(context.Background(), []byte(message))
	b, err := json.Marshal(answer)
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// tools are those that the session is shown.
func (d *disk) tools(t *testing.T) []mcp.Tool {
	t.Helper()
	var list struct{ Result mcp.ListToolsResult }
	d.rpc(t, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, &list)
	if len(list.Result.Tools) > len(schemas.Names()) {
		t.Errorf("%d tools", len(list.Result.Tools))
	}
	return list.Result.Tools
}
