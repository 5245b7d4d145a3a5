package workspace

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// fullEnv names a small file system of its own, in the process that fills it.
const fullEnv = "MCP_VDISK_FULL_DIR"

// onSmallDisk runs the rest of a test on a file system of its own, which it may
// fill: in a process with its own mounts.
func onSmallDisk(t *testing.T, size string, rest func(t *testing.T, dir string)) {
	t.Helper()
	t.Parallel()
	if dir := os.Getenv(fullEnv); dir != "" {
		rest(t, dir)
		return
	}
	if hostos.Implementations()["free space"] == "unknown" {
		t.Skip("this system does not tell how much space is free")
	}
	dir := t.TempDir()
	script := `mount -t tmpfs -o size="$2" none "$0" || exit 42; exec "$1" -test.v -test.run "^$3\$"`
	cmd := exec.Command("unshare", "-rm", "sh", "-c", script, dir, os.Args[0], size, t.Name())
	cmd.Env = append(os.Environ(), fullEnv+"="+dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil && bytes.Contains(out, []byte("\nPASS\n")):
	case errors.As(err, &exit) && !bytes.HasPrefix(out, []byte("=== RUN")): // not even started
		t.Skipf("no file system to fill: %v: %s", err, out)
	default:
		t.Errorf("%v\n%s", err, out)
	}
}

func TestFullDisk(t *testing.T) { onSmallDisk(t, "48m", fillDisk) }

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

// TestFullAtEveryStep leaves more and more room on a file system and tries
// everything that writes.
func TestFullAtEveryStep(t *testing.T) {
	if raceDetector {
		t.Skip("nothing runs side by side here")
	}
	onSmallDisk(t, "112m", fillInSteps)
}

// fullSteps are how much room there is when the writing begins: from nothing to
// enough.
var fullSteps = []int64{
	0, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8<<20 + 4096, 17 << 20, 25 << 20, 64 << 20,
	// These are for the long run.
	4 << 10, 8 << 10, 12 << 10, 20 << 10, 24 << 10, 32 << 10, 48 << 10, 96 << 10, 128 << 10, 192 << 10, 384 << 10, 512 << 10, 768 << 10,
	2 << 20, 4 << 20, 6 << 20, 9 << 20, 12 << 20, 16 << 20, 20 << 20, 32 << 20, 48 << 20,
}

// fullWork are the commits that are tried, each on what those before it left.
func fullWork() map[string]func(*testing.T, *Image) error {
	big := string(randomBytes(3, 20<<20))
	diff := make([]step, 2000)
	for i := range diff {
		diff[i] = put(fmt.Sprintf("diff/%d/%d", i%20, i), fmt.Sprint(i, " ", strings.Repeat("x", 200)))
	}
	commit := func(steps ...step) func(*testing.T, *Image) error {
		return func(t *testing.T, im *Image) error {
			todo := slices.DeleteFunc(slices.Clone(steps), func(s step) bool { // what is removed already
				return s.Op == OpRemove && errors.Is(second(im.Lstat(s.Path)), ErrNotFound)
			})
			return second(do(t, im, Txn{}, todo...))
		}
	}
	return map[string]func(*testing.T, *Image) error{
		"small":  commit(put("small", "new")),
		"20 MB":  commit(put("big", big)),
		"diff":   commit(append(diff, remove("old/3"), link("l", "old"))...),
		"remove": commit(remove("old")),
		"record": func(t *testing.T, im *Image) error { // as a checkpoint does
			return im.update("checkpoint", 0, func(tx *bolt.Tx) error { return tx.Bucket(bucketRefs).Put([]byte("r"), make([]byte, 100)) })
		},
		"discard": func(t *testing.T, im *Image) error {
			s := im.Stage(t.Context())
			_, err := s.Add(bytes.NewReader(randomBytes(4, 9<<20)))
			return errors.Join(err, s.Discard())
		},
	}
}

