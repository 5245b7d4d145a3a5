package lease

import (
	"context"
	"fmt"
	"time"
)

// slot is what memory knows of one key.
type slot struct {
	turn  chan struct{} // held by the call that changes something about the key
	users int           // calls that have the turn or wait for it; guarded by Badger.mu
	live  *holding      // guarded by Badger.mu; nil when nobody holds the key
}

// holding is a lease of this epoch. It is alive while Elapsed < deadline.
type holding struct {
	*record
	deadline time.Duration
	expires  time.Time
}

// slot returns the slot of a key. The caller has b.mu, or b to itself.
func (b *Badger) slot(k Key) *slot {
	name := string(leaseKey(k))
	s := b.slots[name]
	if s == nil {
		s = &slot{turn: make(chan struct{}, 1)}
		b.slots[name] = s
	}
	return s
}

// enter waits for the turn of a key, which leave gives back.
func (b *Badger) enter(ctx context.Context, k Key) (s *slot, leave func(), err error) {
	b.mu.Lock()
	s = b.slot(k)
	s.users++
	b.mu.Unlock()
	forget := func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if s.users--; s.users == 0 && s.live == nil {
			delete(b.slots, string(leaseKey(k)))
		}
	}
	if err := context.Cause(ctx); err != nil {
		forget()
		return nil, nil, fmt.Errorf("lease: %w", err)
	}
	select {
	case s.turn <- struct{}{}:
		return s, func() { <-s.turn; forget() }, nil
	case <-ctx.Done():
		forget()
		return nil, nil, fmt.Errorf("lease: wait for another call about it: %w", context.Cause(ctx))
	}
}

// start begins the life of a lease now.
func (b *Badger) start(r *record) *holding {
	h := &holding{record: r}
	b.extend(h, r.TTL, b.o.Clock.Elapsed())
	return h
}

// extend moves the end of a lease forward, and always by something, so that
// a renewed grant can be told from the one before.
func (b *Badger) extend(h *holding, ttl, now time.Duration) {
	h.deadline = max(now+ttl, h.deadline+1)
	h.expires = later(b.o.Clock.Wall().Add(h.deadline-now), h.expires.Add(1))
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// owner returns what g holds, or a Conflict. The caller has b.mu. over means that
// g was alive in this epoch and has expired.
func (s *slot) owner(g Grant, now time.Duration) (h *holding, over bool, err error) {
	if s == nil || s.live == nil {
		return nil, false, &Conflict{}
	}
	same := s.live.Owner == g.Owner && s.live.Token == g.Token
	switch {
	case !s.live.alive(now):
		return nil, same, &Conflict{}
	case !same:
		return nil, false, &Conflict{Holder: s.live.seen(now)}
	}
	return s.live, false, nil
}

func (h *holding) alive(now time.Duration) bool { return h != nil && now < h.deadline }

// seen is the lease as others see it.
func (h *holding) seen(now time.Duration) Lease {
	l := h.lease()
	if h.alive(now) {
		l.Remaining, l.ExpiresAt = h.deadline-now, h.expires
	}
	return l
}

func (h *holding) grant() Grant {
	return Grant{Key: h.Key, Owner: h.Owner, Token: h.Token, TTL: h.TTL, ExpiresAt: h.expires}
}
