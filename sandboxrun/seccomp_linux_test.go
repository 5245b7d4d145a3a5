package sandboxrun

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// probe is one call that a script may not make, and what it gets instead.
type probe struct {
	name string // of the probe; the call is its first word
	want syscall.Errno
	args func() []uintptr
	// privileged: a kernel that has the call refuses it like the filter, because
	// the script has no capability.
	privileged bool
}

func (p probe) call() string { name, _, _ := strings.Cut(p.name, " "); return name }

const (
	badFD  = ^uintptr(0)
	badPtr = uintptr(1) // EFAULT where the kernel looks at it
)

func with(args ...uintptr) func() []uintptr { return func() []uintptr { return args } }

// probes have arguments that are refused for another reason or do no harm
// where the filter lets them pass, so that its answer can be told from the
// kernel's.
func probes() []probe {
	pid := uintptr(os.Getpid())
	cwd := ^uintptr(99) // AT_FDCWD
	list := []probe{
		{"openat setuid", unix.EPERM, func() []uintptr { return []uintptr{cwd, tmpPath("a"), unix.O_CREAT | unix.O_WRONLY, 0o4755} }, false},
		{"openat O_TMPFILE", unix.EPERM, func() []uintptr { return []uintptr{cwd, tmpPath("."), unix.O_TMPFILE | unix.O_RDWR, 0o2755} }, false},
		{"open setgid", unix.EPERM, func() []uintptr { return []uintptr{tmpPath("b"), unix.O_CREAT | unix.O_WRONLY, 0o2755} }, false},
		{"creat setuid", unix.EPERM, func() []uintptr { return []uintptr{tmpPath("c"), 0o4755} }, false},
		{"chmod setuid", unix.EPERM, func() []uintptr { return []uintptr{made("d"), 0o4755} }, false},
		{"fchmod setgid", unix.EPERM, func() []uintptr { return []uintptr{opened(made("e")), 0o2755} }, false},
		{"fchmodat setuid", unix.EPERM, func() []uintptr { return []uintptr{cwd, made("f"), 0o4755} }, false},
		{"fchmodat2 setuid", unix.EPERM, func() []uintptr { return []uintptr{cwd, made("g"), 0o4755, 0} }, false},
		{"mknod setuid", unix.EPERM, func() []uintptr { return []uintptr{tmpPath("h"), unix.S_IFREG | 0o4755, 0} }, false},
		{"mknodat setuid", unix.EPERM, func() []uintptr { return []uintptr{cwd, tmpPath("i"), unix.S_IFREG | 0o4755, 0} }, false},
		{"openat2", unix.ENOSYS, with(cwd, badPtr, badPtr, 24), false},
		{"ioctl TIOCSTI", unix.EPERM, func() []uintptr { return []uintptr{terminal(), unix.TIOCSTI, addr("x")} }, false},
		{"ioctl TIOCSTI with bit 32", unix.EPERM, func() []uintptr { return []uintptr{terminal(), unix.TIOCSTI | 1<<32, addr("x")} }, false},
		{"ioctl TIOCLINUX", unix.EPERM, with(badFD, tiocLINUX, badPtr), false},

		{"clone CLONE_NEWUSER", unix.EPERM, with(unix.CLONE_NEWUSER | unix.CLONE_FS), false}, // EINVAL
		{"clone3", unix.ENOSYS, with(0, 0), false},
		{"unshare", unix.EPERM, with(0), false},
		{"setns", unix.EPERM, with(badFD, 0), false},

		{"socket AF_UNIX", unix.EAFNOSUPPORT, with(unix.AF_UNIX, unix.SOCK_STREAM, 0), false},
		{"socket AF_VSOCK", unix.EAFNOSUPPORT, with(unix.AF_VSOCK, unix.SOCK_STREAM, 0), false},
		{"socket AF_NETLINK", unix.EAFNOSUPPORT, with(unix.AF_NETLINK, unix.SOCK_RAW, 0), false},
		{"socket AF_PACKET", unix.EAFNOSUPPORT, with(unix.AF_PACKET, unix.SOCK_RAW, 0), false},
		{"socket AF_ALG", unix.EAFNOSUPPORT, with(unix.AF_ALG, unix.SOCK_SEQPACKET, 0), false},
		{"socket AF_BLUETOOTH", unix.EAFNOSUPPORT, with(unix.AF_BLUETOOTH, unix.SOCK_RAW, 1), false},
		{"socket AF_CAN", unix.EAFNOSUPPORT, with(unix.AF_CAN, unix.SOCK_RAW, 1), false},
		{"socket AF_XDP", unix.EAFNOSUPPORT, with(unix.AF_XDP, unix.SOCK_RAW, 0), false},
		{"socket SOCK_PACKET", unix.ESOCKTNOSUPPORT, with(unix.AF_INET, unix.SOCK_PACKET, 0), false},
		{"socket SCTP", unix.EPROTONOSUPPORT, with(unix.AF_INET, unix.SOCK_SEQPACKET, unix.IPPROTO_SCTP), false},
		{"socket UDP-Lite", unix.EPROTONOSUPPORT, with(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE), false},
		{"socket IPPROTO_RAW", unix.EPROTONOSUPPORT, with(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW), false},
		{"socketpair AF_INET", unix.EAFNOSUPPORT, func() []uintptr { return []uintptr{unix.AF_INET, unix.SOCK_STREAM, 0, addr("12345678")} }, false},
		{"socketpair SOCK_DGRAM", unix.ESOCKTNOSUPPORT, func() []uintptr { return []uintptr{unix.AF_UNIX, unix.SOCK_DGRAM, 0, addr("12345678")} }, false},

		{"ptrace", unix.EPERM, with(unix.PTRACE_ATTACH, 1<<30), false},
		{"process_vm_readv", unix.EPERM, with(pid, 0, 0, 0, 0, 0), false},
		{"process_vm_writev", unix.EPERM, with(pid, 0, 0, 0, 0, 0), false},
		{"kcmp", unix.EPERM, with(pid, pid, 0, 0, 0), false},
		{"pidfd_getfd", unix.EPERM, with(badFD, 0, 0), false},
		{"add_key", unix.EPERM, with(badPtr, badPtr, 0, 0, 0), false},
		{"request_key", unix.EPERM, with(badPtr, badPtr, 0, 0), false},
		{"keyctl", unix.EPERM, with(0xffff), false},
		{"io_uring_setup", unix.ENOSYS, with(1, badPtr), false},
		{"io_uring_enter", unix.ENOSYS, with(badFD, 0, 0, 0, 0, 0), false},
		{"io_uring_register", unix.ENOSYS, with(badFD, 0, 0, 0), false},
		{"bpf", unix.EPERM, with(1<<20, badPtr, 0), false},
		{"perf_event_open", unix.EPERM, with(badPtr, 0, 0, badFD, 0), false},
		{"userfaultfd", unix.EPERM, with(1), false}, // UFFD_USER_MODE_ONLY
		{"fanotify_init", unix.EPERM, with(unix.FAN_REPORT_FID, 0), false},
		{"fanotify_mark", unix.EPERM, with(badFD, 0, 0, badFD, 0), false},
		{"name_to_handle_at", unix.EPERM, with(badFD, badPtr, badPtr, badPtr, 0), false},
		{"open_by_handle_at", unix.EPERM, with(badFD, badPtr, 0), false},

		{"mount", unix.EPERM, with(badPtr, badPtr, badPtr, 0, 0), false},
		{"umount2", unix.EPERM, with(badPtr, 1<<20), false},
		{"pivot_root", unix.EPERM, with(badPtr, badPtr), true},
		{"chroot", unix.EPERM, with(badPtr), false},
		{"open_tree", unix.ENOSYS, with(badFD, badPtr, 0), false},
		{"open_tree_attr", unix.ENOSYS, with(badFD, badPtr, 0, badPtr, 1), false},
		{"move_mount", unix.ENOSYS, with(badFD, badPtr, badFD, badPtr, 0), false},
		{"fsopen", unix.ENOSYS, with(badPtr, 0), false},
		{"fsconfig", unix.ENOSYS, with(badFD, 0, 0, 0, 0), false},
		{"fsmount", unix.ENOSYS, with(badFD, 0, 0), false},
		{"fspick", unix.ENOSYS, with(badFD, badPtr, 0), false},
		{"mount_setattr", unix.ENOSYS, with(badFD, badPtr, 0, badPtr, 0), false},
		{"statmount", unix.ENOSYS, with(badPtr, 0, 0, 0), false},
		{"listmount", unix.ENOSYS, with(badPtr, 0, 0, 0), false},
		{"listns", unix.ENOSYS, with(badPtr, 0, 0, 0), false},
		{"lsm_get_self_attr", unix.ENOSYS, with(0, 0, 0, 0), false},
		{"lsm_set_self_attr", unix.ENOSYS, with(0, 0, 0, 0), false},
		{"lsm_list_modules", unix.ENOSYS, with(0, 0, 0), false},

		{"shmget", unix.EPERM, with(0, 4096, 0o600), false},
		{"semget", unix.EPERM, with(0, 1, 0o600), false},
		{"msgget", unix.EPERM, with(0, 0o600), false},
		{"mq_open", unix.EPERM, with(badPtr, 0, 0, 0), false},
		{"mbind", unix.EPERM, with(0, 0, 0, 0, 0, 0), false},
		{"move_pages", unix.EPERM, with(0, 0, 0, 0, 0, 0), false},
		{"migrate_pages", unix.EPERM, with(1<<30, 0, 0, 0), false},
		{"memfd_secret", unix.ENOSYS, with(0), false},

		{"personality", unix.EPERM, with(8), false},
		{"modify_ldt", unix.EPERM, with(0, 0, 0), false},
		{"iopl", unix.EPERM, with(0), false},
		{"ioperm", unix.EPERM, with(0, 1, 0), false},
		{"kexec_load", unix.EPERM, with(0, 0, 0, 0), true},
		{"kexec_file_load", unix.EPERM, with(badFD, badFD, 0, 0, 0), true},
		{"init_module", unix.EPERM, with(badPtr, 0, badPtr), true},
		{"finit_module", unix.EPERM, with(badFD, badPtr, 0), true},
		{"delete_module", unix.EPERM, with(badPtr, 0), true},
		{"reboot", unix.EPERM, with(0, 0, 0, 0), true}, // magic numbers are wrong
		{"swapon", unix.EPERM, with(badPtr, 0), true},
		{"swapoff", unix.EPERM, with(badPtr), true},
		{"acct", unix.EPERM, with(badPtr), true},
		{"quotactl", unix.EPERM, with(0xff, 0, 0, 0), false},
		{"quotactl_fd", unix.EPERM, with(badFD, 0xff, 0, 0), false},
		{"syslog", unix.EPERM, with(10, 0, 0), false},
		{"settimeofday", unix.EPERM, with(badPtr, 0), false},
		{"clock_settime", unix.EPERM, with(0, badPtr), false},
	}
	return slices.DeleteFunc(list, func(p probe) bool { return !newTestFilter(runtime.GOARCH, nil).has(p.call()) })
}

