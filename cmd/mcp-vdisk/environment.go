package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/oklog/ulid/v2"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/python"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// envRoot is where the Python environments are: by the setting, else where the
// environment says ($MCP_VDISK_ENVS), else in the state directory.
func envRoot(r front.Request, set settings) string {
	return cmp.Or(set.env.root, r.Envs, filepath.Join(r.State, "envs"))
}

// envs is the environment root that the request is about.
func (b *back) envs() string {
	if b.hub != nil { // the daemon's counts
		return b.hub.envs
	}
	return envRoot(b.req, b.set)
}

// sameEnvs refuses a request for other environments than those of the daemon, which
// chose them when it began.
func (b *back) sameEnvs() error {
	if b.hub == nil || b.hub.set.env.root != "" || b.req.Envs == "" || b.req.Envs == b.hub.envs {
		return nil
	}
	asked, err := os.Stat(b.req.Envs)
	if have, herr := os.Stat(b.hub.envs); err == nil && herr == nil && os.SameFile(asked, have) {
		return nil
	}
	return exit.Fail(exit.State, "mcp-vdisk daemon stop ends it, and the next command begins with what MCP_VDISK_ENVS says",
		"the daemon that serves this state directory has its Python environments in %s, not in %s", b.hub.envs, b.req.Envs)
}

// envOptions are those of the environment that scripts get.
func (h *hub) envOptions(box *sandboxrun.Runner) pyenv.Options {
	o := pyenv.Options{Root: h.envs, Box: box, Prefix: h.set.env.python, SHA256: h.set.env.sha256, PipWheel: h.set.env.pipWheel, Strict: h.set.env.strict, Logger: h.log}
	if o.Prefix == "" && o.SHA256 != "" {
		o.Prefix = keptArchive(h.envs, o.SHA256)
	}
	return o
}

// environment is the environment of scripts, and with change another on the same
// root, as a request needs it. The caller ends its use of it by drop.
func (b *back) environment(ctx context.Context, change func(*pyenv.Options)) (env *pyenv.Env, drop func(), err error) {
	box, env, err := b.hub.sandbox(ctx)
	if err != nil || change == nil {
		return env, func() {}, err
	}
	o := b.hub.envOptions(box)
	change(&o)
	if env, err = pyenv.Open(o); err != nil {
		return nil, nil, b.envFailure(ctx, err)
	}
	return env, func() {
		if err := env.Close(); err != nil {
			b.log.Warn("the Python environments could not be closed", "error", err)
		}
	}, nil
}

// envHints say more of what to do than package pyenv can, which does not know of
// commands and settings.
var envHints = map[string]string{
	string(resolve.ErrIndexUnreachable): "packages come from where pip of this user gets them (pip.conf, PIP_INDEX_URL, HTTPS_PROXY, PIP_CERT). Without a network: " +
		"fetch the wheels elsewhere, mcp-vdisk env import WHEEL… takes them, and mcp-vdisk env ensure then builds from them; see docs/python.md",
	string(resolve.ErrResolverTimeout):     "if the index is slow, try again later",
	string(resolve.ErrResolverUnavailable): "install python3-pip, or pass a wheel of pip: mcp-vdisk env ensure --pip-wheel FILE",
	string(resolve.ErrSandboxUnavailable):  "mcp-vdisk doctor says what is missing",
	string(pyenv.ErrCatalog):               "it is catalog.json in the environment root: mend it, or put it aside to go on with the defaults",
}

// pythonCodes are those of errors that are passed on from where interpreters are made,
// with what they say.
var pythonCodes = []struct {
	is   error
	code pyenv.Code
	hint string
}{
	{python.ErrNone, pyenv.ErrNoPython, "mcp-vdisk env doctor lists what was considered"},
	{python.ErrRefused, pyenv.ErrNoPython, "mcp-vdisk env doctor lists what was considered; the setting env.python names another"},
	{python.ErrBroken, pyenv.ErrNoPython, "mcp-vdisk env doctor lists what was considered; the setting env.python names another"},
	{python.ErrChanged, pyenv.ErrNoPython, "mcp-vdisk env ensure makes it anew"},
	{sandboxrun.ErrRoot, pyenv.ErrNoSandbox, "run mcp-vdisk as another user"},
	{sandboxrun.ErrUnavailable, pyenv.ErrNoSandbox, "mcp-vdisk doctor says what is missing"},
}

