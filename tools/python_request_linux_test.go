package tools

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/oklog/ulid/v2"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
)

// requestRoot is an environment root with a base layer of bar 1.0, made once for all tests
// of requests. What they build in it they share.
var requestRoot = sync.OnceValues(func() (string, error) {
	box, err := sandbox()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "requests-")
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "envs")
	return dir, makeBase(dir, box, []wheeltest.Wheel{moduleOf("bar", "1.0")})
})

// moduleOf is a wheel with one module of its name, which knows its version.
func moduleOf(name, version string, requires ...string) wheeltest.Wheel {
	return wheeltest.Wheel{Name: name, Version: version, Requires: requires, Files: []wheeltest.File{{Name: name + "/__init__.py", Body: "version = '" + version + "'\n"}}}
}

// envs are environments to which requests can be made, and an index.
type envs struct {
	*pyenv.Env
	index *indextest.Index
	db    *badger.DB
	queue *queue.Queue

	mu    sync.Mutex
	deeds []pyenv.Deed
}

// openEnvs returns environments whose index has pandas, which the catalog allows, foo and
// qux, which it does not, newbar, which needs another bar than the base has, and the source
// of a package that has no wheel. dir is for the queue.
func openEnvs(dir string) (e *envs, err error) {
	box, err := sandbox()
	if err != nil {
		return nil, err
	}
	root, err := requestRoot()
	if err != nil {
		return nil, err
	}
	e = &envs{index: indextest.New(indextest.Options{}, indextest.File{Name: "sourced-1.0.tar.gz", Body: []byte("no archive")})}
	for _, w := range []wheeltest.Wheel{
		moduleOf("pandas", "2.2.3"), moduleOf("foo", "1.0"), moduleOf("foo", "2.0"), moduleOf("qux", "1.0"),
		moduleOf("newbar", "1.0", "bar>=2"), moduleOf("bar", "1.0"), moduleOf("bar", "2.0"),
	} {
		e.index.Add(indextest.File{Name: w.FileName(), Body: w.Bytes()})
	}
	if e.db, err = audit.OpenDB(filepath.Join(dir, "db"), nil); err != nil {
		return nil, err
	}
	if e.queue, err = queue.Open(e.db, queue.Options{}); err != nil {
		return nil, err
	}
	e.Env, err = pyenv.Open(pyenv.Options{Root: root, Box: box, Queue: e.queue, Record: e.record})
	return e, err
}

// theEnvs are for all tests, whose disks have nothing to do with each other: what was
// resolved for one is known for the next.
var theEnvs = sync.OnceValues(func() (*envs, error) {
	dir, err := os.MkdirTemp("", "queue-")
	if err != nil {
		return nil, err
	}
	return openEnvs(dir)
})

func sharedEnvs(t testing.TB) *envs {
	t.Helper()
	if _, err := sandbox(); err != nil {
		t.Skip("SKIP no sandbox: ", err)
	}
	e, err := theEnvs()
	must(t, err)
	return e
}

// newEnvs are environments for one test, which may leave work to do.
func newEnvs(t testing.TB) *envs {
	t.Helper()
	if _, err := sandbox(); err != nil {
		t.Skip("SKIP no sandbox: ", err)
	}
	e, err := openEnvs(t.TempDir())
	must(t, err)
	t.Cleanup(func() {
		e.Close()
		e.db.Close()
		e.index.Close()
	})
	return e
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (e *envs) record(_ context.Context, d pyenv.Deed) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.deeds = append(e.deeds, d)
	return nil
}

// kinds are those of the deeds of a disk, in order.
func (e *envs) kinds(d *asker) (list []pyenv.DeedKind) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, deed := range e.deeds {
		if deed.Request.Workspace == d.streamName {
			list = append(list, deed.Kind)
		}
	}
	return list
}

// asker is a disk whose sessions may ask for packages.
type asker struct {
	*disk
	e *envs
}

func (e *envs) disk(t testing.TB) *asker { return e.with(t, setup{}) }

