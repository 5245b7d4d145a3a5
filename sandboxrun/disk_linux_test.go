package sandboxrun

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
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
		"bytes": `head -c 3000000 /dev/zero >f; sleep 60`,
		"files": `for i in {1..300}; do :>f$i; done; sleep 60`,
		"depth": `for i in {1..400}; do mkdir d; cd d; done; sleep 60`,
	} {
		t.Run(name, func(t *testing.T) {
			run := bash(script)
			run.Limits.WriteBytes, run.Limits.WriteFiles = 1<<20, 200
			if name == "depth" {
				run.Limits.WriteFiles = 100_000
			}
			res, err := r.Run(t.Context(), run, func(Change) error { return nil })
			if res.Outcome != DiskLimit && !errors.Is(err, ErrTooDeep) {
				t.Errorf("outcome %s, error %v", res.Outcome, err)
			}
			if res.Duration > 10*time.Second {
				t.Errorf("took %v", res.Duration)
			}
			empty(t, scratch)
		})
	}
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
