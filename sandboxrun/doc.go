// Package sandboxrun runs scripts in sandboxes.
//
// A script sees a directory of the host as /workspace and may do with it what
// it likes. The directory itself is never written: what the script changed
// arrives, entry by entry, at a callback, after every process of the sandbox
// is dead. What becomes of it is the caller's decision.
//
//	r, err := sandboxrun.New(ctx, sandboxrun.Config{})
//	defer r.Close()
//	res, err := r.Run(ctx, sandboxrun.Run{
//		Lower: dir,
//		Argv:  []string{"/bin/bash", "--noprofile", "--norc", "-c", "ls >list"},
//	}, func(c sandboxrun.Change) error { … })
//
// # What a script has
//
// Besides /workspace: the /usr of the host, read-only; empty /tmp, /dev/shm and
// /home/user of limited size; a network of its own with nothing in it but
// 127.0.0.1; uid and gid 1000, no capabilities, no way to more; PATH, HOME,
// TMPDIR and LANG for an environment, and what the Run adds; processes, ids, host
// name and System V objects of its own. It has nothing else of the host: no other
// file, no socket, no variable, no process. Files of /proc that tell of the host's users, disks and boot are hidden.
// The full list of options is in bwrapArgs, and TestBwrapArgs keeps it.
//
// # System calls
//
// Every process of a sandbox, the first one too, is under a seccomp filter. It
// is a table, filterRules, that is made into a BPF program here; bubblewrap
// sets it right before the command. There is no run without it: a kernel that
// takes none, or an architecture without a table, is ErrUnavailable.
//
// It refuses what a script has no use for and what reaches past the
// namespaces: other families of sockets than AF_INET and AF_INET6 (AF_VSOCK
// leads to the hypervisor), io_uring, namespaces and mounts, tracing, keys,
// System V objects, setuid bits, typing into terminals. Calls of a 32-bit
// interface end the process (SIGSYS), those of x32 and those newer than the
// table do not exist (ENOSYS).
//
// What does not work by that, beyond what is meant: sockets of AF_UNIX
// (Config.AllowUnixSockets), and with them multiprocessing.Manager, its
// start method forkserver (the default of Python 3.14; "fork" and "spawn"
// work) and ssh-agent; datagram pairs; AF_NETLINK (ip, ss,
// os.networkInterfaces of node); shmget (PostgreSQL); debuggers, strace and
// the leak sanitizer; chmod g+s (git init --shared), and unpacking a setuid
// file with its mode; programs of 32 bits. Pairs of stream sockets work, and so do
// asyncio, multiprocessing otherwise, and machine code made at run time.
//
// # Limits
//
// What it may write, open, fork, print and use of memory is bounded by Limits.
// Memory and processes need a control group for that: see below.
//
// Output is kept, the beginning and the end of it, for the Result; Run.Tap gets
// all of it as it arrives.
//
// # Several at once
//
// A Runner runs any number of scripts at the same time, also over the same
// directory: each has its own stage, overlay and namespaces, and sees nothing
// of the others (TestRunsAtOnce). They share the memory of the host, so that a
// caller bounds the sum of Runner.Memory and Limits.MemoryBytes over its runs by
// a share of MemoryTotal. With changes on disk each run has its own locked directory in
// Scratch.
//
// # Jails
//
// Runner.Jail runs a command of the server's own choice, such as an installer, that
// needs the network. It is a run like a script's (one stage, one way to end) with the
// network of the host, and less of everything else: no workspace, no home, no /proc,
// no socket of AF_UNIX. What it leaves in /out arrives at a callback.
//
// # Backends
//
// A Backend is what runs commands one after the other in a workspace that is
// kept between them, whoever implements it: package conformance tests it. The one
// here, NewBackend, is a Runner with a directory for each workspace, to which the
// changes of every command are applied. The tools do not use it; a disk is more
// than a directory.
//
// # The stage
//
// bubblewrap of version 0.8 cannot mount an overlay, and a script must not. So
// a Runner starts its own program again (init calls StageMain) in new user,
// mount and pid namespaces. This stage waits for its orders, which come with
// all descriptors of the run by the one socket that it was started with. Then it
//
//  1. opens what the host gives, makes its mounts private, and mounts a tmpfs
//     of the size of what the script may write, and one for each of /tmp,
//     /dev/shm and /home/user: those of bubblewrap limit bytes, not files;
//  2. mounts an overlay: the workspace below, the tmpfs on top (userxattr, or
//     directories that are replaced would break; volatile, since nothing of it
//     outlives the run). The lower directory is "." and the upper one is in
//     /tmp, so that the mount options, which the script can read, tell nothing;
//  3. starts bubblewrap in the control groups of the run, with the overlay as
//     the last mount. Its first process
//     waits while the stage sets the rlimits (prlimit) and opens a pidfd;
//  4. lets it go, and waits for its end or for the order to kill it;
//  5. kills whatever is left, walks the upper directory, streams what it finds
//     over the socket, and exits, with which the tmpfs is gone.
//
// The stage reads the upper directory because it can: it has the capabilities
// of its namespace there, so that mode 000 hides nothing, and no process is
// left that could swap a file under its eyes. It opens everything without
// following links and without blocking, and checks what it has opened. Where
// it cannot look, above or below, the run fails: an error taken for "nothing
// there" would be a deletion.
//
// The parent trusts the stream as little as it would trust the script: every
// length has a limit, every path and every order is checked (FuzzStream).
//
// # The stage that waits
//
// Starting a stage takes some milliseconds, of which the next run need not know:
// once a command was started, Run leaves a stage that waits for orders. A Runner
// that never ran a script has none, and none ever has two; runs at once share the
// one, and the others start their own. It is started when a run is over, and it
// ends after a minute without a run, by DropSpare, by Close, and with this process,
// like every stage.
//
// It is like a new one in all that a run can see, and there is no other way to
// start a run than by its orders. It holds its socket and a memory file for its own
// last words; what this process has inherited is closed in it. It has served no run
// before, belongs to no group of one, and is of no use afterwards. A stage that died
// meanwhile is replaced, also when it dies with its orders in hand, and so is one that
// has not said within a second that it has them (somebody stopped it): until then
// nothing was done, and the script's input is not touched.
//
// Its mount namespace is a copy of this process's, made when it was started. So
// that a run sees the file systems as they are, a stage is given up when anything
// was mounted or unmounted here since (the kernel notes that on mountinfo, which is
// one poll(2) a run). Directories and files need no such care: paths are opened when
// the run comes. And it ends as soon as that happens, since where mounts do not
// propagate it would keep busy what the host unmounts.
//
// It takes about 10 MB of resident memory, nine of which are pages of the program
// that it has in common with this process.
//
// # Control groups
//
// Each run has a group of its own for memory and pids where there is a place to
// make one:
//   - with cgroup v1, below a directory that root handed over (HandOver);
//   - with cgroup v2, below the group of this process, if that was delegated to
//     this user and holds no other process.
//
// Elsewhere there are rlimits only. Runner.Limits says which it is and why, and
// Probe looks at a run from outside to see that it is so.
//
// bubblewrap and all below it are in the group; the stage is not, so that it
// outlives them and reads the changes. What the script writes to a tmpfs counts
// as memory of its group, which is why the group has room for all of that
// besides Limits.MemoryBytes. The buffers of its sockets count as well with v2; with
// v1 they have a limit of their own, a sixteenth of MemoryBytes and 4 MiB at least,
// at which a socket waits (kernels without memory.kmem.tcp have none).
//
// With v2 the kernel kills the whole group when it has no memory left
// (memory.oom.group). With v1 it kills one process, and the rest is killed within
// 50 ms from here. Either way the outcome is what the group has counted:
// MemoryLimit, or PidsLimit when the command failed after a process or a thread
// was refused to it. A process that the kernel kills because the host has no
// memory left is Signaled: SIGKILL.
//
// # What a kill leaves
//
// Nothing that runs. The stage is pid 1 of its pid namespace. However it ends — by
// itself, by the order of its parent, by the death of its parent (PDEATHSIG,
// and the end of file on its socket), by the kernel — all processes
// below it are killed and waited for before its own end can be seen, and the
// mounts go with them. There is no moment, from the first fork on, in which
// the death of any process leaves another behind; bubblewrap's own
// --die-with-parent has such a moment before the command starts. With changes
// kept on disk (Config.Disk) a killed server leaves a directory in Scratch,
// and everywhere its empty control groups; the next New removes them. They are
// locked for as long as their run lasts.
//
// PDEATHSIG is about threads. The goroutines that start the stage, and in it
// bubblewrap, are locked to their threads while the child lives.
//
// # Root
//
// Nothing is ever run with host uid 0 (ErrRoot): a root that has been mapped
// away is still the root that owns /proc/sys.
//
// # Known limits
//
// They come from overlayfs and are the same on every host.
//   - rename(2) of a directory that was there before the run is EXDEV; mv copies.
//   - The first write to a file, a chmod or a touch copies the whole of it,
//     and counts as written.
//   - A deletion counts as a file: removing a tree of more files than
//     Limits.WriteFiles ends in ENOSPC.
//   - Hard links of the workspace are broken by a write; inode numbers change.
//   - A file that is open for reading when it is first written may go on
//     showing its old bytes there, on older kernels (not on 6.18).
//   - Extended attributes are not reported. A script that sets marks of an
//     overlay (user.overlay.*) itself gets EOPNOTSUPP, or others than it meant,
//     and cannot hide or show anything by them.
//   - Files that belong to another uid than the server's cannot be written
//     (EOVERFLOW).
//   - bubblewrap says 128 + n both for a death by signal n and for an exit
//     code of that value. It is reported as the signal.
//   - The kernel's memory for the names of files, 1.4 KB each, is not part of the
//     size of a tmpfs: it counts in the group, and is bounded by the number of files.
package sandboxrun
