package sandboxrun

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSetupErrors: a run that cannot start is told from a script that exits
// with 1, with a cause in plain words and without a path of the host.
func TestSetupErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o644))
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(t.TempDir(), link))
	closed := filepath.Join(t.TempDir(), "closed")
	must(t, os.MkdirAll(filepath.Join(closed, "in"), 0o755))
	must(t, os.Chmod(closed, 0))
	t.Cleanup(func() { os.Chmod(closed, 0o755) })
	argv := func(a ...string) Run { return Run{Argv: a} }
	for _, tc := range []struct {
		name  string
		run   Run
		cause string
	}{
		{"missing interpreter", argv("/usr/bin/no-such-interpreter", "x"), "/usr/bin/no-such-interpreter does not exist inside the sandbox"},
		{"interpreter of the host's home", argv("/root/.pyenv/bin/python3"), "/root/.pyenv/bin/python3 does not exist inside the sandbox"},
		{"interpreter without the x bit", argv("/etc/passwd"), "/etc/passwd cannot be run: Permission denied"},
		{"interpreter is a directory", argv("/usr"), "/usr cannot be run: Permission denied"},
		{"interpreter is beyond a file", argv("/etc/passwd/x"), "/etc/passwd/x cannot be run: Not a directory"},
		{"argument too long", argv("/bin/true", strings.Repeat("x", 200_000)), "the arguments of the command are too long"},
		{"arguments too long", argv(append([]string{"/bin/true"}, strings.Split(strings.Repeat(strings.Repeat("x", 100_000)+" ", 90), " ")...)...), "the arguments of the command are too long"},
		{"no workspace", Run{Lower: "/no/such/directory", Argv: []string{"/bin/true"}}, "the workspace directory cannot be opened: no such file or directory"},
		{"workspace is a file", Run{Lower: file, Argv: []string{"/bin/true"}}, "the workspace directory cannot be opened: not a directory"},
		{"workspace is a link", Run{Lower: link, Argv: []string{"/bin/true"}}, "the workspace directory cannot be opened: not a directory"},
		{"no bind source", Run{Argv: []string{"/bin/true"}, Binds: []Bind{{file, "/opt/a"}, {"/no/such", "/opt/b"}}}, "something to be shown in the sandbox cannot be opened: bind 1: no such file or directory"},
		{"no command", Run{}, "the run is not valid: no command"},
		{"relative command", argv("python3"), `the run is not valid: command "python3" is not an absolute path`},
		{"NUL", argv("/bin/true", "a\x00b"), "the run is not valid: a NUL byte in the command or its environment"},
		{"environment", Run{Argv: []string{"/bin/true"}, Env: []string{"NAME"}}, `the run is not valid: environment entry "NAME" is not KEY=VALUE`},
		{"environment without a name", Run{Argv: []string{"/bin/true"}, Env: []string{"=x"}}, `the run is not valid: environment entry "=x" is not KEY=VALUE`},
		{"relative workspace", Run{Lower: "dir", Argv: []string{"/bin/true"}}, "the run is not valid: lower directory is not an absolute path"},
		{"data below the workspace", Run{Argv: []string{"/bin/true"}, Data: []Data{{Path: "/workspace/x"}}}, `the run is not valid: mount target "/workspace/x" is not below /run/vdisk`},
		{"data that escapes", Run{Argv: []string{"/bin/true"}, Data: []Data{{Path: "/run/vdisk/../../workspace/x"}}}, `the run is not valid: mount target "/run/vdisk/../../workspace/x" is double or not clean`},
		{"data twice", Run{Argv: []string{"/bin/true"}, Data: []Data{{Path: "/run/vdisk/x"}, {Path: "/run/vdisk/x"}}}, `the run is not valid: mount target "/run/vdisk/x" is double or not clean`},
		{"setuid data", Run{Argv: []string{"/bin/true"}, Data: []Data{{Path: "/run/vdisk/x", Mode: 0o4755}}}, `the run is not valid: mode 4755 of "/run/vdisk/x" has more than permission bits`},
		{"bind over /usr", Run{Argv: []string{"/bin/true"}, Binds: []Bind{{"/etc", "/usr"}}}, `the run is not valid: mount target "/usr" is not below /run/vdisk or /opt or /tmp`},
		{"relative bind", Run{Argv: []string{"/bin/true"}, Binds: []Bind{{"etc", "/opt/etc"}}}, `the run is not valid: bind source "etc" is not an absolute path`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRunner(t)
			res, err := r.Run(t.Context(), tc.run, func(Change) error { t.Error("each was called"); return nil })
			var se *SetupError
			if !errors.As(err, &se) || !errors.Is(err, ErrSetup) || errors.Is(err, ErrUnavailable) || res.Outcome != SetupFailed {
				t.Fatalf("outcome %s, error %v", res.Outcome, err)
			}
			if se.Cause != tc.cause {
				t.Errorf("cause %q, want %q", se.Cause, tc.cause)
			}
			r.DropSpare()
			if left := descendants(t); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// TestWorkspaceBelowAClosedDirectory: as an ordinary user it cannot be opened.
func TestWorkspaceBelowAClosedDirectory(t *testing.T) {
	r := newRunner(t)
	_, err := r.Run(t.Context(), Run{Lower: "/root/x", Argv: []string{"/bin/true"}}, nil)
	if !errors.Is(err, ErrSetup) || !strings.Contains(err.Error(), "permission denied") {
		t.Skipf("SKIP /root is open to this user: %v", err)
	}
}

// TestUnavailable: hosts without a usable bubblewrap. New succeeds all the
// same, Run and Probe say what is missing.
func TestUnavailable(t *testing.T) {
	dir := t.TempDir()
	program := func(name, script string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755))
		must(t, os.Chmod(path, mode))
		return path
	}
	for _, tc := range []struct{ name, bwrap, cause string }{
		{"missing", filepath.Join(dir, "none"), "bubblewrap cannot be used: no such file or directory"},
		{"setuid", program("setuid", "exit 0", 0o755|os.ModeSetuid), "is setuid, which is unsafe here"},
		{"setgid", program("setgid", "exit 0", 0o755|os.ModeSetgid), "is setuid, which is unsafe here"},
		{"broken", program("broken", "exit 1", 0o755), "does not answer --help"},
		{"old", program("old", `if [ $1 = --version ]; then echo bubblewrap 0.4.1; exit 0; fi; /usr/bin/bwrap --help 2>&1 | grep -v -e --disable-userns -e --size; exit 0`, 0o755), "bubblewrap 0.4.1 at " + dir + "/old is too old: it lacks "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := New(t.Context(), Config{Bwrap: tc.bwrap})
			must(t, err)
			t.Cleanup(r.Close)
			_, err = r.Run(t.Context(), Run{Argv: []string{"/bin/true"}}, nil)
			var se *SetupError
			if !errors.As(err, &se) || !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrSetup) {
				t.Fatalf("error %v", err)
			}
			if !strings.Contains(se.Cause, tc.cause) || se.Remedy == "" {
				t.Errorf("cause %q, remedy %q", se.Cause, se.Remedy)
			}
			rep := r.Probe(t.Context())
			if rep.OK || rep.Level != "L1" || rep.Cause != se.Cause || rep.Remedy != se.Remedy || len(rep.Checks) != 1 {
				t.Errorf("report %+v", rep)
			}
		})
	}
}

