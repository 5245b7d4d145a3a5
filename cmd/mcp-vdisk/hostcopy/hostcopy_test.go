package hostcopy

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/hostname"
)

// secret is what lies outside of a copy, and must be in none.
const secret = "the secret of somebody else"

// outside makes a directory with a secret in it.
func outside(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(dir+"/file", []byte(secret), 0o600), os.Mkdir(dir+"/dir", 0o700), os.WriteFile(dir+"/dir/file", []byte(secret), 0o600)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// untouched checks that outside is as it was made.
func untouched(t testing.TB, dir string) {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, p); err == nil {
			names = append(names, rel)
		}
		return err
	})
	for _, f := range []string{"/file", "/dir/file"} {
		if data, err := os.ReadFile(dir + f); err != nil || string(data) != secret {
			t.Errorf("%s is %q, %v", f, data, err)
		}
	}
	if err != nil || fmt.Sprint(names) != "[. dir dir/file file]" {
		t.Errorf("outside there are %q, %v", names, err)
	}
}

// packed is what Pack makes of sources: a line for each entry.
func packed(t testing.TB, sources ...string) (lines []string, warned string, err error) {
	t.Helper()
	var names []string
	for _, s := range sources {
		names = append(names, SourceName(s))
	}
	var stream, warn bytes.Buffer
	err = Pack(&stream, sources, names, &warn)
	r := tar.NewReader(&stream)
	for {
		h, e := r.Next()
		if e != nil {
			return lines, warn.String(), err
		}
		data, _ := io.ReadAll(r)
		line := fmt.Sprintf("%c %s %04o %s%s", h.Typeflag, h.Name, h.Mode, h.Linkname, data)
		lines = append(lines, strings.TrimSpace(line))
	}
}

func TestPackLinks(t *testing.T) {
	t.Parallel()
	away := outside(t)
	for name, c := range map[string]struct{ target, in string }{
		"dangling":       {"nowhere", ""},
		"to a file":      {away + "/file", ""},
		"to a directory": {away + "/dir", ""},
		"relative out":   {"../../../../../../../../../.." + away + "/file", ""},
		"a loop":         {"link", ""},
		"a chain":        {"second", ""},
		"up":             {"..", ""},
	} {
		dir := t.TempDir() + "/top"
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Symlink(c.target, dir+"/link"), os.Symlink("/", dir+"/second")); err != nil {
			t.Fatal(err)
		}
		lines, _, err := packed(t, dir)
		if want := "[5 top/ 0755 2 top/link 0777 " + c.target + " 2 top/second 0777 /]"; err != nil || fmt.Sprint(lines) != want {
			t.Errorf("%s: %q, not %q: %v", name, lines, want, err)
		}
	}
	// One that the person named is followed.
	link := t.TempDir() + "/link"
	if err := os.Symlink(away+"/dir", link); err != nil {
		t.Fatal(err)
	}
	if lines, _, err := packed(t, link); err != nil || fmt.Sprint(lines) != "[5 link/ 0700 0 link/file 0600 "+secret+"]" {
		t.Errorf("%q, %v", lines, err)
	}
	for name, to := range map[string]string{"dangling": "nowhere", "a loop": "named"} {
		dir := t.TempDir()
		if err := os.Symlink(to, dir+"/named"); err != nil {
			t.Fatal(err)
		}
		var said *exit.Failure
		if _, _, err := packed(t, dir+"/named"); !errors.As(err, &said) {
			t.Errorf("%s, named: %v", name, err)
		}
	}
}

