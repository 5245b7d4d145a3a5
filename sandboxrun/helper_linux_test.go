package sandboxrun

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// probed is what this host can do, found out once.
var probed = sync.OnceValue(func() Report {
	r, err := New(context.Background(), Config{Group: testGroup})
	if err != nil {
		return Report{Cause: err.Error()}
	}
	defer r.Close()
	return r.Probe(context.Background())
})

// newRunner returns a Runner, or skips the test on a host without sandboxes.
func newRunner(t testing.TB) *Runner {
	t.Helper()
	return runnerWith(t, Config{})
}

func runnerWith(t testing.TB, cfg Config) *Runner {
	t.Helper()
	if rep := probed(); !rep.OK {
		t.Skipf("SKIP no sandbox on this host: %s; %s", rep.Cause, rep.Remedy)
	}
	if cfg.Group == "" {
		cfg.Group = testGroup
	}
	r, err := New(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// needPython skips a test that needs the interpreter of the host.
func needPython(t testing.TB) string {
	t.Helper()
	const python = "/usr/bin/python3"
	if _, err := os.Stat(python); err != nil {
		t.Skipf("SKIP no %s on this host", python)
	}
	return python
}

// bash is a run of a script by bash.
func bash(script string) Run {
	return Run{
		Argv:   []string{"/bin/bash", "--noprofile", "--norc", "-c", script},
		Limits: Limits{Timeout: 20 * time.Second},
	}
}

// python is a run of a script by Python.
func python(t testing.TB, script string) Run {
	return Run{Argv: []string{needPython(t), "-c", script}, Limits: Limits{Timeout: 60 * time.Second}}
}

// changes collects what a run changed: a line for each change, in order.
type changes struct {
	lines []string
	list  []Change // without bodies
	data  map[string]string
}

func (c *changes) add(ch Change) error {
	line := ch.Kind.String() + " " + string(ch.Path)
	switch ch.Kind {
	case File:
		b, err := io.ReadAll(io.LimitReader(ch.Body, 1<<20))
		if err != nil {
			return err
		}
		if c.data == nil {
			c.data = map[string]string{}
		}
		c.data[string(ch.Path)] = string(b)
		line += fmt.Sprintf(" %o %d", ch.Mode, ch.Size)
		if len(b) < 40 {
			line += fmt.Sprintf(" %q", b)
		}
	case Dir, OpaqueDir:
		line += fmt.Sprintf(" %o", ch.Mode)
	case Symlink:
		line += " -> " + string(ch.Target)
	}
	ch.Body = nil
	c.lines = append(c.lines, line)
	c.list = append(c.list, ch)
	return nil
}

// mustRun runs and fails the test on an error.
func mustRun(t testing.TB, r *Runner, run Run) (Result, *changes) {
	t.Helper()
	var c changes
	res, err := r.Run(t.Context(), run, c.add)
	if err != nil {
		t.Fatalf("Run: %v\nstderr: %s", err, res.Stderr.Text)
	}
	return res, &c
}

// mustExit runs and fails the test unless the script exits with 0.
func mustExit(t testing.TB, r *Runner, run Run) (Result, *changes) {
	t.Helper()
	res, c := mustRun(t, r, run)
	if res.Outcome != Exited || res.ExitCode != 0 {
		t.Fatalf("outcome %s, exit %d\nstdout: %s\nstderr: %s", res.Outcome, res.ExitCode, res.Stdout.Text, res.Stderr.Text)
	}
	return res, c
}

// tree makes a directory with the files given: a name that ends in "/" is a
// directory, a value that begins with "->" a link.
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		switch target, isLink := strings.CutPrefix(content, "->"); {
		case strings.HasSuffix(name, "/"):
			must(t, os.MkdirAll(path, 0o755))
		case isLink:
			must(t, os.Symlink(target, path))
		default:
			must(t, os.WriteFile(path, []byte(content), 0o644))
		}
	}
	return root
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
