package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What is in /workspace/out is in the outbox, within a second of the commit, whoever made
// it, and whatever is killed meanwhile. What is put into the inbox is on the disk.

// boxed starts a session with folders.
func boxed(t testing.TB, state string, flags ...string) *server {
	t.Helper()
	s := serveVia(t, frontOf(state, append([]string{"serve"}, flags...)...))
	s.hello()
	return s
}

// holding waits until a file of the host holds a text, "" for none, and tells how long
// that took.
func holding(t testing.TB, name, want string) time.Duration {
	t.Helper()
	return within(t, patience, name+" holds what it should", func() bool {
		data, err := os.ReadFile(name)
		if want == "" {
			return os.IsNotExist(err)
		}
		return err == nil && string(data) == want
	})
}

// prompt is how long after a commit the outbox may take.
const prompt = time.Second

func TestOutbox(t *testing.T) {
	state := daemonState(t)
	dir := filepath.Join(passable(t), "from-agent")
	s, other := boxed(t, state, "--outbox", dir), shared(t, state)
	other.hello()
	source := filepath.Join(passable(t), "put.txt")
	if err := os.WriteFile(source, []byte("put"), 0o644); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct {
		what, file, want string
		do               func()
	}{
		{"write_file", "a/b.txt", "written", func() { s.ok("write_file", object{"path": "out/a/b.txt", "content": "written"}) }},
		{"a script", "s.txt", "script\n", func() { s.bash("echo script > out/s.txt; chmod 755 out/s.txt; ln -s s.txt out/l; mkdir -p out/empty") }},
		{"another session", "o.txt", "other", func() { other.ok("write_file", object{"path": "out/o.txt", "content": "other"}) }},
		{"image put", "put.txt", "put", func() { viaDaemon(t, state, "image", "put", source, "/workspace/out/") }},
		{"edit", "a/b.txt", "again", func() { s.ok("write_file", object{"path": "out/a/b.txt", "content": "again"}) }},
		{"delete_file", "o.txt", "", func() { s.ok("delete_file", object{"path": "out/o.txt"}) }},
		{"image rm", "put.txt", "", func() { viaDaemon(t, state, "image", "rm", "/workspace/out/put.txt") }},
		{"image restore", "put.txt", "put", func() { viaDaemon(t, state, "image", "restore", "5", "/workspace/out/put.txt") }},
		{"moved away", "a/b.txt", "", func() { s.bash("mv out away") }},
		{"moved back", "a/b.txt", "again", func() { s.bash("mv away out") }},
		{"a link in its place", "a/b.txt", "", func() { s.bash("mv out away; ln -s away out") }},
		{"and no more", "a/b.txt", "again", func() { s.bash("rm out; mv away out") }},
	} {
		c.do()
		took := holding(t, at(c.file), c.want)
		t.Logf("%-20s %s", c.what, took)
		if took > prompt {
			t.Errorf("%s took %s", c.what, took)
		}
	}
	holding(t, at("s.txt"), "script\n")
	if to, err := os.Readlink(at("l")); err != nil || to != "s.txt" {
		t.Errorf("the link: %q, %v", to, err)
	}
	if info, err := os.Stat(at("s.txt")); err != nil || info.Mode() != 0o755 {
		t.Errorf("the script's file: %v, %v", info, err)
	}
	if info, err := os.Stat(at("empty")); err != nil || !info.IsDir() {
		t.Errorf("the empty folder: %v", err)
	}
	if words := s.words(); !strings.Contains(words, "/workspace/out is not a directory") {
		t.Errorf("stderr: %s", words)
	}
	// What is saved last is there when the session has ended.
	s.ok("write_file", object{"path": "out/last", "content": "last"})
	s.end()
	if data, err := os.ReadFile(at("last")); err != nil || string(data) != "last" {
		t.Errorf("the last file: %q, %v", data, err)
	}
	other.end()
	records := viaDaemon(t, state, "audit", "query", "ev=image.outbox", "-o", "ndjson").stdout
	for _, word := range []string{`"step":"open"`, `"step":"close"`, `"step":"deliver"`, `"folder":"` + dir + `"`, "/workspace/out/a/b.txt"} {
		if !strings.Contains(records, word) {
			t.Errorf("no record has %s: %s", word, records)
		}
	}
	for _, m := range s.all() {
		if strings.Contains(m.line, dir) {
			t.Errorf("the client is told the folder: %s", m.line)
		}
	}
	if out := viaDaemon(t, state, "audit", "verify"); out.code != 0 {
		t.Errorf("audit verify: exit %d %s%s", out.code, out.stdout, out.stderr)
	}
}

