//go:build unix

package workspace

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// openEnv makes the test binary another process that has an image: its value
// is "read,path" or "write,path". It says on stdout how that went, uses the
// image, and keeps it open until its stdin ends.
const openEnv = "MCP_VDISK_OPEN"

func init() { roles[openEnv] = openProcess }

func openProcess(arg string) int {
	how, path, _ := strings.Cut(arg, ",")
	im, err := Open(path, OpenOptions{ReadOnly: how == "read"})
	if err != nil {
		fmt.Println(kindName(err), err)
		return 0
	}
	if err := readEverything(im); err != nil {
		fmt.Println("cannot be read:", err)
		return 0
	}
	fmt.Println("open")
	io.Copy(io.Discard, os.Stdin)
	if err := im.Close(); err != nil {
		fmt.Println("close:", err)
	}
	return 0
}

// kindName stands for a sentinel across processes.
func kindName(err error) string {
	for name, kind := range map[string]error{"LOCKED": ErrLocked, "READ_ONLY": ErrReadOnly, "NOT_IMAGE": ErrNotImage} {
		if errors.Is(err, kind) {
			return name
		}
	}
	return "OTHER"
}

func readEverything(im *Image) error {
	if _, _, err := im.List(Path{}, "", 100); err != nil {
		return err
	}
	err := im.Walk(context.Background(), Path{}, func(e Entry) error {
		if e.Node.Kind != KindFile {
			return nil
		}
		f, err := im.OpenNode(e.Path, e.Node)
		if err != nil {
			return err
		}
		if _, err := f.Lines(1, 10, 1000); err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, f.Reader())
		return err
	})
	if err != nil {
		return err
	}
	if _, err := im.Log(0, 100); err != nil {
		return err
	}
	_, _, err = im.FindCommit("no such call")
	return err
}

// other starts another process with an image and returns what it says first.
func other(t *testing.T, cmd *exec.Cmd, how, path string) (said string) {
	t.Helper()
	cmd.Env = append(os.Environ(), openEnv+"="+how+","+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	said, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("it said %q: %v", said, err)
	}
	return strings.TrimSpace(said)
}

func TestLockBetweenProcesses(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		holder, opener string
		locked         bool
	}{
		{"write", "write", true},
		{"write", "read", true},
		{"read", "write", true},
		{"read", "read", false},
	} {
		t.Run(c.opener+" beside "+c.holder, func(t *testing.T) {
			t.Parallel()
			im, path := newImage(t, CreateOptions{})
			mustDo(t, im, put("a", lines(300)))
			im.Close()
			holder := exec.Command(os.Args[0])
			if said := other(t, holder, c.holder, path); said != "open" {
				t.Fatalf("the holder said %s", said)
			}
			began := time.Now()
			im, err := Open(path, OpenOptions{ReadOnly: c.opener == "read"})
			took := time.Since(began)
			if !c.locked {
				if err != nil {
					t.Fatal(err)
				}
				im.Close()
				return
			}
			wantKind(t, err, ErrLocked)
			if took > 2*time.Second {
				t.Errorf("it took %s", took)
			}
			named := fmt.Sprintf("held by process %d on %s (%s)", holder.Process.Pid, host, filepath.Base(os.Args[0]))
			if hostos.Implementations()["lock holder"] == "/proc/locks" && !strings.HasSuffix(err.Error(), named) {
				t.Errorf("%v: does not say %s", err, named)
			}
			// The lock goes with a holder that is killed.
			if err := holder.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			im, err = Open(path, OpenOptions{ReadOnly: c.opener == "read", Wait: 10 * time.Second})
			if err != nil {
				t.Fatalf("after the holder was killed: %v", err)
			}
			im.Close()
		})
	}
}

