package sandboxrun

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync/atomic"
)

// NewBackend returns the Backend on r. Every handle has a directory in
// Config.Scratch, which must be set: its workspace, to which the changes of each
// Execute are applied once the command has ended, however it has ended; those
// of an Execute that returns an error are dropped. Modes and times are kept, but
// for the times of links; what is no file, directory or link is not. A crash of this process
// leaves the directories for the next New to remove.
//
// Commands of one handle run one after the other. One of them can make the
// workspace larger by Limits.WriteBytes, not more: what it leaves may also not
// seem larger than that (sparse files, many links to one) or Execute returns
// ErrPolicy. There is no limit on all commands of a handle together.
func NewBackend(r *Runner) (Backend, error) {
	if r.cfg.Scratch == "" {
		return nil, errors.New("sandboxrun: a backend needs a Scratch directory")
	}
	return &bwrapBackend{r}, nil
}

type bwrapBackend struct{ r *Runner }

// workspace is the handle of a bwrapBackend.
type workspace struct {
	backend *bwrapBackend
	id      string
	spec    Spec
	tree    *workTree    // nil when the spec is read-only
	drop    func() error // removes tree

	closed atomic.Bool
	life   context.Context // ends with Close
	end    context.CancelCauseFunc
	turn   chan struct{} // holds a value while something uses the tree
}

func (w *workspace) ID() string   { return w.id }
func (w *workspace) Closed() bool { return w.closed.Load() }

// Capabilities says what bubblewrap and the stage see to. Memory is promised where
// Runner.Limits says that a control group limits it, so Runner.Probe, which looks
// whether groups hold, is best called before.
func (b *bwrapBackend) Capabilities() Capabilities {
	c := Capabilities{
		BackendID: "bwrap", FilesystemIsolation: OverlayWorkspace, NetworkControl: NetworkEnforced,
		ProcessBoundary: true, RequestTimeout: true, CooperativeCancellation: true, ArtifactCollection: true, DeterministicCleanup: true,
		ReadOnlyEnforced: true, EnvScrub: true, TreeKill: true, OutputCap: true,
		HardLimits: []HardLimit{HardProcesses, HardOpenFiles},
	}
	if !b.r.onDisk() {
		c.HardLimits = append(c.HardLimits, HardWriteBytes, HardWriteFiles)
	}
	if i := slices.IndexFunc(b.r.Limits(), func(e Enforcement) bool { return e.Resource == "memory" && e.By != ByRlimit }); i >= 0 {
		c.HardLimits = append(c.HardLimits, HardMemory)
	}
	return c
}

// Create makes a directory and copies Spec.Workspace into it. A workspace that
// is read-only is not copied.
func (b *bwrapBackend) Create(ctx context.Context, s Spec) (Handle, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("sandboxrun: %w", context.Cause(ctx))
	}
	if err := admit(s); err != nil {
		return nil, fmt.Errorf("sandboxrun: %w", err)
	}
	w := &workspace{backend: b, id: "bwrap-" + rand.Text(), spec: s, drop: func() error { return nil }, turn: make(chan struct{}, 1)}
	if !s.ReadOnly {
		dir, drop, err := makeLocked(b.r.cfg.Scratch, scratchPrefix)
		if err != nil {
			return nil, setupFailed("the scratch directory cannot be used: "+errnoText(err), "", "")
		}
		w.drop = drop
		if w.tree, err = newWorkTree(ctx, dir, s.Workspace); err != nil {
			return nil, errors.Join(err, drop())
		}
	}
	w.life, w.end = context.WithCancelCause(context.Background())
	return w, nil
}

// admit checks a spec.
func admit(s Spec) error {
	if len(s.Egress) > 0 {
		return fmt.Errorf("%w: there is no network", ErrPolicy)
	}
	for _, a := range s.Artifacts {
		if !validPath([]byte(a)) {
			return fmt.Errorf("%w: artifact %q is not a path inside of the workspace", ErrPolicy, a)
		}
	}
	if err := (Run{Lower: s.Workspace, Argv: []string{"/"}, Env: environ(s)}).check(); err != nil {
		return fmt.Errorf("%w: %w", ErrPolicy, err)
	}
	for k := range s.Env {
		if slices.Contains([]byte(k), '=') {
			return fmt.Errorf("%w: environment variable %q", ErrPolicy, k)
		}
	}
	if s.Workspace == "" {
		return nil
	}
	info, err := os.Lstat(s.Workspace)
	if err == nil && !info.IsDir() {
		err = fs.ErrInvalid
	}
	if err != nil {
		return setupFailed("the workspace directory cannot be opened: "+errnoText(err), "", "")
	}
	return nil
}

