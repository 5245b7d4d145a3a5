package main_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// What Must hold 8 asks: the server is killed (SIGKILL) at a random moment of
// pipelined writes and scripts, again and again on one state directory. On
// reopening, whatever was acknowledged is there, no file is torn, the log is
// whole and in agreement with the disk, fsck finds nothing, and a script sees
// exactly the head.

// versions writes and reads contents of which every byte tells whether the
// content is whole: a header with number and length, then so many equal lines.
type versions struct{}

func (versions) make(k int) string {
	n := 1 + k*7919%1500
	return fmt.Sprintf("version %d lines %d\n", k, n) + strings.Repeat(fmt.Sprintf("this is a line of version %d\n", k), n)
}

// parse returns the number of a content, and whether it is whole.
func (v versions) parse(data []byte) (k int, whole bool) {
	var n int
	if _, err := fmt.Sscanf(string(data), "version %d lines %d\n", &k, &n); err != nil {
		return 0, false
	}
	return k, string(data) == v.make(k)
}

// The clients of a round, by number: those that overwrite a file of their own,
// the first of them with if_version, each with one call on its way at a time;
// one that makes new files; and two that run scripts.
const (
	streams     = 7
	chains      = 3
	maker       = streams
	shortScript = streams + 1
	longScript  = streams + 2
	clients     = streams + 3

	scriptFiles = 13 // files that one script writes
)

// killer is all clients through all rounds: what they were acknowledged so far.
type killer struct {
	t     *testing.T
	state string
	big   bool // the longer script writes more than is staged at once
	k     int  // of the last version

	acked    map[string]int    // by file: the newest version that was acknowledged
	sent     map[string]int    // by file: the newest that was asked for
	created  map[string]bool   // files made by mode create, and whether that was acknowledged
	at       map[string]string // by file: the disk's version of it, for if_version
	turn     int               // of the longer script, since the server began
	left     string            // job whose changes were not saved, and are going to be
	receipts map[uint64]string // leaf by number
	scripts  [3]int            // how many were running when the server was killed, how often
}

func newKiller(t *testing.T) *killer {
	return &killer{
		t: t, state: newState(t), acked: map[string]int{}, sent: map[string]int{}, created: map[string]bool{},
		at: map[string]string{}, receipts: map[uint64]string{},
	}
}

func TestKillLosesNothingThatWasAcknowledged(t *testing.T) {
	t.Parallel()
	k := newKiller(t)
	n := rounds(200)
	begin := time.Now()
	for i := range n {
		s := serveUnread(t, k.state, nil)
		s.torn = true
		go s.read()
		k.load(s, time.Duration(5+rand.IntN(600))*time.Millisecond, false)
		k.check()
		if t.Failed() {
			t.Fatalf("round %d", i)
		}
	}
	d := look(t, k.state)
	t.Logf("%d kills in %s, %d, %d and %d of them while no, one and two scripts ran: %d commits, %d receipts and %d files of acknowledged calls found",
		n, time.Since(begin).Round(time.Second), k.scripts[0], k.scripts[1], k.scripts[2], len(d.commits), len(k.receipts), len(k.acked)+len(k.created))
}