// TestBwrapIsLookedFor: the first program of that name in the list of directories,
// and what is said where there is none.
func TestBwrapIsLookedFor(t *testing.T) {
	none, data, here := t.TempDir(), t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(data, "bwrap"), nil, 0o644))
	must(t, os.WriteFile(filepath.Join(here, "bwrap"), nil, 0o755))
	got, err := locateBwrap("", []string{none, data, here})
	if err != nil || got != filepath.Join(here, "bwrap") {
		t.Errorf("found %q, error %v", got, err)
	}
	_, err = locateBwrap("", []string{none, data})
	check(t, err, ErrUnavailable, "bubblewrap is not installed (looked in "+none+", "+data+")", "apt install bubblewrap, dnf install bubblewrap, apk add bubblewrap")
}

// TestInstalledLater: a bubblewrap that appears is found without a restart.
func TestInstalledLater(t *testing.T) {
	newRunner(t)
	path := filepath.Join(t.TempDir(), "bwrap")
	r, err := New(t.Context(), Config{Bwrap: path})
	must(t, err)
	t.Cleanup(r.Close)
	if _, err := r.find(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("error %v", err)
	}
	must(t, os.Symlink(probed().Bwrap, path))
	if _, err := r.find(t.Context()); err != nil {
		t.Errorf("error %v", err)
	}
}

