package main_test

import (
	"strings"
	"syscall"
	"testing"
)

// An environment root that is mounted read-only serves scripts as long as it has a base
// layer; only what would change it is refused.
func TestEnvRootReadOnly(t *testing.T) {
	t.Parallel()
	if !isRoot() {
		t.Skip("SKIP mounting takes root")
	}
	e := newBased(t, false)
	if err := syscall.Mount(e.root, e.root, "", syscall.MS_BIND, ""); err != nil {
		t.Skip("SKIP nothing can be mounted here: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(e.root, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := syscall.Mount("", e.root, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Skip("SKIP nothing can be mounted read-only here: ", err)
	}
	e.imports("docx, numpy").says(t, "imported")
	out := e.must("env", "doctor")
	out.says(t, "note      the directory of the environments is on a read-only file system", "all is well", "scripts   /opt/mcp/python")
	if strings.Contains(out.stdout, "PROBLEM") || strings.Contains(out.stderr, `{"time"`) {
		t.Errorf("%s%s", out.stdout, out.stderr)
	}
	for _, args := range [][]string{{"ensure"}, {"lock"}, {"gc"}, {"python"}} {
		out := e.fails(11, append([]string{"env"}, args...)...)
		out.told(t, "no_root")
		out.says(t, "the directory of the Python environments, "+e.root+", cannot be used: it is on a read-only file system")
	}
}
