package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun/prober"
)

// TestHost: the sandbox of this host holds, in all of it.
func TestHost(t *testing.T) {
	r := needSandbox(t)
	var told []string
	rep, err := RunHost(t.Context(), HostCase{Runner: r, Progress: func(f Finding) { told = append(told, f.Rule) }})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, f := range rep.Findings {
		ids = append(ids, f.Rule)
		if f.Status != Passed && f.Status != Weak && !(f.Status == Skipped && !f.Required) {
			t.Errorf("%s is %s: %s", f.Rule, f.Status, f.Detail)
		}
		if f.Expected == "" || f.Observed == "" && f.Status != Skipped {
			t.Errorf("%s: expected %q, observed %q", f.Rule, f.Expected, f.Observed)
		}
		if f.Status == Weak && f.Detail == "" {
			t.Errorf("%s is weak without a reason", f.Rule)
		}
	}
	var want []string
	for _, r := range hostRules() {
		want = append(want, r.ID)
	}
	if !slices.Equal(ids, want) || !slices.Equal(told, want) {
		t.Errorf("findings %q,\nprogress %q,\nrules %q", ids, told, want)
	}
	if t.Failed() == rep.OK() {
		t.Errorf("OK is %t", rep.OK())
	}
	for _, dir := range []string{"/tmp", "/var/tmp"} {
		if left, _ := filepath.Glob(dir + "/mcp-vdisk-conform-*"); len(left) > 0 && owned(left) {
			t.Errorf("left behind: %v", left)
		}
	}
}

// TestHostOnDisk: with changes on disk the limits on them are watched, which is
// said, and all else holds.
func TestHostOnDisk(t *testing.T) {
	needSandbox(t)
	r, err := sandboxrun.New(t.Context(), sandboxrun.Config{Disk: true, Scratch: filepath.Join(t.TempDir(), "scratch"), Group: testGroup})
	if err != nil {
		t.Fatal(err)
	}
	if rep := r.Probe(t.Context()); !rep.OK {
		t.Skipf("SKIP no overlay on the file system of the tests: %s", rep.Cause)
	}
	rep, err := RunHost(t.Context(), HostCase{Runner: r})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range rep.Findings {
		want := []Status{Passed, Weak}
		if f.Rule == "host.limit.room" || f.Rule == "host.limit.files" {
			want = []Status{Weak}
		}
		if f.Status == Skipped && !f.Required {
			continue
		}
		if !slices.Contains(want, f.Status) {
			t.Errorf("%s is %s: %s", f.Rule, f.Status, f.Detail)
		}
	}
	if !rep.OK() {
		t.Error("the report is not OK")
	}
}

// owned says whether one of the directories is ours to list.
func owned(dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool {
		f, err := os.CreateTemp(d, "")
		if err == nil {
			f.Close()
		}
		return err == nil
	})
}

// TestEveryProbeHasARule: the table and the prober know the same probes.
func TestEveryProbeHasARule(t *testing.T) {
	onlyAMD64 := []string{"call.iopl", "call.modify_ldt", "call.x32", "call.int80"}
	var inside []string
	for _, r := range hostRules() {
		if r.act != nil || runtime.GOARCH != "amd64" && slices.Contains(onlyAMD64, r.probe()) {
			continue
		}
		inside = append(inside, r.probe())
	}
	slices.Sort(inside)
	if got := prober.Names(); !slices.Equal(got, inside) {
		t.Errorf("the prober has\n%q\nand the table\n%q", got, inside)
	}
	for _, name := range controlled {
		if !slices.Contains(inside, name) {
			t.Errorf("the control names %s, which is no probe", name)
		}
	}
	// Of the list of probes that sandboxes are judged by: 23, 25, 35, 45, 72, 87.
	for _, name := range []string{"proc.environ", "proc.core_pattern", "files.shadow", "files.create", "call.keyctl", "net.socket_vsock"} {
		if !slices.Contains(controlled, name) {
			t.Errorf("%s is not controlled", name)
		}
	}
}

// pleasing returns what makes a rule pass.
func pleasing(t *testing.T, r hostRule) string {
	t.Helper()
	first, _, _ := strings.Cut(r.want.text, " or ")
	for _, got := range []string{"", first, "1", "0/0"} {
		if s, _ := r.want.judge(got); s == Passed {
			return got
		}
	}
	t.Fatalf("nothing pleases %s", r.ID)
	return ""
}

// liar is a prober that answers with what the table wants to hear, whatever the
// sandbox is like. change may take the answers before they are written down.
func liar(t *testing.T, change func(prober.Observation) string) []byte {
	t.Helper()
	script := "#!/bin/sh\ncat <<'END'\n"
	for _, r := range hostRules() {
		if r.act == nil {
			script += change(prober.Observation{ID: r.probe(), Got: pleasing(t, r)})
		}
	}
	return []byte(script + "END\n")
}

func line(t *testing.T, o prober.Observation) string {
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(b) + "\n"
}

func inside(id string) bool {
	return slices.ContainsFunc(hostRules(), func(r hostRule) bool { return r.ID == id && r.act == nil })
}

