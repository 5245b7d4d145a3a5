package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/tags"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// Build is what a layer is built from.
type Build struct {
	Lock   lock.Lock
	Python *python.Interpreter // the one that the lock is for
	Over   []*Layer            // what it will be used with: it may hide none of their modules
	Box    *sandboxrun.Runner  // compiles the sources

	// Progress, if set, is told when a step begins, and of each wheel that was
	// done. Calls do not overlap; the build waits for them.
	Progress func(Step)
}

// Step is where a build is.
type Step struct {
	Stage   Stage
	Package string // the wheel that was done, "" at the beginning of a stage
	Done    int    // wheels that were done
	Total   int    // of them
}

// Stage is a part of a build.
type Stage string

// The stages, in their order. StageWait comes only when another process builds the
// same layer, StageFonts only for layers with matplotlib.
const (
	StageWait    Stage = "wait"
	StageOpen    Stage = "open"    // hashes, and all that can be checked without contents
	StageUnpack  Stage = "unpack"  // into the directory of the build
	StageCompile Stage = "compile" // bytecode
	StageFonts   Stage = "fonts"   // matplotlib's font cache
	StageSync    Stage = "sync"    // the manifest, and all on disk
	StagePublish Stage = "publish" // the directory gets its name
	StageDone    Stage = "done"    // the layer can be used
)

// Build builds a layer from wheels of the wheelhouse, or returns the one that is
// there. It stores the lock. Nothing of a wheel is run but its import of
// matplotlib's font manager, and that, like the compiler, in the sandbox.
//
// It may be called by several processes at once: one builds, the others wait. A
// layer is complete when it can be seen; a process that is killed leaves a
// directory that is never looked at, and that the next Open or Build removes.
//
// Errors: *wheel.Error for a wheel that breaks a rule; *Error: ErrMissingWheel,
// hash_mismatch (the wheel is then dropped from the wheelhouse),
// import_collision, ErrPython, ErrNoFit, ErrBytecode, ErrDiskFull, ErrInUse (a
// damaged layer of this id cannot be replaced while scripts use it);
// lock.ErrInvalid; those of sandboxrun.Runner.Run; the cause of ctx's end.
func (r *Root) Build(ctx context.Context, b Build) (*Layer, error) {
	id, err := b.Lock.LayerID()
	if err != nil {
		return nil, err
	}
	lockID, err := r.PutLock(b.Lock)
	if err != nil {
		return nil, err
	}
	if l, err := r.ready(id); l != nil || err != nil {
		return l, err
	}
	if err := b.check(); err != nil {
		return nil, err
	}
	w := &builder{Build: b, root: r, id: id, lockID: lockID}
	release, err := r.claim(ctx, id, func() { w.stage(StageWait) })
	if err != nil {
		return nil, full(err)
	}
	defer release()
	if l, err := r.ready(id); l != nil || err != nil {
		return l, err
	}
	if err := w.build(ctx); err != nil {
		return nil, full(err)
	}
	l, err := r.Layer(id)
	if err == nil {
		w.stage(StageDone)
	}
	return l, err
}

// ready returns a layer that is there already. A damaged one is thrown away.
func (r *Root) ready(id string) (*Layer, error) {
	l, err := r.Layer(id)
	switch {
	case err == nil:
		r.touch(layersDir + "/" + id)
		return l, nil
	case errors.Is(err, ErrLayerTampered):
		return nil, r.Drop(id)
	case errors.Is(err, ErrNotFound):
		return nil, nil
	}
	return nil, err
}

// check compares the lock with what it is to be used with.
func (b Build) check() error {
	if b.Box == nil || b.Python == nil {
		return fmt.Errorf("build a layer: %w", sandboxrun.ErrUnavailable)
	}
	facts, want := b.Python.Facts, b.Lock.Python
	have := strings.SplitN(facts.Target.String(), "-", 3) // cp312-cp312-manylinux_2_36_x86_64
	if facts.Full != want.Full || have[0] != want.Tag || have[2] != want.Platform {
		return refuse(ErrPython, "", "the lock is for Python %s on %s, the interpreter is %s on %s", want.Full, want.Platform, facts.Full, have[2]).
			suggest("make a new lock for this interpreter")
	}
	for _, l := range b.Over {
		if l.Manifest.Python != want {
			return refuse(ErrPython, "", "the lock is for Python %s, layer %s is for %s", want.Full, l.ID, l.Manifest.Python.Full).
				suggest("make a new lock over the current base")
		}
	}
	for _, p := range b.Lock.Packages {
		f, err := tags.ParseFile(p.File)
		if err != nil {
			return err
		}
		if _, ok := facts.Target.Fits(f); !ok {
			return refuse(ErrNoFit, p.Name, "its wheel is for %s, wanted is %s", f.Tag, facts.Target)
		}
	}
	return nil
}

// builder is one build under way.
type builder struct {
	Build
	root       *Root
	id, lockID string

	dir    string   // of the build, below the root
	tree   *os.Root // that directory
	wheels []*opened
	layer  Manifest

	mu   sync.Mutex // of Progress and done
	done int
}

func (w *builder) build(ctx context.Context) (err error) {
	for _, dead := range w.root.builds(w.id) {
		if err := w.root.root.RemoveAll(dead); err != nil {
			return err
		}
	}
	defer w.close()
	if err := w.open(ctx); err != nil {
		return err
	}
	if err := w.collide(); err != nil {
		return err
	}
	if err := w.begin(); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{w.unpack, w.compile, w.fonts, w.sync, w.publish} {
		if err = context.Cause(ctx); err == nil {
			err = step(ctx)
		}
		if err != nil {
			w.tree.Close()
			return errors.Join(err, w.root.root.RemoveAll(w.dir))
		}
	}
	return w.tree.Close()
}

// begin makes the directory of the build.
func (w *builder) begin() error {
	w.dir = layersDir + "/" + tmpPrefix + w.id + "-" + rand.Text()
	if err := w.root.root.Mkdir(w.dir, 0o700); err != nil {
		return err
	}
	if err := w.root.root.Chmod(w.dir, 0o755); err != nil { // whatever the umask is
		return err
	}
	tree, err := w.root.root.OpenRoot(w.dir)
	w.tree = tree
	return err
}

// hostDir is the build's directory as the sandbox needs it.
func (w *builder) hostDir() string { return w.root.path(w.dir) }

// sync writes the manifest, behind all that it lists, and makes all of it durable.
func (w *builder) sync(context.Context) error {
	w.stage(StageSync)
	if err := w.writeManifest(); err != nil {
		return err
	}
	return hostos.SyncTree(w.tree)
}

// publish gives the layer its name.
func (w *builder) publish(context.Context) error {
	w.stage(StagePublish)
	err := w.root.root.Rename(w.dir, layersDir+"/"+w.id)
	if errors.Is(err, fs.ErrExist) { // where locks are not seen by all: theirs is as good
		return w.root.root.RemoveAll(w.dir)
	}
	if err != nil {
		return err
	}
	return hostos.SyncDir(filepath.Join(w.root.dir, layersDir))
}

// stage tells that a stage begins.
func (w *builder) stage(s Stage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = 0
	w.tell(Step{Stage: s, Total: len(w.Lock.Packages)})
}

// wheelDone tells that one more wheel was done.
func (w *builder) wheelDone(s Stage, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done++
	w.tell(Step{Stage: s, Package: name, Done: w.done, Total: len(w.Lock.Packages)})
}

func (w *builder) tell(s Step) {
	if w.Progress != nil {
		w.Progress(s)
	}
}
