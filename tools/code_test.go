package tools

import (
	"bytes"
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// codes are the constants of type Code, from the source.
func codes(t testing.TB) []Code {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "code.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []Code
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || len(v.Values) != 1 {
			return true
		}
		if id, ok := v.Type.(*ast.Ident); ok && id.Name == "Code" {
			s, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, Code(s))
		}
		return true
	})
	return all
}

// TestDocumentedCodes: docs/errors.md lists exactly the codes that there are,
// in their order.
func TestDocumentedCodes(t *testing.T) {
	var documented []Code
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\|").FindAllSubmatch(mustRead(t, "../docs/errors.md"), -1) {
		documented = append(documented, Code(m[1]))
	}
	if all := codes(t); !slices.Equal(documented, all) {
		t.Errorf("documented: %v\nthere are: %v", documented, all)
	}
}

// provoke makes a call fail with each code, as it comes about in earnest. Those
// that need a sandbox or another file system are in provokeOnLinux.
var provoke = map[Code]func(t *testing.T){
	InvalidArgument: func(t *testing.T) { newDisk(t).refused(InvalidArgument, "write_file", args{"path": "a"}) },
	InvalidPath:     func(t *testing.T) { newDisk(t).refused(InvalidPath, "read_file", args{"path": " "}) },
	PathEscape:      func(t *testing.T) { newDisk(t).refused(PathEscape, "read_file", args{"path": "../a"}) },
	ReservedPath:    func(t *testing.T) { newDisk(t).refused(ReservedPath, "read_file", args{"path": ".system"}) },
	NotFound:        func(t *testing.T) { newDisk(t).fails(NotFound, "read_file", args{"path": "a"}) },
	AlreadyExists: func(t *testing.T) {
		d := newDisk(t)
		d.write("a", "a")
		d.fails(AlreadyExists, "write_file", args{"path": "a", "content": "b", "mode": "create"})
	},
	IsADirectory: func(t *testing.T) { newDisk(t).fails(IsADirectory, "read_file", args{"path": "/"}) },
	NotADirectory: func(t *testing.T) {
		d := newDisk(t)
		d.write("a", "a")
		d.fails(NotADirectory, "make_directory", args{"path": "a/b"})
	},
	DirectoryNotEmpty: func(t *testing.T) {
		d := newDisk(t)
		d.write("a/b", "a")
		d.fails(DirectoryNotEmpty, "delete_file", args{"path": "a"})
	},
	BinaryFile: func(t *testing.T) {
		d := newDisk(t)
		d.putBytes("a", []byte{0xff})
		d.fails(BinaryFile, "read_file", args{"path": "a"})
	},
	NoMatch: func(t *testing.T) {
		d := newDisk(t)
		d.write("a", "a")
		d.fails(NoMatch, "write_file", args{"path": "a", "content": "c", "mode": "replace", "old_text": "b"})
	},
	AmbiguousMatch: func(t *testing.T) {
		d := newDisk(t)
		d.write("a", "aa")
		d.fails(AmbiguousMatch, "write_file", args{"path": "a", "content": "c", "mode": "replace", "old_text": "a"})
	},
	TooLarge: func(t *testing.T) {
		newDisk(t).refused(TooLarge, "write_file", args{"path": "a", "content": strings.Repeat("x", 4<<20+1)})
	},
	QuotaExceeded: func(t *testing.T) {
		d := setup{image: workspace.CreateOptions{QuotaBytes: 1000, QuotaEntries: 3}}.disk(t)
		d.write("a", "old")
		d.fails(QuotaExceeded, "write_file", args{"path": "a", "content": strings.Repeat("x", 1001)})
		d.fails(QuotaExceeded, "write_file", args{"path": "a", "content": strings.Repeat("x", 998), "mode": "append"})
		d.fails(QuotaExceeded, "make_directory", args{"path": "d/e/f"})
		if got := d.read("a"); got != "old" {
			t.Errorf("the file holds %q", got)
		}
		d.write("a", strings.Repeat("x", 1000))
	},
	VersionConflict: func(t *testing.T) {
		d := newDisk(t)
		d.write("a", "a")
		d.fails(VersionConflict, "delete_file", args{"path": "a", "if_version": "v9"})
	},
	ReadOnly: func(t *testing.T) {
		withPolicy(t, Policy{ReadOnly: true}).refused(ReadOnly, "write_file", args{"path": "a", "content": "a"})
	},
	DeleteDisabled: func(t *testing.T) {
		withPolicy(t, Policy{NoDelete: true}).refused(DeleteDisabled, "delete_file", args{"path": "a"})
	},
	NotAllowed: func(t *testing.T) {
		withPolicy(t, Policy{Tools: []string{"read_file"}}).refused(NotAllowed, "list_files", nil)
	},
	LeaseHeld: func(t *testing.T) {
		right := &rights{err: held()}
		d := setup{config: func(c *Config) { c.Lease = right }}.disk(t)
		d.refused(LeaseHeld, "write_file", args{"path": "a", "content": "a"})
		d.refused(LeaseHeld, "run_script", args{"language": "bash", "source": "true"})
		d.ok("list_files", nil)
	},
	Fenced: func(t *testing.T) {
		d := newDisk(t)
		d.write("a", "a")
		if _, err := d.im.Commit(t.Context(), workspace.Txn{Fence: workspace.Fence{Token: 7}, Changes: files("b")}); err != nil {
			t.Fatal(err)
		}
		d.fails(Fenced, "write_file", args{"path": "a", "content": "b"})
		d.fails(Fenced, "delete_file", args{"path": "a"})
		if got := d.read("a"); got != "a" {
			t.Errorf("the file holds %q", got)
		}
	},
	SandboxUnavailable: func(t *testing.T) {
		newDisk(t).fails(SandboxUnavailable, "run_script", args{"language": "bash", "source": "true"})
	},
	Cancelled: func(t *testing.T) {
		d := newDisk(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r := d.Call(ctx, "write_file", rawJSON(t, args{"path": "a", "content": "a"}))
		d.checkRecords("write_file", r)
		if r.OK() || r.Err.Code != Cancelled || d.tree() != "" {
			t.Error(r)
		}
	},
	AuditUnavailable: auditUnavailable,
	ImageCorrupt:     imageCorrupt,
	NotReady: func(t *testing.T) {
		d := newDisk(t)
		wantText(t, d.fails(NotReady, "python_env", `{"action":"request","packages":["numpy"],"reason":"sums"}`), "NOT_READY: env.no_base: ")
		wantText(t, d.ok("python_env", `{"action":"status"}`), "Python", "layers: none")
	},
	Internal: func(t *testing.T) {
		d := newDisk(t)
		if err := d.im.Close(); err != nil {
			t.Fatal(err)
		}
		for tool, a := range map[string]args{
			"read_file": {"path": "a"}, "list_files": nil, "write_file": {"path": "a", "content": "x"}, "delete_file": {"path": "a"}, "make_directory": {"path": "a"},
		} {
			wantText(t, d.fails(Internal, tool, a), "inside mcp-vdisk", "standard error")
		}
	},
}

// TestEveryCode: each code comes about.
func TestEveryCode(t *testing.T) {
	for _, c := range codes(t) {
		t.Run(string(c), func(t *testing.T) {
			f := provoke[c]
			if f == nil {
				f = provokeOnLinux[c]
			}
			if f == nil {
				t.Fatal("nothing provokes it")
			}
			f(t)
		})
	}
}

// auditUnavailable: when the log takes no record nothing is done and nothing is
// shown; when only the last record of a change fails, that is said.
func auditUnavailable(t *testing.T) {
	var free atomic.Uint64
	free.Store(1 << 40)
	d := setup{audit: audit.Options{Free: func() (uint64, error) { return free.Load(), nil }}}.disk(t)
	d.write("a", "secret text")
	before := d.tree()
	free.Store(0)
	for tool, a := range map[string]args{
		"write_file": {"path": "a", "content": "x"}, "delete_file": {"path": "a"}, "make_directory": {"path": "d"},
		"read_file": {"path": "a"}, "list_files": nil, "no_such_tool": nil, "run_script": {"language": "bash", "source": "true"},
	} {
		text := d.fails(AuditUnavailable, tool, a)
		wantText(t, text, "nothing is done")
		if strings.Contains(text, "secret") {
			t.Errorf("%s: %s", tool, text)
		}
	}
	if d.tree() != before {
		t.Errorf("the disk changed to\n%s", d.tree())
	}
	free.Store(1 << 40)
	d.write("a", "again")
	// The host's disk fills up between the intent and the outcome, for which the
	// clock is read a second time.
	clock, reads := d.now, 0
	d.now = func() time.Time {
		if reads++; reads == 2 {
			free.Store(0)
		}
		return clock()
	}
	text := d.fails(AuditUnavailable, "write_file", args{"path": "a", "content": "saved"})
	wantText(t, text, "the change was saved, but its outcome could not be written")
	if got := d.content("a"); got != "saved" {
		t.Errorf("the file holds %q", got)
	}
}

// imageCorrupt: a damaged content is not served; what is whole still is.
func imageCorrupt(t *testing.T) {
	d := newDisk(t)
	data := noise(5000) // incompressible, so it lies in the image as it is
	d.putBytes("bad", data)
	d.write("good", "good")
	d.close()
	file := mustRead(t, d.path)
	i := bytes.Index(file, data[100:200])
	if i < 0 {
		t.Fatal("the content is not in the image as it is")
	}
	file[i] ^= 1
	if err := os.WriteFile(d.path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	d.reopen(setup{}, workspace.OpenOptions{})
	wantText(t, d.fails(ImageCorrupt, "read_file", args{"path": "bad", "encoding": "base64"}), "/workspace/bad is damaged", "other files")
	d.fails(ImageCorrupt, "read_file", args{"path": "bad"})
	d.fails(ImageCorrupt, "write_file", args{"path": "bad", "content": "x", "mode": "append"})
	d.fails(ImageCorrupt, "write_file", args{"path": "bad", "content": "x", "mode": "replace", "old_text": "y"})
	if got := d.read("good"); got != "good" {
		t.Errorf("good holds %q", got)
	}
	wantText(t, d.ok("list_files", nil), "/workspace/bad")
	d.write("bad", "new")
	if got := d.read("bad"); got != "new" {
		t.Errorf("bad holds %q", got)
	}
}

// TestOperatorLog: what the person who runs the server is told of failures, and
// that contents are not.
func TestOperatorLog(t *testing.T) {
	var said bytes.Buffer
	d := setup{config: func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&said, nil)) }}.disk(t)
	d.write("a", "canary")
	d.fails(NotFound, "read_file", args{"path": "none"})
	d.fails(NoMatch, "write_file", args{"path": "a", "content": "canary", "mode": "replace", "old_text": "x"})
	d.refused(InvalidArgument, "write_file", `{"path":"a","content": canary}`)
	if said.Len() > 0 {
		t.Errorf("refusals are the caller's: %s", &said)
	}
	d.cfg.Image = nil // a fault of ours: the handlers panic
	for tool, a := range good {
		if tool == "run_script" || tool == "python_env" {
			continue
		}
		said.Reset()
		wantText(t, d.fails(Internal, tool, a), "INTERNAL: something went wrong inside mcp-vdisk; nothing was changed")
		wantText(t, said.String(), "level=WARN", "tool="+tool, "code=INTERNAL", "panic in "+tool, "handle(")
		if strings.Contains(said.String(), "canary") {
			t.Errorf("a content is in the operator's log: %s", &said)
		}
	}
	d.cfg.Image = d.im
	d.verify()
}

// TestPanicAfterCommit: a fault that comes after the change says that it was
// saved.
func TestPanicAfterCommit(t *testing.T) {
	c := &call{before: "1", after: "2"}
	e := c.late(errors.New("x"), "then it broke")
	if e.Code != Internal || e.Sentence != "the change was saved, but then it broke" || strings.Contains(e.Hint, "nothing") {
		t.Errorf("%+v", e)
	}
	c.after = c.before
	if e := c.late(errors.New("x"), "then it broke"); !strings.Contains(e.Sentence, "nothing was changed") {
		t.Errorf("%+v", e)
	}
}
