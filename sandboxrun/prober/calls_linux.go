//go:build linux && (amd64 || arm64)

package prober

import (
	"errors"
	"maps"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// calls are the probes that are one system call, each made in a child of its
// own. Their arguments do nothing on a host that lets them through.
func calls() map[string]func() error {
	all := map[string]func() error{
		"ns.unshare_user": unshareUser,
		"ns.unshare_mnt":  raw(unix.SYS_UNSHARE, unix.CLONE_NEWNS),
		"ns.unshare_net":  raw(unix.SYS_UNSHARE, unix.CLONE_NEWNET),
		"ns.clone_user":   cloneUser,
		"ns.clone3":       raw(unix.SYS_CLONE3, 0, 0),
		"ns.setns":        raw(unix.SYS_SETNS, none, 0),

		"mount.mount":             func() error { return unix.Mount("none", "/tmp", "tmpfs", 0, "") },
		"mount.remount":           func() error { return unix.Mount("none", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") },
		"mount.umount":            func() error { return unix.Unmount("/tmp", unix.MNT_DETACH) },
		"mount.pivot_root":        func() error { return unix.PivotRoot("/tmp", "/tmp") },
		"mount.chroot":            func() error { return unix.Chroot("/tmp") },
		"mount.open_tree":         withPage(unix.SYS_OPEN_TREE, "/", cwd, page, 0),
		"mount.fsopen":            withPage(unix.SYS_FSOPEN, "tmpfs", page, 0),
		"mount.fsmount":           raw(unix.SYS_FSMOUNT, none, 0, 0),
		"mount.move_mount":        withPage(unix.SYS_MOVE_MOUNT, "", none, page, none, page, 0),
		"mount.mount_setattr":     withPage(unix.SYS_MOUNT_SETATTR, "", none, page, 0, page, 32),
		"mount.statmount":         raw(unix.SYS_STATMOUNT, 0, 0, 0, 0),
		"mount.listmount":         raw(unix.SYS_LISTMOUNT, 0, 0, 0, 0),
		"mount.name_to_handle_at": nameToHandle,
		"mount.open_by_handle_at": withPage(unix.SYS_OPEN_BY_HANDLE_AT, "", cwd, page, 0),

		"call.ptrace":            raw(unix.SYS_PTRACE, unix.PTRACE_TRACEME),
		"call.process_vm_readv":  func() error { return raw(unix.SYS_PROCESS_VM_READV, self(), 0, 0, 0, 0, 0)() },
		"call.process_vm_writev": func() error { return raw(unix.SYS_PROCESS_VM_WRITEV, self(), 0, 0, 0, 0, 0)() },
		"call.kcmp":              func() error { return raw(unix.SYS_KCMP, self(), self(), kcmpFiles, 0, 0)() },
		"call.pidfd_getfd":       raw(unix.SYS_PIDFD_GETFD, none, 0, 0),
		"call.keyctl":            raw(unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, sessionKeyring, 0),
		"call.add_key":           addKey,
		"call.request_key":       withPage(unix.SYS_REQUEST_KEY, "user", page, page, 0, 0),
		"call.bpf":               raw(unix.SYS_BPF, 0xffff, 0, 0),
		"call.perf_event_open":   raw(unix.SYS_PERF_EVENT_OPEN, 0, 0, none, none, 0),
		"call.userfaultfd":       raw(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|userModeOnly),
		"call.io_uring_setup":    withPage(unix.SYS_IO_URING_SETUP, "", 1, page),
		"call.fanotify_init":     raw(unix.SYS_FANOTIFY_INIT, unix.FAN_CLASS_NOTIF|unix.FAN_REPORT_FID, 0),
		"call.personality":       raw(unix.SYS_PERSONALITY, 8),
		"call.shmget":            raw(unix.SYS_SHMGET, unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o600),
		"call.semget":            raw(unix.SYS_SEMGET, unix.IPC_PRIVATE, 1, unix.IPC_CREAT|0o600),
		"call.msgget":            raw(unix.SYS_MSGGET, unix.IPC_PRIVATE, unix.IPC_CREAT|0o600),
		"call.mq_open":           withPage(unix.SYS_MQ_OPEN, "mcp-vdisk-prober", page, unix.O_RDWR|unix.O_CREAT, 0o600, 0),
		"call.mbind":             raw(unix.SYS_MBIND, 0, 0, 0, 0, 0, 0),
		"call.move_pages":        raw(unix.SYS_MOVE_PAGES, 0, 0, 0, 0, 0, 0),
		"call.memfd_secret":      raw(unix.SYS_MEMFD_SECRET, 0),
		"call.kexec_load":        raw(unix.SYS_KEXEC_LOAD, 0, 17, 0, 0), // 17 segments are one too many
		"call.init_module":       withPage(unix.SYS_INIT_MODULE, "", 0, 0, page),
		"call.finit_module":      withPage(unix.SYS_FINIT_MODULE, "", none, page, 0),
		"call.delete_module":     withPage(unix.SYS_DELETE_MODULE, "", page, unix.O_NONBLOCK),
		"call.reboot":            raw(unix.SYS_REBOOT, 0, 0, 0, 0), // without its magic numbers
		"call.swapon":            withPage(unix.SYS_SWAPON, "", page, 0),
		"call.acct":              withPage(unix.SYS_ACCT, "/proc/self/none", page),
		"call.quotactl":          raw(unix.SYS_QUOTACTL, 0, 0, 0, 0),
		"call.syslog":            raw(unix.SYS_SYSLOG, 10, 0, 0), // the size of the buffer
		"call.settimeofday":      withPage(unix.SYS_SETTIMEOFDAY, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", page, 0),

		"net.socket_unix":      socket(unix.AF_UNIX, unix.SOCK_STREAM, 0),
		"net.socket_vsock":     socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0),
		"net.socket_netlink":   socket(unix.AF_NETLINK, unix.SOCK_RAW, 0),
		"net.socket_packet":    socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0),
		"net.socket_alg":       socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0),
		"net.socket_bluetooth": socket(unix.AF_BLUETOOTH, unix.SOCK_RAW, 1),
		"net.socket_xdp":       socket(unix.AF_XDP, unix.SOCK_RAW, 0),
		"net.socket_can":       socket(unix.AF_CAN, unix.SOCK_RAW, 1),
		"net.socket_inet":      socket(unix.AF_INET, unix.SOCK_STREAM, 0),
		"net.pair_stream":      pair(unix.SOCK_STREAM),
		"net.pair_seqpacket":   pair(unix.SOCK_SEQPACKET),
		"net.pair_dgram":       pair(unix.SOCK_DGRAM),

		"tty.tiocsti":      terminal(unix.TIOCSTI),
		"tty.tiocsti_high": terminal(unix.TIOCSTI | 1<<32), // CVE-2019-10063
		"tty.tioclinux":    terminal(unix.TIOCLINUX),

		"files.mknod_char":   func() error { return mknod(unix.S_IFCHR, 1, 3) },
		"files.mknod_block":  func() error { return mknod(unix.S_IFBLK, 7, 0) },
		"files.setuid_chmod": func() error { return chmod(0o4755) },
		"files.setgid_chmod": func() error { return chmod(0o2755) },
		"files.setuid_open":  setuidOpen,
	}
	maps.Copy(all, archCalls())
	return all
}

const (
	none           = ^uintptr(0)       // no descriptor, no pid
	cwd            = ^uintptr(100 - 1) // AT_FDCWD
	page           = uintptr(0xfeed)   // stands for the address of the page
	sessionKeyring = ^uintptr(3 - 1)   // KEY_SPEC_SESSION_KEYRING
	processKeyring = ^uintptr(2 - 1)   // KEY_SPEC_PROCESS_KEYRING
	userModeOnly   = 1                 // UFFD_USER_MODE_ONLY
	kcmpFiles      = 2                 // KCMP_FILES
)

func self() uintptr { return uintptr(os.Getpid()) }

// raw is a call whose arguments are numbers.
func raw(trap uintptr, args ...uintptr) func() error {
	return func() error {
		var a [6]uintptr
		copy(a[:], args)
		if _, _, e := unix.Syscall6(trap, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
			return e
		}
		return nil
	}
}

// withPage is a call with a pointer to a page of memory of our own, which holds
// the text and is zero after it.
func withPage(trap uintptr, text string, args ...uintptr) func() error {
	return func() error {
		mem, err := newPage()
		if err != nil {
			return err
		}
		copy(mem, text)
		a := append([]uintptr{}, args...)
		for i := range a {
			if a[i] == page {
				a[i] = uintptr(unsafe.Pointer(&mem[0]))
			}
		}
		return raw(trap, a...)()
	}
}

// newPage is memory that the garbage collector does not know.
func newPage() ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, broke("mmap", err)
	}
	return mem, nil
}

