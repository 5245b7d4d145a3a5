package sandboxrun

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// hostFacts are what the cause of a failure is read from.
type hostFacts struct {
	appArmorRestricts bool   // kernel.apparmor_restrict_unprivileged_userns=1
	cloneForbidden    bool   // Debian: kernel.unprivileged_userns_clone=0
	scarce            string // kind of namespace with the lowest limit ("user", "net"); "" = unknown
	most              int    // that limit, /proc/sys/user/max_KIND_namespaces
	container         bool   // Docker, Podman and the like
	seccomp           bool   // a filter is set on this process
	wsl               bool
	self              string // real path of this program
}

// readFacts reads the facts below root ("/" but for tests).
func readFacts(root string) hostFacts {
	read := func(path string) string {
		b, _ := os.ReadFile(filepath.Join(root, path))
		return strings.TrimSpace(string(b))
	}
	exists := func(path string) bool {
		_, err := os.Stat(filepath.Join(root, path))
		return err == nil
	}
	f := hostFacts{
		appArmorRestricts: read("proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1",
		cloneForbidden:    read("proc/sys/kernel/unprivileged_userns_clone") == "0",
		container:         exists(".dockerenv") || exists("run/.containerenv"),
		wsl:               strings.Contains(strings.ToLower(read("proc/version")), "microsoft"),
	}
	f.self, _ = os.Readlink(filepath.Join(root, "proc/self/exe"))
	for _, kind := range []string{"user", "pid", "mnt", "net", "ipc", "uts", "cgroup"} {
		n, err := strconv.Atoi(read("proc/sys/user/max_" + kind + "_namespaces"))
		if err == nil && (f.scarce == "" || n < f.most) {
			f.scarce, f.most = kind, n
		}
	}
	for line := range strings.Lines(read("proc/self/status")) {
		f.seccomp = f.seccomp || strings.HasPrefix(line, "Seccomp:") && strings.Contains(line, "2")
	}
	return f
}

const (
	remedyContainer = "run the container with --security-opt seccomp=unconfined --security-opt systempaths=unconfined (Podman: --security-opt unmask=ALL; Kubernetes: procMount: Unmasked), or with a seccomp profile that allows clone, unshare, mount and pivot_root"
	remedyClone     = "sysctl -w kernel.unprivileged_userns_clone=1"
	remedyWSL1      = "use WSL 2: wsl --set-version <distribution> 2"
)

// refused explains why the host does not let this user make a namespace.
func refused(what, stderr string, h hostFacts) *SetupError {
	switch {
	case h.appArmorRestricts:
		e := unavailable(what+": AppArmor restricts user namespaces (kernel.apparmor_restrict_unprivileged_userns=1)", remedyAppArmor, stderr)
		e.Steps = stepsAppArmor(h.self)
		return e
	case h.cloneForbidden:
		return unavailable(what+": user namespaces are switched off (kernel.unprivileged_userns_clone=0)", remedyClone, stderr)
	case h.container:
		return unavailable(what+": the container that this process runs in does not allow it", remedyContainer, stderr)
	case h.seccomp:
		return unavailable(what+": a seccomp filter on this process does not allow it", remedyContainer, stderr)
	}
	return unavailable(what+": the kernel or a security module does not allow it", "run mcp-vdisk doctor, and look for a denial in the kernel log (dmesg)", stderr)
}

// exhausted explains why there is no room for another namespace: a sandbox needs
// one of each kind, and two of users'.
func exhausted(stderr string, h hostFacts) *SetupError {
	kind, limit := "user", "unknown"
	if h.scarce != "" {
		kind, limit = h.scarce, strconv.Itoa(h.most)
	}
	name := "user.max_" + kind + "_namespaces"
	return unavailable("no further namespace can be made: "+name+" is "+limit+", or this process is inside a sandbox already", "sysctl -w "+name+"=15000", stderr)
}

// diagnoseStart explains why the stage could not be started.
func diagnoseStart(err error, h hostFacts) error {
	text := errnoText(err)
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EUSERS):
		return exhausted(text, h)
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOSYS):
		return noNamespaces(text, h)
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return refused("no user namespace can be made", text, h)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return setupFailed("the host has no processes, memory or descriptors left for another sandbox", "wait until other work has ended, or raise the limits of the service (ulimit -u, ulimit -n)", text)
	}
	return setupFailed("the sandbox could not be started: "+text, "", text)
}

