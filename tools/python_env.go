package tools

import (
	"context"
	"fmt"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
)

type pythonArgs struct {
	Action string `json:"action"`
}

// pythonEnv tells what Python scripts get. Packages cannot be asked for on a
// host whose environment root is empty, and no request is taken that nobody
// could fulfil.
func (t *Tools) pythonEnv(c *call) (work, error) {
	a, err := decode[pythonArgs](c)
	c.asks, c.beside = a.Action == "status", true
	return func(ctx context.Context) (Result, error) { return t.python(ctx, a) }, err
}

func (t *Tools) python(ctx context.Context, a pythonArgs) (Result, error) {
	if a.Action != "status" {
		return Result{}, &Error{
			Code: NotReady, Rule: "env.no_base", Sentence: "this host has no package layers, so nothing can be installed",
			Hint: "use the standard library; python_env {\"action\":\"status\"} shows what there is",
		}
	}
	st, err := t.cfg.Python.Status(ctx)
	if err != nil {
		return Result{}, err
	}
	return textResult(map[string]any{
		"python": st.Path, "version": st.Version, "prefix": st.Prefix, "packages": st.Packages, "layers": []string{},
	}, statusLines(st)...), nil
}

// maxPackages is how many packages a status names; it stays below 4 kB.
const maxPackages = 60

func statusLines(st pyenv.Status) []string {
	var lines []string
	switch {
	case st.Path == "":
		lines = append(lines, "Python: none ("+st.Reason+")")
	case st.Version == "":
		lines = append(lines, fmt.Sprintf("Python at %s: %s", st.Path, st.Reason))
	default:
		lines = append(lines, fmt.Sprintf("Python %s at %s", st.Version, st.Path))
	}
	switch n := len(st.Packages); {
	case st.Version == "":
	case n == 0:
		lines = append(lines, "packages: the standard library only")
	default:
		list := strings.Join(st.Packages[:min(n, maxPackages)], ", ")
		if n > maxPackages {
			list += fmt.Sprintf(" and %d more", n-maxPackages)
		}
		lines = append(lines, "packages of the host, besides the standard library: "+list)
	}
	return append(lines, "layers: none")
}
