package conformance

import "time"

// leaseTimeRules are about when a lease ends.
func leaseTimeRules() []leaseRule {
	rule := leaseRuleOf
	return []leaseRule{
		rule("lease.expiry_takeover", "what has expired is granted to others, with a higher token", needNothing, checkExpiryTakeover),
		rule("lease.not_early", "a lease lives for all of its TTL, fractions of a second included", needNothing, checkNotEarly),
		rule("lease.expiry_boundary", "a lease is over at the very moment when its TTL is", needClock, checkBoundary),
		rule("lease.renew_after_expiry_rejected", "what has expired is not renewed, even if nobody took over", needNothing, checkRenewExpired),
		rule("lease.release_after_takeover_rejected", "a holder that expired does not release its successor", needNothing, checkReleaseTaken),
		rule("lease.renew_shorter", "a renewal never shortens", needNothing, checkRenewShorter),
		rule("lease.clock_forward", "the wall clock set forward ends no lease", needClock, func(t *leaseTrial) {
			t.wallMoves(func() { t.c.Clock.StepWall(time.Hour) })
		}),
		rule("lease.clock_backward", "the wall clock set back prolongs no lease", needClock, func(t *leaseTrial) {
			t.wallMoves(func() { t.c.Clock.StepWall(-time.Hour) })
		}),
		rule("lease.suspend", "a lease does not end while its host sleeps", needClock, func(t *leaseTrial) {
			t.wallMoves(func() { t.c.Clock.Suspend(time.Hour) })
		}),
	}
}

func checkExpiryTakeover(t *leaseTrial) {
	k := t.key()
	first := t.acquire(k, "owner-a")
	t.holds(first, "before it expires")
	t.taken(k, "owner-b", "before it expires")
	t.expire()
	second := t.free(k, "owner-b", "after it expired")
	t.higher(second, first, "after it expired")
	t.holds(second, "the new holder")
}

// checkNotEarly looks shortly before the end. In real time that has to be some
// time before it.
func checkNotEarly(t *leaseTrial) {
	margin := time.Nanosecond
	if t.c.Clock == nil {
		margin = t.c.TTL / 2
	}
	for _, ttl := range []time.Duration{t.c.TTL, t.c.TTL + t.c.TTL/2 + 500*time.Millisecond} {
		k := t.key()
		r := t.request(k, "owner-a")
		r.TTL = ttl
		g, err := t.try(t.ctx, r)
		t.must(err)
		t.advance(ttl - margin)
		t.holds(g, "shortly before the end of "+ttl.String())
		t.taken(k, "owner-b", "shortly before the end of "+ttl.String())
	}
}

func checkBoundary(t *leaseTrial) {
	k := t.key()
	g := t.acquire(k, "owner-a")
	t.advance(t.c.TTL - 1)
	t.holds(g, "one nanosecond before the end")
	t.taken(k, "owner-b", "one nanosecond before the end")
	t.advance(1)
	t.free(k, "owner-b", "at the end")
}

func checkRenewExpired(t *leaseTrial) {
	k := t.key()
	g := t.acquire(k, "owner-a")
	_, err := t.renew(g, t.c.TTL)
	t.must(err)
	t.expire()
	_, err = t.renew(g, t.c.TTL)
	t.conflict(err, "renew after the end")
	t.free(k, "owner-b", "after that")
}

func checkReleaseTaken(t *leaseTrial) {
	k := t.key()
	first := t.acquire(k, "owner-a")
	t.expire()
	second := t.acquire(k, "owner-b")
	t.conflict(t.release(first), "release by the one before")
	t.holds(second, "after that")
}

func checkRenewShorter(t *leaseTrial) {
	k := t.key()
	r := t.request(k, "owner-a")
	r.TTL = 4 * t.c.TTL
	g, err := t.try(t.ctx, r)
	t.must(err)
	renewed, err := t.renew(g, t.c.TTL)
	switch {
	case err != nil:
		t.fail("renew: %v", err)
	case !renewed.ExpiresAt.After(g.ExpiresAt):
		t.fail("it ended at %v and was renewed until %v", g.ExpiresAt, renewed.ExpiresAt)
	}
	t.advance(2 * t.c.TTL)
	t.holds(renewed, "after the shorter TTL, before the end of the longer one")
}

// wallMoves says that a lease lives for its TTL, whatever happens to the wall
// clock in the middle, and no longer.
func (t *leaseTrial) wallMoves(move func()) {
	k := t.key()
	g := t.acquire(k, "owner-a")
	t.advance(t.c.TTL / 2)
	move()
	t.holds(g, "in the middle")
	t.taken(k, "owner-b", "in the middle")
	if _, err := t.renew(g, t.c.TTL); err != nil {
		t.fail("renew: %v", err)
	}
	t.advance(t.c.TTL - 1)
	t.taken(k, "owner-b", "before the end")
	t.advance(t.c.TTL / 8)
	t.free(k, "owner-b", "after the end")
}
