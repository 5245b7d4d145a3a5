package sandboxrun

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRandomScripts runs random file operations in a plain directory and in a
// sandbox over a copy of it, applies the changes to that copy, and compares.
func TestRandomScripts(t *testing.T) {
	r := newRunner(t)
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			// An overlay breaks the hard links of its lower directory, and an
			// image has none: links are made by the script only.
			prepare, script := strings.ReplaceAll(randomScript(rnd, 15), "\nln ", "\n: "), randomScript(rnd, 25)
			native, lower := t.TempDir(), t.TempDir()
			for _, dir := range []string{native, lower} {
				natively(t, dir, prepare)
			}
			natively(t, native, script)
			run := bash(script)
			run.Lower = lower
			var list []func() error
			_, err := r.Run(t.Context(), run, func(c Change) error {
				var body []byte
				if c.Kind == File {
					var err error
					if body, err = io.ReadAll(c.Body); err != nil {
						return err
					}
				}
				list = append(list, func() error { return apply(lower, c, body) })
				return nil
			})
			must(t, err)
			for _, step := range list {
				must(t, step())
			}
			if got, want := snapshot(t, lower), snapshot(t, native); got != want {
				t.Errorf("prepare:\n%s\nscript:\n%s\ngot:\n%s\nwant:\n%s", prepare, script, got, want)
			}
		})
	}
}

func natively(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.Command("/bin/bash", "--noprofile", "--norc", "-c", script)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"}
	must(t, cmd.Run())
}

// randomScript makes a script of n operations on few names, so that they meet.
func randomScript(rnd *rand.Rand, n int) string {
	name := func() string {
		parts := make([]string, 1+rnd.IntN(3))
		for i := range parts {
			parts[i] = string(rune('a' + rnd.IntN(3)))
		}
		return strings.Join(parts, "/")
	}
	var b strings.Builder
	b.WriteString("umask 022\nexec 2>/dev/null\n")
	for i := range n {
		switch rnd.IntN(12) {
		case 0, 1:
			fmt.Fprintf(&b, "echo %d >%s\n", i, name())
		case 2:
			fmt.Fprintf(&b, "echo %d >>%s\n", i, name())
		case 3, 4:
			fmt.Fprintf(&b, "mkdir -p %s\n", name())
		case 5:
			fmt.Fprintf(&b, "rm -rf %s\n", name())
		case 6:
			fmt.Fprintf(&b, "mv -T %s %s\n", name(), name())
		case 7:
			fmt.Fprintf(&b, "command ln -sfn %s %s\n", name(), name())
		case 8:
			fmt.Fprintf(&b, "ln %s %s\n", name(), name())
		case 9:
			fmt.Fprintf(&b, "chmod %o %s\n", []int{0o755, 0o700, 0o750}[rnd.IntN(3)], name())
		case 10:
			// What a copy into itself makes depends on the order of a directory.
			from, to := name(), name()
			if !strings.HasPrefix(from+"/", to+"/") && !strings.HasPrefix(to+"/", from+"/") {
				fmt.Fprintf(&b, "cp -rT %s %s\n", from, to)
			}
		case 11:
			fmt.Fprintf(&b, "rmdir %s; truncate -s %d %s\n", name(), rnd.IntN(30), name())
		}
	}
	b.WriteString("exit 0\n")
	return b.String()
}

// apply does what a consumer of changes does.
func apply(root string, c Change, body []byte) error {
	path := filepath.Join(root, string(c.Path))
	if info, err := os.Lstat(path); c.Kind != Dir || (err == nil && !info.IsDir()) {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	switch c.Kind {
	case Dir, OpaqueDir:
		if err := os.Mkdir(path, 0o700); err != nil && !os.IsExist(err) {
			return err
		}
		return os.Chmod(path, os.FileMode(c.Mode))
	case File:
		if err := os.WriteFile(path, body, 0o600); err != nil {
			return err
		}
		return os.Chmod(path, os.FileMode(c.Mode))
	case Symlink:
		return os.Symlink(string(c.Target), path)
	}
	return nil
}
