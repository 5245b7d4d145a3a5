package mcpvdisk_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// The profile that is packaged is the one that doctor prints.
func TestAppArmorProfile(t *testing.T) {
	b, err := os.ReadFile("packaging/apparmor/mcp-vdisk")
	if err != nil {
		t.Fatal(err)
	}
	if want := sandboxrun.AppArmorProfile("/usr/bin/mcp-vdisk"); string(b) != want {
		t.Errorf("packaging/apparmor/mcp-vdisk is\n%s\nwant\n%s", b, want)
	}
}

// The unit is one that systemd takes, wherever systemd is there to say so.
func TestUnit(t *testing.T) {
	b, err := os.ReadFile("packaging/systemd/mcp-vdisk.service")
	if err != nil {
		t.Fatal(err)
	}
	const start = "ExecStart=%h/.local/bin/mcp-vdisk daemon run\n"
	if !strings.Contains(string(b), start) {
		t.Errorf("the unit does not start the daemon by %q:\n%s", start, b)
	}
	verify, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze on this host")
	}
	dir := t.TempDir()
	unit := filepath.Join(dir, "mcp-vdisk.service")
	if err := os.WriteFile(unit, []byte(strings.Replace(string(b), "%h/.local/bin/mcp-vdisk", "/usr/bin/env", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(verify, "--user", "verify", unit)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) != 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
