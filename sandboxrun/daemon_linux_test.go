package sandboxrun

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// daemons are ways for a process to survive its script. Each makes the file
// /tmp/up-NAME once it is what it wants to be.
var daemons = map[string]string{
	"session":  `setsid -f sh -c ':>/tmp/up-session; exec sleep 300'`,
	"forked":   `( setsid sh -c '(:>/tmp/up-forked; exec sleep 300) & (sleep 300) & exit' & )`,
	"deaf":     `( trap '' TERM HUP INT QUIT PIPE USR1 USR2 ALRM CHLD TSTP; :>/tmp/up-deaf; while :; do sleep 300; done ) &`,
	"closed":   `setsid sh -c ':>/tmp/up-closed; exec sleep 300' >&- 2>&- <&- &`,
	"stopped":  `sh -c ':>/tmp/up-stopped; kill -STOP $$; sleep 300' &`,
	"writing":  `( while :; do echo x >>f; :>/tmp/up-writing; done ) &`,
	"printing": `( while :; do echo x; :>/tmp/up-printing; sleep 0.02; done ) &`,
	"orphan":   `sh -c 'sh -c "sleep 0.01; :>/tmp/up-orphan; exec sleep 300" & exit 0'`,
	"restless": `sh -c ':>/tmp/up-restless; f() { ( sleep 0.001; f ) & exit; }; f' &`,
}

// withDaemons is a script that ends in some way when the daemons are there. Bash
// waits by itself: there may be no process left to be had.
func withDaemons(names []string, end string) string {
	var b strings.Builder
	b.WriteString(":>f\n")
	for _, name := range names {
		fmt.Fprintln(&b, daemons[name])
	}
	for _, name := range names {
		fmt.Fprintf(&b, "while [ ! -e /tmp/up-%s ]; do :; done\n", name)
	}
	b.WriteString("echo up\n" + end)
	return b.String()
}

// TestDaemons: whatever way a script ends, what it has left running neither delays
// the answer nor outlives it.
func TestDaemons(t *testing.T) {
	everyKind := slices.Sorted(maps.Keys(daemons))
	refused, gone := errors.New("refused"), errors.New("the client went away")
	type end struct {
		name, how string
		limits    Limits
		want      Outcome
		err       error // what Run returns
		group     bool
		daemons   []string
	}
	ends := []end{
		{"exit 0", `exit 0`, Limits{}, Exited, nil, false, everyKind},
		{"exit 7", `exit 7`, Limits{}, Exited, nil, false, everyKind},
		{"signal", `kill -KILL $$`, Limits{}, Signaled, nil, false, everyKind},
		{"timeout", `sleep 60`, Limits{Timeout: 500 * time.Millisecond}, TimedOut, nil, false, everyKind},
		{"timeout of a script that is stopped", `kill -STOP $$`, Limits{Timeout: 500 * time.Millisecond}, TimedOut, nil, false, everyKind},
		{"flood", `yes`, Limits{OutputMax: 1 << 20}, OutputLimit, nil, false, everyKind},
		{"memory", `head -c 300M /dev/zero | tail -c 300M >/dev/null`, Limits{MemoryBytes: 64 << 20, TmpBytes: 1 << 20, ShmBytes: 1 << 20, HomeBytes: 1 << 20, WriteBytes: 8 << 20}, MemoryLimit, nil, true, everyKind},
		{"cancel", `sleep 60`, Limits{}, Cancelled, gone, false, everyKind},
		{"change that is refused", `exit 0`, Limits{}, Exited, refused, false, everyKind},
	}
	for _, name := range everyKind { // alone, which none of the others hides
		ends = append(ends, end{"exit 0 of " + name, `exit 0`, Limits{}, Exited, nil, false, []string{name}})
	}
	for _, e := range ends {
		t.Run(e.name, func(t *testing.T) {
			runner := newRunner
			if e.group {
				runner = groupRunner
			}
			r := runner(t)
			before := footprintOf(t, r)
			ctx, cancel := context.WithCancelCause(t.Context())
			run := bash(withDaemons(e.daemons, e.how))
			run.Limits = e.limits
			if run.Limits.Timeout == 0 {
				run.Limits.Timeout = time.Minute
			}
			var up time.Time
			run.Tap = func(_ Stream, p []byte) {
				if up.IsZero() && strings.Contains(string(p), "up\n") {
					up = time.Now()
					if e.err == gone {
						cancel(gone)
					}
				}
			}
			res, err := r.Run(ctx, run, func(Change) error {
				if e.err == refused {
					return refused
				}
				return nil
			})
			took := time.Since(up)
			if !errors.Is(err, e.err) || res.Outcome != e.want && e.err != refused {
				t.Errorf("outcome %s, want %s; exit %d; error %v; stderr %.300s", res.Outcome, e.want, res.ExitCode, err, res.Stderr.Text)
			}
			if up.IsZero() || took > soon {
				t.Errorf("daemons up: %v; answered %v after that", !up.IsZero(), took)
			}
			t.Logf("answered %v after the daemons were up", took.Round(time.Millisecond))
			sameFootprint(t, r, before)
			mustExit(t, r, bash(`true`))
		})
	}
}
