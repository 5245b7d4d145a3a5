package sandboxrun

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestDiagnose: each text of bubblewrap that is known, with its cause.
func TestDiagnose(t *testing.T) {
	plain := hostFacts{scarce: "user", most: 15000}
	for _, tc := range []struct {
		name, stderr  string
		host          hostFacts
		kind          error
		cause, remedy string // parts
	}{
		{"AppArmor, loopback", "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", hostFacts{appArmorRestricts: true}, ErrUnavailable, "AppArmor restricts user namespaces", "mcp-vdisk doctor prints"},
		{"AppArmor, uid map", "bwrap: setting up uid map: Permission denied", hostFacts{appArmorRestricts: true}, ErrUnavailable, "AppArmor restricts user namespaces", "AppArmor profiles"},
		{"loopback elsewhere", "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", plain, ErrUnavailable, "cannot have its own network: the kernel or a security module", "dmesg"},
		{"uid map in a container", "bwrap: setting up uid map: Operation not permitted", hostFacts{container: true}, ErrUnavailable, "container", "--security-opt"},
		{"gid map", "bwrap: setting up gid map: Permission denied", hostFacts{appArmorRestricts: true}, ErrUnavailable, "AppArmor restricts user namespaces", "mcp-vdisk doctor prints"},
		{"uid map elsewhere", "bwrap: setting up uid map: Permission denied", plain, ErrUnavailable, "no user namespace can be made: the kernel or a security module", "dmesg"},
		{"container seccomp", "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user namespaces. See <https://deb.li/bubblewrap> or <file:///usr/share/doc/bubblewrap/README.Debian.gz>.", hostFacts{container: true}, ErrUnavailable, "container", "--security-opt seccomp=unconfined"},
		{"seccomp without a container", "bwrap: No permissions to create a new namespace", hostFacts{seccomp: true}, ErrUnavailable, "seccomp filter", "seccomp"},
		{"Debian switch", "bwrap: No permissions to create new namespace", hostFacts{cloneForbidden: true}, ErrUnavailable, "kernel.unprivileged_userns_clone=0", "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"uid 0 in a container", "bwrap: Creating new namespace failed: Operation not permitted", hostFacts{container: true}, ErrUnavailable, "container", "--security-opt"},
		{"nesting", "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)", hostFacts{scarce: "user", most: 0}, ErrUnavailable, "user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces"},
		{"no network namespace", "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)", hostFacts{scarce: "net", most: 0}, ErrUnavailable, "user.max_net_namespaces is 0", "sysctl -w user.max_net_namespaces"},
		{"second user namespace", "bwrap: unshare user ns: No space left on device", hostFacts{scarce: "user", most: 1}, ErrUnavailable, "user.max_user_namespaces is 1", "sysctl"},
		{"limit unknown", "bwrap: unshare user ns: No space left on device", hostFacts{}, ErrUnavailable, "is unknown", "sysctl"},
		{"masked /proc", "bwrap: Can't mount proc on /newroot/proc: Operation not permitted", plain, ErrUnavailable, "covers parts of its own /proc", "systempaths=unconfined"},
		{"masked /proc in a pod", "bwrap: Can't mount proc on /newroot/proc: Operation not permitted", hostFacts{container: true}, ErrUnavailable, "covers parts of its own /proc", "Kubernetes: procMount: Unmasked"},
		{"mount blocked, EPERM", "bwrap: Failed to make / slave: Operation not permitted", hostFacts{container: true}, ErrUnavailable, "cannot mount anything", "--security-opt"},
		{"mount blocked, EACCES", "bwrap: Failed to make / slave: Permission denied", hostFacts{appArmorRestricts: true}, ErrUnavailable, "AppArmor", "apparmor"},
		{"initramfs", "bwrap: pivot_root: Invalid argument", plain, ErrUnavailable, "initramfs or a chroot", "real root file system"},
		{"WSL 1", "bwrap: Creating new namespace failed, likely because the kernel does not support user namespaces.  bwrap must be installed setuid on such systems.", hostFacts{wsl: true}, ErrUnavailable, "WSL 1", "wsl --set-version"},
		{"kernel without", "bwrap: Creating new namespace failed, likely because the kernel does not support user namespaces.  bwrap must be installed setuid on such systems.", plain, ErrUnavailable, "kernel has no user namespaces", "CONFIG_USER_NS"},
		{"source", "bwrap: Can't find source path /root/x: Permission denied", plain, ErrSetup, "directory that this user cannot search", "x permission"},
		{"parents", "bwrap: Can't mkdir parents for /opt/x: Permission denied", plain, ErrSetup, "mount target", "resolved paths"},
		{"links", "bwrap: Can't resolve /var/run/x: Too many levels of symbolic links", plain, ErrSetup, "mount target", "resolved paths"},
		{"old", "bwrap: Unknown option --disable-userns", plain, ErrUnavailable, "too old: it does not know --disable-userns", "install bubblewrap 0.8.0"},
		{"no processes", "bwrap: Can't fork for child: Resource temporarily unavailable", plain, ErrSetup, "no processes left", "ulimit -u"},
		{"capset", "bwrap: capset failed: Operation not permitted", plain, ErrUnavailable, "setuid", "not setuid"},
		{"setuid", "bwrap: Unexpected setuid privileges", plain, ErrUnavailable, "setuid", "not setuid"},
		{"no seccomp", "bwrap: Unable to set up system call filtering as requested: prctl(PR_SET_SECCOMP) reported EINVAL. (Hint: this requires a kernel configured with CONFIG_SECCOMP and CONFIG_SECCOMP_FILTER.)", hostFacts{seccomp: true}, ErrUnavailable, "the kernel takes no system call filter", "CONFIG_SECCOMP_FILTER"},
		{"seccomp not allowed", "bwrap: prctl(PR_SET_SECCOMP): Operation not permitted", hostFacts{container: true}, ErrUnavailable, "no system call filter can be set: the container", "--security-opt"},
		{"seccomp refused", "bwrap: prctl(PR_SET_SECCOMP): Permission denied", plain, ErrUnavailable, "the kernel takes no system call filter", "CONFIG_SECCOMP"},
		{"missing command", "bwrap: execvp /usr/bin/x: No such file or directory", plain, ErrSetup, "/usr/bin/x does not exist inside the sandbox", ""},
		{"foreign command", "bwrap: execvp /usr/bin/x: Exec format error", plain, ErrSetup, "/usr/bin/x cannot be run: Exec format error", ""},
		{"something new", "bwrap: flux capacitor: Value too large", plain, ErrSetup, "flux capacitor: Value too large", "doctor"},
		{"warnings before", "warning: x\nbwrap: flux capacitor", plain, ErrSetup, "up: flux capacitor", "doctor"},
		{"nothing", "", plain, ErrSetup, "bubblewrap could not set the sandbox up", "doctor"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			check(t, diagnose(tc.stderr+"\n", "/usr/bin/x", tc.host), tc.kind, tc.cause, tc.remedy)
		})
	}
}