func noNamespaces(stderr string, h hostFacts) *SetupError {
	if h.wsl {
		return unavailable("this is WSL 1, which has no user namespaces", remedyWSL1, stderr)
	}
	return unavailable("the kernel has no user namespaces", "use a kernel with CONFIG_USER_NS, CONFIG_PID_NS and CONFIG_OVERLAY_FS", stderr)
}

// diagnoseStep explains why the stage gave up.
func diagnoseStep(f failure, h hostFacts) error {
	errno := syscall.Errno(f.Errno)
	denied := errno == syscall.EPERM || errno == syscall.EACCES
	switch f.Step {
	case stepPrivate, stepTmpfs:
		if denied {
			return refused("the sandbox cannot mount anything", f.Error(), h)
		}
		if errno == syscall.EINVAL {
			return noRealRoot(f.Error())
		}
	case stepProc:
		if denied {
			return maskedProc(f.Error(), h)
		}
	case stepXattr:
		e := unavailable("a tmpfs of this kernel keeps no user xattrs (it needs Linux 6.6)", "set a scratch directory on disk, or use a kernel of 6.6 or newer", f.Error())
		e.onDisk = true
		return e
	case stepOverlay:
		return noOverlay(f, errno, h)
	case stepTest:
		return unavailable("overlayfs of this kernel does not work as needed: "+f.Detail, "use a kernel of 5.11 or newer", f.Error())
	case stepGroup:
		e := setupFailed("the sandbox could not be started in a control group: "+errno.Error(), "", f.Error())
		e.noGroup = true
		return e
	case stepBwrap:
		switch errno {
		case syscall.E2BIG:
			return setupFailed("the arguments of the command are too long", "put them into a file or standard input", f.Error())
		case syscall.ENOENT, syscall.EACCES:
			return unavailable("bubblewrap cannot be started: "+errno.Error(), installRemedy, f.Error())
		}
	case stepLower:
		return setupFailed("the workspace directory cannot be opened: "+errno.Error(), "", f.Error())
	case stepBind:
		return setupFailed("something to be shown in the sandbox cannot be opened: "+f.Detail, "", f.Error())
	case stepDisk:
		return setupFailed("the scratch directory cannot be used: "+errno.Error(), "it must be on a file system with user xattrs, such as ext4, xfs or btrfs", f.Error())
	}
	return setupFailed("the sandbox could not be set up ("+f.Step+")", "", f.Error())
}

func noOverlay(f failure, errno syscall.Errno, h hostFacts) error {
	switch errno {
	case syscall.ENODEV:
		return unavailable("the kernel has no overlayfs", "modprobe overlay, or use a kernel with CONFIG_OVERLAY_FS", f.Error())
	case syscall.EPERM, syscall.EACCES:
		if !h.appArmorRestricts && !h.container {
			return unavailable("overlayfs cannot be mounted without root", "use a kernel of 5.11 or newer", f.Error())
		}
		return refused("overlayfs cannot be mounted", f.Error(), h)
	}
	return setupFailed("the copy-on-write view of the workspace could not be mounted: "+f.Detail, "", f.Error())
}

func maskedProc(stderr string, h hostFacts) *SetupError {
	if h.appArmorRestricts {
		return refused("/proc cannot be mounted", stderr, h)
	}
	return unavailable("/proc cannot be mounted in the sandbox: the container that this process runs in covers parts of its own /proc", remedyContainer, stderr)
}

func noRealRoot(stderr string) *SetupError {
	return unavailable("the root file system is an initramfs or a chroot, on which no sandbox can be built", "run mcp-vdisk on a real root file system", stderr)
}

// tooOld names the option that bubblewrap does not know.
func tooOld(stderr string, _ hostFacts) *SetupError {
	_, option, _ := strings.Cut(stderr, "Unknown option ")
	option, _, _ = strings.Cut(option, "\n")
	return unavailable("bubblewrap is too old: it does not know "+option, installRemedy, stderr)
}

