package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// modelCase is all that can be done to a model.
func modelCase(m *model) LeaseCase {
	return LeaseCase{
		Clock: m.clock, Hooks: m.hooks, Interrupt: m.interruptNext,
		Reopen: func(context.Context) (lease.Provider, error) {
			if m.flaw == "lease.restart_durability" {
				m.last = 0
			}
			m.reopen()
			return m, nil
		},
		Crash: func(context.Context) (lease.Provider, error) { m.crash(); return m, nil },
		Clients: func(ctx context.Context, n int, r lease.Request) ([]Attempt, error) {
			all := make([]Attempt, n)
			together(n, func(i int) {
				r := r
				r.Owner = fmt.Sprint(r.Owner, i)
				all[i].Grant, all[i].Err = m.Acquire(ctx, r)
			})
			return all, nil
		},
		Resource: func(context.Context) (Resource, error) { return &modelResource{flaw: m.flaw}, nil },
	}
}

// TestLeaseModel: a provider that was written for nothing but the rules keeps
// them, and none is skipped.
func TestLeaseModel(t *testing.T) {
	m := newModel("")
	rep := RunLease(t.Context(), m, modelCase(m))
	for _, f := range rep.Findings {
		if f.Status != Passed {
			t.Errorf("%s: %s: %s", f.Rule, f.Status, f.Detail)
		}
	}
	if !rep.OK() || len(rep.Findings) != len(leaseRules()) {
		t.Errorf("%d findings of %d rules, OK is %v", len(rep.Findings), len(leaseRules()), rep.OK())
	}
}

// TestLeaseMutants: for each rule there is a provider on which it fails, and no
// other one does.
func TestLeaseMutants(t *testing.T) {
	for _, r := range leaseRules() {
		t.Run(r.ID, func(t *testing.T) {
			m := newModel(r.ID)
			rep := RunLease(t.Context(), m, modelCase(m))
			for _, f := range rep.Findings {
				want := Passed
				if f.Rule == r.ID {
					want = Failed
				}
				if f.Status != want {
					t.Errorf("%s: %s, not %s: %s", f.Rule, f.Status, want, f.Detail)
				}
				if f.Rule == r.ID {
					t.Logf("%s: %s", f.Rule, f.Detail)
				}
			}
			if rep.OK() {
				t.Error("the report is OK")
			}
		})
	}
}

// TestLeaseRules: ids are unique, the seed's eight come first, each says what it
// means.
func TestLeaseRules(t *testing.T) {
	seed := []string{
		"lease.acquire", "lease.exclusive_acquire", "lease.scope_isolation", "lease.renew",
		"lease.wrong_owner_rejected", "lease.release", "lease.monotonic_takeover", "lease.stale_grant_rejected",
	}
	var ids []string
	for _, r := range leaseRules() {
		ids = append(ids, r.ID)
		if r.Suite != "lease" || r.Meaning == "" || r.Required != (r.needs == needNothing) {
			t.Errorf("%+v", r.Rule)
		}
	}
	if !slices.Equal(ids[:len(seed)], seed) {
		t.Errorf("the rules begin with %v", ids[:len(seed)])
	}
	slices.Sort(ids)
	if n := len(slices.Compact(slices.Clone(ids))); n != len(ids) {
		t.Errorf("%d ids, %d different ones", len(ids), n)
	}
}

// TestLeaseSkips: what the caller cannot do is skipped, said, and no failure.
func TestLeaseSkips(t *testing.T) {
	m := newModel("")
	needs := map[string]leaseNeed{}
	for _, r := range leaseRules() {
		needs[r.ID] = r.needs
	}
	rep := RunLease(t.Context(), m, LeaseCase{
		Only: func(id string) bool { return needs[id] != needNothing || id == "lease.acquire" },
	})
	if s := rep.Summary(); !rep.OK() || s.Passed != 1 || s.Skipped != len(rep.Findings)-1 || s.Skipped == 0 {
		t.Errorf("%+v", rep.Summary())
	}
	for _, f := range rep.Findings {
		if f.Status == Skipped && (f.Reason != UnsupportedHere || !strings.Contains(f.Detail, string(needs[f.Rule]))) {
			t.Errorf("%+v", f)
		}
	}
}

// TestLeaseRealTime: without a clock real time passes.
func TestLeaseRealTime(t *testing.T) {
	m := newModel("")
	s := &leaseSuite{p: m, c: LeaseCase{TTL: time.Nanosecond}}
	trial := &leaseTrial{leaseSuite: s, ctx: t.Context()}
	start := time.Now()
	trial.advance(2 * time.Millisecond)
	if d := time.Since(start); d < 2*time.Millisecond {
		t.Errorf("only %v passed", d)
	}
	if m.clock.Elapsed() != 0 {
		t.Error("the clock of nobody has moved")
	}
}

// stuck is a provider that panics, or hangs until its context ends.
type stuck struct {
	*model
	acquire func(context.Context) (lease.Grant, error)
}

func (s stuck) Acquire(ctx context.Context, _ lease.Request) (lease.Grant, error) {
	return s.acquire(ctx)
}

func TestLeaseSurvivesProvider(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	for _, c := range []struct {
		name    string
		ctx     context.Context
		acquire func(context.Context) (lease.Grant, error)
	}{
		{"panics", t.Context(), func(context.Context) (lease.Grant, error) { panic("out of order") }},
		{"hangs", ctx, func(context.Context) (lease.Grant, error) {
			cancel()
			<-t.Context().Done() // not that of the call
			return lease.Grant{}, nil
		}},
		{"is asked too late", ctx, func(context.Context) (lease.Grant, error) { return lease.Grant{}, nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			only := func(id string) bool { return id == "lease.acquire" }
			rep := RunLease(c.ctx, stuck{newModel(""), c.acquire}, LeaseCase{Only: only})
			if len(rep.Findings) != 1 || rep.Findings[0].Status != Broken || rep.OK() {
				t.Errorf("%+v", rep.Findings)
			}
		})
	}
}

func TestLeaseReport(t *testing.T) {
	m := newModel("lease.renew")
	var seen []string
	c := modelCase(m)
	c.Only = func(id string) bool { return id == "lease.renew" || id == "lease.acquire" }
	c.Progress = func(f Finding) { seen = append(seen, f.Rule) }
	rep := RunLease(t.Context(), m, c)
	if !slices.Equal(seen, []string{"lease.acquire", "lease.renew"}) {
		t.Error(seen)
	}
	var table bytes.Buffer
	if err := rep.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"PASSED  lease.acquire", "FAILED  lease.renew", "lease model: 1 passed, 1 failed, 0 weak, 0 skipped, 0 errors: not OK"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("%q is not in\n%s", want, table.String())
		}
	}
	var got struct {
		Suite    string
		OK       bool
		Findings []struct{ Rule, Status string }
	}
	data, err := json.Marshal(rep)
	if err == nil {
		err = json.Unmarshal(data, &got)
	}
	if err != nil || got.Suite != "lease" || got.OK || len(got.Findings) != 2 || got.Findings[1].Status != "failed" {
		t.Errorf("%v: %s", err, data)
	}
}
