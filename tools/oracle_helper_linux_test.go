package tools

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// twin is a disk and a plain directory of the host on which the same scripts
// are run: on the disk by run_script, in the directory by bash, both as the
// user of the tests. The directory is the oracle: whatever it holds afterwards
// the disk has to hold.
type twin struct {
	*disk
	native string
}

func newTwin(t testing.TB) *twin {
	t.Helper()
	if _, err := os.Stat(lister[0]); err != nil {
		t.Skipf("SKIP no %s on this host", lister[0])
	}
	w := &twin{disk: newScripted(t), native: t.TempDir()}
	t.Cleanup(func() { // or what is of mode 000 cannot be removed, here and in the live view
		_ = exec.Command("/bin/chmod", "-R", "u+rwx", filepath.Dir(w.native)).Run()
	})
	return w
}

// prologue is in front of every script.
const prologue = "umask 022; unset BASH_ENV\n"

// both runs a script on both sides, compares what they hold then, and lets a
// second script compare what it sees of the disk. The result is that of the
// first one.
func (w *twin) both(script string) Result {
	w.t.Helper()
	began := time.Now()
	r := w.tool("bash", prologue+script, "always")
	code, output := w.natively(prologue + script)
	if r.Facts["exit_code"] != code {
		w.t.Fatalf("exit %v, natively %d: %s\nnatively: %s", r.Facts["exit_code"], code, r, output)
	}
	held := w.held()
	for _, line := range differences(held, w.nativeState(), began, time.Now()) {
		w.t.Errorf("%s", line)
	}
	w.mustShow(held)
	if w.t.Failed() {
		w.t.Fatalf("after the script\n%s\nresult: %.300s", script, r)
	}
	return r
}

func (w *twin) tool(language, source, commit string) Result {
	w.t.Helper()
	r := w.Call(w.t.Context(), "run_script", rawJSON(w.t, args{"language": language, "source": source, "commit": commit}))
	if !r.OK() {
		w.t.Fatalf("run_script %s: %s", source, r)
	}
	return r
}

// natively runs a script in the directory, with the environment of a sandbox.
func (w *twin) natively(script string) (code int, output []byte) {
	w.t.Helper()
	home := w.t.TempDir()
	source := filepath.Join(home, "source.sh")
	if err := os.WriteFile(source, []byte(script), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return w.command("/bin/bash", "--noprofile", "--norc", source)
}

func (w *twin) command(argv ...string) (code int, stdout []byte) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = time.Second
	cmd.Dir = w.native
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + w.t.TempDir(), "TMPDIR=" + w.t.TempDir(), "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1"}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	if errs.Len() > 0 {
		w.t.Logf("natively: %s", &errs)
	}
	return cmd.ProcessState.ExitCode(), out.Bytes()
}

// seen is what is compared of one path. The time is that of files only: an
// overlay and a commit set those of directories and links.
type seen struct {
	kind       string // "f", "d", "l", and "x" for what no disk holds
	mode       uint32
	size, time int64
	text       string // SHA-256 of a file, target of a link in hex; else "-"
}

type state map[string]seen

// lines is the state as lister prints it.
func (s state) lines() string {
	list := make([]string, 0, len(s))
	for path, e := range s {
		list = append(list, fmt.Sprintf("%x %s %o %d %d %s\n", path, e.kind, e.mode, e.size, e.time, e.text))
	}
	slices.Sort(list)
	return strings.Join(list, "")
}

func parseState(t testing.TB, lines string) state {
	t.Helper()
	s := state{}
	for line := range strings.Lines(lines) {
		var path []byte
		var e seen
		if _, err := fmt.Sscanf(line, "%x %s %o %d %d %s", &path, &e.kind, &e.mode, &e.size, &e.time, &e.text); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		s[string(path)] = e
	}
	return s
}

// lister prints a line for everything below the directory that it runs in, or,
// given "sum", the SHA-256 of all that. What its owner cannot read it opens for
// a moment.
var lister = []string{"/usr/bin/python3", `
import hashlib, os, stat, sys
lines = []
def digest(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while b := f.read(1 << 20): h.update(b)
    return h.hexdigest()
def opened(path, st, bits, f):
    if st.st_mode & bits == bits: return f(path)
    os.chmod(path, stat.S_IMODE(st.st_mode) | bits)
    r = f(path)
    os.chmod(path, stat.S_IMODE(st.st_mode))
    return r
def inside(path):
    for name in os.listdir(path): look(name if path == b"." else path + b"/" + name)
def look(path):
    st = os.lstat(path)
    kind, size, time, text = "x", 0, 0, "-"
    if stat.S_ISREG(st.st_mode): kind, size, time, text = "f", st.st_size, st.st_mtime_ns, opened(path, st, 0o400, digest)
    if stat.S_ISLNK(st.st_mode): kind, size, text = "l", st.st_size, os.readlink(path).hex()
    if stat.S_ISDIR(st.st_mode): kind = "d"
    lines.append(f"{path.hex()} {kind} {st.st_mode & 0o777:o} {size} {time} {text}\n")
    if kind == "d": opened(path, st, 0o700, inside)
inside(b".")
text = "".join(sorted(lines))
print(hashlib.sha256(text.encode()).hexdigest() if sys.argv[1] == "sum" else text, end="")
`}

