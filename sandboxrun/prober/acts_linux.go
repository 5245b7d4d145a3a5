//go:build linux && (amd64 || arm64)

package prober

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// idle makes a process that waits for its death. It is a copy of this one with
// a single thread, so it makes nothing but system calls.
//
//go:nosplit
func idle() unix.Errno {
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e == 0 && pid == 0 {
		for {
			unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
	}
	return e
}

// mostForks ends ModeForks where nothing else does.
const mostForks = 4096

func forks() error {
	n := 0
	var last error
	for n < mostForks {
		if e := idle(); e != 0 {
			last = e
			break
		}
		n++
	}
	fmt.Println(n, errnoName(last))
	return nil
}

// bomb is a tree of processes of which each makes more.
//
//go:nosplit
func bomb() error {
	for {
		_, _, _ = unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	}
}

// mostBytes ends ModeFill where nothing else does.
const mostBytes = 64 << 20

func fill(dirs []string) error {
	block := make([]byte, 64<<10)
	for _, dir := range dirs {
		f, err := os.Create(filepath.Join(dir, "prober-fill"))
		total := 0
		for err == nil && total < mostBytes {
			var n int
			n, err = f.Write(block)
			total += n
		}
		fmt.Println(dir, total, errnoName(err))
	}
	return nil
}

func crowd(args []string) error {
	if len(args) != 2 {
		return errors.New("a directory and a count are needed")
	}
	most, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	n := 0
	for n < most && err == nil {
		var fd int
		if fd, err = unix.Open(fmt.Sprintf("%s/crowd-%d", args[0], n), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600); err == nil {
			unix.Close(fd)
			n++
		}
	}
	fmt.Println(args[0], n, errnoName(err))
	return nil
}

func memory(args []string) error {
	if len(args) != 3 {
		return errors.New("a kind, a size and a count are needed")
	}
	children, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	got := 0
	for range children {
		cmd := exec.Command("/proc/self/exe", Arg, modeTake, args[0], args[1])
		cmd.Env = []string{}
		hold, err := cmd.StdinPipe() // a child lives until its end
		if err != nil {
			return err
		}
		defer hold.Close()
		done, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		var b [1]byte
		if n, _ := done.Read(b[:]); n == 1 {
			got++
		}
	}
	fmt.Println(got)
	return nil
}

// take takes memory, says so with one byte, and keeps it until its input ends.
func take(args []string) error {
	if len(args) != 2 {
		return errors.New("a kind and a size are needed")
	}
	mib, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	one := takePages
	if args[0] == InFile {
		if one, err = takeFile(); err != nil {
			return err
		}
	}
	for range mib {
		if err := one(); err != nil {
			return err
		}
	}
	fmt.Print("k")
	_, err = os.Stdin.Read(make([]byte, 1))
	return err
}

func takePages() error {
	mem, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	for i := 0; i < len(mem); i += 4096 {
		mem[i] = 1
	}
	return err
}

func takeFile() (func() error, error) {
	fd, err := unix.MemfdCreate("prober", unix.MFD_CLOEXEC)
	block := make([]byte, 1<<20)
	return func() error { _, err := unix.Write(fd, block); return err }, err
}
