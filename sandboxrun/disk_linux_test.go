package sandboxrun

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// diskRunner keeps changes in a scratch directory, where the file system of
// the tests can hold an overlay.
func diskRunner(t *testing.T) (*Runner, string) {
	t.Helper()
	scratch := filepath.Join(t.TempDir(), "scratch")
	r := runnerWith(t, Config{Disk: true, Scratch: scratch})
	if _, err := r.Run(t.Context(), Run{Argv: []string{"/bin/true"}}, nil); errors.Is(err, ErrSetup) {
		t.Skipf("SKIP the file system of %s: %v", os.TempDir(), err)
	}
	return r, scratch
}

func empty(t *testing.T, dir string) {
	t.Helper()
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("%s has %v (%v)", dir, list, err)
	}
}

// TestDisk: changes kept on disk are the same, and the scratch directory is
// empty afterwards, whatever the script left there.
func TestDisk(t *testing.T) {
	r, scratch := diskRunner(t)
	for _, tc := range []struct {
		name, script string
		want         []string
	}{
		{"create", `echo 1 >n; mkdir d2; echo 2 >d2/f`, []string{`dir d2 755`, `file d2/f 644 2 "2\n"`, `file n 644 2 "1\n"`}},
		{"opaque", `rm -r d; mkdir d; echo 1 >d/n; rm a`, []string{`removed a`, `opaque_dir d 755`, `file d/n 644 2 "1\n"`}},
		{"closed directories", `mkdir -p x/y; :>x/y/f; chmod 0 x/y x`, []string{`dir x 0`, `dir x/y 0`, `file x/y/f 644 0 ""`}},
		{"fifo", `mkfifo p`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run := bash(tc.script)
			run.Lower = tree(t, map[string]string{"a": "1", "d/b": "2"})
			if _, c := mustExit(t, r, run); !slices.Equal(c.lines, tc.want) {
				t.Errorf("changes %q, want %q", c.lines, tc.want)
			}
			empty(t, scratch)
		})
	}
}

// TestDiskWatch: the limits on disk are soft, but they end the run.
func TestDiskWatch(t *testing.T) {
	r, scratch := diskRunner(t)
	for name, script := range map[string]string{
		"bytes": `head -c 3000000 /dev/zero >f; sleep 300`,
		"files": `for i in {1..300}; do :>f$i; done; sleep 300`,
		"depth": `for i in {1..400}; do mkdir d; cd d; done; sleep 300`,
	} {
		t.Run(name, func(t *testing.T) {
			run := bash(script)
			run.Limits = Limits{Timeout: time.Minute, WriteBytes: 1 << 20, WriteFiles: 200}
			if name == "depth" {
				run.Limits.WriteFiles = 100_000
			}
			res, err := r.Run(t.Context(), run, func(Change) error { return nil })
			if res.Outcome != DiskLimit && !errors.Is(err, ErrTooDeep) {
				t.Errorf("outcome %s, error %v", res.Outcome, err)
			}
			empty(t, scratch)
		})
	}
}

// TestFallBackToDisk: where a tmpfs keeps no user xattrs, the scratch directory
// is used instead, from the first run on and with all of its input.
func TestFallBackToDisk(t *testing.T) {
	diskRunner(t)
	scratch := filepath.Join(t.TempDir(), "scratch")
	r := runnerWith(t, Config{Self: oldKernel(t, 1), Scratch: scratch})
	run := bash(`cat >f`)
	run.Stdin = strings.NewReader("input")
	if _, c := mustExit(t, r, run); !slices.Equal(c.lines, []string{`file f 644 5 "input"`}) {
		t.Errorf("changes %q", c.lines)
	}
	if rep := r.Probe(t.Context()); !rep.OK || rep.Upper != "disk" {
		t.Errorf("report %+v", rep)
	}
	empty(t, scratch)
}

// oldKernel returns a stage that n times, all at once, reports what the stage
// reports on a kernel before 6.6, and is the real one after that.
func oldKernel(t *testing.T, n int) (self string) {
	t.Helper()
	dir := t.TempDir()
	frame := stream(func(f *frameWriter) {
		f.write(frameFailed, failure{Step: stepXattr, Errno: uint64(unix.EOPNOTSUPP), Detail: "operation not supported"}.marshal())
	})
	real, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "frame"), frame, 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "real"), real, 0o755))
	script := fmt.Sprintf(`#!/bin/bash
cd %s
for i in {1..%d}; do
	if mkdir old$i 2>/dev/null; then
		until [ -e old%d ]; do :; done
		exec cat frame >&3
	fi
done
exec -a %s ./real
`, dir, n, n, stageName)
	self = filepath.Join(dir, "stage")
	must(t, os.WriteFile(self, []byte(script), 0o755))
	return self
}

// TestSweepSparesRuns: a second process with the same scratch directory does
// not take away what the script of the first one is writing.
func TestSweepSparesRuns(t *testing.T) {
	r, scratch := diskRunner(t)
	run := bash(`echo 1 >a; read -r _; echo 2 >b; exit 0`)
	run.Stdin = readerFunc(func([]byte) (int, error) {
		must(t, sweepScratch(scratch))
		return 0, io.EOF
	})
	_, c := mustExit(t, r, run)
	if want := []string{`file a 644 2 "1\n"`, `file b 644 2 "2\n"`}; !slices.Equal(c.lines, want) {
		t.Errorf("changes %q", c.lines)
	}
	empty(t, scratch)
}

// TestSweepScratch: what a killed process left is removed, whatever it is;
// nothing outside is touched.
func TestSweepScratch(t *testing.T) {
	scratch, outside := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "keep"), nil, 0o644))
	run := filepath.Join(scratch, scratchPrefix+"1")
	must(t, os.MkdirAll(filepath.Join(run, "up/closed/in"), 0o755))
	must(t, os.WriteFile(filepath.Join(run, "up/closed/in/f"), nil, 0))
	must(t, os.Symlink(outside, filepath.Join(run, "up/link")))
	deep := filepath.Join(run, "deep")
	for range 15 {
		deep = filepath.Join(deep, strings.Repeat("d", 200))
	}
	must(t, os.MkdirAll(deep, 0o755))
	must(t, os.Chmod(filepath.Join(run, "up/closed/in"), 0))
	must(t, os.Chmod(filepath.Join(run, "up/closed"), 0))
	must(t, os.WriteFile(filepath.Join(scratch, "other"), nil, 0o644))
	must(t, sweepScratch(scratch))
	if list, _ := os.ReadDir(scratch); len(list) != 1 || list[0].Name() != "other" {
		t.Errorf("left: %v", list)
	}
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Error(err)
	}
}