func (w *twin) nativeState() state {
	w.t.Helper()
	code, out := w.command(lister[0], "-c", lister[1], "all")
	if code != 0 {
		w.t.Fatalf("the lister ended with %d", code)
	}
	return parseState(w.t, string(out))
}

// held is what the image holds, with every content read.
func (w *twin) held() state {
	w.t.Helper()
	s := state{}
	err := w.im.Walk(context.Background(), workspace.Path{}, func(e workspace.Entry) error {
		got := seen{kind: string(e.Node.Kind), mode: e.Node.Mode, size: e.Node.Size, text: "-"}
		switch e.Node.Kind {
		case workspace.KindSymlink:
			got.text = fmt.Sprintf("%x", e.Node.Target)
		case workspace.KindFile:
			f, err := w.im.OpenNode(e.Path, e.Node)
			if err != nil {
				return err
			}
			sum := sha256.New()
			n, err := io.Copy(sum, f.Reader())
			if err != nil || n != e.Node.Size || [32]byte(sum.Sum(nil)) != e.Node.SHA256 {
				return fmt.Errorf("%s: %d bytes with another hash than its node has: %w", e.Path, n, err)
			}
			got.time, got.text = e.Node.ModTime.UnixNano(), fmt.Sprintf("%x", e.Node.SHA256)
		}
		s[e.Path.Rel()] = got
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// clockStep is more than the clock of a file system lags behind.
const clockStep = 50 * time.Millisecond

// differences compares a disk with the oracle. A time that was set, or kept,
// lies outside of the run and has to be equal; one that the run made only has
// to be no older than it.
func differences(got, want state, began, ended time.Time) (lines []string) {
	from, to := began.Add(-clockStep).UnixNano(), ended.Add(clockStep).UnixNano()
	for path, n := range want {
		g, there := got[path]
		switch {
		case n.kind == "x":
			if there {
				lines = append(lines, fmt.Sprintf("%q: a disk cannot hold this: %+v", path, g))
			}
			continue
		case !there:
			lines = append(lines, fmt.Sprintf("%q: is not on the disk, natively %+v", path, n))
			continue
		}
		if n.time >= from && n.time <= to && g.time >= from && g.time <= to {
			g.time = n.time
		}
		if g != n {
			lines = append(lines, fmt.Sprintf("%q: %+v, natively %+v", path, g, n))
		}
	}
	for path := range got {
		if _, there := want[path]; !there {
			lines = append(lines, fmt.Sprintf("%q: is on the disk, natively not", path))
		}
	}
	slices.Sort(lines)
	return lines[:min(len(lines), 20)]
}

// mustShow fails unless a script sees exactly what the image holds, times
// included. It saves nothing.
func (w *twin) mustShow(held state) {
	w.t.Helper()
	r := w.list("sum", "never")
	if strings.Contains(r.String(), fmt.Sprintf("%x", sha256.Sum256([]byte(held.lines())))) {
		return
	}
	w.t.Errorf("a second script sees something else than the image holds: %s", r)
	const file = "what-a-script-sees"
	w.list("all", "always", `>`+file)
	shown := parseState(w.t, w.content(file))
	delete(shown, file)
	for _, line := range differences(shown, held, time.Now(), time.Now()) {
		w.t.Errorf("shown: %s", line)
	}
}

// list runs the lister on the disk.
func (w *twin) list(what, commit string, more ...string) Result {
	w.t.Helper()
	r := w.tool("bash", fmt.Sprintf("%s -c '%s' %s %s", lister[0], lister[1], what, strings.Join(more, " ")), commit)
	if r.Facts["exit_code"] != 0 {
		w.t.Fatalf("the lister failed: %s", r)
	}
	return r
}

// forgive makes the directory the same as the disk also in what both does not
// compare, so that a further script starts from the same: a hard link is a file
// of its own, what no disk holds is gone, setuid bits and the like too, and
// files have the times of the disk.
func (w *twin) forgive() {
	w.t.Helper()
	copied := w.native + ".copy"
	for _, argv := range [][]string{
		{"/usr/bin/find", w.native, "-type", "p", "-delete"},
		{"/bin/chmod", "-R", "ug-s,-t", w.native},
		{"/bin/cp", "-a", "--no-preserve=links", w.native, copied},
		{"/bin/rm", "-rf", w.native},
		{"/bin/mv", copied, w.native},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			w.t.Fatalf("%v: %s", err, out)
		}
	}
	for path, e := range w.held() {
		if e.kind == "f" {
			at := time.Unix(0, e.time)
			if err := os.Chtimes(filepath.Join(w.native, path), at, at); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}
