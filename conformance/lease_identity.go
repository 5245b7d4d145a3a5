package conformance

import (
	"errors"
	"math"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// leaseIdentityRules are about which grant is which.
func leaseIdentityRules() []leaseRule {
	rule := leaseRuleOf
	return []leaseRule{
		rule("lease.scope_isolation.workspace", "the same key of another workspace is another key", needNothing,
			otherKey(func(k *lease.Key) { k.Scope.Workspace += "-other" })),
		rule("lease.scope_isolation.backend", "the same handle of another backend is another key", needNothing,
			otherKey(func(k *lease.Key) { k.Backend += "-other" })),
		rule("lease.scope_isolation.handle", "another handle is another key", needNothing,
			otherKey(func(k *lease.Key) { k.Handle += "-other" })),
		rule("lease.scope_isolation.release", "a release frees its own key only", needNothing, checkReleaseApart),
		rule("lease.key_encoding", "no separator, NUL or length makes two keys one", needNothing, checkKeyEncoding),
		rule("lease.blank_scope_refused", "a blank tenant or workspace is refused", needNothing, checkBlank),
		rule("lease.wrong_owner_release", "nobody releases the grant of somebody else", needNothing, checkWrongOwnerRelease),
		rule("lease.wrong_token", "an owner's older token is not its newer one", needNothing, checkWrongToken),
		rule("lease.future_token", "a token that was not given out is refused", needNothing, checkFutureToken),
		rule("lease.zero_token", "token 0 is no token", needNothing, checkZeroToken),
		rule("lease.wrong_scope", "a grant is of its own scope only", needNothing, checkWrongScope),
		rule("lease.expires_at_ignored_in_identity", "a grant without its end is the same grant", needNothing, checkExpiresAt),
		rule("lease.invalid_ttl", "a TTL that is not above 0, or endless, is refused", needNothing, checkTTL),
		rule("lease.reacquire_same_owner", "who holds a key does not get it twice", needNothing, checkReacquire),
		rule("lease.double_release", "a second release is refused and frees no successor", needNothing, checkDoubleRelease),
		rule("lease.token_survives_release_gc", "tokens go on when nothing is held any more", needNothing, checkCycles),
		rule("lease.last_token", "the last token of a key stays known, and those of other keys are not taken for it", needNothing, checkLast),
	}
}

func checkReleaseApart(t *leaseTrial) {
	k := t.key()
	first := t.acquire(k, "owner-a")
	k.Scope.Workspace += "-other"
	second := t.acquire(k, "owner-a")
	t.must(t.release(first))
	t.holds(second, "after the release of the other key")
	t.taken(k, "owner-b", "after the release of the other key")
}

func checkKeyEncoding(t *leaseTrial) {
	long := strings.Repeat("é", 127)
	keys := []lease.Key{
		{Scope: lease.Scope{Tenant: "conformance/a", Workspace: "b"}, Backend: "c", Handle: "d"},
		{Scope: lease.Scope{Tenant: "conformance", Workspace: "a/b"}, Backend: "c", Handle: "d"},
		{Scope: lease.Scope{Tenant: "conformance", Workspace: "a"}, Backend: "b/c", Handle: "d"},
		{Scope: lease.Scope{Tenant: "conformance", Workspace: "a|b"}, Backend: "c", Handle: "d"},
		{Scope: lease.Scope{Tenant: "conformance|a", Workspace: "b"}, Backend: "c", Handle: "d"},
		{Scope: lease.Scope{Tenant: "conformance\x00", Workspace: "a"}, Backend: "c", Handle: "d"},
		{Scope: lease.Scope{Tenant: "conformance", Workspace: "\x00a"}, Backend: "c", Handle: "d"},
		{Scope: lease.Scope{Tenant: "conformance", Workspace: long + "1"}, Backend: "c", Handle: "d"},
		{Scope: lease.Scope{Tenant: "conformance", Workspace: long}, Backend: "1c", Handle: "d"},
		{Scope: lease.Scope{Tenant: "Conformance", Workspace: "a"}, Backend: "b/c", Handle: "d"},
		{Scope: lease.Scope{Tenant: "conformance ", Workspace: "a"}, Backend: "b/c", Handle: "d"},
	}
	for i, k := range keys {
		if _, err := t.try(t.ctx, t.request(k, "owner-a")); err != nil {
			t.fail("key %d of %d, %q: %v", i+1, len(keys), k, err)
		}
	}
}

func checkBlank(t *leaseTrial) {
	for _, c := range []struct {
		what  string
		blank func(*lease.Key)
	}{
		{"no tenant", func(k *lease.Key) { k.Scope.Tenant = "" }},
		{"a blank tenant", func(k *lease.Key) { k.Scope.Tenant = " \t" }},
		{"no workspace", func(k *lease.Key) { k.Scope.Workspace = "" }},
		{"a blank workspace", func(k *lease.Key) { k.Scope.Workspace = " " }},
	} {
		k := t.key()
		t.acquire(k, "owner-a")
		c.blank(&k)
		_, err := t.try(t.ctx, t.request(k, "owner-a"))
		t.invalid(err, c.what)
	}
}

func checkWrongOwnerRelease(t *leaseTrial) {
	k := t.key()
	g := t.acquire(k, "owner-a")
	other := g
	other.Owner = "owner-b"
	t.conflict(t.release(other), "release by owner-b")
	t.holds(g, "after that")
}

func checkWrongToken(t *leaseTrial) {
	k := t.key()
	old := t.acquire(k, "owner-a")
	t.must(t.release(old))
	now := t.acquire(k, "owner-a")
	_, err := t.renew(old, t.c.TTL)
	t.conflict(err, "renew under the owner's older token")
	t.holds(now, "after that")
}

func checkFutureToken(t *leaseTrial) {
	g := t.acquire(t.key(), "owner-a")
	future := g
	future.Token++
	_, err := t.renew(future, t.c.TTL)
	t.conflict(err, "renew under the next token")
	t.conflict(t.release(future), "release under the next token")
	t.holds(g, "after that")
}

func checkZeroToken(t *leaseTrial) {
	g := t.acquire(t.key(), "owner-a")
	zero := g
	zero.Token = 0
	_, err := t.renew(zero, t.c.TTL)
	if err == nil || !errors.Is(err, lease.ErrInvalid) {
		t.conflict(err, "renew under token 0")
	}
	t.holds(g, "after that")
}

func checkWrongScope(t *leaseTrial) {
	g := t.acquire(t.key(), "owner-a")
	moved := g
	moved.Key.Scope.Tenant += "-other"
	_, err := t.renew(moved, t.c.TTL)
	t.conflict(err, "renew in another scope")
	t.holds(g, "after that")
}

func checkExpiresAt(t *leaseTrial) {
	g := t.acquire(t.key(), "owner-a")
	g.ExpiresAt, g.TTL = time.Time{}, 0
	if _, err := t.renew(g, t.c.TTL); err != nil {
		t.fail("renew: %v", err)
	}
	t.holds(g, "after the renewal")
	if err := t.release(g); err != nil {
		t.fail("release: %v", err)
	}
}

func checkTTL(t *leaseTrial) {
	for _, ttl := range []time.Duration{0, -1, -t.c.TTL, math.MinInt64, math.MaxInt64} {
		k := t.key()
		r := t.request(k, "owner-a")
		r.TTL = ttl
		_, err := t.try(t.ctx, r)
		t.invalid(err, "acquire for "+ttl.String())
		g := t.free(k, "owner-a", "after that")
		_, err = t.renew(g, ttl)
		t.invalid(err, "renew for "+ttl.String())
		t.holds(g, "after that")
	}
}

func checkReacquire(t *leaseTrial) {
	k := t.key()
	first := t.acquire(k, "owner-a")
	t.taken(k, "owner-a", "while it holds it")
	t.must(t.release(first))
	t.higher(t.acquire(k, "owner-a"), first, "the same owner again")
}

func checkDoubleRelease(t *leaseTrial) {
	k := t.key()
	first := t.acquire(k, "owner-a")
	t.must(t.release(first))
	t.conflict(t.release(first), "the second release")
	second := t.acquire(k, "owner-a")
	t.conflict(t.release(first), "the third, when the key is held again")
	t.holds(second, "after that")
}

func checkCycles(t *leaseTrial) {
	k := t.key()
	last := t.acquire(k, "owner-a")
	for n := range t.c.Cycles {
		t.must(t.p.Release(t.ctx, last))
		g, err := t.p.Acquire(t.ctx, t.request(k, "owner-a"))
		t.must(err)
		if g.Token <= last.Token {
			t.fail("cycle %d: token %d follows %d", n+1, g.Token, last.Token)
		}
		last = g
	}
	t.must(t.p.Release(t.ctx, last))
}

func checkLast(t *leaseTrial) {
	k := t.key()
	t.last(k, 0, "before the first grant")
	first := t.acquire(k, "owner-a")
	t.last(k, first.Token, "while it is held")
	t.must(t.release(first))
	for range 3 {
		t.must(t.release(t.acquire(t.key(), "owner-b")))
	}
	t.last(k, first.Token, "after its release, and grants of other keys")
	second := t.acquire(k, "owner-b")
	t.last(k, second.Token, "when it is held again")
	t.expire()
	t.last(k, second.Token, "when that has expired")
}
