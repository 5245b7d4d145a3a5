package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/conformance/leaseproc"
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

// TestConformForMachines: both suites that the seed has begin with its rules, in its
// order, and all of it takes less than a minute.
func TestConformForMachines(t *testing.T) {
	began := time.Now()
	out := command(t, newState(t), "conform", "--json")
	if took := time.Since(began); out.code != 0 || out.stderr != "" || took > time.Minute {
		t.Errorf("exit %d after %v: %s", out.code, took, out.stderr)
	}
	var rep struct {
		OK     bool
		Suites []struct {
			Suite    string
			OK       bool
			Findings []struct{ Rule, Status, Detail string }
		}
	}
	if err := json.Unmarshal([]byte(out.stdout), &rep); err != nil {
		t.Fatal(err)
	}
	if !rep.OK || len(rep.Suites) != 3 || rep.Suites[0].Suite != "sandbox" || rep.Suites[1].Suite != "lease" || rep.Suites[2].Suite != "host" {
		t.Fatalf("OK %v, %d suites", rep.OK, len(rep.Suites))
	}
	for i, id := range strings.Fields(`lease.acquire lease.exclusive_acquire lease.scope_isolation lease.renew lease.wrong_owner_rejected
		lease.release lease.monotonic_takeover lease.stale_grant_rejected`) {
		if got := rep.Suites[1].Findings[i].Rule; got != id {
			t.Errorf("finding %d of leases is %s, want %s", i, got, id)
		}
	}
	for _, f := range rep.Suites[1].Findings {
		if f.Status != "passed" { // nothing of it depends on the host
			t.Errorf("%s: %s %s", f.Rule, f.Status, f.Detail)
		}
	}
	seed := strings.Fields(`capabilities.backend_id capabilities.artifact_boundary capabilities.reconnect_lifecycle
		capabilities.ownership_fencing capabilities.command_reconnect execute.result_contract execute.request_timeout artifact.collection
		lifecycle.close_marks_handle lifecycle.closed_handle_rejected policy.network_admission execute.cooperative_cancellation`)
	for i, id := range seed {
		if f := rep.Suites[0].Findings[i]; f.Rule != id || f.Status != "passed" {
			t.Errorf("finding %d is %s, %s, want %s, passed", i, f.Rule, f.Status, id)
		}
	}
	for _, s := range rep.Suites {
		for _, f := range s.Findings {
			if f.Status == "weak" && f.Detail == "" {
				t.Errorf("%s is weak for no reason", f.Rule)
			}
		}
	}
}

// TestConformTwice: two at once take nothing of each other for a finding.
func TestConformTwice(t *testing.T) {
	t.Parallel()
	state := newState(t)
	type run struct {
		cmd *exec.Cmd
		out bytes.Buffer
	}
	var both [2]run
	for i := range both {
		r := &both[i]
		r.cmd = exec.Command(program, "conform", "--state", state)
		r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.out
		if err := r.cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range both {
		if err := both[i].cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, &both[i].out)
		}
	}
}

// TestConformBesideTrials: what is tried at the same time, each without a state directory
// and so in the directory for temporary files, takes nothing away from another.
func TestConformBesideTrials(t *testing.T) {
	t.Parallel()
	none := filepath.Join(newState(t), "none")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			args := []string{"conform", "--state", fmt.Sprint(none, i), "--suite", "lease"}
			if i%2 == 1 {
				args = []string{"conform", "--state", fmt.Sprint(none, i), "--rule", "host.exit.code"}
			}
			for range 2 {
				if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
					t.Errorf("%v: %v\n%s", args, err, out)
				}
			}
		})
	}
	all.Wait()
}

// TestProberIsNoCommand: what the program is for conform, it is not for anybody who
// only knows the first argument.
func TestProberIsNoCommand(t *testing.T) {
	for _, arg := range []string{prober.Arg, leaseproc.Arg} {
		if out := command(t, newState(t), arg); out.code == 0 || !strings.Contains(out.stderr, "unknown command") {
			t.Errorf("%s: exit %d: %s", arg, out.code, out.stderr)
		}
	}
	for _, args := range [][]string{{"x"}, {"serve"}, {"client", "{"}, {"client", "{}", "x"}} {
		out := outputOf(t, exec.Command(program, append([]string{leaseproc.Arg}, args...)...))
		if out.code != 1 || out.stderr == "" || strings.Contains(out.stderr, "panic") {
			t.Errorf("%v: exit %d: %s", args, out.code, out.stderr)
		}
	}
}

// TestPortablePrimitives: a program without the Linux primitives says so.
func TestPortablePrimitives(t *testing.T) {
	t.Parallel()
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