func check(t *testing.T, err, kind error, cause, remedy string) {
	t.Helper()
	var se *SetupError
	if !errors.As(err, &se) || !errors.Is(err, kind) {
		t.Fatalf("error %v", err)
	}
	if !strings.Contains(se.Cause, cause) || !strings.Contains(se.Remedy, remedy) || (remedy == "") != (se.Remedy == "") {
		t.Errorf("cause %q, remedy %q", se.Cause, se.Remedy)
	}
	if strings.HasSuffix(se.Cause, ".") || strings.Contains(se.Cause, "\n") {
		t.Errorf("cause %q is no plain sentence", se.Cause)
	}
}

// TestDiagnoseStart: the errors of making the stage.
func TestDiagnoseStart(t *testing.T) {
	for _, tc := range []struct {
		errno  syscall.Errno
		host   hostFacts
		kind   error
		cause  string
		remedy string
	}{
		{syscall.EPERM, hostFacts{cloneForbidden: true}, ErrUnavailable, "unprivileged_userns_clone=0", "sysctl"},
		{syscall.EPERM, hostFacts{container: true}, ErrUnavailable, "container", "--security-opt"},
		{syscall.EACCES, hostFacts{appArmorRestricts: true}, ErrUnavailable, "AppArmor", "profile"},
		{syscall.EPERM, hostFacts{}, ErrUnavailable, "security module", "dmesg"},
		{syscall.ENOSPC, hostFacts{scarce: "user", most: 0}, ErrUnavailable, "max_user_namespaces is 0", "sysctl"},
		{syscall.EUSERS, hostFacts{scarce: "user", most: 3}, ErrUnavailable, "max_user_namespaces is 3", "sysctl"},
		{syscall.EINVAL, hostFacts{}, ErrUnavailable, "kernel has no user namespaces", "CONFIG_USER_NS"},
		{syscall.EINVAL, hostFacts{wsl: true}, ErrUnavailable, "WSL 1", "wsl"},
		{syscall.EAGAIN, hostFacts{}, ErrSetup, "no processes, memory or descriptors", "ulimit"},
		{syscall.EMFILE, hostFacts{}, ErrSetup, "no processes, memory or descriptors", "ulimit"},
		{syscall.EIO, hostFacts{}, ErrSetup, "could not be started: input/output error", ""},
	} {
		t.Run(fmt.Sprint(tc.errno, tc.host), func(t *testing.T) {
			err := &os.PathError{Op: "fork/exec", Path: "/proc/self/exe", Err: tc.errno}
			check(t, diagnoseStart(err, tc.host), tc.kind, tc.cause, tc.remedy)
		})
	}
}

