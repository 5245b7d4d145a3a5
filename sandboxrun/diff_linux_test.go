package sandboxrun

import (
	"bytes"
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

// TestDiff has a case for each thing that a script can do to its workspace.
// Lines of want: kind, path, mode, size and content.
func TestDiff(t *testing.T) {
	lower := map[string]string{
		"a":        "alpha\n",
		"b":        "beta\n",
		"dir/x":    "x",
		"dir/y":    "y",
		"dir/in/z": "z",
		"empty/":   "",
		"link":     "->a",
	}
	for _, tc := range []struct {
		name, script string
		want         []string
		skipped      map[string]int
	}{
		{"nothing", `cat a; ls dir; stat dir/x >/dev/null`, nil, nil},
		{"create", `printf hi >new`, []string{`file new 644 2 "hi"`}, nil},
		{"create empty", `:>new`, []string{`file new 644 0 ""`}, nil},
		{"create below", `mkdir -p p/q; printf 1 >p/q/r`, []string{`dir p 755`, `dir p/q 755`, `file p/q/r 644 1 "1"`}, nil},
		{"create in existing directory", `printf 1 >dir/new`, []string{`dir dir 755`, `file dir/new 644 1 "1"`}, nil},
		{"overwrite", `printf new >a`, []string{`file a 644 3 "new"`}, nil},
		{"append", `printf more >>a`, []string{`file a 644 10 "alpha\nmore"`}, nil},
		{"truncate", `truncate -s 2 a`, []string{`file a 644 2 "al"`}, nil},
		{"chmod", `chmod 755 a`, []string{`file a 755 6 "alpha\n"`}, nil},
		{"chmod of a directory", `chmod 700 dir`, []string{`dir dir 700`}, nil},
		{"same bytes", `printf 'alpha\n' >a`, []string{`file a 644 6 "alpha\n"`}, nil},
		{"mtime", `touch -d @1000 a`, []string{`file a 644 6 "alpha\n"`}, nil},
		{"delete", `rm a`, []string{`removed a`}, nil},
		{"delete a link", `rm link`, []string{`removed link`}, nil},
		{"delete and create", `rm a; printf n >a`, []string{`file a 644 1 "n"`}, nil},
		{"create and delete", `:>n; rm n; mkdir m; rmdir m`, nil, nil},
		{"delete in a directory", `rm dir/x`, []string{`dir dir 755`, `removed dir/x`}, nil},
		{"delete a directory", `rm -r dir`, []string{`removed dir`}, nil},
		{"delete an empty directory", `rmdir empty`, []string{`removed empty`}, nil},
		{"delete all", `rm -r ./*`, []string{`removed a`, `removed b`, `removed dir`, `removed empty`, `removed link`}, nil},
		{"directory becomes file", `rm -r dir; printf f >dir`, []string{`file dir 644 1 "f"`}, nil},
		{"directory becomes link", `rm -r dir; ln -s b dir`, []string{`symlink dir -> b`}, nil},
		{"file becomes directory", `rm a; mkdir a; printf f >a/f`, []string{`opaque_dir a 755`, `file a/f 644 1 "f"`}, nil},
		{"link becomes directory", `rm link; mkdir link`, []string{`opaque_dir link 755`}, nil},
		{"file to directory and back", `rm a; mkdir a; rmdir a; printf f >a`, []string{`file a 644 1 "f"`}, nil},
		{"opaque directory", `rm -r dir; mkdir dir; printf n >dir/n`, []string{`opaque_dir dir 755`, `file dir/n 644 1 "n"`}, nil},
		{"opaque directory inside", `rm -r dir/in; mkdir dir/in`, []string{`dir dir 755`, `opaque_dir dir/in 755`}, nil},
		{"opaque directory with an old name", `rm -r dir; mkdir -p dir/in; printf n >dir/in/z`, []string{`opaque_dir dir 755`, `dir dir/in 755`, `file dir/in/z 644 1 "n"`}, nil},
		{"delete below an opaque directory", `rm -r dir; mkdir dir; :>dir/x; rm dir/x`, []string{`opaque_dir dir 755`}, nil},
		{"symlink relative", `ln -s dir/x s`, []string{`symlink s -> dir/x`}, nil},
		{"symlink absolute", `ln -s /etc/passwd s`, []string{`symlink s -> /etc/passwd`}, nil},
		{"symlink dangling", `ln -s no/where s`, []string{`symlink s -> no/where`}, nil},
		{"symlink to itself", `ln -s s s`, []string{`symlink s -> s`}, nil},
		{"symlink retargeted", `ln -sfn b link`, []string{`symlink link -> b`}, nil},
		{"hard link of a new file", `printf h >h1; ln h1 h2`, []string{`file h1 644 1 "h"`, `file h2 644 1 "h"`}, nil},
		{"hard link of an old file", `ln b h2`, []string{`file b 644 5 "beta\n"`, `file h2 644 5 "beta\n"`}, nil},
		{"fifo", `mkfifo p; :>n`, []string{`file n 644 0 ""`}, map[string]int{"fifo": 1}},
		{"fifo in place of a file", `rm a; mkfifo a`, []string{`removed a`}, map[string]int{"fifo": 1}},
		{"fifo in place of a directory", `rm -r dir; mkfifo dir`, []string{`removed dir`}, map[string]int{"fifo": 1}},
		{"setuid", `printf s >s; chmod 6755 s || chmod 755 s`, []string{`file s 755 1 "s"`}, nil},
		{"sticky directory", `mkdir t; chmod 1777 t`, []string{`dir t 777`}, nil},
		{"mode 000 file", `printf s >s; chmod 0 s`, []string{`file s 0 1 "s"`}, nil},
		{"mode 000 directory", `mkdir m; printf s >m/s; chmod 0 m`, []string{`dir m 0`, `file m/s 644 1 "s"`}, nil},
		{"old file made mode 000", `chmod 0 a dir`, []string{`file a 0 6 "alpha\n"`, `dir dir 0`}, nil},
		{"rename a file", `mv a c`, []string{`removed a`, `file c 644 6 "alpha\n"`}, nil},
		{"rename over a file", `mv a b`, []string{`removed a`, `file b 644 6 "alpha\n"`}, nil},
		{"rename a new directory", `mkdir n; :>n/f; mv n m`, []string{`dir m 755`, `file m/f 644 0 ""`}, nil},
		{"move an old directory", `mv dir d2`, []string{`dir d2 755`, `dir d2/in 755`, `file d2/in/z 644 1 "z"`, `file d2/x 644 1 "x"`, `file d2/y 644 1 "y"`, `removed dir`}, nil},
		{"swap", `mv a t; mv b a; mv t b`, []string{`file a 644 5 "beta\n"`, `file b 644 6 "alpha\n"`}, nil},
		{"replace by rename", `printf v2 >a.tmp; mv a.tmp a`, []string{`file a 644 2 "v2"`}, nil},
		{"bytes in names", `:>$'\xff\x01\n'; :>'a b'; :>'\'; :>$'tab\t'; :>'*'`, []string{
			`file * 644 0 ""`, `file \ 644 0 ""`, `file a b 644 0 ""`, "file tab\t 644 0 \"\"", "file \xff\x01\n 644 0 \"\""}, nil},
		{"names like dots", `:>...; :>..a; mkdir .h; :>.h/f`, []string{`file ... 644 0 ""`, `file ..a 644 0 ""`, `dir .h 755`, `file .h/f 644 0 ""`}, nil},
		{"long names", `:>$(printf 'n%.0s' {1..255})`, []string{`file ` + strings.Repeat("n", 255) + ` 644 0 ""`}, nil},
		{"a whiteout cannot be faked", `mknod w c 0 0 && exit 9; rm b; mknod b c 0 0 && exit 9; printf n >b`, []string{`file b 644 1 "n"`}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRunner(t)
			run := bash("set -e; " + tc.script)
			run.Lower = tree(t, lower)
			res, c := mustExit(t, r, run)
			if !slices.Equal(c.lines, tc.want) {
				t.Errorf("changes\n  %s\nwant\n  %s", strings.Join(c.lines, "\n  "), strings.Join(tc.want, "\n  "))
			}
			if fmt.Sprint(res.Skipped) != fmt.Sprint(tc.skipped) {
				t.Errorf("skipped %v, want %v", res.Skipped, tc.skipped)
			}
			if got := snapshot(t, run.Lower); got != snapshot(t, tree(t, lower)) {
				t.Errorf("the lower directory was changed:\n%s", got)
			}
		})
	}
}

