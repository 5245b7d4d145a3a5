package store

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pythontest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// fullEnv names a small file system of its own, in the process that fills it;
// mountEnv is where it is to be mounted; pythonEnv is the interpreter, as JSON.
const (
	fullEnv   = "MCP_VDISK_FULL_DIR"
	mountEnv  = "MCP_VDISK_MOUNT_DIR"
	pythonEnv = "MCP_VDISK_FULL_PYTHON"
)

// TestFullDisk: a disk that is full at any point of a build leaves nothing, says
// so, and the build works when there is room. It runs with mounts of its own, in
// two steps: who may mount has a capability, with which bubblewrap does not start.
func TestFullDisk(t *testing.T) {
	if place := os.Getenv(fullEnv); place != "" {
		onFullDisk(t, place)
		return
	}
	if place := os.Getenv(mountEnv); place != "" {
		must(t, syscall.Mount("tmpfs", place, "tmpfs", 0, "size=16m"))
		again(t, fullEnv+"="+place, nil)
		return
	}
	_, py := pythontest.System(t)
	if hostos.Implementations()["free space"] == "unknown" {
		t.Skip("SKIP this system does not tell how much space is free")
	}
	text, err := json.Marshal(py)
	must(t, err)
	t.Setenv(pythonEnv, string(text))
	const sysAdmin = 21 // CAP_SYS_ADMIN, in the namespace only
	again(t, mountEnv+"="+t.TempDir(), &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		AmbientCaps: []uintptr{sysAdmin},
	})
}

// again runs the test in a child, without the capabilities of this process.
func again(t *testing.T, env string, attr *syscall.SysProcAttr) {
	t.Helper()
	runtime.LockOSThread() // the child gets what this thread has
	defer runtime.UnlockOSThread()
	const capAmbient, clearAll = 47, 4 // prctl(2)
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, capAmbient, clearAll, 0, 0, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestFullDisk$", "-test.v")
	cmd.Env, cmd.SysProcAttr = append(os.Environ(), env), attr
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestFullDisk") {
		t.Errorf("%v", err)
	}
	t.Logf("%s", out)
}

func onFullDisk(t *testing.T, dir string) {
	py := new(python.Interpreter)
	must(t, json.Unmarshal([]byte(os.Getenv(pythonEnv)), py))
	p := &place{t, pyenvtest.Box(t), py, openRoot(t, filepath.Join(dir, "envs"))}
	big := wheeltest.Wheel{Name: "big", Files: []wheeltest.File{{Name: "big/__init__.py"}, {Name: "big/data", Body: pyenvtest.Noise(1 << 20)}}}
	for i := range 40 {
		big.Files = append(big.Files, wheeltest.File{Name: "big/m" + string(rune('a'+i%26)) + string(rune('a'+i/26)) + ".py", Body: "x = '" + strings.Repeat("z", 4000) + "'\n"})
	}
	l := p.lock(lock.Base, big, fakeMatplotlib(honestFonts))
	ballast := filepath.Join(dir, "ballast")
	stages := map[Stage]int{}
	for room := int64(0); ; room += 96 << 10 {
		pyenvtest.Fill(t, dir, ballast, room)
		var last Stage
		layer, err := p.Build(t.Context(), Build{Lock: l, Python: p.py, Box: p.box, Progress: func(s Step) { last = s.Stage }})
		if err == nil {
			p.verify(layer)
			break
		}
		stages[last]++
		if !errors.Is(err, ErrDiskFull) || len(layers(t, p.Root)) > 0 || len(left(t, p.Root)) > 0 {
			t.Fatalf("room for %d: %v; layers %q, left %q", room, err, layers(t, p.Root), left(t, p.Root))
		}
		if room > 8<<20 {
			t.Fatal("it never fits")
		}
	}
	t.Logf("failed in %v", stages)
	if stages[""]+stages[StageOpen] == 0 || stages[StageUnpack] == 0 || stages[StageCompile] == 0 {
		t.Errorf("it did not fail in all stages: %v", stages)
	}
	pyenvtest.Fill(t, dir, ballast, 4<<10)
	other := simple("other", "1").Bytes()
	pkg := packageOf(t, simple("other", "1").FileName(), other)
	if err := p.AddWheel(t.Context(), strings.NewReader(pyenvtest.Noise(64<<10)), pkg.SHA256, 64<<10); !errors.Is(err, ErrDiskFull) || len(left(t, p.Root)) > 0 {
		t.Errorf("a wheel: %v, left %q", err, left(t, p.Root))
	}
}
