package conformance

import (
	"context"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun/prober"
)

// hostRules is the suite of RunHost. The order is that of the report: first
// what the prober tries inside, then what is looked at from outside, then the
// control.
func hostRules() []hostRule {
	l := sandboxrun.DefaultLimits()
	inside := func(id string, w want, meaning string) hostRule {
		return hostRule{Rule: Rule{SuiteHost, "host." + id, meaning, w.text, "", true}, want: w}
	}
	rules := []hostRule{
		inside("id.uid", is("uid 1000 gid 1000"), "the script is user 1000"),
		inside("id.capabilities", nothing(), "capability sets that are not empty"),
		inside("id.no_new_privs", is("1"), "NoNewPrivs of the script"),
		inside("id.seccomp", is("2 2"), "seccomp mode of the sandbox's init and of the script: 2 is a filter"),
		inside("id.groups", nothing().orWeak("the groups of the user who runs mcp-vdisk go along as nobody's; only root can drop them"), "supplementary groups"),

		inside("ns.user", is("its own"), "user namespace"),
		inside("ns.pid", is("its own"), "pid namespace"),
		inside("ns.mnt", is("its own"), "mount namespace"),
		inside("ns.net", is("its own"), "network namespace"),
		inside("ns.ipc", is("its own"), "namespace of System V objects"),
		inside("ns.uts", is("its own"), "namespace of the host name"),
		inside("ns.cgroup", is("its own"), "cgroup namespace"),
		inside("ns.hostname", is("sandbox"), "host name"),
		inside("ns.unshare_user", is("EPERM", "ENOSPC", "ENOSYS"), "unshare(CLONE_NEWUSER): a namespace in which it would be root"),
		inside("ns.clone_user", is("EPERM", "ENOSPC", "ENOSYS"), "the same by clone"),
		inside("ns.clone3", refused, "clone3, whose flags no filter can see (CVE-2021-41133)"),
		inside("ns.unshare_mnt", refused, "unshare(CLONE_NEWNS)"),
		inside("ns.unshare_net", refused, "unshare(CLONE_NEWNET)"),
		inside("ns.setns", refused, "setns"),

		inside("proc.pids", atMost(6), "processes in sight"),
		inside("proc.environ", nothing(), "variables beyond PATH, HOME, TMPDIR, LANG and PWD, which every run has, in its own environment and in every /proc/PID/environ"),
		inside("proc.paths", nothing(), "command lines and mount tables in which a path of the host shows"),
		inside("proc.core_pattern", is("EROFS", "EACCES", "EPERM", "ENOENT"), "open /proc/sys/kernel/core_pattern for writing"),
		inside("proc.sys", nothing(), "files of /proc/sys that can be opened for writing"),
		inside("proc.kernel", nothing(), "sysrq-trigger, kcore, kmsg, mem and the like that can be opened"),
		inside("proc.host", nothing(), "files of /proc that tell of the host and of no namespace and can be read: the keys of the host's users, the boot's command line, swaps, disks"),
		inside("proc.exe", is("EACCES", "EROFS", "EPERM", "ENOENT"), "open /proc/1/exe for writing (CVE-2019-5736)"),
		inside("proc.readonly", is("EROFS"), "open /proc/self/oom_score_adj for writing: /proc is read-only"),

		inside("files.canary", noFile, "a file of the host's /tmp, by its path"),
		inside("files.canary_root", noFile, "the same through /proc/self/root"),
		inside("files.canary_init", noFile, "the same through /proc/1/root"),
		inside("files.canary_cwd", noFile, "the same through /proc/1/cwd"),
		inside("files.planted_link", noFile, "the same through a link in the workspace"),
		inside("files.root_home", noFile, "open /root"),
		inside("files.shadow", noFile, "open /etc/shadow"),
		inside("files.machine_id", noFile, "open /etc/machine-id"),
		inside("files.var_lib", noFile, "open /var/lib"),
		inside("files.boot", noFile, "open /boot"),
		inside("files.run_systemd", noFile, "open /run/systemd"),
		inside("files.docker_socket", nothing(), "the socket of Docker"),
		inside("files.sys", nothing(), "directories of /sys"),
		inside("files.old_root", nothing(), "where bubblewrap had the host's root"),
		inside("files.create", nothing(), "directories in which a file can be made: /, /usr, /etc, /bin, /lib, /dev, /proc, /home, /run and the like"),
		inside("files.writable", nothing(), "directories in which none can be made, of /workspace, /tmp, /dev/shm and $HOME"),
		inside("files.rename_out", is("EXDEV"), "rename a file of /workspace into /tmp"),
		inside("files.link_out", is("EXDEV"), "link a file of /workspace into /tmp"),
		inside("files.mknod_char", refused, "mknod of a character device"),
		inside("files.mknod_block", refused, "mknod of a block device"),
		inside("files.setuid_chmod", is("EPERM"), "chmod 4755"),
		inside("files.setgid_chmod", is("EPERM"), "chmod 2755"),
		inside("files.setuid_open", is("EPERM"), "open(O_CREAT, 04755)"),

		inside("mount.nosuid", nothing(), "mounts that honour setuid bits"),
		inside("mount.nodev", nothing(), "mounts that honour device files, those in /dev apart"),
		inside("mount.private", nothing(), "mounts that propagate to others"),
		inside("mount.sized", nothing(), "tmpfs that can be written and have no size"),
		inside("mount.mount", refused, "mount a tmpfs"),
		inside("mount.remount", refused, "mount -o remount,rw /"),
		inside("mount.umount", refused, "umount /tmp"),
		inside("mount.pivot_root", refused, "pivot_root"),
		inside("mount.chroot", refused, "chroot"),
		inside("mount.open_tree", refused, "open_tree"),
		inside("mount.fsopen", refused, "fsopen"),
		inside("mount.fsmount", refused, "fsmount"),
		inside("mount.move_mount", refused, "move_mount"),
		inside("mount.mount_setattr", refused, "mount_setattr"),
		inside("mount.statmount", refused, "statmount"),
		inside("mount.listmount", refused, "listmount"),
		inside("mount.name_to_handle_at", refused, "name_to_handle_at: files by number"),
		inside("mount.open_by_handle_at", refused, "open_by_handle_at"),
		inside("dev.names", nothing(), "names in /dev beyond null, zero, full, random, urandom, tty, pts, ptmx, shm, fd, std*, console, core"),
		inside("dev.host", nothing(), "mem, kmsg, fuse, kvm, disks, tun, vsock in /dev"),

		inside("call.ptrace", refused, "ptrace"),
		inside("call.process_vm_readv", refused, "process_vm_readv"),
		inside("call.process_vm_writev", refused, "process_vm_writev"),
		inside("call.kcmp", refused, "kcmp"),
		inside("call.pidfd_getfd", refused, "pidfd_getfd"),
		inside("call.keyctl", refused, "keyctl: keyrings belong to the user, not to a namespace"),
		inside("call.add_key", refused, "add_key"),
		inside("call.request_key", refused, "request_key"),
		inside("call.bpf", refused, "bpf"),
		inside("call.perf_event_open", refused, "perf_event_open"),
		inside("call.userfaultfd", refused, "userfaultfd"),
		inside("call.io_uring_setup", refused, "io_uring_setup: makes calls that no filter sees"),
		inside("call.fanotify_init", refused, "fanotify_init"),
		inside("call.personality", refused, "personality(8)"),
		inside("call.shmget", refused, "shmget: memory that no limit of a process counts"),
		inside("call.semget", refused, "semget"),
		inside("call.msgget", refused, "msgget"),
		inside("call.mq_open", refused, "mq_open"),
		inside("call.mbind", refused, "mbind"),
		inside("call.move_pages", refused, "move_pages"),
		inside("call.memfd_secret", refused, "memfd_secret"),
		inside("call.kexec_load", refused, "kexec_load"),
		inside("call.init_module", refused, "init_module"),
		inside("call.finit_module", refused, "finit_module"),
		inside("call.delete_module", refused, "delete_module"),
		inside("call.reboot", refused, "reboot"),
		inside("call.swapon", refused, "swapon"),
		inside("call.acct", refused, "acct"),
		inside("call.quotactl", refused, "quotactl"),
		inside("call.syslog", refused, "syslog"),
		inside("call.settimeofday", refused, "settimeofday"),
		inside("call.iopl", refused, "iopl"),
		inside("call.modify_ldt", refused, "modify_ldt"),
		inside("call.x32", is("ENOSYS", "EPERM"), "getpid of the x32 interface"),
		inside("call.int80", is("SIGSYS", "SIGSEGV"), "getpid by int 0x80, the 32-bit interface: the process is killed"),

		inside("net.interfaces", is("lo"), "network interfaces"),
		inside("net.host_listener", is("ECONNREFUSED"), "connect to a listener of the host on 127.0.0.1"),
		inside("net.route", is("ENETUNREACH"), "connect to 1.1.1.1:53"),
		inside("net.abstract_socket", is("EAFNOSUPPORT", "EPERM", "EACCES", "ECONNREFUSED"), "connect to an abstract socket of the host"),
		inside("net.workspace_socket", is("EAFNOSUPPORT", "EPERM", "EACCES", "ECONNREFUSED", "ENOENT"), "connect to a socket of the host whose file lies in the workspace"),
		inside("net.socket_inet", is("OK"), "socket(AF_INET): the sandbox has a loopback of its own"),
		inside("net.socket_unix", noSocket, "socket(AF_UNIX)"),
		inside("net.socket_vsock", noSocket, "socket(AF_VSOCK): reaches the hypervisor"),
		inside("net.socket_netlink", noSocket, "socket(AF_NETLINK)"),
		inside("net.socket_packet", noSocket, "socket(AF_PACKET)"),
		inside("net.socket_alg", noSocket, "socket(AF_ALG)"),
		inside("net.socket_bluetooth", noSocket, "socket(AF_BLUETOOTH)"),
		inside("net.socket_xdp", noSocket, "socket(AF_XDP)"),
		inside("net.socket_can", noSocket, "socket(AF_CAN)"),
		inside("net.pair_stream", is("OK"), "socketpair(SOCK_STREAM), which programs need"),
		inside("net.pair_seqpacket", is("OK"), "socketpair(SOCK_SEQPACKET)"),
		inside("net.pair_dgram", noSocket, "socketpair(SOCK_DGRAM), which can be connected anew"),

		inside("tty.tiocsti", is("EPERM", "EIO"), "ioctl(TIOCSTI) on a controlling terminal (CVE-2017-5226)"),
		inside("tty.tiocsti_high", is("EPERM", "EIO"), "the same with a bit above the lower 32 set (CVE-2019-10063)"),
		inside("tty.tioclinux", is("EPERM"), "ioctl(TIOCLINUX) (CVE-2023-28100)"),
		inside("tty.dev_tty", is("ENXIO", "ENOENT", "EACCES"), "open /dev/tty"),
		inside("tty.session", is("its own"), "session of the script"),
		inside("fd.inherited", is("0 1 2"), "open descriptors, although one of ours was left for it to inherit"),
		inside("fd.stdin", is("end of file"), "standard input after what was given"),

		inside("limit.core", limitedTo(0), "RLIMIT_CORE"),
		inside("limit.processes", limitedTo(l.Processes), "RLIMIT_NPROC"),
		inside("limit.open_files", limitedTo(l.OpenFiles), "RLIMIT_NOFILE"),
		inside("limit.memlock", limitedTo(64<<10), "RLIMIT_MEMLOCK"),
	}
	return append(append(rules, outsideRules(l)...), controlRules()...)
}

