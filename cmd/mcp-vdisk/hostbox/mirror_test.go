package hostbox

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/hostname"
)

// source stands for the disk: what a Mirror of it is to hold.
type source struct {
	t     testing.TB
	m     *Mirror
	warn  bytes.Buffer
	items map[string]*Item
	data  map[string]string
	names map[string]bool // that ever were
	gives func(Item) error
}

func newSource(t testing.TB) *source {
	return &source{t: t, items: map[string]*Item{}, data: map[string]string{}, names: map[string]bool{}}
}

const testDisk = "the-disk"

// open opens a mirror of the source.
func (s *source) open(dir string) {
	s.t.Helper()
	m, err := OpenMirror(dir, true, &s.warn)
	if err == nil {
		err = m.Claim(testDisk)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.m = m
	s.t.Cleanup(func() { m.Close() })
}

func (s *source) again(dir string) {
	s.t.Helper()
	s.m.Close()
	s.open(dir)
}

var when = time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)

func (s *source) put(name, data string) {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		s.add(Item{Name: dir, Kind: KindDir, Mode: 0o755, ModTime: when})
	}
	s.data[name] = data
	s.add(Item{Name: name, Kind: KindFile, Mode: 0o644, ModTime: when, Size: int64(len(data)), SHA256: sha256.Sum256([]byte(data))})
}

func (s *source) link(name, to string) {
	s.add(Item{Name: name, Kind: KindLink, Mode: 0o777, ModTime: when, Target: to})
}

func (s *source) add(it Item) { s.items[it.Name], s.names[it.Name] = &it, true }

func (s *source) drop(name string) {
	for n := range s.items {
		if n == name || strings.HasPrefix(n, name+"/") {
			delete(s.items, n)
		}
	}
}

// sync settles everything.
func (s *source) sync() (left []string, err error) {
	for _, name := range s.m.Held() {
		s.names[name] = true
	}
	return s.m.Settle(slices.Collect(maps.Keys(s.names)), func(name string) *Item { return s.items[name] }, s.fetch)
}

func (s *source) fetch(items []Item, put func(Item, io.Reader)) error {
	for _, it := range items {
		if s.gives != nil {
			if err := s.gives(it); err != nil {
				return err
			}
		}
		put(it, strings.NewReader(s.data[it.Name]))
	}
	return nil
}

func (s *source) mustSync() {
	s.t.Helper()
	if left, err := s.sync(); err != nil || len(left) > 0 {
		s.t.Fatalf("left %q, %v", left, err)
	}
}

