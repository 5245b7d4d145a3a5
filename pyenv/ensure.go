package pyenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// EnsureRequest is what Ensure and Lock are asked for.
type EnsureRequest struct {
	Pip    resolve.Config // of who asks; used when something has to be asked of an index
	Relock bool           // resolve anew, whatever lock there is
	Repair bool           // read every file of the interpreter and the layer, and make anew what differs
	// Progress is told of every step, if it is set. Calls do not overlap; the work waits
	// for them.
	Progress func(Progress)
}

// Progress is how far Ensure or Lock is.
type Progress struct {
	Step    Step
	Package string // that was done, "" at the beginning of a step
	Done    int64  // bytes of StepFetch, packages of StepBuild
	Total   int64
	Text    string // the same as a clause, for a person
}

// Step is a part of Ensure or Lock.
type Step string

// The steps, in their order. Those for which nothing is to be done are left out.
const (
	StepWait    Step = "wait" // for another process that is at the same
	StepPython  Step = "python"
	StepTool    Step = "tool"    // the pip that resolves and fetches
	StepLock    Step = "lock"    // which packages it shall be
	StepFetch   Step = "fetch"   // their wheels
	StepBuild   Step = "build"   // the layer
	StepProbe   Step = "probe"   // its imports, in the sandbox
	StepCurrent Step = "current" // new workspaces get it from now on
	StepDone    Step = "done"
)

// EnsureReport is what Ensure has done.
type EnsureReport struct {
	Python       string        `json:"python"` // ids
	Base         string        `json:"base"`
	Lock         string        `json:"lock"`
	Packages     []Package     `json:"packages"` // of the base
	Fetched      int           `json:"fetched"`  // wheels
	FetchedBytes int64         `json:"fetched_bytes"`
	Built        bool          `json:"built"`            // the layer was not there before
	Remade       bool          `json:"remade"`           // the interpreter was repaired
	Mended       []string      `json:"mended,omitempty"` // layers of workspaces that were built again
	Notes        []string      `json:"notes"`            // sentences for the operator
	Took         time.Duration `json:"took_ns"`
}

// Ensure makes sure that there is a base layer: the interpreter, a lock, its wheels,
// the layer built of them, its packages imported once in the sandbox, and then made
// current. What is there already is used; when all of it is, no network is asked and it
// takes well under a second.
//
// The lock is the newest of that which Lock made, that of the current layer and the one
// that came with this program; without one that fits the interpreter and the list of
// packages it is resolved by the request's pip configuration. Nothing of an index is
// asked for a lock whose wheels are all there.
//
// One is at work in a root at a time, whatever the process; others wait. An error, a
// ctx that ends and a killed process leave the current layer as it was, and what was
// fetched for the next time.
//
// Errors: *Error; the cause of ctx, wrapped.
func (e *Env) Ensure(ctx context.Context, q EnsureRequest) (EnsureReport, error) {
	w := newMaker(e, q)
	err := w.alone(ctx, "making the base layer", w.ensure)
	w.rep.Took = e.now().Sub(w.start)
	return w.rep, err
}

// Lock resolves the base list and what was imported for it anew, and keeps the lock:
// the next Ensure builds it. Nothing is built now. Errors: as Ensure.
func (e *Env) Lock(ctx context.Context, q EnsureRequest) (lock.Lock, error) {
	w := newMaker(e, q)
	err := w.alone(ctx, "resolving the packages of the base", func(ctx context.Context) error {
		if err := w.python(ctx); err != nil {
			return err
		}
		return w.resolve(ctx)
	})
	return w.lock, err
}

// maker is one run of Ensure or Lock.
type maker struct {
	q     EnsureRequest
	start time.Time
	say   func(string)

	*supply
	extras []lock.Package
	lock   lock.Lock
	own    bool // the lock is the one that came with this program
	layer  *store.Layer
	rep    EnsureReport
}

