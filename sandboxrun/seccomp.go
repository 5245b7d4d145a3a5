package sandboxrun

// filterRules is the system call filter of every sandbox, line by line: what
// a script may not call although the kernel might let it. All else is allowed,
// up to newestCall. The namespaces and the lack of capabilities are what keeps
// a script in; the filter takes away most of the kernel that a hole could be
// in, and what they do not cover.
//
// An errno is the one that programs can live with: ENOSYS where they fall back
// to an older call, EPERM where they must not believe that it worked.
//
// The first rule of a call that applies decides. Calls that nearly every
// program makes come first: a rule that looks at an argument is run for each
// of them, while the kernel (since 5.11) keeps the other answers.
func filterRules(unixSockets bool) []rule {
	families, pairs := []uint32{afInet, afInet6}, []uint32{sockStream, sockSeqpacket}
	if unixSockets {
		families, pairs = append(families, afUnix), append(pairs, sockDgram)
	}
	return []rule{
		{"openat", ePERM, when(anyBit(2, oCreat|oTmpfile), anyBit(3, setID)), "no setuid or setgid file, not even for a moment"},
		{"open", ePERM, when(anyBit(1, oCreat|oTmpfile), anyBit(2, setID)), "the same"},
		{"creat chmod fchmod mknod", ePERM, when(anyBit(1, setID)), "the same"},
		{"fchmodat fchmodat2 mknodat", ePERM, when(anyBit(2, setID)), "the same"},
		{"openat2", eNOSYS, nil, "its mode is in memory, where a filter cannot look"},
		{"ioctl", ePERM, when(among(1, tiocSTI, tiocLINUX)), "types into the terminal of the person who started us (CVE-2017-5226, CVE-2019-10063, CVE-2023-28100)"},

		{"clone", ePERM, when(anyBit(0, cloneNew)), "no further namespaces"},
		{"clone3", eNOSYS, nil, "its flags are in memory (CVE-2021-41133)"},
		{"unshare setns", ePERM, nil, "no further namespaces"},

		{"socket", eAFNOSUPPORT, when(notAmong(0, families...)), "AF_VSOCK reaches the hypervisor, AF_NETLINK, AF_ALG and the like reach drivers; AF_UNIX reaches any socket file in sight"},
		{"socket", eSOCKTNOSUPPORT, when(notAmongMasked(1, sockTypeMask, sockStream, sockDgram, sockRaw, sockSeqpacket)), "SOCK_DCCP loads a module, SOCK_PACKET makes the family AF_PACKET; the kernel refuses SOCK_RAW"},
		{"socket", ePROTONOSUPPORT, when(notAmong(2, 0, ipprotoICMP, ipprotoTCP, ipprotoUDP, ipprotoICMPv6, ipprotoMPTCP)), "SCTP, DCCP and the like load modules on demand"},
		{"socketpair", eAFNOSUPPORT, when(notAmong(0, afUnix)), "a pair is made of AF_UNIX or not at all"},
		{"socketpair", eSOCKTNOSUPPORT, when(notAmongMasked(1, sockTypeMask, pairs...)), "a pair of datagram sockets can be connected anew, to a socket file"},

		{"ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd", ePERM, nil, "no process looks into another"},
		{"add_key request_key keyctl", ePERM, nil, "keyrings are of the user, not of a namespace"},
		{"io_uring_setup io_uring_enter io_uring_register", eNOSYS, nil, "makes calls that no filter sees"},
		{"bpf perf_event_open userfaultfd", ePERM, nil, "kernel interfaces with a long history of holes"},
		{"fanotify_init fanotify_mark", ePERM, nil, "watches whole mounts"},
		{"name_to_handle_at open_by_handle_at", ePERM, nil, "opens files by number, past the mounts"},

		{"mount umount2 pivot_root chroot", ePERM, nil, "the mounts stay as they are"},
		{"open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr", eNOSYS, nil, "the same, the new interface"},
		{"statmount listmount listns", eNOSYS, nil, "tell of mounts and namespaces of the host"},
		{"lsm_get_self_attr lsm_set_self_attr lsm_list_modules", eNOSYS, nil, "of no use here"},

		{"shmget semget msgget mq_open", ePERM, nil, "memory that no limit of a process counts"},
		{"mbind move_pages migrate_pages", ePERM, nil, "where memory lies is the host's business"},
		{"memfd_secret", eNOSYS, nil, "memory that the kernel cannot swap or look into"},

		{"personality", ePERM, when(notAmong(0, 0, personalityQuery)), "switches protections off, such as random addresses"},
		{"modify_ldt iopl ioperm", ePERM, nil, "old doors to the processor"},
		{"kexec_load kexec_file_load init_module finit_module delete_module reboot swapon swapoff acct quotactl quotactl_fd syslog settimeofday clock_settime", ePERM, nil, "administers the host"},
	}
}

// rule is a line of the filter.
type rule struct {
	calls string // names as in callNumbers, a space between them
	errno uint32 // what the caller gets
	when  []cond // all must hold; none: always
	why   string
}

// cond looks at the lower half of an argument. All arguments here are of a
// type of 32 bits, or are cut to it by the kernel: a rule that compared the
// upper half as well would be passed by setting a bit in it (CVE-2019-10063).
type cond struct {
	arg    int
	mask   uint32
	values []uint32
	not    bool // holds when the masked argument is none of the values
}

func when(c ...cond) []cond { return c }

// among holds if the argument is one of the values.
func among(arg int, values ...uint32) cond { return cond{arg, ^uint32(0), values, false} }

// notAmong holds if the argument is none of the values.
func notAmong(arg int, values ...uint32) cond { return notAmongMasked(arg, ^uint32(0), values...) }

func notAmongMasked(arg int, mask uint32, values ...uint32) cond {
	return cond{arg, mask, values, true}
}

// anyBit holds if one of the bits is set in the argument.
func anyBit(arg int, bits uint32) cond { return notAmongMasked(arg, bits, 0) }

// Numbers of the Linux ABI that are the same on amd64 and arm64. They are not
// taken from package syscall, which has those of the system it is built for.
const (
	ePERM           = 1
	eNOSYS          = 38
	ePROTONOSUPPORT = 93
	eSOCKTNOSUPPORT = 94
	eAFNOSUPPORT    = 97

	afUnix, afInet, afInet6             = 1, 2, 10
	sockStream, sockDgram, sockRaw      = 1, 2, 3
	sockSeqpacket                       = 5
	sockTypeMask                        = 0xf // the rest are flags
	ipprotoICMP, ipprotoTCP, ipprotoUDP = 1, 6, 17
	ipprotoICMPv6, ipprotoMPTCP         = 58, 262

	tiocSTI, tiocLINUX = 0x5412, 0x541c
	setID              = 0o6000
	oCreat, oTmpfile   = 0o100, 0o20000000
	// cloneNew are CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and
	// NEWNET. CLONE_NEWTIME is not a flag of clone, only of clone3 and unshare.
	cloneNew         = 0x7e020000
	personalityQuery = 0xffffffff
)
