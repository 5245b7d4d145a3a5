package mcpvdisk_test

import (
	"os"
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
