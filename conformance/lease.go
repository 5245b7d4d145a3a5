package conformance

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// LeaseCase is what a lease provider is tested with: ways to do to it what a rule
// is about. A rule whose way is missing is skipped as unsupported here. The
// zero value tests what can be tested in real time on an open provider.
type LeaseCase struct {
	// Clock moves the provider's clock. Without it real time passes.
	Clock LeaseClock
	// TTL is that of most grants, in whole seconds; 30 s, or 1 s in real time.
	TTL time.Duration
	// Reopen closes the provider and opens it on what it has stored; Crash does so
	// after a kill -9 of the process that has it. The old one is not used again.
	Reopen, Crash func(context.Context) (lease.Provider, error)
	// Clients lets n processes make the same request at the same time, each
	// for an owner of its own, and returns what each got.
	Clients func(ctx context.Context, n int, r lease.Request) ([]Attempt, error)
	// Interrupt lets the next write of the provider's store report an error,
	// though it was stored or because it was not.
	Interrupt func(stored bool)
	// Hooks are those that the provider calls.
	Hooks *LeaseHooks
	// Resource makes something new that is protected by tokens.
	Resource func(context.Context) (Resource, error)
	// Cycles is how often a lease is acquired and released to see whether its
	// tokens go on; 100.
	Cycles int

	Only     func(id string) bool // if set, chooses the rules by their id
	Progress func(Finding)        // if set, is called after each rule
}

// LeaseClock moves a clock, as ManualClock does.
type LeaseClock interface {
	Advance(time.Duration)
	StepWall(time.Duration)
	Suspend(time.Duration)
}

// Attempt is what one client got.
type Attempt struct {
	Grant lease.Grant
	Err   error
}

// Resource keeps a value, and the highest token that it was written with. A
// write that is refused returns an error and changes nothing.
type Resource interface {
	Write(ctx context.Context, m lease.Mark, value string) error
	Value(ctx context.Context) (string, error)
	Reopen(ctx context.Context) error
	Close() error
}

// LeaseHooks are the hooks of a provider, to be changed by rules: give its methods
// to lease.Options. The zero value does nothing.
type LeaseHooks struct {
	mu     sync.Mutex
	evict  func(lease.Lease) error
	record func(lease.Grant) error
}

// Evict is for lease.Options.
func (h *LeaseHooks) Evict(_ context.Context, l lease.Lease) error {
	h.mu.Lock()
	f := h.evict
	h.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(l)
}

// Record is for lease.Options.
func (h *LeaseHooks) Record(_ context.Context, g lease.Grant) error {
	h.mu.Lock()
	f := h.record
	h.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(g)
}

func (h *LeaseHooks) set(evict func(lease.Lease) error, record func(lease.Grant) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.evict, h.record = evict, record
}

// RunLease tests a provider against the contract of lease.Provider. It acquires
// keys of the tenants "conformance…", and releases what it has acquired.
//
// RunLease returns whatever the provider does: a panic and a call that hangs
// become findings, and so does the end of ctx. A call that hangs is left behind.
// When c has Reopen or Crash the provider that is open at the end is another
// than p; it is the caller's, who knows it.
func RunLease(ctx context.Context, p lease.Provider, c LeaseCase) Report {
	s := &leaseSuite{p: p, c: c}
	if s.c.TTL <= 0 {
		s.c.TTL = 30 * time.Second
		if c.Clock == nil {
			s.c.TTL = time.Second
		}
	}
	if s.c.Cycles <= 0 {
		s.c.Cycles = 100
	}
	report := Report{Suite: SuiteLease, Subject: p.Info().Name}
	for _, r := range leaseRules() {
		if c.Only != nil && !c.Only(r.ID) {
			continue
		}
		f := s.run(ctx, r)
		report.Findings = append(report.Findings, f)
		if c.Progress != nil {
			c.Progress(f)
		}
	}
	return report
}

// leaseSuite is one run of the suite.
type leaseSuite struct {
	p lease.Provider // replaced when it is opened again
	c LeaseCase
}

// leaseRule is a Rule, what it needs, and how it is tried.
type leaseRule struct {
	Rule
	needs leaseNeed
	check func(t *leaseTrial)
}

// leaseNeed is a way of a LeaseCase that a rule cannot do without.
type leaseNeed string

const (
	needNothing   leaseNeed = ""
	needClock     leaseNeed = "a clock that can be moved"
	needReopen    leaseNeed = "a way to open the provider again"
	needCrash     leaseNeed = "a way to kill the provider's process"
	needClients   leaseNeed = "clients in processes of their own"
	needInterrupt leaseNeed = "a way to interrupt a write"
	needHooks     leaseNeed = "the provider's hooks"
	needResource  leaseNeed = "a resource that checks tokens"
)

func (c *LeaseCase) has(n leaseNeed) bool {
	switch n {
	case needClock:
		return c.Clock != nil
	case needReopen:
		return c.Reopen != nil
	case needCrash:
		return c.Crash != nil
	case needClients:
		return c.Clients != nil
	case needInterrupt:
		return c.Interrupt != nil
	case needHooks:
		return c.Hooks != nil
	case needResource:
		return c.Resource != nil
	}
	return true
}

// leaseRules returns all rules, the seed's first.
func leaseRules() []leaseRule {
	return slices.Concat(leaseSeedRules(), leaseIdentityRules(), leaseTimeRules(), leaseRaceRules(),
		leaseFailureRules(), guardRules(), takeoverRules(), resourceRules())
}

func leaseRuleOf(id, means string, needs leaseNeed, check func(*leaseTrial)) leaseRule {
	return leaseRule{Rule{Suite: SuiteLease, ID: id, Meaning: means, Required: needs == needNothing}, needs, check}
}

// run runs one rule.
func (s *leaseSuite) run(ctx context.Context, r leaseRule) Finding {
	start := time.Now()
	f := Finding{Rule: r.ID, Required: r.Required}
	if s.c.has(r.needs) {
		f.Status, f.Detail = s.trial(ctx, r)
	} else {
		f.Status, f.Reason, f.Detail = Skipped, UnsupportedHere, fmt.Sprintf("it takes %s", r.needs)
	}
	f.Took = time.Since(start)
	return f
}
