package conformance

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// local is a backend that starts commands as plain processes in a temporary
// directory. It is weak on purpose, and shows that the suite tells a sandbox
// from none.
type local struct {
	caps sandboxrun.Capabilities
	base string
}

type localHandle struct {
	id     string
	dir    string
	spec   sandboxrun.Spec
	closed atomic.Bool
}

func (h *localHandle) ID() string   { return h.id }
func (h *localHandle) Closed() bool { return h.closed.Load() }

func (l *local) Capabilities() sandboxrun.Capabilities { return l.caps }

func (l *local) Create(_ context.Context, s sandboxrun.Spec) (sandboxrun.Handle, error) {
	if len(s.Egress) > 0 {
		return nil, sandboxrun.ErrPolicy
	}
	dir, err := os.MkdirTemp(l.base, "local-")
	if err == nil && s.Workspace != "" {
		err = os.CopyFS(dir, os.DirFS(s.Workspace))
	}
	return &localHandle{id: rand.Text(), dir: dir, spec: s}, err
}

func (l *local) own(h sandboxrun.Handle) (*localHandle, error) {
	own, ok := h.(*localHandle)
	if !ok {
		return nil, sandboxrun.ErrForeignHandle
	}
	if own.Closed() {
		return own, sandboxrun.ErrClosed
	}
	return own, nil
}

func (l *local) Execute(ctx context.Context, h sandboxrun.Handle, r sandboxrun.Request) (sandboxrun.Result, error) {
	own, err := l.own(h)
	if err != nil {
		return sandboxrun.Result{}, err
	}
	if len(r.Argv) == 0 || r.Timeout < 0 {
		return sandboxrun.Result{}, errors.New("nothing to run")
	}
	if ctx.Err() != nil {
		return sandboxrun.Result{}, context.Cause(ctx)
	}
	if r.Timeout == 0 {
		r.Timeout = sandboxrun.DefaultLimits().Timeout
	}
	timed, cancel := context.WithTimeoutCause(ctx, r.Timeout, context.DeadlineExceeded)
	defer cancel()
	cmd := exec.CommandContext(timed, r.Argv[0], r.Argv[1:]...)
	cmd.Dir, cmd.Stdin = own.dir, r.Stdin
	cmd.Env = os.Environ()
	for k, v := range own.spec.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	var out, errs firstMiB
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &errs, 100*time.Millisecond
	err = cmd.Run()
	res := sandboxrun.Result{Outcome: sandboxrun.Exited, Stdout: out.output(), Stderr: errs.output()}
	switch {
	case ctx.Err() != nil:
		return res, fmt.Errorf("local: %w", context.Cause(ctx))
	case timed.Err() != nil:
		res.Outcome, res.ExitCode = sandboxrun.TimedOut, -1
		return res, nil
	case cmd.ProcessState == nil:
		return res, err
	}
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		res.Outcome, res.Signal, res.ExitCode = sandboxrun.Signaled, "SIG"+map[bool]string{true: "KILL"}[ws.Signal() == syscall.SIGKILL], 128+int(ws.Signal())
	} else {
		res.ExitCode = ws.ExitStatus()
	}
	return res, nil
}

// firstMiB keeps the beginning of a stream: the suite writes without end.
type firstMiB struct{ b []byte }

func (f *firstMiB) Write(p []byte) (int, error) {
	f.b = append(f.b, p[:min(len(p), 1<<20-len(f.b))]...)
	return len(p), nil
}

func (f *firstMiB) output() sandboxrun.Output {
	return sandboxrun.Output{Text: f.b, Total: int64(len(f.b))}
}

// Artifacts follows links.
func (l *local) Artifacts(_ context.Context, h sandboxrun.Handle) ([]sandboxrun.Artifact, error) {
	own, err := l.own(h)
	if err != nil {
		return nil, err
	}
	list := []sandboxrun.Artifact{}
	err = filepath.WalkDir(own.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(path)
		name, _ := filepath.Rel(own.dir, path)
		list = append(list, sandboxrun.Artifact{Path: name, Size: int64(len(b)), Bytes: b})
		return err
	})
	slices.SortFunc(list, func(a, b sandboxrun.Artifact) int { return bytes.Compare([]byte(a.Path), []byte(b.Path)) })
	return list, err
}

func (l *local) Close(_ context.Context, h sandboxrun.Handle) error {
	own, err := l.own(h)
	if own == nil {
		return err
	}
	own.closed.Store(true)
	return os.RemoveAll(own.dir)
}

