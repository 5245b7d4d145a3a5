package sandboxrun

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"
)

// TestRunsAtOnce: ten runs that all go on at the same moment, the last two over
// the same directory. Each sees its own workspace and changes only that, and
// nothing is left of them.
func TestRunsAtOnce(t *testing.T) {
	t.Run("memory", func(t *testing.T) { runsAtOnce(t, newRunner(t)) })
	t.Run("disk", func(t *testing.T) {
		r, scratch := diskRunner(t)
		runsAtOnce(t, r)
		empty(t, scratch)
	})
}

const atOnce = 10

func runsAtOnce(t *testing.T, r *Runner) {
	lower := make([]string, atOnce)
	for i := range lower {
		lower[i] = tree(t, map[string]string{"who": fmt.Sprintln(i), fmt.Sprint("only", i): "", "gone/f": ""})
	}
	lower[atOnce-1] = lower[atOnce-2]
	before := make([]string, atOnce)
	for i, dir := range lower {
		before[i] = snapshot(t, dir)
	}
	mustExit(t, r, bash(`true`)) // what is made once is made now
	print := measure(t, r)
	together(t, r, lower)
	sameFootprint(t, r, print)
	for i, dir := range lower {
		if snapshot(t, dir) != before[i] {
			t.Errorf("run %d changed its lower directory", i)
		}
	}
}

// together starts a run over each directory and lets none go on before all
// have written to their workspace.
func together(t *testing.T, r *Runner, lower []string) {
	var here, ended sync.WaitGroup
	all := make(chan struct{})
	here.Add(len(lower))
	go func() { here.Wait(); close(all) }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i, dir := range lower {
		ended.Add(1)
		go func() {
			defer ended.Done()
			arrive := sync.OnceFunc(here.Done)
			defer arrive() // also when it fails before
			run := bash(fmt.Sprintf(`echo %d >>who; rm -r gone; echo >new%d; echo here; read -r _; cat who; ls`, i, i))
			run.Lower = dir
			run.Limits.Timeout = time.Minute
			run.Tap = func(Stream, []byte) { arrive() }
			run.Stdin = readerFunc(func([]byte) (int, error) {
				select {
				case <-all:
					return 0, io.EOF
				case <-ctx.Done():
					return 0, ctx.Err()
				}
			})
			var c changes
			res, err := r.Run(ctx, run, c.add)
			own := min(i, atOnce-2)
			out := fmt.Sprintf("here\n%d\n%d\nnew%d\nonly%d\nwho\n", own, i, i, own)
			want := []string{`removed gone`, fmt.Sprintf(`file new%d 644 1 "\n"`, i), fmt.Sprintf(`file who 644 4 "%d\n%d\n"`, own, i)}
			if err != nil || string(res.Stdout.Text) != out || !slices.Equal(c.lines, want) {
				t.Errorf("run %d: %v, %+v\nstdout: %q\nchanges: %q", i, err, res.Outcome, res.Stdout.Text, c.lines)
			}
		}()
	}
	ended.Wait()
	<-all
}

// TestFallBackAtOnce: several runs find out at the same time that memory cannot
// hold their changes; each is run again on disk.
func TestFallBackAtOnce(t *testing.T) {
	diskRunner(t)
	r := runnerWith(t, Config{Self: oldKernel(t, 4), Scratch: t.TempDir()})
	var ended sync.WaitGroup
	for range 4 {
		ended.Go(func() {
			var c changes
			if _, err := r.Run(t.Context(), bash(`echo 1 >f`), c.add); err != nil || !slices.Equal(c.lines, []string{`file f 644 2 "1\n"`}) {
				t.Errorf("%v, changes %q", err, c.lines)
			}
		})
	}
	ended.Wait()
	empty(t, r.cfg.Scratch)
}