func TestDiffOfSockets(t *testing.T) {
	r := newRunner(t)
	run := Run{Lower: tree(t, map[string]string{"a": "1"}), Argv: []string{needPython(t), "-c",
		"import os,stat; os.unlink('a'); os.mknod('a', stat.S_IFSOCK|0o644); os.mknod('b', stat.S_IFSOCK|0o644)"}}
	res, c := mustExit(t, r, run)
	if want := []string{"removed a"}; !slices.Equal(c.lines, want) || res.Skipped["socket"] != 2 {
		t.Errorf("changes %q, skipped %v", c.lines, res.Skipped)
	}
}

func TestDiffOfTimes(t *testing.T) {
	r := newRunner(t)
	run := bash(`touch -d @1000000000.123456789 a; touch -d @-5 b; mkdir d; touch -d @7 d; ln -s x s; touch -h -d @9 s`)
	_, c := mustExit(t, r, run)
	want := map[string]time.Time{"a": time.Unix(1000000000, 123456789), "b": time.Unix(-5, 0), "d": time.Unix(7, 0), "s": time.Unix(9, 0)}
	for _, ch := range c.list {
		if !ch.ModTime.Equal(want[string(ch.Path)]) {
			t.Errorf("%s has time %v, want %v", ch.Path, ch.ModTime, want[string(ch.Path)])
		}
	}
	if len(c.list) != len(want) {
		t.Errorf("changes %q", c.lines)
	}
}

