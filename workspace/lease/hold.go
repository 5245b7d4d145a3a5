package lease

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Held is a lease that is kept alive in the background: that of an exclusive
// session while its client is connected, or of the daemon for all its sessions.
// All methods may be called at the same time.
type Held struct {
	p     Provider
	clock Clock
	stop  context.CancelFunc
	done  chan struct{} // closed when the goroutine has ended
	lost  chan struct{} // closed when the lease is
	once  sync.Once
	err   error // of the release

	mu    sync.Mutex
	grant Grant
}

// Hold acquires r and renews it at a third of its TTL until Close. clock is
// that of the holder, nil for SystemClock.
//
// The holder gives up by itself when two thirds of the TTL have passed, by its
// own clock, since it sent the last request that succeeded: so it has stopped
// before the provider lets somebody else in.
//
// Errors: those of Provider.Acquire.
func Hold(ctx context.Context, p Provider, r Request, clock Clock) (*Held, error) {
	if clock == nil {
		clock = SystemClock()
	}
	asked := clock.Elapsed()
	g, err := p.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	h := &Held{p: p, clock: clock, stop: stop, done: make(chan struct{}), lost: make(chan struct{}), grant: g}
	go h.keep(work, asked)
	return h, nil
}

// Grant returns the newest grant. Its token does not change.
func (h *Held) Grant() Grant {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.grant
}

// Lost is closed when the lease could not be kept: it was broken, or the provider
// could not be reached in time. The holder must stop. It is never closed by Close.
func (h *Held) Lost() <-chan struct{} { return h.lost }

// Close ends the renewals and releases the lease. What was done under it must
// have ended. It returns ErrConflict if the lease was lost before. Closing twice
// gives the same answer.
func (h *Held) Close() error {
	h.once.Do(func() {
		h.stop()
		<-h.done
		h.err = h.p.Release(context.Background(), h.Grant())
	})
	return h.err
}

// keep renews until ctx ends or the lease is lost. asked is when the last request
// that succeeded was sent.
func (h *Held) keep(ctx context.Context, asked time.Duration) {
	defer close(h.done)
	ttl := h.Grant().TTL
	wait := ttl / 3
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.clock.After(wait):
		}
		sent := h.clock.Elapsed()
		end := asked + ttl*2/3
		if sent >= end {
			close(h.lost)
			return
		}
		g, err := h.renew(ctx, ttl, end-sent)
		switch {
		case errors.Is(err, errLate):
			return
		case err == nil:
			h.mu.Lock()
			h.grant = g
			h.mu.Unlock()
			asked, wait = sent, ttl/3
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrConflict):
			close(h.lost)
			return
		default: // again soon, and for the last time when it is to give up
			wait = min(ttl/12, end-h.clock.Elapsed())
		}
	}
}

// errLate means that a renewal took so long that the lease was given up.
var errLate = errors.New("late")

// renew gives the lease up when the provider has not answered within limit,
// and waits for the answer all the same.
func (h *Held) renew(ctx context.Context, ttl, limit time.Duration) (Grant, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		g   Grant
		err error
	}
	c := make(chan answer, 1)
	go func() {
		g, err := h.p.Renew(ctx, h.Grant(), ttl)
		c <- answer{g, err}
	}()
	select {
	case a := <-c:
		return a.g, a.err
	case <-h.clock.After(limit):
		close(h.lost)
		cancel()
		<-c
		return Grant{}, errLate
	}
}
