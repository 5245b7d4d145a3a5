package conformance

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// resultRules are about how a command's end is told.
func resultRules() []backendRule {
	return []backendRule{
		required("execute.exit_codes", "an exit code is reported as it is", "", nil, checkExitCodes),
		required("execute.signal", "a death by signal is told from an exit, and is that of the command only", "process_boundary",
			func(c caps) bool { return c.ProcessBoundary }, checkSignal),
		required("execute.missing_program", "a program that does not exist is an error, not an exit code", "", nil, checkMissingProgram),
		required("execute.bad_request", "a request that cannot be run is an error, and the handle goes on", "", nil, checkBadRequest),
		required("execute.argv_literal", "arguments reach the program as they are: no shell reads them", "", nil, checkArgvLiteral),
		required("execute.workspace_kept", "what a command leaves is there for the next one, also after a failure", "", nil, checkWorkspaceKept),
		required("execute.same_handle", "commands given to one handle at the same time all take effect", "", nil, checkSameHandle),
		required("execute.concurrent", "commands of two handles run at the same time", "", nil, checkConcurrent),
	}
}

func checkExitCodes(t *trial) {
	h := t.create(nil)
	t.ok(h, `exit 0`)
	for _, code := range []string{"1", "7", "126", "255"} {
		res := t.sh(h, `exit "$1"`, code)
		if want, got := sandboxrun.Exited, res.Outcome; got != want || code != itoa(res.ExitCode) {
			t.fail("exit %s was reported as %s", code, ending(res))
		}
	}
}

func checkSignal(t *trial) {
	h := t.create(nil)
	if res := t.sh(h, `exit 9`); res.Outcome == sandboxrun.Signaled {
		t.broken("control: exit 9 was reported as %s", ending(res))
	}
	res := t.sh(h, `kill -KILL $$`)
	if res.Outcome != sandboxrun.Signaled || res.Signal != "SIGKILL" || res.ExitCode == 0 {
		t.fail("a death by SIGKILL was reported as %s", ending(res))
	}
	if res, err := t.try(t.ctx, h, sandboxrun.Request{Argv: shell(`exit 0`)}); err != nil || !succeeded(res) {
		t.fail("after it the handle runs no command: %s, error %v", res.Outcome, err)
	}
}

func checkMissingProgram(t *trial) {
	h := t.create(nil)
	t.ok(h, `exit 0`)
	res, err := t.try(t.ctx, h, sandboxrun.Request{Argv: []string{"/no/such/program"}})
	if err == nil {
		t.fail("expected an error, got %s", ending(res))
	}
}

func checkBadRequest(t *trial) {
	h := t.create(nil)
	for name, r := range map[string]sandboxrun.Request{
		"no command":         {},
		"an empty name":      {Argv: []string{""}},
		"a NUL byte":         {Argv: []string{"/bin/sh", "-c", "exit 0\x00"}},
		"a negative timeout": {Argv: shell(`exit 0`), Timeout: -time.Second},
	} {
		if res, err := guard(t.c.Grace, func() (sandboxrun.Result, error) { return t.b.Execute(t.ctx, h, r) }); err == nil {
			t.fail("%s: expected an error, got %s", name, ending(res))
		} else if strings.HasPrefix(err.Error(), "panic: ") || errors.Is(err, errHung) {
			t.broken("%s: %v", name, err)
		}
	}
	t.ok(h, `exit 0`)
}

func checkArgvLiteral(t *trial) {
	h := t.create(nil)
	args := []string{"$(touch planted)", "`touch planted`", "; touch planted", "two\nlines", "", "*", "'", `"`, "-n", "\xff"}
	script := `for a in "$@"; do printf '%s|' "$a"; done`
	if out := t.ok(h, script, "control"); out != "control|" {
		t.broken("control: got %q", out)
	}
	if res, want := t.sh(h, script, args...), strings.Join(args, "|")+"|"; string(res.Stdout.Text) != want {
		t.fail("sent %q: %s", want, ending(res))
	}
	if out := t.ok(h, `ls`); strings.Contains(out, "planted") {
		t.fail("an argument was run as a command")
	}
}