func (e *envs) with(t testing.TB, s setup) *asker {
	t.Helper()
	none, change := 0, s.config
	s.config = func(c *Config) {
		c.Python, c.Pip = e.Env, func() *resolve.Config { return &resolve.Config{IndexURL: e.index.URL(), Retries: &none, Timeout: 5} }
		if change != nil {
			change(c)
		}
	}
	return &asker{s.scripted(t), e}
}

func (d *asker) request(packages ...string) Result {
	d.t.Helper()
	return d.call("python_env", args{"action": "request", "packages": packages, "reason": "to read pages", "timeout_s": 50})
}

func (d *asker) wait(id string, seconds int) Result {
	d.t.Helper()
	return d.call("python_env", args{"action": "wait", "request_id": id, "timeout_s": seconds})
}

// ready is a result that says so, of a request or of waiting for it.
func (d *asker) ready(r Result) string {
	d.t.Helper()
	if !r.OK() || r.Facts["state"] != "ready" {
		d.t.Fatalf("not ready: %s", r)
	}
	wantText(d.t, r.String(), "READY: ", "next: available in the next run_script")
	return r.String()
}

// pend asks for packages about which a person has to decide, and returns the id.
func (d *asker) pend(packages ...string) string {
	d.t.Helper()
	return d.pending(d.request(packages...))
}

func (d *asker) pending(r Result) string {
	d.t.Helper()
	id, _ := r.Facts["request_id"].(string)
	if !r.OK() || r.Facts["state"] != "pending_approval" || id == "" {
		d.t.Fatalf("not pending: %s", r)
	}
	wantText(d.t, r.String(), "PENDING APPROVAL: ", "in the way: ", "run `mcp-vdisk env approve "+id)
	return id
}

func (d *asker) card(id string) policy.Card {
	d.t.Helper()
	r, err := d.e.queue.Any(id)
	must(d.t, err)
	card, err := d.e.Card(d.t.Context(), r)
	must(d.t, err)
	return card
}

// decide answers a request as the operator does, who has seen its card.
func (d *asker) decide(id string, r pyenv.Ruling) {
	d.t.Helper()
	card := d.card(id)
	r.By, r.How, r.Lock = "operator uid 1000 at /dev/pts/3", "terminal", card.Lock
	_, err := d.e.Decide(d.t.Context(), id, r)
	must(d.t, err)
}

// prints is what a script prints that can import what it needs.
func (d *asker) prints(source string) string {
	d.t.Helper()
	text := d.disk.python(source).String()
	_, out, ok := strings.Cut(text, "stdout:\n")
	if !ok {
		d.t.Fatalf("it printed nothing: %s", text)
	}
	out, _, _ = strings.Cut(out, "\n")
	return out
}

// base is the id of the layer that all workspaces share.
func (d *asker) base() string {
	d.t.Helper()
	st, err := d.e.Status(d.t.Context(), d.streamName)
	must(d.t, err)
	return st.Base
}

// TestCase07: what the catalog allows is there without anybody being asked.
func TestCase07(t *testing.T) {
	e := sharedEnvs(t)
	d := e.disk(t)
	before := d.base()
	text := d.ready(d.request("pandas"))
	wantText(t, text, "added: pandas 2.2.3", "layers: x-", before)
	if got := d.prints("import pandas, bar; print(pandas.version, bar.version)"); got != "2.2.3 1.0" {
		t.Errorf("printed %q", got)
	}
	if d.base() != before {
		t.Errorf("the base was %s, and is %s", before, d.base())
	}
	kinds := e.kinds(d)
	for _, k := range []pyenv.DeedKind{pyenv.DeedRequest, pyenv.DeedDecide, pyenv.DeedBind} {
		if !slices.Contains(kinds, k) {
			t.Errorf("%s is in no record: %v", k, kinds)
		}
	}
	wantText(t, d.ok("python_env", args{"action": "status"}), "pandas 2.2.3", "x-")
	wantText(t, d.ready(d.request("bar")), "was there already", "there: bar 1.0")
}

