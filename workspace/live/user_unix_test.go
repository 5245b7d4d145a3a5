//go:build unix

package live

import (
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
	asOrdinaryUser(t, "TestSyncEveryKindOfChange|TestRepair|TestRandomCommits|TestDrop")
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