// TestDiagnoseStep: the steps of the stage that can fail.
func TestDiagnoseStep(t *testing.T) {
	for _, tc := range []struct {
		step   string
		errno  syscall.Errno
		host   hostFacts
		kind   error
		cause  string
		remedy string
	}{
		{stepPrivate, syscall.EACCES, hostFacts{appArmorRestricts: true}, ErrUnavailable, "AppArmor", "profile"},
		{stepPrivate, syscall.EPERM, hostFacts{container: true}, ErrUnavailable, "container", "--security-opt"},
		{stepPrivate, syscall.EINVAL, hostFacts{}, ErrUnavailable, "chroot", "real root"},
		{stepTmpfs, syscall.EPERM, hostFacts{}, ErrUnavailable, "cannot mount anything", "dmesg"},
		{stepProc, syscall.EPERM, hostFacts{container: true}, ErrUnavailable, "covers parts of its own /proc", "systempaths"},
		{stepXattr, syscall.EOPNOTSUPP, hostFacts{}, ErrUnavailable, "no user xattrs", "scratch directory"},
		{stepOverlay, syscall.ENODEV, hostFacts{}, ErrUnavailable, "no overlayfs", "modprobe"},
		{stepOverlay, syscall.EPERM, hostFacts{}, ErrUnavailable, "without root", "5.11"},
		{stepOverlay, syscall.EPERM, hostFacts{container: true}, ErrUnavailable, "container", "--security-opt"},
		{stepOverlay, syscall.EINVAL, hostFacts{}, ErrSetup, "copy-on-write view", ""},
		{stepTest, syscall.EIO, hostFacts{}, ErrUnavailable, "does not work as needed", "5.11"},
		{stepLower, syscall.ENOENT, hostFacts{}, ErrSetup, "workspace directory cannot be opened", ""},
		{stepBind, syscall.ENOENT, hostFacts{}, ErrSetup, "cannot be opened", ""},
		{stepDisk, syscall.EOPNOTSUPP, hostFacts{}, ErrSetup, "scratch directory cannot be used", "ext4"},
		{stepBwrap, syscall.ENOENT, hostFacts{}, ErrUnavailable, "bubblewrap cannot be started", "install bubblewrap"},
		{stepBwrap, syscall.EIO, hostFacts{}, ErrSetup, "start bubblewrap", ""},
		{stepBwrap, syscall.E2BIG, hostFacts{}, ErrSetup, "too long", "file"},
		{"something else", syscall.EIO, hostFacts{}, ErrSetup, "something else", ""},
	} {
		t.Run(fmt.Sprint(tc.step, tc.errno), func(t *testing.T) {
			err := diagnoseStep(failure{Step: tc.step, Errno: uint64(tc.errno), Detail: tc.errno.Error()}, tc.host)
			check(t, err, tc.kind, tc.cause, tc.remedy)
			if helpedByDisk(err) != (tc.step == stepXattr) {
				t.Errorf("helped by disk: %v", helpedByDisk(err))
			}
		})
	}
}

// TestReadFacts reads them from a made-up host.
func TestReadFacts(t *testing.T) {
	root := t.TempDir()
	for name, content := range map[string]string{
		"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n",
		"proc/sys/kernel/unprivileged_userns_clone":             "0\n",
		"proc/sys/user/max_user_namespaces":                     "42\n",
		"proc/sys/user/max_net_namespaces":                      "7\n",
		"proc/sys/user/max_pid_namespaces":                      "many\n",
		"proc/version":                                          "Linux version 4.4.0-Microsoft\n",
		"proc/self/status":                                      "Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n",
		".dockerenv":                                            "",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/opt/mcp-vdisk", filepath.Join(root, "proc/self/exe")); err != nil {
		t.Fatal(err)
	}
	want := hostFacts{appArmorRestricts: true, cloneForbidden: true, scarce: "net", most: 7, container: true, seccomp: true, wsl: true, self: "/opt/mcp-vdisk"}
	if got := readFacts(root); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := readFacts(t.TempDir()); got != (hostFacts{}) {
		t.Errorf("of an empty host: %+v", got)
	}
}