// TestCase08: what one workspace got, another gets at once, and nothing is asked of the
// index. (How fast: the benchmarks of pyenv.)
func TestCase08(t *testing.T) {
	e := sharedEnvs(t)
	a, b := e.disk(t), e.disk(t)
	first := a.request("pandas")
	a.ready(first)
	asked := len(e.index.Requests())
	second := b.call("python_env", args{"action": "request", "packages": []string{"Pandas "}, "timeout_s": 0})
	b.ready(second)
	if n := len(e.index.Requests()) - asked; n != 0 || fmt.Sprint(first.Facts["layers"]) != fmt.Sprint(second.Facts["layers"]) {
		t.Errorf("%d requests; %v and %v", n, first.Facts["layers"], second.Facts["layers"])
	}
	if first.Facts["request_id"] == second.Facts["request_id"] {
		t.Error("two workspaces have one request")
	}
	if got := b.prints("import pandas; print(pandas.version)"); got != "2.2.3" {
		t.Errorf("printed %q", got)
	}
}

// TestCase10: what cannot be had beside the base is not had without a person, who is
// offered a layer in its place.
func TestCase10(t *testing.T) {
	d := sharedEnvs(t).disk(t)
	r := d.request("newbar")
	id := d.pending(r)
	wantText(t, r.String(), "bar 1.0", "mcp-vdisk env approve "+id+" --isolated")
	if card := d.card(id); !slices.Contains(card.Choices, policy.Isolated) || !strings.HasPrefix(card.Base, "base-") {
		t.Errorf("%+v", card)
	}
	d.decide(id, pyenv.Ruling{Approve: true, Isolated: true})
	wantText(t, d.ready(d.wait(id, 50)), "newbar 1.0", "in the place of the base", "layers: iso-")
	if got := d.prints("import newbar, bar; print(bar.version)"); got != "2.0" {
		t.Errorf("printed %q", got)
	}
	if got := d.e.disk(t).prints("import bar; print(bar.version)"); got != "1.0" {
		t.Errorf("another workspace has bar %q", got)
	}
}

// TestCase12: what the catalog does not know waits for a person, and waiting for them ends
// when it was said to.
func TestCase12(t *testing.T) {
	d := sharedEnvs(t).disk(t)
	id := d.pend("foo==1.0")
	start := time.Now()
	if again := d.pending(d.wait(id, 1)); again != id {
		t.Errorf("waiting for %s told of %s", id, again)
	}
	if took := time.Since(start); took < time.Second || took > 3*time.Second {
		t.Errorf("a wait of one second took %s", took)
	}
	if again := d.pend(" Foo == 1.0"); again != id {
		t.Errorf("asked twice it is request %s and %s", id, again)
	}
	wantText(t, d.ok("python_env", args{"action": "status"}), "open request "+id+": pending_approval: foo==1.0")
	wantText(t, d.disk.python("import foo").String(), "foo was asked for already", `"request_id":"`+id+`"`)

	d.decide(id, pyenv.Ruling{Approve: true})
	wantText(t, d.ready(d.wait(id, 50)), "foo 1.0")
	if got := d.prints("import foo; print(foo.version)"); got != "1.0" {
		t.Errorf("printed %q", got)
	}
	d.ready(d.wait(id, 0)) // it stays so

	id = d.pend("qux")
	d.decide(id, pyenv.Ruling{Note: "we do not use that"})
	text := d.fails(NotAllowed, "python_env", args{"action": "wait", "request_id": id})
	wantText(t, text, "NOT_ALLOWED: env.denied: a person has denied qux", "we do not use that", "do not ask for it again")
	if strings.Contains(text, "uid 1000") || strings.Contains(text, "pts") {
		t.Errorf("it tells of the host: %s", text)
	}
}