// envFailure is an error of package pyenv as a command tells it: to the operator, who
// may see paths of the host.
func (b *back) envFailure(ctx context.Context, err error) error {
	var e *pyenv.Error
	var s *store.Error
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, store.ErrInUse), errors.Is(err, python.ErrInUse):
		return exit.Because(err, exit.Busy, "try again when they have ended; mcp-vdisk env status shows them", "%s", err)
	case errors.As(err, &s) && (s.Code == store.ErrUnsafe || s.Code == store.ErrNoRoot):
		return b.badRoot(err, string(s.Code), s.Detail)
	case errors.As(err, &e) && (e.Code == pyenv.ErrUnsafe || e.Code == pyenv.ErrNoRoot):
		return b.badRoot(err, string(e.Code), e.Sentence)
	}
	for _, k := range pythonCodes {
		if errors.Is(err, k.is) && (e == nil || e.Code == pyenv.ErrNoPython && e.Detail != "") {
			text := err.Error()
			if e != nil {
				text = e.Detail
			}
			return exit.Because(err, exit.Failed, k.hint, "%s: %s", k.code, harmless(text))
		}
	}
	switch {
	case errors.Is(err, audit.ErrUnavailable):
		return err
	case hostos.IsReadOnly(err):
		return b.badRoot(err, string(store.ErrNoRoot), theRoot+" is on a read-only file system")
	case errors.Is(err, os.ErrPermission):
		return b.badRoot(err, string(store.ErrNoRoot), fmt.Sprintf("%s is not open to uid %d: permission denied", theRoot, os.Getuid()))
	case e == nil:
		return err
	}
	b.detail(e)
	return exit.Because(err, exit.Failed, hintsOf(e), "%s: %s", e.Code, e.Sentence)
}

// theRoot is how package store begins a sentence about it, which has no path.
const theRoot = "the directory of the environments"

// badRoot is that there can be no environments where the settings want them.
func (b *back) badRoot(err error, code, why string) error {
	if rest, ok := strings.CutPrefix(why, theRoot); ok {
		why = "it" + rest
	}
	hint := fmt.Sprintf("the setting env.root names it: it has to be a directory of uid %d, which nobody else can write to", os.Getuid())
	return exit.Because(err, exit.State, hint, "%s: the directory of the Python environments, %s, cannot be used: %s", code, b.envs(), why)
}

// hintsOf is what the operator can do. What package pyenv suggests is said to an agent;
// where commands know better, that alone is told.
func hintsOf(e *pyenv.Error) string {
	hints := []string{e.Hint}
	if h := envHints[string(e.Code)]; h != "" {
		hints = append(hints, h)
	} else {
		for _, s := range e.Suggestions {
			hints = append(hints, toOperator(s))
		}
	}
	return strings.Join(slices.DeleteFunc(hints, func(s string) bool { return s == "" }), "; ")
}

// toOperator makes a sentence that an agent is to pass on one to the operator.
func toOperator(s string) string {
	s = strings.TrimSuffix(s, ".")
	for _, prefix := range []string{"Ask the operator to ", "Tell the operator: "} {
		if rest, ok := strings.CutPrefix(s, prefix); ok {
			return rest
		}
	}
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

// detail shows what pip or a package said last, where there is no log of a daemon to
// look at.
func (b *back) detail(e *pyenv.Error) {
	if b.daemon != nil || !slices.Contains([]pyenv.Code{pyenv.ErrProbe, pyenv.ErrFailed, pyenv.Code(resolve.ErrResolverFailed)}, e.Code) {
		return
	}
	for line := range strings.Lines(e.Detail) {
		fmt.Fprintf(b.stderr, "  %s\n", harmless(strings.TrimRight(line, "\n")))
	}
}

// recorded does what changes the environments, with a record before it and one of
// what came of it. found adds what is known only then, in as many records as it
// takes.
func (b *back) recorded(ctx context.Context, ev audit.Event, about audit.Facts, do func() ([]audit.Facts, error)) error {
	rec := audit.Record{Ev: ev, Call: ulid.Make().String(), Args: b.operator(about)}
	if err := b.st.record(ctx, audit.StreamSystem, rec); err != nil {
		return err
	}
	found, err := do()
	rec.Out = &audit.Out{OK: err == nil}
	if err != nil {
		rec.Reason, rec.Out.Code = err.Error(), codeOf(err)
	}
	if ctx.Err() != nil {
		rec.Reason = "interrupted"
	}
	ctx = context.WithoutCancel(ctx)
	if len(found) == 0 {
		found = []audit.Facts{{}}
	}
	for _, facts := range found {
		rec.Args = facts
		if logErr := b.st.record(ctx, audit.StreamSystem, rec); logErr != nil {
			return cmp.Or(err, logErr)
		}
	}
	return err
}

// codeOf is the code of an error of the environments, "" when it has none.
func codeOf(err error) string {
	var e *pyenv.Error
	var s *store.Error
	switch {
	case errors.As(err, &e):
		return string(e.Code)
	case errors.As(err, &s):
		return string(s.Code)
	}
	for _, k := range pythonCodes {
		if errors.Is(err, k.is) {
			return string(k.code)
		}
	}
	return queueCode(err)
}

// lockFacts are a lock with all its wheels, for the log, and more.
func lockFacts(id, base string, wheels []pyenv.Package, more audit.Facts) []audit.Facts {
	var rest []fact
	for _, name := range slices.Sorted(maps.Keys(more)) {
		rest = append(rest, fact{name, more[name]})
	}
	return spread(audit.Facts{"lock": id, "base": base, "wheels": len(wheels)}, append(rest, wheelFacts(wheels)...))
}
