package sandboxrun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// TestOutcomes: how a run can end, and that it ends in time.
func TestOutcomes(t *testing.T) {
	const short = 400 * time.Millisecond
	for _, tc := range []struct {
		name, script string
		timeout      time.Duration
		want         Outcome
		code         int
		signal       string
	}{
		{"exit 0", `true`, 0, Exited, 0, ""},
		{"exit 1", `exit 1`, 0, Exited, 1, ""},
		{"exit 7", `exit 7`, 0, Exited, 7, ""},
		{"exit 255", `exit 255`, 0, Exited, 255, ""},
		{"exit 126", `/etc/passwd`, 0, Exited, 126, ""},
		{"exit 127", `no-such-command`, 0, Exited, 127, ""},
		{"exit 128", `exit 128`, 0, Exited, 128, ""},
		{"exit code of no fatal signal", `exit 145`, 0, Exited, 145, ""},
		{"segmentation fault", `kill -SEGV $$`, 0, Signaled, 139, "SIGSEGV"},
		{"abort", `kill -ABRT $$`, 0, Signaled, 134, "SIGABRT"},
		{"terminated", `kill -TERM $$`, 0, Signaled, 143, "SIGTERM"},
		{"killed", `kill -KILL $$`, 0, Signaled, 137, "SIGKILL"},
		{"timeout", `sleep 60`, short, TimedOut, -1, ""},
		{"waits for input", `read -r x && exit 5; exit 6`, 0, Exited, 6, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRunner(t)
			run := bash(tc.script)
			run.Limits.Timeout = max(tc.timeout, 0)
			if tc.timeout == 0 {
				run.Limits.Timeout = 20 * time.Second
			}
			res, _ := mustRun(t, r, run)
			if res.Outcome != tc.want || res.ExitCode != tc.code || res.Signal != tc.signal {
				t.Errorf("outcome %s, exit %d, signal %q; stderr %.200s", res.Outcome, res.ExitCode, res.Signal, res.Stderr.Text)
			}
			// The two clocks of a run start a moment apart.
			if tc.timeout > 0 && (res.Duration < tc.timeout-50*time.Millisecond || res.Duration > tc.timeout+10*time.Second) {
				t.Errorf("took %v with a timeout of %v", res.Duration, tc.timeout)
			}
		})
	}
}