func fillInSteps(t *testing.T, dir string) {
	base := filepath.Join(dir, "base.vdisk")
	im, err := Create(base, CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	old := make([]step, 200)
	for i := range old {
		old[i] = put(fmt.Sprintf("old/%d/%d", i%5, i), lines(i))
	}
	mustDo(t, im, old...)
	mustDo(t, im, put("small", "old"), put("keep", string(randomBytes(1, 1<<18))))
	before := snapshot(t, im)
	im.Close()
	template := must(os.ReadFile(base))
	if err := os.Remove(base); err != nil {
		t.Fatal(err)
	}
	full, fit, steps := 0, 0, fullSteps[:9]
	if soak() {
		steps = fullSteps
	}
	for _, room := range steps {
		for name, work := range fullWork() {
			path := filepath.Join(dir, "a.vdisk")
			if err := os.WriteFile(path, template, 0o600); err != nil {
				t.Fatal(err)
			}
			err := workWithRoom(t, fmt.Sprintf("%s with %d bytes free", name, room), path, before, room, work)
			if err == nil {
				fit++
			} else {
				full++
			}
			if err := os.Remove(path); err != nil || t.Failed() {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d times full, %d times not", full, fit)
	if full < len(steps) || fit < len(steps) {
		t.Error("the steps do not reach from nothing to enough")
	}
}

// workWithRoom does some work with so much room on the file system. It
// succeeds, or it fails and the image is as before; either way it goes on in
// the same process, and does the same when there is room again.
func workWithRoom(t *testing.T, what, path string, before map[string]string, room int64, work func(*testing.T, *Image) error) error {
	t.Helper()
	im, err := Open(path, OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { im.Close() }()
	giveBack := leaveRoom(t, filepath.Dir(path), room)
	failed := work(t, im)
	if failed != nil {
		if !errors.Is(failed, ErrNoSpace) {
			t.Errorf("%s: %v", what, failed)
		}
		if !maps.Equal(snapshot(t, im), before) {
			t.Errorf("%s: it failed and the disk has changed", what)
		}
		im.Close()
		// What was staged cannot be swept, perhaps. It opens all the same.
		if im, err = Open(path, OpenOptions{}); err != nil {
			t.Fatalf("%s: open: %v", what, err)
		}
		if !maps.Equal(snapshot(t, im), before) {
			t.Errorf("%s: opened again, the disk has changed", what)
		}
		if again := work(t, im); again != nil && !errors.Is(again, ErrNoSpace) {
			t.Errorf("%s, the second time: %v", what, again)
		}
	}
	giveBack()
	if err := work(t, im); err != nil {
		t.Errorf("%s, with room again: %v", what, err)
	}
	mustDo(t, im, put("after", what))
	im = reopen(t, im, path)
	verify(t, im)
	return failed
}

// leaveRoom fills a file system but for so many bytes.
func leaveRoom(t *testing.T, dir string, room int64) (giveBack func()) {
	t.Helper()
	ballast, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer ballast.Close()
	free, _, err := hostos.Free(dir)
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 1<<20)
	for left := int64(free) - room; left > 0; left -= int64(len(block)) {
		if _, err := ballast.Write(block[:min(left, int64(len(block)))]); err != nil {
			t.Fatal(err)
		}
	}
	if free, _, err := hostos.Free(dir); err != nil || int64(free) > room {
		t.Fatalf("%d bytes are free, wanted %d (%v)", free, room, err)
	}
	return func() {
		if err := os.Remove(ballast.Name()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCreateOnAFullDisk: nothing is left behind, and with room again it works.
func TestCreateOnAFullDisk(t *testing.T) {
	onSmallDisk(t, "16m", func(t *testing.T, dir string) {
		failed := 0
		for room := int64(0); room <= 128<<10; room += 4 << 10 {
			giveBack := leaveRoom(t, dir, room)
			path := filepath.Join(dir, "a.vdisk")
			im, err := Create(path, CreateOptions{})
			if err != nil {
				failed++
				wantKind(t, err, ErrNoSpace)
				if names := must(os.ReadDir(dir)); len(names) != 1 {
					t.Errorf("with %d bytes free, left behind: %v", room, names)
				}
				giveBack()
				if im, err = Create(path, CreateOptions{}); err != nil {
					t.Fatalf("with room again: %v", err)
				}
			} else {
				giveBack()
			}
			mustDo(t, im, put("a", "x"))
			verify(t, im)
			im.Close()
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		if failed == 0 || failed == 33 {
			t.Errorf("%d of 33 failed", failed)
		}
	})
}

// TestOpenOnAFullDisk: what a killed process staged cannot be swept, and the
// image opens all the same. The first commit that finds room sweeps it.
func TestOpenOnAFullDisk(t *testing.T) {
	onSmallDisk(t, "64m", func(t *testing.T, dir string) {
		path := filepath.Join(dir, "a.vdisk")
		im, err := Create(path, CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		mustDo(t, im, put("keep", "the old content"))
		must(im.Stage(t.Context()).Add(bytes.NewReader(randomBytes(1, 20<<20))))
		staged := count(t, im, bucketPending)
		im.Close()
		// Without the free pages of the file, too, there is nothing to sweep with.
		fillFreePages(t, path)
		giveBack := leaveRoom(t, dir, 0)
		if im, err = Open(path, OpenOptions{}); err != nil {
			t.Fatal(err)
		}
		defer im.Close()
		if text(t, im, "keep") != "the old content" {
			t.Error("the old content is gone")
		}
		if n := count(t, im, bucketPending); staged == 0 || n != staged {
			t.Fatalf("%d of %d chunks are pending: there was room", n, staged)
		}
		_, err = do(t, im, Txn{}, put("new", lines(100)))
		wantKind(t, err, ErrNoSpace)
		giveBack()
		// A new stage does not mix with those of before.
		mustDo(t, im, put("big", string(randomBytes(1, 20<<20))))
		if text(t, im, "big") != string(randomBytes(1, 20<<20)) {
			t.Error("the new content is wrong")
		}
		verify(t, im)
	})
}

// fillFreePages leaves no page of a database free.
func fillFreePages(t *testing.T, path string) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.AllocSize = pageSize
	for i := 0; ; i++ {
		if err := db.Update(func(tx *bolt.Tx) error {
			return tx.Bucket(bucketRefs).Put(fmt.Appendf(nil, "fill %d", i), make([]byte, 3000))
		}); err != nil {
			t.Fatal(err)
		}
		if s := db.Stats(); s.FreePageN == 0 && i > 10 {
			return
		} else if i > 20_000 {
			t.Fatalf("%d pages are free", s.FreePageN)
		}
	}
}
