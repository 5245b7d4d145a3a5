//go:build !linux

package front

import "syscall"

// dup makes a descriptor lead to what another does. A program that is executed
// keeps it.
func dup(from, to int) error { return syscall.Dup2(from, to) }
