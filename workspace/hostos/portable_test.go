//go:build !portable

package hostos_test

import (
	"os/exec"
	"testing"
)

// The implementation for other systems passes the same tests on this one.
func TestPortable(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command to build the other implementation")
	}
	if out, err := exec.Command("go", "test", "-count=1", "-tags", "portable", ".").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
