package conformance

import "github.com/mcp-vdisk/mcp-vdisk/workspace/lease"

// leaseSeedRules are those of the suite that ours comes from, in its order and
// with its meaning. Each begins anew, where the seed's went on from the one before.
func leaseSeedRules() []leaseRule {
	rule := leaseRuleOf
	return []leaseRule{
		rule("lease.acquire", "a grant has what was asked for, a token and an end", needNothing, checkAcquire),
		rule("lease.exclusive_acquire", "what is held is granted to nobody else", needNothing, checkExclusive),
		rule("lease.scope_isolation", "the same key of another tenant is another key", needNothing,
			otherKey(func(k *lease.Key) { k.Scope.Tenant += "-other" })),
		rule("lease.renew", "a renewed grant is the same grant, and ends later", needNothing, checkRenew),
		rule("lease.wrong_owner_rejected", "nobody renews the grant of somebody else", needNothing, checkWrongOwner),
		rule("lease.release", "a released key is free", needNothing, checkRelease),
		rule("lease.monotonic_takeover", "the next holder has a higher token", needNothing, checkMonotonic),
		rule("lease.stale_grant_rejected", "a released grant can be neither renewed nor released", needNothing, checkStale),
	}
}

func checkAcquire(t *leaseTrial) {
	k := t.key()
	g, err := t.try(t.ctx, t.request(k, "owner-a"))
	switch {
	case err != nil:
		t.fail("acquire: %v", err)
	case g.Key != k || g.Owner != "owner-a":
		t.fail("the grant is of %v for %q", g.Key, g.Owner)
	case g.Token == 0:
		t.fail("the token is 0")
	case g.TTL < t.c.TTL:
		t.fail("the TTL is %v, not %v", g.TTL, t.c.TTL)
	case g.ExpiresAt.IsZero():
		t.fail("the grant does not say when it ends")
	}
}

func checkExclusive(t *leaseTrial) {
	k := t.key()
	t.acquire(k, "owner-a")
	t.taken(k, "owner-b", "while owner-a holds it")
	t.acquire(t.key(), "owner-b")
}

// otherKey says that two keys that differ in one part are two.
func otherKey(change func(*lease.Key)) func(*leaseTrial) {
	return func(t *leaseTrial) {
		k := t.key()
		first := t.acquire(k, "owner-a")
		change(&k)
		if other := t.free(k, "owner-b", "the other one"); other.Key != k {
			t.fail("the grant is of %v, not of %v", other.Key, k)
		}
		t.holds(first, "beside the other one")
	}
}

func checkRenew(t *leaseTrial) {
	k := t.key()
	first := t.acquire(k, "owner-a")
	renewed, err := t.renew(first, 2*t.c.TTL)
	switch {
	case err != nil:
		t.fail("renew: %v", err)
	case renewed.Key != k || renewed.Owner != first.Owner || renewed.Token != first.Token:
		t.fail("the identity has changed from %v to %v", first, renewed)
	case !renewed.ExpiresAt.After(first.ExpiresAt):
		t.fail("it ended at %v and was renewed until %v", first.ExpiresAt, renewed.ExpiresAt)
	}
	t.expire()
	t.holds(renewed, "after the end of the first TTL")
}

func checkWrongOwner(t *leaseTrial) {
	g := t.acquire(t.key(), "owner-a")
	other := g
	other.Owner = "owner-b"
	_, err := t.renew(other, t.c.TTL)
	t.conflict(err, "renew by owner-b")
	t.holds(g, "after that")
}

func checkRelease(t *leaseTrial) {
	k := t.key()
	g := t.acquire(k, "owner-a")
	g, err := t.renew(g, 2*t.c.TTL)
	t.must(err)
	if err := t.release(g); err != nil {
		t.fail("release: %v", err)
	}
	t.free(k, "owner-b", "after the release")
}

func checkMonotonic(t *leaseTrial) {
	k := t.key()
	first := t.acquire(k, "owner-a")
	t.must(t.release(first))
	second := t.acquire(k, "owner-b")
	t.higher(second, first, "after a release")
}

func checkStale(t *leaseTrial) {
	k := t.key()
	old := t.acquire(k, "owner-a")
	t.must(t.release(old))
	now := t.acquire(k, "owner-b")
	_, err := t.renew(old, t.c.TTL)
	t.conflict(err, "renew of the old grant")
	t.conflict(t.release(old), "release of the old grant")
	t.holds(now, "after that")
}
