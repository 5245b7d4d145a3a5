package sandboxrun

import (
	"slices"
	"testing"
	"time"
)

// TestTrace: a run that is traced tells all of its steps, each once, in their order
// and within the run; one that fails tells those that it came to.
func TestTrace(t *testing.T) {
	r := newRunner(t)
	all := []Mark{MarkOrdered, MarkTaken, MarkMounted, MarkForked, MarkReleased, MarkEnded, MarkReaped, MarkRead, MarkGone}
	for _, waited := range []bool{false, true} {
		var marks []Mark
		run := bash(`echo >f`)
		last := time.Now()
		run.Trace = func(m Mark, at time.Time) {
			// Two processes read one clock a moment apart, which is long when
			// another process gets its turn in between.
			const moment = time.Second
			if at.Before(last.Add(-moment)) || at.After(time.Now().Add(moment)) {
				t.Errorf("on a stage that waited %v: %s at %v after %v", waited, m, at, last)
			}
			marks, last = append(marks, m), at
		}
		mustExit(t, r, run)
		if !slices.Equal(marks, all) {
			t.Errorf("marks %q", marks)
		}
	}
	var marks []Mark
	run := Run{Argv: []string{"/bin/true"}, Lower: "/no/such", Trace: func(m Mark, _ time.Time) { marks = append(marks, m) }}
	if _, err := r.Run(t.Context(), run, nil); err == nil || !slices.Equal(marks, []Mark{MarkOrdered, MarkTaken}) {
		t.Errorf("marks %q of a run without a workspace, error %v", marks, err)
	}
}
