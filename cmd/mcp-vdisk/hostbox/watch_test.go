package hostbox

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestWatch(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "dir")
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{dir, at("sub"), at(".git"), filepath.Join(top, "outside")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range map[string]string{"a": "one", "sub/b": "two", ".hidden": "x", ".git/config": "x", "caf\xe9": "three", "../outside/secret": "x", "empty": ""} {
		write(t, at(name), data)
	}
	for _, err := range []error{os.Symlink("../outside", at("out")), os.Symlink("a", at("link")), syscall.Mkfifo(at("pipe"), 0o644)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var warn bytes.Buffer
	w, err := OpenWatch(dir, &warn)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	now := when
	look := func(after time.Duration, want ...string) []Found {
		t.Helper()
		now = now.Add(after)
		found, err := w.Look(now)
		var names []string
		for _, f := range found {
			names = append(names, f.Name)
		}
		slices.Sort(names)
		if err != nil || !slices.Equal(names, want) {
			t.Errorf("found %q, want %q: %v", names, want, err)
		}
		return found
	}
	look(0)
	look(100 * time.Millisecond)
	found := look(250*time.Millisecond, "a", "caf\xe9", "empty", "sub/b")
	for _, f := range found {
		if f.Name != "a" { // which was not put
			w.Taken(f)
		}
	}
	look(time.Second, "a")
	write(t, at("a"), "longer")
	look(time.Second)
	found = look(time.Second, "a")
	if sum, err := w.Sum(found[0]); err != nil || sum != sha256.Sum256([]byte("longer")) {
		t.Errorf("%x, %v", sum, err)
	}
	write(t, at("a"), "longer still")
	if _, err := w.Open(found[0]); !errors.Is(err, ErrChanging) {
		t.Errorf("a file that changed: %v", err)
	}
	if err := errors.Join(os.Remove(at("a")), os.Symlink("../outside/secret", at("a"))); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Open(found[0]); err == nil {
		t.Error("a link in the place of a file is opened")
	}
	look(time.Second)
	for _, name := range []string{"out", "link", "pipe", "a"} {
		if n := strings.Count(warn.String(), "inbox: "+name+" is left out"); n != 1 {
			t.Errorf("%s is told %d times: %s", name, n, &warn)
		}
	}
	// A growing file is found when it rests.
	for i := range 5 {
		write(t, at("grows"), strings.Repeat("x", i+1))
		look(300 * time.Millisecond)
	}
	w.Taken(look(300*time.Millisecond, "grows")[0])
	// One that goes and comes again is new, another folder in the place is taken up.
	if err := os.Remove(at("grows")); err != nil {
		t.Fatal(err)
	}
	look(time.Second)
	write(t, at("grows"), "xxxxx")
	look(time.Second)
	look(time.Second, "grows")
	if err := errors.Join(os.Rename(dir, filepath.Join(top, "moved"))); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Look(now); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, at("anew"), "x")
	look(time.Second)
	look(time.Second, "anew")
}

// What is left out is told once, and found again when it changed or after Retry.
func TestWatchLeave(t *testing.T) {
	dir := t.TempDir()
	var warn bytes.Buffer
	w, err := OpenWatch(dir, &warn)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	now := when
	look := func(want int) []Found {
		t.Helper()
		now = now.Add(time.Second)
		found, err := w.Look(now)
		if err != nil || len(found) != want {
			t.Fatalf("found %v, want %d: %v", found, want, err)
		}
		return found
	}
	write(t, filepath.Join(dir, "a"), "one")
	look(0)
	w.Leave(look(1)[0], "is left out: of one")
	look(0)
	if !w.Left() {
		t.Error("nothing is left")
	}
	w.Retry()
	w.Leave(look(1)[0], "is left out: of two") // of the same file
	look(0)
	write(t, filepath.Join(dir, "a"), "changed")
	look(0)
	f := look(1)[0]
	w.Leave(f, "is left out: of three")
	w.Retry()
	w.Taken(look(1)[0])
	if w.Left() {
		t.Error("what was taken is left")
	}
	w.Retry()
	look(0)
	if got, want := warn.String(), "mcp-vdisk: inbox: a is left out: of one\nmcp-vdisk: inbox: a is left out: of three\n"; got != want {
		t.Errorf("told %q", got)
	}
}

// A folder with too much in it is looked at in part, and that is told.
func TestWatchLimits(t *testing.T) {
	dir := t.TempDir()
	deep := dir
	for range watchDepth + 2 {
		deep = filepath.Join(deep, "d")
		if err := os.Mkdir(deep, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i := range watchEntries {
		write(t, filepath.Join(dir, fmt.Sprint(i)), "")
	}
	var warn bytes.Buffer
	w, err := OpenWatch(dir, &warn)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for i := range 3 {
		found, err := w.Look(when.Add(time.Duration(i) * time.Second))
		if err != nil || i > 0 && (len(found) > watchEntries || len(found) < watchEntries-watchDepth-3) {
			t.Errorf("found %d: %v", len(found), err)
		}
	}
	if n := strings.Count(warn.String(), "\n"); n < 1 || n > 2 || !strings.Contains(warn.String(), "more than 10000 entries") {
		t.Errorf("told: %s", &warn)
	}
}
