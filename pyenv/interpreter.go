package pyenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
)

// Warm makes the interpreter ready in the background, a second from now, so that the
// first script need not wait for it. It returns at once, and does something once.
func (e *Env) Warm() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.o.Root == "" || e.o.Box == nil || e.closed || e.warmed {
		return
	}
	e.warmed = true
	e.work.Go(func() {
		timer := time.NewTimer(warmAfter)
		defer timer.Stop()
		select {
		case <-timer.C:
			e.warm()
		case <-e.life.Done():
		}
	})
}

// warm loads the interpreter of the base, or begins to make one.
func (e *Env) warm() {
	if root, err := e.store(); err == nil {
		if cur, err := root.Current(); err == nil {
			if _, err := e.load(e.life, cur.Python); err == nil {
				return
			}
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.own == nil {
		e.attempt()
	}
}

const (
	// warmAfter leaves the time in which a session begins to the session.
	warmAfter = time.Second
	// makeWait is how long one script waits for the interpreter.
	makeWait = 15 * time.Second
	// retryTime is how long after a failure nothing is tried again.
	retryTime = time.Minute
	// touchTime is how often the use of an interpreter is noted on disk.
	touchTime = time.Hour
)

// errWait: the interpreter was not ready in time.
var errWait = errors.New("the interpreter is being made")

// attempt is one making of the interpreter.
type attempt struct {
	done chan struct{} // closed at its end
	it   *python.Interpreter
	err  error
}

// failure is why the last attempt made nothing.
type failure struct {
	err error
	at  time.Time
}

// interpreter returns the one that the options lead to, and waits for its making.
func (e *Env) interpreter(ctx context.Context) (*python.Interpreter, error) {
	e.mu.Lock()
	own := e.own
	var a *attempt
	if own == nil {
		a = e.attempt()
	}
	last := e.failed.err
	e.mu.Unlock()
	switch {
	case own != nil && there(own):
		return own, nil
	case own != nil: // somebody removed it
		e.forget(own)
		return e.interpreter(ctx)
	case a == nil:
		return nil, last
	}
	select {
	case <-a.done:
		return a.it, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// attempt returns the making that goes on, or begins one; nil shortly after a failure
// and after Close. mu is held.
func (e *Env) attempt() *attempt {
	switch {
	case e.making != nil:
		return e.making
	case e.closed:
		e.failed.err = errClosed
		return nil
	case e.failed.err != nil && e.now().Sub(e.failed.at).Abs() < retryTime:
		return nil
	}
	a := &attempt{done: make(chan struct{})}
	e.making = a
	e.work.Go(func() {
		_, end := e.begin("making the Python that scripts run")
		defer end()
		a.it, a.err = e.make(e.life)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.making = nil
		e.failed = failure{a.err, e.now()}
		close(a.done)
	})
	return a
}

// make makes the interpreter, or finds it made.
func (e *Env) make(ctx context.Context) (*python.Interpreter, error) {
	return e.obtain(ctx, func(root string) (*python.Interpreter, error) {
		return python.Make(ctx, root, e.pythonOptions(), e.o.Box)
	})
}

// repair reads all of the interpreter, and makes it again if something differs. found is
// what did.
func (e *Env) repair(ctx context.Context) (it *python.Interpreter, found []python.Fault, err error) {
	it, err = e.obtain(ctx, func(root string) (it *python.Interpreter, err error) {
		it, found, err = python.Repair(ctx, root, e.pythonOptions(), e.o.Box)
		return it, err
	})
	return it, found, err
}

// obtain keeps the interpreter that get returns as the one that the options lead to.
func (e *Env) obtain(ctx context.Context, get func(root string) (*python.Interpreter, error)) (*python.Interpreter, error) {
	root, err := e.store()
	if err != nil {
		return nil, err
	}
	start := e.now()
	it, err := get(root.Dir())
	if err != nil {
		if ctx.Err() == nil {
			// No warning: whoever needs it warns, or tells.
			e.o.Logger.Info("the Python that scripts run could not be made; they get that of the host", "error", err)
		}
		return nil, err
	}
	e.o.Logger.Info("the Python that scripts run is ready", "id", it.ID, "version", it.Facts.Full, "took", e.now().Sub(start).Round(time.Millisecond))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.own, e.known[it.ID] = it, it
	return it, nil
}

func (e *Env) pythonOptions() python.Options {
	o := python.Options{HostPath: e.o.HostPath}
	if e.o.SHA256 != "" {
		o.Archive, o.SHA256 = e.o.Prefix, e.o.SHA256
	} else {
		o.Prefix = e.o.Prefix
	}
	return o
}

// load returns an interpreter of the root by its id, proved once in this process.
func (e *Env) load(ctx context.Context, id string) (*python.Interpreter, error) {
	e.mu.Lock()
	it := e.known[id]
	e.mu.Unlock()
	if it != nil && there(it) {
		return it, nil
	}
	e.forget(it)
	it, err := python.Load(ctx, e.o.Root, id, e.o.Box)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known[id] = it
	return it, nil
}

// there tells whether the program of an interpreter is where it was.
func there(it *python.Interpreter) bool {
	_, err := os.Lstat(filepath.Join(it.Dir, "bin", "python3"))
	return err == nil
}

func (e *Env) forget(it *python.Interpreter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if it == nil {
		return
	}
	delete(e.known, it.ID)
	if e.own == it {
		e.own = nil
	}
}

// touch notes on disk that an interpreter is in use: GC passes over what was used
// lately.
func (e *Env) touch(it *python.Interpreter) {
	now := e.now()
	e.mu.Lock()
	due := now.Sub(e.touched[it.ID]).Abs() >= touchTime
	if due {
		e.touched[it.ID] = now
	}
	e.mu.Unlock()
	if due {
		_ = os.Chtimes(filepath.Dir(it.Dir), now, now) // on a read-only disk nothing is collected either
	}
}

// hostPython is the Python that a script gets when there is no managed one: the first
// whose real file lies below /usr, which the sandbox shows under the same path, and as
// much of its version as its name tells; "" if there is none.
func (e *Env) hostPython() (path, version string) {
	for _, path := range e.o.HostPythons {
		real, err := filepath.EvalSymlinks(path)
		if err != nil || !strings.HasPrefix(real, "/usr/") {
			continue
		}
		var minor int
		if n, err := fmt.Sscanf(filepath.Base(real), "python3.%d", &minor); n == 1 && err == nil {
			version = fmt.Sprintf("3.%d", minor)
		}
		return path, version
	}
	return "", ""
}