// kept holds what system calls point to.
var kept [][]byte

func addr(s string) uintptr {
	b := append([]byte(s), 0)
	kept = append(kept, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

func tmpPath(name string) uintptr { return addr("/tmp/" + name) }

// made returns the path of a file that exists.
func made(name string) uintptr {
	if err := os.WriteFile("/tmp/"+name, nil, 0o600); err != nil {
		panic(err)
	}
	return tmpPath(name)
}

func opened(path uintptr) uintptr {
	r, _, errno := syscall.RawSyscall6(unix.SYS_OPENAT, badFD, path, unix.O_RDWR, 0, 0, 0)
	if errno != 0 {
		panic(errno)
	}
	return r
}

// terminal makes a terminal and gives it to this process, as what can be typed into.
func terminal() uintptr {
	_, _ = unix.Setsid() // fails the second time
	m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		panic(err)
	}
	if err := unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0); err != nil {
		panic(err)
	}
	n, err := unix.IoctlGetInt(m, unix.TIOCGPTN)
	if err != nil {
		panic(err)
	}
	s, err := unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		panic(err)
	}
	_ = unix.IoctlSetInt(s, unix.TIOCSCTTY, 0)
	return uintptr(s)
}

// proberRole makes the calls that its arguments name and prints their errors,
// 0 for none.
func proberRole() int {
	list := probes()
	for _, name := range os.Args[1:] {
		switch i := slices.IndexFunc(list, func(p probe) bool { return p.name == name }); {
		case i >= 0:
			fmt.Printf("%s: %d\n", name, list[i].run())
		case name == "x32":
			fmt.Printf("%s: %d\n", name, rawCall(0x40000000+unix.SYS_GETPID))
		case name == "unknown":
			fmt.Printf("%s: %d\n", name, rawCall(newestCall+1))
		case name == "int 0x80":
			fmt.Printf("%s: pid %d\n", name, int80(20))
		default:
			fmt.Println("no such probe:", name)
			return 1
		}
	}
	return 0
}

