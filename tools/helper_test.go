package tools

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/schemas"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// args are the arguments of a call; a string in their place is raw JSON.
type args map[string]any

// disk is the tools over a new disk and a new log, both real.
type disk struct {
	*Tools
	t    testing.TB
	dir  string
	path string // of the image file
	im   *workspace.Image
	log  *audit.Log
	db   *badger.DB
	seen uint64 // number of the last record that was looked at
}

// setup says how a disk of a test differs from the default.
type setup struct {
	image  workspace.CreateOptions
	audit  audit.Options
	place  string             // directory of the image file; empty is one of its own
	seed   []workspace.Change // made before the tools are there, not in the log
	config func(*Config)
}

// soak says that the large counts are wanted.
func soak() bool { return os.Getenv("MCP_VDISK_SOAK") == "1" }

func newDisk(t testing.TB) *disk { return setup{}.disk(t) }

// withPolicy is a disk with the given files, under a policy.
func withPolicy(t testing.TB, p Policy, seed ...workspace.Change) *disk {
	return setup{seed: seed, config: func(c *Config) { c.Policy = p }}.disk(t)
}

func (s setup) disk(t testing.TB) *disk {
	t.Helper()
	d := &disk{t: t, dir: t.TempDir()}
	d.path = filepath.Join(cmp.Or(s.place, d.dir), "test.vdisk")
	im, err := workspace.Create(d.path, s.image)
	if err != nil {
		t.Fatal(err)
	}
	d.im = im
	d.commit(s.seed...)
	d.open(s)
	t.Cleanup(d.close)
	return d
}

// open makes the tools over the image that is open and the log.
func (d *disk) open(s setup) {
	d.t.Helper()
	var err error
	if d.db, err = audit.OpenDB(filepath.Join(d.dir, "db"), nil); err != nil {
		d.t.Fatal(err)
	}
	if d.log, err = audit.New(d.db, filepath.Join(d.dir, "db", "tail"), s.audit); err != nil {
		d.t.Fatal(err)
	}
	cfg := Config{Image: d.im, Log: d.log}
	if s.config != nil {
		s.config(&cfg)
	}
	if d.Tools, err = New(cfg); err != nil {
		d.t.Fatal(err)
	}
}

// close may be called more than once.
func (d *disk) close() {
	d.t.Helper()
	d.Tools.Close()
	d.jobs.Close() // which others may share
	if d.log != nil {
		if err := d.log.Close(); err != nil {
			d.t.Error(err)
		}
		d.db.Close()
		d.log = nil
	}
	if err := d.im.Close(); err != nil {
		d.t.Error(err)
	}
}

// reopen closes the disk and the log and opens both again.
func (d *disk) reopen(s setup, o workspace.OpenOptions) {
	d.t.Helper()
	d.close()
	im, err := workspace.Open(d.path, o)
	if err != nil {
		d.t.Fatal(err)
	}
	d.im = im
	d.open(s)
}

// commit changes the disk behind the tools' back.
func (d *disk) commit(changes ...workspace.Change) {
	d.t.Helper()
	if len(changes) == 0 {
		return
	}
	if _, err := d.im.Commit(context.Background(), workspace.Txn{Changes: changes}); err != nil {
		d.t.Fatal(err)
	}
}

// run is t.Run for a subtest on this disk.
func (d *disk) run(name string, f func(t *testing.T)) {
	parent := d.t.(*testing.T)
	parent.Run(name, func(t *testing.T) {
		d.t = t
		defer func() { d.t = parent }()
		f(t)
	})
}

// noise is bytes that look random, the same in every run.
func noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(b)
	return b
}

func at(path string) workspace.Path {
	p, err := workspace.Clean(path)
	if err != nil {
		panic(err)
	}
	return p
}

