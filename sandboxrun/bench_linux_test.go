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

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
