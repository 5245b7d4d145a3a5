//go:build !linux

package front

import "syscall"

// dup makes a descriptor lead to what another does. A program that is executed
// keeps it.
func dup(from, to int) error { return syscall.Dup2(from, to) }

// enlarge makes room for n bytes in what a socket holds until somebody reads.
func enlarge(fd uintptr, n int) {
	_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, n)
}
