package front

import "syscall"

// dup makes a descriptor lead to what another does. A program that is executed
// keeps it. Not every Linux has dup2(2).
func dup(from, to int) error { return syscall.Dup3(from, to, 0) }

// enlarge makes room for n bytes in what a socket holds until somebody reads. It takes
// root's rights over the network (socket(7), SO_SNDBUFFORCE).
func enlarge(fd uintptr, n int) {
	_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUFFORCE, n)
}
