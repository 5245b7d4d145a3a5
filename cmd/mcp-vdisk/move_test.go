package main_test

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	bolt "go.etcd.io/bbolt"
)

// moved is what import, export and fork tell as JSON.
type moved struct {
	UUID, Version, Content, Label, From string
	Was                                 string `json:"was_uuid"`
	Entries, Bytes                      int64
	Layers                              []string
}

func movedBy(t testing.TB, text string) (m moved) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return m
}

// 20,000 files, among them the names that are hard to carry, to an archive, a disk of it,
// and an archive again.
func TestMoveManyFiles(t *testing.T) {
	t.Parallel()
	state := newState(t)
	dir := filepath.Dir(state)
	n := 20_000
	if quick() {
		n = 2_000
	}
	archive := filepath.Join(dir, "many.tar")
	if err := os.WriteFile(archive, tarOf(t, func(w *tar.Writer) {
		at := time.Unix(1_700_000_000, 123_456_789)
		for i := range n {
			body := fmt.Sprintf("file %d\n", i)
			putHeader(t, w, &tar.Header{Name: fmt.Sprintf("d%03d/f%05d", i%200, i), Size: int64(len(body)), Mode: int64(0o600 + i%8), ModTime: at.Add(time.Duration(i)), Format: tar.FormatPAX}, body)
		}
		for _, name := range []string{"new\nline", "not \xff UTF-8", strings.Repeat("n", 255), strings.Repeat("d/", 127) + "deep", "-rf *", `a\b`, "\x01\x7f"} {
			putHeader(t, w, &tar.Header{Name: name, Size: 1, Mode: 0o644, ModTime: at, Format: tar.FormatPAX}, "x")
		}
	}), 0o644); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	first := movedBy(t, must(t, state, "image", "import", archive, "one", "--json"))
	imported := time.Since(begin)
	if first.Entries < int64(n) || first.Version != "v2" {
		t.Errorf("%+v", first)
	}
	file := filepath.Join(dir, "one.tar.zst")
	begin = time.Now()
	out := movedBy(t, must(t, state, "image", "export", file, "--image", "one", "--json"))
	exported := time.Since(begin)
	two := movedBy(t, must(t, state, "image", "import", file, "two", "--json"))
	must(t, state, "image", "export", file+".vdisk", "--image", "two")
	three := movedBy(t, must(t, state, "image", "import", file+".vdisk", "three", "--json"))
	if out.Content != first.Content || two.Content != first.Content || three.Content != first.Content || three.Was != two.UUID || three.UUID == two.UUID {
		t.Errorf("imported %+v, exported %+v, imported %+v and %+v", first, out, two, three)
	}
	must(t, state, "image", "export", file+"2.tar.zst", "--image", "two")
	if a, b := readFile(t, file), readFile(t, file+"2.tar.zst"); a != b {
		t.Errorf("the second archive of %d bytes differs from the first of %d", len(b), len(a))
	}
	for _, disk := range []string{"one", "two", "three"} {
		must(t, state, "image", "fsck", disk, "--cross")
	}
	t.Logf("%d entries: imported in %s, exported in %s", first.Entries, imported.Round(time.Millisecond), exported.Round(time.Millisecond))
}