// What is no file is left out and counted; a mode loses what is beyond permissions.
func TestPackOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/d"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		if err := syscall.Mkfifo(fmt.Sprintf("%s/fifo%02d\n", dir, i), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(dir+"/setuid", []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir+"/setuid", 0o755|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	lines, warned, err := packed(t, dir)
	if fmt.Sprint(lines) != "[5 d/ 0755 0 d/setuid 0755 x]" || err != nil {
		t.Errorf("%q, %v", lines, err)
	}
	if strings.Count(warned, "left out \"d/fifo") != 5 || !strings.Contains(warned, "7 more were left out") || strings.Count(warned, "\n") != 6 {
		t.Errorf("warned: %s", warned)
	}
	for _, s := range []string{dir + "/fifo00\n", "/dev/zero"} {
		var said *exit.Failure
		if _, _, err := packed(t, s); !errors.As(err, &said) || !strings.Contains(said.Text, "is not a regular file") {
			t.Errorf("%s: %v", s, err)
		}
	}
	for source, name := range map[string]string{".": ".", "..": ".", "a/..": ".", "a/.": ".", "a/": "a", "/": ".", "./-": "-", "a/b": "b"} {
		if got := SourceName(source); got != name {
			t.Errorf("%q is called %q, not %q", source, got, name)
		}
	}
}

// rounds of a race.
func raceFor(t testing.TB) time.Duration {
	if os.Getenv("MCP_VDISK_SOAK") == "1" {
		return 30 * time.Second
	}
	return 1500 * time.Millisecond
}

// swapping puts something else in the place of a path, and back, until done is closed.
// It returns how often.
func swapping(t testing.TB, path string, other func(path string) error, done chan struct{}) func() int {
	aside := path + ".aside"
	n := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := os.Rename(path, aside); err != nil {
				continue // it is made anew
			}
			if other(path) == nil {
				os.Remove(path)
			}
			if os.Rename(aside, path) == nil {
				n++
			} else {
				os.RemoveAll(aside)
			}
		}
	})
	return func() int { wg.Wait(); return n }
}

