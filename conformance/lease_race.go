package conformance

import (
	"errors"
	"fmt"
	"sync"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// leaseRaceRules are about calls that come at the same time.
func leaseRaceRules() []leaseRule {
	rule := leaseRuleOf
	return []leaseRule{
		rule("lease.concurrent_acquire", "of many that ask at once, one is granted and the others conflict", needNothing, checkRacers),
		rule("lease.concurrent_clients", "of many processes that ask at once, one is granted and the others conflict", needClients, checkClients),
		rule("lease.acquire_renew_race", "nobody gets in while a holder renews", needNothing, checkAcquireRenew),
		rule("lease.expire_renew_race", "at the end either the holder renews or another one acquires", needClock, checkExpireRenew),
	}
}

// together makes n calls at once. A panic in one of them becomes one of the caller.
func together(n int, call func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	panics := make(chan any, n)
	for i := range n {
		wg.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					panics <- p
				}
			}()
			<-start
			call(i)
		})
	}
	close(start)
	wg.Wait()
	select {
	case p := <-panics:
		panic(p)
	default:
	}
}

func checkRacers(t *leaseTrial) {
	const rounds, racers = 4, 16
	k := t.key()
	var before lease.Grant
	for range rounds {
		all := make([]Attempt, racers)
		together(racers, func(i int) {
			r := t.request(k, fmt.Sprint("owner-", i))
			r.Client = "racer"
			all[i].Grant, all[i].Err = t.p.Acquire(t.ctx, r)
		})
		won := t.oneWinner(all)
		t.higher(won, before, "in the next round")
		t.holds(won, "the winner")
		t.must(t.release(won))
		before = won
	}
}

func (t *leaseTrial) oneWinner(all []Attempt) lease.Grant {
	var won []lease.Grant
	for _, a := range all {
		switch {
		case a.Err == nil:
			won = append(won, a.Grant)
		case !errors.Is(a.Err, lease.ErrConflict):
			t.fail("one of %d got %v, not a conflict", len(all), a.Err)
		}
	}
	if len(won) != 1 {
		t.fail("%d of %d were granted the key", len(won), len(all))
	}
	return won[0]
}

func checkClients(t *leaseTrial) {
	const clients = 4
	k := t.key()
	r := t.request(k, "owner")
	r.Client = "process"
	all, err := t.c.Clients(t.ctx, clients, r)
	t.must(err)
	if len(all) != clients {
		t.broken("%d of %d clients answered", len(all), clients)
	}
	won := t.oneWinner(all)
	t.holds(won, "the winner")
	t.taken(k, "owner-late", "after the race")
	t.must(t.release(won))
}

func checkAcquireRenew(t *leaseTrial) {
	const times = 50
	k := t.key()
	g := t.acquire(k, "owner-a")
	t.holds(g, "before the race")
	var stolen []Attempt
	var failed error
	together(2, func(i int) {
		for range times {
			if i == 0 {
				if _, err := t.p.Renew(t.ctx, g, t.c.TTL); err != nil {
					failed = err
				}
				continue
			}
			got, err := t.p.Acquire(t.ctx, t.request(k, "owner-b"))
			if !errors.Is(err, lease.ErrConflict) {
				stolen = append(stolen, Attempt{got, err})
			}
		}
	})
	switch {
	case len(stolen) > 0:
		t.fail("while it was being renewed, another one got token %d, %v", stolen[0].Grant.Token, orNone(stolen[0].Err))
	case failed != nil:
		t.fail("renew: %v", failed)
	}
	t.taken(k, "owner-b", "after that")
}

// checkExpireRenew races the clock too: whoever comes first, one holds it then.
func checkExpireRenew(t *leaseTrial) {
	for range 8 {
		k := t.key()
		first := t.acquire(k, "owner-a")
		t.advance(t.c.TTL - 1)
		var renewed, acquired Attempt
		together(3, func(i int) {
			switch i {
			case 0:
				renewed.Grant, renewed.Err = t.p.Renew(t.ctx, first, t.c.TTL)
			case 1:
				acquired.Grant, acquired.Err = t.p.Acquire(t.ctx, t.request(k, "owner-b"))
			case 2:
				t.c.Clock.Advance(1)
			}
		})
		if renewed.Err == nil && acquired.Err == nil {
			t.fail("it was renewed and granted to another one as well")
		}
		if acquired.Err != nil { // it came before the end, or the renewal did
			t.conflict(acquired.Err, "acquire")
			t.expire()
			acquired.Grant = t.free(k, "owner-b", "when it has expired for certain")
		}
		_, err := t.renew(first, t.c.TTL)
		t.conflict(err, "renew when another one holds it")
		t.holds(acquired.Grant, "the new holder")
		t.must(t.release(acquired.Grant))
	}
}
