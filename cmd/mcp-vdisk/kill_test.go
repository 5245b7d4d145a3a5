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
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// What Must hold 8 asks: the server is killed (SIGKILL) at a random moment of
// pipelined writes and scripts, again and again on one state directory. On
// reopening, whatever was acknowledged is there, no file is torn, the log is
// whole, and every commit of the disk has an intent in it.

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

const (
	streams     = 6  // files that are overwritten, each by one call at a time
	scriptFiles = 12 // files that one script writes
)

// killer is the client of all rounds: what it was acknowledged so far.
type killer struct {
	t     *testing.T
	state string
	k     int // of the last version

	acked    map[string]int    // by file: the newest version that was acknowledged
	sent     map[string]int    // by file: the newest that was asked for
	created  map[string]bool   // files made by mode create, and whether that was acknowledged
	receipts map[uint64]string // leaf by number
	during   map[string]int    // what ran when the server was killed
}

func TestKillLosesNothingThatWasAcknowledged(t *testing.T) {
	k := &killer{t: t, state: newState(t), acked: map[string]int{}, sent: map[string]int{}, created: map[string]bool{},
		receipts: map[uint64]string{}, during: map[string]int{}}
	n := rounds(100)
	begin := time.Now()
	for i := range n {
		k.round(i)
		k.check(i)
		if t.Failed() {
			t.Fatalf("round %d", i)
		}
	}
	d := look(t, k.state)
	t.Logf("%d kills in %s (during: %v): %d commits, %d receipts and %d files of acknowledged calls found",
		n, time.Since(begin).Round(time.Second), k.during, len(d.commits), len(k.receipts), len(k.acked)+len(k.created))
}

// round starts a server, works it hard, and kills it.
func (k *killer) round(i int) {
	s := serveUnread(k.t, k.state, nil)
	s.torn = true
	go s.read()
	s.hello()
	marker := unique()
	calls := map[string]call{}
	busy := map[string]bool{}
	next := func(i int) {
		c := k.next(i, marker, busy)
		if c.tool != "" {
			calls[s.askCall(c.tool, c.args)] = c
		}
	}
	withScripts := i%2 == 1
	kinds := streams + 1
	if withScripts {
		kinds++
	}
	for j := range 4 * kinds {
		next(j % kinds)
	}
	moment := time.Now().Add(time.Duration(5+rand.IntN(250)) * time.Millisecond)
	fresh := func(m message) bool { _, ours := calls[string(m.ID)]; return ours }
	for {
		m, ok := s.await(time.Until(moment), fresh)
		if !ok {
			break
		}
		c := calls[string(m.ID)]
		delete(calls, string(m.ID))
		k.take(m, c, busy)
		next(c.kind)
	}
	running := len(below(k.t, s.cmd.Process.Pid)) > 0
	s.kill()
	s.await(patience, func(message) bool { return false })
	for _, m := range s.all() { // acknowledged in the last moment
		if fresh(m) {
			k.take(m, calls[string(m.ID)], busy)
		}
	}
	if running {
		k.during["a script"]++
	} else {
		k.during["writes"]++
	}
	within(k.t, 2*time.Second, "the scripts of a killed server are gone", func() bool { return len(marked(k.t, marker)) == 0 })
}

// call is a call on its way.
type call struct {
	kind int
	tool string
	args object
	file string // that it writes, "s" for the script's
	k    int
}

// next makes the next call of a kind: one of the streams, a new file, or a
// script. Streams and scripts have one call on its way at a time, so that what
// was acknowledged last is what has to be there.
func (k *killer) next(kind int, marker string, busy map[string]bool) call {
	k.k++
	c := call{kind: kind, tool: "write_file", k: k.k}
	switch {
	case kind < streams:
		c.file = fmt.Sprintf("stream%d", kind)
		c.args = object{"path": c.file, "content": versions{}.make(k.k)}
	case kind == streams:
		c.file = fmt.Sprintf("made/%06d", k.k)
		c.args = object{"path": c.file, "content": versions{}.make(k.k), "mode": "create"}
		k.created[c.file] = false
		return c
	default:
		c.file, c.tool = "s", "run_script"
		c.args = object{"language": "bash", "stdin": versions{}.make(k.k), "args": []string{marker},
			"source": fmt.Sprintf("mkdir -p s; cat > /tmp/v; for i in $(seq %d); do cp /tmp/v s/$i; done; sleep 0.0%d", scriptFiles, rand.IntN(10))}
	}
	if busy[c.file] {
		return call{}
	}
	busy[c.file], k.sent[c.file] = true, k.k
	return c
}

