package main_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun/prober"
)

// TestCorePattern: in a sandbox that root makes, with a user namespace, another
// uid and no capabilities, /proc/sys/kernel/core_pattern can be opened for
// writing, which is the host's root by another way. The probe sees it, and sees
// that a read-only /proc closes it. (Our own sandboxes are never made by root.)
func TestCorePattern(t *testing.T) {
	if !isRoot() {
		t.Skip("SKIP only root can open core_pattern at all")
	}
	const probe = "proc.core_pattern"
	for _, tc := range []struct {
		name string
		more []string
		got  string
	}{
		{"defence taken out", nil, "OK"},
		{"read-only /proc", []string{"--remount-ro", "/proc"}, "EROFS"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			order, err := json.Marshal(prober.Order{Probes: []string{probe}})
			if err != nil {
				t.Fatal(err)
			}
			args := append([]string{
				"--unshare-user", "--unshare-pid", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL", "--die-with-parent",
				"--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"}, tc.more...)
			cmd := exec.Command("bwrap", append(args, "--", program, prober.Arg, prober.ModeProbe)...)
			cmd.Stdin = bytes.NewReader(order)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var o prober.Observation
			if err := json.Unmarshal(out, &o); err != nil || o.ID != probe || o.Broke != "" {
				t.Fatalf("%v: %s", err, out)
			}
			if o.Got != tc.got {
				t.Errorf("observed %s, want %s", o.Got, tc.got)
			}
		})
	}
}

// TestProberIsNoCommand: its first argument alone does nothing.
func TestProberIsNoCommand(t *testing.T) {
	out := command(t, newState(t), prober.Arg)
	if out.code == 0 || !strings.Contains(out.stderr, "unknown command") {
		t.Errorf("exit %d: %s", out.code, out.stderr)
	}
}

// TestPortablePrimitives: a program without the Linux primitives says so.
func TestPortablePrimitives(t *testing.T) {
	if os.Getenv("MCP_VDISK_TEST_BIN") != "" {
		t.Skip("SKIP no Go tool to build another program with")
	}
	bin := filepath.Join(passable(t), "portable")
	build := exec.Command("go", "build", "-buildvcs=false", "-tags", "portable", "-o", bin, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, tc := range []struct {
		program string
		want    map[string]string
	}{
		{program, map[string]string{"lock": "flock", "directory fsync": "fsync", "unnamed file": "O_TMPFILE", "pidfd": "pidfd_open", "overlay": "overlayfs, changes on tmpfs"}},
		{bin, map[string]string{"lock": "in process only", "directory fsync": "none", "unnamed file": "unlinked", "pidfd": "pidfd_open"}},
	} {
		out, err := exec.Command(tc.program, "doctor", "--json", "--state", newState(t)).Output()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		var facts struct {
			Primitives map[string]string `json:"primitives"`
		}
		if err := json.Unmarshal(out, &facts); err != nil {
			t.Fatal(err)
		}
		for name, want := range tc.want {
			if got := facts.Primitives[name]; got != want {
				t.Errorf("%s: %s is %q, want %q", filepath.Base(tc.program), name, got, want)
			}
		}
		if facts.Primitives["cgroup"] == "" {
			t.Errorf("%s: no word of control groups: %v", filepath.Base(tc.program), facts.Primitives)
		}
	}
}