// load works a server hard for a while, or until it is gone, and then kills it,
// or hangs up and waits for its end.
func (k *killer) load(s *server, long time.Duration, hangUp bool) {
	marker := unique()
	if _, ok := s.greet("2025-11-25"); !ok {
		s.kill()
		return
	}
	calls := map[string]call{}
	busy := map[string]bool{}
	next := func(client int) {
		c := k.next(client, marker, busy)
		if c.tool != "" {
			calls[s.askCall(c.tool, c.args)] = c
		}
	}
	for j := range 4 * clients {
		next(j % clients)
	}
	over := time.Now().Add(long)
	fresh := func(m message) bool { _, ours := calls[string(m.ID)]; return ours }
	for {
		m, ok := s.await(time.Until(over), fresh)
		if !ok {
			break
		}
		c := calls[string(m.ID)]
		delete(calls, string(m.ID))
		k.take(m, c, busy)
		next(c.client)
	}
	stages := 0
	tree := below(k.t, s.cmd.Process.Pid)
	for _, p := range tree { // one without a child waits for the next script
		if p.parent == s.cmd.Process.Pid && slices.ContainsFunc(tree, func(o process) bool { return o.parent == p.pid }) {
			stages++
		}
	}
	k.scripts[min(stages, 2)]++
	if hangUp {
		s.stdin.Close()
		s.await(patience, func(message) bool { return false })
	}
	s.kill()
	s.await(patience, func(message) bool { return false })
	for _, m := range s.all() { // acknowledged in the last moment
		if fresh(m) {
			k.take(m, calls[string(m.ID)], busy)
		}
	}
	k.left, k.turn = "", 0
	within(k.t, 2*time.Second, "the scripts of a killed server are gone", func() bool { return len(marked(k.t, marker)) == 0 })
}

// call is a call on its way.
type call struct {
	client int
	tool   string
	args   object
	file   string // that it writes, "s" and "l" for the scripts'
	k      int
}

// fileOf is what a client writes; the maker writes another one each time.
func (k *killer) fileOf(client int) string {
	switch client {
	case maker:
		return fmt.Sprintf("made/%06d", k.k)
	case shortScript:
		return "s"
	case longScript:
		return "l"
	}
	return fmt.Sprintf("stream%d", client)
}

// next makes the next call of a client. What was acknowledged last is what has to
// be there, since only the maker has more than one call on its way.
func (k *killer) next(client int, marker string, busy map[string]bool) call {
	k.k++
	c := call{client: client, tool: "write_file", file: k.fileOf(client), k: k.k}
	if busy[c.file] {
		return call{}
	}
	switch client {
	case shortScript:
		c.tool = "run_script"
		c.args = k.script("s", marker, "rm -f s/x*; cp /tmp/v s/x$RANDOM; sleep 0.0"+fmt.Sprint(rand.IntN(10)))
	case longScript:
		if c.tool = "run_script"; k.left != "" {
			c.args, c.k = object{"job": k.left, "commit": "always"}, k.sent["l"]
		} else {
			c.args = k.script("l", marker, k.long())
		}
	default:
		c.args = object{"path": c.file, "content": versions{}.make(k.k)}
		if v := k.at[c.file]; client < chains && v != "" {
			c.args["if_version"] = v
		}
	}
	if client == maker {
		c.args["mode"], k.created[c.file] = "create", false
		return c
	}
	busy[c.file], k.sent[c.file] = true, c.k
	return c
}

// long is the rest of the longer script. It leaves a directory that nobody may
// enter, and of three turns saves one at once, one later and one never.
func (k *killer) long() string {
	rest := "chmod 700 l/closed 2>/dev/null; mkdir -p l/closed; cp /tmp/v l/closed/13; chmod 000 l/closed; sleep 0.3"
	if k.big {
		rest += "; head -c 9500000 /dev/urandom > l/big; sha256sum < l/big > l/sum"
	}
	if k.turn++; k.turn%3 != 0 {
		rest += "; exit 1"
	}
	return rest
}

// script writes the same version into scriptFiles files of a directory, the last
// of them by rest.
func (k *killer) script(dir, marker, rest string) object {
	return object{"language": "bash", "stdin": versions{}.make(k.k), "args": []string{marker}, "source": fmt.Sprintf(
		"mkdir -p %[1]s; cat > /tmp/v; for i in $(seq %[2]d); do cp /tmp/v %[1]s/$i; done; %[3]s", dir, scriptFiles-1, rest)}
}

