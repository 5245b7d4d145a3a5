package main_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// What Must hold 6 asks: a script is a transaction.

// disk is what an image holds, read by the workspace package beside the program.
type disk struct {
	commit  string
	entries []string // "path kind mode time target sha256", in the order of the tree
	commits []workspace.Commit
}

// look reads the image of a state directory whose server has ended. Every file is
// read to its end, which checks its hash.
func look(t testing.TB, state string) disk {
	t.Helper()
	quiet(t, state)
	im, err := workspace.Open(filepath.Join(state, "images", "default.vdisk"), workspace.OpenOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	info, err := im.Info()
	if err != nil {
		t.Fatal(err)
	}
	d := disk{commit: info.Commit}
	err = im.Walk(t.Context(), workspace.Path{}, func(e workspace.Entry) error {
		n := e.Node
		d.entries = append(d.entries, fmt.Sprintf("%s %c %04o %s %q %x", e.Path, n.Kind, n.Mode, n.ModTime.UTC().Format(time.RFC3339Nano), n.Target, n.SHA256))
		if n.Kind != workspace.KindFile {
			return nil
		}
		f, err := im.Open(e.Path)
		if err == nil {
			_, err = io.Copy(io.Discard, f.Reader())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for {
		list, err := im.Log(uint64(len(d.commits)), 1000)
		if err != nil {
			t.Fatal(err)
		}
		d.commits = append(d.commits, list...)
		if len(list) == 0 {
			return d
		}
	}
}

// exported are the files of a disk as `image get` gives them: their hashes by
// name, and the targets of links.
func exported(t testing.TB, state string) map[string]string {
	t.Helper()
	dir := filepath.Join(passable(t), "out")
	must(t, state, "image", "get", "/workspace", dir)
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, dir)
		switch {
		case d.IsDir():
			files[name] = "directory"
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			files[name] = "-> " + to
			return err
		default:
			data, err := os.ReadFile(path)
			files[name] = fmt.Sprintf("%x", sha256.Sum256(data))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// furnish fills a new disk with something of every kind.
func furnish(t testing.TB, state string) {
	t.Helper()
	s := serve(t, state)
	s.hello()
	for name, content := range map[string]string{
		"edit.txt": "one\ntwo\n", "same.txt": "same\n", "gone.txt": "gone\n", "mode.sh": "true\n", "moved/a": "a\n", "moved/b": "b\n",
		"dir/sub/x": "x\n", "dir/sub/y": "y\n", "dir/z": "z\n", "swap": "a file\n", "empty": "", "big": strings.Repeat("0123456789abcdef\n", 50_000),
	} {
		s.ok("write_file", object{"path": name, "content": content})
	}
	if r := s.bash("ln -s edit.txt link; ln -s nowhere dangling; mkdir void; printf '\\x00\\xff' > 'odd\x01name'; touch -d 2001-01-01 same.txt"); r.IsError || !strings.HasPrefix(r.Text, "SAVED") {
		t.Fatal(r.Text)
	}
	s.end()
}

func TestExitZeroCommitsExactlyWhatChanged(t *testing.T) {
	t.Parallel()
	state := newState(t)
	furnish(t, state)
	before, files := look(t, state), exported(t, state)
	s := serve(t, state)
	s.hello()
	r := s.bash(`set -e
		echo three >> edit.txt
		cat same.txt > /tmp/s && [ "$(cat /tmp/s)" = same ]
		rm gone.txt
		chmod 755 mode.sh
		mv moved elsewhere
		rm -r dir/sub && mkdir dir/sub && echo new > dir/sub/new
		rm swap && mkdir swap && echo in > swap/in
		ln -sfn same.txt link
		mkdir -p made/deep && : > made/deep/file
		echo temporary > t && rm t
		mkfifo pipe
		ln edit.txt hard
		dd if=/dev/zero of=big bs=1 count=1 seek=100 conv=notrunc status=none`)
	if r.IsError || !strings.HasPrefix(r.Text, "SAVED as v") || !strings.Contains(r.Text, "1 pipe") && !strings.Contains(r.Text, "fifo") {
		t.Errorf("the result: %s", r.Text)
	}
	s.end()
	after := look(t, state)
	if n := len(after.commits) - len(before.commits); n != 1 {
		t.Fatalf("%d commits, want 1", n)
	}
	var got []string
	for _, e := range after.commits[len(after.commits)-1].Effects {
		if e.What != workspace.Touched {
			got = append(got, string(rune(e.What))+" "+strings.TrimPrefix(e.Path.String(), "/workspace/"))
		}
	}
	slices.Sort(got)
	want := []string{
		"C dir/sub/new", "C elsewhere", "C elsewhere/a", "C elsewhere/b", "C hard", "C made", "C made/deep", "C made/deep/file", "C swap/in",
		"D dir/sub/x", "D dir/sub/y", "D gone.txt", "D moved", "D moved/a", "D moved/b",
		"M big", "M edit.txt", "M link", "M swap", "P mode.sh",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the commit has\n%q, want\n%q", got, want)
	}
	// And nothing else differs, neither in the disk nor in what comes out of it.
	now := exported(t, state)
	for name, hash := range files {
		changed := slices.ContainsFunc(want, func(w string) bool { return strings.HasPrefix(name+"/", "/"+w[2:]+"/") })
		if !changed && now[name] != hash {
			t.Errorf("%s was %s and is %s", name, hash, now[name])
		}
	}
	if now["/edit.txt"] != fmt.Sprintf("%x", sha256.Sum256([]byte("one\ntwo\nthree\n"))) || now["/hard"] != now["/edit.txt"] || now["/link"] != "-> same.txt" {
		t.Errorf("exported: %v", now)
	}
}

// spoil changes about everything.
const spoil = "echo x >> edit.txt; rm -r dir moved; mkdir n; echo y > n/y; chmod 600 same.txt; ln -sf elsewhere link; mv empty full; touch big; "

func TestAnythingElseLeavesTheDiskAsItWas(t *testing.T) {
	t.Parallel()
	state := newState(t)
	furnish(t, state)
	before, files := look(t, state), exported(t, state)
	for _, c := range []struct {
		name    string
		args    object
		says    string
		refused bool
	}{
		{"exit 1", object{"source": spoil + "exit 1"}, "NOT SAVED (exit 1", false},
		{"exit 255", object{"source": spoil + "exit 255"}, "NOT SAVED (exit 255", false},
		{"a failing command", object{"source": "set -e; " + spoil + "false; echo never"}, "NOT SAVED (exit 1", false},
		{"a timeout", object{"source": spoil + "sleep 30", "timeout_s": 1}, "NOT SAVED (timed out", false},
		{"a timeout without end", object{"source": spoil + "trap '' TERM INT HUP; while :; do :; done", "timeout_s": 1}, "NOT SAVED (timed out", false},
		{"SIGKILL of itself", object{"source": spoil + "kill -9 $$"}, "NOT SAVED (killed by", false},
		{"SIGKILL of all it can reach", object{"source": spoil + "sleep 30 & kill -9 -1; kill -9 $$"}, "NOT SAVED (killed by", false},
		{"endless output", object{"source": spoil + "yes"}, "NOT SAVED (", false},
		{"too much written", object{"source": spoil + "head -c 400M /dev/zero > fill || exit 3"}, "NOT SAVED (", false},
		{"exit 0 with commit never", object{"source": spoil + "exit 0", "commit": "never"}, "NOT SAVED (exit 0", false},
		{"exit 1 with commit never", object{"source": spoil + "exit 1", "commit": "never"}, "NOT SAVED (exit 1", false},
		{"a reserved name", object{"source": spoil + "mkdir .system; echo x > .system/x"}, "RESERVED_PATH", true},
		{"a reserved name with commit always", object{"source": spoil + "echo x > .vectors; exit 1", "commit": "always"}, "RESERVED_PATH", true},
		{"a reserved link", object{"source": spoil + "ln -s /etc .logs"}, "RESERVED_PATH", true},
		{"nothing changed", object{"source": "cat edit.txt >/dev/null; exit 0"}, "exit 0", false},
		{"a read that fails", object{"source": "cat nothing"}, "FAILED (exit 1", false},
	} {
		s := serve(t, state)
		s.hello()
		c.args["language"] = "bash"
		r := s.call("run_script", c.args)
		first, _, _ := strings.Cut(r.Text, "\n")
		if r.IsError != c.refused || !strings.HasPrefix(r.Text, c.says) {
			t.Errorf("%s: %s", c.name, r.Text)
		}
		if c.refused && !strings.Contains(first, "nothing was saved") {
			t.Errorf("%s does not say that nothing was saved: %s", c.name, first)
		}
		if r.Facts["saved"] == true && c.name != "nothing changed" {
			t.Errorf("%s: facts %v", c.name, r.Facts)
		}
		// The running server sees the disk as it was, and so does the next script.
		if got := s.ok("read_file", object{"path": "edit.txt"}); !strings.HasPrefix(got.Text, "one\ntwo\n") {
			t.Errorf("%s: edit.txt is %s", c.name, got.Text)
		}
		if got := s.bash("cat edit.txt dir/sub/x moved/b; ls n"); !strings.Contains(got.Text, "one\ntwo\nx\nb\n") || !strings.Contains(got.Text, "'n'") && !strings.Contains(got.Text, " n:") {
			t.Errorf("%s: the next script sees %s", c.name, got.Text)
		}
		s.end()
		if now := look(t, state); now.commit != before.commit || !slices.Equal(now.entries, before.entries) {
			t.Errorf("%s changed the disk:\n%s", c.name, strings.Join(now.entries, "\n"))
		}
	}
	for name, hash := range exported(t, state) {
		if files[name] != hash {
			t.Errorf("%s was %s and is %s", name, files[name], hash)
		}
	}
	must(t, state, "audit", "verify")
}

func TestAKillFromOutsideLeavesTheDiskAsItWas(t *testing.T) {
	t.Parallel()
	state := newState(t)
	furnish(t, state)
	before := look(t, state)
	for _, victim := range []string{"sleep ", "bwrap", "stage"} {
		s := serve(t, state)
		s.hello()
		id := s.askCall("run_script", object{"language": "bash", "source": spoil + "sleep 30"})
		var tree []process
		within(t, patience, "the script sleeps", func() bool {
			tree = below(t, s.worker())
			return slices.ContainsFunc(tree, func(p process) bool { return strings.HasPrefix(p.cmdline, "sleep ") })
		})
		for _, p := range tree {
			stage := victim == "stage" && p.parent == s.worker()
			if stage || strings.HasPrefix(p.cmdline, victim) {
				syscall.Kill(p.pid, syscall.SIGKILL)
			}
		}
		r := s.answer(id).result(t)
		saved := strings.HasPrefix(r.Text, "SAVED") // when only the sleep was killed, bash went on to exit 137
		if saved || r.Facts["saved"] == true {
			t.Errorf("kill of %q: %s", victim, r.Text)
		}
		t.Logf("kill of %q: %.120s", victim, r.Text)
		if left := alive(t, tree); len(left) > 0 {
			t.Errorf("kill of %q: left behind: %v", victim, left)
		}
		if got := s.bash("cat edit.txt"); !strings.Contains(got.Text, "one\ntwo") {
			t.Errorf("kill of %q: the next script: %s", victim, got.Text)
		}
		s.end()
		if now := look(t, state); now.commit != before.commit || !slices.Equal(now.entries, before.entries) {
			t.Errorf("kill of %q changed the disk", victim)
		}
	}
	must(t, state, "audit", "verify")
}

func TestCommitAlways(t *testing.T) {
	t.Parallel()
	state := newState(t)
	s := serve(t, state)
	s.hello()
	for i, c := range []struct{ name, end, says string }{
		{"exit 1", "exit 1", "SAVED as v2 (exit 1"},
		{"a signal", "kill -9 $$", "SAVED as v3 (killed by"},
		{"a timeout", "sleep 30", "SAVED as v4 (timed out"},
		{"exit 0", "exit 0", "SAVED as v5 (exit 0"},
	} {
		r := s.call("run_script", object{"language": "bash", "commit": "always", "timeout_s": 1, "source": fmt.Sprintf("echo %d > report; %s", i, c.end)})
		if r.IsError || !strings.HasPrefix(r.Text, c.says) {
			t.Errorf("%s: %s", c.name, r.Text)
		}
		if got := s.ok("read_file", object{"path": "report"}); !strings.HasPrefix(got.Text, fmt.Sprintf("%d\n", i)) {
			t.Errorf("%s: the file holds %s", c.name, got.Text)
		}
	}
	s.end()
}

func TestRunsAreInTheLog(t *testing.T) {
	t.Parallel()
	state := newState(t)
	s := serve(t, state)
	s.hello()
	s.bash("echo x > a; exit 0")
	s.bash("echo y > a; exit 7")
	s.bash("mkdir .system")
	s.end()
	log := must(t, state, "audit", "query", "ev=call.outcome", "-o", "ndjson")
	lines := strings.Split(strings.TrimSpace(log), "\n")
	if len(lines) != 3 {
		t.Fatalf("outcomes:\n%s", log)
	}
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte("x\n")))
	for i, want := range []string{`"exit":0,"changed":1,"changes":[{"path":"/workspace/a","kind":"created","sha256":"` + hash + `"}]`, `"exit":7`, `"err":"RESERVED_PATH"`} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("outcome %d lacks %s:\n%s", i, want, lines[i])
		}
	}
	src := fmt.Sprintf(`"src":"%x"`, sha256.Sum256([]byte("echo y > a; exit 7")))
	if !strings.Contains(lines[1], src) || strings.Contains(log, "echo y") {
		t.Errorf("the log has the source's hash and not the source:\n%s", lines[1])
	}
}
