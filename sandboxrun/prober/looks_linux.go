//go:build linux && (amd64 || arm64)

package prober

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// looks are the probes that look around. What they return is what they found,
// in words that are compared; an error means that they could not look.
func looks() map[string]func(*look) (string, error) {
	all := map[string]func(*look) (string, error){
		"id.uid":          func(*look) (string, error) { return fmt.Sprintf("uid %d gid %d", os.Getuid(), os.Getgid()), nil },
		"id.capabilities": func(*look) (string, error) { return capabilities() },
		"id.no_new_privs": func(*look) (string, error) { return statusOf("self", "NoNewPrivs") },
		"id.seccomp":      func(*look) (string, error) { return filters() },
		"id.groups":       func(*look) (string, error) { return groups() },
		"ns.hostname":     func(*look) (string, error) { return os.Hostname() },

		"proc.pids":         func(*look) (string, error) { n, err := pids(); return fmt.Sprint(len(n)), err },
		"proc.environ":      func(*look) (string, error) { return environments() },
		"proc.paths":        (*look).paths,
		"proc.core_pattern": open("/proc/sys/kernel/core_pattern", unix.O_WRONLY),
		"proc.sys":          func(*look) (string, error) { return writableSysctls() },
		"proc.kernel":       anyOpens("/proc/sysrq-trigger", "/proc/kcore", "/proc/kmsg", "/proc/kpageflags", "/dev/kmsg", "/dev/mem"),
		"proc.host":         anyOpens("/proc/keys", "/proc/key-users", "/proc/cmdline", "/proc/swaps", "/proc/partitions", "/proc/diskstats"),
		"proc.exe":          open("/proc/1/exe", unix.O_WRONLY),
		"proc.readonly":     open("/proc/self/oom_score_adj", unix.O_WRONLY),

		"files.canary":        func(l *look) (string, error) { return l.reads("") },
		"files.canary_root":   func(l *look) (string, error) { return l.reads("/proc/self/root") },
		"files.canary_init":   func(l *look) (string, error) { return l.reads("/proc/1/root") },
		"files.canary_cwd":    func(l *look) (string, error) { return l.reads("/proc/1/cwd") },
		"files.planted_link":  func(l *look) (string, error) { return got(tryOpen("/workspace/"+l.Link, unix.O_RDONLY)) },
		"files.root_home":     open("/root", unix.O_RDONLY),
		"files.shadow":        open("/etc/shadow", unix.O_RDONLY),
		"files.machine_id":    open("/etc/machine-id", unix.O_RDONLY),
		"files.var_lib":       open("/var/lib", unix.O_RDONLY),
		"files.boot":          open("/boot", unix.O_RDONLY),
		"files.run_systemd":   open("/run/systemd", unix.O_RDONLY),
		"files.docker_socket": anyThere("/var/run/docker.sock", "/run/docker.sock"),
		"files.sys":           anyThere("/sys/class/net", "/sys/fs/cgroup", "/sys/kernel/debug"),
		"files.old_root":      anyThere("/oldroot", "/newroot"),
		"files.create":        func(*look) (string, error) { return makesIn(fixedPlaces), nil },
		"files.writable":      func(*look) (string, error) { return refusedIn(ownPlaces), nil },
		"files.rename_out":    func(*look) (string, error) { return got(across(unix.Rename)) },
		"files.link_out":      func(*look) (string, error) { return got(across(unix.Link)) },

		"mount.nosuid":  func(*look) (string, error) { return mountsWithout("nosuid", nil) },
		"mount.nodev":   func(*look) (string, error) { return mountsWithout("nodev", inDev) },
		"mount.private": func(*look) (string, error) { return sharedMounts() },
		"mount.sized":   func(*look) (string, error) { return unsizedMounts() },
		"dev.names":     func(*look) (string, error) { return strangeDevices() },
		"dev.host":      anyThere("/dev/mem", "/dev/kmsg", "/dev/fuse", "/dev/kvm", "/dev/vda", "/dev/sda", "/dev/net/tun", "/dev/vsock", "/dev/vhost-vsock"),

		"net.interfaces": func(*look) (string, error) { return interfaces() },
		"net.host_listener": func(l *look) (string, error) {
			return got(connect(&unix.SockaddrInet4{Port: l.Port, Addr: [4]byte{127, 0, 0, 1}}))
		},
		"net.route": func(*look) (string, error) {
			return got(connect(&unix.SockaddrInet4{Port: 53, Addr: [4]byte{1, 1, 1, 1}}))
		},
		"net.abstract_socket":  func(l *look) (string, error) { return got(connect(&unix.SockaddrUnix{Name: "@" + l.Abstract})) },
		"net.workspace_socket": func(l *look) (string, error) { return got(connect(&unix.SockaddrUnix{Name: "/workspace/" + l.Socket})) },

		"tty.dev_tty":  open("/dev/tty", unix.O_RDWR),
		"tty.session":  func(*look) (string, error) { return session() },
		"fd.inherited": func(l *look) (string, error) { return l.descriptors, nil },
		"fd.stdin":     func(*look) (string, error) { return atEnd() },

		"limit.core":       limit(unix.RLIMIT_CORE),
		"limit.processes":  limit(unix.RLIMIT_NPROC),
		"limit.open_files": limit(unix.RLIMIT_NOFILE),
		"limit.memlock":    limit(unix.RLIMIT_MEMLOCK),
	}
	for _, ns := range []string{"user", "pid", "mnt", "net", "ipc", "uts", "cgroup"} {
		all["ns."+ns] = func(l *look) (string, error) { return l.namespace(ns) }
	}
	return all
}

