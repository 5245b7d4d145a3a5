//go:build linux && (amd64 || arm64)

package prober

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Terminal stands for the one at which a person sits: a process that was given
// it can try to type into it, so that the person's shell runs what was typed
// (CVE-2017-5226).
type Terminal struct {
	master, slave int
}

// OpenTerminal makes a new pseudo terminal.
func OpenTerminal() (*Terminal, error) {
	m, s, err := openPTY(unix.O_NOCTTY)
	if err != nil {
		return nil, err
	}
	return &Terminal{m, s}, nil
}

// openPTY opens both sides of a new pseudo terminal; flags are for the slave.
func openPTY(flags int) (master, slave int, err error) {
	if master, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err != nil {
		return -1, -1, fmt.Errorf("open /dev/ptmx: %w", err)
	}
	if err = unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err == nil {
		var n int
		if n, err = unix.IoctlGetInt(master, unix.TIOCGPTN); err == nil {
			slave, err = unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_CLOEXEC|flags, 0)
		}
	}
	if err != nil {
		unix.Close(master)
		return -1, -1, fmt.Errorf("open a terminal: %w", err)
	}
	return master, slave, nil
}

// Attach makes the terminal the controlling one of a command that is not
// started yet and has no extra files. release is called once it was started.
func (t *Terminal) Attach(cmd *exec.Cmd) (release func(), err error) {
	fd, err := unix.FcntlInt(uintptr(t.slave), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(fd), "terminal")
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 3}
	return func() { f.Close() }, nil
}

// Typed is how many characters wait to be read by whoever sits at it.
func (t *Terminal) Typed() (int, error) { return unix.IoctlGetInt(t.slave, unix.TIOCINQ) }

// Close gives the terminal up.
func (t *Terminal) Close() error { return errors.Join(unix.Close(t.slave), unix.Close(t.master)) }

// typeInto types a line end into every terminal that can be got at: by the
// descriptors of every process in sight, and by /dev/tty.
func typeInto() error {
	paths, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return err
	}
	for _, p := range append(paths, "/dev/tty") {
		if target, err := os.Readlink(p); err == nil && filepath.Dir(target) != "/dev/pts" && filepath.Dir(target) != "/dev" {
			continue
		}
		fd, err := unix.Open(p, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		_ = withPage(unix.SYS_IOCTL, "\n", uintptr(fd), unix.TIOCSTI, page)()
		unix.Close(fd)
	}
	return nil
}
