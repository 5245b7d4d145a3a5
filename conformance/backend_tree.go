package conformance

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// treeRules are about what a command has started.
func treeRules() []backendRule {
	kills := func(c caps) bool { return c.TreeKill }
	return []backendRule{
		required("execute.exit_kills_tree", "what a command leaves running ends with it, and Execute does not wait for it", "tree_kill", kills, checkExitTree),
		required("execute.timeout_kills_tree", "after a timeout nothing that the command started is left", "tree_kill",
			func(c caps) bool { return c.TreeKill && c.RequestTimeout }, checkTimeoutTree),
		required("execute.cancel_kills_tree", "after a cancellation nothing that the command started is left", "tree_kill",
			func(c caps) bool { return c.TreeKill && c.CooperativeCancellation }, checkCancelTree),
	}
}

// withChild starts a process that is not a child of the command, has a session
// of its own, ignores signals and has closed its streams; then it does what
// follows. The process is known by its last argument.
const withChild = `(setsid /bin/sh -c 'trap "" TERM HUP INT; while :; do sleep 1; done' sh "$1-child" </dev/null >/dev/null 2>&1 &) & `

// newMark returns a word that no other process has among its arguments.
func newMark() string { return "conform-" + rand.Text() }

func checkExitTree(t *trial) {
	mark := t.observer()
	h := t.create(nil)
	in := newGate("")
	t.cleanup = append(t.cleanup, in.let)
	p := t.start(t.ctx, h, sandboxrun.Request{Argv: shell(withChild+`read -r _; exit 0`, mark), Stdin: in})
	t.waitChild(p, mark)
	in.let()
	if !t.wait(p) {
		t.fail("Execute waits for what the command left running")
	}
	if p.err != nil || !succeeded(p.res) {
		t.broken("control: %s, error %v", ending(p.res), p.err)
	}
	t.noneLeft(mark)
}

func checkTimeoutTree(t *trial) {
	mark := t.observer()
	h := t.create(nil)
	// The timeout has to leave the command the time to start its child.
	for timeout, seen := 300*time.Millisecond, false; !seen; timeout *= 2 {
		if timeout > t.c.Grace {
			t.unseen()
		}
		p := t.start(t.ctx, h, sandboxrun.Request{Argv: shell(withChild+`sleep 60`, mark), Timeout: timeout})
		t.within(func() bool {
			seen = living(mark+"-child") > 0
			return seen || p.ended()
		})
		t.join(p)
		if p.err != nil {
			t.broken("execute: %v", p.err)
		}
	}
	t.noneLeft(mark)
}

func checkCancelTree(t *trial) {
	mark := t.observer()
	p, cancel := t.startUntil(t.create(nil), sandboxrun.Request{Argv: shell(withChild+`sleep 60`, mark)})
	t.waitChild(p, mark)
	cancel(errStop)
	t.join(p)
	t.noneLeft(mark)
}

// observer returns a mark for processes that can be looked for.
func (t *trial) observer() string {
	if b, err := os.ReadFile("/proc/self/cmdline"); err != nil || len(b) == 0 {
		t.unsupported("processes cannot be looked for: this system has no /proc")
	}
	mark := newMark()
	if n := living(mark); n != 0 {
		t.broken("control: %d processes have a new mark", n)
	}
	return mark
}

// waitChild is the control of the rules on trees: the process that is to be
// gone later is there.
func (t *trial) waitChild(p *pending, mark string) {
	switch seen := t.within(func() bool { return p.ended() || living(mark+"-child") > 0 }); {
	case p.ended():
		t.broken("control: the command ended: %s, error %v", ending(p.res), p.err)
	case !seen:
		t.unseen()
	}
}

func (t *trial) unseen() { t.unsupported("the processes of this backend cannot be seen from here") }

func (t *trial) noneLeft(mark string) {
	if n := living(mark); n > 0 {
		t.fail("%d processes of the command are still there", n)
	}
}

// living counts the processes with the mark in their arguments. A zombie has none.
func living(mark string) (n int) {
	dir, err := os.Open("/proc")
	if err != nil {
		return 0
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if _, err := strconv.Atoi(name); err != nil {
			continue
		}
		if b, err := os.ReadFile("/proc/" + name + "/cmdline"); err == nil && bytes.Contains(b, []byte(mark)) {
			n++
		}
	}
	return n
}

// outputRules are about commands that write too much.
func outputRules() []backendRule {
	capped := func(c caps) bool { return c.OutputCap }
	return []backendRule{
		required("execute.output_cap", "of a long output the beginning and the end are kept, and the rest is counted, to the byte", "output_cap", capped, checkOutputCap),
		required("execute.output_limit", "a command that writes without end is ended before its timeout: output_limit", "output_cap", capped, checkOutputLimit),
	}
}

func checkOutputCap(t *trial) {
	const head, tail, total = 1000, 500, 20_000
	h := t.create(func(s *sandboxrun.Spec) { s.Limits.Head, s.Limits.Tail = head, tail })
	if res := t.sh(h, `printf short`); string(res.Stdout.Text) != "short" || res.Stdout.Cut != 0 {
		t.broken("control: a short output: %s, cut %d", ending(res), res.Stdout.Cut)
	}
	res := t.sh(h, `long() { printf BEGIN; head -c 19992 /dev/zero | tr '\000' x; printf END; }; long; long >&2`)
	for name, o := range map[string]sandboxrun.Output{"stdout": res.Stdout, "stderr": res.Stderr} {
		// Between the two a line says what is left out.
		if len(o.Text) > head+tail+200 || !bytes.HasPrefix(o.Text, []byte("BEGIN")) || !bytes.HasSuffix(o.Text, []byte("END")) {
			t.fail("%s: %d bytes were kept of %d, with room for %d and %d: %.20q", name, len(o.Text), total, head, tail, o.Text)
		}
		if o.Total != total || o.Cut != total-head-tail {
			t.fail("%s: %d bytes written, counted %d, of which left out %d", name, total, o.Total, o.Cut)
		}
	}
}

func checkOutputLimit(t *trial) {
	h := t.create(func(s *sandboxrun.Spec) { s.Limits.OutputMax = 1 << 20 })
	t.ok(h, `head -c 1000 /dev/zero`)
	for _, script := range []string{`cat /dev/zero`, `cat /dev/zero >&2`} {
		res, err := t.try(t.ctx, h, sandboxrun.Request{Argv: shell(script), Timeout: t.c.Grace})
		if errors.Is(err, errHung) {
			t.fail("a command that writes without end was still running")
		}
		if err != nil {
			t.broken("execute: %v", err)
		}
		if res.Outcome != sandboxrun.OutputLimit {
			t.fail("%q: expected output_limit: %s", script, ending(res))
		}
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