func (p probe) run() syscall.Errno {
	return rawCall(uintptr(callNumbers[p.call()][archs[runtime.GOARCH].column]), p.args()...)
}

func rawCall(number uintptr, args ...uintptr) syscall.Errno {
	var a [6]uintptr
	copy(a[:], args)
	_, _, errno := syscall.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	runtime.KeepAlive(kept)
	return errno
}

// int80 makes a call of the 32-bit interface, by machine code in memory.
func int80(number byte) int64 {
	code, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		panic(err)
	}
	copy(code, []byte{0xb8, number, 0, 0, 0, 0xcd, 0x80, 0x48, 0x98, 0xc3}) // mov eax, number; int 0x80; cdqe; ret
	entry := &code[0]
	closure := &entry
	return (*(*func() int64)(unsafe.Pointer(&closure)))()
}

// prober returns a run of the test binary as the prober.
func prober(t testing.TB, names ...string) Run {
	t.Helper()
	program := filepath.Join(t.TempDir(), "prober")
	in, err := os.Open("/proc/self/exe")
	must(t, err)
	defer in.Close()
	out, err := os.OpenFile(program, os.O_CREATE|os.O_WRONLY, 0o755)
	must(t, err)
	_, err = io.Copy(out, in)
	must(t, errors.Join(err, out.Close()))
	return Run{
		Argv: append([]string{"/opt/prober"}, names...), Env: []string{roleEnv + "=prober"},
		Binds: []Bind{{program, "/opt/prober"}}, Limits: Limits{Timeout: 60 * time.Second},
	}
}

