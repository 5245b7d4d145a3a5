package tools

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

type writeArgs struct {
	Path       string `json:"path"`
	Content    string `json:"content"`
	Encoding   string `json:"encoding"`
	Mode       string `json:"mode"`
	OldText    string `json:"old_text"`
	ReplaceAll bool   `json:"replace_all"`
	IfVersion  string `json:"if_version"`
}

// writeFile creates, overwrites, extends or edits one file, all or nothing.
func (t *Tools) writeFile(c *call) (work, error) {
	a, err := decode[writeArgs](c)
	if err == nil {
		err = a.check()
	}
	if err != nil {
		return nil, err
	}
	body, err := a.body(t.cfg.Limits.WriteBytes)
	w := write{t: t, c: c, args: a, body: body}
	try := w.whole
	if a.Mode == "replace" {
		try = w.replace
	}
	return func(ctx context.Context) (Result, error) { return w.again(ctx, try) }, err
}

// check checks how the arguments go together.
func (a writeArgs) check() error {
	replace := a.Mode == "replace"
	switch {
	case replace && a.OldText == "":
		return refuse(InvalidArgument, "give the exact text to be replaced in old_text", "old_text: is missing, and mode \"replace\" needs it")
	case replace && withLF(a.OldText) == withLF(a.Content):
		return refuse(InvalidArgument, "give the new text in content; a script can change line ends", "content: is the same as old_text, line ends aside, which mode \"replace\" never changes")
	case !replace && a.OldText != "":
		return refuse(InvalidArgument, `set mode to "replace" to swap old_text for content`, "old_text: goes only with mode \"replace\"")
	case !replace && a.ReplaceAll:
		return refuse(InvalidArgument, `set mode to "replace", or leave replace_all out`, "replace_all: goes only with mode \"replace\"")
	case replace && a.Encoding == "base64":
		return refuse(InvalidArgument, "give old_text and content as plain text", "encoding: mode \"replace\" works on text")
	case a.Mode == "create" && a.IfVersion != "":
		return refuse(InvalidArgument, "leave if_version out, or use mode \"overwrite\"", "if_version: a file that mode \"create\" makes has no version yet")
	}
	return nil
}

// body is the content as bytes, of which there may be at most limit.
func (a writeArgs) body(limit int64) ([]byte, error) {
	body := []byte(a.Content)
	if a.Encoding == "base64" {
		var err error
		if body, err = base64.StdEncoding.Strict().DecodeString(strings.Join(strings.Fields(a.Content), "")); err != nil {
			return nil, refuse(InvalidArgument, "encode the bytes as standard base64 with padding (RFC 4648 §4)", "content: is not valid base64")
		}
	}
	if int64(len(body)) > limit {
		return nil, refuse(TooLarge, `write the first part, then the rest with mode "append"; or let a script make the file`,
			"content: is %s, and one call takes at most %s", size(int64(len(body))), size(limit))
	}
	return body, nil
}

// write is one write_file call.
type write struct {
	t    *Tools
	c    *call
	args writeArgs
	body []byte
}

// attempts bounds how often a change is computed anew because another session
// changed the file in between. Each round at least one session succeeds.
const attempts = 100

// again makes a change that is computed from what the file holds, and computes
// it anew when that was not what the file held in the end.
func (w write) again(ctx context.Context, try func(context.Context) (Result, error)) (Result, error) {
	for range attempts {
		r, err := try(ctx)
		if !w.overtaken(err) || ctx.Err() != nil {
			return r, err
		}
	}
	return Result{}, refuse(Busy, "try again", "other sessions keep changing this file")
}

// overtaken tells whether a change failed only because the file was changed, or
// made, while the change was computed.
func (w write) overtaken(err error) bool {
	return w.args.IfVersion == "" &&
		(errors.Is(err, workspace.ErrVersionConflict) || w.args.Mode == "append" && errors.Is(err, workspace.ErrExists))
}

// whole writes, creates or extends the file.
func (w write) whole(ctx context.Context) (Result, error) {
	p, old, err := w.t.target(w.args.Path, w.args.Mode != "create")
	if err != nil {
		return Result{}, err
	}
	pre, err := w.precondition(p, old)
	if err != nil {
		return Result{}, w.t.conflict(err, p, w.args.IfVersion)
	}
	var data io.Reader = bytes.NewReader(w.body)
	if w.args.Mode == "append" && old != nil && old.Kind == workspace.KindFile {
		f, err := w.t.cfg.Image.OpenNode(p, *old)
		if err != nil {
			return Result{}, err
		}
		data = io.MultiReader(f.Reader(), data)
	}
	done, err := w.put(ctx, p, data, pre)
	if err != nil {
		return Result{}, w.t.conflict(err, p, w.args.IfVersion)
	}
	return w.report(p, old, done), nil
}

// precondition is what must hold of p when the write is committed. What is
// appended to or replaced in must still be old, or still be missing.
func (w write) precondition(p workspace.Path, old *workspace.Node) ([]workspace.Precondition, error) {
	switch {
	case w.args.IfVersion != "":
		v, err := parseVersion("if_version", w.args.IfVersion)
		if err == nil && old != nil && old.Version != v {
			err = changed(p)
		}
		return []workspace.Precondition{{Path: p, Version: v}}, err
	case w.args.Mode == "create", w.args.Mode == "append" && old == nil:
		return []workspace.Precondition{{Path: p}}, nil
	case w.args.Mode == "append", w.args.Mode == "replace":
		return []workspace.Precondition{{Path: p, Version: old.Version}}, nil
	}
	return nil, nil
}

// put stores data at p and commits it.
func (w write) put(ctx context.Context, p workspace.Path, data io.Reader, pre []workspace.Precondition) (workspace.Commit, error) {
	stage := w.t.cfg.Image.Stage(ctx)
	defer stage.Discard()
	content, err := stage.Add(data)
	if err != nil {
		return workspace.Commit{}, err
	}
	return w.t.commit(ctx, w.c, workspace.Txn{
		Message: "write_file " + cmp.Or(w.args.Mode, "overwrite"), Stage: stage, Preconditions: pre,
		Changes: []workspace.Change{{Op: workspace.OpPut, Path: p, Content: content, Parents: true}},
	})
}

func (w write) report(p workspace.Path, old *workspace.Node, done workspace.Commit) Result {
	n, ok := after(done, p)
	if !ok && old != nil { // nothing changed, not even the time
		n = *old
	}
	digest := hexDigest(n)
	w.c.out.Bytes, w.c.out.Digest = n.Size, digest
	verb := "wrote"
	switch {
	case !ok:
		verb = "unchanged, it already held"
	case old == nil:
		verb = "created, wrote"
	case w.args.Mode == "append":
		verb = fmt.Sprintf("appended %s, now", plural(int64(len(w.body)), "byte"))
	}
	lines := []string{fmt.Sprintf("%s %s: %s %s, sha256 %s", verb, plural(n.Size, "byte"), p, version(n.Version), digest)}
	if note := hostNote(w.args.Path); note != "" {
		lines = append(lines, note)
	}
	lines = append(lines, w.t.getLine(p))
	return textResult(map[string]any{
		"path": p.String(), "bytes": n.Size, "sha256": digest, "version": version(n.Version), "created": old == nil,
	}, lines...)
}

// after finds what a commit left at a path.
func after(done workspace.Commit, p workspace.Path) (workspace.Node, bool) {
	for _, e := range done.Effects {
		if e.Path == p && e.After != nil {
			return *e.After, true
		}
	}
	return workspace.Node{}, false
}
