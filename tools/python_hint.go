package tools

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

var missingModule = regexp.MustCompile(`ModuleNotFoundError: No module named '([A-Za-z0-9_.]+)'`)

// moduleHint names the way to a package that the script lacked.
func (r report) moduleHint() string {
	m := missingModule.FindSubmatch(r.s.res.Stderr.Text)
	if m == nil || r.s.args.Language != "python" && !bytes.Contains(r.s.res.Stderr.Text, []byte("Traceback")) {
		return ""
	}
	name, _, part := strings.Cut(string(m[1]), ".")
	t := r.s.t
	st, err := t.cfg.Python.Status(context.Background(), t.streamName)
	if err == nil && !st.BaseReady {
		return "hint: " + noBase
	}
	if err == nil {
		p, ok := pyenv.Find(st.Packages, name)
		switch {
		case ok && part: // it is there, and has no such part
			return ""
		case ok:
			return presentHint(p, name, len(r.s.setup.Layers) > 0)
		}
	}
	return askHint(name, st.Requests, t.cfg.Policy.Listed("python_env"))
}

// askHint is the way to a package that is not there: the request that was made for it, or
// how one is made; offered says whether the session can.
func askHint(module string, open []queue.Request, offered bool) string {
	name := cmp.Or(pyenv.Distribution(module), module)
	if !offered {
		return fmt.Sprintf("hint: the package %s is not installed, and this session cannot ask for packages: tell the person", name)
	}
	for _, r := range open {
		if asksFor(r, name) {
			return fmt.Sprintf(`hint: %s was asked for already, and the request is %s: python_env {"action":"wait","request_id":%q} waits for it`, name, r.State, r.ID)
		}
	}
	return fmt.Sprintf(`hint: ask for the package with python_env {"action":"request","packages":[%q],"reason":"…"}; pip does not work here`, name)
}

// asksFor tells whether a package is among what a request asks for.
func asksFor(r queue.Request, name string) bool {
	names := requestAnswer{r: r}.names()
	return slices.Contains(names, spec.NormalizeName(name))
}

// presentHint says how a package is imported that is there; had tells that the script
// had the base layer.
func presentHint(p pyenv.Package, name string, had bool) string {
	for _, m := range p.Modules {
		if m == name && had {
			return fmt.Sprintf("hint: %s %s is installed; this interpreter does not see it, because it is /usr/bin/python3, a virtual environment, or was started with -S: call python3", p.Name, p.Version)
		}
		if m == name {
			return fmt.Sprintf("hint: %s %s is installed by now; run the script again", p.Name, p.Version)
		}
	}
	return fmt.Sprintf("hint: the package %s %s is installed; its modules are %s", p.Name, p.Version, strings.Join(p.Modules, ", "))
}
