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
	}
}

// reaches runs a script that counts up to 40 with and without a limit. Without
// it must get there, with it must not.
func (t *trial) reaches(script string, limit func(*sandboxrun.Limits)) {
	const all = 40
	lines := func(h sandboxrun.Handle) int { return strings.Count(string(t.sh(h, script).Stdout.Text), "\n") }
	if n := lines(t.create(nil)); n != all {
		t.broken("control: without the limit a command reaches %d of %d", n, all)
	}
	if n := lines(t.create(func(s *sandboxrun.Spec) { limit(&s.Limits) })); n == all {
		t.fail("a command reaches all of %d, past its limit", all)
	}
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