// memoryWant is what comes of taking too much memory.
var memoryWant = is(string(sandboxrun.MemoryLimit)).orWeakOn(sandboxrun.ByRlimit, "no control group bounds the memory of a script's processes together; mcp-vdisk doctor says why")

const softOnDisk = "changes are kept on disk, where what a script writes to /workspace is looked at ten times a second instead of refused at each write"

// outsideRules look at a run from the host.
func outsideRules(l sandboxrun.Limits) []hostRule {
	outside := func(id string, w want, meaning string, act func(context.Context, *host) (string, error)) hostRule {
		return hostRule{Rule: Rule{SuiteHost, "host." + id, meaning, w.text, "", true}, want: w, act: act}
	}
	return []hostRule{
		outside("id.outer_uid", is("not root"), "the host's user that the sandbox belongs to", outerUID),
		outside("net.contacts", is("none"), "connections that the host's listeners got", contacts),
		outside("tty.typed", is("0").orWeakOn(nobodyTyped, "nobody can type into a terminal here (dev.tty.legacy_tiocsti=0), so nothing was tried"), "characters that a script typed into the terminal of the person who started the server", typed),
		outside("limit.forks", between(int(l.Processes)-bystanders, int(l.Processes), "EAGAIN"), "processes that can be started, while 60 others of the same user run on the host", forks),
		outside("limit.memory", memoryWant, "outcome of a script in which one process takes four times the memory that a run may have", memory(prober.InPages, 256, 1)),
		outside("limit.memory_sum", memoryWant, "the same by eight processes together", memory(prober.InPages, 32, 8)),
		outside("limit.memory_file", memoryWant, "the same by a file in memory (memfd)", memory(prober.InFile, 256, 1)),
		outside("limit.room", nothing().orWeakOn(watched, softOnDisk), "places that take more than their size: /tmp, /dev/shm, $HOME, /workspace", room),
		outside("limit.files", between(1, crowdLimit+crowdSpare, "ENOSPC").orWeakOn(watched, softOnDisk), "files that can be made in /workspace with a limit of 128", files),
		outside("limit.tmp_files", between(1, crowdLimit+crowdSpare, "ENOSPC"), "files that can be made in /tmp with a limit of 128", crowd("/tmp")),
		outside("limit.shm_files", between(1, crowdLimit+crowdSpare, "ENOSPC"), "the same in /dev/shm", crowd("/dev/shm")),
		outside("limit.home_files", between(1, crowdLimit+crowdSpare, "ENOSPC"), "the same in $HOME", crowd("/home/user")),
		outside("limit.written", is("disk_limit"), "outcome of a script that writes many files past the limit", written),

		outside("end.timeout", is("timed_out, 0 left"), "a script that sleeps", ends(`sleep $0`)),
		outside("end.ignores_term", is("timed_out, 0 left"), "a script that ignores SIGTERM", ends(`trap '' TERM INT HUP; sleep $0; sleep $0`)),
		outside("end.stopped", is("timed_out, 0 left"), "a script that stops itself", ends(`sleep $0 & kill -STOP $$`)),
		outside("end.daemons_exit", is("exited, 0 left"), "daemons, when the script exits", ends(daemons)),
		outside("end.daemons_timeout", is("timed_out, 0 left"), "daemons, at the timeout", ends(daemons+`; sleep $0`)),
		outside("end.daemons_cancel", is("cancelled, 0 left"), "daemons, when the run is cancelled", cancelled),
		outside("end.server_killed", is("0 left"), "daemons, when the server is killed (SIGKILL)", serverKilled),
		outside("end.fork_bomb", is("timed_out, 0 left"), "a tree of processes that each make more", forkBomb),
		outside("end.kill_all", is("alive"), "a process of the same user on the host, after kill -9 -1 in the sandbox", killAll),

		outside("output.flood", is("output_limit, 0 left"), "endless lines", floods(`yes`)),
		outside("output.no_newline", is("output_limit, 0 left"), "endless bytes without a line end", floods(`cat /dev/zero`)),
		outside("output.stderr", is("output_limit, 0 left"), "endless lines on standard error", floods(`yes >&2`)),
		outside("output.binary", is(`"\x00\xff\x01"`), "three bytes that are no text", binaryOutput),
		outside("output.closed", is("exited 7"), "exit 7 with both streams closed", exits(`exec >&- 2>&-; exit 7`)),
		outside("output.held", is("exited, 0 left"), "a background process that holds the output", ends(`sleep $0 & exit 0`)),
		outside("exit.code", is("exited 7"), "exit 7", exits(`exit 7`)),
		outside("exit.signal", is("signaled SIGSEGV"), "death by SIGSEGV", exits(`kill -SEGV $$`)),
		outside("exit.missing", is("setup failed"), "an interpreter that is not there: told from exit 1", missing),

		outside("setup.apart", nothing(), "places where one of two runs at once sees the other", apart),
		outside("setup.linked_workspace", is("setup failed"), "a workspace that is a symbolic link", linkedWorkspace),
		outside("setup.planted_link", nothing(), "files made in a host directory that links in the workspace lead to (CVE-2026-87766)", planted),
		outside("setup.setuid_bwrap", is("unavailable"), "a bubblewrap that is setuid", setuidBwrap),
		outside("left.setuid", nothing(), "setuid and setgid files that a script hands to the host", setuidLeft),
		outside("left.zombies", is("0"), "dead children of this process that nobody waited for", zombies),
		outside("left.workspace", nothing(), "what is new, gone or changed in the directory below the workspace", workspaceChanged),
		outside("left.host", nothing(), "mounts, descriptors and processes that were not there before", leftOnHost),
	}
}

// controlled are the probes that must fail in the naive sandbox. They stand for
// the kinds of what is tried.
var controlled = []string{
	"proc.environ", "proc.host", "proc.core_pattern", "files.shadow", "files.create", "call.keyctl", "net.socket_vsock",
	"files.canary", "fd.inherited", "net.host_listener", "net.socket_unix",
}

// controlRules run the prober where it must find something.
func controlRules() []hostRule {
	var list []hostRule
	for _, name := range controlled {
		w := want{"a failure", func(got string) (Status, string) {
			if got == "a failure" {
				return Passed, ""
			}
			return Broken, "the prober or the suite cannot be trusted: " + got
		}}
		list = append(list, hostRule{
			Rule: Rule{SuiteHost, "host.control." + name, "the probe " + name + " in a naive sandbox", w.text, "", true},
			want: w, act: control(name),
		})
	}
	return list
}
