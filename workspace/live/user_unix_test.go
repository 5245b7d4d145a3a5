//go:build unix

package live

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// Modes narrow nothing for root, so as root this runs the tests of modes once
// more as an ordinary user.
func TestAsOrdinaryUser(t *testing.T) {
	asOrdinaryUser(t, "TestEveryKindOfChange|TestRepair|TestRandomCommits|TestDrop|TestPinnedStaysAsItIs|TestClosedDirectoriesOfAPinnedGeneration|TestCheck.*|TestSweep|TestSize")
}

// A fifo that somebody made in a generation is not waited for.
func TestFifo(t *testing.T) {
	p := newPair(t)
	p.commit(t, file("a", "x"))
	g := p.pin(t)
	if err := syscall.Mkfifo(filepath.Join(g.Dir(), "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.commit(t, file("a", "y"))
	p.sync(t) // made anew, not by links
	h := p.pin(t)
	if err := errors.Join(os.Remove(filepath.Join(h.Dir(), "a")), syscall.Mkfifo(filepath.Join(h.Dir(), "a"), 0o644)); err != nil {
		t.Fatal(err)
	}
	h.Release()
	p.wantDrift(t, true, "/workspace/a is of another kind")
	p.sync(t)
}

// ordinaryUser is a user id that nothing on the host belongs to.
const ordinaryUser = 60701

// asOrdinaryUser runs other tests of this binary in a process without
// privileges. When the tests do not run as root they are such a process.
func asOrdinaryUser(t *testing.T, tests string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: the other tests have covered it")
	}
	dir := t.TempDir()
	for d := dir; len(d) > len(os.TempDir()); d = filepath.Dir(d) {
		if err := os.Chown(d, ordinaryUser, ordinaryUser); err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(dir, "live.test")
	copyFile(t, os.Args[0], binary)
	cmd := exec.Command(binary, "-test.run", "^("+tests+")$", "-test.timeout", "60s")
	cmd.Dir = dir
	cmd.Env = []string{"TMPDIR=" + dir, "HOME=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinaryUser, Gid: ordinaryUser}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}
