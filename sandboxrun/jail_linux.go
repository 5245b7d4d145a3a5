package sandboxrun

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Jail runs one command that needs the network, such as an installer that asks an
// index. It is a run by the same stage as a script's, with the same namespaces but
// that of the network, no capabilities, no further user namespaces, the system
// call filter (without sockets of AF_UNIX even if Config allows them to scripts:
// those of the host that have abstract names belong to the network), and the same
// end: when Jail returns, or this process dies, nothing of it is left.
//
// It sees /usr and, of /etc, the certificates of authorities, hosts and
// resolv.conf; there is no /proc. It can write to /out, /tmp (16 MiB) and nothing
// else. Both are in memory, with sizes that the kernel keeps; an /out of more than
// 512 MiB is on disk if there is a Config.Scratch, where its size is watched. What is
// in /out at the end arrives at Jail.Out, after every process is dead, so that no
// directory of the host can be written at any time. Each process may use 2 GiB of
// address space and 120 s of processor time.
//
// The results and errors are those of Run. Any number of jails may run at once, and
// scripts besides.
func (r *Runner) Jail(ctx context.Context, j Jail) (JailResult, error) {
	none := JailResult{Outcome: SetupFailed, ExitCode: -1}
	if os.Geteuid() == 0 {
		return none, fmt.Errorf("sandboxrun: %w", ErrRoot)
	}
	if err := j.check(); err != nil {
		return none, setupFailed("the jail is not valid: "+err.Error(), "", "")
	}
	return r.Run(ctx, j.run(), j.Out)
}

// filterOf is the system call filter of a run.
func (r *Runner) filterOf(run Run) []byte {
	if run.jail != nil {
		return r.strict
	}
	return r.filter
}

// rlimits are those of a script or of a jail.
func (r Run) rlimits(l Limits, g *group) []rlimit {
	if r.jail != nil {
		return jailRlimits(l)
	}
	return rlimits(l, g.limitsMemory())
}

// jailRlimits are set on the first process of a jail.
func jailRlimits(l Limits) []rlimit {
	return []rlimit{
		{unix.RLIMIT_NPROC, l.Processes},
		{unix.RLIMIT_NOFILE, l.OpenFiles},
		{unix.RLIMIT_CORE, 0},
		{unix.RLIMIT_MEMLOCK, 64 << 10},
		{unix.RLIMIT_CPU, jailCPU},
		{unix.RLIMIT_AS, jailSpace},
		{unix.RLIMIT_FSIZE, uint64(l.WriteBytes)},
	}
}
