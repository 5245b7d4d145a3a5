package hostos_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func lock(f *os.File, exclusive bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	return hostos.Lock(ctx, f, exclusive)
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	a, b := open(t, path), open(t, path)
	if err := lock(a, false); err != nil {
		t.Fatalf("first shared lock: %v", err)
	}
	if err := lock(b, false); err != nil {
		t.Fatalf("second shared lock: %v", err)
	}
	if err := hostos.Unlock(b); err != nil {
		t.Fatal(err)
	}
	if err := lock(b, true); !errors.Is(err, hostos.ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("exclusive beside shared: %v, want ErrLocked and the cause of the context", err)
	}
	if err := hostos.Unlock(a); err != nil {
		t.Fatal(err)
	}
	if err := lock(b, true); err != nil {
		t.Fatalf("exclusive alone: %v", err)
	}
	b.Close()
	if err := lock(a, true); err != nil {
		t.Fatalf("after the holder closed its file: %v", err)
	}
}

func TestTryLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	a, b := open(t, path), open(t, path)
	for _, step := range []struct {
		f         *os.File
		exclusive bool
		want      bool
	}{{a, false, true}, {b, false, true}, {b, true, false}} {
		if ok, err := hostos.TryLock(step.f, step.exclusive); ok != step.want || err != nil {
			t.Fatalf("exclusive %v: %v, %v", step.exclusive, ok, err)
		}
	}
	a.Close()
	if ok, err := hostos.TryLock(b, true); !ok || err != nil {
		t.Errorf("alone: %v, %v", ok, err)
	}
	if ok, err := hostos.TryLock(a, true); ok || err == nil {
		t.Errorf("a closed file: %v, %v", ok, err)
	}
}

// A closed file fails at once: only a lock that is held is waited for.
func TestLockOfClosedFile(t *testing.T) {
	f := open(t, filepath.Join(t.TempDir(), "lock"))
	f.Close()
	start := time.Now()
	err := hostos.Lock(context.Background(), f, true)
	if err == nil || errors.Is(err, hostos.ErrLocked) || time.Since(start) > 5*time.Second {
		t.Errorf("%v after %s, want another error at once", err, time.Since(start))
	}
	if hostos.Unlock(f) == nil {
		t.Error("unlock of a closed file succeeds")
	}
}

func TestIsNoSpace(t *testing.T) {
	for err, want := range map[error]bool{
		&os.PathError{Op: "write", Err: syscall.ENOSPC}: true,
		fmt.Errorf("commit: %w", syscall.ENOSPC):        true,
		syscall.EIO:                                     false,
		os.ErrClosed:                                    false,
	} {
		if got := hostos.IsNoSpace(err); got != want {
			t.Errorf("IsNoSpace(%v) = %v", err, got)
		}
	}
}

func TestFreeAndSync(t *testing.T) {
	dir := t.TempDir()
	if bytes, inodes, err := hostos.Free(dir); err != nil || bytes == 0 || inodes == 0 {
		t.Errorf("free space of a temporary directory: %d bytes, %d files, %v", bytes, inodes, err)
	}
	if err := hostos.SyncDir(dir); err != nil {
		t.Error(err)
	}
	if len(hostos.Implementations()) == 0 {
		t.Error("no implementation is named")
	}
}

func TestSyncTree(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x"), []byte("x"), 0o444); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := hostos.SyncTree(root); err != nil {
		t.Error(err)
	}
	if err := root.Close(); err != nil {
		t.Fatal(err)
	}
	if err := hostos.SyncTree(root); err == nil {
		t.Error("a closed directory was synced")
	}
}

func TestOwner(t *testing.T) {
	info, err := os.Stat(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if uid, ok := hostos.Owner(info); ok && uid != os.Getuid() {
		t.Errorf("a directory of this user belongs to %d", uid)
	}
}
