package conformance

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// stub is a backend whose methods are given one by one. Those that are not say
// yes to everything and do nothing.
type stub struct {
	caps    func() sandboxrun.Capabilities
	create  func() (sandboxrun.Handle, error)
	execute func(context.Context) (sandboxrun.Result, error)
}

type stubHandle struct{ forged }

func (s stub) Capabilities() sandboxrun.Capabilities {
	if s.caps != nil {
		return s.caps()
	}
	return everything
}

func (s stub) Create(context.Context, sandboxrun.Spec) (sandboxrun.Handle, error) {
	if s.create != nil {
		return s.create()
	}
	return stubHandle{forged{"stub"}}, nil
}

func (s stub) Execute(ctx context.Context, _ sandboxrun.Handle, _ sandboxrun.Request) (sandboxrun.Result, error) {
	if s.execute != nil {
		return s.execute(ctx)
	}
	return sandboxrun.Result{Outcome: sandboxrun.Exited}, nil
}

func (s stub) Artifacts(context.Context, sandboxrun.Handle) ([]sandboxrun.Artifact, error) {
	return nil, nil
}

func (s stub) Close(context.Context, sandboxrun.Handle) error { return nil }

// everything is declared.
var everything = sandboxrun.Capabilities{
	BackendID: "stub", FilesystemIsolation: sandboxrun.OverlayWorkspace, NetworkControl: sandboxrun.NetworkEnforced,
	ProcessBoundary: true, RequestTimeout: true, CooperativeCancellation: true, ArtifactCollection: true, DeterministicCleanup: true,
	Reconnect: true, OwnershipFencing: true, CommandReconnect: true,
	ReadOnlyEnforced: true, EnvScrub: true, TreeKill: true, OutputCap: true,
	HardLimits: []sandboxrun.HardLimit{sandboxrun.HardProcesses, sandboxrun.HardOpenFiles, sandboxrun.HardWriteBytes, sandboxrun.HardWriteFiles, sandboxrun.HardMemory},
}

// harmless are the rules that a backend can keep which does nothing at all.
var harmless = []string{
	"capabilities.backend_id", "capabilities.artifact_boundary", "capabilities.reconnect_lifecycle", "capabilities.ownership_fencing",
	"capabilities.command_reconnect", "capabilities.values", "lifecycle.close_idempotent",
}

// TestYesIsNotEnough: a backend that says yes to everything and does nothing
// passes no rule about what a backend does.
func TestYesIsNotEnough(t *testing.T) {
	rep := RunBackend(t.Context(), stub{}, sandboxrun.Spec{}, Case{Grace: 100 * time.Millisecond})
	for _, f := range rep.Findings {
		if passed := f.Status == Passed; passed != slices.Contains(harmless, f.Rule) {
			t.Errorf("%s: %s: %s", f.Rule, f.Status, f.Detail)
		}
	}
	if rep.OK() {
		t.Error("the report is OK")
	}
}

// TestBrokenIsNotPassed: panics, errors and calls that hang become findings, and
// the rules that met them have not passed.
func TestBrokenIsNotPassed(t *testing.T) {
	boom := errors.New("boom")
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	for _, tc := range []struct {
		name    string
		backend stub
		rule    string
		want    Status
		detail  string
	}{
		{"capabilities panic", stub{caps: func() sandboxrun.Capabilities { panic("boom") }}, "capabilities.backend_id", Broken, "capabilities: panic: boom"},
		{"create panics", stub{create: func() (sandboxrun.Handle, error) { panic("boom") }}, "execute.exit_codes", Broken, "create: panic: boom"},
		{"create fails", stub{create: func() (sandboxrun.Handle, error) { return nil, boom }}, "execute.exit_codes", Broken, "create: boom"},
		{"create returns nothing", stub{create: func() (sandboxrun.Handle, error) { return nil, nil }}, "execute.exit_codes", Broken, "create: no handle and no error"},
		{"create hangs", stub{create: func() (sandboxrun.Handle, error) { <-forever; return nil, nil }}, "execute.exit_codes", Broken, "create: the call did not return in time"},
		{"execute panics", stub{execute: func(context.Context) (sandboxrun.Result, error) { panic("boom") }}, "execute.exit_codes", Broken, "execute: panic: boom"},
		{"execute panics on a bad request", stub{execute: func(context.Context) (sandboxrun.Result, error) { panic("boom") }}, "execute.bad_request", Broken, "panic: boom"},
		{"execute fails", stub{execute: func(context.Context) (sandboxrun.Result, error) { return sandboxrun.Result{}, boom }}, "execute.argv_literal", Broken, "execute: boom"},
		{"an error where a result is due", stub{execute: func(ctx context.Context) (sandboxrun.Result, error) {
			return sandboxrun.Result{}, sandboxrun.ErrUnavailable
		}}, "execute.result_contract", Broken, sandboxrun.ErrUnavailable.Error()},
		{"the goroutine of a call ends", stub{execute: func(context.Context) (sandboxrun.Result, error) { runtime.Goexit(); return sandboxrun.Result{}, nil }}, "execute.exit_codes", Broken, "the call ended its goroutine"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			only := func(id string) bool { return id == tc.rule }
			rep := RunBackend(t.Context(), tc.backend, sandboxrun.Spec{}, Case{Grace: 50 * time.Millisecond, Only: only})
			if len(rep.Findings) != 1 || rep.OK() {
				t.Fatalf("%+v", rep)
			}
			if f := rep.Findings[0]; f.Status != tc.want || !strings.Contains(f.Detail, tc.detail) {
				t.Errorf("%s: %s", f.Status, f.Detail)
			}
		})
	}
}

// TestCancelledSuite: the end of the context ends the suite, and nothing passes
// for it.
func TestCancelledSuite(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the user has seen enough")
	seen := 0
	rep := RunBackend(ctx, stub{}, sandboxrun.Spec{}, Case{Progress: func(Finding) {
		if seen++; seen == 2 {
			cancel(why)
		}
	}})
	if len(rep.Findings) != len(backendRules()) || seen != len(backendRules()) {
		t.Errorf("%d findings, %d told", len(rep.Findings), seen)
	}
	for i, f := range rep.Findings {
		if i < 2 && f.Status != Passed || i >= 2 && (f.Status != Broken || f.Detail != why.Error()) {
			t.Errorf("%s: %s: %s", f.Rule, f.Status, f.Detail)
		}
	}
}

// TestControlsAreLookedAt: a case that cannot show anything is an error.
func TestControlsAreLookedAt(t *testing.T) {
	says := func(text string) stub {
		return stub{execute: func(context.Context) (sandboxrun.Result, error) {
			return sandboxrun.Result{Outcome: sandboxrun.Exited, Stdout: sandboxrun.Output{Text: []byte(text)}}, nil
		}}
	}
	for name, c := range map[string]Case{
		"nothing is expected":       {Smoke: []string{"/bin/true"}},
		"what others say, too":      {Smoke: []string{"/bin/true"}, Expect: "same"},
		"the same from the default": {Smoke: DefaultCase().Smoke, Expect: "same"},
	} {
		c.Only = func(id string) bool { return id == "execute.result_contract" }
		rep := RunBackend(t.Context(), says("always the same"), sandboxrun.Spec{}, c)
		if f := rep.Findings[0]; f.Status != Broken {
			t.Errorf("%s: %s: %s", name, f.Status, f.Detail)
		}
	}
}