// got turns the error of a call into what was observed.
func got(err error) (string, error) { return errnoName(err), nil }

func tryOpen(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func open(path string, flags int) func(*look) (string, error) {
	return func(*look) (string, error) { return got(tryOpen(path, flags)) }
}

// anyOpens lists the files that can be opened for reading or for writing.
func anyOpens(paths ...string) func(*look) (string, error) {
	return func(*look) (string, error) {
		return list(paths, func(p string) bool {
			return tryOpen(p, unix.O_RDONLY) == nil || tryOpen(p, unix.O_WRONLY) == nil
		}), nil
	}
}

// anyThere lists the paths that exist.
func anyThere(paths ...string) func(*look) (string, error) {
	return func(*look) (string, error) {
		return list(paths, func(p string) bool { _, err := os.Lstat(p); return err == nil }), nil
	}
}

func list(from []string, keep func(string) bool) string {
	var found []string
	for _, s := range from {
		if keep(s) {
			found = append(found, s)
		}
	}
	return some(found)
}

// some joins what was found, a few of many.
func some(found []string) string {
	slices.Sort(found)
	found = slices.Compact(found)
	const most = 8
	if len(found) > most {
		found = append(found[:most:most], fmt.Sprintf("and %d more", len(found)-most))
	}
	return strings.Join(found, ", ")
}

// statusOf reads a line of /proc/PID/status.
func statusOf(pid, key string) (string, error) {
	b, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("no line %s in the status of %s", key, pid)
}

// capabilities lists the sets that are not empty.
func capabilities() (string, error) {
	var found []string
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		v, err := statusOf("self", set)
		if err != nil {
			return "", err
		}
		if strings.Trim(v, "0") != "" {
			found = append(found, set+" "+v)
		}
	}
	return some(found), nil
}

// filters is the seccomp mode of the init of the sandbox and of the prober.
func filters() (string, error) {
	init, err := statusOf("1", "Seccomp")
	if err != nil {
		return "", err
	}
	self, err := statusOf("self", "Seccomp")
	return init + " " + self, err
}

func groups() (string, error) {
	all, err := os.Getgroups()
	if err != nil {
		return "", err
	}
	var names []string
	for _, g := range all {
		if g != os.Getgid() {
			names = append(names, fmt.Sprint(g))
		}
	}
	return some(names), nil
}

// namespace compares a namespace with that of the host.
func (l *look) namespace(kind string) (string, error) {
	own, err := os.Readlink("/proc/self/ns/" + kind)
	switch {
	case err != nil:
		return "", err
	case l.Namespaces[kind] == "":
		return "", fmt.Errorf("the host's namespace of kind %s is not known", kind)
	case own == l.Namespaces[kind]:
		return "the host's", nil
	}
	return "its own", nil
}