// tree is what a folder holds, but for the manifest.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, p)
		switch {
		case err != nil:
			return err
		case rel == "." || rel == manifest:
		case d.IsDir():
			got[rel] = "dir"
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			got[rel] = "-> " + to
			return err
		case !d.Type().IsRegular():
			got[rel] = "special" // a pipe would keep us waiting
		default:
			data, err := os.ReadFile(p)
			got[rel] = "=" + string(data)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func (s *source) holds(dir string, want map[string]string) {
	s.t.Helper()
	if got := tree(s.t, dir); !maps.Equal(got, want) {
		s.t.Errorf("the folder holds\n%q, want\n%q\nand was told %s", got, want, &s.warn)
	}
}

func write(t testing.TB, name, data string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestMirror(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	s := newSource(t)
	s.open(dir)
	s.put("a.txt", "one")
	s.put("sub/deep/b.txt", "two")
	s.add(Item{Name: "empty", Kind: KindDir, Mode: 0o755})
	s.link("l", "sub/deep/b.txt")
	s.link("sub/up", "../a.txt")
	s.mustSync()
	want := map[string]string{"a.txt": "=one", "sub": "dir", "sub/deep": "dir", "sub/deep/b.txt": "=two", "empty": "dir", "l": "-> sub/deep/b.txt", "sub/up": "-> ../a.txt"}
	s.holds(dir, want)
	before, err := os.Stat(filepath.Join(dir, "a.txt"))
	if err != nil || !before.ModTime().Equal(when) {
		t.Errorf("a.txt: %v, %v", before, err)
	}

	// What is equal is not written again, also by the next one.
	s.gives = func(it Item) error { t.Errorf("%s is fetched again", it.Name); return nil }
	s.again(dir)
	s.mustSync()
	s.gives = nil

	s.put("a.txt", "three")
	s.items["a.txt"].Mode = 0o4755
	s.drop("sub")
	s.put("empty", "a file now")
	s.drop("l")
	s.link("l", "empty")
	s.mustSync()
	s.holds(dir, map[string]string{"a.txt": "=three", "empty": "=a file now", "l": "-> empty"})
	info, err := os.Stat(filepath.Join(dir, "a.txt"))
	if err != nil || info.Mode() != 0o755 {
		t.Errorf("a.txt: %v, %v", info, err)
	}
	if s.warn.Len() > 0 {
		t.Errorf("told: %s", &s.warn)
	}
}

// A file that was only touched gets its time, without its content; one that the person
// has changed or removed does not.
func TestMirrorOfATouchedFile(t *testing.T) {
	dir := t.TempDir()
	s := newSource(t)
	s.open(dir)
	names := []string{"a", "sub/b", "edited", "removed", "linked", "inside"}
	for _, name := range names {
		s.put(name, name)
	}
	s.mustSync()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("edited"), "EDITED")
	outside := filepath.Join(t.TempDir(), "outside")
	write(t, outside, "linked")
	for _, err := range []error{os.Chtimes(at("edited"), when, when), os.Chtimes(outside, when, when), os.Remove(at("removed")), os.Remove(at("linked")), os.Symlink(outside, at("linked")),
		os.Rename(at("inside"), at("moved")), os.Symlink("moved", at("inside"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	later := when.Add(time.Hour + 123_456_789)
	s.gives = func(it Item) error { t.Errorf("%s is fetched again", it.Name); return nil }
	for _, name := range names {
		s.items[name].ModTime = later
	}
	s.mustSync()
	timeOf := func(name string) time.Time {
		t.Helper()
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime()
	}
	for name, want := range map[string]time.Time{at("a"): later, at("sub/b"): later, at("edited"): when, outside: when, at("moved"): when} {
		if got := timeOf(name); got.Sub(want).Abs() > time.Microsecond {
			t.Errorf("%s is of %s, want %s", name, got, want)
		}
	}
	if _, err := os.Lstat(at("removed")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what the person removed came back: %v", err)
	}
	// And once: the next one leaves the times alone.
	s.again(dir)
	if err := os.Chtimes(at("a"), when, when); err != nil {
		t.Fatal(err)
	}
	s.mustSync()
	if got := timeOf(at("a")); !got.Equal(when) {
		t.Errorf("set again to %s", got)
	}
	if s.warn.Len() > 0 {
		t.Errorf("told: %s", &s.warn)
	}
}

// A folder has the mode that the disk has, as far as it can be filled.
func TestMirrorFolderModes(t *testing.T) {
	dir := t.TempDir()
	s := newSource(t)
	s.open(dir)
	modes := map[string]fs.FileMode{"private": 0o700, "open": 0o755, "closed": 0o055, "set": 0o4750}
	for name, mode := range modes {
		s.put(name+"/f", name)
		s.items[name].Mode = mode
	}
	modes["closed"], modes["set"] = 0o755, 0o750
	check := func() {
		t.Helper()
		s.mustSync()
		for name, want := range modes {
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != fs.ModeDir|want {
				t.Errorf("%s: %v, %v, want %v", name, info, err, want)
			}
		}
	}
	check()
	if err := os.RemoveAll(filepath.Join(dir, "private")); err != nil {
		t.Fatal(err)
	}
	s.again(dir)
	s.put("private/f", "again") // its folder is made again
	s.items["private"].Mode = 0o700
	check()
}

// Small files come before large ones, and folders before what is in them.
func TestMirrorOrder(t *testing.T) {
	s := newSource(t)
	dir := t.TempDir()
	s.open(dir)
	large := strings.Repeat("l", 1<<20)
	for name, data := range map[string]string{"a": large + "ll", "b": large + "l", "c": "small", "sub/d": large, "z": ""} {
		s.put(name, data)
	}
	var order []string
	s.gives = func(it Item) error {
		if _, err := os.Stat(filepath.Join(dir, "sub")); err != nil {
			t.Error(err)
		}
		order = append(order, it.Name)
		return nil
	}
	s.mustSync()
	if want := []string{"c", "sub/d", "z", "b", "a"}; !slices.Equal(order, want) {
		t.Errorf("%q, want %q", order, want)
	}
}

// What the person did to the folder is never undone, and nothing of the disk is lost.
func TestMirrorKeepsWhatThePersonDid(t *testing.T) {
	dir := t.TempDir()
	s := newSource(t)
	s.open(dir)
	for _, name := range []string{"edited.txt", "same-size.txt", "removed.txt", "gone.txt", "edited-gone.txt", "folder/x", "folder/y", "replaced/z"} {
		s.put(name, "old "+name)
	}
	s.mustSync()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("edited.txt"), "the person's")
	write(t, at("same-size.txt"), "OLD same-size.txt")
	if err := os.Chtimes(at("same-size.txt"), when, when); err != nil {
		t.Fatal(err)
	}
	write(t, at("edited-gone.txt"), "the person's")
	write(t, at("folder/own"), "the person's")
	write(t, at("new.txt"), "the person's")
	for _, err := range []error{os.Remove(at("removed.txt")), os.RemoveAll(at("replaced")), os.WriteFile(at("replaced"), []byte("a file"), 0o644)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.again(dir)
	s.mustSync()
	if _, err := os.Stat(at("removed.txt")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what the person removed came back: %v", err)
	}
	for _, name := range []string{"edited.txt", "same-size.txt", "removed.txt", "replaced/z", "new.txt"} {
		s.put(name, "new "+name)
	}
	s.drop("gone.txt")
	s.drop("edited-gone.txt")
	s.drop("folder")
	s.mustSync()
	want := map[string]string{
		"edited.txt": "=the person's", "edited (2).txt": "=new edited.txt",
		"same-size.txt": "=OLD same-size.txt", "same-size (2).txt": "=new same-size.txt",
		"removed.txt": "=new removed.txt", "edited-gone.txt": "=the person's",
		"folder": "dir", "folder/own": "=the person's",
		"replaced": "=a file", "replaced (2)": "dir", "replaced (2)/z": "=new replaced/z",
		"new.txt": "=the person's", "new (2).txt": "=new new.txt",
	}
	s.holds(dir, want)
	for _, word := range []string{"edited.txt is beside", "edited-gone.txt was removed from the disk", "replaced (2)"} {
		if !strings.Contains(s.warn.String(), word) {
			t.Errorf("not told: %q in %s", word, &s.warn)
		}
	}
	// The next content goes where the last one went.
	s.put("edited.txt", "newer")
	s.again(dir)
	s.mustSync()
	want["edited (2).txt"] = "=newer"
	s.holds(dir, want)
	write(t, at("edited (2).txt"), "the person's too")
	s.put("edited.txt", "newest")
	s.mustSync()
	want["edited (2).txt"], want["edited (3).txt"] = "=the person's too", "=newest"
	s.holds(dir, want)
}

// Links that stand in the folder are never written through.
func TestMirrorFollowsNoPlantedLink(t *testing.T) {
	for name, plant := range map[string]func(dir, outside string) error{
		"a file to a file outside": func(dir, outside string) error {
			return os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "f"))
		},
		"a file to a file inside": func(dir, _ string) error { return os.Symlink("sub/victim", filepath.Join(dir, "f")) },
		"a file, dangling": func(dir, outside string) error {
			return os.Symlink(filepath.Join(outside, "new"), filepath.Join(dir, "f"))
		},
		"a file, by a chain": func(dir, outside string) error {
			return errors.Join(os.Symlink("c2", filepath.Join(dir, "f")), os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "c2")))
		},
		"a file, a loop": func(dir, _ string) error { return os.Symlink("f", filepath.Join(dir, "f")) },
		"a folder to one outside": func(dir, outside string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, "sub")), os.Symlink(outside, filepath.Join(dir, "sub")))
		},
		"a folder to one inside": func(dir, _ string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, "sub")), os.Symlink("other", filepath.Join(dir, "sub")))
		},
		"a folder, dangling": func(dir, outside string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, "sub")), os.Symlink(filepath.Join(outside, "made"), filepath.Join(dir, "sub")))
		},
		"a hard link": func(dir, outside string) error {
			return os.Link(filepath.Join(outside, "secret"), filepath.Join(dir, "f"))
		},
		"a pipe": func(dir, _ string) error { return syscall.Mkfifo(filepath.Join(dir, "f"), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			dir, outside := filepath.Join(top, "dir"), filepath.Join(top, "outside")
			if err := os.Mkdir(outside, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(outside, "secret"), "untouched")
			s := newSource(t)
			s.open(dir)
			s.put("sub/victim", "victim")
			s.put("other/victim", "victim")
			s.mustSync()
			if err := plant(dir, outside); err != nil {
				t.Fatal(err)
			}
			s.put("f", "delivered")
			s.put("sub/victim", "changed")
			s.put("sub/new", "new")
			s.mustSync()
			if got := tree(t, outside); !maps.Equal(got, map[string]string{"secret": "=untouched"}) {
				t.Errorf("outside: %q", got)
			}
			got := tree(t, dir)
			if got["other/victim"] != "=victim" || got["other/new"] != "" {
				t.Errorf("written through a link inside: %q", got)
			}
			for want, at := range map[string][]string{"=delivered": {"f", "f (2)"}, "=changed": {"sub/victim", "sub (2)/victim"}, "=new": {"sub/new", "sub (2)/new"}} {
				if !slices.ContainsFunc(at, func(p string) bool { return got[p] == want }) {
					t.Errorf("%q is nowhere: %q", want, got)
				}
			}
			// And what is removed is not removed through them.
			s.drop("sub")
			s.drop("f")
			s.mustSync()
			if got := tree(t, outside); !maps.Equal(got, map[string]string{"secret": "=untouched"}) {
				t.Errorf("outside, after removal: %q", got)
			}
		})
	}
}