func TestConfig(t *testing.T) {
	for name, cfg := range map[string]Config{
		"relative bwrap":       {Bwrap: "bwrap"},
		"relative scratch":     {Scratch: "scratch"},
		"relative self":        {Self: "self"},
		"disk without scratch": {Disk: true},
		"scratch is a file":    {Scratch: "/etc/passwd"},
	} {
		if _, err := New(t.Context(), cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New(ctx, Config{}); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestMissingSelf(t *testing.T) {
	r := runnerWith(t, Config{Self: "/no/such/program"})
	if _, err := r.Run(t.Context(), Run{Argv: []string{"/bin/true"}}, nil); !errors.Is(err, ErrSetup) {
		t.Errorf("error %v", err)
	}
}

// TestSelfWithoutStageMain: a program that is not ours does not hang the call.
func TestSelfWithoutStageMain(t *testing.T) {
	r := runnerWith(t, Config{Self: "/bin/true"})
	if _, err := r.Run(t.Context(), Run{Argv: []string{"/bin/true"}}, nil); err == nil {
		t.Error("no error")
	} else if !errors.Is(err, ErrSetup) || !strings.Contains(err.Error(), "ended without a report") {
		t.Errorf("error %v", err)
	}
}

// TestStageCrashes: its last words are in the error, not in the script's output.
func TestStageCrashes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stage")
	must(t, os.WriteFile(path, []byte("#!/bin/sh\necho panic: boom >&2; exit 2\n"), 0o755))
	res, err := runnerWith(t, Config{Self: path}).Run(t.Context(), Run{Argv: []string{"/bin/true"}}, nil)
	var se *SetupError
	if !errors.As(err, &se) || se.Stderr != "panic: boom\n" || res.Stderr.Total != 0 {
		t.Errorf("error %+v", se)
	}
}

func TestProbe(t *testing.T) {
	rep := newRunner(t).Probe(t.Context())
	if !rep.OK || rep.Level != "L3" || rep.Bwrap == "" || rep.Version == "" || rep.Kernel == "" || rep.Cause != "" || rep.Remedy != "" {
		t.Errorf("report %+v", rep)
	}
	checks := []string{"stage", "bubblewrap", "sandbox"}
	if rep.Limits[0].By != ByRlimit || rep.Limits[1].By != ByRlimit {
		checks = append(checks, "limits")
	}
	var got []string
	for _, c := range rep.Checks {
		got = append(got, c.Name)
	}
	if !slices.Equal(got, checks) {
		t.Errorf("checks %+v", rep.Checks)
	}
}

// TestProbeBlamesThePart: the first part that fails gives the cause.
func TestProbeBlamesThePart(t *testing.T) {
	rep := runnerWith(t, Config{Self: "/bin/true"}).Probe(t.Context())
	var failed []string
	for _, c := range rep.Checks {
		if !c.OK {
			failed = append(failed, c.Name)
		}
	}
	if rep.OK || strings.Join(failed, " ") != "stage sandbox" || rep.Cause == "" {
		t.Errorf("report %+v", rep)
	}
}
