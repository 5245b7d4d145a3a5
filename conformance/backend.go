package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// Case is what a backend is tested with. Fields that are empty take those of
// DefaultCase, which suit every backend whose sandbox has /bin/sh.
type Case struct {
	// Smoke is a command that succeeds at once, and Expect is part of its
	// standard output.
	Smoke  []string
	Expect string
	// Timeout is a command that takes a minute or more.
	Timeout []string
	// Artifact is a command that leaves a file, ExpectArtifact, in the workspace.
	Artifact       []string
	ExpectArtifact string
	// Grace is how long a call may take beyond its timeout, its cancellation or
	// a command that ends at once, before it counts as hanging.
	Grace time.Duration
	// Only, if set, chooses the rules by their id.
	Only func(id string) bool
	// Progress, if set, is called after each rule.
	Progress func(Finding)
}

// SuiteSandbox is the name of the suite of RunBackend.
const SuiteSandbox = "sandbox"

// DefaultCase returns the values that empty fields of a Case take.
func DefaultCase() Case {
	return Case{
		Smoke: shell(`echo conformance`), Expect: "conformance",
		Timeout:  shell(`echo started; sleep 60; echo ended`),
		Artifact: shell(`echo kept >artifact.txt`), ExpectArtifact: "artifact.txt",
		Grace: 10 * time.Second,
	}
}

func (c Case) filled() Case {
	d := DefaultCase()
	if len(c.Smoke) == 0 {
		c.Smoke, c.Expect = d.Smoke, d.Expect
	}
	if len(c.Timeout) == 0 {
		c.Timeout = d.Timeout
	}
	if len(c.Artifact) == 0 {
		c.Artifact, c.ExpectArtifact = d.Artifact, d.ExpectArtifact
	}
	if c.Grace <= 0 {
		c.Grace = d.Grace
	}
	return c
}

// RunBackend tests a backend against the contract of sandboxrun.Backend. spec is
// what the backend would be used with; rules change in it what they are about,
// and let Workspace, ReadOnly, Egress and Artifacts be only where they set them.
//
// The rules besides the seed's run /bin/sh and the usual tools of a Unix in the
// sandbox (cat, sleep, mkfifo, setsid and the like). They make temporary files,
// listen on 127.0.0.1, and set an environment variable of this process for a
// moment, so that nothing else should be going on in it. On Linux they look into
// /proc for what is left; where they cannot, they are skipped.
//
// Whatever the backend does, RunBackend returns: a panic, a call that hangs and
// an error where none was due become findings, and so does the end of ctx. A
// call that hangs is left behind.
func RunBackend(ctx context.Context, b sandboxrun.Backend, spec sandboxrun.Spec, c Case) Report {
	spec.Workspace, spec.ReadOnly, spec.Egress, spec.Artifacts = "", false, nil, nil
	s := backendSuite{b: b, spec: spec, c: c.filled()}
	s.caps, s.capsErr = guard(s.c.Grace, func() (sandboxrun.Capabilities, error) { return b.Capabilities(), nil })
	report := Report{Suite: SuiteSandbox, Subject: s.caps.BackendID, Capabilities: &s.caps}
	for _, r := range backendRules() {
		if c.Only != nil && !c.Only(r.ID) {
			continue
		}
		f := s.try(ctx, r)
		report.Findings = append(report.Findings, f)
		if c.Progress != nil {
			c.Progress(f)
		}
	}
	return report
}

// backendSuite is one run of the suite.
type backendSuite struct {
	b       sandboxrun.Backend
	spec    sandboxrun.Spec
	c       Case
	caps    sandboxrun.Capabilities
	capsErr error // the backend could not say what it promises
}

// backendRule is a Rule and how it is tried.
type backendRule struct {
	Rule
	declared func(sandboxrun.Capabilities) bool // nil: always
	check    func(t *trial)
}

// declaration names what the promise comes from.
func (r backendRule) declaration() string {
	if limit, ok := strings.CutPrefix(r.ID, "limits."); ok {
		return r.Capability + ": " + limit
	}
	return r.Capability
}

// backendRules returns all rules, the seed's first.
func backendRules() []backendRule {
	return slices.Concat(seedRules(), declarationRules(), resultRules(), streamRules(), endRules(), treeRules(),
		outputRules(), isolationRules(), artifactRules(), lifecycleRules(), limitRules())
}

// ruleTime bounds one rule, whatever the backend does.
const ruleTime = time.Minute

// try runs one rule.
func (s *backendSuite) try(ctx context.Context, r backendRule) Finding {
	start := time.Now()
	f := Finding{Rule: r.ID, Required: r.Required}
	switch {
	case s.capsErr != nil:
		f.Status, f.Detail = Broken, "capabilities: "+s.capsErr.Error()
	case r.declared != nil && !r.declared(s.caps):
		f.Status, f.Reason, f.Detail = Skipped, Undeclared, fmt.Sprintf("the backend does not declare %s", r.declaration())
	default:
		f.Status, f.Reason, f.Detail = s.trial(ctx, r)
	}
	f.Took = time.Since(start)
	return f
}