// TestWaitHearsOfDecision: a wait that has begun ends when somebody decides, and one that
// is cancelled changes nothing.
func TestWaitHearsOfDecision(t *testing.T) {
	d := sharedEnvs(t).disk(t)
	id, other := d.pend("foo==2.0"), d.pend("qux")
	ended := make(chan Result, 1)
	begin := func(ctx context.Context, id string) {
		go func() {
			ended <- d.Call(ctx, "python_env", []byte(`{"action":"wait","request_id":"`+id+`"}`))
		}()
		d.until("the wait begins", func() bool { return d.Active() == 1 })
	}
	begin(t.Context(), id)
	d.decide(id, pyenv.Ruling{Approve: true})
	d.ready(<-ended)

	ctx, cancel := context.WithCancel(t.Context())
	begin(ctx, other)
	cancel()
	wantCode(t, <-ended, Cancelled)
	if r, err := d.e.queue.Any(other); err != nil || r.State != queue.PendingApproval {
		t.Errorf("after a wait that was cancelled the request is %+v, %v", r, err)
	}
	d.verify()
}

// TestCase14: nothing is built from source, and it is said whose it is.
func TestCase14(t *testing.T) {
	e := sharedEnvs(t)
	r := e.disk(t).request("sourced")
	wantText(t, r.String(), "INVALID_ARGUMENT: env.sdist_only: ", "blocking: sourced", "the same request gets the same answer")
	if b, _ := r.Facts["blocking"].(map[string]string); r.Facts["state"] != "rejected" || b["name"] != "sourced" {
		t.Errorf("%+v", r.Facts)
	}
}

// TestCase16: what is no name of a package reaches no resolver, and no log.
func TestCase16(t *testing.T) {
	e := sharedEnvs(t)
	d, asked := e.disk(t), len(e.index.Requests())
	for _, bad := range []string{
		"pkg @ https://example.invalid/pkg.whl", "./x.whl", "git+https://example.invalid/x", "-r f", "--index-url=https://u:hunter2@example.invalid/", "foo==1 --hash=sha256:0",
		"foo\x00", "foo\nbar", "foo; python_version>'3'", "", " ", "föö", "foo==", strings.Repeat("a", 201),
	} {
		text := d.refused(InvalidArgument, "python_env", args{"action": "request", "packages": []string{"fine", bad}})
		wantText(t, text, "INVALID_ARGUMENT: env.bad_spec: packages[1]: ", "\nhint: ")
	}
	if n := len(e.index.Requests()) - asked; n != 0 || len(e.kinds(d)) != 0 {
		t.Errorf("the index was asked %d times, and %v was done", n, e.kinds(d))
	}
	err := d.log.Query(t.Context(), audit.Query{}, func(line []byte, _ audit.Record) error {
		if strings.Contains(string(line), "hunter2") {
			t.Errorf("a password is in the log: %s", line)
		}
		return nil
	})
	must(t, err)
}

// TestCase18: a wheel that would have something fetched by URL is refused before any
// resolver sees it.
func TestCase18(t *testing.T) {
	e := sharedEnvs(t)
	d, asked := e.disk(t), len(e.index.Requests())
	w := wheeltest.Wheel{Requires: []string{"evil @ http://127.0.0.1:9/evil.tar.gz"}}
	d.putBytes(w.FileName(), w.Bytes())
	text := d.fails(InvalidArgument, "python_env", args{"action": "request", "wheel": w.FileName(), "timeout_s": 50})
	wantText(t, text, "INVALID_ARGUMENT: env.direct_url: ")
	if n := len(e.index.Requests()) - asked; n != 0 {
		t.Errorf("the index was asked %d times", n)
	}
}

// TestCase19: a wheel of the disk can be used once a person has agreed; what is no file of
// the disk cannot be asked for.
func TestCase19(t *testing.T) {
	e := sharedEnvs(t)
	d := e.disk(t)
	w := moduleOf("ours", "0.1")
	body := string(w.Bytes())
	d.putBytes("dist/"+w.FileName(), []byte(body))
	r := d.call("python_env", args{"action": "request", "wheel": "/workspace/dist/" + w.FileName(), "reason": "our own", "timeout_s": 50})
	id := d.pending(r)
	wantText(t, r.String(), `the wheel "/workspace/dist/`+w.FileName()+`"`)
	if q, err := e.queue.Any(id); err != nil || !slices.ContainsFunc(q.Findings, func(f queue.Finding) bool { return f.Rule == policy.Upload }) {
		t.Errorf("%+v, %v", q, err)
	}
	for _, rec := range d.records(audit.Query{Match: map[string][]string{"call": {r.Call}}}) {
		if rec.Args["wheel"] != "/workspace/dist/"+w.FileName() || len(rec.Args) > 4 {
			t.Errorf("the log says %v", rec.Args)
		}
	}
	d.write("dist/"+w.FileName(), "changed since") // what was asked for is what the person agrees to
	d.decide(id, pyenv.Ruling{Approve: true})
	wantText(t, d.ready(d.wait(id, 50)), "ours 0.1")
	if got := d.prints("import ours; print(ours.version)"); got != "0.1" {
		t.Errorf("printed %q", got)
	}
	d.noWheels()
}

