package conformance

import (
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// limitRules are about the limits that the backend declares to be hard. They
// are not required: not every host can keep every one.
func limitRules() []backendRule {
	rule := func(l sandboxrun.HardLimit, meaning string, check func(*trial)) backendRule {
		return backendRule{
			Rule{Suite: SuiteSandbox, ID: "limits." + string(l), Meaning: meaning, Capability: "hard_limits"},
			func(c caps) bool { return slices.Contains(c.HardLimits, l) }, check,
		}
	}
	return []backendRule{
		rule(sandboxrun.HardProcesses, "a command cannot have more processes than its limit", checkProcesses),
		rule(sandboxrun.HardOpenFiles, "a process cannot have more open files than its limit", checkOpenFiles),
		rule(sandboxrun.HardWriteBytes, "a command cannot write more bytes than its limit", checkWriteBytes),
		rule(sandboxrun.HardWriteFiles, "a command cannot leave more files than its limit", checkWriteFiles),
		rule(sandboxrun.HardMemory, "the processes of a command cannot have more memory together than its limit: memory_limit", checkMemory),
	}
}

// reaches runs a script that counts up to 40 with and without a limit. Without
// it must get there, with it must not: how it ended then is returned.
func (t *trial) reaches(script string, limit func(*sandboxrun.Limits)) sandboxrun.Result {
	const all = 40
	lines := func(res sandboxrun.Result) int { return strings.Count(string(res.Stdout.Text), "\n") }
	if n := lines(t.sh(t.create(nil), script)); n != all {
		t.broken("control: without the limit a command reaches %d of %d", n, all)
	}
	res := t.sh(t.create(func(s *sandboxrun.Spec) { limit(&s.Limits) }), script)
	if lines(res) == all {
		t.fail("a command reaches all of %d, past its limit", all)
	}
	return res
}

func checkProcesses(t *trial) {
	t.reaches(`i=0; while [ $i -lt 40 ]; do sleep 20 >/dev/null 2>&1 & i=$((i+1)); echo $i; done`,
		func(l *sandboxrun.Limits) { l.Processes = 20 })
}

func checkOpenFiles(t *trial) {
	// bash has descriptors above 9.
	t.reaches(`bash -c 'for ((i = 1; i <= 40; i++)); do eval "exec $((i + 20))</dev/zero" && echo $i; done'`,
		func(l *sandboxrun.Limits) { l.OpenFiles = 40 })
}

func checkWriteBytes(t *trial) {
	t.reaches(`i=0; while [ $i -lt 40 ]; do i=$((i+1)); head -c 65536 /dev/zero >"f$i" && echo $i; done`,
		func(l *sandboxrun.Limits) { l.WriteBytes = 1 << 20 })
}

func checkWriteFiles(t *trial) {
	t.reaches(`i=0; while [ $i -lt 40 ]; do i=$((i+1)); (: >"f$i") && echo $i; done`,
		func(l *sandboxrun.Limits) { l.WriteFiles = 20 })
}

// holders is a script that starts processes which each have 4 MiB: dd has read its
// block before the first byte of it arrives, and cannot get rid of the rest.
const holders = `mkfifo told; exec 3<>told
hold() { dd if=/dev/zero bs=4194304 count=1 | { head -c 1 | wc -c >&3; exec sleep 20; }; }
i=0; while [ $i -lt 40 ]; do
	hold >/dev/null 2>&1 &
	read n <&3; [ "$n" -eq 1 ] || exit 1
	i=$((i+1)); echo $i
done`

func checkMemory(t *trial) {
	const mib = 1 << 20
	res := t.reaches(holders, func(l *sandboxrun.Limits) {
		// Files in memory may be counted with it.
		l.WriteBytes, l.TmpBytes, l.ShmBytes, l.HomeBytes = mib, mib, mib, mib
		l.MemoryBytes = 64 * mib
	})
	if res.Outcome != sandboxrun.MemoryLimit {
		t.fail("expected memory_limit: %s", ending(res))
	}
}