func checkWorkspaceKept(t *trial) {
	h := t.create(nil)
	t.ok(h, `echo one >kept; echo two >gone; mkdir -p d/e; echo three >d/e/f; ln -s kept link`)
	if res := t.sh(h, `cat kept link d/e/f; echo four >>kept; rm gone; exit 3`); res.ExitCode != 3 || string(res.Stdout.Text) != "one\none\nthree\n" {
		t.fail("the second command did not find what the first had left: %s", ending(res))
	}
	if res := t.sh(h, `cat kept; ls`); string(res.Stdout.Text) != "one\nfour\nd\nkept\nlink\n" {
		t.fail("what a command left that failed is not as it left it: %s", ending(res))
	}
	if out := t.ok(t.create(nil), `ls -A`); out != "" {
		t.broken("control: another workspace is not empty: %q", out)
	}
}

func checkSameHandle(t *trial) {
	h := t.create(nil)
	const n = 4
	t.ok(h, `echo 0 >>log`)
	var all []*pending
	for i := range n {
		all = append(all, t.start(t.ctx, h, sandboxrun.Request{Argv: shell(`echo "$1" >>log`, itoa(i+1))}))
	}
	for _, p := range all {
		t.join(p)
		if p.err != nil || !succeeded(p.res) {
			t.fail("one of %d commands at the same time: %s, error %v", n, p.res.Outcome, p.err)
		}
	}
	if got := strings.Fields(t.ok(h, `sort log`)); strings.Join(got, " ") != "0 1 2 3 4" {
		t.fail("of %d commands at the same time these took effect: %q", n, got)
	}
}

func checkConcurrent(t *trial) {
	a, b := t.create(nil), t.create(nil)
	in := newGate("held\n")
	t.cleanup = append(t.cleanup, in.let)
	first := t.start(t.ctx, a, sandboxrun.Request{Argv: shell(`cat; echo first`), Stdin: in})
	t.started(first, in.asked)
	second := t.start(t.ctx, b, sandboxrun.Request{Argv: shell(`echo second`)})
	ended := t.wait(second)
	held := !first.ended()
	in.let() // also lets a second command go on that waits for the first
	t.join(first)
	switch {
	case first.err != nil || string(first.res.Stdout.Text) != "held\nfirst\n":
		t.fail("the first command: %s, error %v", ending(first.res), first.err)
	case !held:
		t.broken("control: the first command did not last as long as the second")
	case !ended:
		t.fail("the second command did not run while the first did")
	case second.err != nil || string(second.res.Stdout.Text) != "second\n":
		t.fail("the second command: %s, error %v", ending(second.res), second.err)
	}
}

// streamRules are about what goes in and comes out.
func streamRules() []backendRule {
	return []backendRule{
		required("execute.streams_apart", "standard output and error are kept apart", "", nil, checkStreamsApart),
		required("execute.bytes_preserved", "output is kept as bytes: NUL, escapes and what is not UTF-8", "", nil, checkBytesPreserved),
		required("execute.stdin", "standard input arrives whole, need not be read, and without one it is at its end", "", nil, checkStdin),
	}
}

func checkStreamsApart(t *trial) {
	res := t.sh(t.create(nil), `echo to-out; echo to-err >&2`)
	if string(res.Stdout.Text) != "to-out\n" || string(res.Stderr.Text) != "to-err\n" {
		t.fail("%s", ending(res))
	}
}

func checkBytesPreserved(t *trial) {
	h := t.create(nil)
	if out := t.ok(h, `printf plain`); out != "plain" {
		t.broken("control: got %q", out)
	}
	const want = "\x00\xff\x1b[31m\r\n\xc3\x28\xed\xa0\x80"
	if out := t.ok(h, `printf '\000\377\033[31m\r\n\303\050\355\240\200'`); out != want {
		t.fail("wrote %q, got %q", want, out)
	}
}

