package tools

import (
	"context"
	"errors"
	"fmt"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

type deleteArgs struct {
	Path      string `json:"path"`
	Recursive bool   `json:"recursive"`
	IfVersion string `json:"if_version"`
}

// deleteFile removes a file, a link (never what it points to) or a directory.
func (t *Tools) deleteFile(c *call) (work, error) {
	a, err := decode[deleteArgs](c)
	return func(ctx context.Context) (Result, error) { return t.remove(ctx, c, a) }, err
}

func (t *Tools) remove(ctx context.Context, c *call, a deleteArgs) (Result, error) {
	p, old, err := t.target(a.Path, false)
	if err != nil {
		return Result{}, t.missing(err, a.Path, p)
	}
	if old == nil {
		return Result{}, t.missing(&workspace.Error{Op: "delete", Path: p, Kind: workspace.ErrNotFound}, a.Path, p)
	}
	txn := workspace.Txn{Changes: []workspace.Change{{Op: workspace.OpRemove, Path: p, Recursive: a.Recursive}}}
	if a.IfVersion != "" {
		v, err := parseVersion("if_version", a.IfVersion)
		if err != nil {
			return Result{}, err
		}
		txn.Preconditions = []workspace.Precondition{{Path: p, Version: v}}
	}
	commit, err := t.commit(ctx, c, txn)
	if errors.Is(err, workspace.ErrNotFound) {
		return Result{}, t.missing(err, a.Path, p)
	}
	if err != nil {
		return Result{}, t.conflict(err, p, a.IfVersion)
	}
	c.out.Changed = int64(len(commit.Effects))
	what := "deleted"
	if n := len(commit.Effects) - 1; old.Kind == workspace.KindDir && n > 0 {
		what = fmt.Sprintf("deleted, with %s in it:", plural(int64(n), "entry"))
	}
	return textResult(map[string]any{"path": p.String(), "deleted": len(commit.Effects), "version": version(commit.Seq)},
		fmt.Sprintf("%s %s", what, p)), nil
}
