package pyenv

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/attach"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// probeScript imports the modules that it is given. It tells the one it is at first,
// for an import may end the process. What packages print goes to standard error.
const probeScript = `import importlib, os, sys
said = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for name in sys.argv[1:]:
    print(name, file=said, flush=True)
    importlib.import_module(name)
print("` + probeDone + `", file=said, flush=True)
`

// probeDone follows the last module. No module can have the name.
const probeDone = "all imported"

const (
	// probeTime is for all imports of a base, with nothing in the caches of the host.
	probeTime = 2 * time.Minute
	// probeTail is how much is kept of what a failed import said.
	probeTail = 2048
)

// probe imports what the base is for, as a script would. One that is current already has
// passed.
func (w *maker) probe(ctx context.Context) error {
	if cur, err := w.root.Current(); err == nil && cur == w.current() && !w.rep.Built {
		return nil
	}
	modules := w.modules()
	w.tell(Progress{Step: StepProbe, Total: int64(len(modules)), Text: "importing the packages once"})
	err := w.e.imports(ctx, w.root, attach.Set{Python: w.it, Layers: []*store.Layer{w.layer}}, modules, probeTime)
	var e *Error
	if errors.As(err, &e) && e.Code == ErrProbe {
		e.Hint = "the base is left as it was; look at the log of the server, and resolve anew with mcp-vdisk env ensure --relock"
	}
	return err
}

// imports imports modules once, as a script would that has these layers. Errors:
// ErrProbe; those of the sandbox.
func (e *Env) imports(ctx context.Context, root *store.Root, set attach.Set, modules []string, within time.Duration) error {
	m, err := e.plan(root, set)
	if err != nil {
		return err
	}
	limits := sandboxrun.DefaultLimits()
	limits.Timeout = within
	res, err := e.o.Box.Run(ctx, sandboxrun.Run{
		Argv: append([]string{python.Executable, "-s", "-c", probeScript}, modules...), Binds: m.Binds, Data: m.Data, Env: m.Env, Limits: limits,
	}, nil)
	if err != nil {
		return err
	}
	at, done := reached(string(res.Stdout.Text), modules)
	if res.Outcome == sandboxrun.Exited && res.ExitCode == 0 && done {
		return nil
	}
	return probeFailed(res, at, set.Layers)
}

// reached is the module that a probe was at, "" for none, and whether it got through
// all. A package can write what it likes: a line counts if it is the next one that
// the probe has to write.
func reached(said string, modules []string) (at string, done bool) {
	next := 0
	for line := range strings.Lines(said) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case next < len(modules) && line == modules[next]:
			at = line
			next++
		case next == len(modules) && line == probeDone:
			return at, true
		}
	}
	return at, false
}

// modules are what the base list and the imported wheels are imported by.
func (w *maker) modules() (list []string) {
	for _, it := range w.e.base {
		list = append(list, it.module)
	}
	for _, x := range w.extras {
		at := slices.IndexFunc(w.layer.Manifest.Packages, func(p store.Installed) bool { return p.Name == x.Name })
		if at >= 0 {
			list = append(list, importable(w.layer.Manifest.Packages[at].Tops)...)
		}
	}
	return list
}

var moduleForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// importable are the top-level names that are modules and not private.
func importable(tops []string) (list []string) {
	for _, t := range tops {
		if moduleForm.MatchString(t) && t[0] != '_' {
			list = append(list, t)
		}
	}
	return list
}

func probeFailed(res sandboxrun.Result, at string, layers []*store.Layer) error {
	e := &Error{Code: ErrProbe}
	said := strings.TrimSpace(string(res.Stderr.Text))
	if len(said) > probeTail {
		said = strings.ToValidUTF8(said[len(said)-probeTail:], "")
	}
	e.Detail = said
	name := "Python"
	if at != "" {
		name = at
		e.Blocking = blocking(name, layers)
	}
	lines := strings.Split(said, "\n")
	why := harmless(lines[len(lines)-1])
	switch {
	case res.Outcome != sandboxrun.Exited:
		why = strings.ReplaceAll(string(res.Outcome), "_", " ")
	case why == "":
		why = fmt.Sprintf("Python ended without a word, with exit code %d", res.ExitCode)
	}
	e.Sentence = fmt.Sprintf("%s cannot be imported in the sandbox: %s", name, why)
	e.cause = errors.New(said)
	return e
}

// blocking is the distribution that a module is of.
func blocking(module string, layers []*store.Layer) resolve.Blocking {
	top, _, _ := strings.Cut(module, ".")
	for _, l := range layers {
		for _, p := range l.Manifest.Packages {
			if slices.Contains(p.Tops, top) {
				return resolve.Blocking{Name: p.Name, Version: p.Version}
			}
		}
	}
	return resolve.Blocking{}
}

// harmless is one line of a stranger, cut to 300 bytes.
func harmless(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "…"
	}
	return strings.TrimSpace(s)
}