// take notes an acknowledgement.
func (k *killer) take(m message, c call, busy map[string]bool) {
	delete(busy, c.file)
	r := m.result(k.t)
	k.receipts[r.Receipt.N] = r.Receipt.Leaf
	switch {
	case c.file == "l" && !r.IsError && strings.HasPrefix(r.Text, "NOT SAVED (exit 1"):
		if k.turn%3 == 2 { // the others are never saved
			k.left = r.job(k.t)
		}
		return
	case r.IsError || c.tool == "run_script" && !strings.HasPrefix(r.Text, "SAVED"):
		k.t.Errorf("%s %.100s of %s: %.300s", c.tool, encoded(c.args), c.file, r.Text)
		return
	}
	if c.file == "l" {
		k.left = ""
	}
	if _, ok := k.created[c.file]; ok {
		k.created[c.file] = true
		return
	}
	k.acked[c.file] = max(k.acked[c.file], c.k)
	if v, ok := r.Facts["version"].(string); ok {
		k.at[c.file] = v
	}
}

// check looks at what the kill left. The first command settles what it left open
// in the log.
func (k *killer) check() {
	t := k.t
	for _, args := range [][]string{{"audit", "verify"}, {"image", "fsck", "--live", "--cross"}} {
		if out := command(t, k.state, args...); out.code != 0 {
			t.Errorf("%v: exit %d\n%s%s", args, out.code, out.stdout, out.stderr)
		}
	}
	files := contents(t, k.state)
	k.checkFiles(files)
	k.checkLog(look(t, k.state))
	k.checkScript(files)
	if left := entries(t, filepath.Join(k.state, "scratch")); len(left) > 0 {
		t.Errorf("in scratch after the next opening: %v", left)
	}
}

func (k *killer) checkFiles(files map[string]stored) {
	t := k.t
	atLeast := func(file string, got int) {
		if got < k.acked[file] || got > k.sent[file] {
			t.Errorf("%s is at version %d; %d was acknowledged and %d asked for", file, got, k.acked[file], k.sent[file])
		}
	}
	scripts := map[string]map[int]int{"s": {}, "l": {}}
	for name, f := range files {
		if name == "l/big" || name == "l/sum" {
			continue
		}
		got, whole := versions{}.parse(f.data)
		dir, _, inDir := strings.Cut(name, "/")
		switch _, made := k.created[name]; {
		case !whole:
			t.Errorf("%s is torn: %d bytes, %.80q", name, len(f.data), f.data)
		case made && !strings.HasSuffix(name, fmt.Sprintf("/%06d", got)):
			t.Errorf("%s holds version %d", name, got)
		case inDir && scripts[dir] != nil:
			scripts[dir][got]++
		case !made:
			atLeast(name, got)
			k.at[name] = fmt.Sprintf("v%d", f.version)
		}
	}
	for name, acked := range k.created {
		if _, there := files[name]; acked && !there {
			t.Errorf("%s was acknowledged and is not there", name)
		} else if !there {
			delete(k.created, name)
		}
	}
	for name := range k.acked {
		_, there := files[name]
		if scripts[name] != nil {
			there = len(scripts[name]) > 0
		}
		if !there {
			t.Errorf("%s was acknowledged and is not there", name)
		}
	}
	for dir, counts := range scripts {
		for got, n := range counts {
			if atLeast(dir, got); n != scriptFiles {
				t.Errorf("the files of one script are of different runs: %s %v", dir, counts)
			}
		}
	}
	if sum := sha256.Sum256(files["l/big"].data); len(files["l/sum"].data) > 0 && !bytes.HasPrefix(files["l/sum"].data, fmt.Appendf(nil, "%x ", sum)) {
		t.Errorf("l/big is torn: %d bytes", len(files["l/big"].data))
	}
}