// boast is what local would have to be to keep it.
var boast = sandboxrun.Capabilities{
	BackendID: "local", FilesystemIsolation: sandboxrun.OverlayWorkspace, NetworkControl: sandboxrun.NetworkEnforced,
	ProcessBoundary: true, RequestTimeout: true, CooperativeCancellation: true, ArtifactCollection: true, DeterministicCleanup: true,
	ReadOnlyEnforced: true, EnvScrub: true, TreeKill: true, OutputCap: true,
	HardLimits: []sandboxrun.HardLimit{sandboxrun.HardProcesses, sandboxrun.HardOpenFiles, sandboxrun.HardWriteBytes, sandboxrun.HardWriteFiles, sandboxrun.HardMemory},
}

// modest is what local is.
var modest = sandboxrun.Capabilities{
	BackendID: "local", FilesystemIsolation: sandboxrun.EphemeralWorkspace, NetworkControl: sandboxrun.NetworkAdmission,
	ProcessBoundary: true, RequestTimeout: true, CooperativeCancellation: true, ArtifactCollection: true,
}

// TestLocalBoasts: a plain process that promises what a sandbox does is found
// out by just these rules.
func TestLocalBoasts(t *testing.T) {
	want := []string{
		"execute.exit_kills_tree", "execute.timeout_kills_tree", "execute.cancel_kills_tree", "execute.output_cap", "execute.output_limit",
		"env.scrubbed", "fs.read_only_enforced", "fs.host_invisible", "fs.handles_apart", "proc.handles_apart", "net.host_unreachable",
		"artifact.content", "artifact.declared_only", "artifact.declaration_checked", "artifact.no_symlinks", "artifact.bounded",
		"lifecycle.close_during_execute", "lifecycle.nothing_left",
		"limits.processes", "limits.open_files", "limits.write_bytes", "limits.write_files", "limits.memory",
	}
	rep := RunBackend(t.Context(), newLocal(t, boast), sandboxrun.Spec{}, Case{Grace: 3 * time.Second})
	expectStatuses(t, rep, func(f Finding) Status {
		if slices.Contains(want, f.Rule) {
			return Failed
		}
		return Passed
	})
}

// TestLocalIsModest: what is not promised is skipped, and that is not OK where
// the rule is required. What every backend promises fails as before.
func TestLocalIsModest(t *testing.T) {
	fails := []string{"artifact.content", "artifact.declared_only", "artifact.declaration_checked", "artifact.no_symlinks", "artifact.bounded"}
	undeclared := []string{
		"lifecycle.closed_handle_rejected", "execute.exit_kills_tree", "execute.timeout_kills_tree", "execute.cancel_kills_tree", "execute.output_cap",
		"execute.output_limit", "env.scrubbed", "fs.read_only_enforced", "fs.host_invisible", "fs.handles_apart", "proc.handles_apart", "net.host_unreachable",
		"lifecycle.closed_handle_artifacts", "lifecycle.close_during_execute", "lifecycle.nothing_left",
		"limits.processes", "limits.open_files", "limits.write_bytes", "limits.write_files", "limits.memory",
	}
	rep := RunBackend(t.Context(), newLocal(t, modest), sandboxrun.Spec{}, Case{Grace: 3 * time.Second})
	expectStatuses(t, rep, func(f Finding) Status {
		switch {
		case slices.Contains(fails, f.Rule):
			return Failed
		case slices.Contains(undeclared, f.Rule) && f.Reason == Undeclared:
			return Skipped
		}
		return Passed
	})
	if rep.OK() {
		t.Error("the report is OK")
	}
}

func expectStatuses(t *testing.T, rep Report, want func(Finding) Status) {
	t.Helper()
	if len(rep.Findings) != len(backendRules()) {
		t.Errorf("%d findings of %d rules", len(rep.Findings), len(backendRules()))
	}
	for _, f := range rep.Findings {
		if w := want(f); f.Status != w {
			t.Errorf("%s: %s %s, want %s: %s", f.Rule, f.Status, f.Reason, w, f.Detail)
		}
	}
}

// newLocal makes a backend and kills, at the end, what its commands have left.
func newLocal(t *testing.T, c sandboxrun.Capabilities) *local {
	l := &local{caps: c, base: t.TempDir()}
	t.Cleanup(func() {
		links, _ := filepath.Glob("/proc/[0-9]*/cwd")
		for _, link := range links {
			if cwd, err := os.Readlink(link); err == nil && strings.HasPrefix(cwd, l.base+"/") {
				if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		}
	})
	return l
}
