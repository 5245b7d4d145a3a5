package conformance

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// leaseTrial is one rule being tried on a provider. As with a test, a rule ends
// where it calls fail or broken; one that returns has passed. Both are for the goroutine of the rule only.
type leaseTrial struct {
	*leaseSuite
	ctx     context.Context
	id      string
	keys    int
	cleanup []func()
	end     verdict
}

type verdict struct {
	status Status
	detail string
}

// leaseRuleTime bounds one rule.
const leaseRuleTime = 2 * time.Minute

// trial runs the check of a rule in a goroutine of its own.
func (s *leaseSuite) trial(ctx context.Context, r leaseRule) (Status, string) {
	if ctx.Err() != nil {
		return Broken, oneLine(context.Cause(ctx).Error())
	}
	ctx, cancel := context.WithTimeoutCause(ctx, leaseRuleTime, errors.New("the rule took too long"))
	defer cancel()
	t := &leaseTrial{leaseSuite: s, ctx: ctx, id: r.ID, end: verdict{Broken, "the rule did not end"}}
	done := make(chan verdict, 1)
	go func() {
		defer func() { done <- t.end }()
		defer t.tidy()
		defer func() {
			if p := recover(); p != nil {
				t.end = verdict{Broken, fmt.Sprint("panic: ", p)}
			}
		}()
		r.check(t)
		t.end = verdict{status: Passed}
	}()
	select {
	case v := <-done:
		return v.status, oneLine(v.detail)
	case <-ctx.Done():
		return Broken, oneLine(context.Cause(ctx).Error())
	}
}

func (t *leaseTrial) tidy() {
	for i := len(t.cleanup) - 1; i >= 0; i-- {
		func() {
			defer func() { _ = recover() }() // the rule has ended, and with it what it says
			t.cleanup[i]()
		}()
	}
}

// fail ends the rule: the provider breaks it.
func (t *leaseTrial) fail(format string, args ...any) { t.stop(Failed, format, args...) }

// broken ends the rule: it could not be tried.
func (t *leaseTrial) broken(format string, args ...any) { t.stop(Broken, format, args...) }

func (t *leaseTrial) stop(s Status, format string, args ...any) {
	t.end = verdict{s, fmt.Sprintf(format, args...)}
	runtime.Goexit()
}

// must ends the rule on an error of what is not to be tried.
func (t *leaseTrial) must(err error) {
	if err != nil {
		t.broken("control: %v", err)
	}
}

// key is a key that no rule has used.
func (t *leaseTrial) key() lease.Key {
	t.keys++
	return lease.Key{
		Scope: lease.Scope{Tenant: "conformance", Workspace: "w"}, Backend: "image",
		Handle: fmt.Sprintf("%s %d %s", t.id, t.keys, lease.NewOwner()),
	}
}

func (t *leaseTrial) request(k lease.Key, owner string) lease.Request {
	return lease.Request{Key: k, Owner: owner, TTL: t.c.TTL}
}

// try makes a request. What it is granted is released at the end.
func (t *leaseTrial) try(ctx context.Context, r lease.Request) (lease.Grant, error) {
	g, err := t.p.Acquire(ctx, r)
	if err == nil {
		t.cleanup = append(t.cleanup, func() { _ = t.p.Release(context.WithoutCancel(t.ctx), g) })
	}
	return g, err
}

// acquire is a grant that the rule needs to begin with.
func (t *leaseTrial) acquire(k lease.Key, owner string) lease.Grant {
	g, err := t.try(t.ctx, t.request(k, owner))
	if err != nil {
		t.broken("control: acquire: %v", err)
	}
	return g
}

// free says that the key must be free, and returns the grant that shows it.
func (t *leaseTrial) free(k lease.Key, owner, when string) lease.Grant {
	g, err := t.try(t.ctx, t.request(k, owner))
	if err != nil {
		t.fail("%s: the key should be free: %v", when, err)
	}
	return g
}

// taken says that nobody else may get the key.
func (t *leaseTrial) taken(k lease.Key, owner, when string) {
	g, err := t.try(t.ctx, t.request(k, owner))
	if err == nil {
		t.fail("%s: %s got the key, with token %d", when, owner, g.Token)
	}
	t.conflict(err, when)
}

// conflict says that the error of a call must be ErrConflict.
func (t *leaseTrial) conflict(err error, when string) {
	if !errors.Is(err, lease.ErrConflict) {
		t.fail("%s: got %v, not a conflict", when, orNone(err))
	}
}

// invalid says that the error of a call must be ErrInvalid.
func (t *leaseTrial) invalid(err error, when string) {
	if !errors.Is(err, lease.ErrInvalid) {
		t.fail("%s: got %v, not a refusal of the request", when, orNone(err))
	}
}

func orNone(err error) any {
	if err == nil {
		return "no error"
	}
	return err
}

// holds says that g must be alive.
func (t *leaseTrial) holds(g lease.Grant, when string) {
	if err := t.p.Guard(t.ctx, g, writeNothing); err != nil {
		t.fail("%s: the holder has lost it: %v", when, err)
	}
}

func writeNothing(lease.Txn) error { return nil }

func (t *leaseTrial) renew(g lease.Grant, ttl time.Duration) (lease.Grant, error) {
	return t.p.Renew(t.ctx, g, ttl)
}

func (t *leaseTrial) release(g lease.Grant) error { return t.p.Release(t.ctx, g) }

// advance lets time pass.
func (t *leaseTrial) advance(d time.Duration) {
	if t.c.Clock != nil {
		t.c.Clock.Advance(d)
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.ctx.Done():
		t.broken("%v", context.Cause(t.ctx))
	}
}

// expire lets a TTL pass, and a bit.
func (t *leaseTrial) expire() { t.advance(t.c.TTL + t.c.TTL/8) }

// higher says that a later token must be higher.
func (t *leaseTrial) higher(later, earlier lease.Grant, when string) {
	if later.Token <= earlier.Token {
		t.fail("%s: token %d follows %d", when, later.Token, earlier.Token)
	}
}

// last says what the last token of a key must be.
func (t *leaseTrial) last(k lease.Key, want uint64, when string) {
	switch got, err := t.p.Last(t.ctx, k); {
	case err != nil:
		t.fail("%s: its last token: %v", when, err)
	case got != want:
		t.fail("%s: its last token is said to be %d, and was %d", when, got, want)
	}
}

// reopen replaces the provider.
func (t *leaseTrial) reopen(how func(context.Context) (lease.Provider, error)) {
	p, err := how(t.ctx)
	if err != nil {
		t.broken("open the provider again: %v", err)
	}
	t.p = p
}
