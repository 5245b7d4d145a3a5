package tools

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

var provokeOnLinux = map[Code]func(t *testing.T){
	SetupFailed: func(t *testing.T) {
		d := setup{config: func(c *Config) { c.Python = hostPythons(t, c.Box, "/usr/lib/os-release") }}.scripted(t)
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

// TestCutOff: a script whose stage is killed has run. The answer says so and shows
// what it printed, nothing of it is saved, and the next script runs.
func TestCutOff(t *testing.T) {
	for _, commit := range []string{"on_success", "always"} {
		t.Run(commit, func(t *testing.T) {
			d := newScripted(t)
			d.write("a", "a\n")
			before, head := d.tree(), d.head()
			killed := make(chan int, 1)
			go func() { killed <- killStage(t.Context(), 20*time.Second) }()
			r := d.call("run_script", args{"language": "bash", "source": "echo x >b; echo I-RAN; sleep 60", "commit": commit})
			if n := <-killed; n != 1 {
				t.Fatalf("%d stages were killed", n)
			}
			wantText(t, r.String(), "killed by SIGKILL", "I-RAN", "was ended from outside while the script ran", "nothing of it was saved")
			if strings.Contains(r.String(), "did not run") {
				t.Error(r)
			}
			if commit == "always" && (r.OK() || r.Err.Code != SetupFailed) {
				t.Errorf("its code is %v", r.Err)
			}
			if d.tree() != before || d.head() != head {
				t.Errorf("the disk has\n%s", d.tree())
			}
			wantText(t, d.bash("cat a >c").String(), "SAVED")
			d.verify()
		})
	}
}

// killStage kills the stage of this process below which a sleep runs, and tells
// how many it has killed.
func killStage(ctx context.Context, limit time.Duration) int {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); time.Now().Before(end) && ctx.Err() == nil; <-tick.C {
		sleeps, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, name := range sleeps {
			if b, _ := os.ReadFile(name); string(b) != "sleep\x0060\x00" {
				continue
			}
			if stage := stageOf(filepath.Base(filepath.Dir(name))); stage > 0 && syscall.Kill(stage, syscall.SIGKILL) == nil {
				return 1
			}
		}
	}
	return 0
}

// stageOf is the child of this process below which a process is, 0 if there is none.
func stageOf(pid string) int {
	for pid != "0" && pid != "" {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if err != nil || len(f) < 2 {
			return 0
		}
		if f[1] == strconv.Itoa(os.Getpid()) {
			n, _ := strconv.Atoi(pid)
			return n
		}
		pid = f[1]
	}
	return 0
}