// checkLog holds the log to the disk: every commit has an intent, every intent an
// end that is true, and every acknowledged receipt is a record.
func (k *killer) checkLog(d disk) {
	t := k.t
	intents, ends := map[string]bool{}, map[string]string{}
	leaves := map[uint64]string{}
	for line := range strings.Lines(must(t, k.state, "audit", "query", "-o", "ndjson")) {
		line = strings.TrimSuffix(line, "\n")
		var r struct {
			N                uint64
			Ev, Call, Reason string
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		switch r.Ev {
		case "call.intent":
			intents[r.Call] = true
		case "call.outcome", "recover":
			if ends[r.Call] != "" {
				t.Errorf("call %s has two ends", r.Call)
			}
			ends[r.Call] = r.Ev + " " + r.Reason
		}
		sum := sha256.Sum256(append([]byte{0}, line...))
		leaves[r.N] = hex.EncodeToString(sum[:])
	}
	commits := map[string]bool{}
	for _, c := range d.commits[1:] { // the first makes the disk
		if commits[c.Call] = true; !intents[c.Call] {
			t.Errorf("commit %d of call %q has no intent", c.Seq, c.Call)
		}
	}
	for id := range intents {
		switch end := ends[id]; {
		case end == "":
			t.Errorf("call %s has no end in the log", id)
		case strings.HasPrefix(end, "recover ") && (end == "recover committed") != commits[id]:
			t.Errorf("call %s has %q in the log; it has a commit: %v", id, end, commits[id])
		}
	}
	for n, leaf := range maps.All(k.receipts) {
		if leaves[n] != leaf {
			t.Errorf("record %d is %s, and the receipt said %s", n, leaves[n], leaf)
		}
	}
}

// checkScript lets a script compare all files that it sees with those of the
// image.
func (k *killer) checkScript(files map[string]stored) {
	var want strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&want, "%x  %s\n", sha256.Sum256(files[name].data), name)
	}
	out := commandWith(k.t, k.state, encoded(object{"language": "bash", "commit": "never", "stdin": want.String(), "source": `
		cat > /tmp/want
		chmod 700 l/closed 2>/dev/null
		find . -type f -printf '%P\0' | LC_ALL=C sort -z | xargs -0r sha256sum | diff - /tmp/want`}), "call", "run_script", "-")
	if out.code != 0 || !strings.Contains(out.stdout, "exit 0,") {
		k.t.Errorf("what a script sees (<) is not what the disk has (>): exit %d\n%.3000s%s", out.code, out.stdout, out.stderr)
	}
}

// stored is a file of a disk.
type stored struct {
	data    []byte
	version uint64
}

// contents are all files of a disk.
func contents(t testing.TB, state string) map[string]stored {
	t.Helper()
	quiet(t, state)
	return contentsOf(t, filepath.Join(state, "images", "default.vdisk"))
}

func contentsOf(t testing.TB, path string) map[string]stored {
	t.Helper()
	im, err := workspace.Open(path, workspace.OpenOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	files := map[string]stored{}
	err = im.Walk(t.Context(), workspace.Path{}, func(e workspace.Entry) error {
		if e.Node.Kind != workspace.KindFile {
			return nil
		}
		f, err := im.Open(e.Path)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		_, err = io.Copy(&b, f.Reader())
		files[e.Path.Rel()] = stored{b.Bytes(), e.Node.Version}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A server that is killed while it makes its state and its disk leaves nothing
// that keeps the next one from starting.
func TestKillAtTheVeryStart(t *testing.T) {
	dir := passable(t)
	n := 4 * rounds(100)
	began := 0
	for i := range n {
		state := filepath.Join(dir, fmt.Sprint(i))
		s := serveUnread(t, state, nil)
		s.torn = true
		<-time.After(time.Duration(20_000+rand.IntN(100_000)) * time.Microsecond)
		s.kill()
		if _, err := os.Stat(filepath.Join(state, "images", "default.vdisk")); err == nil {
			began++
			if log := must(t, state, "audit", "query", "--all", "ev=image.create"); !strings.Contains(log, "default") {
				t.Errorf("after kill %d: a disk was made that the log does not know:\n%s", i, log)
			}
		}
		if out := command(t, state, "call", "write_file", `{"path":"a","content":"b"}`); out.code != 0 {
			t.Fatalf("after kill %d: exit %d\n%s%s", i, out.code, out.stdout, out.stderr)
		}
		must(t, state, "audit", "verify", "--all")
	}
	t.Logf("%d kills, %d of them after the disk's file was there", n, began)
}