// TestWheelPaths: what is not a file of the disk with the name of a wheel is refused before
// anything is asked.
func TestWheelPaths(t *testing.T) { sharedEnvs(t).disk(t).noWheels() }

func (d *asker) noWheels() {
	d.t.Helper()
	asked := len(d.e.kinds(d))
	d.bash("mkdir -p real/dir.whl; echo x >real/a.whl; : >real/empty.whl; ln -s a.whl real/link.whl; ln -s /etc/passwd real/out.whl; ln -s nothing real/gone.whl; mkfifo real/fifo.whl; ln -s real way; ln -s / root")
	for path, want := range map[string]string{
		"real/link.whl":        "INVALID_PATH: env.bad_path: /workspace/real/link.whl is a symlink",
		"real/out.whl":         "INVALID_PATH: env.bad_path: ",
		"real/gone.whl":        "INVALID_PATH: env.bad_path: ",
		"way/link.whl":         "INVALID_PATH: env.bad_path: ",
		"real/dir.whl":         "IS_A_DIRECTORY: env.bad_path: ",
		"real/none.whl":        "NOT_FOUND: env.bad_path: ",
		"real/fifo.whl":        "NOT_FOUND: env.bad_path: ", // a disk holds none
		"real/a.whl/x.whl":     "NOT_A_DIRECTORY: env.bad_path: ",
		"root/etc/x.whl":       "PATH_ESCAPE: env.bad_path: ",
		"real/empty.whl":       "INVALID_ARGUMENT: env.bad_path: /workspace/real/empty.whl is empty",
		"real/a.txt":           "INVALID_PATH: env.bad_path: ",
		"/tmp/a.whl":           "NOT_FOUND: env.bad_path: ",
		"C:\\Users\\me\\a.whl": "NOT_FOUND: env.bad_path: ",
	} {
		r := d.call("python_env", args{"action": "request", "wheel": path})
		if !strings.HasPrefix(r.String(), want) || !strings.Contains(r.String(), "\nhint: ") {
			d.t.Errorf("%s: %s", path, r)
		}
	}
	if now := len(d.e.kinds(d)); now != asked {
		d.t.Errorf("something was asked: %v", d.e.kinds(d))
	}
}

// TestCase51: the agent cannot approve anything, and what belongs to another workspace is
// as unknown as what never was.
func TestCase51(t *testing.T) {
	e := sharedEnvs(t)
	a, b := e.disk(t), e.disk(t)
	for _, action := range []string{"approve", "deny", "ensure", "import", ""} {
		wantText(t, a.refused(InvalidArgument, "python_env", args{"action": action, "request_id": ulid.Make().String()}), `must be one of "status", "request", "wait"`)
	}
	theirs := a.pend("foo")
	want := b.fails(NotFound, "python_env", args{"action": "wait", "request_id": theirs})
	wantText(t, want, "NOT_FOUND: env.not_found: there is no such request")
	for name, id := range map[string]string{
		"unknown": ulid.Make().String(), "malformed": "x", "lower case": strings.ToLower(theirs), "a beginning": theirs[:20], "a key": "../" + theirs, "NUL": "\x00", "long": strings.Repeat("0", 5000),
	} {
		start := time.Now()
		if got := b.fails(NotFound, "python_env", args{"action": "wait", "request_id": id}); got != want {
			t.Errorf("%s: %s\nanother workspace's: %s", name, got, want)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%s: it was waited for, %s", name, took)
		}
	}
	if text := b.ok("python_env", args{"action": "status"}); strings.Contains(text, theirs) {
		t.Errorf("another workspace's request is shown: %s", text)
	}
	a.pending(a.wait(theirs, 0))
}

