package sandboxrun

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

// TestAppArmorRemedy: what doctor prints has the path of the program itself, so
// that it can be pasted. What an agent is told has no path of the host.
func TestAppArmorRemedy(t *testing.T) {
	h := hostFacts{appArmorRestricts: true, self: "/home/me/my tools/mcp-vdisk"}
	for name, err := range map[string]error{
		"the stage cannot start": diagnoseStart(syscall.EACCES, h),
		"the stage cannot mount": diagnoseStep(failure{Step: stepPrivate, Errno: uint64(syscall.EACCES)}, h),
		"bubblewrap cannot":      diagnose("bwrap: setting up uid map: Permission denied", "/bin/true", h),
	} {
		var se *SetupError
		if !errors.As(err, &se) {
			t.Fatalf("%s: %v", name, err)
		}
		for _, want := range []string{
			"profile mcp-vdisk \"/home/me/my tools/mcp-vdisk\" flags=(unconfined) {\n  userns,\n",
			"\napparmor_parser -r /etc/apparmor.d/mcp-vdisk\n", "bwrap-userns-restrict",
		} {
			if !strings.Contains(se.Steps, want) {
				t.Errorf("%s: the steps lack %q:\n%s", name, want, se.Steps)
			}
		}
		if strings.Contains(se.Cause+se.Remedy, "my tools") || !strings.Contains(se.Remedy, "mcp-vdisk doctor") {
			t.Errorf("%s: remedy %q", name, se.Remedy)
		}
		var rep Report
		rep.blame("stage", err)
		if rep.Steps != se.Steps || rep.Remedy != se.Remedy {
			t.Errorf("%s: report %+v", name, rep)
		}
	}
}

func TestAppArmorProfileOfOddPaths(t *testing.T) {
	for path, want := range map[string]string{
		"/usr/local/bin/mcp-vdisk": "/usr/local/bin/mcp-vdisk",
		"/opt/a b/mcp-vdisk":       `"/opt/a b/mcp-vdisk"`,
		"/opt/{a,b}*/x":            `"/opt/\{a\,b\}\*/x"`,
		"/opt/\"/x\n":              `"/opt/\"/x\012"`,
	} {
		if p := AppArmorProfile(path); !strings.Contains(p, "profile mcp-vdisk "+want+" flags=") {
			t.Errorf("%q: want %s in\n%s", path, want, p)
		}
	}
}
