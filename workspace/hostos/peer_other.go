//go:build !linux || portable

package hostos

import (
	"net"
	"os"
)

// Peer tells which process connected a socket. ok is false where the system does
// not tell, as here: the rights of the socket's directory have to do.
func Peer(*net.UnixConn) (pid, uid int, ok bool) { return 0, 0, false }

// HungUp says whether the other end of a socket was closed. It is not known here
// before everything that was sent is read.
func HungUp(*net.UnixConn) bool { return false }

// TakeStderr does nothing here: what the runtime writes of a crash goes where it
// went before.
func TakeStderr(*os.File) error { return nil }
