package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// opener opens the log in dir and checks every stream, in a process of its own,
// and says on standard output how that went.
func opener(dir string) {
	db, err := OpenDB(dir, nil)
	switch {
	case errors.Is(err, ErrUnreadable):
		fmt.Println("refused:", err)
		os.Exit(0)
	case err != nil:
		panic(err)
	}
	log, err := New(db, filepath.Join(dir, "tail"), Options{})
	if err != nil {
		panic(err)
	}
	names, err := log.Streams()
	if err != nil {
		panic(err)
	}
	for _, name := range names {
		if r, err := log.Verify(context.Background(), name); err != nil || !r.OK {
			fmt.Println("broken:", name, err)
			os.Exit(0)
		}
	}
	fmt.Println("opened:", names)
	os.Exit(0)
}

// A damaged table is an error that names it, and no end of the process: Badger
// opens tables in goroutines of its own.
func TestDamagedTables(t *testing.T) {
	sound := twoTables(t)
	if out := openApart(t, sound, nil); !strings.HasPrefix(out, "opened:") {
		t.Fatal(out)
	}
	ssts, err := filepath.Glob(filepath.Join(sound, "*.sst"))
	if err != nil || len(ssts) < 2 {
		t.Fatal(ssts, err)
	}
	for _, sst := range ssts {
		data, err := os.ReadFile(sst)
		if err != nil {
			t.Fatal(err)
		}
		all := damages(data)
		for _, what := range slices.Sorted(maps.Keys(all)) {
			name := filepath.Base(sst)
			out := openApart(t, sound, func(dir string) {
				os.WriteFile(filepath.Join(dir, name), all[what], 0o600)
			})
			if !strings.HasPrefix(out, "refused:") || !strings.Contains(out, name) {
				t.Errorf("%s, %s of %d bytes:\n%.2000s", what, name, len(data), out)
			}
		}
	}
}

// twoTables makes a database with two tables in level zero.
func twoTables(t *testing.T) string {
	f := newFixture(t, Options{})
	for range 2 {
		for i := range 60 {
			f.append(disk, intentOf(fmt.Sprint(i)))
		}
		f.reopen()
	}
	f.close()
	return f.dir
}

func damages(data []byte) map[string][]byte {
	n := len(data)
	all := map[string][]byte{
		"empty":     nil,
		"one byte":  data[:1],
		"too long":  append(bytes.Clone(data), 0, 0, 0, 0),
		"all zeros": make([]byte, n),
		"all ones":  bytes.Repeat([]byte{0xff}, n),
	}
	for _, part := range []int{1, 4, 5, 9, 20, n / 4, n / 2, n - 8} {
		all[fmt.Sprint("cut by ", part)] = data[:n-part]
		zeros := bytes.Clone(data)
		clear(zeros[n-part:])
		all[fmt.Sprint("zeros in the last ", part)] = zeros
	}
	for at := 0; at < n-4; at += max(1, min(n/16, n-4-at-14)) { // and each place near the end
		xored := bytes.Clone(data)
		for i := range 4 {
			xored[at+i] ^= 0xff
		}
		all[fmt.Sprint("4 bytes inverted at ", at)] = xored
	}
	return all
}

// openApart lets opener loose on a copy of dir that damage was done to.
func openApart(t *testing.T, dir string, damage func(dir string)) string {
	t.Helper()
	c := filepath.Join(t.TempDir(), "db")
	if err := os.CopyFS(c, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(c)
	if damage != nil {
		damage(c)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "AUDIT_TEST_OPENER="+c)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("opening: %v", err)
	}
	return string(out)
}

// What a process that was killed leaves of a table it wrote is in no manifest.
func TestHalfATableOfAKilledProcess(t *testing.T) {
	f := newFixture(t, Options{})
	f.append("s", intentOf("a"))
	f.close()
	name := filepath.Join(f.dir, "000077.sst")
	if err := os.WriteFile(name, make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	f.open()
	if got, err := f.log.Verify(t.Context(), "s"); err != nil || !got.OK || got.Records != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestCostOfCheckTables prints what the check adds to a start.
func TestCostOfCheckTables(t *testing.T) {
	if os.Getenv("MCP_VDISK_SOAK") != "1" {
		t.Skip("MCP_VDISK_SOAK is not 1")
	}
	f := newFixture(t, Options{})
	for i := range 200_000 {
		if _, err := f.log.Note(t.Context(), disk, intentOf(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	f.close()
	ssts, _ := filepath.Glob(filepath.Join(f.dir, "*.sst"))
	var size int64
	for _, name := range ssts {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	start := time.Now()
	if err := checkTables(f.dir); err != nil {
		t.Fatal(err)
	}
	check := time.Since(start)
	start = time.Now()
	f.open()
	t.Logf("%d tables, %d bytes: checked in %v; all of opening takes %v", len(ssts), size, check, time.Since(start))
}
