package python

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Verify finds each kind of difference, by its path, and nothing in what was made.
func TestVerify(t *testing.T) {
	shared, it, _ := system(t)
	lib := "prefix/lib/" + filepath.Base(needSystem(t))
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, dir string)
		want []Fault
	}{
		{"as it was made", func(*testing.T, string) {}, nil},
		{"asked anew", func(t *testing.T, dir string) { replace(t, filepath.Join(dir, factsName), "{}") }, nil},
		{"a file, without its bytecode", func(t *testing.T, dir string) {
			json := filepath.Join(dir, lib, "json")
			old, err := os.ReadFile(filepath.Join(json, "__init__.py"))
			must(t, err)
			replace(t, filepath.Join(json, "__init__.py"), string(old)+"evil = 1\n")
			must(t, os.RemoveAll(filepath.Join(json, "__pycache__")))
		}, []Fault{{lib + "/json/__init__.py", Changed}, {lib + "/json/__pycache__", Missing}}},
		{"the same size", func(t *testing.T, dir string) {
			b, err := os.ReadFile(filepath.Join(dir, lib, "os.py"))
			must(t, err)
			b[0] ^= 1
			replace(t, filepath.Join(dir, lib, "os.py"), string(b))
		}, []Fault{{lib + "/os.py", Changed}}},
		{"a file that is missing", func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, lib, "os.py"))) }, []Fault{{lib + "/os.py", Missing}}},
		{"additional ones", func(t *testing.T, dir string) {
			writeFiles(t, dir, map[string]string{lib + "/sitecustomize.py": "", lib + "/more/a.py": "", lib + "/more/b.py": "", "extra": ""})
		}, []Fault{{"extra", Additional}, {lib + "/more", Additional}, {lib + "/sitecustomize.py", Additional}}},
		{"modes", func(t *testing.T, dir string) {
			must(t, exec.Command("cp", "-p", filepath.Join(dir, lib, "os.py"), filepath.Join(dir, "new")).Run())
			must(t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, lib, "os.py")))
			must(t, os.Chmod(filepath.Join(dir, lib, "os.py"), 0o666))
			must(t, os.Chmod(filepath.Join(dir, lib, "json"), 0o775))
		}, []Fault{{lib + "/json", Mode}, {lib + "/os.py", Mode}}},
		{"unreadable", func(t *testing.T, dir string) {
			must(t, os.Chmod(filepath.Join(dir, lib, "json"), 0))
			t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, lib, "json"), 0o755) })
		}, []Fault{{lib + "/json", Mode}, {lib + "/json", Unreadable}}},
		{"a link elsewhere", func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, "prefix/bin/python3")))
			must(t, os.Symlink("/usr/bin/env", filepath.Join(dir, "prefix/bin/python3")))
		}, []Fault{{"prefix/bin/python3", Changed}}},
		{"other types", func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, lib, "os.py")))
			must(t, exec.Command("mkfifo", filepath.Join(dir, lib, "os.py")).Run())
			must(t, os.Rename(filepath.Join(dir, lib, "json"), filepath.Join(dir, "elsewhere")))
			must(t, os.Symlink("../../../elsewhere", filepath.Join(dir, lib, "json")))
		}, []Fault{{"elsewhere", Additional}, {lib + "/json", Changed}, {lib + "/os.py", Changed}}},
		{"another source", func(t *testing.T, dir string) { replace(t, filepath.Join(dir, sourceName), "{}") }, []Fault{{sourceName, Changed}}},
		{"no manifest, as of an earlier version", func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, manifestName))) }, []Fault{{manifestName, Missing}}},
		{"a manifest of nothing", func(t *testing.T, dir string) {
			replace(t, filepath.Join(dir, manifestName), `{"schema":1,"entries":[]}`)
		}, []Fault{{manifestName, Changed}}},
		{"a manifest that is binary", func(t *testing.T, dir string) { replace(t, filepath.Join(dir, manifestName), "\xff\x00") }, []Fault{{manifestName, Changed}}},
		{"a manifest with a path that leads out", func(t *testing.T, dir string) {
			replace(t, filepath.Join(dir, manifestName), `{"schema":1,"entries":[{"path":"../x","mode":"drwxr-xr-x"},{"path":"prefix","mode":"drwxr-xr-x"}]}`)
		}, []Fault{{manifestName, Changed}}},
		{"a manifest that is a link", func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, manifestName)))
			must(t, os.Symlink(sourceName, filepath.Join(dir, manifestName)))
		}, []Fault{{manifestName, Changed}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := copied(t, shared)
			tc.do(t, filepath.Join(root, pythonDir, it.ID))
			got, err := Verify(t.Context(), root, it.ID)
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("%v, %v; want %v", got, err, tc.want)
			}
		})
	}
	if n, size := Size(shared, it.ID); n < 500 || size < 5<<20 {
		t.Errorf("%d files, %d bytes", n, size)
	}
	for _, id := range []string{"", "../x", "system-0123456789abcdef"} {
		if _, err := Verify(t.Context(), shared, id); !errors.Is(err, ErrNotFound) {
			t.Errorf("id %q: %v", id, err)
		}
	}
	gone := errors.New("the caller is gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, err := Verify(ctx, shared, it.ID); !errors.Is(err, gone) {
		t.Errorf("cancelled: %v", err)
	}
}