func newMaker(e *Env, q EnsureRequest) *maker {
	w := &maker{q: q, start: e.now()}
	w.supply = &supply{e: e, config: q.Pip, tell: w.tell, note: w.note}
	return w
}

// alone runs what makes something in the root when nobody else does.
func (w *maker) alone(ctx context.Context, what string, run func(context.Context) error) error {
	ctx, leave, err := w.e.enter(ctx)
	if err != nil {
		return tell(context.Background(), err)
	}
	defer leave()
	say, end := w.e.begin(what)
	defer end()
	w.say = say
	unlock, err := w.claim(ctx)
	if err == nil {
		defer unlock()
		err = run(ctx)
	}
	if err = w.blame(tell(ctx, err)); err != nil {
		// No warning: whoever asked for it is told.
		w.e.o.Logger.Info("a Python environment could not be made", "doing", what, "error", err, "detail", detailOf(err))
	}
	return err
}

// blame adds to an error of the packages that some of them were imported: whoever
// imported one that cannot be built with the others has to know how to be rid of it.
func (w *maker) blame(err error) error {
	var e *Error
	if !errors.As(err, &e) || !slices.Contains(ofPackages, e.Code) || len(w.extras) == 0 {
		return err
	}
	told := *e
	told.Hint = strings.Join(slices.DeleteFunc([]string{e.Hint, importedForBase(w.extras)}, func(s string) bool { return s == "" }), "; ")
	return &told
}

// ofPackages are the codes of errors that an imported package may be the reason of.
var ofPackages = []Code{ErrProbe, ErrSize, "import_collision", "missing_wheel", "hash_mismatch", Code(resolve.ErrNoSolution), Code(resolve.ErrNotFound), ErrNoFit, Code(resolve.ErrSdistOnly)}

func detailOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Detail
	}
	return ""
}

// claim opens the root and waits for its ensure lock.
func (w *maker) claim(ctx context.Context) (unlock func(), err error) {
	if w.root, err = w.e.store(); err != nil {
		return nil, err
	}
	if w.e.o.Box == nil {
		return nil, &Error{Code: ErrNoSandbox, Sentence: "Python is tried out in a sandbox only, and there is none on this host", Hint: "mcp-vdisk doctor says what is missing"}
	}
	return w.e.claim(ctx, func() {
		w.tell(Progress{Step: StepWait, Text: "waiting for another process that makes the environments"})
	})
}