// Whatever has the name already is left alone.
func TestCreateTouchesNothing(t *testing.T) {
	for name, make := range map[string]func(p string) error{
		"a file":             func(p string) error { return os.WriteFile(p, []byte("precious"), 0o640) },
		"a directory":        func(p string) error { return os.Mkdir(p, 0o750) },
		"a symlink":          func(p string) error { return errors.Join(os.WriteFile(p+"x", nil, 0o600), os.Symlink(p+"x", p)) },
		"a dangling symlink": func(p string) error { return os.Symlink(p+"x", p) },
		"a FIFO":             func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"a socket":           listen,
		"an image": func(p string) error {
			im, err := Create(p, CreateOptions{})
			if err != nil {
				return err
			}
			return im.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "a")
			if err := make(path); err != nil {
				t.Fatal(err)
			}
			before, names := must(os.Lstat(path)), len(must(os.ReadDir(dir)))
			content, _ := readRegular(path)
			_, err := Create(path, CreateOptions{})
			wantKind(t, err, ErrExists)
			after, now := must(os.Lstat(path)), len(must(os.ReadDir(dir)))
			if !os.SameFile(before, after) || before.Mode() != after.Mode() || before.Size() != after.Size() || !before.ModTime().Equal(after.ModTime()) {
				t.Errorf("it is %v, was %v", after, before)
			}
			if is, _ := readRegular(path); !bytes.Equal(is, content) {
				t.Error("its bytes have changed")
			}
			if now != names {
				t.Errorf("%d names, were %d", now, names)
			}
		})
	}
}

func listen(path string) error {
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	return l.Close()
}

// readRegular reads a file, and nothing else: a FIFO would wait.
func readRegular(path string) ([]byte, error) {
	st, err := os.Lstat(path)
	if err != nil || !st.Mode().IsRegular() {
		return nil, err
	}
	return os.ReadFile(path)
}

// What is no image is said to be none, at once, and stays as it is.
func TestOpenOddFiles(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(p string) error
		kind error
	}{
		{"nothing", func(string) error { return nil }, ErrNotFound},
		{"a dangling symlink", func(p string) error { return os.Symlink(p+"x", p) }, ErrNotFound},
		{"a symlink to itself", func(p string) error { return os.Symlink(p, p) }, errAny},
		{"a directory", func(p string) error { return os.Mkdir(p, 0o700) }, ErrNotImage},
		{"a symlink to a directory", func(p string) error { return os.Symlink(".", p) }, ErrNotImage},
		{"a FIFO", func(p string) error { return syscall.Mkfifo(p, 0o600) }, ErrNotImage},
		{"a socket", listen, ErrNotImage},
		{"a device", func(p string) error { return os.Symlink("/dev/zero", p) }, ErrNotImage},
		{"no bytes", func(p string) error { return os.WriteFile(p, nil, 0o600) }, ErrNotImage},
		{"one byte", func(p string) error { return os.WriteFile(p, []byte("x"), 0o600) }, ErrNotImage},
		{"one page of zeros", func(p string) error { return os.WriteFile(p, make([]byte, pageSize), 0o600) }, ErrNotImage},
		{"a huge hole", func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Truncate(p, 1<<40)) }, ErrNotImage},
		{"text and a huge hole", func(p string) error {
			return errors.Join(os.WriteFile(p, []byte("hello\n"), 0o600), os.Truncate(p, 1<<40))
		}, ErrNotImage},
	} {
		for _, readOnly := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, read-only %v", c.name, readOnly), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "a.vdisk")
				if err := c.make(path); err != nil {
					t.Fatal(err)
				}
				before, _ := os.Lstat(path)
				began := time.Now()
				_, err := Open(path, OpenOptions{ReadOnly: readOnly})
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("it took %s", took)
				}
				if c.kind == errAny {
					if err == nil {
						t.Error("it opens")
					}
					return
				}
				wantKind(t, err, c.kind)
				if strings.Contains(err.Error(), filepath.Dir(path)) {
					t.Errorf("the error names a host path: %v", err)
				}
				after, _ := os.Lstat(path)
				if before != nil && (!os.SameFile(before, after) || before.Size() != after.Size() || !before.ModTime().Equal(after.ModTime())) {
					t.Errorf("it is %v, was %v", after, before)
				}
			})
		}
	}
}

// A descriptor may be of anything, too.
func TestOpenOddDescriptor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(path, OpenOptions{File: f})
	wantKind(t, err, ErrNotImage)
}

