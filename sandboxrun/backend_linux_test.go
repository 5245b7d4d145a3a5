package sandboxrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The contract itself is tested by package conformance. Here is what that
// cannot see: the directories in Scratch, and hostile workspaces.

// newBackend returns a backend and its scratch directory, which must be empty at
// the end.
func newBackend(t *testing.T) (Backend, string) {
	t.Helper()
	scratch := filepath.Join(t.TempDir(), "scratch")
	b, err := NewBackend(runnerWith(t, Config{Scratch: scratch}))
	must(t, err)
	t.Cleanup(func() { empty(t, scratch) })
	return b, scratch
}

func newHandle(t *testing.T, b Backend, s Spec) Handle {
	t.Helper()
	h, err := b.Create(t.Context(), s)
	must(t, err)
	t.Cleanup(func() { must(t, b.Close(context.Background(), h)) })
	return h
}

// execute runs a script and returns its standard output.
func execute(t *testing.T, b Backend, h Handle, script string) string {
	t.Helper()
	res, err := b.Execute(t.Context(), h, Request{Argv: bash(script).Argv, Timeout: 20 * time.Second})
	if err != nil || res.Outcome != Exited {
		t.Fatalf("%q: %s, error %v; stderr %s", script, res.Outcome, err, res.Stderr.Text)
	}
	return string(res.Stdout.Text)
}

// TestBackendWorkspace: a workspace after several commands is what a plain
// directory is after the same ones.
func TestBackendWorkspace(t *testing.T) {
	b, _ := newBackend(t)
	source := tree(t, map[string]string{"a": "1", "d/b": "2", "d/e/f": "3", "l": "->a", "gone/x": "4"})
	must(t, os.WriteFile(filepath.Join(source, "\xff\xfe name"), []byte("raw"), 0o640))
	native := t.TempDir()
	if out, err := exec.Command("/bin/cp", "-a", source+"/.", native).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h := newHandle(t, b, Spec{Workspace: source})
	const list = `find . -mindepth 1 \( -type f -printf '%P %m %s %T@\n' -o -type l -printf '%P -> %l\n' -o -printf '%P %y %m\n' \) | sort; cat a 2>/dev/null`
	for i, script := range []string{
		`true`,
		`rm -r gone; mkdir gone; touch -d @10 gone/new; printf more >>a; touch -d @11 a`,
		`rm -r d; printf file >d; touch -d @12 d`,
		`rm d; mkdir -p d/e; touch -d @13 d/e/h; chmod 700 d/e`,
		`mkdir closed; touch -d @14 closed/f; chmod 000 closed/f closed`,
		`chmod 755 closed; touch -d @15 closed/g; chmod 000 closed`,
		`chmod 700 closed; rm -rf closed`,
		`mkdir -p c/d; touch -d @16 c/d/f; chmod 000 c/d c`,
		`chmod 700 c c/d; rm -r c; printf x >c; touch -d @17 c`,
		`printf y >$'\377\n'; touch -d @18 $'\377\n'; ln -sf /no/where l; touch -h -d @19 l`,
		`rm l; ln -s . l; touch -h -d @20 l; rm $'\377\376 name'`,
		`truncate -s 1M sparse; touch -d @21 sparse`,
		`rm -rf * ; echo $'\n' >.hidden; touch -d @22 .hidden`,
	} {
		execute(t, b, h, script)
		cmd := exec.Command("/bin/bash", "--noprofile", "--norc", "-c", "umask 022; "+script)
		cmd.Dir = native
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		look := exec.Command("/bin/bash", "--noprofile", "--norc", "-c", list)
		look.Dir = native
		want, err := look.Output()
		if got := execute(t, b, h, list+"; true"); got != string(want) {
			t.Fatalf("after command %d, %q\ngot\n%s\nwant\n%s (%v)", i, script, got, want, err)
		}
	}
}