// noFilter explains why the system call filter was not taken.
func noFilter(stderr string, h hostFacts) *SetupError {
	if !strings.Contains(stderr, "EINVAL") && (h.container || h.seccomp) {
		return unavailable("no system call filter can be set: the container or the filter that this process runs in does not allow it", remedyContainer, stderr)
	}
	return unavailable("the kernel takes no system call filter (seccomp)", "use a kernel with CONFIG_SECCOMP and CONFIG_SECCOMP_FILTER", stderr)
}

// symptom is a text of bwrap and what it means.
type symptom struct {
	all     []string // each must occur
	explain func(stderr string, h hostFacts) *SetupError
}

func refusal(what string) func(string, hostFacts) *SetupError {
	return func(stderr string, h hostFacts) *SetupError { return refused(what, stderr, h) }
}

func always(e SetupError) func(string, hostFacts) *SetupError {
	return func(stderr string, _ hostFacts) *SetupError {
		e := e
		e.Stderr = stderr
		return &e
	}
}

// symptoms are looked through in this order.
var symptoms = []symptom{
	{[]string{"kernel does not support user namespaces"}, noNamespaces},
	{[]string{"max_", "_namespaces exceeded"}, exhausted},
	{[]string{"No space left on device", "unshare user ns"}, exhausted},
	{[]string{"loopback", "Operation not permitted"}, refusal("the sandbox cannot have its own network")},
	{[]string{"setting up uid map"}, refusal("no user namespace can be made")},
	{[]string{"setting up gid map"}, refusal("no user namespace can be made")},
	{[]string{"No permissions to create"}, refusal("no user namespace can be made")},
	{[]string{"Creating new namespace failed"}, refusal("no user namespace can be made")},
	{[]string{"Can't mount proc", "not permitted"}, maskedProc},
	{[]string{"Failed to make / slave"}, refusal("the sandbox cannot mount anything")},
	{[]string{"pivot_root: Invalid argument"}, func(stderr string, _ hostFacts) *SetupError { return noRealRoot(stderr) }},
	{[]string{"PR_SET_SECCOMP"}, noFilter},
	{[]string{"setuid"}, always(setuidBwrap)}, {[]string{"capset failed"}, always(setuidBwrap)},
	{[]string{"Unknown option"}, tooOld},
	{[]string{"Resource temporarily unavailable"}, always(SetupError{Cause: "the host has no processes left for another sandbox",
		Remedy: "wait until other work has ended, or raise the limit of processes of the service (ulimit -u)", kind: ErrSetup})},
	{[]string{"Can't find source path", "Permission denied"}, always(SetupError{Cause: "something to be shown in the sandbox lies below a directory that this user cannot search",
		Remedy: "give its parent directories the x permission for this user", kind: ErrSetup})},
	{[]string{"Can't mkdir parents"}, always(badTarget)}, {[]string{"Too many levels of symbolic links"}, always(badTarget)},
}

var (
	setuidBwrap = SetupError{Cause: "bubblewrap is setuid and confined", Remedy: "use the build of bubblewrap that is not setuid", kind: ErrUnavailable}
	badTarget   = SetupError{Cause: "a mount target of the sandbox is below a symbolic link or a directory that cannot be searched",
		Remedy: "use resolved paths", kind: ErrSetup}
)

// diagnose explains why bwrap did not start the command, from what it wrote to stderr.
func diagnose(stderr, command string, h hostFacts) error {
	stderr = strings.TrimSpace(stderr)
	if reason, ok := strings.CutPrefix(lastLine(stderr), "bwrap: execvp "+command+": "); ok {
		switch reason {
		case "No such file or directory":
			return setupFailed(fmt.Sprintf("%s does not exist inside the sandbox", command), "", stderr)
		case "Argument list too long":
			return setupFailed("the arguments of the command are too long", "put them into a file or standard input", stderr)
		}
		return setupFailed(fmt.Sprintf("%s cannot be run: %s", command, reason), "", stderr)
	}
	for _, s := range symptoms {
		if !slices.ContainsFunc(s.all, func(part string) bool { return !strings.Contains(stderr, part) }) {
			return s.explain(stderr, h)
		}
	}
	return setupFailed("bubblewrap could not set the sandbox up: "+strings.TrimPrefix(lastLine(stderr), "bwrap: "), "run mcp-vdisk doctor", stderr)
}

func lastLine(s string) string { return s[strings.LastIndexByte(s, '\n')+1:] }