func pids() ([]string, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err == nil && len(dirs) == 0 {
		err = fs.ErrNotExist
	}
	return dirs, err
}

// environments lists every variable of every process in sight that is not one
// of the five that a script is given, with the value that it is given.
func environments() (string, error) {
	given := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/home/user", "TMPDIR=/tmp", "LANG=C.UTF-8", "PWD=/workspace"}
	dirs, err := pids()
	if err != nil {
		return "", err
	}
	texts := [][]byte{[]byte(strings.Join(os.Environ(), "\x00"))}
	for _, d := range dirs {
		b, err := os.ReadFile(d + "/environ")
		if err == nil {
			texts = append(texts, b)
		}
	}
	var found []string
	for _, text := range texts {
		for kv := range bytes.SplitSeq(text, []byte{0}) {
			if len(kv) > 0 && !slices.Contains(given, string(kv)) {
				name, _, _ := strings.Cut(string(kv), "=")
				found = append(found, name)
			}
		}
	}
	return some(found), nil
}

// paths lists where a path of the host shows: in command lines and in the
// tables of mounts.
func (l *look) paths() (string, error) {
	if len(l.Secrets) == 0 {
		return "", fmt.Errorf("no paths to look for were given")
	}
	dirs, err := pids()
	if err != nil {
		return "", err
	}
	var found []string
	for _, d := range dirs {
		for _, name := range []string{"cmdline", "mountinfo", "mounts"} {
			b, err := os.ReadFile(filepath.Join(d, name))
			if err != nil {
				continue
			}
			for _, s := range l.Secrets {
				if bytes.Contains(b, []byte(s)) {
					found = append(found, filepath.Join(d, name))
				}
			}
		}
	}
	return some(found), nil
}

// writableSysctls opens every file of /proc/sys for writing, and writes none.
func writableSysctls() (string, error) {
	var found []string
	seen := 0
	err := filepath.WalkDir("/proc/sys", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // what cannot be listed cannot be opened by its name either
		}
		seen++
		if tryOpen(p, unix.O_WRONLY) == nil {
			found = append(found, p)
		}
		return nil
	})
	if err == nil && seen == 0 {
		err = fmt.Errorf("/proc/sys is empty")
	}
	return some(found), err
}

// reads tries the canary by a way to the root directory.
func (l *look) reads(root string) (string, error) {
	if l.Canary == "" {
		return "", fmt.Errorf("no canary was given")
	}
	return got(tryOpen(root+l.Canary, unix.O_RDONLY))
}

// fixedPlaces are directories in which nothing may be made; ownPlaces are those
// of the script.
var (
	fixedPlaces = []string{"/", "/usr", "/usr/bin", "/etc", "/bin", "/lib", "/dev", "/dev/pts", "/proc", "/proc/sys", "/home", "/run", "/run/vdisk", "/opt"}
	ownPlaces   = []string{"/workspace", "/tmp", "/dev/shm", "/home/user"}
)

// makeFile makes a file in a directory and removes it again.
func makeFile(dir string) error {
	name := filepath.Join(dir, fmt.Sprintf(".mcp-vdisk-prober-%d", os.Getpid()))
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	unix.Close(fd)
	return unix.Unlink(name)
}

func makesIn(dirs []string) string {
	return list(dirs, func(d string) bool { return makeFile(d) == nil })
}

func refusedIn(dirs []string) string {
	return list(dirs, func(d string) bool { return makeFile(d) != nil })
}

