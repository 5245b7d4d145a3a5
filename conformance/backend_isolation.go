package conformance

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// isolationRules are about what commands see and reach.
func isolationRules() []backendRule {
	return []backendRule{
		required("env.scrubbed", "nothing of the environment of this process reaches a command", "env_scrub",
			func(c caps) bool { return c.EnvScrub }, checkEnvScrubbed),
		required("env.given", "the environment of the spec reaches a command as it is", "", nil, checkEnvGiven),
		required("fs.read_only_enforced", "a read-only workspace can be read, and not be changed in any way", "read_only_enforced",
			func(c caps) bool { return c.ReadOnlyEnforced }, checkReadOnly),
		required("fs.source_untouched", "the directory that a workspace begins with is never written", "", nil, checkSourceUntouched),
		required("fs.host_invisible", "a file of the host cannot be read by any name", "filesystem_isolation", hidesHost, checkHostInvisible),
		required("fs.handles_apart", "two handles share no file", "filesystem_isolation", hidesHost, checkFilesApart),
		required("proc.handles_apart", "a command sees no process of another handle", "filesystem_isolation", hidesHost, checkProcessesApart),
		required("net.host_unreachable", "a listener of the host on 127.0.0.1 is not reached", "network_control",
			func(c caps) bool { return c.NetworkControl == sandboxrun.NetworkEnforced }, checkHostUnreachable),
	}
}

func checkEnvScrubbed(t *trial) {
	name, secret := strings.ReplaceAll(newMark(), "-", "_"), newMark()
	t.must(os.Setenv(name, secret))
	t.cleanup = append(t.cleanup, func() { _ = os.Unsetenv(name) })
	h := t.create(func(s *sandboxrun.Spec) { s.Env = map[string]string{"CONFORM_CONTROL": "control"} })
	out := t.ok(h, `env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\000' '\n'; exit 0`)
	if !strings.Contains(out, "PATH=") {
		t.broken("control: a command does not show its environment: %q", out)
	}
	if strings.Contains(out, name) || strings.Contains(out, secret) {
		t.fail("a variable of this process is there")
	}
	for _, kv := range os.Environ() {
		// A short value can be there by chance.
		if k, v, _ := strings.Cut(kv, "="); len(v) >= 16 && k != "PATH" && strings.Contains(out, k+"="+v) {
			t.fail("the variable %s of this process is there", k)
		}
	}
}

func checkEnvGiven(t *trial) {
	want := map[string]string{"CONFORM_A": "plain", "CONFORM_B": "two words=$HOME `x` 'q'\nand a line \xff", "CONFORM_C": ""}
	h := t.create(func(s *sandboxrun.Spec) { s.Env = want })
	if out := t.ok(t.create(nil), `printf %s "${CONFORM_A-unset}"`); out != "unset" {
		t.broken("control: without the spec the variable is %q", out)
	}
	out := t.ok(h, `printf '%s|%s|%s' "$CONFORM_A" "$CONFORM_B" "${CONFORM_C-unset}"`)
	if expect := want["CONFORM_A"] + "|" + want["CONFORM_B"] + "|"; out != expect {
		t.fail("expected %q, got %q", expect, out)
	}
}

// changeAll tries every way to change a workspace and prints those that work.
const changeAll = `try() { if (eval "$2") >/dev/null 2>&1; then echo "$1"; fi; }
try create 'echo x >new'
try append 'echo x >>old'
try truncate ': >cut'
try mkdir 'mkdir made'
try rename 'mv from to'
try chmod 'chmod 600 old'
try link 'ln old hard'
try symlink 'ln -s old soft'
try touch 'touch -t 200001010000 old'
try remove 'rm gone'
try below 'echo x >dir/new'
`

const changes = "create append truncate mkdir rename chmod link symlink touch remove below"

func checkReadOnly(t *trial) {
	source := t.source()
	before := snapshot(t, source)
	rw := t.create(func(s *sandboxrun.Spec) { s.Workspace = source })
	if got := strings.Join(strings.Fields(t.ok(rw, changeAll)), " "); got != changes {
		t.broken("control: in a workspace that may be written only these work: %q", got)
	}
	ro := t.create(func(s *sandboxrun.Spec) { s.Workspace, s.ReadOnly = source, true })
	if out := t.ok(ro, `cat old`); out != "old\n" {
		t.broken("control: a file of the workspace is %q", out)
	}
	if got := strings.Fields(t.ok(ro, changeAll)); len(got) > 0 {
		t.fail("these work: %q", got)
	}
	if snapshot(t, source) != before {
		t.fail("the directory of the host was changed")
	}
}

