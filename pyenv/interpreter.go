package pyenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// candidates are the interpreters looked for, best first. Each must exist under
// the same path inside the sandbox.
var candidates = []string{"/usr/bin/python3", "/usr/local/bin/python3"}

// Find chooses the interpreter: the first candidate whose real file lies below
// /usr. It returns "" if there is none. It runs nothing.
func Find() string {
	for _, path := range candidates {
		if visible(path) {
			return path
		}
	}
	return ""
}

// visible tells whether a path leads to a file that the sandbox shows too.
func visible(path string) bool {
	real, err := filepath.EvalSymlinks(path)
	return err == nil && strings.HasPrefix(real, "/usr/")
}

// Status is what there is: the interpreter and what it can import.
type Status struct {
	Path     string   // absolute, inside the sandbox; "" if there is none
	Version  string   // such as "3.11.2"
	Prefix   string   // sys.prefix
	Packages []string // "name version" of installed distributions, sorted
	Reason   string   // why Path is empty, or why Version is
}

// Env is the Python environment of one disk. Its methods may be called by many
// goroutines at once.
type Env struct {
	path string
	box  *sandboxrun.Runner // nil: nothing can be run here

	mu     sync.Mutex
	probed *Status
}

// New returns the environment with the interpreter at path (see Find), which is
// probed in box.
func New(path string, box *sandboxrun.Runner) *Env { return &Env{path: path, box: box} }

// Path is the interpreter's absolute path inside the sandbox, "" if there is
// none.
func (e *Env) Path() string { return e.path }

// probe prints what Status tells, as JSON. It needs only the standard library.
const probe = `import json, sys
from importlib import metadata
names = sorted({"%s %s" % (d.metadata["Name"], d.version) for d in metadata.distributions() if d.metadata["Name"]})
print(json.dumps({"Version": "%d.%d.%d" % sys.version_info[:3], "Prefix": sys.prefix, "Packages": names[:200]}))`

// probeTime bounds the probe.
const probeTime = 10 * time.Second

// Status runs the interpreter inside the sandbox and tells what it found. A
// success is remembered; a failure is told in Reason and tried again the next
// time. The error is non-nil only when ctx ended.
func (e *Env) Status(ctx context.Context) (Status, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.probed != nil:
		return *e.probed, nil
	case e.path == "":
		return Status{Reason: "no Python 3 below /usr on this host"}, nil
	case e.box == nil:
		return Status{Path: e.path, Reason: "scripts cannot run on this host, so it was not asked"}, nil
	}
	st, err := e.ask(ctx)
	if ctx.Err() != nil {
		return Status{}, context.Cause(ctx)
	}
	if err != nil {
		return Status{Path: e.path, Reason: err.Error()}, nil
	}
	e.probed = &st
	return st, nil
}

func (e *Env) ask(ctx context.Context) (Status, error) {
	limits := sandboxrun.DefaultLimits()
	limits.Timeout = probeTime
	res, err := e.box.Run(ctx, sandboxrun.Run{
		Argv: []string{e.path, "-I", "-c", probe}, Limits: limits,
	}, func(sandboxrun.Change) error { return errors.New("the probe wrote a file") })
	if err != nil {
		return Status{}, errors.New("it could not be started in the sandbox")
	}
	if res.Outcome != sandboxrun.Exited || res.ExitCode != 0 {
		return Status{}, fmt.Errorf("it does not work in the sandbox (%s, exit %d)", res.Outcome, res.ExitCode)
	}
	st := Status{Path: e.path}
	if err := json.Unmarshal(res.Stdout.Text, &st); err != nil {
		return Status{}, errors.New("it did not answer as Python 3 does")
	}
	return st, nil
}