func checkStdin(t *trial) {
	h := t.create(nil)
	if out := t.ok(h, `cat; echo end`); out != "end\n" {
		t.fail("without an input there was one: %q", out)
	}
	in := bytes.Repeat([]byte("line \xff\x00 of input\n"), 20_000)
	count := func(script, want string) {
		res, err := t.try(t.ctx, h, sandboxrun.Request{Argv: shell(script), Stdin: bytes.NewReader(in)})
		if err != nil || strings.TrimSpace(string(res.Stdout.Text)) != want {
			t.fail("%s of an input of %d bytes: %s, error %v", script, len(in), ending(res), err)
		}
	}
	count(`wc -c`, itoa(len(in)))
	count(`tail -n 1 | tr -d '\000\377'`, "line  of input")
	count(`echo unread`, "unread")
}

// endRules are about commands that are not left to end by themselves.
func endRules() []backendRule {
	return []backendRule{
		required("execute.timeout_keeps_output", "what a command wrote before its timeout is reported", "request_timeout", timesOut, checkTimeoutOutput),
		required("execute.timeout_spares", "a command that ends in time is not touched by its timeout or an earlier one", "request_timeout", timesOut, checkTimeoutSpares),
		required("execute.cancel_before_start", "a context that has ended starts nothing", "cooperative_cancellation", cancels, checkCancelBefore),
		required("execute.handle_reusable", "the handle of a cancelled command takes the next one", "cooperative_cancellation", cancels, checkReusable),
	}
}

func checkTimeoutOutput(t *trial) {
	h := t.create(nil)
	var res sandboxrun.Result
	// How long a command needs to get to its first word is not known.
	for timeout := 200 * time.Millisecond; timeout < usualTimeout; timeout *= 2 {
		res = t.run(h, sandboxrun.Request{Argv: shell(`echo before; echo also >&2; sleep 60; echo after`), Timeout: timeout})
		if string(res.Stdout.Text) == "before\n" && string(res.Stderr.Text) == "also\n" {
			return
		}
		if succeeded(res) || timeout > t.c.Grace/2 {
			break
		}
	}
	t.fail("%s", ending(res))
}

func checkTimeoutSpares(t *trial) {
	h := t.create(nil)
	t.run(h, sandboxrun.Request{Argv: t.c.Timeout, Timeout: 50 * time.Millisecond})
	if res := t.sh(h, `sleep 0.2; echo in-time`); !succeeded(res) || string(res.Stdout.Text) != "in-time\n" {
		t.fail("a command that ends in time: %s", ending(res))
	}
}

func checkCancelBefore(t *trial) {
	h := t.create(nil)
	ctx, cancel := context.WithCancelCause(t.ctx)
	cancel(errStop)
	r := sandboxrun.Request{Argv: shell(`echo ran; : >ran`)}
	if res, err := t.try(ctx, h, r); !errors.Is(err, errStop) || len(res.Stdout.Text) > 0 {
		t.fail("expected an error that wraps the cause of the context: %s, error %v", ending(res), err)
	}
	if out := t.ok(h, `ls`); out != "" {
		t.fail("the command was run: %q", out)
	}
	t.run(h, r)
	if out := t.ok(h, `ls`); out != "ran\n" {
		t.broken("control: the command leaves %q", out)
	}
}

func checkReusable(t *trial) {
	h := t.create(nil)
	p, cancel := t.startUntil(h, sandboxrun.Request{Argv: t.c.Timeout})
	cancel(errStop)
	t.join(p)
	if res, err := t.try(t.ctx, h, sandboxrun.Request{Argv: shell(`echo next`)}); err != nil || string(res.Stdout.Text) != "next\n" {
		t.fail("the next command: %s, error %v", ending(res), err)
	}
}