// TestDiffOfSparseFiles: holes arrive as zeros, and cost nothing to skip.
func TestDiffOfSparseFiles(t *testing.T) {
	r := newRunner(t)
	run := bash(`truncate -s 100G huge
		printf head >f; truncate -s 300000 f; printf tail >>f
		truncate -s 5000 hole`)
	sum := map[string]int64{}
	_, err := r.Run(t.Context(), run, func(c Change) error {
		if string(c.Path) == "huge" {
			sum["huge"] = c.Size
			return nil // not read
		}
		b, err := io.ReadAll(c.Body)
		sum[string(c.Path)] = int64(len(b))
		if string(c.Path) == "f" && (!bytes.HasPrefix(b, []byte("head\x00")) || !bytes.HasSuffix(b, []byte("\x00tail"))) {
			t.Errorf("content of f: %q … %q", b[:8], b[len(b)-8:])
		}
		if string(c.Path) == "hole" && !bytes.Equal(b, make([]byte, 5000)) {
			t.Errorf("a hole is not zeros")
		}
		return err
	})
	must(t, err)
	if want := map[string]int64{"huge": 100 << 30, "f": 300004, "hole": 5000}; fmt.Sprint(sum) != fmt.Sprint(want) {
		t.Errorf("sizes %v, want %v", sum, want)
	}
}

// TestDiffOfManyFiles: order, number and content of 5,000 files; a body that
// is read in part, or not at all, does not disturb the next change.
func TestDiffOfManyFiles(t *testing.T) {
	r := newRunner(t)
	run := bash(`for d in {0..49}; do mkdir d$d; for f in {0..99}; do echo "content $d $f" >d$d/f$f; done; done`)
	var files, read int
	var last []byte
	_, err := r.Run(t.Context(), run, func(c Change) error {
		if last != nil && comparePaths(last, c.Path) >= 0 {
			return fmt.Errorf("%s after %s", c.Path, last)
		}
		last = c.Path
		if c.Kind != File {
			return nil
		}
		files++
		switch files % 3 {
		case 0:
			_, err := io.ReadFull(c.Body, make([]byte, 4))
			return err
		case 1:
			var d, f int
			if n, err := fmt.Fscanf(c.Body, "content %d %d\n", &d, &f); n != 2 || string(c.Path) != fmt.Sprintf("d%d/f%d", d, f) {
				return fmt.Errorf("%s has the content of d%d/f%d: %w", c.Path, d, f, err)
			}
			read++
		}
		return nil
	})
	must(t, err)
	if files != 5000 || read < 1600 {
		t.Errorf("%d files, %d read", files, read)
	}
}

func TestDiffOfLargeFile(t *testing.T) {
	r := newRunner(t)
	run := bash(`head -c 50000001 /dev/zero | tr '\0' x >big`)
	n := int64(0)
	_, err := r.Run(t.Context(), run, func(c Change) (err error) {
		n, err = io.Copy(io.Discard, c.Body)
		return err
	})
	must(t, err)
	if n != 50000001 {
		t.Errorf("%d bytes", n)
	}
}

// TestDiffTooDeep: what is too deep to be reported is an error, never left out.
func TestDiffTooDeep(t *testing.T) {
	r := newRunner(t)
	run := bash(`for i in {1..300}; do mkdir d; cd d; done; :>f`)
	var c changes
	_, err := r.Run(t.Context(), run, c.add)
	if !errors.Is(err, ErrTooDeep) || len(c.list) != maxTreeDepth+1 {
		t.Errorf("error %v after %d changes", err, len(c.list))
	}
	run = bash(`for i in {1..256}; do mkdir d; cd d; done; :>f`)
	if _, c := mustExit(t, r, run); len(c.list) != 257 {
		t.Errorf("%d changes, want 257", len(c.list))
	}
}

