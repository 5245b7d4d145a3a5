package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun/prober"
)

// RunHost tries, on this host, what a script must not be able to do: from
// inside a sandbox with the prober, and from outside by looking at what a run
// leaves. Its rules have ids that begin with "host.".
//
// The same prober also runs in a sandbox that is made as naively as that is
// often done. There it must find ten things wrong (the rules "host.control.…"):
// a prober or a suite that always says yes is an error and not a pass.
//
// A host that cannot sandbox is reported, with all rules skipped. The error is
// that of ctx, or that of the files that are laid out as bait. RunHost takes
// about ten seconds. It writes only to directories of its own below /tmp and
// /var/tmp and removes them, also when it fails. Two at once in one process
// would take each other's children for their own leftovers.
func RunHost(ctx context.Context, c HostCase) (Report, error) {
	rep := Report{Suite: SuiteHost, Subject: "sandboxrun"}
	rules := c.selected()
	facts := c.Runner.Probe(ctx)
	if ctx.Err() != nil {
		return rep, context.Cause(ctx)
	}
	if !facts.OK {
		for _, r := range rules {
			rep.Findings = append(rep.Findings, r.skipped(facts.Cause))
		}
		return rep, nil
	}
	h := &host{HostCase: c, bwrap: facts.Bwrap, onDisk: facts.Upper == "disk"}
	defer h.close()
	if err := h.open(); err != nil {
		return rep, fmt.Errorf("lay out what a script must not reach: %w", err)
	}
	rep.Findings = h.run(ctx, rules)
	if ctx.Err() != nil {
		return rep, context.Cause(ctx)
	}
	return rep, nil
}

// SuiteHost is the name of the suite of RunHost.
const SuiteHost = "host"

// HostCase says what RunHost tries, and on what.
type HostCase struct {
	// Runner is the sandbox under test, as scripts get it.
	Runner *sandboxrun.Runner
	// UnixSockets says that the Runner lets scripts make sockets of AF_UNIX
	// (sandboxrun.Config.AllowUnixSockets). That they can is then only weak.
	UnixSockets bool
	// Prober is the program that is put into the sandbox. Nil: this one.
	Prober []byte
	// Only, if set, chooses the rules by their id. Those of the control run
	// whenever one of the prober's does.
	Only func(id string) bool
	// Progress, if set, is called after each rule.
	Progress func(Finding)
}

// selected returns the rules to run.
func (c HostCase) selected() []hostRule {
	all := hostRules()
	for i, r := range all {
		if c.UnixSockets && slices.Contains(unixRules, r.ID) {
			all[i].want = r.want.orWeakOn("OK", "allowed by the setting script.unix_sockets")
		}
	}
	if c.Only == nil {
		return all
	}
	probed := slices.ContainsFunc(all, func(r hostRule) bool { return r.act == nil && c.Only(r.ID) })
	return slices.DeleteFunc(all, func(r hostRule) bool {
		return !c.Only(r.ID) && !(probed && r.isControl())
	})
}

// unixRules are about sockets of AF_UNIX.
var unixRules = []string{"host.net.socket_unix", "host.net.pair_dgram"}

// hostRule is a line of the table.
type hostRule struct {
	Rule
	want want
	// act makes the trial and returns what was observed; nil: the prober does.
	act func(context.Context, *host) (string, error)
}

// probe is the name that the prober has for the rule.
func (r hostRule) probe() string { return strings.TrimPrefix(r.ID, "host.") }

func (r hostRule) isControl() bool { return strings.HasPrefix(r.ID, "host.control.") }

func (r hostRule) skipped(why string) Finding {
	return Finding{Rule: r.ID, Required: r.Required, Status: Skipped, Reason: UnsupportedHere, Detail: why, Expected: r.Expected}
}

// judge turns an observation into a finding.
func (r hostRule) judge(got string, err error) Finding {
	f := Finding{Rule: r.ID, Required: r.Required, Expected: r.Expected}
	var absent notHere
	if errors.As(err, &absent) {
		f = r.skipped(oneLine(absent.Error()))
		f.Required = false
		return f
	}
	if err != nil {
		f.Status, f.Detail = Broken, oneLine(err.Error())
		return f
	}
	f.Status, f.Detail = r.want.judge(got)
	if f.Observed = oneLine(got); f.Observed == "" {
		f.Observed = "nothing"
	}
	if f.Status == Failed {
		f.Detail = "expected " + f.Expected + ", observed " + f.Observed
	}
	return f
}

// errNoAnswer: the prober ended before it came to a probe.
var errNoAnswer = errors.New("the prober gave no answer")

// run makes the trials: all of the prober's in one sandbox, the others one by one.
func (h *host) run(ctx context.Context, rules []hostRule) []Finding {
	inside := slices.DeleteFunc(slices.Clone(rules), func(r hostRule) bool { return r.act != nil })
	var seen map[string]prober.Observation
	var lost error
	if len(inside) > 0 {
		seen, lost = h.probeSandbox(ctx, inside)
	}
	var list []Finding
	for _, r := range rules {
		if ctx.Err() != nil {
			break
		}
		began := time.Now()
		var f Finding
		if r.act == nil {
			f = r.observed(seen, lost)
		} else {
			f = r.judge(r.act(ctx, h))
		}
		f.Took = time.Since(began)
		list = append(list, f)
		if h.Progress != nil {
			h.Progress(f)
		}
	}
	return list
}

// observed judges what the prober said of a rule.
func (r hostRule) observed(seen map[string]prober.Observation, lost error) Finding {
	o, ok := seen[r.probe()]
	switch {
	case !slices.Contains(prober.Names(), r.probe()):
		return r.judge("", notHere("this architecture has no such call"))
	case !ok && lost != nil:
		return r.judge("", lost)
	case !ok:
		return r.judge("", errNoAnswer)
	case o.Broke != "":
		return r.judge("", errors.New(o.Broke))
	}
	return r.judge(o.Got, nil)
}

// self is the program that becomes the prober.
func (h *host) self() ([]byte, error) {
	var err error
	if h.Prober == nil {
		h.Prober, err = os.ReadFile("/proc/self/exe")
	}
	return h.Prober, err
}