// environ is Spec.Env as Run has it.
func environ(s Spec) []string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(s.Env)) {
		list = append(list, k+"="+s.Env[k])
	}
	return list
}

// Execute runs one command over the tree and applies what it changed.
func (b *bwrapBackend) Execute(ctx context.Context, h Handle, q Request) (Result, error) {
	none := Result{Outcome: SetupFailed, ExitCode: -1}
	w, err := b.enter(ctx, h)
	if err != nil {
		return none, err
	}
	defer w.leave()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(w.life, func() { cancel(context.Cause(w.life)) })()
	run := Run{Lower: w.spec.Workspace, ReadOnly: w.spec.ReadOnly, Argv: q.Argv, Env: environ(w.spec), Stdin: q.Stdin, Limits: w.spec.Limits}
	switch {
	case q.Timeout < 0:
		return none, setupFailed("the timeout is negative", "", "")
	case q.Timeout > 0:
		run.Limits.Timeout = q.Timeout
	}
	if w.tree == nil {
		return b.r.Run(ctx, run, nil)
	}
	run.Lower = w.tree.dir()
	c, err := w.tree.collect(run.Limits.Filled().WriteBytes)
	if err != nil {
		return none, setupFailed("the scratch directory cannot be used: "+errnoText(err), "", "")
	}
	res, err := b.r.Run(ctx, run, c.add)
	if err != nil {
		return res, errors.Join(err, c.drop())
	}
	if err := c.apply(); err != nil {
		// The tree is neither what it was nor what the command left.
		w.shut()
		return res, fmt.Errorf("sandboxrun: %w: changes could not be applied: %s", ErrClosed, errnoText(err))
	}
	return res, nil
}

// enter takes the handle for one call; leave gives it back.
func (b *bwrapBackend) enter(ctx context.Context, h Handle) (*workspace, error) {
	w, err := b.own(h)
	if err != nil {
		return nil, err
	}
	select {
	case w.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("sandboxrun: %w", context.Cause(ctx))
	case <-w.life.Done():
		return nil, fmt.Errorf("sandboxrun: %w", ErrClosed)
	}
	// Several of the three may have been ready.
	switch {
	case w.Closed():
		err = ErrClosed
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	default:
		return w, nil
	}
	w.leave()
	return nil, fmt.Errorf("sandboxrun: %w", err)
}

func (w *workspace) leave() { <-w.turn }

// own returns the workspace of a handle that this backend has made.
func (b *bwrapBackend) own(h Handle) (*workspace, error) {
	w, ok := h.(*workspace)
	if !ok || w == nil || w.backend != b {
		return nil, fmt.Errorf("sandboxrun: %w", ErrForeignHandle)
	}
	return w, nil
}

// Artifacts reads them. A file or a directory that its mode closes is opened up
// while it is read.
func (b *bwrapBackend) Artifacts(ctx context.Context, h Handle) ([]Artifact, error) {
	w, err := b.enter(ctx, h)
	if err != nil {
		return nil, err
	}
	defer w.leave()
	if w.tree == nil {
		return []Artifact{}, nil // nothing can have been left
	}
	limit := w.spec.ArtifactBytes
	orDefault(&limit, DefaultArtifactBytes)
	list, err := w.tree.artifacts(ctx, w.spec.Artifacts, limit)
	if err != nil {
		return nil, fmt.Errorf("sandboxrun: artifacts: %w", err)
	}
	return list, nil
}

// Close waits for the death of what runs. Cut short by ctx, or unable to remove
// the workspace, it can be called again to do the rest.
func (b *bwrapBackend) Close(ctx context.Context, h Handle) error {
	w, err := b.own(h)
	if err != nil {
		return err
	}
	w.shut()
	select {
	case w.turn <- struct{}{}:
	default:
		select {
		case w.turn <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("sandboxrun: %w", context.Cause(ctx))
		}
	}
	defer w.leave()
	if w.tree != nil {
		w.tree.close()
	}
	if err := w.drop(); err != nil {
		return setupFailed("the workspace cannot be removed: "+errnoText(err), "", "")
	}
	return nil
}

func (w *workspace) shut() {
	w.closed.Store(true)
	w.end(ErrClosed)
}
