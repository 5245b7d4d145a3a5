package pyenv

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// Env is the Python environments of a daemon. Its methods may be called by many
// goroutines at once, and several processes may share an environment root.
type Env struct {
	o     Options
	base  []item
	locks fs.FS // with locks/base-*.json
	now   func() time.Time

	life   context.Context // of what goes on in the background
	end    context.CancelFunc
	work   sync.WaitGroup
	opened sync.Mutex // held while the root is opened

	desk  desk  // where requests are worked on
	facts facts // of wheels

	mu      sync.Mutex // held for looks at what follows only
	closed  bool
	root    *store.Root
	own     *python.Interpreter            // the one that the options lead to
	known   map[string]*python.Interpreter // proved in this process, by id
	touched map[string]time.Time           // when their last use was noted
	making  *attempt
	failed  failure
	booted  bool // boot/ is as it has to be
	warmed  bool // Warm was called
	tasks   []*task
	told    string // the last reason that was logged
}

// Options say where environments are and what they are made of.
type Options struct {
	// Root is the environment root, an absolute path. It is made when something is
	// to be put there, for this user alone. "" is none: scripts get the Python of
	// the host, and nothing can be built.
	Root string
	// Box is what everything is run in. Nil: nothing can be run here.
	Box *sandboxrun.Runner
	// Prefix is the interpreter to use: the absolute path of a directory, or with
	// SHA256 that of an archive; see python.Options. "" is the Python of the system.
	Prefix string
	SHA256 string
	// PipWheel is the path of the pip that resolves packages. "" is the pinned one,
	// fetched from the index when it is needed.
	PipWheel string
	// HostPath is the PATH of who asks. Doctor tells what is on it, and nothing of it
	// is ever run.
	HostPath []string
	// HostPythons is where the Python is looked for that scripts get when there is no
	// managed one, best first; nil is /usr/bin/python3 and /usr/local/bin/python3.
	HostPythons []string
	// Strict has every file of the interpreter and the layers read and compared before each
	// run; one that differs is run by nobody, and neither is anything in its place. Without
	// it owner and modes are looked at, and Doctor compares.
	Strict bool
	// Queue keeps the requests of workspaces and what they are bound to. Nil: there are
	// none, all scripts get what is current, and nobody can ask for packages. Of all Envs
	// over one database one has it.
	Queue *queue.Queue
	// Record writes what happens to a request into the log, before it happens. Its error
	// keeps it from happening. Nil: nothing is written.
	Record func(context.Context, Deed) error
	// Waiting, if set, is told of each request that begins to wait for a person. It must
	// not block.
	Waiting func(queue.Request)

	Logger *slog.Logger // nil discards
}

// Open returns the environments of a root. It starts no process, asks no network and
// writes nothing, so that it costs a daemon's start nothing.
//
// Errors: *Error of code bad_config.
func Open(o Options) (*Env, error) {
	if o.Root != "" && (!filepath.IsAbs(o.Root) || filepath.Clean(o.Root) != o.Root) {
		return nil, &Error{Code: ErrBadConfig, Sentence: "the directory of the Python environments is no absolute path", Detail: o.Root}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.HostPythons == nil {
		o.HostPythons = []string{"/usr/bin/python3", "/usr/local/bin/python3"}
	}
	base, err := parseBase(baseText)
	if err != nil {
		return nil, err
	}
	e := &Env{o: o, base: base, locks: lockFiles, now: time.Now, known: map[string]*python.Interpreter{}, touched: map[string]time.Time{}}
	e.life, e.end = context.WithCancel(context.Background())
	e.desk = newDesk()
	return e, nil
}

// Close ends what goes on in the background, waits for it and for all calls of
// Ensure, Lock, Import, Doctor and GC, which end early, and releases the root. Scripts
// that run keep what they have. Closing twice is no error.
func (e *Env) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.end()
	e.work.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	root := e.root
	if e.root = nil; root == nil {
		return nil
	}
	return root.Close()
}

// errClosed is why calls end that were under way when the Env was closed.
var errClosed = errors.New("the Python environments were closed")

// enter counts a call that Close waits for, and ends its context with the Env.
func (e *Env) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, nil, errClosed
	}
	e.work.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.life, func() { cancel(errClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		e.work.Done()
	}, nil
}

// store opens the root, unless it is open. A failure is tried again the next time.
func (e *Env) store() (*store.Root, error) {
	if e.o.Root == "" {
		return nil, &Error{Code: ErrNoRoot, Sentence: "there is no directory for Python environments here"}
	}
	e.opened.Lock()
	defer e.opened.Unlock()
	e.mu.Lock()
	root, closed := e.root, e.closed
	e.mu.Unlock()
	switch {
	case closed:
		return nil, errClosed
	case root != nil:
		return root, nil
	}
	root, err := store.Open(e.o.Root)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errors.Join(errClosed, root.Close())
	}
	e.root = root
	return root, nil
}

// task is something that is at work, for Status.
type task struct {
	ws   string // the workspace that it is for, "" for all
	text string
}

// begin notes that something is at work; say tells how far it is.
func (e *Env) begin(text string) (say func(string), end func()) { return e.beginFor("", text) }

// beginFor is begin for one workspace, which alone is told.
func (e *Env) beginFor(ws, text string) (say func(string), end func()) {
	t := &task{ws, text}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tasks = append(e.tasks, t)
	say = func(text string) {
		e.mu.Lock()
		defer e.mu.Unlock()
		t.text = text
	}
	end = func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		for i := range e.tasks {
			if e.tasks[i] == t {
				e.tasks = append(e.tasks[:i:i], e.tasks[i+1:]...)
				return
			}
		}
	}
	return say, end
}
