package sandboxrun

import (
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// fdReader and fdWriter use a descriptor without the runtime's poller, which
// the stage does not need to start.
type fdReader int

func (fd fdReader) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(fd), p)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, err
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

type fdWriter int

func (fd fdWriter) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Write(int(fd), p[done:])
		if err != nil && err != unix.EINTR {
			return done, err
		}
		done += max(n, 0)
	}
	return done, nil
}

// memFile returns a memory file with the bytes, to be read from its start. It
// is sealed: what is in it does not change any more, whoever opens it.
func memFile(name string, b []byte) (*os.File, error) {
	f, err := emptyFile(name)
	if err != nil {
		return nil, err
	}
	fd := int(f.Fd())
	if _, err := (fdWriter(fd)).Write(b); err != nil {
		f.Close()
		return nil, os.NewSyscallError("write", err)
	}
	if _, err := unix.Seek(fd, 0, io.SeekStart); err != nil {
		f.Close()
		return nil, os.NewSyscallError("lseek", err)
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	return f, nil
}

// emptyFile returns a memory file to be written.
func emptyFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// pipe returns a pipe. The end that stays here uses the poller, so that
// closing it ends a read or a write; the other end blocks, as a child expects.
func pipe(childReads bool) (mine, child *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	m, c := p[0], p[1]
	if childReads {
		m, c = p[1], p[0]
	}
	if err := unix.SetNonblock(m, true); err != nil {
		unix.Close(m)
		unix.Close(c)
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(m), "pipe"), os.NewFile(uintptr(c), "pipe"), nil
}

// monotonic reads the clock that all processes of the host have in common, in
// nanoseconds.
func monotonic() int64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return t.Nano()
}

// fromMonotonic is the time of a reading of monotonic, of whatever process.
func fromMonotonic(at int64) time.Time {
	return time.Now().Add(time.Duration(at - monotonic()))
}
