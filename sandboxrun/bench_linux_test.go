package sandboxrun

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"
)

// The benchmarks run the sandbox and a bare bubblewrap with the same options
// in turns, so that both see the same machine, and report the medians and
// their ratio.
func BenchmarkTrue(b *testing.B) {
	benchmarkAgainstBare(b, []string{"/bin/bash", "--noprofile", "--norc", "-c", "true"})
}

func BenchmarkPython(b *testing.B) {
	benchmarkAgainstBare(b, []string{"/usr/bin/python3", "-c", "pass"})
}

// BenchmarkGroup runs the same command with and without control groups in turns
// and reports what they cost.
func BenchmarkGroup(b *testing.B) {
	grouped, weak := groupRunner(b), runnerWith(b, Config{Group: "none-of-this-name"})
	run := bash(`true`)
	run.Lower = b.TempDir()
	var with, without []time.Duration
	for b.Loop() {
		for r, list := range map[*Runner]*[]time.Duration{grouped: &with, weak: &without} {
			*list = append(*list, timed(func() {
				if res, err := r.Run(b.Context(), run, func(Change) error { return nil }); err != nil || res.ExitCode != 0 {
					b.Fatal(res, err)
				}
			}))
		}
	}
	w, o := median(with), median(without)
	b.ReportMetric(float64(w)/1e6, "group-ms")
	b.ReportMetric(float64(o)/1e6, "none-ms")
	b.ReportMetric(float64(w-o)/1e6, "cost-ms")
	b.ReportMetric(float64(with[0]-without[0])/1e6, "cost-min-ms") // median has sorted them
}

func benchmarkAgainstBare(b *testing.B, argv []string) {
	r := newRunner(b)
	lower := b.TempDir()
	ctx := context.Background()
	run := Run{Lower: lower, Argv: argv}
	var sandboxed, bare []time.Duration
	runtime.LockOSThread() // Bare asks for it
	defer runtime.UnlockOSThread()
	for b.Loop() {
		bare = append(bare, timed(func() {
			cmd, release, err := r.Bare(ctx, run)
			if err != nil {
				b.Fatal(err)
			}
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
			release()
		}))
		sandboxed = append(sandboxed, timed(func() {
			res, err := r.Run(ctx, run, func(Change) error { return nil })
			if err != nil || res.ExitCode != 0 {
				b.Fatal(res, err)
			}
		}))
	}
	s, p := median(sandboxed), median(bare)
	b.ReportMetric(float64(s)/1e6, "run-ms")
	b.ReportMetric(float64(p)/1e6, "bare-ms")
	b.ReportMetric(float64(s)/float64(p), "ratio")
}

// BenchmarkFilter runs the same script with and without the system call filter
// in turns, each first as often as the other. The tenth percentiles are what
// other work on the machine disturbs least.
func BenchmarkFilter(b *testing.B) {
	runners := []*Runner{newRunner(b), withoutFilter(b)}
	run := Run{Lower: b.TempDir(), Argv: []string{"/bin/bash", "--noprofile", "--norc", "-c", "true"}}
	var times [2][]time.Duration
	for n := 0; b.Loop(); n++ {
		for k := range runners {
			i := (n + k) % len(runners)
			times[i] = append(times[i], timed(func() {
				if res, err := runners[i].Run(b.Context(), run, nil); err != nil || res.ExitCode != 0 {
					b.Fatal(res, err)
				}
			}))
		}
	}
	tenth := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/10]) / 1e6
	}
	b.ReportMetric(tenth(times[0]), "with-ms")
	b.ReportMetric(tenth(times[1]), "without-ms")
	b.ReportMetric(tenth(times[0])-tenth(times[1]), "filter-ms")
}

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