// The instructions of a session with an outbox say so, within what clients keep.
func TestOutboxInstructions(t *testing.T) {
	state := daemonState(t)
	for _, flags := range [][]string{nil, {"--outbox", filepath.Join(passable(t), "out")}} {
		s := serveVia(t, frontOf(state, append([]string{"serve"}, flags...)...))
		var r struct{ Instructions string }
		if err := json.Unmarshal(s.hello().Result, &r); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(r.Instructions, "/workspace/out are copied") != (flags != nil) || len([]rune(r.Instructions)) > 2048 {
			t.Errorf("%q: %d characters: %s", flags, len([]rune(r.Instructions)), r.Instructions)
		}
		s.end()
	}
}

// An ordinary user's outbox is theirs; a session that only reads may have one.
func TestOutboxOfAUser(t *testing.T) {
	const uid = 60735
	state := ownState(t, "state", uid)
	place := filepath.Join(passable(t), "home")
	if err := os.Mkdir(place, 0o755); err != nil {
		t.Fatal(err)
	}
	if isRoot() {
		if err := os.Chown(place, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	s := serveVia(t, as(uid, frontOf(state, "serve", "--outbox", filepath.Join(place, "out"))))
	s.hello()
	s.ok("write_file", object{"path": "out/f", "content": "x"})
	t.Logf("as a user: %s", holding(t, filepath.Join(place, "out", "f"), "x"))
	info, err := os.Stat(filepath.Join(place, "out", "f"))
	if err != nil || isRoot() && ownerOf(info) != uid {
		t.Errorf("%v, %v", info, err)
	}
	reads := serveVia(t, as(uid, frontOf(state, "serve", "--read-only", "--outbox", filepath.Join(place, "second"))))
	reads.hello()
	holding(t, filepath.Join(place, "second", "f"), "x")
	s.ok("write_file", object{"path": "out/f", "content": "y"})
	holding(t, filepath.Join(place, "second", "f"), "y")
	reads.end()
	s.end()
}

func TestOutboxOfManyAndLargeFiles(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	dir := filepath.Join(passable(t), "out")
	s := boxed(t, state, "--outbox", dir)
	if r := s.bash("mkdir -p out/many; for i in $(seq 2000); do echo $i > out/many/$i; done"); r.IsError {
		t.Fatal(r.Text)
	}
	count := func() int {
		list, _ := os.ReadDir(filepath.Join(dir, "many"))
		return len(list)
	}
	took := within(t, patience, "2,000 files are there", func() bool { return count() == 2000 })
	t.Logf("2,000 files: %s", took)
	large := filepath.Join(passable(t), "large")
	block := bytes.Repeat([]byte("0123456789abcde\n"), 1<<16)
	f, err := os.Create(large)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		block[0] = byte(i)
		if _, err := f.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	if out := viaDaemon(t, state, "image", "put", large, "/workspace/out/"); out.code != 0 {
		t.Fatal(out.stderr)
	}
	took = within(t, patience, "the large file is there", func() bool {
		info, err := os.Stat(filepath.Join(dir, "large"))
		return err == nil && info.Size() == 200<<20
	})
	t.Logf("200 MiB: %s", took)
	// While it is copied again nobody waits.
	s.ok("delete_file", object{"path": "out/large"})
	viaDaemon(t, state, "image", "put", large, "/workspace/out/")
	begin := time.Now()
	s.ok("write_file", object{"path": "beside", "content": "x"})
	t.Logf("a write beside the copy: %s", time.Since(begin))
	s.end()
	if out := outputOf(t, exec.Command("cmp", large, filepath.Join(dir, "large"))); out.code != 0 {
		t.Error(out.stdout)
	}
}

// Whatever is killed, the outbox ends as the disk is, and no part of a file is ever seen.
func TestOutboxSurvivesKills(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	dir := filepath.Join(passable(t), "out")
	text := strings.Repeat("whole ", 10_000)
	for i := range 4 { // the front, while it copies
		s := serveVia(t, frontOf(state, "serve", "--outbox", dir))
		s.torn = true
		s.hello()
		s.askCall("run_script", object{"language": "bash", "source": fmt.Sprintf("mkdir -p out/%d; for i in $(seq 300); do seq 1000 > out/%d/$i; done", i, i)})
		within(t, patience, "some are there", func() bool {
			list, _ := os.ReadDir(filepath.Join(dir, fmt.Sprint(i)))
			return len(list) > 20
		})
		s.kill()
	}
	s := boxed(t, state, "--outbox", dir)
	for i := range 4 {
		within(t, patience, "the rest is there", func() bool {
			list, _ := os.ReadDir(filepath.Join(dir, fmt.Sprint(i)))
			return len(list) == 300
		})
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*", ".mcp-vdisk-tmp-*")); len(left) > 0 {
		t.Errorf("left over: %q", left)
	}
	for i := range 3 { // the daemon
		killDaemon(t, state)
		s.ok("write_file", object{"path": fmt.Sprintf("out/after-%d", i), "content": text})
		t.Logf("after a kill of the daemon: %s", holding(t, filepath.Join(dir, fmt.Sprintf("after-%d", i)), text))
	}
	if out := viaDaemon(t, state, "daemon", "restart"); out.code != 0 {
		t.Fatalf("daemon restart: %s", out.stderr)
	}
	s.ok("write_file", object{"path": "out/replaced", "content": text})
	t.Logf("after a restart of the daemon: %s", holding(t, filepath.Join(dir, "replaced"), text))
	if words := s.words(); strings.Contains(words, "outbox") {
		t.Errorf("stderr: %s", words)
	}
	s.end()
}

func TestOutboxRefusals(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	top := passable(t)
	at := func(name string) string { return filepath.Join(top, name) }
	for _, d := range []string{"full", "in", "mine"} {
		if err := os.Mkdir(at(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(at("full/thesis.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	failing(t, frontOf(state, "serve", "--outbox", at("full")), 4, "holds other things already", "hint: ")
	failing(t, frontOf(state, "serve", "--outbox", at("full/thesis.txt")), 4, "not a folder")
	failing(t, frontOf(state, "serve", "--outbox", at("no/such")), 3, "no folder above")
	failing(t, frontOf(state, "serve", "--inbox", at("nothing")), 3, "inbox")
	failing(t, frontOf(state, "serve", "--outbox", ""), 2, "--outbox is empty")
	failing(t, frontOf(state, "serve", "--no-daemon", "--outbox", at("new")), 2, "need the daemon", "hint: ")
	failing(t, frontOf(state, "serve", "--read-only", "--inbox", at("in")), 2, "--read-only")
	failing(t, frontOf(state, "serve", "--outbox", at("in/out"), "--inbox", at("in")), 2, "side by side")
	if _, err := os.Stat(at("new")); err == nil {
		t.Error("a folder was made for a session that was refused")
	}
	s := boxed(t, state, "--outbox", at("mine"))
	failing(t, frontOf(state, "serve", "--outbox", at("mine")), 6, "another session has")
	s.ok("write_file", object{"path": "out/f", "content": "x"})
	holding(t, at("mine/f"), "x")
	s.end()
	failing(t, frontOf(state, "serve", "--image", "second", "--outbox", at("mine")), 4, "another disk")
	s = boxed(t, state, "--outbox", at("mine")) // which was ours
	s.end()
}

// Failures of the folder are told once, do not end the session, and are made up for.
func TestOutboxFolderFails(t *testing.T) {
	t.Parallel()
	if !isRoot() {
		t.Skip("SKIP mounting takes root")
	}
	state := daemonState(t)
	dir := filepath.Join(passable(t), "out")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mount := func(flags uintptr, options string) {
		t.Helper()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", flags, options); err != nil {
			t.Skipf("SKIP no file system can be mounted: %s", err)
		}
	}
	mount(0, "size=1m")
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	s := boxed(t, state, "--outbox", dir)
	s.bash("mkdir -p out; head -c 3000000 /dev/urandom > out/big; echo small > out/small")
	holding(t, filepath.Join(dir, "small"), "small\n")
	within(t, patience, "it is told", func() bool { return strings.Contains(s.words(), "no room") })
	s.ok("write_file", object{"path": "out/more", "content": "more"})
	holding(t, filepath.Join(dir, "more"), "more")
	if n := strings.Count(s.words(), "no room"); n != 1 {
		t.Errorf("told %d times: %s", n, s.words())
	}
	mount(syscall.MS_REMOUNT, "size=8m") // and nothing is committed: it is tried again by itself
	within(t, patience, "the big file is there", func() bool {
		info, err := os.Stat(filepath.Join(dir, "big"))
		return err == nil && info.Size() == 3_000_000
	})
	mount(syscall.MS_REMOUNT|syscall.MS_RDONLY, "size=8m")
	s.ok("write_file", object{"path": "out/more", "content": "again"})
	within(t, patience, "it is told", func() bool { return strings.Contains(s.words(), "read-only file system") })
	t.Log(s.words())
	mount(syscall.MS_REMOUNT, "size=8m")
	s.ok("write_file", object{"path": "out/then", "content": "then"})
	holding(t, filepath.Join(dir, "more"), "again")
	// The folder goes, and comes again empty.
	if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	s.ok("write_file", object{"path": "out/without", "content": "x"})
	within(t, patience, "it is told", func() bool { return strings.Contains(s.words(), "no such file or directory") })
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s.ok("write_file", object{"path": "out/with", "content": "x"})
	for name, want := range map[string]string{"with": "x", "without": "x", "more": "again", "small": "small\n"} {
		holding(t, filepath.Join(dir, name), want)
	}
	s.end()
}

func TestInbox(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	top := passable(t)
	dir := filepath.Join(top, "in")
	at := func(name string) string { return filepath.Join(dir, name) }
	put := func(name, data string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(at(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at(name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("before.txt", "before")
	put("sub/two.txt", "two")
	put(".hidden", "x")
	put("caf\xe9.txt", "latin")
	long := strings.Repeat("n", 255)
	put(long, "long")
	for _, err := range []error{os.Symlink("/etc/passwd", at("link")), os.Symlink("/etc", at("etc")), syscall.Mkfifo(at("pipe"), 0o644)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s := boxed(t, state, "--inbox", dir)
	reads := func(s *server, path, want string) {
		t.Helper()
		var last string
		took := within(t, patience, path+" is on the disk", func() bool {
			r := s.call("read_file", object{"path": path})
			last = r.Text
			return strings.HasPrefix(r.Text, want+"\n") || r.Text == want
		})
		t.Logf("%.30s: %s", path, took)
		if t.Failed() {
			t.Fatalf("%s\n%s", last, s.words())
		}
	}
	reads(s, "in/before.txt", "before")
	reads(s, "in/sub/two.txt", "two")
	reads(s, `"/workspace/in/caf\xe9.txt"`, "latin")
	reads(s, "in/"+long, "long")
	put("before.txt", "changed") // what the inbox put it replaces
	reads(s, "in/before.txt", "changed")
	s.ok("write_file", object{"path": "in/before.txt", "content": "the agent's"})
	put("before.txt", "changed again") // and nothing else
	reads(s, "in/before (2).txt", "changed again")
	reads(s, "in/before.txt", "the agent's")
	put("before.txt", "and again")
	reads(s, "in/before (2).txt", "and again")

	// A growing file is not taken before it rests.
	f, err := os.Create(at("grows"))
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := range 15 {
		fmt.Fprintf(f, "line %d\n", i)
		<-tick.C
		if r := s.call("read_file", object{"path": "in/grows"}); !r.IsError && i < 14 {
			t.Fatalf("half of it is on the disk: %s", r.Text)
		}
	}
	f.Close()
	within(t, patience, "all of it is on the disk", func() bool {
		return strings.Contains(s.call("read_file", object{"path": "in/grows"}).Text, "line 14")
	})
	for _, name := range []string{"link", "etc", "pipe"} {
		if n := strings.Count(s.words(), "inbox: "+name+" is left out"); n != 1 {
			t.Errorf("%s is told %d times: %s", name, n, s.words())
		}
	}
	list := s.ok("list_files", object{"path": "in", "recursive": true}).Text
	if strings.Contains(list, "hidden") || strings.Contains(list, "pipe") || strings.Contains(list, "etc") {
		t.Errorf("the disk has %s", list)
	}
	// Removing is nobody's: neither here nor there.
	if err := os.Remove(at("sub/two.txt")); err != nil {
		t.Fatal(err)
	}
	s.ok("delete_file", object{"path": "in/" + long})
	put("marker", "x")
	reads(s, "in/marker", "x")
	reads(s, "in/sub/two.txt", "two")
	if r := s.call("read_file", object{"path": "in/" + long}); !r.IsError {
		t.Error("what was deleted on the disk came back")
	}
	// Another daemon, another session: what is equal makes no commit.
	killDaemon(t, state)
	put("after", "x")
	s.ok("list_files", object{"path": "in"})
	reads(s, "in/after", "x")
	s.end()
	head := viaDaemon(t, state, "image", "show", "--json").stdout
	if err := os.Remove(at(long)); err != nil {
		t.Fatal(err)
	}
	s = boxed(t, state, "--inbox", dir)
	before := viaDaemon(t, state, "image", "show", "--json").stdout
	put("new", "new")
	reads(s, "in/new", "new")
	if before != head {
		t.Errorf("%s\n%s", head, before)
	}
	if n := strings.Count(viaDaemon(t, state, "image", "log").stdout, "inbox"); n == 0 {
		t.Error("the history does not name the inbox")
	}
	s.end()
	records := viaDaemon(t, state, "audit", "query", "-o", "ndjson").stdout
	for _, word := range []string{`"ev":"image.inbox"`, `"from":"inbox"`, `"step":"close"`} {
		if !strings.Contains(records, word) {
			t.Errorf("no record has %s", word)
		}
	}
	if out := viaDaemon(t, state, "audit", "verify"); out.code != 0 {
		t.Errorf("audit verify: exit %d %s%s", out.code, out.stdout, out.stderr)
	}
}

// A held lease and a full disk are told once, and made up for.
func TestInboxWaits(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	dir := passable(t)
	if out := viaDaemon(t, state, "image", "create", "default", "--quota", "1MiB"); out.code != 0 {
		t.Fatal(out.stderr)
	}
	s := boxed(t, state, "--inbox", dir)
	sole := shared(t, state, "--exclusive")
	sole.hello()
	write := func(name, data string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("waits", "x")
	within(t, patience, "it is told", func() bool { return strings.Contains(s.words(), "inbox: ") })
	if r := s.call("read_file", object{"path": "in/waits"}); !r.IsError {
		t.Error("it was put though another session has the disk")
	}
	sole.end()
	on := func(name string) func() bool {
		return func() bool { return !s.call("read_file", object{"path": "in/" + name}).IsError }
	}
	within(t, patience, "it is put", on("waits"))
	write("a-large", strings.Repeat("x", 2<<20))
	write("small", "x")
	within(t, patience, "the small one is put", on("small"))
	within(t, patience, "the large one is told", func() bool { return strings.Contains(s.words(), "a-large") })
	if n := strings.Count(s.words(), "a-large is left out: 2.0 MiB, and the disk has room for 1"); n != 1 {
		t.Errorf("told %d times: %s", n, s.words())
	}
	s.end()
}

// A file that cannot fit keeps nobody waiting, and is not even read.
func TestInboxOfAFileWithoutRoom(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	dir := passable(t)
	write := func(name, data string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("huge", "")
	if err := os.Truncate(filepath.Join(dir, "huge"), 5<<30); err != nil { // it has holes only
		t.Fatal(err)
	}
	write("aaa", "x")
	write("zafter", "y")
	s := boxed(t, state, "--inbox", dir)
	put := func(name string) {
		t.Helper()
		took := within(t, patience, name+" is put", func() bool { return !s.call("read_file", object{"path": "in/" + name}).IsError })
		if t.Logf("%s: %s", name, took); took > patience/2 {
			t.Errorf("%s took %s", name, took)
		}
	}
	put("aaa")
	put("zafter")
	within(t, patience, "the huge one is told", func() bool { return strings.Contains(s.words(), "huge") })
	write("later", "z")
	put("later")
	if n := readBy(t, s.cmd.Process.Pid); n > 1<<30 {
		t.Errorf("the front read %d bytes", n)
	}
	if n := strings.Count(s.words(), "inbox: huge is left out: 5.0 GiB, and the disk has room for 4.0 GiB"); n != 1 || strings.Contains(s.words(), "tried again") {
		t.Errorf("told %d times: %s", n, s.words())
	}
	write("huge", "small now")
	put("huge")
	s.end()
}

// readBy is how many bytes a process has read, from files or sockets (proc_pid_io(5)).
func readBy(t testing.TB, pid int) (n int64) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(data), "rchar: %d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// What had no room is put when there is some, what the disk has needs none, and what
// takes the place of something needs as much less.
func TestInboxOfADiskThatIsFull(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	dir := passable(t)
	if out := viaDaemon(t, state, "image", "create", "default", "--quota", "1MiB"); out.code != 0 {
		t.Fatal(out.stderr)
	}
	write := func(name, fill string, size int) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Repeat(fill, size)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	begins := func(name, fill string) {
		t.Helper()
		within(t, patience, name+" is put", func() bool { return strings.HasPrefix(inboxHolds(t, state, name), fill) })
	}
	s := boxed(t, state, "--inbox", dir)
	s.ok("write_file", object{"path": "agents", "content": strings.Repeat("a", 300<<10)})
	write("first", "f", 600<<10)
	begins("first", "ff")
	for _, name := range []string{"second", "third"} { // either fits
		write(name, name[:1], 100<<10)
	}
	within(t, patience, "one is told", func() bool { return strings.Contains(s.words(), "is left out: 100.0 KiB, and the disk has room for ") })
	begins("second", "ss")
	write("first", "F", 610<<10) // in the place of its 600 KiB
	begins("first", "FF")
	if n := strings.Count(s.words(), "is left out"); n != 1 {
		t.Errorf("told %d times: %s", n, s.words())
	}
	s.ok("delete_file", object{"path": "agents"})
	begins("third", "tt")
	s.ok("write_file", object{"path": "agents", "content": strings.Repeat("a", 200<<10)})
	s.end()
	s = boxed(t, state, "--inbox", dir)
	write("fourth", "4", 1<<10)
	begins("fourth", "44")
	if strings.Contains(s.words(), "left out") {
		t.Errorf("what the disk has is told: %s", s.words())
	}
	s.end()
}

// inboxHolds is what a file of the inbox holds on the disk.
func inboxHolds(t testing.TB, state, name string) string {
	t.Helper()
	return viaDaemon(t, state, "image", "cat", "/workspace/in/"+name).stdout
}

// A small file does not wait behind a large one of the same commit.
func TestOutboxOfASmallFileBesideALargeOne(t *testing.T) {
	state := daemonState(t)
	dir := filepath.Join(passable(t), "out")
	s := boxed(t, state, "--outbox", dir)
	if r := s.bash("mkdir -p -m 700 out/z; head -c 40000000 /dev/urandom > out/a; echo small > out/z/small; chmod 600 out/z/small"); r.IsError {
		t.Fatal(r.Text)
	}
	took := holding(t, filepath.Join(dir, "z", "small"), "small\n")
	if t.Logf("the small one: %s", took); took > prompt {
		t.Errorf("it took %s", took)
	}
	if info, err := os.Stat(filepath.Join(dir, "z")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v", info, err)
	}
	if r := s.bash("touch -d 2001-02-03T04:05:06Z out/z/small"); r.IsError {
		t.Fatal(r.Text)
	}
	want := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	within(t, patience, "it has its time", func() bool {
		info, err := os.Stat(filepath.Join(dir, "z", "small"))
		return err == nil && info.ModTime().Equal(want)
	})
	s.end()
}
