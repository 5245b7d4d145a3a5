//go:build linux && !portable

package hostos

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Peer tells which process connected a socket, as the kernel saw it then
// (unix(7), SO_PEERCRED). ok is false where the system does not tell.
func Peer(c *net.UnixConn) (pid, uid int, ok bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0, false
	}
	var cred *unix.Ucred
	if raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) != nil || err != nil {
		return 0, 0, false
	}
	return int(cred.Pid), int(cred.Uid), true
}

// HungUp says whether the other end of a socket was closed, or sends no more, also
// while what it sent before is not read yet (poll(2), POLLRDHUP).
func HungUp(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true // closed by us
	}
	var n int
	fds := []unix.PollFd{{Events: unix.POLLRDHUP}}
	if raw.Control(func(fd uintptr) {
		fds[0].Fd = int32(fd)
		n, err = unix.Poll(fds, 0)
	}) != nil {
		return true
	}
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
}

// TakeStderr makes f what descriptor 2 leads to, where the runtime writes of a
// crash.
func TakeStderr(f *os.File) error {
	return control(f, func(fd int) error { return unix.Dup3(fd, 2, 0) })
}