// Repair makes the interpreter again under its id, to the same bytes, and leaves alone
// what a script runs; Drop does, too.
func TestRepair(t *testing.T) {
	shared, it, box := system(t)
	root := copied(t, shared)
	dir := filepath.Join(root, pythonDir, it.ID)
	was, err := os.ReadFile(filepath.Join(dir, manifestName))
	must(t, err)
	file := filepath.Join(dir, "prefix/lib", filepath.Base(needSystem(t)), "json/__init__.py")
	replace(t, file, "raise SystemExit('changed')\n")
	if again, err := Make(t.Context(), root, Options{}, box); err != nil || again.ID != it.ID {
		t.Errorf("Make, which does not look: %v", err)
	}
	release, err := Use(root, it.ID)
	must(t, err)
	other, err := Use(root, it.ID)
	must(t, err)
	other()
	for name, err := range map[string]error{"Repair": second(Repair(t.Context(), root, Options{}, box)), "Drop": Drop(t.Context(), root, it.ID)} {
		if !errors.Is(err, ErrInUse) {
			t.Errorf("%s, in use: %v", name, err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(b), "raise") {
		t.Errorf("it was changed under a script: %v", err)
	}
	release()
	release()
	again, faults, err := Repair(t.Context(), root, Options{}, box)
	if err != nil || again.ID != it.ID || again.Dir != filepath.Join(dir, prefixName) || len(faults) != 1 || faults[0].Kind != Changed {
		t.Fatalf("%+v, %v, %v", again, faults, err)
	}
	if now, err := os.ReadFile(filepath.Join(dir, manifestName)); err != nil || string(now) != string(was) {
		t.Errorf("it is another one than it was (%v)", err)
	}
	if _, faults, err := Repair(t.Context(), root, Options{}, box); err != nil || len(faults) > 0 {
		t.Errorf("again: %v, %v", faults, err)
	}
	if id, err := ID(t.Context(), Options{}); err != nil || id != it.ID {
		t.Errorf("id %s, %v", id, err)
	}
	left(t, root, it.ID)
	must(t, Drop(t.Context(), root, it.ID))
	if _, err := Use(root, it.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("dropped: %v", err)
	}
	if again, faults, err := Repair(t.Context(), root, Options{}, box); err != nil || again.ID != it.ID || len(faults) > 0 {
		t.Errorf("one that is not there: %v, %v", faults, err)
	}
	if list, err := Verify(t.Context(), root, it.ID); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
}

func second(_ *Interpreter, _ []Fault, err error) error { return err }

// copied is a root with the same interpreters, whose files may be changed.
func copied(t testing.TB, from string) (root string) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "envs")
	if out, err := exec.Command("cp", "-a", from, root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return root
}

// replace puts another file in the place of one, with its mode.
func replace(t testing.TB, path, text string) {
	t.Helper()
	mode := fs.FileMode(0o444)
	if info, err := os.Lstat(path); err == nil {
		mode = info.Mode().Perm()
	}
	must(t, os.WriteFile(path+".new", []byte(text), 0o600))
	must(t, os.Chmod(path+".new", mode))
	must(t, os.Rename(path+".new", path))
}
