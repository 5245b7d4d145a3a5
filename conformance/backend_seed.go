package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

type caps = sandboxrun.Capabilities

// Declarations that rules depend on.
var (
	timesOut  = func(c caps) bool { return c.RequestTimeout }
	cancels   = func(c caps) bool { return c.CooperativeCancellation }
	collects  = func(c caps) bool { return c.ArtifactCollection }
	cleansUp  = func(c caps) bool { return c.DeterministicCleanup }
	hidesHost = func(c caps) bool { return c.FilesystemIsolation.HidesHost() }
)

// seedRules are those of the seed, in its order.
func seedRules() []backendRule {
	rule := func(id, meaning, capability string, declared func(caps) bool, check func(*trial)) backendRule {
		return backendRule{Rule{Suite: SuiteSandbox, ID: id, Meaning: meaning, Capability: capability, Required: true}, declared, check}
	}
	return []backendRule{
		rule("capabilities.backend_id", "the backend has a name", "", nil, checkBackendID),
		rule("capabilities.artifact_boundary", "artifacts are collected only where files are isolated", "", nil, checkArtifactBoundary),
		rule("capabilities.reconnect_lifecycle", "reconnect comes with deterministic cleanup", "", nil, checkReconnectLifecycle),
		rule("capabilities.ownership_fencing", "fencing comes with reconnect", "", nil, checkOwnershipFencing),
		rule("capabilities.command_reconnect", "command reconnect comes with reconnect, fencing and cancellation", "", nil, checkCommandReconnect),
		rule("execute.result_contract", "a command that succeeds is reported so, with its output", "", nil, checkResultContract),
		rule("execute.request_timeout", "a command is ended after its timeout, and reported as timed out", "request_timeout", timesOut, checkRequestTimeout),
		rule("artifact.collection", "a file that a command leaves is collected", "artifact_collection", collects, checkCollection),
		rule("lifecycle.close_marks_handle", "a closed handle says so", "", nil, checkCloseMarks),
		rule("lifecycle.closed_handle_rejected", "a closed handle runs no command: ErrClosed", "deterministic_cleanup", cleansUp, checkClosedRejected),
		rule("policy.network_admission", "a spec that asks for a host of the network is refused: ErrPolicy", "network_control",
			func(c caps) bool { return c.NetworkControl != sandboxrun.NetworkOpen }, checkNetworkAdmission),
		rule("execute.cooperative_cancellation", "the end of the context ends a command, and its cause is in the error", "cooperative_cancellation", cancels, checkCancellation),
	}
}

func checkBackendID(t *trial) {
	if strings.TrimSpace(t.caps.BackendID) == "" {
		t.fail("backend_id is blank")
	}
}

func checkArtifactBoundary(t *trial) {
	if t.caps.FilesystemIsolation == sandboxrun.FilesystemNone && t.caps.ArtifactCollection {
		t.fail("artifact_collection is declared with filesystem_isolation none")
	}
}

func checkReconnectLifecycle(t *trial) {
	if t.caps.Reconnect && !t.caps.DeterministicCleanup {
		t.fail("reconnect is declared without deterministic_cleanup")
	}
}

func checkOwnershipFencing(t *trial) {
	if t.caps.OwnershipFencing && !t.caps.Reconnect {
		t.fail("ownership_fencing is declared without reconnect")
	}
}

func checkCommandReconnect(t *trial) {
	if c := t.caps; c.CommandReconnect && !(c.Reconnect && c.OwnershipFencing && c.CooperativeCancellation) {
		t.fail("command_reconnect is declared without reconnect, ownership_fencing and cooperative_cancellation")
	}
}

func checkResultContract(t *trial) {
	if t.c.Expect == "" {
		t.broken("the case expects nothing of its smoke command")
	}
	h := t.create(nil)
	if res := t.sh(h, `exit 7`); strings.Contains(string(res.Stdout.Text), t.c.Expect) {
		t.broken("control: another command has the expected output, too")
	}
	res := t.run(h, sandboxrun.Request{Argv: t.c.Smoke})
	if !succeeded(res) || !strings.Contains(string(res.Stdout.Text), t.c.Expect) {
		t.fail("expected success and %q in the output: %s", t.c.Expect, ending(res))
	}
}

func checkRequestTimeout(t *trial) {
	h := t.create(nil)
	if res := t.run(h, sandboxrun.Request{Argv: t.c.Smoke}); res.Outcome == sandboxrun.TimedOut {
		t.broken("control: the smoke command timed out")
	}
	const timeout = 50 * time.Millisecond
	res, err := t.try(t.ctx, h, sandboxrun.Request{Argv: t.c.Timeout, Timeout: timeout})
	switch {
	case errors.Is(err, errHung):
		t.fail("still running %v after its timeout of %v", t.c.Grace, timeout)
	case err != nil:
		t.fail("a timeout is a result and no error: %v", err)
	case res.Outcome != sandboxrun.TimedOut || res.ExitCode == 0:
		t.fail("expected timed_out and an exit code other than 0: %s", ending(res))
	}
}

func checkCollection(t *trial) {
	h := t.create(nil)
	want := t.c.ExpectArtifact
	if has(t.artifacts(h), want) {
		t.broken("control: %q is there before the command", want)
	}
	res := t.run(h, sandboxrun.Request{Argv: t.c.Artifact})
	if !succeeded(res) {
		t.broken("the artifact command ended with %s", ending(res))
	}
	if list := t.artifacts(h); !has(list, want) {
		t.fail("expected %q among %q", want, paths(list))
	}
}

