package tools

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

var provokeOnLinux = map[Code]func(t *testing.T){
	SetupFailed: func(t *testing.T) {
		d := setup{config: func(c *Config) { c.Python = pyenv.New("/usr/bin/no-such-python", c.Box) }}.scripted(t)
		wantText(t, d.fails(SetupFailed, "run_script", args{"language": "python", "source": "open('x', 'w')"}), "did not run")
		if d.tree() != "" {
			t.Errorf("the disk has\n%s", d.tree())
		}
	},
	NoSpace: noSpace,
	Busy: func(t *testing.T) {
		d := setup{config: func(c *Config) { c.Limits.Queue = time.Millisecond }}.scripted(t)
		for range d.cfg.Limits.Scripts {
			leave, err := d.jobs.turns.take(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			defer leave()
		}
		d.fails(Busy, "run_script", args{"language": "bash", "source": "echo x >x"})
	},
}

// smallDisk is where the child of noSpace mounts a file system of 40 MB.
const smallDisk = "TOOLS_TEST_SMALL_DISK"

// noSpace runs TestNoSpace in namespaces of its own, where it may mount.
func noSpace(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestNoSpace$", "-test.v")
	cmd.Env = append(os.Environ(), smallDisk+"="+t.TempDir())
	const sysAdmin = 21 // CAP_SYS_ADMIN, in the namespace only
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		AmbientCaps: []uintptr{sysAdmin},
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestNoSpace") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestNoSpace: a host whose disk is full refuses changes before anything is
// written; what was there stays, can be read, and can be changed again when
// there is room. It is run by TestEveryCode.
func TestNoSpace(t *testing.T) {
	place := os.Getenv(smallDisk)
	if place == "" {
		return
	}
	if err := syscall.Mount("tmpfs", place, "tmpfs", 0, "size=40m"); err != nil {
		t.Fatal(err)
	}
	d := setup{place: place}.disk(t)
	d.write("a", "old")
	before := d.tree()
	filler := filepath.Join(place, "filler")
	if err := os.WriteFile(filler, make([]byte, 40<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	for path, mode := range map[string]string{"a": "overwrite", "dir/b": "create", "c": "append"} {
		a := args{"path": path, "content": b64(string(noise(3_000_000))), "encoding": "base64", "mode": mode}
		wantText(t, d.fails(NoSpace, "write_file", a), "nothing was changed")
	}
	// What scripts print finds no room either, which costs that and no more.
	tr := newTranscript(place)
	defer tr.close()
	for range 100 {
		tr.tap(sandboxrun.Stdout, []byte(strings.Repeat("x", 1000)))
	}
	if e, err := tr.page(0, 1<<20); err != nil || !e.broken || e.size != 65_000 || e.lost != 35_000 {
		t.Errorf("output on a full disk: %d kept, %d lost, %v", e.size, e.lost, err)
	}
	if d.read("a") != "old" || d.tree() != before {
		t.Errorf("the disk changed to\n%s", d.tree())
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	d.putBytes("a", noise(3_000_000))
	d.verify()
}