func TestErrorOfCallback(t *testing.T) {
	r := newRunner(t)
	boom := errors.New("boom")
	calls := 0
	_, err := r.Run(t.Context(), bash(`:>a; :>b; :>c`), func(Change) error {
		if calls++; calls == 2 {
			return boom
		}
		return nil
	})
	if !errors.Is(err, boom) || calls != 2 {
		t.Errorf("error %v after %d calls", err, calls)
	}
}

// TestPanicOfCallback: it goes through, and leaves nothing behind.
func TestPanicOfCallback(t *testing.T) {
	r := newRunner(t)
	mustExit(t, r, bash(`true`))
	before := footprintOf(t, r)
	func() {
		defer func() {
			if recover() != "boom" {
				t.Error("no panic")
			}
		}()
		_, _ = r.Run(t.Context(), bash(`head -c 10000000 /dev/zero >a; :>b`), func(Change) error { panic("boom") })
	}()
	sameFootprint(t, r, before)
}

// TestChangesAfterFailure: they are reported, so that it can be said what was dropped.
func TestChangesAfterFailure(t *testing.T) {
	r := newRunner(t)
	for _, tc := range []struct {
		name, script string
		timeout      time.Duration
		want         Outcome
	}{
		{"exit 1", `:>f; exit 1`, 0, Exited},
		{"signal", `:>f; kill -SEGV $$`, 0, Signaled},
		{"timeout", `:>f; sleep 60`, 300 * time.Millisecond, TimedOut},
		{"output", `:>f; yes`, 0, OutputLimit},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run := bash(tc.script)
			run.Limits.Timeout = tc.timeout
			res, c := mustRun(t, r, run)
			if res.Outcome != tc.want || !slices.Equal(c.lines, []string{`file f 644 0 ""`}) {
				t.Errorf("outcome %s, changes %q", res.Outcome, c.lines)
			}
		})
	}
}

// snapshot describes a directory: paths, kinds, modes and contents.
func snapshot(t testing.TB, root string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		fmt.Fprintf(&b, "%q %s", rel, info.Mode())
		switch {
		case info.Mode()&os.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			fmt.Fprintf(&b, " %q", target)
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %.100q", data)
		}
		b.WriteByte('\n')
		return nil
	}))
	return b.String()
}

// TestDiffOfLinkedLower: files of a lower directory that are links of each
// other, or of files in another directory, are written one by one.
func TestDiffOfLinkedLower(t *testing.T) {
	r := newRunner(t)
	lower, other := tree(t, map[string]string{"a": "old"}), t.TempDir()
	must(t, os.Link(filepath.Join(lower, "a"), filepath.Join(lower, "b")))
	must(t, os.Link(filepath.Join(lower, "a"), filepath.Join(other, "a")))
	run := bash(`cat b >/dev/null; echo more >>a; cat b`)
	run.Lower = lower
	res, c := mustExit(t, r, run)
	if want := []string{`file a 644 8 "oldmore\n"`}; !slices.Equal(c.lines, want) || string(res.Stdout.Text) != "old" {
		t.Errorf("changes %q, the other link holds %q", c.lines, res.Stdout.Text)
	}
	if b, err := os.ReadFile(filepath.Join(other, "a")); err != nil || string(b) != "old" {
		t.Errorf("a link outside holds %q, %v", b, err)
	}
}

// TestScanOfTrouble: what cannot be looked at below is an error. Taken for
// absent it would be left out, or deleted.
func TestScanOfTrouble(t *testing.T) {
	const closed = 1 << 20 // no such descriptor
	dir, err := unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(dir)
	if _, err := exists(closed, "x"); err == nil {
		t.Error("exists: no error")
	}
	if _, _, err := openBelow(dir, closed, "x"); err == nil {
		t.Error("openBelow: no error of the lower directory")
	}
	if _, err := isOpaque(closed); err == nil {
		t.Error("isOpaque: no error")
	}
	if _, _, err := openBelow(closed, dir, "."); err == nil {
		t.Error("openBelow: no error of the upper directory")
	}
	if fd, kind, err := openBelow(dir, dir, "absent"); fd != -1 || kind != Dir || err != nil {
		t.Errorf("absent: %d, %s, %v", fd, kind, err)
	}
}
