package pyenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// fullEnv names a small file system that TestMain has mounted for TestFullDisk, when it
// was root.
const fullEnv = "MCP_VDISK_FULL_DIR"

// mountSmall mounts it for the process that runs the tests as another user.
func mountSmall(cmd *exec.Cmd) (after func()) {
	dir, err := os.MkdirTemp("/tmp", "mcp-vdisk-small-")
	if err != nil {
		return nil
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=160m,mode=0700,uid=%d,gid=%d", testUID, testUID)); err != nil {
		return func() { os.Remove(dir) }
	}
	cmd.Env = append(cmd.Env, fullEnv+"="+dir)
	return func() {
		_ = syscall.Unmount(dir, syscall.MNT_DETACH)
		os.Remove(dir)
	}
}

// TestFullDisk: whatever there is no room for, it is said, nothing of it stays, scripts
// run, and it works when there is room.
func TestFullDisk(t *testing.T) {
	newBox(t)
	dir := os.Getenv(fullEnv)
	switch {
	case dir == "":
		t.Skip("SKIP no small file system could be mounted: root has to start the tests")
	case hostos.Implementations()["free space"] == "unknown":
		t.Skip("SKIP this system does not tell how much space is free")
	}
	onFullDisk(t, dir)
}

func onFullDisk(t *testing.T, dir string) {
	p := &place{t: t, root: filepath.Join(dir, "envs")}
	p.open()
	big := wheels()
	big[1].Files = append(big[1].Files, wheeltest.File{Name: "beta/data", Body: pyenvtest.Noise(2 << 20)})
	x := index(t, indextest.Options{}, big...)
	ballast := filepath.Join(dir, "ballast")

	pyenvtest.Fill(t, dir, ballast, 4<<20) // no room for the interpreter
	_, err := p.Ensure(t.Context(), at(x))
	p.refused(err, ErrDiskFull)
	if got := prints(t, p.Env, "import sys; print(sys.executable)"); got != "/usr/bin/python3" {
		t.Errorf("runs %q", got)
	}
	must(t, os.Remove(ballast))
	if _, err := p.make(t.Context()); err != nil {
		t.Fatal(err)
	}
	full := 0
	for room := int64(0); ; room += 5 << 19 { // room for some of the wheels, or of the layer
		pyenvtest.Fill(t, dir, ballast, room)
		rep, err := p.Ensure(t.Context(), at(x))
		if err == nil {
			p.isCurrent(rep)
			break
		}
		if !errors.Is(err, ErrDiskFull) || room > 16<<20 {
			t.Fatalf("room for %d: %v (%s)", room, err, detailOf(err))
		}
		p.refused(err, ErrDiskFull)
		p.clean()
		full++
	}
	if full < 2 {
		t.Errorf("it failed %d times only", full)
	}
	prints(t, p.Env, "import alpha, beta.part")
}