// answers are the lines of the prober.
func answers(t testing.TB, res Result) map[string]string {
	t.Helper()
	got := map[string]string{}
	for s := bufio.NewScanner(bytes.NewReader(res.Stdout.Text)); s.Scan(); {
		name, value, ok := strings.Cut(s.Text(), ": ")
		if !ok {
			t.Fatalf("prober: %s", s.Text())
		}
		got[name] = value
	}
	return got
}

// result has the prober try one thing and returns what it got.
func result(t testing.TB, r *Runner, run Run, name string) string {
	t.Helper()
	run.Argv = []string{run.Argv[0], name}
	res, _ := mustRun(t, r, run)
	if res.Outcome == Signaled {
		return res.Signal
	}
	if got, ok := answers(t, res)[name]; ok {
		return got
	}
	t.Fatalf("%s: %s, exit %d: %s", name, res.Outcome, res.ExitCode, res.Stderr.Text)
	return ""
}

// withRules is a Runner whose filter has other rules.
func withRules(t testing.TB, rules []rule) *Runner {
	t.Helper()
	r := newRunner(t)
	r.filter = mustCompile(runtime.GOARCH, rules)
	return r
}

// withoutFilter is a Runner whose filter allows everything.
func withoutFilter(t testing.TB) *Runner {
	t.Helper()
	r := newRunner(t)
	r.filter = []byte{opRet, 0, 0, 0, 0, 0, 0xff, 0x7f}
	return r
}

