//go:build linux && !portable

package hostos_test

import (
	"io"
	"net"
	"path/filepath"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// The other end is known to be gone, or to send no more, before what it sent is read.
func TestHungUp(t *testing.T) {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for name, end := range map[string]func(c *net.UnixConn) error{
		"closed": (*net.UnixConn).Close, "sends no more": (*net.UnixConn).CloseWrite,
	} {
		theirs, err := net.DialUnix("unix", nil, ln.Addr().(*net.UnixAddr))
		if err != nil {
			t.Fatal(err)
		}
		defer theirs.Close()
		ours, err := ln.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		defer ours.Close()
		if hostos.HungUp(ours) {
			t.Errorf("%s: before it is", name)
		}
		io.WriteString(theirs, "said before")
		if hostos.HungUp(ours) {
			t.Errorf("%s: while it sends", name)
		}
		if err := end(theirs); err != nil {
			t.Fatal(err)
		}
		if !hostos.HungUp(ours) {
			t.Errorf("%s: not seen", name)
		}
		ours.Close()
		if !hostos.HungUp(ours) {
			t.Errorf("%s: a socket that we closed", name)
		}
	}
}