// While folders and files are swapped for links, pipes and each other, nothing from
// outside gets into the stream, and nothing waits.
func TestPackSwapRace(t *testing.T) {
	t.Parallel()
	away := outside(t)
	top := t.TempDir() + "/top"
	if err := errors.Join(os.MkdirAll(top+"/a/b/c", 0o755), os.WriteFile(top+"/a/b/file", []byte("ours"), 0o644), os.WriteFile(top+"/a/b/c/file", []byte("ours"), 0o644), os.WriteFile(top+"/a/b/c/turns", []byte("ours"), 0o644)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	link := func(to string) func(string) error { return func(p string) error { return os.Symlink(to, p) } }
	swaps := []func() int{
		swapping(t, top+"/a/b/file", link(away+"/file"), done),
		swapping(t, top+"/a/b/c", link(away+"/dir"), done),
		swapping(t, top+"/a", link(away), done),
		swapping(t, top+"/a/b/c/turns", func(p string) error { return syscall.Mkfifo(p, 0o600) }, done),
	}
	packs, whole, failed := 0, 0, 0
	for end := time.Now().Add(raceFor(t)); time.Now().Before(end); packs++ {
		lines, _, err := packed(t, top)
		if strings.Contains(fmt.Sprint(lines), secret) {
			t.Fatalf("the secret was read: %q", lines)
		}
		switch {
		case err != nil:
			failed++
		case strings.Count(fmt.Sprint(lines), "ours") >= 2:
			whole++
		}
	}
	close(done)
	total := 0
	for _, n := range swaps {
		total += n()
	}
	t.Logf("%d packs during %d swaps: %d whole, %d refused", packs, total, whole, failed)
	if total < 200 || packs < 20 {
		t.Errorf("%d packs during %d swaps are too few", packs, total)
	}
	untouched(t, away)
}

// streamOf makes a stream: names that end in "/" are folders, "a -> b" are links, "a = b"
// are files.
func streamOf(t testing.TB, entries ...string) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e, Mode: 0o6755, ModTime: time.Unix(1e9, 123456789)}
		var body string
		if name, to, ok := strings.Cut(e, " -> "); ok {
			h.Name, h.Linkname, h.Typeflag = name, to, tar.TypeSymlink
		} else if name, data, ok := strings.Cut(e, " = "); ok {
			h.Name, body, h.Typeflag, h.Size = name, data, tar.TypeReg, int64(len(data))
		} else {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(Header(h)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// Of the links of a stream those are made that cannot lead out, and no others.
func TestUnpackLinks(t *testing.T) {
	t.Parallel()
	for target, made := range map[string]bool{
		"x": true, "sub/x": true, "nowhere": true, "../top/x": true, "../sub": true, "./x": true, "..": true, ".": true, "../.": true,
		"../..": false, "../../x": false, "/etc/passwd": false, "/workspace/top/x": false, "../other": true, "../../other": false,
		"up/../../x": false, "sub/../../../x": false, "sub/../x": false, "": false,
	} {
		dir := t.TempDir()
		var warn bytes.Buffer
		u := &Unpacker{Dest: dir, Warn: &warn}
		entries := []string{"top/", "top/in/"}
		if target != "" {
			entries = append(entries, "top/in/link -> "+target)
		}
		if err := u.Run(streamOf(t, append(entries, "top/in/up -> ..")...)); err != nil {
			t.Errorf("%q: %v", target, err)
			continue
		}
		to, err := os.Readlink(dir + "/top/in/link")
		if made != (err == nil) || made && to != target || target != "" && made == strings.Contains(warn.String(), "left out the link") {
			t.Errorf("%q: made is %q, %v, warned: %s", target, to, err, &warn)
		}
	}
	if staysIn("top", "top", "") || staysIn("link", "", "x") || staysIn("link", "", "link/../x") || !staysIn("link", "", "link") {
		t.Error("links at the top")
	}
}

func TestUnpackRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		made  func(dir string) error // in the way
		force bool
		says  string // "": it is overwritten
	}{
		"a file":                 {func(d string) error { return os.WriteFile(d+"/top/f", []byte("old"), 0o644) }, false, "top/f is there already"},
		"a file, by force":       {func(d string) error { return os.WriteFile(d+"/top/f", []byte("old"), 0o644) }, true, ""},
		"a link":                 {func(d string) error { return os.Symlink(d+"/out", d+"/top/f") }, false, "top/f is there already"},
		"a link, by force":       {func(d string) error { return os.Symlink(d+"/out", d+"/top/f") }, true, ""},
		"a folder, by force":     {func(d string) error { return os.Mkdir(d+"/top/f", 0o755) }, true, "it is not replaced"},
		"a pipe, by force":       {func(d string) error { return syscall.Mkfifo(d+"/top/f", 0o600) }, true, "it is not replaced"},
		"a file for a folder":    {func(d string) error { return os.WriteFile(d+"/top/sub", []byte("old"), 0o644) }, true, "top/sub is there already and is no folder"},
		"a link for a folder":    {func(d string) error { return os.Symlink("/tmp", d+"/top/sub") }, true, "top/sub is there already and is no folder"},
		"a link within, folder":  {func(d string) error { return os.Symlink(".", d+"/top/sub") }, true, "top/sub is there already and is no folder"},
		"a link for the top":     {func(d string) error { return errors.Join(os.Remove(d+"/top"), os.Symlink(d, d+"/top")) }, true, "top is there already and is no folder"},
		"a folder for a link":    {func(d string) error { return os.Mkdir(d+"/top/l", 0o755) }, true, "it is not replaced"},
		"a file for a link":      {func(d string) error { return os.WriteFile(d+"/top/l", nil, 0o755) }, false, "top/l is there already"},
		"a file for a link, too": {func(d string) error { return os.WriteFile(d+"/top/l", nil, 0o755) }, true, ""},
	} {
		for _, planned := range []bool{true, false} {
			dir := t.TempDir()
			if err := errors.Join(os.Mkdir(dir+"/top", 0o755), c.made(dir)); err != nil {
				t.Fatal(err)
			}
			before := listing(t, dir)
			u := &Unpacker{Dest: dir, Force: c.force, Warn: io.Discard}
			err := error(nil)
			if planned {
				err = u.Plan(planOf(t, "top/", "top/f", "top/l@", "top/sub/", "top/sub/x"))
				if now := listing(t, dir); now != before {
					t.Errorf("%s: the plan wrote: %s", name, now)
				}
			}
			if err == nil {
				err = u.Run(streamOf(t, "top/", "top/f = new", "top/l -> f", "top/sub/", "top/sub/x = x"))
			}
			var said *exit.Failure
			switch {
			case c.says == "" && err != nil:
				t.Errorf("%s: %v", name, err)
			case c.says != "" && (!errors.As(err, &said) || said.Code != exit.Refused || !strings.Contains(said.Text, c.says) || planned != strings.Contains(said.Text, "nothing was copied")):
				t.Errorf("%s, planned %t: %v", name, planned, err)
			}
			if _, err := os.Lstat(dir + "/out"); err == nil {
				t.Errorf("%s: a link was followed", name)
			}
			if now := listing(t, dir); planned && c.says != "" && now != before {
				t.Errorf("%s: refused, and changed\n%s\nto\n%s", name, before, now)
			} else if strings.Contains(now, ".part") {
				t.Errorf("%s: left behind: %s", name, now)
			}
		}
	}
}