func checkSourceUntouched(t *trial) {
	source := t.source()
	before := snapshot(t, source)
	h := t.create(func(s *sandboxrun.Spec) { s.Workspace = source })
	if out := t.ok(h, `cat old dir/deep; echo more >>old; rm -r dir gone; echo x >planted; cat old; ls`); out != "old\ndeep\nold\nmore\ncut\nfrom\nold\nplanted\n" {
		t.broken("control: the command saw %q", out)
	}
	if after := snapshot(t, source); after != before {
		t.fail("before: %s, after: %s", before, after)
	}
}

// source makes a directory with a few files.
func (t *trial) source() string {
	dir := t.tempDir()
	t.must(os.Mkdir(filepath.Join(dir, "dir"), 0o755))
	for _, name := range []string{"old", "gone", "from", "cut", "dir/deep"} {
		t.must(os.WriteFile(filepath.Join(dir, name), []byte(filepath.Base(name)+"\n"), 0o644))
	}
	return dir
}

// snapshot describes a directory of the host.
func snapshot(t *trial, dir string) string {
	var b strings.Builder
	t.must(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil || path == dir {
			return err
		}
		fmt.Fprintf(&b, "%s %s", strings.TrimPrefix(path, dir), info.Mode())
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			fmt.Fprintf(&b, " %d %q", info.ModTime().UnixNano(), content)
			return err
		}
		return nil
	}))
	return b.String()
}

func checkHostInvisible(t *trial) {
	secret := newMark()
	path := filepath.Join(t.tempDir(), "secret")
	t.must(os.WriteFile(path, []byte(secret), 0o644))
	h := t.create(nil)
	out := t.ok(h, `for root in '' /proc/self/root /proc/1/root /proc/1/cwd ../../../../../..; do cat "$root$1" 2>/dev/null; done
ln -s "$1" direct; ln -s / root; cat direct "root$1" 2>/dev/null; echo own >own; cat own`, path)
	if !strings.HasSuffix(out, "own\n") {
		t.broken("control: a command does not read its own file: %q", out)
	}
	if strings.Contains(out, secret) {
		t.fail("a file of the host was read")
	}
}

// beside runs a script while another handle holds a file of the given mark in
// each place that can be written, and a process with the mark.
func (t *trial) beside(mark, script string) string {
	a, b := t.create(nil), t.create(nil)
	in := newGate("")
	t.cleanup = append(t.cleanup, in.let)
	const hold = `: >"./$1"; : >"/tmp/$1" 2>/dev/null; : >"/dev/shm/$1" 2>/dev/null; ls . /tmp; cat /proc/[0-9]*/cmdline | tr '\000' '\n'; read -r _; rm -f "/tmp/$1" "/dev/shm/$1"`
	p := t.start(t.ctx, a, sandboxrun.Request{Argv: shell(hold, mark), Stdin: in})
	if !t.within(func() bool { return living(mark) > 0 }) {
		t.unseen()
	}
	t.started(p, in.asked)
	out := t.ok(b, script)
	in.let()
	t.join(p)
	if p.err != nil || strings.Count(string(p.res.Stdout.Text), mark) < 2 {
		t.broken("control: the other handle does not see its own: %s, error %v", ending(p.res), p.err)
	}
	return out
}

func checkFilesApart(t *trial) {
	mark := t.observer()
	if out := t.beside(mark, `ls -A . /tmp /dev/shm 2>/dev/null; exit 0`); strings.Contains(out, mark) {
		t.fail("a file of another handle is there: %q", out)
	}
}

func checkProcessesApart(t *trial) {
	mark := t.observer()
	if out := t.beside(mark, `cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\000' '\n'; exit 0`); strings.Contains(out, mark) {
		t.fail("a process of another handle is there")
	}
}

func checkHostUnreachable(t *trial) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.unsupported("this process cannot listen on 127.0.0.1: %v", err)
	}
	var reached atomic.Int64
	accepting := make(chan struct{})
	t.cleanup = append(t.cleanup, func() { l.Close(); <-accepting })
	go func() {
		defer close(accepting)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			reached.Add(1)
			c.Close()
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	t.must(err)
	c.Close()
	if !t.within(func() bool { return reached.Load() == 1 }) {
		t.broken("control: the listener does not see who reaches it")
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	t.must(err)
	res := t.sh(t.create(nil), `bash -c 'echo trying; if (exec 3<>"/dev/tcp/127.0.0.1/$0") 2>/dev/null; then echo connected; else echo refused; fi' "$1"`, port)
	switch out := string(res.Stdout.Text); {
	case out == "trying\nconnected\n" || reached.Load() > 1:
		t.fail("the listener of the host was reached")
	case out != "trying\nrefused\n":
		t.unsupported("the sandbox has no bash to try it with: %s", ending(res))
	}
}