// cloneUser makes a process in a new user namespace. That process is a copy of
// this one with a single thread, and ends at once.
func cloneUser() error {
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		return e
	}
	if pid == 0 {
		for {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	return nil
}

// unshareUser does it in a process with a single thread, which it needs. That
// process makes nothing but system calls and ends with the errno.
func unshareUser() error {
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		return broke("clone", e)
	}
	if pid == 0 {
		_, _, e := unix.RawSyscall(unix.SYS_UNSHARE, unix.CLONE_NEWUSER, 0, 0)
		for {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(e), 0, 0)
		}
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(int(pid), &ws, 0, nil); err != nil {
		return broke("wait", err)
	}
	switch {
	case ws.Signaled():
		return errors.New(unix.SignalName(ws.Signal()))
	case ws.ExitStatus() != 0:
		return unix.Errno(ws.ExitStatus())
	}
	return nil
}

// nameToHandle asks for the number of /, with no room for the answer: a kernel
// that would tell says EOVERFLOW.
func nameToHandle() error {
	mem, err := newPage()
	if err != nil {
		return err
	}
	mem[2048] = '/'
	at := uintptr(unsafe.Pointer(&mem[0]))
	return raw(unix.SYS_NAME_TO_HANDLE_AT, cwd, at+2048, at, at+1024, 0)()
}