func planOf(t testing.TB, entries ...string) *bufio.Reader {
	t.Helper()
	var b bytes.Buffer
	for _, e := range append(entries, "") {
		p := Planned{Kind: PlannedFile, Name: e, Size: 1}
		if name, ok := strings.CutSuffix(e, "/"); ok {
			p = Planned{Kind: PlannedDir, Name: name}
		} else if name, ok := strings.CutSuffix(e, "@"); ok {
			p = Planned{Kind: PlannedLink, Name: name}
		} else if e == "" {
			p = Planned{}
		}
		if err := WritePlanned(&b, p); err != nil {
			t.Fatal(err)
		}
	}
	return bufio.NewReader(&b)
}

// listing is a tree in words.
func listing(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %s", rel, info.Mode())
		if info.Mode().IsRegular() {
			data, _ := os.ReadFile(p)
			fmt.Fprintf(&b, " %q", data)
		}
		b.WriteString("\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A stream that is not in order, or climbs, writes nothing outside and says so.
func TestUnpackHostileStreams(t *testing.T) {
	t.Parallel()
	for _, entries := range [][]string{
		{"top/", "../x = y"}, {"top/", "top/../../x = y"}, {"top/", "top/.. = y"}, {"top/", "top/. = y"}, {"top/", "/etc/x = y"},
		{"top/x = y"}, {"top/", "top/no/x = y"}, {"top/", "top/a/", "top/b/", "top/a/x = y"}, {"top/", "top//x = y"}, {"..", "../x = y"}, {" = y"},
		{"top/", "top/l -> .", "top/l/", "top/l/x = y"}, {"top/", "top/l -> .", "top/l/x = y"},
	} {
		parent := t.TempDir()
		dir := parent + "/dest"
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		u := &Unpacker{Dest: dir, Warn: io.Discard}
		if err := u.Run(streamOf(t, entries...)); err == nil {
			t.Errorf("%q is unpacked", entries)
		}
		if list, err := os.ReadDir(parent); err != nil || len(list) != 1 {
			t.Errorf("%q: outside there are %v, %v", entries, list, err)
		}
		if now := listing(t, dir); strings.Contains(now, `"y"`) {
			t.Errorf("%q: written: %s", entries, now)
		}
	}
	for name, plan := range map[string]string{
		"empty": "", "cut": "f\x01\x05na", "kind": "x", "long": "f\x01\xff\xff\xff\x7f", "size": "f\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01a", "no name": "d\x00\x00",
	} {
		u := &Unpacker{Dest: t.TempDir(), Warn: io.Discard}
		if err := u.Plan(bufio.NewReader(strings.NewReader(plan))); err == nil {
			t.Errorf("a plan that is wrong in %s is taken", name)
		}
	}
}

// While folders of the destination are swapped for links, nothing is written outside.
func TestUnpackSwapRace(t *testing.T) {
	t.Parallel()
	away := outside(t)
	dest := t.TempDir() + "/dest"
	if err := os.MkdirAll(dest+"/top/a/b", 0o755); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	link := func(to string) func(string) error { return func(p string) error { return os.Symlink(to, p) } }
	swaps := []func() int{
		swapping(t, dest+"/top/a/b", link(away+"/dir"), done),
		swapping(t, dest+"/top/a", link(away), done),
		swapping(t, dest+"/top/a/b/other", link(away+"/file"), done),
	}
	runs, whole := 0, 0
	stream := streamOf(t, "top/", "top/a/", "top/a/file = new", "top/a/b/", "top/a/b/file = new", "top/a/b/new = new", "top/a/b/other = new", "top/a/b/l -> file").Bytes()
	for end := time.Now().Add(raceFor(t)); time.Now().Before(end); runs++ {
		u := &Unpacker{Dest: dest, Force: true, Warn: io.Discard}
		if u.Run(bytes.NewReader(stream)) == nil {
			whole++
		}
	}
	close(done)
	total := 0
	for _, n := range swaps {
		total += n()
	}
	t.Logf("%d copies during %d swaps, %d of them whole", runs, total, whole)
	if total < 200 || runs < 20 {
		t.Errorf("%d copies during %d swaps are too few", runs, total)
	}
	// The swaps themselves may go astray and leave links there.
	if now := listing(t, away); strings.Contains(now, `"new"`) || strings.Count(now, secret) != 2 {
		t.Errorf("outside there is\n%s", now)
	}
}

// A destination whose parents are replaced during the copy stays the one that was named.
func TestUnpackParentSwapped(t *testing.T) {
	t.Parallel()
	away := outside(t)
	parent := t.TempDir() + "/parent"
	if err := os.MkdirAll(parent+"/dest", 0o755); err != nil {
		t.Fatal(err)
	}
	swapped := false
	u := &Unpacker{Dest: parent + "/dest", Warn: io.Discard, Entry: func(name string) {
		if name != "top/b" {
			return
		}
		swapped = true
		if err := errors.Join(os.Rename(parent, parent+".old"), os.Symlink(away, parent), os.Mkdir(away+"/dest", 0o755)); err != nil {
			t.Error(err)
		}
	}}
	if err := u.Run(streamOf(t, "top/", "top/a = new", "top/b = new", "top/sub/", "top/sub/c = new")); err != nil || !swapped {
		t.Errorf("swapped %t: %v", swapped, err)
	}
	if data, err := os.ReadFile(parent + ".old/dest/top/sub/c"); err != nil || string(data) != "new" {
		t.Errorf("%q, %v", data, err)
	}
	if err := os.Remove(away + "/dest"); err != nil {
		t.Error(err)
	}
	untouched(t, away)
}

func TestSparse(t *testing.T) {
	t.Parallel()
	block := bytes.Repeat([]byte("x"), 5000)
	for name, content := range map[string][]byte{
		"empty": {}, "zeros": make([]byte, 1<<20), "data": block, "data, hole": append(bytes.Clone(block), make([]byte, 1<<20)...),
		"hole, data": append(make([]byte, 1<<20+17), block...), "zeros within": append(append(bytes.Clone(block), make([]byte, 100)...), block...),
		"data, hole, data": append(append(bytes.Clone(block), make([]byte, 1<<20)...), block...),
	} {
		for _, step := range []int{1 << 30, 4096, 1000, 65536, 4097} {
			f, err := os.Create(t.TempDir() + "/f")
			if err != nil {
				t.Fatal(err)
			}
			s := &sparse{f: f}
			for rest := content; len(rest) > 0; {
				n := min(step, len(rest))
				if k, err := s.Write(rest[:n]); k != n || err != nil {
					t.Fatal(k, err)
				}
				rest = rest[n:]
			}
			if err := s.finish(); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(f.Name())
			info, _ := f.Stat()
			f.Close()
			if err != nil || !bytes.Equal(got, content) {
				t.Errorf("%s by %d: %d bytes, not the %d", name, step, len(got), len(content))
			}
			if used := info.Sys().(*syscall.Stat_t).Blocks * 512; len(content) > 1<<20 && used > 64<<10 {
				t.Errorf("%s by %d: takes %d bytes", name, step, used)
			}
		}
	}
}

func TestAutoRun(t *testing.T) {
	t.Parallel()
	for _, rel := range []string{".git/hooks/pre-commit", "a/.git/hooks/post-checkout", ".git/config", "a/b/.GIT/Config", ".git", ".envrc", "x/.vscode/tasks.json",
		".idea/workspace.xml", ".devcontainer/devcontainer.json", ".bashrc", "home/.zshrc", "x.desktop", "AUTORUN.INF", ".ssh/authorized_keys", ".npmrc", ".claude/settings.json", "a/.husky/pre-push"} {
		if why, ok := AutoRun(rel); !ok || why == "" {
			t.Errorf("%s: nothing is said", rel)
		}
	}
	for _, rel := range []string{"a/.git/modules/sub/hooks/x", ".gitconfig", ".config/git/config", ".config/fish/config.fish", ".zlogout"} {
		if _, ok := AutoRun(rel); !ok {
			t.Errorf("%s: nothing is said", rel)
		}
	}
	for _, rel := range []string{"", "Makefile", ".git/hooks/pre-commit.sample", ".git/HEAD", ".gitignore", "git/hooks/x", "config", "a.git", ".vscode", "desktop", "my.envrc", "profile", ".git/objects/aa/bb"} {
		if why, ok := AutoRun(rel); ok {
			t.Errorf("%s: %s", rel, why)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(streamOf(f, "top/", "top/a = x", "top/l -> ../top/a", "top/s/", "top/s/f = y").Bytes())
	f.Add(streamOf(f, "a = x", "b/", "b/../c = x").Bytes())
	f.Fuzz(func(t *testing.T, stream []byte) {
		parent := t.TempDir()
		if err := os.Mkdir(parent+"/dest", 0o755); err != nil {
			t.Fatal(err)
		}
		u := &Unpacker{Dest: parent + "/dest", Force: true, Warn: io.Discard}
		_ = u.Run(bytes.NewReader(stream)) // what is made of it lies in dest
		if list, err := os.ReadDir(parent); err != nil || len(list) != 1 {
			t.Errorf("outside there are %v, %v", list, err)
		}
		if err := os.RemoveAll(parent + "/dest"); err != nil {
			_ = filepath.WalkDir(parent, func(p string, d fs.DirEntry, _ error) error {
				if d != nil && d.IsDir() {
					return os.Chmod(p, 0o700)
				}
				return nil
			})
		}
	})
}

// Names that the host cannot hold are written otherwise, one by one and as they were
// planned, and the person is told.
func TestUnpackForeignNames(t *testing.T) {
	windows, folding := hostname.RulesOf("windows"), hostname.Rules{Folds: true}
	for _, c := range []struct {
		rules hostname.Rules
		names []string
		want  string
		told  int
	}{
		{hostname.Rules{}, []string{"t/a:b", "t/A:B"}, "t/A:B t/a:b", 0},
		{windows, []string{"t/a:b", "t/CON", "t/x.", "t/plain"}, "t/%43ON t/a%3Ab t/plain t/x%2E", 3},
		{folding, []string{"t/readme", "t/README", "t/d/", "t/D/", "t/D/f"}, "t/D%~ t/D%~/f t/README%~ t/d t/readme", 2},
	} {
		var tarred, plan, warned bytes.Buffer
		w := tar.NewWriter(&tarred)
		for _, name := range append([]string{"t/"}, c.names...) {
			h, kind := Header(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755}), byte(PlannedFile)
			if strings.HasSuffix(name, "/") {
				h.Typeflag, kind = tar.TypeDir, PlannedDir
			}
			err := errors.Join(w.WriteHeader(h), WritePlanned(&plan, Planned{Kind: kind, Name: strings.TrimSuffix(name, "/")}))
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), WritePlanned(&plan, Planned{})); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		u := &Unpacker{Dest: dir, Warn: &warned, rules: &c.rules}
		if err := errors.Join(u.Plan(bufio.NewReader(&plan)), u.Run(&tarred)); err != nil {
			t.Fatal(err)
		}
		var have []string
		filepath.WalkDir(dir+"/t", func(p string, _ fs.DirEntry, _ error) error {
			rel, _ := filepath.Rel(dir, p)
			have = append(have, regexp.MustCompile(`%~[0-9a-f]{16}`).ReplaceAllString(rel, "%~"))
			return nil
		})
		if got := strings.Join(have[1:], " "); got != c.want || strings.Count(warned.String(), "cannot hold its name") != c.told {
			t.Errorf("%q: %s\n%s", c.names, got, &warned)
		}
	}
}