func has(list []sandboxrun.Artifact, path string) bool { return slices.Contains(paths(list), path) }

func paths(list []sandboxrun.Artifact) []string {
	names := make([]string, len(list))
	for i, a := range list {
		names[i] = a.Path
	}
	return names
}

func checkCloseMarks(t *trial) {
	h := t.create(nil)
	if h.Closed() {
		t.broken("control: a new handle says that it is closed")
	}
	if err := t.close(h); err != nil {
		t.broken("close: %v", err)
	}
	if !h.Closed() {
		t.fail("the handle does not say that it is closed")
	}
}

func checkClosedRejected(t *trial) {
	h := t.create(nil)
	t.ok(h, `echo control`)
	if err := t.close(h); err != nil {
		t.broken("close: %v", err)
	}
	if res, err := t.try(t.ctx, h, sandboxrun.Request{Argv: t.c.Smoke}); !errors.Is(err, sandboxrun.ErrClosed) {
		t.fail("expected ErrClosed, got %s, error %v", res.Outcome, err)
	}
}

func checkNetworkAdmission(t *trial) {
	t.create(nil) // the control: without the wish it is admitted
	s := t.spec
	s.Egress = []string{"sandbox-conformance.invalid"}
	if _, err := t.tryCreate(s); !errors.Is(err, sandboxrun.ErrPolicy) {
		t.fail("expected ErrPolicy, got %v", err)
	}
}

// errStop is the cause of every cancellation by the suite.
var errStop = errors.New("cancelled by the suite")

func checkCancellation(t *trial) {
	h := t.create(nil)
	p, cancel := t.startUntil(h, sandboxrun.Request{Argv: t.c.Timeout})
	cancel(errStop)
	if !t.wait(p) {
		t.fail("still running %v after the context ended", t.c.Grace)
	}
	if !errors.Is(p.err, errStop) {
		t.fail("expected an error that wraps the cause of the context, got %s, error %v", p.res.Outcome, p.err)
	}
}

// startUntil starts a command that ends only when it is cancelled, and returns
// once it runs.
func (t *trial) startUntil(h sandboxrun.Handle, r sandboxrun.Request) (*pending, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(t.ctx)
	t.cleanup = append(t.cleanup, func() { cancel(nil) })
	in := newGate("")
	in.let()
	r.Stdin = in
	p := t.start(ctx, h, r)
	t.started(p, in.asked)
	return p, cancel
}

// started returns when a command has asked for its input, which is when it runs.
func (t *trial) started(p *pending, asked <-chan struct{}) {
	select {
	case <-asked:
	case <-p.done:
		t.broken("control: the command ended at once: %s, error %v", p.res.Outcome, p.err)
	case <-t.ctx.Done():
		t.broken("the command did not start: %v", context.Cause(t.ctx))
	}
}

// gate is an input that tells when it is first asked for, and comes to its end
// when it is let.
type gate struct {
	text  *strings.Reader
	asked chan struct{}
	open  chan struct{}
	ask   func()
	let   func()
}

func newGate(text string) *gate {
	g := &gate{text: strings.NewReader(text), asked: make(chan struct{}), open: make(chan struct{})}
	g.ask = sync.OnceFunc(func() { close(g.asked) })
	g.let = sync.OnceFunc(func() { close(g.open) })
	return g
}

func (g *gate) Read(p []byte) (int, error) {
	g.ask()
	if g.text.Len() == 0 {
		<-g.open
	}
	return g.text.Read(p)
}

// required makes the rules of ours: all of them, but for those on limits, must pass.
func required(id, meaning, capability string, declared func(caps) bool, check func(*trial)) backendRule {
	return backendRule{Rule{Suite: SuiteSandbox, ID: id, Meaning: meaning, Capability: capability, Required: true}, declared, check}
}

// declarationRules are about what a backend says of itself.
func declarationRules() []backendRule {
	return []backendRule{
		required("capabilities.values", "what is declared is of the words that the contract has", "", nil, checkValues),
	}
}

func checkValues(t *trial) {
	files := []sandboxrun.FilesystemIsolation{sandboxrun.FilesystemNone, sandboxrun.ScopedWorkspace, sandboxrun.EphemeralWorkspace,
		sandboxrun.RemoteSandbox, sandboxrun.OverlayWorkspace}
	network := []sandboxrun.NetworkControl{sandboxrun.NetworkOpen, sandboxrun.NetworkCommandSurface, sandboxrun.NetworkAdmission, sandboxrun.NetworkEnforced}
	limits := []sandboxrun.HardLimit{sandboxrun.HardProcesses, sandboxrun.HardOpenFiles, sandboxrun.HardWriteBytes, sandboxrun.HardWriteFiles, sandboxrun.HardMemory}
	unknown := func(field string, value any) { t.fail("%s: %q is no word of the contract", field, fmt.Sprint(value)) }
	if !slices.Contains(files, t.caps.FilesystemIsolation) {
		unknown("filesystem_isolation", t.caps.FilesystemIsolation)
	}
	if !slices.Contains(network, t.caps.NetworkControl) {
		unknown("network_control", t.caps.NetworkControl)
	}
	for _, l := range t.caps.HardLimits {
		if !slices.Contains(limits, l) {
			unknown("hard_limits", l)
		}
	}
}