// across gives a file of /workspace a name in /tmp, by which it would escape
// the account of what was written.
func across(call func(from, to string) error) error {
	const from, to = "/workspace/.prober-across", "/tmp/.prober-across"
	fd, err := unix.Open(from, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	unix.Close(fd)
	defer unix.Unlink(to)
	defer unix.Unlink(from)
	return call(from, to)
}

// mount is a line of /proc/self/mountinfo (proc(5)).
type mount struct {
	point, options, kind, super string
	shared                      bool
}

func mounts() ([]mount, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var all []mount
	for line := range strings.Lines(string(b)) {
		before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 3 {
			return nil, fmt.Errorf("mountinfo has the line %q", line)
		}
		shared := slices.ContainsFunc(f[6:], func(s string) bool { return strings.HasPrefix(s, "shared:") })
		all = append(all, mount{f[4], f[5], g[0], g[2], shared})
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("mountinfo is empty")
	}
	return all, nil
}

func option(options, name string) bool { return slices.Contains(strings.Split(options, ","), name) }

// inDev are the mounts that devices are for.
func inDev(m mount) bool { return strings.HasPrefix(m.point, "/dev/") }

func mountsWithout(name string, except func(mount) bool) (string, error) {
	return mountsThat(func(m mount) bool {
		return !option(m.options, name) && (except == nil || !except(m))
	})
}

func sharedMounts() (string, error) { return mountsThat(func(m mount) bool { return m.shared }) }

// unsizedMounts lists the tmpfs that can be written and have no size.
func unsizedMounts() (string, error) {
	return mountsThat(func(m mount) bool {
		sized := slices.ContainsFunc(strings.Split(m.super, ","), func(o string) bool { return strings.HasPrefix(o, "size=") })
		return m.kind == "tmpfs" && option(m.options, "rw") && !sized && !inDevNode(m)
	})
}

// inDevNode tells the single device files that are mounted into /dev.
func inDevNode(m mount) bool {
	info, err := os.Lstat(m.point)
	return err == nil && info.Mode()&os.ModeDevice != 0
}

func mountsThat(keep func(mount) bool) (string, error) {
	all, err := mounts()
	var found []string
	for _, m := range all {
		if keep(m) {
			found = append(found, m.point)
		}
	}
	return some(found), err
}

func strangeDevices() (string, error) {
	known := []string{"null", "zero", "full", "random", "urandom", "tty", "pts", "ptmx", "shm", "fd", "stdin", "stdout", "stderr", "console", "core"}
	entries, err := os.ReadDir("/dev")
	var found []string
	for _, e := range entries {
		if !slices.Contains(known, e.Name()) {
			found = append(found, e.Name())
		}
	}
	return some(found), err
}

func interfaces() (string, error) {
	b, err := os.ReadFile("/proc/self/net/dev")
	var names []string
	for line := range strings.Lines(string(b)) {
		if name, _, ok := strings.Cut(line, ":"); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	return some(names), err
}

// connect tries to reach an address, for a second at most.
func connect(to unix.Sockaddr) error {
	family := unix.AF_INET
	if _, ok := to.(*unix.SockaddrUnix); ok {
		family = unix.AF_UNIX
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err = unix.Connect(fd, to); err != unix.EINPROGRESS {
		return err
	}
	if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 1000); n != 1 {
		return unix.ETIMEDOUT
	}
	if e, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || e != 0 {
		return unix.Errno(e)
	}
	return nil
}

// session says whether the prober is in a session that began in the sandbox.
func session() (string, error) {
	sid, err := unix.Getsid(0)
	if err != nil {
		return "", err
	}
	if sid == 0 {
		return "the host's", nil
	}
	return "its own", nil
}

// descriptors lists those that came with the process: what Go opened itself is
// closed by an exec.
func descriptors() string {
	var found []string
	for fd := range 1024 {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			found = append(found, fmt.Sprint(fd))
		}
	}
	return strings.Join(found, " ")
}

func atEnd() (string, error) {
	var b [1]byte
	n, err := os.Stdin.Read(b[:])
	if n == 0 && err == io.EOF {
		return "end of file", nil
	}
	return fmt.Sprintf("%d bytes", n), nil
}

// limit is a resource limit, soft and hard. The soft one of files may be lower
// for other programs: the Go runtime raises its own.
func limit(resource int) func(*look) (string, error) {
	return func(*look) (string, error) {
		var l unix.Rlimit
		if err := unix.Getrlimit(resource, &l); err != nil {
			return "", err
		}
		return fmt.Sprintf("%d/%d", l.Cur, l.Max), nil
	}
}
