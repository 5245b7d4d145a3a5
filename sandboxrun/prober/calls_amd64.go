//go:build linux

package prober

import (
	"golang.org/x/sys/unix"
)

// archCalls are the probes that only this architecture has.
func archCalls() map[string]func() error {
	return map[string]func() error{
		"call.x32":        raw(0x40000000 | unix.SYS_GETPID),
		"call.int80":      func() error { int80(); return nil },
		"call.iopl":       raw(unix.SYS_IOPL, 0),
		"call.modify_ldt": raw(unix.SYS_MODIFY_LDT, 0, 0, 0),
	}
}

// int80 asks for the pid by the interface of 32-bit programs.
func int80() int32