// An image is the file, whatever name leads to it: the lock is the same.
func TestOpenThroughSymlink(t *testing.T) {
	im, path := newImage(t, CreateOptions{})
	mustDo(t, im, put("a", "x"))
	link := path + ".link"
	if err := os.Symlink(filepath.Base(path), link); err != nil {
		t.Fatal(err)
	}
	_, err := Open(link, OpenOptions{Wait: time.Millisecond})
	wantKind(t, err, ErrLocked)
	im.Close()
	if im, err = Open(link, OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	mustDo(t, im, put("b", "y"))
	if err := im.Close(); err != nil {
		t.Fatal(err)
	}
	if st := must(os.Lstat(link)); st.Mode().Type() != os.ModeSymlink {
		t.Errorf("the link is %v", st)
	}
	if im, err = Open(path, OpenOptions{ReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	if text(t, im, "b") != "y" {
		t.Error("it is another file")
	}
}

// shelf is an image that nobody may write in a directory that nobody may
// write. unchanged checks that both are as they were.
func shelf(t *testing.T) (path string, unchanged func()) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "shelf")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "a.vdisk")
	im, err := Create(path, CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mustDo(t, im, put("a", lines(3000)), put("big", string(randomBytes(1, 3<<20))), link("l", "a"))
	must(im.Stage(t.Context()).Add(bytes.NewReader(randomBytes(2, 9<<20)))) // pending, and not to be swept
	im.Close()
	if err := errors.Join(os.Chmod(path, 0o444), os.Chmod(dir, 0o555)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(dir, 0o755) })
	for d := filepath.Dir(dir); len(d) > len(filepath.Clean(os.TempDir())); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sum, st := sha256.Sum256(must(os.ReadFile(path))), must(os.Stat(path))
	return path, func() {
		t.Helper()
		if now := must(os.Stat(path)); sha256.Sum256(must(os.ReadFile(path))) != sum || now.Size() != st.Size() || !now.ModTime().Equal(st.ModTime()) {
			t.Errorf("the file has changed: %v, was %v", now, st)
		}
		if names := must(os.ReadDir(dir)); len(names) != 1 {
			t.Errorf("reading left %v", names)
		}
	}
}

// strangerID is a user id that nothing on the host belongs to.
const strangerID = 60702

// asStranger makes a command of this test binary that runs as somebody who owns
// nothing. As an ordinary user we are as good as one: mode 0444 holds for
// owners too.
func asStranger(t *testing.T) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		return exec.Command(os.Args[0])
	}
	dir := t.TempDir()
	for d := dir; len(d) > len(filepath.Clean(os.TempDir())); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(dir, "workspace.test")
	if err := os.WriteFile(binary, must(os.ReadFile(os.Args[0])), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: strangerID, Gid: strangerID}}
	return cmd
}

func TestReadOnlyForStrangers(t *testing.T) {
	path, unchanged := shelf(t)
	if said := other(t, asStranger(t), "read", path); said != "open" {
		t.Errorf("for reading: %s", said)
	}
	// Readers go side by side, whoever they are.
	im, err := Open(path, OpenOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := readEverything(im); err != nil {
		t.Error(err)
	}
	if err := im.Close(); err != nil {
		t.Error(err)
	}
	if said := other(t, asStranger(t), "write", path); !strings.HasPrefix(said, "READ_ONLY ") {
		t.Errorf("for writing: %s", said)
	}
	unchanged()
}

// An image on a file system that is mounted read-only can be read, and says
// what it is when it is opened for writing.
func TestReadOnlyMount(t *testing.T) {
	path, unchanged := shelf(t)
	mounted := func() *exec.Cmd {
		script := `mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$1"`
		return exec.Command("unshare", "-rm", "sh", "-c", script, filepath.Dir(path), os.Args[0])
	}
	if out, err := exec.Command("unshare", "-rm", "sh", "-c", `mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"`, filepath.Dir(path)).CombinedOutput(); err != nil {
		t.Skipf("nothing can be mounted: %v: %s", err, out)
	}
	if said := other(t, mounted(), "read", path); said != "open" {
		t.Errorf("for reading: %s", said)
	}
	if said := other(t, mounted(), "write", path); !strings.HasPrefix(said, "READ_ONLY ") {
		t.Errorf("for writing: %s", said)
	}
	unchanged()
}
