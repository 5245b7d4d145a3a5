//go:build linux && !portable

package hostos

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Implementations names the implementation in force of each primitive, for
// `doctor`.
func Implementations() map[string]string {
	return map[string]string{"lock": "flock", "directory fsync": "fsync", "free space": "statfs", "lock holder": "/proc/locks", "unnamed file": "O_TMPFILE"}
}

const errQuota = unix.EDQUOT

func tryLock(f *os.File, exclusive bool) error {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	return control(f, func(fd int) error { return unix.Flock(fd, how|unix.LOCK_NB) })
}

func unlock(f *os.File) error {
	return control(f, func(fd int) error { return unix.Flock(fd, unix.LOCK_UN) })
}

// control runs fn on the descriptor of f without taking it out of the runtime
// poller's hands, and reports a closed file as such.
func control(f *os.File, fn func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = fn(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// SyncDir makes the entries of a directory durable: a file that was created,
// renamed or removed in it survives a power cut once SyncDir returned
// (fsync(2), NOTES).
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}

// Free returns how many bytes and how many more files an unprivileged process
// can still put on the file system that holds path.
func Free(path string) (bytes, inodes uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, 0, fmt.Errorf("free space of %s: %w", path, err)
	}
	return st.Bavail * uint64(st.Bsize), st.Ffree, nil
}

// Removed says whether no name led to a file any more when it was looked at: it was
// removed, or another one was put in its place. info is of an open file.
func Removed(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink == 0
}

// ReleaseMap takes the pages of a read-only map of a file out of the process;
// the page cache keeps them, and the next access brings them back
// (madvise(2), MADV_DONTNEED). addr is on a page border. It is best effort.
func ReleaseMap(addr, size uintptr) {
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, addr, size, unix.MADV_DONTNEED)
}

// LockHolder finds a process that holds a flock on the file that f has open.
// It is best effort, for an error message: a holder in another pid namespace
// is not visible, and the answer may be stale when it arrives.
func LockHolder(f *os.File) (pid int, command string, ok bool) {
	var st unix.Stat_t
	if control(f, func(fd int) error { return unix.Fstat(fd, &st) }) != nil {
		return 0, "", false
	}
	id := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, "", false
	}
	// 1: FLOCK  ADVISORY  WRITE 1234 fe:00:131 0 EOF (proc(5))
	for line := range strings.Lines(string(locks)) {
		w := strings.Fields(line)
		if len(w) < 6 || w[1] != "FLOCK" || w[5] != id {
			continue
		}
		if pid, err = strconv.Atoi(w[4]); err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, _ := os.ReadFile("/proc/" + w[4] + "/cmdline")
		argv := bytes.ReplaceAll(bytes.TrimRight(cmdline, "\x00"), []byte{0}, []byte{' '})
		return pid, string(argv), true
	}
	return 0, "", false
}

// SyncTree makes everything that was written below a directory durable. On Linux
// it is one call for the whole file system, which also tells of writes that
// failed meanwhile.
func SyncTree(dir *os.Root) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	return control(f, unix.Syncfs)
}
