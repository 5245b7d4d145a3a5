package sandboxrun

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLargeFileOnDisk: a file of 300 MB passes through with bounded memory, of
// this process and of the stage.
func TestLargeFileOnDisk(t *testing.T) {
	_, scratch := diskRunner(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"=large", "SCRATCH="+filepath.Join(t.TempDir(), "scratch"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var grown, child int64
	if _, err := fmt.Sscan(string(out), &grown, &child); err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	t.Logf("the process grew by %d KiB, the largest child had %d KiB", grown>>10, child>>10)
	if grown > 16<<20 || child > 128<<20 {
		t.Errorf("grew by %d bytes, a child had %d", grown, child)
	}
	empty(t, scratch)
}

// highWater is the most memory that this process ever had resident, in bytes.
func highWater() int64 {
	b, _ := os.ReadFile("/proc/self/status")
	var kib int64
	for line := range strings.Lines(string(b)) {
		_, _ = fmt.Sscanf(line, "VmHWM: %d kB", &kib)
	}
	return kib << 10
}

// maxChild is the same of the largest process below this one, in bytes.
func maxChild() int64 {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_CHILDREN, &u)
	return int64(u.Maxrss) << 10
}

// largeRole runs a script that writes one file of 300 MB, with its changes on
// disk, and prints by how much that raised the memory of this process, and the
// most that any other had.
func largeRole() int {
	const size = 300_000_000
	r, err := New(context.Background(), Config{Disk: true, Scratch: os.Getenv("SCRATCH"), Group: testGroup})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer r.Close()
	write := func(n int) error {
		run := bash(fmt.Sprintf(`head -c %d /dev/zero | tr '\0' x >f`, n))
		run.Limits = Limits{WriteBytes: 2 * size, Timeout: time.Minute}
		got := int64(0)
		res, err := r.Run(context.Background(), run, func(c Change) (err error) {
			got, err = io.Copy(io.Discard, c.Body)
			return err
		})
		if err == nil && got != int64(n) {
			err = fmt.Errorf("%s, %d bytes arrived of %d: %s", res.Outcome, got, n, res.Stderr.Text)
		}
		return err
	}
	if err := write(1000); err != nil {
		fmt.Println(err)
		return 1
	}
	before := highWater()
	if err := write(size); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(highWater()-before, maxChild())
	return 0
}