// link is a change that makes a symbolic link.
func link(path, target string) workspace.Change {
	return workspace.Change{Op: workspace.OpSymlink, Path: at(path), Target: target, Parents: true}
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

func rawJSON(t testing.TB, a any) []byte {
	t.Helper()
	switch a := a.(type) {
	case string:
		return []byte(a)
	case []byte:
		return a
	}
	b, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// call runs a tool and checks the records that it left. Nothing else may call
// at the same time.
func (d *disk) call(tool string, a any) Result {
	d.t.Helper()
	r := d.Call(d.t.Context(), tool, rawJSON(d.t, a))
	d.checkRecords(tool, r)
	for _, inside := range []string{d.dir, "goroutine ", "bbolt", "badger", ".go:", "runtime error", "/live/"} {
		if !r.OK() && strings.Contains(r.String(), inside) {
			d.t.Errorf("%s: the error shows internals: %s", tool, r)
		}
	}
	return r
}

// ok is call for what has to succeed; it answers with the text.
func (d *disk) ok(tool string, a any) string {
	d.t.Helper()
	r := d.call(tool, a)
	if !r.OK() {
		d.t.Fatalf("%s %s: %s", tool, shorten(a), r)
	}
	return r.String()
}

// fails is call for what has to fail with the code.
func (d *disk) fails(code Code, tool string, a any) string {
	d.t.Helper()
	r := d.call(tool, a)
	if r.OK() || r.Err.Code != code {
		d.t.Fatalf("%s %s: want %s, got: %s", tool, shorten(a), code, r)
	}
	if !strings.HasPrefix(r.String(), string(code)+": ") {
		d.t.Errorf("the text does not begin with its code: %s", r)
	}
	return r.String()
}

// refused is fails for what has to be refused before any effect: it leaves the
// one record of a refusal, and the disk as it was.
func (d *disk) refused(code Code, tool string, a any) string {
	d.t.Helper()
	before := d.head()
	text := d.fails(code, tool, a)
	if recs := d.records(audit.Query{From: d.seen}); recs[0].Ev != audit.EvCallRefused {
		d.t.Errorf("%s %s: recorded as %s, want a refusal", tool, shorten(a), recs[0].Ev)
	}
	if d.head() != before {
		d.t.Errorf("%s %s: refused, and the disk changed", tool, shorten(a))
	}
	return text
}

func shorten(a any) string { return short(fmt.Sprint(a)) }

// write and read are the tools with the least words.
func (d *disk) write(path, content string) string {
	d.t.Helper()
	return d.ok("write_file", args{"path": path, "content": content})
}

func (d *disk) read(path string) string {
	d.t.Helper()
	r := d.call("read_file", args{"path": path})
	if !r.OK() {
		d.t.Fatalf("read %s: %s", path, r)
	}
	return r.Blocks[0].Text
}

// content is a file as the image has it.
func (d *disk) content(path string) string {
	d.t.Helper()
	f, err := d.im.Open(at(path))
	if err != nil {
		d.t.Fatal(err)
	}
	b, err := io.ReadAll(f.Reader())
	if err != nil {
		d.t.Fatal(err)
	}
	return string(b)
}

// version is the version of a path.
func (d *disk) version(path string) string {
	d.t.Helper()
	n, err := d.im.Lstat(at(path))
	if err != nil {
		d.t.Fatal(err)
	}
	return version(n.Version)
}

func (d *disk) head() string {
	d.t.Helper()
	info, err := d.im.Info()
	if err != nil {
		d.t.Fatal(err)
	}
	return info.Commit
}

// tree is everything on the disk, a line for each path, with all that can be
// seen of it.
func (d *disk) tree() string {
	d.t.Helper()
	var b strings.Builder
	err := d.im.Walk(context.Background(), workspace.Path{}, func(e workspace.Entry) error {
		n := e.Node
		fmt.Fprintf(&b, "%c %s %o %s %d %s %q %s\n", n.Kind, e.Path, n.Mode, n.ModTime, n.Size, hex.EncodeToString(n.SHA256[:]), n.Target, version(n.Version))
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return b.String()
}

// records are those of the disk's stream that a query selects.
func (d *disk) records(q audit.Query) []audit.Record {
	d.t.Helper()
	q.Stream = d.streamName
	var list []audit.Record
	err := d.log.Query(context.Background(), q, func(_ []byte, r audit.Record) error {
		list = append(list, r)
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return list
}

// checkRecords checks that the last call left the records that it should: one
// of a refusal, or one of a read, or an intent and an outcome.
func (d *disk) checkRecords(tool string, r Result) {
	d.t.Helper()
	if r.Receipt.N == 0 {
		if r.OK() || r.Err.Code != AuditUnavailable {
			d.t.Errorf("%s has no receipt: %s", tool, r)
		}
		return
	}
	recs := d.records(audit.Query{From: d.seen + 1})
	d.seen = r.Receipt.N
	var shape []string
	for _, rec := range recs {
		shape = append(shape, string(rec.Ev))
		if rec.Call != r.Call || rec.Tool != short(tool) || rec.Img != d.streamName || rec.Act == "" {
			d.t.Errorf("%s: record %d does not say whose it is: %+v", tool, rec.N, rec)
		}
		// The first record of a call commits to its arguments, the outcome does
		// not do it again.
		if (rec.Argd == "") != (rec.Ev == audit.EvCallOutcome) {
			d.t.Errorf("%s: record %d, %s, has argd %q", tool, rec.N, rec.Ev, rec.Argd)
		}
	}
	want := []string{"call.refused"}
	if recs[0].Ev != audit.EvCallRefused {
		want = []string{"call.read"}
		if def, _ := schemas.Tool(tool); def.Mutates && !looks(recs[0]) && !polls(recs[0]) {
			want = []string{"call.intent", "call.outcome"}
		}
	}
	last := recs[len(recs)-1]
	if !slices.Equal(shape, want) || last.N != r.Receipt.N {
		d.t.Fatalf("%s: records %v up to %d, want %v; receipt %d; %s", tool, shape, last.N, want, r.Receipt.N, r)
	}
	d.checkLast(last, r)
}

// looks tells whether a call of python_env asks for nothing.
func looks(r audit.Record) bool {
	return r.Args["action"] == "status" || r.Args["action"] == "wait"
}

// polls tells whether a call only asks for a job.
func polls(r audit.Record) bool {
	return r.Args["job"] != nil && r.Args["cancel"] != true && r.Args["commit"] == nil
}

// checkLast checks that the last record of a call says what the result said.
func (d *disk) checkLast(rec audit.Record, r Result) {
	d.t.Helper()
	switch {
	case r.OK() && (rec.Dec != "allow" || rec.Err != "" || rec.Out == nil || !rec.Out.OK):
		d.t.Errorf("the record of a success is %+v", rec)
	case !r.OK() && (rec.Err != string(r.Err.Code) || rec.Reason == ""):
		d.t.Errorf("the record of %s is %+v", r.Err.Code, rec)
	case rec.Ev == audit.EvCallRefused && rec.Dec != "deny":
		d.t.Errorf("a refusal was decided as %q", rec.Dec)
	}
}

// verify checks the log's chain and that no call is without its outcome.
func (d *disk) verify() audit.Report {
	d.t.Helper()
	rep, err := d.log.Verify(context.Background(), d.streamName)
	if err != nil || !rep.OK || len(rep.Dangling) > 0 {
		d.t.Errorf("the log does not verify: %+v, %v", rep, err)
	}
	return rep
}

// listed matches a line of a listing.
var listed = regexp.MustCompile(`(?m)^(?:file|dir |link) +(?:\d+|-)  (.*)$`)

// names are the entries that a listing shows.
func names(text string) []string {
	var out []string
	for _, m := range listed.FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func wantText(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is not in: %s", p, text)
		}
	}
}

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
