package tools

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

type pythonArgs struct {
	Action    string   `json:"action"`
	Packages  []string `json:"packages"`
	Wheel     string   `json:"wheel"`
	Reason    string   `json:"reason"`
	RequestID string   `json:"request_id"`
	TimeoutS  *int64   `json:"timeout_s"`
}

// How long a call waits unless it says otherwise, and at most. Clients give up on an
// answer after a minute.
const (
	requestWait = 20 * time.Second
	packageWait = 50 * time.Second
)

// pythonEnv tells what Python scripts get, and takes requests for packages. It never
// decides about one: that is for the operator's catalog and for people. What a request
// changes is beside the disk, so that no lease is needed for it.
func (t *Tools) pythonEnv(c *call) (work, error) {
	a, err := decode[pythonArgs](c)
	if err != nil {
		return nil, err
	}
	c.asks, c.beside = a.Action != "request", true
	if err := a.check(); err != nil {
		return nil, err
	}
	switch a.Action {
	case "request":
		return t.askPackages(c, a)
	case "wait":
		return func(ctx context.Context) (Result, error) { return t.awaitPackages(ctx, c, a) }, nil
	}
	return t.tellPython, nil
}

// goWith are the arguments that each action takes, and how it is called.
var goWith = map[string]struct {
	args []string
	like string
}{
	"status":  {nil, `{"action":"status"}`},
	"request": {[]string{"packages", "wheel", "reason", "timeout_s"}, `{"action":"request","packages":["pandas>=2"],"reason":"…"}`},
	"wait":    {[]string{"request_id", "timeout_s"}, `{"action":"wait","request_id":"…"}`},
}

// check checks how the arguments go together. What is empty counts as not given: some
// models fill in every argument there is.
func (a pythonArgs) check() error {
	takes := goWith[a.Action]
	hint := "call it as " + takes.like
	for _, given := range []struct {
		name string
		is   bool
	}{
		{"packages", len(a.Packages) > 0}, {"wheel", a.Wheel != ""}, {"reason", a.Reason != ""},
		{"request_id", a.RequestID != ""}, {"timeout_s", a.TimeoutS != nil && *a.TimeoutS != 0},
	} {
		if given.is && !slices.Contains(takes.args, given.name) {
			return refuse(InvalidArgument, hint, "%s: does not go with action %q", given.name, a.Action)
		}
	}
	switch {
	case a.Action == "wait" && a.RequestID == "":
		return refuse(InvalidArgument, hint+`; {"action":"status"} lists the open requests`, "request_id: is missing")
	case a.Action == "request" && len(a.Packages) == 0 && a.Wheel == "":
		return refuse(InvalidArgument, hint, "give packages, a wheel, or both")
	}
	return nil
}

// within is how long the call waits.
func (a pythonArgs) within(otherwise time.Duration) time.Duration {
	if a.TimeoutS == nil {
		return otherwise
	}
	return min(time.Duration(*a.TimeoutS)*time.Second, packageWait)
}

// checkPackages refuses what is no package of an index. Such a text may have a password
// in it (as URLs do), so the log is not told of it.
func (c *call) checkPackages(list []string) error {
	var named []string
	var bad error
	for i, s := range list {
		_, err := spec.ParseRequest(s)
		switch {
		case err == nil:
			named = append(named, s)
		case bad == nil:
			bad = badSpec(fmt.Sprintf("packages[%d]: ", i), err)
		}
	}
	if bad != nil {
		delete(c.facts, "packages")
		if c.facts["packages_count"] = int64(len(list)); len(named) > 0 {
			c.facts["packages"] = named
		}
	}
	return bad
}

// badSpec is the refusal of what names no package; err tells what is wrong with it.
func badSpec(where string, err error) *Error {
	return &Error{
		Code: InvalidArgument, Rule: "env.bad_spec",
		Sentence: where + plainLine(strings.TrimPrefix(err.Error(), spec.ErrBadSpec.Error()+": "), 400),
		Hint:     `name packages of the index, with a version if one is needed, such as "pandas" or "pandas[excel]>=2,<3"; a .whl file of the disk goes into wheel`,
		logged:   where + "names no package",
		cause:    err,
	}
}

// checkWheel refuses a path that cannot be that of a wheel, whatever is on the disk.
func checkWheel(path string) error {
	p, err := workspace.Clean(path)
	switch {
	case err != nil:
		return badPath(err)
	case p.IsRoot():
		return badPath(refuse(IsADirectory, "name a .whl file inside it", "%s is a directory", p))
	case !strings.HasSuffix(p.Base(), ".whl"):
		return badPath(refuse(InvalidPath, "name a wheel as it was built, such as /workspace/dist/demo-1.0-py3-none-any.whl", "wheel: the name of %s does not end in .whl", p))
	}
	return nil
}
