package audit

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// maxDrift is how far wall clock and monotonic clock may part between two
// records of a stream before that is itself a record.
const maxDrift = 2 * time.Second

// moment is when a record was numbered.
type moment struct {
	wall time.Time
	mono int64 // microseconds since boot
	boot string
}

// step tells whether the wall clock was set between two moments: it went back,
// or within one boot it went otherwise than the monotonic clock.
func (m moment) step(now moment) (Facts, bool) {
	if m.wall.IsZero() {
		return nil, false
	}
	wall := now.wall.Sub(m.wall)
	mono := time.Duration(now.mono-m.mono) * time.Microsecond
	together := now.boot == m.boot && mono >= 0
	if wall >= 0 && !(together && (wall-mono).Abs() > maxDrift) {
		return nil, false
	}
	f := Facts{
		"from":    string(appendTime(nil, m.wall)),
		"to":      string(appendTime(nil, now.wall)),
		"wall_us": wall.Microseconds(),
	}
	if together {
		f["mono_us"] = mono.Microseconds()
	}
	return f, true
}

// sinceBoot is a clock in nanoseconds since boot that goes on over processes,
// where the host tells it; elsewhere it starts with the log.
func sinceBoot() func() int64 {
	start, base := time.Now(), time.Duration(0)
	if text, err := os.ReadFile("/proc/uptime"); err == nil {
		first, _, _ := strings.Cut(string(text), " ")
		if s, err := strconv.ParseFloat(first, 64); err == nil {
			base = time.Duration(s * float64(time.Second))
		}
	}
	return func() int64 { return int64(base + time.Since(start)) }
}

// bootID is empty where the host has none.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
