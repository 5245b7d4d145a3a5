package conformance

import (
	"errors"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// guardRules are about what is written into the provider's own store.
func guardRules() []leaseRule {
	rule := leaseRuleOf
	return []leaseRule{
		rule("fence.write_path_rejects_stale", "a holder that was overtaken writes nothing", needNothing, checkStaleWrite),
		rule("fence.expired_write_rejected", "a holder that has expired writes nothing, even if nobody took over", needNothing, checkExpiredWrite),
		rule("fence.check_and_write_atomic", "a takeover between the check and the write keeps the write out", needClock, checkAtomic),
		rule("fence.all_or_nothing", "what ends in an error has written nothing", needNothing, checkAllOrNothing),
		rule("fence.queue_claim", "of two that share a lease and claim the same thing, one gets it", needNothing, checkClaim),
	}
}

const item = "item"

func (t *leaseTrial) write(g lease.Grant, value string) error {
	return t.p.Guard(t.ctx, g, func(tx lease.Txn) error { return tx.Set(item, []byte(value)) })
}

// wrote says what must be stored.
func (t *leaseTrial) wrote(g lease.Grant, want, when string) {
	var value []byte
	err := t.p.Guard(t.ctx, g, func(tx lease.Txn) (err error) {
		value, err = tx.Get(item)
		return err
	})
	t.must(err)
	if string(value) != want {
		t.fail("%s: %q is stored, not %q", when, value, want)
	}
}

func checkStaleWrite(t *leaseTrial) {
	k := t.key()
	first := t.acquire(k, "owner-a")
	t.must(t.write(first, "a"))
	t.expire()
	second := t.acquire(k, "owner-b")
	t.conflict(t.write(first, "late"), "a late write")
	t.wrote(second, "a", "after a late write")
	t.must(t.write(second, "b"))
	t.wrote(second, "b", "after a write of the holder")
}

func checkExpiredWrite(t *leaseTrial) {
	k := t.key()
	first := t.acquire(k, "owner-a")
	t.must(t.write(first, "a"))
	t.expire()
	t.conflict(t.write(first, "late"), "a late write")
	t.wrote(t.acquire(k, "owner-b"), "a", "after a late write")
}

func checkAtomic(t *leaseTrial) {
	k := t.key()
	first := t.acquire(k, "owner-a")
	var second lease.Grant
	var failed error
	err := t.p.Guard(t.ctx, first, func(tx lease.Txn) error {
		if second.Token == 0 {
			t.c.Clock.Advance(t.c.TTL * 2)
			if second, failed = t.p.Acquire(t.ctx, t.request(k, "owner-b")); failed != nil {
				return failed
			}
		}
		return tx.Set(item, []byte("late"))
	})
	t.must(failed)
	t.conflict(err, "a write that was overtaken")
	t.wrote(second, "", "after that")
	t.must(t.write(second, "b"))
	t.wrote(second, "b", "after a write of the holder")
	t.must(t.release(second))
}

func checkAllOrNothing(t *leaseTrial) {
	g := t.acquire(t.key(), "owner-a")
	t.must(t.write(g, "a"))
	stop := errors.New("changed my mind")
	err := t.p.Guard(t.ctx, g, func(tx lease.Txn) error {
		if err := tx.Set(item, []byte("b")); err != nil {
			return err
		}
		return stop
	})
	if !errors.Is(err, stop) {
		t.fail("the error of the function came back as %v", orNone(err))
	}
	t.wrote(g, "a", "after an error")
}

func checkClaim(t *leaseTrial) {
	g := t.acquire(t.key(), "owner-a")
	claim := func(who string, meanwhile func()) (got bool, err error) {
		err = t.p.Guard(t.ctx, g, func(tx lease.Txn) error {
			claimed, err := tx.Get(item)
			if err != nil {
				return err
			}
			if got = claimed == nil; !got {
				return nil
			}
			meanwhile()
			return tx.Set(item, []byte(who))
		})
		return got && err == nil, err
	}
	var second bool
	var failed error
	once := func() {
		if !second {
			second, failed = claim("second", func() {})
		}
	}
	first, err := claim("first", once)
	t.must(failed)
	if !second {
		t.broken("control: nobody claimed")
	}
	if first {
		t.fail("both claimed it")
	}
	if err != nil && !errors.Is(err, lease.ErrConflict) {
		t.fail("the claim that came too late: %v", err)
	}
	t.wrote(g, "second", "after the race")
}

// takeoverRules are about what happens before a grant.
func takeoverRules() []leaseRule {
	rule := leaseRuleOf
	return []leaseRule{
		rule("fence.running_exec_revoked", "what the old holder runs is dead before another one is granted", needHooks, checkRevoked),
		rule("fence.unconfirmed_kill_not_granted", "while the old holder cannot be stopped, nobody is granted", needHooks, checkUnconfirmed),
		rule("fence.token_recorded_first", "the token is recorded before it is given out", needHooks, checkRecorded),
		rule("fence.unrecorded_not_granted", "a token that cannot be recorded is not given out", needHooks, checkUnrecorded),
	}
}

func checkRevoked(t *leaseTrial) {
	k := t.key()
	running := map[uint64]bool{}
	t.c.Hooks.set(func(l lease.Lease) error {
		delete(running, l.Token)
		return nil
	}, nil)
	defer t.c.Hooks.set(nil, nil)
	first := t.acquire(k, "owner-a")
	running[first.Token] = true
	t.holds(first, "while it lives")
	t.taken(k, "owner-b", "while it lives")
	if !running[first.Token] {
		t.fail("a request that was refused has stopped the holder")
	}
	t.expire()
	t.acquire(k, "owner-b")
	if running[first.Token] {
		t.fail("the next one was granted while the old one was still running")
	}
}

func checkUnconfirmed(t *leaseTrial) {
	k := t.key()
	first := t.acquire(k, "owner-a")
	t.expire()
	t.c.Hooks.set(func(l lease.Lease) error {
		if l.Token != first.Token {
			return nil
		}
		return errors.New("it does not die")
	}, nil)
	defer t.c.Hooks.set(nil, nil)
	if g, err := t.try(t.ctx, t.request(k, "owner-b")); err == nil {
		t.fail("token %d was granted", g.Token)
	}
	_, err := t.renew(first, t.c.TTL)
	t.conflict(err, "renew by the one that does not die")
	t.c.Hooks.set(nil, nil)
	t.free(k, "owner-b", "when it is dead")
}

func checkRecorded(t *leaseTrial) {
	var recorded []uint64
	t.c.Hooks.set(nil, func(g lease.Grant) error {
		recorded = append(recorded, g.Token)
		return nil
	})
	defer t.c.Hooks.set(nil, nil)
	g := t.acquire(t.key(), "owner-a")
	if len(recorded) != 1 || recorded[0] != g.Token {
		t.fail("token %d was granted, and %v recorded", g.Token, recorded)
	}
}

func checkUnrecorded(t *leaseTrial) {
	k := t.key()
	t.c.Hooks.set(nil, func(lease.Grant) error { return errors.New("the disk is full") })
	defer t.c.Hooks.set(nil, nil)
	if g, err := t.try(t.ctx, t.request(k, "owner-a")); err == nil {
		t.fail("token %d was granted", g.Token)
	}
	t.c.Hooks.set(nil, nil)
	t.free(k, "owner-b", "when it can be recorded")
}