// take notes an acknowledgement.
func (k *killer) take(m message, c call, busy map[string]bool) {
	delete(busy, c.file)
	r := m.result(k.t)
	if r.IsError || c.tool == "run_script" && !strings.HasPrefix(r.Text, "SAVED") {
		k.t.Errorf("%s of %s: %.300s", c.tool, c.file, r.Text)
		return
	}
	k.receipts[r.Receipt.N] = r.Receipt.Leaf
	if _, ok := k.created[c.file]; ok {
		k.created[c.file] = true
	} else {
		k.acked[c.file] = max(k.acked[c.file], c.k)
	}
}

// check looks at what the kill left.
func (k *killer) check(i int) {
	t := k.t
	if out := command(t, k.state, "audit", "verify"); out.code != 0 {
		t.Errorf("audit verify: exit %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	k.checkFiles()
	k.checkLog(look(t, k.state))
	if left := entries(t, filepath.Join(k.state, "scratch")); len(left) > 0 {
		t.Errorf("in scratch after the next opening: %v", left)
	}
}

func (k *killer) checkFiles() {
	t := k.t
	files := contents(t, k.state)
	atLeast := func(file string, got int) {
		if got < k.acked[file] || got > k.sent[file] {
			t.Errorf("%s is at version %d; %d was acknowledged and %d asked for", file, got, k.acked[file], k.sent[file])
		}
	}
	script := map[int]int{}
	for name, data := range files {
		got, whole := versions{}.parse(data)
		switch _, made := k.created[name]; {
		case !whole:
			t.Errorf("%s is torn: %d bytes, %.80q", name, len(data), data)
		case made && !strings.HasSuffix(name, fmt.Sprintf("/%06d", got)):
			t.Errorf("%s holds version %d", name, got)
		case strings.HasPrefix(name, "s/"):
			script[got]++
		case !made:
			atLeast(name, got)
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
		if _, there := files[name]; !there && name != "s" {
			t.Errorf("%s was acknowledged and is not there", name)
		}
	}
	for got, n := range script {
		if atLeast("s", got); n != scriptFiles {
			t.Errorf("the files of one script are of different runs: %v", script)
		}
	}
}

// checkLog holds the log to the disk: every commit has an intent, and every
// acknowledged receipt is a record.
func (k *killer) checkLog(d disk) {
	t := k.t
	intents := map[string]bool{}
	leaves := map[uint64]string{}
	for line := range strings.Lines(must(t, k.state, "audit", "query", "-o", "ndjson")) {
		line = strings.TrimSuffix(line, "\n")
		var r struct {
			N        uint64
			Ev, Call string
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Ev == "call.intent" {
			intents[r.Call] = true
		}
		sum := sha256.Sum256(append([]byte{0}, line...))
		leaves[r.N] = hex.EncodeToString(sum[:])
	}
	for _, c := range d.commits[1:] { // the first makes the disk
		if !intents[c.Call] {
			t.Errorf("commit %d of call %q has no intent", c.Seq, c.Call)
		}
	}
	for n, leaf := range maps.All(k.receipts) {
		if leaves[n] != leaf {
			t.Errorf("record %d is %s, and the receipt said %s", n, leaves[n], leaf)
		}
	}
}

// contents are all files of a disk.
func contents(t testing.TB, state string) map[string][]byte {
	t.Helper()
	im, err := workspace.Open(filepath.Join(state, "images", "default.vdisk"), workspace.OpenOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	files := map[string][]byte{}
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
		files[e.Path.Rel()] = b.Bytes()
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