func TestCancelledBefore(t *testing.T) {
	r := newRunner(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if res, err := r.Run(ctx, bash(`true`), nil); !errors.Is(err, context.Canceled) || res.Outcome != Cancelled {
		t.Errorf("outcome %s, error %v", res.Outcome, err)
	}
}

// TestCancelWhileReadingChanges: each has been called already, so the error is
// what tells the caller to drop it all.
func TestCancelWhileReadingChanges(t *testing.T) {
	r := newRunner(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := r.Run(ctx, bash(`head -c 20000000 /dev/zero >a; :>b`), func(c Change) error {
		cancel()
		_, err := io.Copy(io.Discard, c.Body)
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestOutput: what is kept of the streams.
func TestOutput(t *testing.T) {
	all := strings.Repeat("0123456789abcde\n", 1<<14) // 256 KiB
	for _, tc := range []struct {
		name, script string
		limits       Limits
		out, err     Output
	}{
		{"both", `echo out; echo err >&2`, Limits{}, Output{Text: []byte("out\n"), Total: 4}, Output{Text: []byte("err\n"), Total: 4}},
		{"binary", `printf '\x00\xff\x1b[31m\n\r'`, Limits{}, Output{Text: []byte("\x00\xff\x1b[31m\n\r"), Total: 9}, Output{}},
		{"whole", `yes 0123456789abcde | head -n 16384`, Limits{}, Output{Text: []byte(all), Total: 1 << 18}, Output{}},
		{"head and tail", `yes 0123456789abcde | head -n 16384`, Limits{Head: 32, Tail: 16},
			Output{Text: []byte(all[:32] + "[... 262096 bytes left out ...]\n" + all[:16]), Total: 1 << 18, Cut: 262096}, Output{}},
		{"cut inside a line", `printf 0123456789 >&2`, Limits{Head: 3, Tail: 3}, Output{},
			Output{Text: []byte("012\n[... 4 bytes left out ...]\n789"), Total: 10, Cut: 4}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRunner(t)
			run := bash(tc.script)
			run.Limits = tc.limits
			res, _ := mustExit(t, r, run)
			for stream, pair := range map[string][2]Output{"stdout": {res.Stdout, tc.out}, "stderr": {res.Stderr, tc.err}} {
				got, want := pair[0], pair[1]
				if !bytes.Equal(got.Text, want.Text) || got.Total != want.Total || got.Cut != want.Cut {
					t.Errorf("%s: %d bytes, total %d, cut %d; want %d, %d, %d; text %.80q", stream, len(got.Text), got.Total, got.Cut, len(want.Text), want.Total, want.Cut, got.Text)
				}
			}
		})
	}
}

// TestOutputLimitIsExact: one byte decides, not who is faster.
func TestOutputLimitIsExact(t *testing.T) {
	r := newRunner(t)
	for n, want := range map[int]Outcome{1000: Exited, 1001: OutputLimit} {
		run := bash(fmt.Sprintf(`head -c 500 /dev/zero; head -c %d /dev/zero >&2`, n-500))
		run.Limits.OutputMax = 1000
		if res, _ := mustRun(t, r, run); res.Outcome != want {
			t.Errorf("%d bytes: outcome %s, want %s", n, res.Outcome, want)
		}
	}
}

// TestStdin: streamed, and nobody waits for a script that does not read it.
func TestStdin(t *testing.T) {
	r := newRunner(t)
	big := strings.Repeat("line of input\n", 400_000) // 5.6 MB
	for _, tc := range []struct{ name, script, in, want string }{
		{"echo", `cat`, "hello", "hello"},
		{"nothing", `cat; echo end`, "", "end\n"},
		{"large", `wc -c`, big, "5600000\n"},
		{"not read", `echo end`, big, "end\n"},
		{"read in part", `head -n 1`, big, "line of input\n"},
		{"closed", `exec <&-; echo end`, big, "end\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run := bash(tc.script)
			run.Stdin = strings.NewReader(tc.in)
			if res, _ := mustExit(t, r, run); string(res.Stdout.Text) != tc.want {
				t.Errorf("got %.80q, want %q", res.Stdout.Text, tc.want)
			}
		})
	}
	t.Run("nil", func(t *testing.T) {
		if res, _ := mustExit(t, r, bash(`wc -c`)); string(res.Stdout.Text) != "0\n" {
			t.Errorf("got %q", res.Stdout.Text)
		}
	})
}

func TestStdinError(t *testing.T) {
	r := newRunner(t)
	boom := errors.New("boom")
	run := bash(`cat >f`)
	run.Stdin = io.MultiReader(strings.NewReader("half"), readerFunc(func([]byte) (int, error) { return 0, boom }))
	if _, err := r.Run(t.Context(), run, nil); !errors.Is(err, boom) {
		t.Errorf("a script had half of its input and the error is %v", err)
	}
}

// TestStdinIsLeftAlone: a run that cannot start reads nothing.
func TestStdinIsLeftAlone(t *testing.T) {
	r := newRunner(t)
	in := strings.NewReader("input")
	run := Run{Lower: "/no/such/directory", Argv: []string{"/bin/cat"}, Stdin: in}
	if _, err := r.Run(t.Context(), run, nil); !errors.Is(err, ErrSetup) || in.Len() != 5 {
		t.Errorf("error %v, %d bytes left", err, in.Len())
	}
}

// TestStdinThatNeverEnds: a reader that hangs does not hold the call.
func TestStdinThatNeverEnds(t *testing.T) {
	r := newRunner(t)
	never, w, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { w.Close(); never.Close() })
	run := bash(`echo end`)
	run.Stdin = never
	if res, _ := mustExit(t, r, run); string(res.Stdout.Text) != "end\n" {
		t.Errorf("got %q", res.Stdout.Text)
	}
}

// TestWriteLimits: more than may be written is ENOSPC in the script; it is the
// outcome only if the script failed of it.
func TestWriteLimits(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		lower        map[string]string
		want         Outcome
		code         int
	}{
		{"within", `head -c 900000 /dev/zero >f`, nil, Exited, 0},
		{"bytes", `head -c 2000000 /dev/zero >f`, nil, DiskLimit, 1},
		{"bytes in several files", `for i in {1..40}; do head -c 50000 /dev/zero >f$i || exit 9; done`, nil, DiskLimit, 9},
		{"handled", `head -c 2000000 /dev/zero >f 2>/dev/null || rm f; :>ok`, nil, Exited, 0},
		{"handled but kept", `head -c 2000000 /dev/zero >f 2>/dev/null; exit 0`, nil, Exited, 0},
		{"failed of something else", `head -c 1000 /dev/zero >f; exit 3`, nil, Exited, 3},
		{"files", `for i in {1..300}; do :>f$i || exit 9; done`, nil, DiskLimit, 9},
		{"directories", `for i in {1..300}; do mkdir d$i || exit 9; done`, nil, DiskLimit, 9},
		{"deletions", `rm -r d`, map[string]string{"d/": "", "many": ""}, DiskLimit, 1},
		{"sparse is free", `truncate -s 1G f; printf x >>f`, nil, Exited, 0},
		{"copy of an old file", `printf x >>big`, map[string]string{"big": strings.Repeat("x", 2_000_000)}, DiskLimit, 1},
		{"/tmp is full", `head -c 2000000 /dev/zero >/tmp/f`, nil, DiskLimit, 1},
		{"/dev/shm is full", `head -c 2000000 /dev/zero >/dev/shm/f`, nil, DiskLimit, 1},
		{"home is full", `head -c 2000000 /dev/zero >~/f`, nil, DiskLimit, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRunner(t)
			if _, ok := tc.lower["many"]; ok {
				for i := range 300 {
					tc.lower[fmt.Sprintf("d/f%d", i)] = ""
				}
			}
			run := bash(tc.script)
			run.Lower = tree(t, tc.lower)
			run.Limits = Limits{WriteBytes: 1 << 20, WriteFiles: 200, TmpBytes: 1 << 20, ShmBytes: 1 << 20, HomeBytes: 1 << 20}
			res, _ := mustRun(t, r, run)
			if res.Outcome != tc.want || res.ExitCode != tc.code {
				t.Errorf("outcome %s, exit %d; stderr %.200s", res.Outcome, res.ExitCode, res.Stderr.Text)
			}
		})
	}
}

// TestProcessLimit: the limit is the run's own, whatever else runs as this user.
func TestProcessLimit(t *testing.T) {
	r := newRunner(t)
	run := Run{Argv: []string{needPython(t), "-c", `
import os, time
n = 0
try:
    while n < 100:
        if os.fork() == 0: time.sleep(60)
        n += 1
except BlockingIOError: pass
print(n)`}}
	run.Limits.Processes = 20
	res, _ := mustExit(t, r, run)
	if got := string(res.Stdout.Text); got != "18\n" && got != "17\n" && got != "19\n" {
		t.Errorf("%s children with a limit of 20 processes", got)
	}
}
