package sandboxrun

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
)

// The synthetic /etc. The ids are those inside the sandbox.
const (
	etcPasswd = "root:x:0:0:root:/root:/usr/sbin/nologin\nsandbox:x:1000:1000:sandbox:/home/user:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
	etcGroup  = "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n"
	etcHosts  = "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n"
	etcSwitch = "passwd: files\ngroup: files\nshadow: files\nhosts: files\nservices: files\nprotocols: files\n"
)

// etcData are the files of the synthetic /etc.
func etcData() []Data {
	return []Data{
		{Path: "/etc/passwd", Mode: 0o644, Bytes: []byte(etcPasswd)},
		{Path: "/etc/group", Mode: 0o644, Bytes: []byte(etcGroup)},
		{Path: "/etc/hosts", Mode: 0o644, Bytes: []byte(etcHosts)},
		{Path: "/etc/nsswitch.conf", Mode: 0o644, Bytes: []byte(etcSwitch)},
	}
}

// view is what the argument list of bwrap needs besides the Run.
type view struct {
	workspace string   // directory bound as /workspace; "" = a tmpfs
	binds     []string // where the sources of Run.Binds are
	data      []Data   // all data files, those of the synthetic /etc first
	firstData int      // descriptor of data[0]; the others follow
	filter    int      // descriptor of the system call filter
	root      []string // arguments that show the programs of the host
	rooms     []string // where the stage made places; nil = bwrap makes a tmpfs each
	none      string   // a file that nobody can read
	masked    []string // files of /proc in whose place it stands
}

// isolation are the options that make the sandbox one: every namespace by
// name (--unshare-all tolerates failures), no further user namespaces, no
// capabilities, no controlling terminal, and death with the parent.
var isolation = []string{
	"--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup",
	"--disable-userns", "--assert-userns-disabled",
	"--uid", "1000", "--gid", "1000", "--hostname", "sandbox",
	"--die-with-parent", "--new-session", "--cap-drop", "ALL",
	"--clearenv",
}

// bwrapArgs returns the options of bwrap for a run. Their order is the order
// of the mounts: the workspace is the last one and nothing is mounted below
// it, because a script can plant links there (CVE-2026-87766). The system call
// filter is set by bubblewrap after all of them, right before the command.
func bwrapArgs(r Run, l Limits, v view) []string {
	if r.jail != nil {
		return jailArgs(r, v)
	}
	a := appendEnv(append([]string{}, isolation...), r.environment())
	a = appendRoot(a, v)
	a = append(a, "--proc", "/proc", "--dev", "/dev")
	for _, file := range v.masked {
		a = append(a, "--ro-bind", v.none, file)
	}
	for i, p := range r.places(l) {
		if v.rooms == nil {
			a = appendTmpfs(a, fmt.Sprintf("%04o", p.perms), p.bytes, p.path)
			continue
		}
		a = append(a, "--bind", v.rooms[i], p.path)
	}
	for i, b := range r.Binds {
		a = append(a, "--ro-bind", v.binds[i], b.Target)
	}
	switch {
	case v.workspace == "":
		a = appendTmpfs(a, "0755", l.WriteBytes, "/workspace")
	case r.ReadOnly:
		a = append(a, "--ro-bind", v.workspace, "/workspace")
	default:
		a = append(a, "--bind", v.workspace, "/workspace")
	}
	return append(a, "--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/workspace",
		"--seccomp", strconv.Itoa(v.filter))
}

// environment is what the command starts with. Of two values for one name the
// last one counts, so that a Run can have a PATH of its own.
func (r Run) environment() []string {
	fixed := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/home/user", "TMPDIR=/tmp", "LANG=C.UTF-8"}
	at := map[string]int{}
	var env []string
	for _, kv := range append(fixed, r.Env...) {
		name, _, _ := strings.Cut(kv, "=")
		if i, double := at[name]; double {
			env[i] = kv
			continue
		}
		at[name] = len(env)
		env = append(env, kv)
	}
	return env
}

func appendEnv(a, env []string) []string {
	for _, kv := range env {
		k, val, _ := strings.Cut(kv, "=")
		a = append(a, "--setenv", k, val)
	}
	return a
}

// appendRoot makes the root of the sandbox, with the programs of the host and the
// data files.
func appendRoot(a []string, v view) []string {
	a = append(a, "--perms", "0755", "--size", strconv.Itoa(smallTmpfs), "--tmpfs", "/")
	a = append(a, v.root...)
	for i, d := range v.data {
		mode := d.Mode
		if mode == 0 {
			mode = 0o444
		}
		a = append(a, "--perms", fmt.Sprintf("%04o", mode), "--ro-bind-data", strconv.Itoa(v.firstData+i), d.Path)
	}
	return a
}

// place is a directory of limited size that a script has besides the workspace.
type place struct {
	path         string
	perms        uint32
	bytes, files int64
}

func (r Run) places(l Limits) []place {
	if r.jail != nil {
		return []place{{"/tmp", 0o1777, l.TmpBytes, l.WriteFiles}}
	}
	return []place{
		{"/dev/shm", 0o1777, l.ShmBytes, l.WriteFiles},
		{"/tmp", 0o1777, l.TmpBytes, l.WriteFiles},
		{"/home/user", 0o700, l.HomeBytes, l.WriteFiles},
	}
}

// pointsBelow counts the files and directories that bubblewrap makes in a place so
// that there is something to mount a bind on.
func (r Run) pointsBelow(dir string) int64 {
	made := map[string]bool{}
	for _, b := range r.Binds {
		for p := b.Target; strings.HasPrefix(p, dir+"/"); p = path.Dir(p) {
			made[p] = true
		}
	}
	return int64(len(made))
}

// ofHost are the files of /proc that are no matter of a namespace and tell of the
// host's users and disks, or what it was booted with, which may be a secret: the
// keys of the user who runs the server, by name, are in two of them.
var ofHost = []string{"cmdline", "diskstats", "key-users", "keys", "partitions", "swaps"}

// hostSecrets returns those that the kernel has, given its /proc.
func hostSecrets(proc string) []string {
	var files []string
	for _, name := range ofHost {
		if _, err := os.Lstat(path.Join(proc, name)); err == nil {
			files = append(files, "/proc/"+name)
		}
	}
	return files
}

func appendTmpfs(a []string, perms string, size int64, dest string) []string {
	return append(a, "--perms", perms, "--size", strconv.FormatInt(size, 10), "--tmpfs", dest)
}

// hostRoot returns the arguments that show the programs of the host below
// root ("/" but for tests): /usr, and /bin, /lib and the like as the links
// that they are on merged systems, or bound when they are real directories.
func hostRoot(root string) []string {
	a := []string{"--ro-bind", "/usr", "/usr"}
	for _, dir := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		info, err := os.Lstat(path.Join(root, dir))
		switch {
		case err != nil:
		case info.IsDir():
			a = append(a, "--ro-bind", "/"+dir, "/"+dir)
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(path.Join(root, dir))
			if err == nil && strings.HasPrefix(path.Join("/", target), "/usr/") {
				a = append(a, "--symlink", target, "/"+dir)
			}
		}
	}
	return append(a, "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--ro-bind-try", "/etc/alternatives", "/etc/alternatives")
}
