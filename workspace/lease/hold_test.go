package lease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/conformance"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// asked is a provider that tells of each renewal, and fails it if so told.
type asked struct {
	lease.Provider
	renew func(ctx context.Context, n int) error
	n     int
	done  chan int
}

func (a *asked) Renew(ctx context.Context, g lease.Grant, ttl time.Duration) (lease.Grant, error) {
	a.n++
	defer func() { a.done <- a.n }()
	if err := a.renew(ctx, a.n); err != nil {
		return lease.Grant{}, err
	}
	return a.Provider.Renew(ctx, g, ttl)
}

// hold starts a Held for 30 s on a clock that stands.
func hold(t *testing.T, renew func(context.Context, int) error) (*store, *asked, *lease.Held) {
	t.Helper()
	s := newStore(t, lease.Options{})
	p := &asked{Provider: s, renew: renew, done: make(chan int, 100)}
	h, err := lease.Hold(t.Context(), p, request("k", "one"), s.clock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return s, p, h
}

// wait lets the goroutine of a Held come to rest: it waits for n timers.
func wait(t *testing.T, c *conformance.ManualClock, n int) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 10_000 {
		if c.Waiting() >= n {
			return
		}
		<-tick.C
	}
	t.Fatalf("%d timers are waited for, not %d", c.Waiting(), n)
}

func lost(h *lease.Held) bool {
	select {
	case <-h.Lost():
		return true
	default:
		return false
	}
}

func TestHoldRenews(t *testing.T) {
	s, p, h := hold(t, func(context.Context, int) error { return nil })
	first := h.Grant()
	for n := range 10 {
		wait(t, s.clock, 1+min(n, 1)) // that of the renewal before is still there
		s.clock.Advance(10*time.Second - 1)
		select {
		case <-p.done:
			t.Fatal("renewed before a third of the TTL")
		default:
		}
		s.clock.Advance(1)
		if got := <-p.done; got != n+1 {
			t.Errorf("renewal %d", got)
		}
	}
	if _, err := s.Acquire(t.Context(), request("k", "two")); !errors.Is(err, lease.ErrConflict) {
		t.Errorf("after 100 s another one got %v", err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if err := h.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	if last := h.Grant(); last.Token != first.Token || !last.ExpiresAt.After(first.ExpiresAt) || lost(h) {
		t.Errorf("%v became %v, lost is %v", first, last, lost(h))
	}
	s.acquire(t, "k", "two")
}

// TestHoldOfBroken: who is thrown out hears of it at the next renewal.
func TestHoldOfBroken(t *testing.T) {
	s, _, h := hold(t, func(context.Context, int) error { return nil })
	wait(t, s.clock, 1)
	if _, err := s.Break(t.Context(), key("k")); err != nil {
		t.Fatal(err)
	}
	if lost(h) {
		t.Error("lost before it could know")
	}
	s.clock.Advance(10 * time.Second)
	<-h.Lost()
	wantIs(t, h.Close(), lease.ErrConflict)
}

// TestHoldGivesUp: a holder whose renewals fail stops at two thirds of its TTL,
// before anybody else gets in.
func TestHoldGivesUp(t *testing.T) {
	s, p, h := hold(t, func(context.Context, int) error { return lease.ErrUnavailable })
	wait(t, s.clock, 1)
	s.clock.Advance(10 * time.Second)
	for n := 1; n <= 4; n++ {
		if got := <-p.done; got != n || lost(h) {
			t.Errorf("try %d, lost is %v", got, lost(h))
		}
		wait(t, s.clock, n+1) // those of the renewals are still there
		s.clock.Advance(2500 * time.Millisecond)
	}
	<-h.Lost()
	if now := s.clock.Elapsed(); now != 20*time.Second {
		t.Errorf("at %v", now)
	}
	if _, err := s.Acquire(t.Context(), request("k", "two")); !errors.Is(err, lease.ErrConflict) {
		t.Errorf("another one got in first: %v", err)
	}
	if err := h.Close(); err != nil || len(p.done) > 0 {
		t.Errorf("%v, %d more tries", err, len(p.done))
	}
}

// TestHoldRecovers: one failure is not the end.
func TestHoldRecovers(t *testing.T) {
	s, p, h := hold(t, func(_ context.Context, n int) error {
		if n == 1 {
			return lease.ErrUnavailable
		}
		return nil
	})
	wait(t, s.clock, 1)
	s.clock.Advance(10 * time.Second)
	<-p.done
	wait(t, s.clock, 2) // that of the renewal is still there
	s.clock.Advance(2500 * time.Millisecond)
	if n := <-p.done; n != 2 || lost(h) {
		t.Errorf("try %d, lost is %v", n, lost(h))
	}
}

// TestHoldOfStuckProvider: a renewal without an answer is given up in time too.
func TestHoldOfStuckProvider(t *testing.T) {
	s, p, h := hold(t, func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() })
	wait(t, s.clock, 1)
	s.clock.Advance(10 * time.Second)
	wait(t, s.clock, 1)
	s.clock.Advance(10 * time.Second)
	<-h.Lost()
	<-p.done
}

// TestHoldClosedMeanwhile: Close ends a renewal that hangs, and releases.
func TestHoldClosedMeanwhile(t *testing.T) {
	entered := make(chan struct{})
	s, _, h := hold(t, func(ctx context.Context, _ int) error { close(entered); <-ctx.Done(); return ctx.Err() })
	wait(t, s.clock, 1)
	s.clock.Advance(10 * time.Second)
	<-entered
	if err := h.Close(); err != nil || lost(h) {
		t.Errorf("%v, lost is %v", err, lost(h))
	}
	s.acquire(t, "k", "two")
}

func TestHoldOfHeld(t *testing.T) {
	s := newStore(t, lease.Options{})
	s.acquire(t, "k", "one")
	_, err := lease.Hold(t.Context(), s, request("k", "two"), s.clock)
	wantIs(t, err, lease.ErrConflict)
}