// claim waits until nobody else makes anything in the root. The lock goes with the
// process.
func (e *Env) claim(ctx context.Context, waiting func()) (unlock func(), err error) {
	f, err := e.lockRoot(ctx, true, waiting)
	if err != nil {
		return nil, err
	}
	if err := sweepTop(e.o.Root); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// lockRoot takes the ensure lock, alone or shared, until the file is closed. waiting is
// called when somebody else has it.
func (e *Env) lockRoot(ctx context.Context, alone bool, waiting func()) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(e.o.Root, ensureFile), os.O_RDWR|os.O_CREATE|hostos.NonBlock, 0o600)
	if err != nil {
		return nil, err
	}
	free, err := hostos.TryLock(f, alone)
	if err == nil && !free {
		waiting()
		err = hostos.Lock(ctx, f, alone)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (w *maker) ensure(ctx context.Context) error {
	steps := []func(context.Context) error{w.python, w.choose, w.fetch, w.build, w.probe, w.publish, w.repairBound}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	w.rep.Packages = packagesOf(w.layer)
	w.tell(Progress{Step: StepDone, Text: "the base layer is ready"})
	return nil
}

func (w *maker) python(ctx context.Context) (err error) {
	w.tell(Progress{Step: StepPython, Text: "looking at the Python that scripts run"})
	if w.q.Repair {
		err = w.repairPython(ctx)
	} else {
		w.it, err = w.e.make(ctx)
	}
	if err != nil {
		return err
	}
	w.rep.Python = w.it.ID
	w.extras, err = w.e.extras()
	return err
}

// repairPython makes the interpreter again if it is not as it was made. One that a script
// runs stays, which is an error.
func (w *maker) repairPython(ctx context.Context) (err error) {
	w.tell(Progress{Step: StepPython, Text: "looking at every file of the Python that scripts run"})
	var faults []python.Fault
	w.it, faults, err = w.e.repair(ctx)
	if err == nil && len(faults) > 0 {
		w.rep.Remade = true
		w.note("The Python that scripts run was not as it was made, first %s (%s); it was made again.", faults[0].Path, faults[0].Kind)
	}
	return err
}

// fetch gets the wheels of the lock that are not in the wheelhouse.
func (w *maker) fetch(ctx context.Context) error {
	n, size, err := w.supply.fetch(ctx, w.lock)
	w.rep.Fetched += n
	w.rep.FetchedBytes += size
	if w.own && errors.Is(err, resolve.ErrNotFound) {
		w.note("The index does not have all packages that mcp-vdisk was tried with; newer or older ones were resolved.")
		if err := w.resolve(ctx); err != nil {
			return err
		}
		return w.fetch(ctx)
	}
	return err
}

// build builds the layer, unless it is there.
func (w *maker) build(ctx context.Context) error {
	id, err := w.root.PutLock(w.lock)
	if err != nil {
		return err
	}
	w.rep.Lock = id
	if w.q.Repair {
		if err := w.repair(ctx); err != nil {
			return err
		}
	}
	w.layer, err = w.root.Build(ctx, store.Build{Lock: w.lock, Python: w.it, Box: w.e.o.Box, Progress: func(s store.Step) {
		w.rep.Built = w.rep.Built || s.Stage == store.StagePublish
		w.tell(Progress{Step: StepBuild, Package: s.Package, Done: int64(s.Done), Total: int64(s.Total), Text: buildText(s)})
	}})
	if err == nil {
		w.rep.Base = w.layer.ID
	}
	return err
}

// repair drops the layer if it is there and not as it was built.
func (w *maker) repair(ctx context.Context) error {
	id, err := w.lock.LayerID()
	if err != nil {
		return err
	}
	l, err := w.root.Layer(id)
	if err != nil {
		return nil // it is not there, or Build replaces it
	}
	w.tell(Progress{Step: StepBuild, Text: "looking at every file of the layer"})
	faults, err := w.root.Verify(ctx, l)
	if err != nil || len(faults) == 0 {
		return err
	}
	w.note("The layer was not as it was built, first %s (%s); it was built again.", faults[0].Path, faults[0].Kind)
	return w.root.Drop(id)
}

func buildText(s store.Step) string {
	text := map[store.Stage]string{
		store.StageWait: "waiting for another build of this layer", store.StageOpen: "checking the wheels", store.StageUnpack: "unpacking the wheels",
		store.StageCompile: "compiling", store.StageFonts: "looking for fonts", store.StageSync: "writing the layer to disk",
		store.StagePublish: "the layer is complete", store.StageDone: "the layer can be used",
	}[s.Stage]
	if s.Package != "" {
		text = fmt.Sprintf("%s, %d of %d", text, s.Done, s.Total)
	}
	return text
}

// publish makes the layer current.
func (w *maker) publish(context.Context) error {
	want := w.current()
	if have, err := w.root.Current(); err == nil && have == want {
		return nil
	}
	w.tell(Progress{Step: StepCurrent, Text: "new workspaces get this base from now on"})
	return w.root.SetCurrent(want)
}

func (w *maker) current() store.Current {
	return store.Current{Layer: w.layer.ID, Lock: w.rep.Lock, Python: w.it.ID}
}

func (w *maker) tell(p Progress) {
	w.say(p.Text)
	if w.q.Progress != nil {
		w.q.Progress(p)
	}
}

func (w *maker) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(w.rep.Notes, n) {
		w.rep.Notes = append(w.rep.Notes, n)
	}
}