// TestSystemCalls makes every call that has a rule, in the sandbox and in the
// program that Bare starts.
func TestSystemCalls(t *testing.T) {
	r := newRunner(t)
	list := probes()
	var names []string
	for _, p := range list {
		names = append(names, p.name)
	}
	check := func(t *testing.T, got map[string]string) {
		for _, p := range list {
			if got[p.name] != fmt.Sprint(int(p.want)) {
				t.Errorf("%s: %q, want %d (%v)", p.name, got[p.name], p.want, p.want)
			}
		}
		for _, r := range filterRules(false) {
			for _, name := range strings.Fields(r.calls) {
				if newTestFilter(runtime.GOARCH, nil).has(name) && !slices.ContainsFunc(list, func(p probe) bool { return p.call() == name && uint32(p.want) == r.errno }) {
					t.Errorf("no probe of %s", name)
				}
			}
		}
	}
	t.Run("Run", func(t *testing.T) {
		res, _ := mustExit(t, r, prober(t, names...))
		check(t, answers(t, res))
	})
	t.Run("Bare", func(t *testing.T) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd, release, err := r.Bare(t.Context(), prober(t, names...))
		must(t, err)
		defer release()
		out, err := cmd.Output()
		must(t, err)
		check(t, answers(t, Result{Stdout: Output{Text: out}}))
	})
}

// TestSystemCallsWithoutTheRule: each answer comes from the rule and not from
// somewhere else. Where the kernel refuses the same call in the same way, the
// rule is only tested by TestEveryRuleIsTested.
func TestSystemCallsWithoutTheRule(t *testing.T) {
	newRunner(t)
	run := prober(t)
	rules := filterRules(false)
	seen := 0
	list := probes()
	for _, p := range list {
		t.Run(p.name, func(t *testing.T) {
			i := slices.IndexFunc(rules, func(r rule) bool {
				return slices.Contains(strings.Fields(r.calls), p.call()) && r.errno == uint32(p.want)
			})
			got := result(t, withRules(t, without(rules, i, p.call())), run, p.name)
			switch {
			case p.privileged:
				if absent := fmt.Sprint(int(unix.ENOSYS)); got != fmt.Sprint(int(p.want)) && got != absent {
					t.Errorf("the kernel answers %s", got)
				}
			case got != fmt.Sprint(int(p.want)):
				seen++
			default:
				t.Skipf("SKIP this kernel answers %v by itself", p.want)
			}
		})
	}
	t.Logf("%d of %d answers change without the rule", seen, len(list))
	if seen < len(list)*2/3 {
		t.Errorf("only %d of %d answers come from the filter", seen, len(list))
	}
}

// TestVsock: the way to a hypervisor, which no network namespace closes.
func TestVsock(t *testing.T) {
	run := prober(t)
	const name = "socket AF_VSOCK"
	if got := result(t, newRunner(t), run, name); got != fmt.Sprint(int(unix.EAFNOSUPPORT)) {
		t.Errorf("got %s", got)
	}
	switch got := result(t, withoutFilter(t), run, name); got {
	case "0":
	case fmt.Sprint(int(unix.EAFNOSUPPORT)):
		t.Skip("SKIP this kernel has no AF_VSOCK to be let in to")
	default:
		t.Errorf("without the filter: %s", got)
	}
}

// TestIOUring: its operations are not seen by a filter, so it does not exist.
func TestIOUring(t *testing.T) {
	run := prober(t)
	r, free := newRunner(t), withoutFilter(t)
	absent := fmt.Sprint(int(unix.ENOSYS))
	for _, name := range []string{"io_uring_setup", "io_uring_enter", "io_uring_register"} {
		if got := result(t, r, run, name); got != absent {
			t.Errorf("%s: got %s", name, got)
		}
		switch got := result(t, free, run, name); got {
		case fmt.Sprint(int(unix.EFAULT)), fmt.Sprint(int(unix.EBADF)), fmt.Sprint(int(unix.EINVAL)): // of its arguments
		case absent, fmt.Sprint(int(unix.EPERM)):
			t.Skipf("SKIP this kernel has no io_uring for anybody: errno %s", got)
		default:
			t.Errorf("%s without the filter: %s", name, got)
		}
	}
}