// TestCase57: no call waits for longer than it was told to.
func TestCase57(t *testing.T) {
	d := sharedEnvs(t).disk(t)
	if most := (pythonArgs{}).within(packageWait); most > 51*time.Second {
		t.Errorf("a wait takes up to %s", most)
	}
	id := d.pend("foo")
	for _, seconds := range []int{0, 1, 2} {
		start := time.Now()
		d.pending(d.wait(id, seconds))
		took, want := time.Since(start), time.Duration(seconds)*time.Second
		if took < want || took > want+2*time.Second {
			t.Errorf("timeout_s %d took %s", seconds, took)
		}
	}
	start := time.Now()
	r := d.call("python_env", args{"action": "request", "packages": []string{"foo>=1"}, "timeout_s": 0})
	if took := time.Since(start); took > time.Second || !r.OK() {
		t.Errorf("a request that does not wait took %s: %s", took, r)
	}
}

// TestRequestPolicies: who may ask. A request changes nothing on the disk, so that neither
// a lease nor the ban on deleting is in its way.
func TestRequestPolicies(t *testing.T) {
	e := sharedEnvs(t)
	ask := args{"action": "request", "packages": []string{"foo"}}
	e.with(t, setup{config: func(c *Config) { c.Policy.ReadOnly = true }}).refused(ReadOnly, "python_env", ask)
	e.with(t, setup{config: func(c *Config) { c.Policy.Tools = []string{"run_script"} }}).refused(NotAllowed, "python_env", ask)
	without := e.with(t, setup{config: func(c *Config) { c.Policy.Tools = []string{"run_script"} }})
	if text := without.disk.python("import foo").String(); strings.Contains(text, "python_env") || !strings.Contains(text, "cannot ask for packages") {
		t.Errorf("a session without python_env is told: %s", text)
	}
	right := &rights{err: held()}
	d := e.with(t, setup{config: func(c *Config) { c.Policy.NoDelete, c.Lease = true, right }})
	before := d.tree()
	id := d.pend("foo")
	d.pending(d.wait(id, 0))
	if right.asked != 0 || d.tree() != before {
		t.Errorf("the lease was asked for %d times, and the disk is\n%s", right.asked, d.tree())
	}
	d.verify()
}

// TestSessionOfRequest: a person is told which session and client asked, and why.
func TestSessionOfRequest(t *testing.T) {
	e := sharedEnvs(t)
	d := e.disk(t)
	ctx := WithCaller(t.Context(), Caller{Actor: "agent", Client: "some-client 2", Session: "some-session"})
	r := d.Call(ctx, "python_env", rawJSON(t, args{"action": "request", "packages": []string{"foo"}, "reason": "to read\x1b[31m pages", "timeout_s": 50}))
	d.checkRecords("python_env", r)
	q, err := e.queue.Any(d.pending(r))
	must(t, err)
	if q.Client != "some-client 2" || q.Session != "some-session" || q.Call != r.Call || q.Workspace != d.streamName || !strings.HasPrefix(q.Reason, "to read") {
		t.Errorf("%+v", q)
	}
}

// TestTooManyRequests: a workspace that asks for everything is told to stop, and what it
// asked for is kept.
func TestTooManyRequests(t *testing.T) {
	d := newEnvs(t).disk(t)
	var r Result
	for i := range queue.MaxOpen + 1 {
		r = d.call("python_env", args{"action": "request", "packages": []string{fmt.Sprintf("foo>0.%d", i)}, "timeout_s": 0})
	}
	wantCode(t, r, Busy)
	wantText(t, r.String(), "BUSY: env.full: ", "mcp-vdisk env requests")
	if n := strings.Count(d.ok("python_env", args{"action": "status"}), "open request "); n != queue.MaxOpen {
		t.Errorf("%d open requests are shown", n)
	}
}
