package conformance

import (
	"sync"
	"time"
)

// ManualClock is a lease.Clock that stands until it is told to move. The zero
// value is ready. All methods may be called at the same time.
type ManualClock struct {
	mu     sync.Mutex
	now    time.Duration
	wall   time.Duration // since wallStart
	asleep time.Duration // part of wall that was spent suspended
	timers []manualTimer
}

type manualTimer struct {
	at time.Duration
	c  chan time.Time
}

var wallStart = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// Elapsed implements lease.Clock.
func (c *ManualClock) Elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Wall implements lease.Clock.
func (c *ManualClock) Wall() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return wallStart.Add(c.wall)
}

// After implements lease.Clock.
func (c *ManualClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := manualTimer{c.now + d, make(chan time.Time, 1)}
	c.timers = append(c.timers, t)
	c.ring()
	return t.c
}

// Advance lets time pass.
func (c *ManualClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += d
	c.wall += d
	c.ring()
}

// StepWall sets the wall clock forward, or back if d is below 0.
func (c *ManualClock) StepWall(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += d
}

// Suspend suspends the host for d: only the wall clock goes on.
func (c *ManualClock) Suspend(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += d
	c.asleep += d
}

// Waiting is how many timers have not rung.
func (c *ManualClock) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

func (c *ManualClock) ring() {
	left := c.timers[:0]
	for _, t := range c.timers {
		if t.at <= c.now {
			t.c <- wallStart.Add(c.wall)
		} else {
			left = append(left, t)
		}
	}
	c.timers = left
}