// TestALiarIsCaught: a prober that always says what is wanted is given away by
// the control, in which it had to find something.
func TestALiarIsCaught(t *testing.T) {
	r := needSandbox(t)
	rep, err := RunHost(t.Context(), HostCase{Runner: r, Only: inside, Prober: liar(t, func(o prober.Observation) string { return line(t, o) })})
	if err != nil {
		t.Fatal(err)
	}
	controls := 0
	for _, f := range rep.Findings {
		want := Passed
		if strings.HasPrefix(f.Rule, "host.control.") {
			want = Broken
			controls++
			t.Logf("%s: %s: %s", f.Rule, f.Status, f.Detail)
		}
		if f.Status != want && f.Status != Skipped {
			t.Errorf("%s is %s, want %s: %s", f.Rule, f.Status, want, f.Detail)
		}
	}
	if controls != len(controlled) || rep.OK() {
		t.Errorf("%d controls, OK is %t", controls, rep.OK())
	}
}

// TestABrokenProbeIsNotGreen: a probe that could not be made, that gave no
// answer, or a prober that is none.
func TestABrokenProbeIsNotGreen(t *testing.T) {
	r := needSandbox(t)
	for name, tc := range map[string]struct {
		prober []byte
		broken string
		detail string
	}{
		"broke": {liar(t, func(o prober.Observation) string {
			if o.ID == "ns.net" {
				o.Broke = "no such thing"
			}
			return line(t, o)
		}), "host.ns.net", "no such thing"},
		"no answer": {liar(t, func(o prober.Observation) string {
			if o.ID == "ns.net" {
				return ""
			}
			return line(t, o)
		}), "host.ns.net", "the prober gave no answer"},
		"no prober":         {[]byte("#!/bin/sh\necho hello\n"), "host.ns.net", `the prober wrote "hello"`},
		"dies":              {[]byte("#!/bin/sh\nkill -9 $$\n"), "host.ns.net", "the prober ended with signaled"},
		"is no program":     {[]byte("\x00\x01\x02"), "host.ns.net", "exit 127"},
		"says it too often": {[]byte("#!/bin/sh\nexec yes\n"), "host.ns.net", "the prober wrote"},
	} {
		t.Run(name, func(t *testing.T) {
			rep, err := RunHost(t.Context(), HostCase{Runner: r, Prober: tc.prober, Only: func(id string) bool { return id == "host.ns.net" }})
			if err != nil {
				t.Fatal(err)
			}
			if f := finding(rep, tc.broken); f.Status != Broken || !strings.Contains(f.Detail, tc.detail) {
				t.Errorf("%s: %q", f.Status, f.Detail)
			}
			if rep.OK() {
				t.Error("it is OK")
			}
		})
	}
}

// TestAHostWithoutSandboxes: every rule is skipped, and that is not OK.
func TestAHostWithoutSandboxes(t *testing.T) {
	r, err := sandboxrun.New(t.Context(), sandboxrun.Config{Bwrap: "/nonexistent/bwrap"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	rep, err := RunHost(t.Context(), HostCase{Runner: r})
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Findings) != len(hostRules()) || rep.OK() {
		t.Errorf("%d findings, OK is %t", len(rep.Findings), rep.OK())
	}
	for _, f := range rep.Findings {
		if f.Status != Skipped || f.Reason != UnsupportedHere || !strings.Contains(f.Detail, "bubblewrap") {
			t.Errorf("%s: %s %s %q", f.Rule, f.Status, f.Reason, f.Detail)
		}
	}
}

// TestUnixSockets: where they are allowed, that is said and is no failure, and
// those of the host are out of reach all the same.
func TestUnixSockets(t *testing.T) {
	needSandbox(t)
	r, err := sandboxrun.New(t.Context(), sandboxrun.Config{AllowUnixSockets: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	for allowed, want := range map[bool]Status{true: Weak, false: Failed} {
		rep, err := RunHost(t.Context(), HostCase{Runner: r, UnixSockets: allowed, Only: func(id string) bool { return strings.HasPrefix(id, "host.net.") }})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range rep.Findings {
			expect := Passed
			if slices.Contains(unixRules, f.Rule) {
				expect = want
			}
			if f.Status != expect {
				t.Errorf("allowed %t: %s is %s, want %s: %s", allowed, f.Rule, f.Status, expect, f.Observed)
			}
		}
		if rep.OK() != allowed {
			t.Errorf("allowed %t: OK is %t", allowed, rep.OK())
		}
	}
}

// TestHostCancelled: the suite ends with its context and leaves nothing.
func TestHostCancelled(t *testing.T) {
	r := needSandbox(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	_, err := RunHost(ctx, HostCase{Runner: r, Progress: func(f Finding) {
		if f.Rule == "host.limit.room" {
			cancel(why)
		}
	}})
	if !errors.Is(err, why) {
		t.Errorf("error %v", err)
	}
}

func TestOnlyKeepsTheControl(t *testing.T) {
	for _, tc := range []struct {
		only         string
		want, others int
	}{
		{"host.ns.net", 1, len(controlled)}, {"host.exit.code", 1, 0}, {"host.control.proc.environ", 1, 0}, {"none", 0, 0},
	} {
		got := HostCase{Only: func(id string) bool { return id == tc.only }}.selected()
		if len(got) != tc.want+tc.others {
			t.Errorf("%s: %d rules, want %d and %d of the control", tc.only, len(got), tc.want, tc.others)
		}
	}
}
