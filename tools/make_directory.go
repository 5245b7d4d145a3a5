package tools

import (
	"context"
	"fmt"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

type makeDirectoryArgs struct {
	Path string `json:"path"`
}

// makeDirectory makes a directory and its missing parents; one that is there
// already is fine.
func (t *Tools) makeDirectory(c *call) (work, error) {
	a, err := decode[makeDirectoryArgs](c)
	return func(ctx context.Context) (Result, error) { return t.mkdir(ctx, c, a) }, err
}

func (t *Tools) mkdir(ctx context.Context, c *call, a makeDirectoryArgs) (Result, error) {
	p, old, err := t.target(a.Path, true)
	if err != nil {
		return Result{}, err
	}
	verb := "created"
	switch {
	case p.IsRoot(), old != nil && old.Kind == workspace.KindDir:
		verb = "already there:"
	case old != nil:
		return Result{}, &workspace.Error{Op: "make directory", Path: p, Kind: workspace.ErrNotDirectory, Detail: "a file of that name is there"}
	default:
		_, err = t.commit(ctx, c, workspace.Txn{Changes: []workspace.Change{{Op: workspace.OpMkdir, Path: p, Parents: true}}})
		if err != nil {
			return Result{}, err
		}
	}
	lines := []string{fmt.Sprintf("%s %s", verb, p)}
	if note := hostNote(a.Path); note != "" {
		lines = append(lines, note)
	}
	return textResult(map[string]any{"path": p.String(), "created": verb == "created"}, lines...), nil
}
