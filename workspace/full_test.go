package workspace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// fullEnv names a small file system of its own, in the process that fills it.
const fullEnv = "MCP_VDISK_FULL_DIR"

// TestFullDisk fills a file system to its end. It needs one for itself, so it
// runs in a process with its own mounts.
func TestFullDisk(t *testing.T) {
	if dir := os.Getenv(fullEnv); dir != "" {
		fillDisk(t, dir)
		return
	}
	if hostos.Implementations()["free space"] == "unknown" {
		t.Skip("this system does not tell how much space is free")
	}
	dir := t.TempDir()
	script := `mount -t tmpfs -o size=48m none "$0" || exit 42; exec "$1" -test.run '^TestFullDisk$'`
	cmd := exec.Command("unshare", "-rm", "sh", "-c", script, dir, os.Args[0])
	cmd.Env = append(os.Environ(), fullEnv+"="+dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 1 && len(out) > 0 && out[0] == '-': // a test that failed
		t.Errorf("%s", out)
	case err != nil:
		t.Skipf("no file system to fill: %v: %s", err, out)
	}
}

func fillDisk(t *testing.T, dir string) {
	im, err := Create(filepath.Join(dir, "a.vdisk"), CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	mustDo(t, im, put("keep", "the old content"))
	last := 0
	for ; err == nil && last < 1000; last++ {
		_, err = do(t, im, Txn{}, put(fmt.Sprint("f", last), string(randomBytes(byte(last), 1<<20))))
	}
	wantKind(t, err, ErrNoSpace)
	_, err = do(t, im, Txn{}, put("keep", string(randomBytes(99, 20<<20))))
	wantKind(t, err, ErrNoSpace)
	_, err = do(t, im, Txn{Source: randomBytes(98, maxSource)}, mkdir("d"))
	wantKind(t, err, ErrNoSpace)
	// No room is left at all, not even for a page.
	ballast, _ := os.Create(filepath.Join(dir, "ballast"))
	for err = nil; err == nil; {
		_, err = ballast.Write(make([]byte, 4096))
	}
	failed := false
	for i := 0; i < 3000 && !failed; i++ {
		_, err := do(t, im, Txn{}, put(fmt.Sprint("small", i), "x"))
		if failed = err != nil; failed {
			wantKind(t, err, ErrNoSpace)
		}
	}
	if !failed {
		t.Error("it never got full")
	}
	if text(t, im, "keep") != "the old content" {
		t.Error("the old content is gone")
	}
	ballast.Close()
	if err := os.Remove(ballast.Name()); err != nil {
		t.Fatal(err)
	}
	mustDo(t, im, remove("f0"), put("keep", "new"))
	txn, err := im.Restoring(t.Context(), 3, []Path{mustPath(t, "f0")})
	apply(t, im, txn, err)
	if text(t, im, "f0") != string(randomBytes(0, 1<<20)) {
		t.Error("what was restored is something else")
	}
	verify(t, im)
}
