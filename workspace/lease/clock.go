package lease

import "time"

// Clock is what leases know of time. All methods may be called at the same time.
type Clock interface {
	// Elapsed is the time since some fixed moment. It never goes back, and
	// neither setting the wall clock nor a suspended host moves it.
	Elapsed() time.Duration
	// Wall is the time that people read.
	Wall() time.Time
	// After sends once when d of Elapsed has passed.
	After(d time.Duration) <-chan time.Time
}

// SystemClock returns the clock of this process. Elapsed stands while the host
// is suspended on Linux (CLOCK_MONOTONIC) and macOS.
func SystemClock() Clock { return systemClock{time.Now()} }

type systemClock struct{ start time.Time }

func (c systemClock) Elapsed() time.Duration                 { return time.Since(c.start) }
func (c systemClock) Wall() time.Time                        { return time.Now().Round(0) }
func (c systemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }
