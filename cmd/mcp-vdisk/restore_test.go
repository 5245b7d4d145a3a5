package main_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/bundle"
)

// aBackup is one of a state with two disks and something in them.
func aBackup(t testing.TB) (state, file string) {
	t.Helper()
	state = daemonState(t)
	for _, d := range []string{"default", "two"} {
		must(t, state, "call", "write_file", encoded(write("a", "of "+d)), "--image", d)
		must(t, state, "call", "write_file", encoded(write("big", strings.Repeat("much of "+d, 5_000))), "--image", d)
	}
	file = filepath.Join(passable(t), "backup")
	must(t, state, "backup", file)
	return state, file
}

// alone holds a folder to hold nothing but these.
func alone(t testing.TB, dir string, names ...string) {
	t.Helper()
	got := entries(t, dir)
	if fmt.Sprint(got) != fmt.Sprint(names) {
		t.Errorf("%s holds %v, want %v", dir, got, names)
	}
}

// What is refused before anything is read.
func TestRestoreIsRefused(t *testing.T) {
	t.Parallel()
	state, file := aBackup(t)
	other := newState(t)
	if err := anyway(os.Mkdir(other, 0o755), os.WriteFile(filepath.Join(other, "mine"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(passable(t), "link")
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		state, says string
		code        int
		args        []string
	}{
		"a state":                 {state, "holds a state already", 4, []string{file}},
		"other things":            {other, "holds other things", 4, []string{file}},
		"a link":                  {link, "", 4, []string{file}},
		"no file":                 {newState(t), "no such file", 3, []string{file + ".not"}},
		"a directory":             {newState(t), "is not a file", 1, []string{filepath.Dir(file)}},
		"no name":                 {newState(t), "is empty", 2, []string{""}},
		"no backup":               {newState(t), "no backup of mcp-vdisk", 4, []string{program}},
		"nothing to roll back":    {newState(t), "no state", 2, []string{file, "--accept-rollback", "--why", "x"}},
		"no reason":               {state, "--why is missing", 2, []string{file, "--accept-rollback"}},
		"no person":               {state, "a person has to confirm it", 4, []string{file, "--accept-rollback", "--why", "x"}},
		"a reason of two lines":   {newState(t), "control character", 2, []string{file, "--why", "a\nb"}},
		"an empty standard input": {newState(t), "no backup of mcp-vdisk", 4, []string{"-"}},
	} {
		before := entries(t, filepath.Dir(c.state))
		out := command(t, c.state, append([]string{"restore"}, c.args...)...)
		if out.code != c.code || !strings.Contains(out.stderr, c.says) || out.stdout != "" {
			t.Errorf("%s: exit %d\n%s%s", name, out.code, out.stdout, out.stderr)
		}
		alone(t, filepath.Dir(c.state), before...)
	}
	healthy(t, state, "default", "two")
}

// An empty directory that is there is as good as none; facts are printed as JSON.
func TestRestoreIntoAnEmptyDirectory(t *testing.T) {
	t.Parallel()
	_, file := aBackup(t)
	r := daemonState(t)
	if err := os.Mkdir(r, 0o700); err != nil {
		t.Fatal(err)
	}
	var f struct {
		State, Install string
		Was            string `json:"install_before"`
		Disks          []string
		Streams        int
	}
	out := must(t, r, "restore", file, "--json", "--why", "a new house")
	if err := json.Unmarshal([]byte(out), &f); err != nil || f.State != r || f.Install == f.Was || len(f.Disks) != 2 || f.Streams != 3 {
		t.Errorf("%v, %+v", err, f)
	}
	alone(t, filepath.Dir(r), "state")
	checkRestored(t, r, []string{"default", "two"}, 1)
	if list := logged(t, r, "ev=restore"); list[0].Args["why"] != "a new house" {
		t.Errorf("the reason is not in %s", list[0].line)
	}
}

// What a backup holds belongs to whoever the back is.
func TestRestoreAsAnotherUser(t *testing.T) {
	t.Parallel()
	if !isRoot() {
		t.Skip("SKIP being several users takes root")
	}
	const uid = 60741
	state, file := aBackup(t)
	r := daemonState(t)
	must(t, r, "restore", file, "--run-as", fmt.Sprint(uid))
	if err := filepath.WalkDir(r, func(path string, d os.DirEntry, err error) error {
		info, ierr := d.Info()
		if err = errors.Join(err, ierr); err == nil && (ownerOf(info) != uid || info.Mode().Perm()&0o077 != 0 && filepath.Base(filepath.Dir(path)) != "db") {
			t.Errorf("%s: %s, of uid %d", path, info.Mode(), ownerOf(info))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	checkRestored(t, r, []string{"default", "two"}, 1)
	// An ordinary user restores for itself, and of a stream, as the file is root's.
	mine := filepath.Join(ownState(t, "mine", uid), "state")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cmd := as(uid, frontOf(mine, "restore", "-"))
	cmd.Stdin = bytes.NewReader(text)
	if out := outputOf(t, cmd); out.code != 0 {
		t.Errorf("exit %d\n%s", out.code, out.stderr)
	}
	alone(t, filepath.Dir(mine), "state")
	failing(t, as(uid+1, frontOf(filepath.Join(filepath.Dir(r), "other"), "restore", "-")), 11, "permission denied")
	healthy(t, state, "default")
}

// An older state takes the place of the one that is there: not while somebody has it
// open, only when a person says so, and the one before is kept.
func TestRollback(t *testing.T) {
	t.Parallel()
	state, file := aBackup(t)
	token := operatorToken(t, state)
	kept := file + ".kept"
	must(t, state, "backup", kept, "--with-keys")
	must(t, state, "call", "write_file", encoded(write("later", "x")))
	s := shared(t, state)
	s.hello()
	again := []string{"restore", kept, "--accept-rollback", "--why", "the disk crashed", "--operator-token", token}
	if out := command(t, state, again...); out.code != 6 || !strings.Contains(out.stderr, "in use by process") {
		t.Errorf("while a daemon runs: exit %d\n%s", out.code, out.stderr)
	}
	s.ok("write_file", write("later", "y"))
	s.end()
	stopDaemon(t, state)
	wrong := operatorToken(t, newState(t))
	for i, c := range []struct {
		run  func() output
		code int
	}{
		{func() output { return command(t, state, append(again[:len(again)-1:len(again)-1], wrong)...) }, 4},
		{func() output { return typedBy(t, state, "nonsense", again[:len(again)-2]...) }, 4},
		{func() output { return command(t, state, again...) }, 0},
		{func() output { return command(t, state, again...) }, 0}, // the token goes on to work
		{func() output {
			return typedBy(t, state, "restore", "restore", file, "--accept-rollback", "--why", "once more")
		}, 0},
		{func() output { return command(t, state, again...) }, 4}, // and here no more
	} {
		if out := c.run(); out.code != c.code {
			t.Errorf("%d: exit %d, want %d\n%s%s", i, out.code, c.code, out.stdout, out.stderr)
		}
	}
	asides, _ := filepath.Glob(state + ".before-restore-*")
	if len(asides) != 3 {
		t.Fatalf("kept aside: %v", asides)
	}
	alone(t, filepath.Dir(state), append([]string{"state"}, bases(asides)...)...)
	checkRestored(t, state, []string{"default", "two"}, 1)
	if out := command(t, state, "call", "read_file", `{"path":"later"}`); out.code == 0 {
		t.Error("what came later is there")
	}
	if out := command(t, asides[0], "call", "read_file", `{"path":"later"}`); out.code != 0 || !strings.HasPrefix(out.stdout, "y") {
		t.Errorf("the one before: exit %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	last := logged(t, asides[0], "ev=restore")
	if len(last) != 1 || last[0].Args["replaced"] != true || last[0].Args["why"] != "the disk crashed" || !strings.HasPrefix(fmt.Sprint(last[0].Args["op_proof"]), "token ") {
		t.Errorf("the log of the one before: %+v", last)
	}
	healthy(t, asides[0], "default", "two")
}

func bases(paths []string) (names []string) {
	for _, p := range paths {
		names = append(names, filepath.Base(p))
	}
	return names
}

// A state directory that cannot be opened any more is what restores are for.
func TestRollbackOfADamagedState(t *testing.T) {
	t.Parallel()
	state, file := aBackup(t)
	token := operatorToken(t, state)
	quiet(t, state)
	if err := os.WriteFile(filepath.Join(state, "db", "MANIFEST"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"restore", file, "--accept-rollback", "--why", "damaged"}
	if out := command(t, state, append(args, "--operator-token", token)...); out.code != 4 || !strings.Contains(out.stderr, "cannot be told") {
		t.Errorf("with a token: exit %d\n%s", out.code, out.stderr)
	}
	if out := typedBy(t, state, "restore", args...); out.code != 0 || !strings.Contains(out.stderr, "will not tell of this") {
		t.Errorf("exit %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	checkRestored(t, state, []string{"default", "two"}, 1)
}

// Disks that are moved between the original and what was restored of its backup are told
// apart: one that was changed there is taken on, and one that lacks changes is refused.
func TestDisksBetweenOriginalAndRestored(t *testing.T) {
	t.Parallel()
	state, file := aBackup(t)
	r := restored(t, file)
	move := func(from, to, disk string) {
		t.Helper()
		stopDaemon(t, from)
		stopDaemon(t, to)
		text, err := os.ReadFile(filepath.Join(from, "images", disk+".vdisk"))
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(filepath.Join(to, "images", disk+".vdisk"), os.O_WRONLY|os.O_TRUNC, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.Write(text)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	must(t, state, "call", "write_file", encoded(write("in-the-original", "x")), "--image", "two")
	move(r, state, "two")
	if out := command(t, state, "call", "write_file", encoded(write("b", "x")), "--image", "two"); out.code != 5 || !strings.Contains(out.stdout+out.stderr, "FENCED") {
		t.Errorf("a disk that lacks what the original has done: exit %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	must(t, r, "call", "write_file", encoded(write("in-the-copy", "x")))
	move(r, state, "default")
	must(t, state, "call", "write_file", encoded(write("b", "x")))
	if n := len(logged(t, state, "ev=lease.adopt")); n != 1 {
		t.Errorf("%d records of a disk that was taken on", n)
	}
	healthy(t, state, "default")
	healthy(t, r, "default", "two")
}

// Who interrupts a restore is not told that the backup is damaged.
func TestInterruptOfARestore(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	fillDisk(t, state, 24)
	stream := command(t, state, "backup", "-")
	for _, part := range []int{0, 1, 1 << 10, len(stream.stdout) / 2} {
		dir := passable(t)
		cmd := exec.Command(program, "--state", filepath.Join(dir, "state"), "restore", "-")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		var words bytes.Buffer
		cmd.Stdout, cmd.Stderr = &words, &words
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(in, stream.stdout[:part]); err != nil {
			t.Fatal(err)
		}
		within(t, patience, "the back works", func() bool { return len(entries(t, dir)) > 0 })
		cmd.Process.Signal(syscall.SIGINT)
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 130 || strings.Contains(words.String(), "damaged") {
			t.Errorf("after %d bytes: exit %d\n%s", part, code, &words)
		}
		if left := entries(t, dir); len(left) > 0 {
			t.Errorf("after %d bytes: left %v", part, left)
		}
	}
}

// A restore that is killed leaves nothing or the whole, and nothing that the next one
// does not remove.
func TestKilledRestore(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	must(t, state, "call", "write_file", encoded(write("a", "x")))
	fillDisk(t, state, 24)
	file := filepath.Join(passable(t), "backup")
	must(t, state, "backup", file)
	began := time.Now()
	must(t, newState(t), "restore", file)
	long := time.Since(began)
	token := operatorToken(t, state)
	kept := file + ".kept"
	must(t, state, "backup", kept, "--with-keys")
	whole, rolled := 0, 0
	n := rounds(60)
	r := daemonState(t)
	must(t, r, "restore", kept)
	parent := filepath.Dir(r)
	for i := range n {
		fresh := filepath.Join(passable(t), "state")
		if killedRestore(t, long, fresh, "restore", file) {
			whole++
		}
		if _, err := os.Stat(fresh); err == nil {
			healthy(t, fresh, "default")
			must(t, fresh, "call", "write_file", encoded(write("b", "x")))
		} else {
			must(t, fresh, "restore", file)
			alone(t, filepath.Dir(fresh), "state")
		}
		// Over one that is there, which is there afterwards, too: this one or that one.
		mark := fmt.Sprint("round", i)
		must(t, r, "call", "write_file", encoded(write(mark, "x")))
		killedRestore(t, long, r, "restore", kept, "--accept-rollback", "--why", "x", "--operator-token", token)
		if out := command(t, r, "call", "read_file", encoded(object{"path": mark})); out.code != 0 {
			rolled++
		}
		healthy(t, r, "default")
		must(t, r, "call", "write_file", encoded(write("b", "x")))
		must(t, r, "restore", kept, "--accept-rollback", "--why", "x", "--operator-token", token)
		asides := 0
		for _, name := range entries(t, parent) {
			if strings.HasPrefix(name, "state.before-restore-") {
				asides++
				removeTree(filepath.Join(parent, name))
			} else if name != "state" {
				t.Errorf("left: %s", name)
			}
		}
		if want := 1; asides < want || asides > 2 {
			t.Errorf("%d states were kept aside", asides)
		}
		if t.Failed() {
			t.Fatalf("round %d", i)
		}
	}
	t.Logf("%d and %d kills within %s: %d of the first left a whole state, %d of the second an older one", n, n, long.Round(time.Millisecond), whole, rolled)
}

// killedRestore kills a restore, with all of its processes, at a random moment. It says
// whether that came too late.
func killedRestore(t testing.TB, long time.Duration, state string, args ...string) bool {
	t.Helper()
	cmd := exec.Command(program, append([]string{"--state", state}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Duration(rand.Int64N(int64(long))))
	pid := cmd.Process.Pid
	syscall.Kill(-pid, syscall.SIGKILL)
	err := cmd.Wait()
	within(t, patience, "all of it is gone", func() bool { return syscall.Kill(-pid, 0) != nil })
	return err == nil
}

// untarred unpacks a backup, tarred packs one.
func untarred(t testing.TB, data []byte) []byte {
	t.Helper()
	d, err := zstd.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	text, err := io.ReadAll(d)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func tarred(t testing.TB, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20))
	if err == nil {
		_, err = w.Write(text)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// rebuilt makes another backup of one, with whatever change does to facts and parts. Its
// manifest agrees.
func rebuilt(t testing.TB, data []byte, change func(f *bundle.Facts, parts map[string][]byte)) []byte {
	t.Helper()
	r, err := bundle.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f, parts := r.Facts(), map[string][]byte{}
	for {
		e, body, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if parts[e.Name], err = io.ReadAll(body); err != nil {
			t.Fatal(err)
		}
	}
	change(&f, parts)
	for i, e := range f.Entries {
		f.Entries[i].Size = int64(len(parts[e.Name]))
	}
	var b bytes.Buffer
	w, err := bundle.NewWriter(&b, f)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range f.Entries {
		err := w.Add(func(to io.Writer) error { _, err := to.Write(parts[e.Name]); return err })
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Backups that are damaged, or that somebody made to do harm, are refused in a sentence,
// and nothing is left of them.
func TestHostileBackups(t *testing.T) {
	t.Parallel()
	state, file := aBackup(t)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := untarred(t, data)
	type hostile struct {
		data []byte
		code int
		says string
	}
	cases := map[string]hostile{}
	flip := func(b []byte, at int) []byte {
		c := bytes.Clone(b)
		c[at] ^= 0x20
		return c
	}
	for _, at := range borders(t, text) {
		for _, n := range []int{at - 1, at, at + 1, at + 512, at + 513} {
			if n > 0 && n < len(text) {
				cases[fmt.Sprint("tar cut at ", n)] = hostile{tarred(t, text[:n]), 0, ""}
			}
		}
		if at+600 < len(text) {
			cases[fmt.Sprint("bit at ", at+600)] = hostile{tarred(t, flip(text, at+600)), 0, ""}
		}
	}
	for range rounds(200) {
		n := 1 + rand.IntN(len(data)-1)
		cases[fmt.Sprint("file cut at ", n)] = hostile{data[:n], 0, ""}
		cases[fmt.Sprint("file changed at ", n)] = hostile{flip(data, n), 0, ""}
	}
	edit := func(change func(f *bundle.Facts, parts map[string][]byte)) []byte { return rebuilt(t, data, change) }
	const image = "images/default.vdisk"
	cases["a newer state"] = hostile{edit(func(_ *bundle.Facts, p map[string][]byte) { p["VERSION"] = []byte("2\n") }), 4, "another version"}
	cases["settings of another version"] = hostile{edit(func(f *bundle.Facts, p map[string][]byte) {
		p["config.toml"] = []byte("no.such = 1\n")
		f.Entries = append(f.Entries, bundle.Entry{Name: "config.toml"})
	}), 4, "another version"}
	cases["another install"] = hostile{edit(func(f *bundle.Facts, _ map[string][]byte) { f.Install = "00" }), 10, "leases"}
	cases["no dump"] = hostile{edit(func(_ *bundle.Facts, p map[string][]byte) { p["log"] = []byte("hello") }), 10, "dump"}
	cases["a dump that is cut"] = hostile{edit(func(_ *bundle.Facts, p map[string][]byte) { p["log"] = p["log"][:len(p["log"])/2] }), 10, "cut off"}
	cases["a log that was changed"] = hostile{edit(func(_ *bundle.Facts, p map[string][]byte) {
		p["log"] = bytes.Replace(p["log"], []byte(`"tool":"write_file"`), []byte(`"tool":"write_fire"`), 1)
	}), 10, "not intact"}
	cases["a disk that was changed"] = hostile{edit(func(_ *bundle.Facts, p map[string][]byte) {
		p[image] = bytes.ReplaceAll(p[image], []byte("of default"), []byte("of defaulT"))
	}), 10, "disk default"}
	cases["no disk"] = hostile{edit(func(_ *bundle.Facts, p map[string][]byte) { p[image] = []byte("hello") }), 10, "disk default"}
	cases["an empty disk"] = hostile{edit(func(_ *bundle.Facts, p map[string][]byte) { p[image] = nil }), 10, "disk default"}
	cases["another disk"] = hostile{edit(func(_ *bundle.Facts, p map[string][]byte) { p[image] = p["images/two.vdisk"] }), 10, "disk default"}
	cases["a bomb"] = hostile{bomb(t), 11, "have to stay free"}
	dir := passable(t)
	bad := filepath.Join(dir, "bad")
	for name, c := range cases {
		if err := os.WriteFile(bad, c.data, 0o600); err != nil {
			t.Fatal(err)
		}
		r := filepath.Join(dir, "state")
		out := command(t, r, "restore", bad)
		if out.code == 0 && c.code == 0 && bytes.Equal(untarred(t, c.data), text) {
			removeTree(r) // a bit that means nothing
			continue
		}
		if out.code != c.code && (c.code != 0 || out.code != 10 && out.code != 4) || !strings.Contains(out.stderr, c.says) {
			t.Errorf("%s: exit %d\n%s", name, out.code, out.stderr)
		}
		removeTree(r)
		if lines := strings.Count(strings.TrimSpace(out.stderr), "\n"); lines > 1 {
			t.Errorf("%s: not a sentence and a hint:\n%s", name, out.stderr)
		}
		alone(t, dir, "bad")
	}
	t.Logf("%d backups", len(cases))
	// What is damaged can be had when a person asks for it.
	if err := os.WriteFile(bad, cases["a disk that was changed"].data, 0o600); err != nil {
		t.Fatal(err)
	}
	r := filepath.Join(dir, "state")
	if out := command(t, r, "restore", bad, "--accept-damage"); out.code != 0 || !strings.Contains(out.stdout, "DAMAGED  disk default") {
		t.Errorf("exit %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	must(t, r, "call", "write_file", encoded(write("b", "x")), "--image", "two")
	healthy(t, state, "default", "two")
}

// borders are where entries of a tar begin.
func borders(t testing.TB, text []byte) (list []int) {
	t.Helper()
	r := bytes.NewReader(text)
	tr := tar.NewReader(r)
	for {
		at := len(text) - r.Len()
		_, err := tr.Next()
		if err == io.EOF {
			return append(list, at)
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, len(text)-r.Len()-512)
	}
}

// bomb tells of more than any disk holds.
func bomb(t testing.TB) []byte {
	t.Helper()
	text, err := json.Marshal(bundle.Facts{Format: bundle.Format, Disks: []bundle.Disk{{Name: "a"}},
		Entries: []bundle.Entry{{Name: "VERSION", Size: 2}, {Name: "log", Size: 10}, {Name: "images/a.vdisk", Size: 1 << 60}}})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err = w.WriteHeader(&tar.Header{Name: "backup.json", Size: int64(len(text)), Mode: 0o600})
	if err == nil {
		_, err = w.Write(text)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return tarred(t, b.Bytes())
}