func addKey() error {
	mem, err := newPage()
	if err != nil {
		return err
	}
	copy(mem, "user\x00name\x00x")
	at := uintptr(unsafe.Pointer(&mem[0]))
	return raw(unix.SYS_ADD_KEY, at, at+5, at+10, 1, processKeyring)()
}

func socket(family, kind, protocol int) func() error {
	return func() error {
		_, err := unix.Socket(family, kind, protocol)
		return err
	}
}

func pair(kind int) func() error {
	return func() error {
		_, err := unix.Socketpair(unix.AF_UNIX, kind, 0)
		return err
	}
}

// terminal makes a call on a terminal that is the controlling one of a session
// of our own, where the kernel itself allows typing into it.
func terminal(request uintptr) func() error {
	return func() error {
		if _, err := unix.Setsid(); err != nil {
			return broke("setsid", err)
		}
		_, s, err := openPTY(0)
		if err != nil {
			return broke("terminal", err)
		}
		return withPage(unix.SYS_IOCTL, "x", uintptr(s), request, page)()
	}
}

func mknod(kind uint32, major, minor uint32) error {
	const name = "/tmp/prober-node"
	defer unix.Unlink(name)
	return unix.Mknod(name, kind|0o600, int(unix.Mkdev(major, minor)))
}

// chmod gives a file of our own the mode.
func chmod(mode uint32) error {
	const name = "/workspace/prober-mode"
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CREAT, 0o600)
	if err != nil {
		return broke("make a file", err)
	}
	defer unix.Unlink(name)
	if err := unix.Fchmod(fd, mode); err != nil {
		return err
	}
	return kept(fd, mode)
}

// kept says whether a file has the mode that it was given: a file system may
// drop bits without a word, which is as good as EPERM.
func kept(fd int, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return broke("look at the file", err)
	}
	if st.Mode&0o6000&mode == 0 {
		return unix.EPERM
	}
	return nil
}

func setuidOpen() error {
	const name = "/workspace/prober-open"
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o4755)
	if err != nil {
		return err
	}
	defer unix.Unlink(name)
	return kept(fd, 0o4755)
}