// TestBackendArtifactModes: a mode does not hide an artifact, and is what it was
// afterwards.
func TestBackendArtifactModes(t *testing.T) {
	b, _ := newBackend(t)
	h := newHandle(t, b, Spec{})
	execute(t, b, h, `mkdir -p d/e; echo 1 >d/e/f; echo 2 >$'g\377'; chmod 000 d/e/f d/e d $'g\377'`)
	for range 2 {
		list, err := b.Artifacts(t.Context(), h)
		must(t, err)
		var got []string
		for _, a := range list {
			got = append(got, fmt.Sprintf("%s %o %q", a.Path, a.Mode, a.Bytes))
		}
		if want := []string{`d/e/f 0 "1\n"`, "g\xff 0 \"2\\n\""}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if out := execute(t, b, h, `stat -c %a d $'g\377'; chmod 700 d; stat -c %a d/e; chmod 700 d/e; stat -c %a d/e/f`); out != "0\n0\n0\n0\n" {
		t.Errorf("modes afterwards: %q", out)
	}
}

// TestBackendRefuses: what a command leaves may not seem larger than what it may
// write, and then nothing of it is kept.
func TestBackendRefuses(t *testing.T) {
	b, scratch := newBackend(t)
	h := newHandle(t, b, Spec{Limits: Limits{WriteBytes: 1 << 20}})
	for name, script := range map[string]string{
		"sparse":     `echo 1 >other; truncate -s 1G sparse`,
		"many links": `head -c 500000 /dev/zero >f; for i in 1 2 3; do ln f $i; done`,
	} {
		_, err := b.Execute(t.Context(), h, Request{Argv: bash(script).Argv})
		if !errors.Is(err, ErrPolicy) {
			t.Errorf("%s: error %v", name, err)
		}
		if out := execute(t, b, h, `ls -A`); out != "" {
			t.Errorf("%s: kept %q", name, out)
		}
		if left, err := filepath.Glob(scratch + "/*/new"); err != nil || len(left) > 0 {
			t.Errorf("%s: left in scratch: %q (%v)", name, left, err)
		}
	}
}

// TestBackendCancelKeepsNothing: the changes of a cancelled command are dropped,
// those of one that timed out are kept.
func TestBackendCancelKeepsNothing(t *testing.T) {
	b, _ := newBackend(t)
	h := newHandle(t, b, Spec{})
	ctx, cancel := context.WithCancel(t.Context())
	in := readerFunc(func([]byte) (int, error) { cancel(); return 0, io.EOF })
	if _, err := b.Execute(ctx, h, Request{Argv: bash(`echo 1 >cancelled; sleep 60`).Argv, Stdin: in}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	res, err := b.Execute(t.Context(), h, Request{Argv: bash(`echo 1 >timed; exec sleep 60`).Argv, Timeout: 2 * time.Second})
	if err != nil || res.Outcome != TimedOut {
		t.Fatal(res.Outcome, err)
	}
	if out := execute(t, b, h, `ls -A`); out != "timed\n" {
		t.Errorf("kept %q", out)
	}
}

// TestBackendAdmits: what Create refuses, and that it leaves nothing then.
func TestBackendAdmits(t *testing.T) {
	b, scratch := newBackend(t)
	file := filepath.Join(tree(t, map[string]string{"f": ""}), "f")
	link := filepath.Join(tree(t, map[string]string{"l": "->/usr"}), "l")
	for name, tc := range map[string]struct {
		spec Spec
		want error
	}{
		"network":               {Spec{Egress: []string{"example.invalid"}}, ErrPolicy},
		"relative workspace":    {Spec{Workspace: "here"}, ErrPolicy},
		"no such workspace":     {Spec{Workspace: "/no/such/directory"}, ErrSetup},
		"workspace is a file":   {Spec{Workspace: file}, ErrSetup},
		"workspace is a link":   {Spec{Workspace: link}, ErrSetup},
		"NUL in the workspace":  {Spec{Workspace: "/tmp\x00"}, ErrPolicy},
		"empty variable":        {Spec{Env: map[string]string{"": "x"}}, ErrPolicy},
		"variable with an =":    {Spec{Env: map[string]string{"A=B": "x"}}, ErrPolicy},
		"NUL in a variable":     {Spec{Env: map[string]string{"A": "\x00"}}, ErrPolicy},
		"artifact outside":      {Spec{Artifacts: []string{"../x"}}, ErrPolicy},
		"everything, by a dot":  {Spec{Artifacts: []string{"."}}, ErrPolicy},
		"absolute artifact":     {Spec{Artifacts: []string{"/x"}}, ErrPolicy},
		"artifact with a slash": {Spec{Artifacts: []string{"x/"}}, ErrPolicy},
	} {
		if _, err := b.Create(t.Context(), tc.spec); !errors.Is(err, tc.want) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("no longer")
	cancel(why)
	if _, err := b.Create(ctx, Spec{}); !errors.Is(err, why) {
		t.Errorf("cancelled: error %v", err)
	}
	empty(t, scratch)
}

// TestBackendNeedsScratch: without one there is no place for workspaces.
func TestBackendNeedsScratch(t *testing.T) {
	r, err := New(t.Context(), Config{})
	must(t, err)
	t.Cleanup(r.Close)
	if _, err := NewBackend(r); err == nil {
		t.Error("no error")
	}
}

// TestBackendOfAnother: handles are those of one backend, not of a kind of them.
func TestBackendOfAnother(t *testing.T) {
	b, _ := newBackend(t)
	other, _ := newBackend(t)
	h := newHandle(t, b, Spec{})
	if _, err := other.Execute(t.Context(), h, Request{Argv: bash(`true`).Argv}); !errors.Is(err, ErrForeignHandle) {
		t.Error(err)
	}
	if err := other.Close(t.Context(), h); !errors.Is(err, ErrForeignHandle) || h.Closed() {
		t.Error(err, h.Closed())
	}
}

// TestBackendCrash: what a killed process leaves is gone with the next New, and
// the workspaces of one that lives are not.
func TestBackendCrash(t *testing.T) {
	b, scratch := newBackend(t)
	h := newHandle(t, b, Spec{})
	execute(t, b, h, `mkdir d; echo kept >d/f; chmod 000 d`)
	dead := filepath.Join(scratch, scratchPrefix+"dead")
	must(t, os.MkdirAll(filepath.Join(dead, treeDir, "x"), 0o755))
	must(t, os.Chmod(filepath.Join(dead, treeDir, "x"), 0))
	runnerWith(t, Config{Scratch: scratch})
	if _, err := os.Lstat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a dead workspace is still there: %v", err)
	}
	if out := execute(t, b, h, `chmod 755 d; cat d/f`); out != "kept\n" {
		t.Errorf("a workspace in use: %q", out)
	}
}

// TestBackendWorkspaceLost: changes that cannot be applied end the handle, rather
// than to leave it with half of them.
func TestBackendWorkspaceLost(t *testing.T) {
	b, _ := newBackend(t)
	h := newHandle(t, b, Spec{})
	execute(t, b, h, `mkdir d; echo 1 >d/f`)
	dir := h.(*workspace).tree.dir()
	in := readerFunc(func([]byte) (int, error) { // while the command runs
		must(t, os.Rename(dir, dir+".moved"))
		return 0, io.EOF
	})
	_, err := b.Execute(t.Context(), h, Request{Argv: bash(`cat; echo 2 >d/f`).Argv, Stdin: in})
	if !errors.Is(err, ErrClosed) || !h.Closed() || strings.Contains(err.Error(), dir) {
		t.Errorf("error %v, closed %v", err, h.Closed())
	}
}