// Somebody who swaps a folder for a link all the time leads nothing out.
func TestMirrorSwapRace(t *testing.T) {
	top := t.TempDir()
	dir, outside := filepath.Join(top, "dir"), filepath.Join(top, "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	s := newSource(t)
	s.open(dir)
	s.put("sub/f", "0")
	s.mustSync()
	stop := make(chan struct{})
	var swapper sync.WaitGroup
	swaps := 0
	swapper.Go(func() {
		sub, aside := filepath.Join(dir, "sub"), filepath.Join(top, "aside")
		for {
			select {
			case <-stop:
				return
			default:
			}
			if os.Rename(sub, aside) == nil && os.Symlink(outside, sub) == nil {
				swaps++
			}
			os.Remove(sub)
			os.Rename(aside, sub)
		}
	})
	for i := range 100 {
		s.put(fmt.Sprint("sub/f", i%20), fmt.Sprint(i))
		s.sync() // it may fail; it may not lead out
	}
	close(stop)
	swapper.Wait()
	if got := tree(t, outside); len(got) > 0 {
		t.Errorf("outside: %q", got)
	}
	t.Logf("%d swaps", swaps)
}

// Links of the disk that could lead out, alone or together, are not made.
func TestMirrorLinks(t *testing.T) {
	dir := t.TempDir()
	s := newSource(t)
	s.open(dir)
	s.put("d/e/f/x", "x")
	for name, to := range map[string]string{
		"out": "../x", "abs": "/etc/passwd", "climb": "d/../../x", "d/e/f/y": "../../../../x", "k": ".", "by-k": "k/..", "d/e/f/z": "../../../k/../x",
		"mount": "/workspace/out/d", "in": "d/e", "d/e/f/up": "../../../d", "dots": "./d/./e", "dangling": "d/none",
	} {
		s.link(name, to)
	}
	s.mustSync()
	s.holds(dir, map[string]string{"d": "dir", "d/e": "dir", "d/e/f": "dir", "d/e/f/x": "=x", "k": "-> .", "in": "-> d/e",
		"d/e/f/up": "-> ../../../d", "dots": "-> d/e", "dangling": "-> d/none"})
	if n := strings.Count(s.warn.String(), "out of the outbox"); n != 7 {
		t.Errorf("%d links are told as left out: %s", n, &s.warn)
	}
	s.mustSync()
	if n := strings.Count(s.warn.String(), "\n"); n != 7 {
		t.Errorf("told again: %s", &s.warn)
	}
}

func TestMirrorRefuses(t *testing.T) {
	top := t.TempDir()
	at := func(name string) string { return filepath.Join(top, name) }
	full := at("full")
	for _, err := range []error{os.Mkdir(full, 0o755), os.WriteFile(at("file"), nil, 0o644), syscall.Mkfifo(at("pipe"), 0o644), os.Mkdir(at("bad"), 0o755), os.Mkdir(at("link"), 0o755),
		os.Mkdir(at("hostile"), 0o755), os.Symlink(at("nowhere"), at("dangling"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(full, "thesis.txt"), "x")
	write(t, filepath.Join(at("bad"), manifest), "{")
	write(t, filepath.Join(at("hostile"), manifest), `{"format":1,"disk":"the-disk","entries":[{"name":"a","as":"../../etc","kind":"f"}]}`)
	if err := os.Symlink("/etc/passwd", filepath.Join(at("link"), manifest)); err != nil {
		t.Fatal(err)
	}
	for name, code := range map[string]int{"full": exit.Refused, "file": exit.Refused, "pipe": exit.Refused, "bad": exit.Refused, "link": exit.Refused, "hostile": exit.Refused,
		"dangling": exit.Refused, "no/folder": exit.NotFound} {
		m, err := OpenMirror(at(name), true, io.Discard)
		var f *exit.Failure
		if !errors.As(err, &f) || f.Code != code || f.Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
		if m != nil {
			m.Close()
		}
	}
	if got := tree(t, full); len(got) != 1 || got["thesis.txt"] != "=x" {
		t.Errorf("%q", got)
	}
	s := newSource(t)
	s.open(at("mine"))
	s.put("a", "a")
	s.mustSync()
	if _, err := OpenMirror(at("mine"), true, io.Discard); err == nil || !strings.Contains(err.Error(), "another session has") {
		t.Errorf("a second one: %v", err)
	}
	s.m.Close()
	m, err := OpenMirror(at("mine"), true, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var f *exit.Failure
	if err := m.Claim("another"); !errors.As(err, &f) || f.Code != exit.Refused {
		t.Errorf("of another disk: %v", err)
	}
}

// A killed process leaves files of its own, which the next one sweeps, and a manifest
// that tells what was about to be written.
func TestMirrorAfterAKill(t *testing.T) {
	dir := t.TempDir()
	s := newSource(t)
	s.open(dir)
	s.put("sub/a", "one")
	s.mustSync()
	s.put("sub/a", "two")
	s.put("b", "new")
	for _, name := range []string{"sub/a", "b"} {
		s.m.intend(*s.items[name])
	}
	if err := s.m.save(); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "sub/a"), "two") // it was renamed, and not noted
	write(t, filepath.Join(dir, tempPrefix+"x"), "half")
	write(t, filepath.Join(dir, "sub", tempPrefix+"y"), "half")
	s.again(dir)
	s.put("sub/a", "three") // and has changed on the disk since
	s.mustSync()
	s.holds(dir, map[string]string{"sub": "dir", "sub/a": "=three", "b": "=new"})
	if s.warn.Len() > 0 {
		t.Errorf("told: %s", &s.warn)
	}
	// Also when the first manifest was not written yet.
	other := t.TempDir()
	write(t, filepath.Join(other, tempPrefix+"x"), "half")
	s.again(other)
	s.mustSync()
	s.holds(other, map[string]string{"sub": "dir", "sub/a": "=three", "b": "=new"})
}

// A connection that breaks leaves the rest to do, a content that is damaged its file.
func TestMirrorFetchFails(t *testing.T) {
	dir := t.TempDir()
	s := newSource(t)
	s.open(dir)
	for _, name := range []string{"a", "b", "c"} {
		s.put(name, name)
	}
	gone := errors.New("gone")
	s.gives = func(it Item) error {
		if it.Name == "b" {
			return gone
		}
		return nil
	}
	left, err := s.sync()
	slices.Sort(left)
	if !errors.Is(err, gone) || !slices.Equal(left, []string{"b", "c"}) {
		t.Errorf("left %q, %v", left, err)
	}
	s.holds(dir, map[string]string{"a": "=a"})
	s.gives = nil
	s.data["b"] = "x"
	if left, err = s.sync(); !errors.Is(err, errCut) || !slices.Equal(left, []string{"b"}) {
		t.Errorf("left %q, %v", left, err)
	}
	s.data["b"] = "b"
	s.mustSync()
	s.holds(dir, map[string]string{"a": "=a", "b": "=b", "c": "=c"})
}

// fat is what a vfat below Linux says of names.
func fat(host string) error {
	if strings.ContainsAny(host, `<>:"|?*\`) || strings.TrimRight(host, ". ") != host || len(host) > 200 {
		return &fs.PathError{Op: "open", Path: host, Err: syscall.EINVAL}
	}
	return nil
}

func TestMirrorNames(t *testing.T) {
	dir := t.TempDir()
	s := newSource(t)
	s.open(dir)
	s.m.refuses = fat
	long := strings.Repeat("l", 220) + ".txt"
	for _, name := range []string{"a:b", "a%3Ab", "plain", "dot.", "what?/is: it", long, ".mcp-vdisk-outbox.json", ".mcp-vdisk-tmp-x"} {
		s.put(name, name)
	}
	s.link("to", "what?/is: it")
	s.mustSync()
	got := tree(t, dir)
	for host, name := range map[string]string{"a%3Ab": "a%3Ab", "a%253Ab": "", "plain": "plain", "dot%2E": "dot.", "what%3F/is%3A it": "what?/is: it",
		"%2Emcp-vdisk-outbox.json": ".mcp-vdisk-outbox.json", "%2Emcp-vdisk-tmp-x": ".mcp-vdisk-tmp-x", hostname.Escape(long, hostname.Strict()): long} {
		if name != "" && got[host] != "="+name {
			t.Errorf("%s holds %q of %q", host, got[host], slices.Sorted(maps.Keys(got)))
		}
	}
	if !slices.Contains(slices.Collect(maps.Values(got)), "=a:b") {
		t.Errorf("a:b is nowhere: %q", got)
	}
	if n := strings.Count(s.warn.String(), "is called"); n != 7 {
		t.Errorf("%d names are told: %s", n, &s.warn)
	}
	s.again(dir)
	s.m.refuses = fat
	s.gives = func(it Item) error { t.Errorf("%s is fetched again", it.Name); return nil }
	s.mustSync()
	s.gives = nil
	for name := range maps.Clone(s.items) {
		s.drop(name)
	}
	s.mustSync()
	s.holds(dir, map[string]string{})
}

// On a file system that takes names which differ in case for one, the second gets a mark.
func TestMirrorCaseClash(t *testing.T) {
	dir := t.TempDir()
	s := newSource(t)
	s.open(dir)
	if s.m.folds {
		t.Error("the file system of the tests is taken for one without case")
	}
	s.m.folds = true
	names := []string{"Makefile", "makefile", "MAKEFILE", "Sub/a", "sub/a", "sub/A", "é", "e\u0301"}
	for _, name := range names {
		s.put(name, name)
	}
	s.mustSync()
	folded, values := map[string]bool{}, []string{}
	for host, what := range tree(t, dir) {
		if at := s.m.place("", host).name; folded[at] {
			t.Errorf("two are called %s", at)
		} else {
			folded[at] = true
		}
		if what != "dir" {
			values = append(values, what[1:])
		}
	}
	slices.Sort(values)
	slices.Sort(names)
	if !slices.Equal(values, names) {
		t.Errorf("%q, told %s", tree(t, dir), &s.warn)
	}
	if n := strings.Count(s.warn.String(), "is called"); n != 5 {
		t.Errorf("%d names are told: %s", n, &s.warn)
	}
	s.drop("MAKEFILE")
	s.put("makefile", "changed")
	s.mustSync()
	if got := tree(t, dir); !slices.Contains(slices.Collect(maps.Values(got)), "=changed") || slices.Contains(slices.Collect(maps.Values(got)), "=MAKEFILE") {
		t.Errorf("%q", got)
	}
}

// After any sequence of changes and restarts the folder is as the disk is.
func TestMirrorAgainstAModel(t *testing.T) {
	dir := t.TempDir()
	s := newSource(t)
	s.open(dir)
	rng := rand.New(rand.NewPCG(7, 7))
	names := []string{"a", "b", "a/x", "a/y/z", "b/x", "c", "c/l"}
	for i := range 400 {
		name := names[rng.IntN(len(names))]
		switch rng.IntN(4) {
		case 0:
			s.drop(name)
		case 1:
			s.drop(name)
			s.clear(path.Dir(name))
			s.link(name, "c")
		default:
			s.drop(name)
			s.clear(path.Dir(name))
			s.put(name, fmt.Sprint(i))
		}
		if rng.IntN(3) == 0 {
			continue
		}
		if rng.IntN(10) == 0 {
			s.again(dir)
		}
		s.mustSync()
		want := map[string]string{}
		for n, it := range s.items {
			want[n] = map[Kind]string{KindDir: "dir", KindFile: "=" + s.data[n], KindLink: "-> " + it.Target}[it.Kind]
			if _, ok := s.m.within(it); it.Kind == KindLink && !ok {
				delete(want, n)
			}
		}
		if got := tree(t, dir); !maps.Equal(got, want) {
			t.Fatalf("step %d, %s: %q, want %q", i, name, got, want)
		}
	}
}

// clear makes way for a folder.
func (s *source) clear(dir string) {
	for ; dir != "."; dir = path.Dir(dir) {
		if it := s.items[dir]; it != nil && it.Kind != KindDir {
			delete(s.items, dir)
		}
		s.add(Item{Name: dir, Kind: KindDir, Mode: 0o755})
	}
}