func readFile(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func putHeader(t testing.TB, w *tar.Writer, h *tar.Header, body string) {
	t.Helper()
	if err := w.WriteHeader(h); err != nil {
		t.Fatalf("%q: %v", h.Name, err)
	}
	if _, err := io.WriteString(w, body); err != nil {
		t.Fatalf("%q: %v", h.Name, err)
	}
}

func tarOf(t testing.TB, fill func(*tar.Writer)) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	fill(w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func entriesOf(t testing.TB, headers ...tar.Header) []byte {
	return tarOf(t, func(w *tar.Writer) {
		for _, h := range headers {
			putHeader(t, w, &h, strings.Repeat("x", int(h.Size)))
		}
	})
}

// clean holds a state directory to have nothing that a command left unfinished, once the
// next one has started.
func clean(t testing.TB, state string) {
	t.Helper()
	must(t, state, "image", "list")
	for _, sub := range []string{"images", "scratch"} {
		list, err := os.ReadDir(filepath.Join(state, sub))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if sub == "scratch" || filepath.Ext(e.Name()) != ".vdisk" || e.Name()[0] == '.' {
				t.Errorf("%s/%s is left", sub, e.Name())
			}
		}
	}
}

// What is hostile is refused as a whole: no disk is left of it, and the log says why.
func TestImportHostile(t *testing.T) {
	t.Parallel()
	state := newState(t)
	must(t, state, "call", "write_file", `{"path":"a","content":"1"}`)
	before := must(t, state, "image", "show", "--json")
	whole := entriesOf(t, tar.Header{Name: "a", Size: 2000}, tar.Header{Name: "d/b", Size: 10})
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	many := make([]tar.Header, 1001)
	for i := range many {
		many[i].Name = fmt.Sprint("f", i)
	}
	for name, c := range map[string]struct {
		archive []byte
		code    int
		says    string
	}{
		"out":        {entriesOf(t, tar.Header{Name: "a"}, tar.Header{Name: "../../x"}), 4, `"../../x"`},
		"absolute":   {entriesOf(t, tar.Header{Name: "/etc/cron.d/x"}), 4, `"/etc/cron.d/x"`},
		"twice":      {entriesOf(t, tar.Header{Name: "a"}, tar.Header{Name: ".//a"}), 4, "two entries for /workspace/a"},
		"link, file": {entriesOf(t, tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, tar.Header{Name: "a/passwd"}), 4, "is a link"},
		"device":     {entriesOf(t, tar.Header{Name: "sda", Typeflag: tar.TypeBlock}), 4, "device"},
		"FIFO":       {entriesOf(t, tar.Header{Name: "pipe", Typeflag: tar.TypeFifo}), 4, "FIFO"},
		"reserved":   {entriesOf(t, tar.Header{Name: ".logs/x"}), 4, "reserved"},
		"hard link":  {entriesOf(t, tar.Header{Name: "a", Typeflag: tar.TypeLink, Linkname: "/etc/shadow"}), 4, "hard link"},
		"entries":    {entriesOf(t, many...), 4, "1000 entries"},
		"bytes":      {entriesOf(t, tar.Header{Name: "big", Size: 2 << 20}), 4, "1048576 bytes"},
		"bomb":       {z.EncodeAll(entriesOf(t, tar.Header{Name: "big", Size: 100 << 20}), nil), 4, "1048576 bytes"},
		"cut off":    {whole[:1536], 10, "cut off"},
		"cut at end": {whole[:len(whole)-1024], 10, "cut off"},
		"cut zstd":   {z.EncodeAll(whole, nil)[:60], 10, "cut off"},
		"text":       {[]byte(strings.Repeat("text\n", 1000)), 10, "tar"},
		"nothing":    {nil, 10, "empty"},
	} {
		file := filepath.Join(filepath.Dir(state), strings.ReplaceAll(name, " ", "-"))
		if err := os.WriteFile(file, c.archive, 0o644); err != nil {
			t.Fatal(err)
		}
		out := command(t, state, "image", "import", file, "hostile", "--quota", "1MiB", "--entries", "1000")
		if out.code != c.code || !strings.Contains(out.stderr, c.says) || out.stdout != "" || !strings.Contains(out.stderr, "hint: ") {
			t.Errorf("%s: exit %d, want %d and %q\n%s%s", name, out.code, c.code, c.says, out.stdout, out.stderr)
		}
		refused := slices.IndexFunc(logged(t, state, "ev=image.import"), func(r record) bool {
			return r.Args["source"] == file && r.Reason != "" && strings.Contains(r.line, `"ok":false`)
		})
		if refused < 0 {
			t.Errorf("%s: its refusal is not in the log", name)
		}
	}
	quiet(t, state)
	clean(t, state)
	if list := must(t, state, "image", "list"); strings.Contains(list, "hostile") || strings.Count(list, "\n") != 1 {
		t.Errorf("the disks are now\n%s", list)
	}
	if after := must(t, state, "image", "show", "--json"); after != before {
		t.Errorf("the other disk is now %s", after)
	}
}

// A disk of another state directory keeps its uuid, and its first change here takes it on.
func TestImportFromElsewhere(t *testing.T) {
	t.Parallel()
	first, second := daemonState(t), daemonState(t)
	for range 3 {
		must(t, first, "call", "write_file", `{"path":"a","content":"1"}`)
		must(t, first, "call", "write_file", `{"path":"a","content":"2"}`)
	}
	must(t, first, "image", "checkpoint", "good")
	file := filepath.Join(filepath.Dir(first), "x.vdisk")
	sent := movedBy(t, must(t, first, "image", "export", file, "--json"))
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	got := movedBy(t, viaDaemon(t, second, "image", "import", file, "came", "--json").stdout)
	if got.UUID != sent.UUID || got.Content != sent.Content || got.Version != sent.Version || got.Was != "" {
		t.Errorf("sent %+v, got %+v", sent, got)
	}
	if out := viaDaemon(t, second, "image", "fsck", "came", "--cross"); out.code != 0 || !strings.Contains(out.stdout, "commits in no record") {
		t.Errorf("fsck: exit %d\n%s", out.code, out.stdout)
	}
	if list := logged(t, second, "ev=lease.adopt"); len(list) != 0 {
		t.Errorf("it was taken on before it was changed: %v", list)
	}
	for _, text := range []string{"3", "4"} {
		if out := viaDaemon(t, second, "call", "--image", "came", "write_file", `{"path":"b","content":"`+text+`"}`); out.code != 0 {
			t.Fatal(out.stdout)
		}
	}
	list := logged(t, second, "ev=lease.adopt")
	if len(list) != 1 || list[0].Fence == 0 || list[0].Args["version"] != sent.Version {
		t.Errorf("the log has %v", list)
	}
	healthy(t, second, "came")
}

// An older copy of a disk that was removed can be read; whether it counts is for a person
// to decide, as when it was put back by hand.
func TestImportOfAnOlderCopy(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	token := operatorToken(t, state)
	file := filepath.Join(filepath.Dir(state), "x.vdisk")
	must(t, state, "image", "create", "d")
	for i := range 4 {
		if out := viaDaemon(t, state, "call", "--image", "d", "write_file", fmt.Sprintf(`{"path":"a","content":"%d"}`, i)); out.code != 0 {
			t.Fatal(out.stdout)
		}
		if i == 1 {
			if out := viaDaemon(t, state, "image", "export", file, "--image", "d"); out.code != 0 {
				t.Fatal(out.stderr)
			}
		}
	}
	stopDaemon(t, state)
	if err := os.Remove(filepath.Join(state, "images", "d.vdisk")); err != nil {
		t.Fatal(err)
	}
	out := viaDaemon(t, state, "image", "import", file, "d2")
	if out.code != 0 || !strings.Contains(out.stderr, "lease adopt d2 --why REASON") {
		t.Errorf("exit %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	change := func() output {
		return viaDaemon(t, state, "call", "--image", "d2", "write_file", `{"path":"b","content":"5"}`)
	}
	if out := change(); out.code != 5 || !strings.Contains(out.stdout, "FENCED") {
		t.Errorf("exit %d\n%s", out.code, out.stdout)
	}
	if out := viaDaemon(t, state, "lease", "adopt", "d2", "--why", "the export", "--operator-token", token); out.code != 0 {
		t.Errorf("adopt: exit %d %s", out.code, out.stderr)
	}
	if out := change(); out.code != 0 {
		t.Error(out.stdout)
	}
	healthy(t, state, "d2")
}

// What is damaged anywhere is refused; what is let in is the disk that it was.
func TestImportDamaged(t *testing.T) {
	t.Parallel()
	state := newState(t)
	dir := filepath.Dir(state)
	source := rand.NewChaCha8([32]byte{8})
	if err := os.Mkdir(filepath.Join(dir, "src"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		body := make([]byte, 4000)
		source.Read(body)
		if err := os.WriteFile(filepath.Join(dir, "src", fmt.Sprint(i)), body, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	must(t, state, "image", "import", filepath.Join(dir, "src"), "one")
	must(t, state, "image", "rm", "3", "--image", "one")
	file := filepath.Join(dir, "x.vdisk")
	sent := movedBy(t, must(t, state, "image", "export", file, "--image", "one", "--json"))
	whole := []byte(readFile(t, file))
	if len(whole)%4096 != 0 {
		t.Fatalf("a file of %d bytes", len(whole))
	}
	type damage struct {
		what string
		b    []byte
		must bool // be refused
	}
	var list []damage
	for at := 0; at < len(whole); at += 4096 * max(len(whole)/4096/12, 1) {
		list = append(list, damage{fmt.Sprintf("cut at %d", at), whole[:at], true})
	}
	list = append(list, damage{"cut by a byte", whole[:len(whole)-1], true}, damage{"a page more", append(bytes.Clone(whole), make([]byte, 4096)...), false})
	rnd := rand.New(rand.NewPCG(8, 8))
	for range rounds(600) {
		b := bytes.Clone(whole)
		at := rnd.IntN(len(b))
		b[at] ^= 1 << rnd.IntN(8)
		list = append(list, damage{fmt.Sprintf("bit of byte %d", at), b, false})
	}
	refused := 0
	for i, d := range list {
		if err := os.WriteFile(file, d.b, 0o644); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint("n", i)
		out := command(t, state, "image", "import", file, name, "--json")
		switch {
		case out.code == 10:
			refused++
			if _, err := os.Stat(filepath.Join(state, "images", name+".vdisk")); err == nil {
				t.Errorf("%s: refused, and a disk is left", d.what)
			}
		case out.code != 0 || d.must:
			t.Errorf("%s: exit %d\n%s", d.what, out.code, out.stderr)
		default:
			if m := movedBy(t, out.stdout); m.Content != sent.Content {
				t.Errorf("%s: another disk was let in: %+v", d.what, m)
			}
		}
	}
	t.Logf("%d of %d damaged files refused", refused, len(list))
	if refused < len(list)/2 {
		t.Errorf("only %d of %d were refused", refused, len(list))
	}
	clean(t, state)
}

// A path that no disk can have is refused, however well it is made.
func TestImportForged(t *testing.T) {
	t.Parallel()
	state := newState(t)
	file := filepath.Join(filepath.Dir(state), "x.vdisk")
	must(t, state, "call", "write_file", `{"path":"aa/x","content":"1"}`)
	for name, forged := range map[string]string{"up": "..\x00x", "slash": "aa/../../x", "dot": ".\x00x", "reserved": ".system"} {
		must(t, state, "image", "export", file, "--force")
		db, err := bolt.Open(file, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = db.Update(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte("tree"))
			value := bytes.Clone(b.Get([]byte("aa\x00x")))
			value = value[:len(value)-4]
			table := crc32.MakeTable(crc32.Castagnoli)
			return b.Put([]byte(forged), binary.LittleEndian.AppendUint32(value, crc32.Update(crc32.Checksum([]byte(forged), table), table, value)))
		})
		if err != nil {
			t.Fatal(err)
		}
		db.Close()
		if out := command(t, state, "image", "import", file, "forged"); out.code != 10 || !strings.Contains(out.stderr, "is damaged") {
			t.Errorf("%s: exit %d\n%s", name, out.code, out.stderr)
		}
	}
	clean(t, state)
}

// Control-C, and a front or back that is killed, leave no disk and no file.
func TestMoveInterrupted(t *testing.T) {
	t.Parallel()
	state := newState(t)
	dir := filepath.Dir(state)
	must(t, state, "call", "run_script", `{"language":"bash","source":"head -c 30000000 /dev/urandom > big"}`)
	head := entriesOf(t, tar.Header{Name: "a", Size: 3 << 20})
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		cmd := exec.Command(program, "--state", state, "image", "import", "-", "half")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		in.Write(head[:2<<20])
		within(t, patience, "the disk is being made", func() bool {
			list, _ := filepath.Glob(filepath.Join(state, "images", ".vdisk-new-*"))
			return len(list) > 0
		})
		cmd.Process.Signal(sig)
		cmd.Wait()
		in.Close()
		if code := cmd.ProcessState.ExitCode(); sig != syscall.SIGKILL && code != 130 {
			t.Errorf("import, %v: exit %d", sig, code)
		}
		within(t, patience, "the state is free again", func() bool { return command(t, state, "image", "list").code == 0 })
		clean(t, state)

		cmd = exec.Command(program, "--state", state, "image", "export", filepath.Join(dir, "half.tar.zst"))
		var said strings.Builder
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		within(t, patience, "it is being recorded", func() bool { return cmd.Process.Signal(syscall.Signal(0)) == nil && holdsLock(state) })
		cmd.Process.Signal(sig)
		cmd.Wait()
		left, err := filepath.Glob(filepath.Join(dir, "half*"))
		if cmd.ProcessState.ExitCode() != 0 && (err != nil || len(left) > 0) {
			t.Errorf("export, %v: %v is left, %v", sig, left, err)
		}
		for _, name := range left { // it was ready before
			os.Remove(name)
		}
		within(t, patience, "the state is free again", func() bool { return command(t, state, "image", "list").code == 0 })
		clean(t, state)
	}
	must(t, state, "audit", "verify")
}

// holdsLock says whether some process has the state directory.
func holdsLock(state string) bool {
	f, err := os.Open(filepath.Join(state, "daemon.lock"))
	if err != nil {
		return false
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil
}

// A disk is forked and exported while a session writes to it and a script runs.
func TestForkWhileInUse(t *testing.T) {
	t.Parallel()
	state := daemonState(t)
	s := shared(t, state)
	s.hello()
	s.ok("write_file", write("a", "1"))
	s.askCall("run_script", object{"language": "bash", "source": "echo begun > b; sleep 120"})
	stop := make(chan struct{})
	done := make(chan int)
	other := shared(t, state)
	other.hello()
	go func() {
		n := 0
		for ; ; n++ {
			select {
			case <-stop:
				done <- n
				return
			default:
				other.ok("write_file", write(fmt.Sprint("w", n%20), fmt.Sprint(n)))
			}
		}
	}()
	var forks []moved
	for i := range 5 {
		out := viaDaemon(t, state, "image", "fork", fmt.Sprint("f", i), "--json")
		if out.code != 0 {
			t.Fatal(out.stderr)
		}
		forks = append(forks, movedBy(t, out.stdout))
		file := filepath.Join(filepath.Dir(state), fmt.Sprint("x", i, ".tar.zst"))
		at := viaDaemon(t, state, "image", "export", file, "--at", forks[i].Version, "--json")
		if m := movedBy(t, at.stdout); m.Content != forks[i].Content {
			t.Errorf("fork %+v, and the archive of that version %+v", forks[i], m)
		}
	}
	close(stop)
	if n := <-done; n == 0 {
		t.Error("nothing was written meanwhile")
	}
	for i, f := range forks {
		if i > 0 && f.UUID == forks[i-1].UUID {
			t.Error("two forks have one uuid")
		}
		if out := viaDaemon(t, state, "call", "--image", fmt.Sprint("f", i), "write_file", `{"path":"a","content":"of the fork"}`); out.code != 0 {
			t.Error(out.stdout)
		}
	}
	healthy(t, state, "f0", "f4", "default")
	if out := viaDaemon(t, state, "image", "cat", "a"); out.stdout != "1" {
		t.Errorf("the other has %q", out.stdout)
	}
}

// A fork has the packages of what it is made of.
func TestForkWithPackages(t *testing.T) {
	t.Parallel()
	e, token := operated(t)
	asked := e.ask("work", `["tablekit"]`)
	e.must("env", "approve", asked.ID, "--lock", asked.Lock, "--operator-token", token)
	f := movedBy(t, e.must("image", "fork", "attempt", "--image", "work", "--json").stdout)
	if len(f.Layers) != 1 {
		t.Errorf("%+v", f)
	}
	for _, disk := range []string{"work", "attempt"} {
		if out := e.importsOn(disk, "tablekit"); !strings.Contains(out.stdout, "stdout:\n1.0\n") {
			t.Errorf("%s: %s", disk, out.stdout)
		}
	}
	e.must("env", "status", "--image", "attempt").says(t, f.Layers[0], "bound     revision 1")
	bound := false
	for line := range strings.Lines(e.must("audit", "query", "ev=env.bind", "--image", "attempt", "-o", "ndjson").stdout) {
		bound = bound || strings.Contains(line, f.Layers[0]) && strings.Contains(line, f.UUID)
	}
	if !bound {
		t.Error("the binding is not in the log of the fork")
	}
	e.must("env", "gc", "--older", "0s")
	if out := e.importsOn("attempt", "tablekit"); !strings.Contains(out.stdout, "stdout:\n1.0\n") {
		t.Errorf("after a collection: %s", out.stdout)
	}
	plain := movedBy(t, e.must("image", "fork", "plain", "--image", "other", "--json").stdout)
	if len(plain.Layers) != 0 {
		t.Errorf("%+v", plain)
	}
}

// Files that an export makes belong to the caller, who may be no root; a folder that only
// the caller can read is imported by them.
func TestMoveAsOrdinaryUser(t *testing.T) {
	t.Parallel()
	const uid = 60741
	state := ownState(t, "state", uid)
	dir := filepath.Join(filepath.Dir(state), "home")
	if err := os.MkdirAll(filepath.Join(dir, "private"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "private", "a"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if isRoot() {
		for _, name := range []string{dir, filepath.Join(dir, "private"), filepath.Join(dir, "private", "a")} {
			if err := os.Chown(name, uid, uid); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, daemon := range []bool{false, true} {
		run := func(args ...string) output {
			cmd := as(uid, frontOf(state, args...))
			if !daemon {
				cmd = as(uid, exec.Command(program, append([]string{"--state", state, "--no-daemon"}, args...)...))
			}
			cmd.Dir = dir
			return outputOf(t, cmd)
		}
		n := fmt.Sprint(daemon)
		for _, args := range [][]string{{"import", "private", "d" + n}, {"export", "x" + n + ".vdisk", "--image", "d" + n}, {"import", "x" + n + ".vdisk", "e" + n}, {"fork", "f" + n, "--image", "d" + n}, {"export", "x" + n + ".tar.zst", "--image", "f" + n}} {
			if out := run(append([]string{"image"}, args...)...); out.code != 0 {
				t.Errorf("%v: exit %d\n%s%s", args, out.code, out.stdout, out.stderr)
			}
		}
		for _, name := range []string{"x" + n + ".vdisk", "x" + n + ".tar.zst"} {
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || isRoot() && ownerOf(info) != uid || info.Mode() != 0o600 {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
	}
	if out := outputOf(t, as(uid, frontOf(state, "daemon", "stop", "--force"))); out.code != 0 {
		t.Errorf("daemon stop: exit %d\n%s", out.code, out.stderr)
	}
}
