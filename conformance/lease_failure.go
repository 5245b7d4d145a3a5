package conformance

import (
	"context"
	"errors"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// leaseFailureRules are about restarts, and calls that do not end well.
func leaseFailureRules() []leaseRule {
	rule := leaseRuleOf
	return []leaseRule{
		rule("lease.restart_durability", "tokens go on after a restart", needReopen, checkRestartToken),
		rule("lease.restart_last_token", "the last token of a key stays known after a restart", needReopen, checkRestartLast),
		rule("lease.restart_resumable", "a resumable owner has its full TTL again after a restart", needReopen, checkRestartResumable),
		rule("lease.restart_ends_sessions", "an owner that was part of the process has lost its lease after a restart", needReopen, checkRestartSession),
		rule("lease.restart_expired", "what was refused as expired stays so after a restart", needReopen, checkRestartExpired),
		rule("lease.crash_durability", "a token that was given out is not given out again after a kill, and its holder keeps it", needCrash, checkCrash),
		rule("lease.ctx_cancel", "an acquire that was cancelled leaves nobody behind", needNothing, checkCancel),
		rule("lease.ambiguous_commit", "after a write of unknown outcome, a retry is safe", needInterrupt, checkAmbiguous),
	}
}

func (t *leaseTrial) acquireResumable(k lease.Key, owner string) lease.Grant {
	r := t.request(k, owner)
	r.Resumable = true
	g, err := t.try(t.ctx, r)
	t.must(err)
	return g
}

func checkRestartToken(t *leaseTrial) {
	first := t.acquire(t.key(), "owner-a")
	t.must(t.release(first))
	t.reopen(t.c.Reopen)
	t.higher(t.acquire(t.key(), "owner-a"), first, "after the restart")
}

func checkRestartLast(t *leaseTrial) {
	k := t.key()
	g := t.acquireResumable(k, "owner-a")
	t.reopen(t.c.Reopen)
	t.last(k, g.Token, "held over a restart")
	_ = t.release(g) // whether it is still held is the matter of other rules
	t.reopen(t.c.Reopen)
	t.last(k, g.Token, "released before a restart")
}

func checkRestartResumable(t *leaseTrial) {
	k := t.key()
	g := t.acquireResumable(k, "owner-a")
	t.advance(t.c.TTL / 2)
	t.reopen(t.c.Reopen)
	t.advance(t.c.TTL * 3 / 4)
	t.holds(g, "when its first TTL would have been over")
	t.taken(k, "owner-b", "when its first TTL would have been over")
	t.expire()
	t.free(k, "owner-b", "after the end")
}

func checkRestartSession(t *leaseTrial) {
	k := t.key()
	g := t.acquire(k, "owner-a")
	t.reopen(t.c.Reopen)
	_, err := t.renew(g, t.c.TTL)
	t.conflict(err, "renew after the restart")
	t.free(k, "owner-b", "after the restart")
}

func checkRestartExpired(t *leaseTrial) {
	k := t.key()
	g := t.acquireResumable(k, "owner-a")
	t.expire()
	_, err := t.renew(g, t.c.TTL)
	if err == nil {
		return // another rule is about that
	}
	t.reopen(t.c.Reopen)
	_, err = t.renew(g, t.c.TTL)
	t.conflict(err, "renew after the restart")
}

func checkCrash(t *leaseTrial) {
	k := t.key()
	g := t.acquireResumable(k, "owner-a")
	t.must(t.p.Guard(t.ctx, g, func(tx lease.Txn) error { return tx.Set("value", []byte("kept")) }))
	t.reopen(t.c.Crash)
	t.taken(k, "owner-b", "after the crash")
	next := t.acquire(t.key(), "owner-c")
	t.higher(next, g, "after the crash")
	var value []byte
	err := t.p.Guard(t.ctx, g, func(tx lease.Txn) (err error) {
		value, err = tx.Get("value")
		return err
	})
	if err != nil || string(value) != "kept" {
		t.fail("after the crash the holder reads %q, %v", value, orNone(err))
	}
}

func checkCancel(t *leaseTrial) {
	k := t.key()
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	if _, err := t.try(ctx, t.request(k, "owner-a")); !errors.Is(err, context.Canceled) {
		t.fail("a cancelled acquire got %v", orNone(err))
	}
	g := t.free(k, "owner-b", "after that")
	_, err := t.p.Renew(ctx, g, t.c.TTL)
	if err != nil && !errors.Is(err, context.Canceled) {
		t.fail("a cancelled renewal got %v", err)
	}
	t.holds(g, "after that")
}

func checkAmbiguous(t *leaseTrial) {
	for _, stored := range []bool{true, false} {
		k := t.key()
		before := t.acquire(t.key(), "owner-a")
		t.c.Interrupt(stored)
		_, err := t.try(t.ctx, t.request(k, "owner-a"))
		switch {
		case err == nil:
			t.broken("control: the write was not interrupted")
		case errors.Is(err, lease.ErrConflict):
			t.fail("a write of unknown outcome was called a conflict: %v", err)
		}
		g := t.free(k, "owner-a", "again after a write of unknown outcome")
		t.higher(g, before, "after a write of unknown outcome")
		t.holds(g, "after that")
	}
}
