package tools

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
)

type pythonArgs struct {
	Action string `json:"action"`
}

// pythonEnv tells what Python scripts get. No request for packages is taken that
// nobody could fulfil.
func (t *Tools) pythonEnv(c *call) (work, error) {
	a, err := decode[pythonArgs](c)
	c.asks, c.beside = a.Action == "status", true
	return func(ctx context.Context) (Result, error) { return t.python(ctx, a) }, err
}

func (t *Tools) python(ctx context.Context, a pythonArgs) (Result, error) {
	st, err := t.cfg.Python.Status(ctx)
	switch {
	case err != nil:
		return Result{}, err
	case a.Action != "status":
		return Result{}, notReady(st)
	}
	return textResult(map[string]any{
		"python": st.Python, "version": st.Version, "kind": st.Kind, "base": st.Base, "base_ready": st.BaseReady,
		"packages": named(st.Packages), "layers": st.Layers, "building": st.Building, "reason": st.Reason,
	}, statusLines(st)...), nil
}

// noBase says what to do on a host without packages.
const noBase = `no packages are installed on this host; the person who runs this server can get some for documents, tables, PDF and charts: "mcp-vdisk env ensure"`

// notReady is the answer to a request: today only an operator adds packages.
func notReady(st pyenv.Status) error {
	if !st.BaseReady {
		return &Error{
			Code: NotReady, Rule: "env.no_base", Sentence: "this host has no package layers, so nothing can be installed",
			Hint: `use the standard library, or tell the person to run "mcp-vdisk env ensure", which gets packages for documents, tables, PDF and charts`,
		}
	}
	return &Error{
		Code: NotReady, Rule: "env.operator_only", Sentence: "packages can be added by the person who runs this server only",
		Hint: `use what is there, which python_env {"action":"status"} lists, or tell the person which package is missing: "mcp-vdisk env import --base FILE.whl" and then "mcp-vdisk env ensure" add one`,
	}
}

// named are packages as "name version".
func named(packages []pyenv.Package) []string {
	list := []string{}
	for _, p := range packages {
		list = append(list, p.Name+" "+p.Version)
	}
	return list
}

// maxPackages is the room for the names of packages in a status, which stays below
// 4 kB.
const maxPackages = 2800

func statusLines(st pyenv.Status) []string {
	var lines []string
	switch {
	case st.Python == "":
		lines = append(lines, "Python: none ("+st.Reason+")")
	default:
		lines = append(lines, fmt.Sprintf("Python %s at %s", st.Version, st.Python))
	}
	if st.Degraded != "" {
		lines = append(lines, "note: "+st.Degraded)
	}
	switch {
	case st.BaseReady:
		lines = append(lines, "packages, besides the standard library: "+packageLine(named(st.Packages)), "layers: "+strings.Join(st.Layers, ", "))
	case st.Kind == "host":
		lines = append(lines, "packages: the standard library, and what the host has installed", "layers: none")
	default:
		lines = append(lines, "packages: the standard library only", "layers: none")
	}
	if !st.BaseReady && st.Building == "" {
		lines = append(lines, noBase)
	}
	if st.Python != "" && st.Reason != "" {
		lines = append(lines, "note: "+st.Reason)
	}
	if st.Building != "" {
		lines = append(lines, "being built: "+st.Building)
	}
	return lines
}

// packageLine lists packages, and counts those for which there is no room.
func packageLine(list []string) string {
	room := maxPackages
	for i, p := range list {
		if room -= len(p) + 2; room < 0 {
			return fmt.Sprintf("%s and %d more", strings.Join(list[:i], ", "), len(list)-i)
		}
	}
	return strings.Join(list, ", ")
}

var missingModule = regexp.MustCompile(`ModuleNotFoundError: No module named '([A-Za-z0-9_.]+)'`)

// moduleHint names the way to a package that the script lacked.
func (r report) moduleHint() string {
	m := missingModule.FindSubmatch(r.s.res.Stderr.Text)
	if m == nil || r.s.args.Language != "python" && !bytes.Contains(r.s.res.Stderr.Text, []byte("Traceback")) {
		return ""
	}
	name, _, part := strings.Cut(string(m[1]), ".")
	st, err := r.s.t.cfg.Python.Status(context.Background())
	if err == nil && !st.BaseReady {
		return "hint: " + noBase
	}
	if err == nil {
		p, ok := pyenv.Find(st.Packages, name)
		switch {
		case ok && part: // it is there, and has no such part
			return ""
		case ok:
			return presentHint(p, name, r.s.setup.Base != "")
		}
	}
	if other := pyenv.Distribution(name); other != "" {
		name = other
	}
	return fmt.Sprintf(`hint: ask for the package with python_env {"action":"request","packages":[%q],"reason":"…"}; pip does not work here`, name)
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