// TestInt80: a call of the 32-bit interface has other numbers, so it is the end.
func TestInt80(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("SKIP int 0x80 is of amd64")
	}
	run := prober(t)
	if got := result(t, newRunner(t), run, "int 0x80"); got != "SIGSYS" {
		t.Errorf("with the filter: %s", got)
	}
	switch got := result(t, withoutFilter(t), run, "int 0x80"); {
	case got == "SIGSEGV":
		t.Log("SKIP this kernel has no 32-bit interface")
	case !strings.HasPrefix(got, "pid ") || strings.HasPrefix(got, "pid -"):
		t.Errorf("without the filter: %s", got)
	}
}

// TestX32: numbers of the x32 interface, and such as no kernel has yet. Most
// kernels say ENOSYS to both by themselves. That it is the filter that says it
// shows when its word is changed.
func TestX32(t *testing.T) {
	run := prober(t)
	r, other := newRunner(t), newRunner(t)
	const last = 5*8 + 4 // the operand of the instruction that refuses what is above newestCall
	other.filter = slices.Clone(other.filter)
	if word := binary.LittleEndian.Uint32(other.filter[last:]); word != retErrno|eNOSYS {
		t.Fatalf("the filter has %#x there", word)
	}
	binary.LittleEndian.PutUint32(other.filter[last:], retErrno|uint32(unix.EXDEV))
	for _, name := range []string{"x32", "unknown"} {
		if got := result(t, r, run, name); got != fmt.Sprint(int(unix.ENOSYS)) {
			t.Errorf("%s: got %s", name, got)
		}
		if got := result(t, other, run, name); got != fmt.Sprint(int(unix.EXDEV)) {
			t.Errorf("%s: the answer is not the filter's: %s", name, got)
		}
		t.Logf("%s without the filter: %s", name, result(t, withoutFilter(t), run, name))
	}
}

// TestTIOCSTI: typing into a terminal, also with a number that has bit 32 set,
// which the kernel does not look at (CVE-2019-10063).
func TestTIOCSTI(t *testing.T) {
	run := prober(t)
	for _, name := range []string{"ioctl TIOCSTI", "ioctl TIOCSTI with bit 32"} {
		if got := result(t, newRunner(t), run, name); got != fmt.Sprint(int(unix.EPERM)) {
			t.Errorf("%s: got %s", name, got)
		}
		switch got := result(t, withoutFilter(t), run, name); got {
		case "0":
		case fmt.Sprint(int(unix.EIO)):
			t.Skip("SKIP this kernel lets nobody type (dev.tty.legacy_tiocsti=0)")
		default:
			t.Errorf("%s without the filter: %s", name, got)
		}
	}
}

// TestNoSetuidFileOnTheHost: not even while the script runs is there a file
// with such a bit where scripts keep what they write, or where the host looks.
func TestNoSetuidFileOnTheHost(t *testing.T) {
	const script = `cp /bin/true f; mkdir d; chmod 4755 f; chmod 2755 d; install -m 6755 /bin/true g; echo made; read -r _; exit 0`
	for _, tc := range []struct {
		name string
		free bool // without the filter
		want int
	}{{"with the filter", false, 0}, {"without", true, 3}} {
		t.Run(tc.name, func(t *testing.T) {
			scratch := filepath.Join(t.TempDir(), "scratch")
			r := runnerWith(t, Config{Disk: true, Scratch: scratch})
			if tc.free {
				r.filter = withoutFilter(t).filter
			}
			var found []string
			run := bash(script)
			made := make(chan struct{}, 1)
			run.Tap = func(s Stream, p []byte) {
				if s == Stdout && bytes.Contains(p, []byte("made\n")) {
					made <- struct{}{}
				}
			}
			run.Stdin = readerFunc(func([]byte) (int, error) {
				<-made
				found = setIDFiles(t, scratch)
				return 0, io.EOF
			})
			_, c := mustExit(t, r, run)
			if len(found) != tc.want {
				t.Errorf("found %q, want %d", found, tc.want)
			}
			if left := setIDFiles(t, scratch); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
			for _, ch := range c.list {
				if ch.Mode&^0o777 != 0 {
					t.Errorf("%s has mode %o", ch.Path, ch.Mode)
				}
			}
		})
	}
}

func setIDFiles(t testing.TB, dir string) (found []string) {
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return nil // the work directory of an overlay is closed to its owner
		}
		info, err := d.Info()
		if err == nil && info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
			found = append(found, filepath.Base(path))
		}
		return nil
	}))
	return found
}

// TestNothingRunsWithoutAFilter: on an architecture without a table.
func TestNothingRunsWithoutAFilter(t *testing.T) {
	r := newRunner(t)
	r.filter, r.filterErr = compileFilter("riscv64", filterRules(false))
	_, err := r.Run(t.Context(), bash("true"), nil)
	check(t, err, ErrUnavailable, "there is no system call filter for riscv64", "amd64 or arm64")
	if _, _, err := r.Bare(t.Context(), bash("true")); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Bare: %v", err)
	}
	if rep := r.Probe(t.Context()); rep.OK || !strings.Contains(rep.Cause, "riscv64") {
		t.Errorf("report %+v", rep)
	}
}

// TestDamagedFilter: bubblewrap and the kernel take no program that is not one.
func TestDamagedFilter(t *testing.T) {
	for name, filter := range map[string][]byte{
		"empty": {}, "half an instruction": {opRet, 0, 0, 0}, "no end": {opLoad, 0, 0, 0, 0, 0, 0, 0}, "no instruction": {0xff, 0xff, 0, 0, 0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRunner(t)
			r.filter = filter
			res, err := r.Run(t.Context(), bash("echo ran"), nil)
			if err == nil || res.Outcome != SetupFailed || res.Stdout.Total != 0 {
				t.Errorf("outcome %s, error %v, output %q", res.Outcome, err, res.Stdout.Text)
			}
		})
	}
}

// TestKernelWithoutSeccomp: where the kernel takes no filter, nothing is run.
// Such a kernel is made by a filter that refuses filters.
func TestKernelWithoutSeccomp(t *testing.T) {
	newRunner(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"=no seccomp")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "UNAVAILABLE the kernel takes no system call filter (seccomp); use a kernel with CONFIG_SECCOMP") {
		t.Errorf("%v: %s", err, out)
	}
}

// noSeccompRole runs a script under a filter that lets no other be set.
func noSeccompRole() int {
	program, err := assemble(runtime.GOARCH, nil)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	refuse := callBlock([]rule{{"prctl", uint32(unix.EINVAL), when(among(0, unix.PR_SET_SECCOMP)), ""}})
	refuse = append([]instr{{opJEQ, 0, uint8(len(refuse)), unix.SYS_PRCTL}}, refuse...)
	last := len(program) - 1
	program = append(append(slices.Clone(program[:last]), refuse...), program[last])
	filter := make([]unix.SockFilter, len(program))
	for i, in := range program {
		filter[i] = unix.SockFilter{Code: in.code, Jt: in.jt, Jf: in.jf, K: in.k}
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		fmt.Println(err)
		return 1
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog))); errno != 0 {
		fmt.Println("seccomp:", errno)
		return 1
	}
	r, err := New(context.Background(), Config{})
	if err == nil {
		defer r.Close()
		_, err = r.Run(context.Background(), bash("true"), nil)
	}
	var se *SetupError
	if !errors.As(err, &se) || !errors.Is(err, ErrUnavailable) {
		fmt.Println("error:", err)
		return 1
	}
	fmt.Printf("UNAVAILABLE %s; %s\n", se.Cause, se.Remedy)
	return 0
}
