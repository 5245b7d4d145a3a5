package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"
	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

type diffArgs struct {
	From, To string
	Paths    []string
	Stat     bool
	JSON     bool
}

func (a *app) imageDiffCmd() *cobra.Command {
	var q diffArgs
	cmd := &cobra.Command{
		Use:   "diff REF [REF] [PATH…]",
		Short: "Show what changed between two versions of a disk",
		Long: `diff shows what changed from the first version to the second, which is the newest when
it is left out. A REF is a checkpoint, a version such as v12, or head; whatever holds a
"/" is a path. Text comes as a unified diff that patch -p1 takes in a folder that
image get made, other files as one line.`,
		Example: "  mcp-vdisk image diff before-cleanup\n  mcp-vdisk image diff v12 v17 /workspace/src --stat",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := pathArgsOf(args); err != nil {
				return err
			}
			if err := q.split(args); err != nil {
				return err
			}
			q.JSON = a.json
			return a.simple(cmd, "image.diff", q, openRead)
		},
	}
	a.jsonFlag(cmd)
	cmd.Flags().BoolVar(&q.Stat, "stat", false, "one line a file: how much changed")
	return cmd
}

// split tells versions from paths.
func (q *diffArgs) split(args []string) error {
	q.From, q.To = args[0], "head"
	rest := args[1:]
	if len(rest) > 0 && !strings.Contains(rest[0], "/") {
		q.To, rest = rest[0], rest[1:]
	}
	for _, p := range append([]string{}, rest...) {
		if !strings.Contains(p, "/") {
			return fail(exitUsage, "write a path as /workspace/"+p, "%q is a third version, or a path without a \"/\"", p)
		}
	}
	if strings.Contains(q.From, "/") {
		return fail(exitUsage, "mcp-vdisk image diff REF [REF] [PATH…]", "%q is a path; a version or checkpoint comes first", q.From)
	}
	q.Paths = rest
	return nil
}

func backDiff(ctx context.Context, b *back) error {
	var q diffArgs
	if err := b.args(&q); err != nil {
		return err
	}
	under, err := cleanPaths(q.Paths)
	if err != nil {
		return err
	}
	im, _, err := b.openDisk(ctx, true, false)
	if err != nil {
		return err
	}
	defer im.Close()
	from, err := im.Revision(q.From)
	if err != nil {
		return err
	}
	to, err := im.Revision(q.To)
	if err != nil {
		return err
	}
	effects, err := im.Between(ctx, from, to, under)
	if err != nil {
		return err
	}
	if err := b.recordGet(ctx, im, "diff", strings.Join(q.Paths, " ")); err != nil {
		return err
	}
	d := differ{b: b, im: im}
	switch {
	case q.JSON:
		facts := make([]changeFact, 0, len(effects))
		for _, e := range effects {
			facts = append(facts, factsOfEffect(e))
		}
		return b.printJSON(facts)
	case q.Stat:
		return d.stat(effects)
	}
	for _, e := range effects {
		if err := d.show(e); err != nil {
			return err
		}
	}
	return nil
}

// differ prints how two states of a disk differ.
type differ struct {
	b  *back
	im *workspace.Image
}

// maxDiff is the longest text that is compared line by line.
const maxDiff = 1 << 20

// show prints one change.
func (d differ) show(e workspace.Effect) error {
	d.b.printf("diff %s %s\n", diffName("a", e.Path), diffName("b", e.Path))
	for _, line := range facts(e) {
		d.b.printf("%s\n", line)
	}
	before, after, text, err := d.texts(e)
	if err != nil {
		return err
	}
	if !text {
		if line := sizes(e); line != "" {
			d.b.printf("%s\n", line)
		}
		return nil
	}
	from, to := diffName("a", e.Path), diffName("b", e.Path)
	if !isFile(e.Before) {
		from = "/dev/null"
	}
	if !isFile(e.After) {
		to = "/dev/null"
	}
	unified, err := udiff.ToUnified(from, to, before, udiff.Lines(before, after), udiff.DefaultContextLines)
	d.b.printf("%s", unified)
	return err
}

// diffName is a path as patch takes it.
func diffName(side string, p workspace.Path) string {
	if name := p.String(); name[0] == '"' { // not plain: quoted as a whole
		return fmt.Sprintf("%q", side+"/"+p.Rel())
	}
	return side + "/" + p.Rel()
}

func isFile(n *workspace.Node) bool { return n != nil && n.Kind == workspace.KindFile }

// facts are what changed besides a content.
func facts(e workspace.Effect) (lines []string) {
	before, after := e.Before, e.After
	switch {
	case before == nil:
		lines = append(lines, fmt.Sprintf("new %s mode %04o", kindName(after), after.Mode))
	case after == nil:
		lines = append(lines, fmt.Sprintf("deleted %s mode %04o", kindName(before), before.Mode))
	case before.Kind != after.Kind:
		lines = append(lines, fmt.Sprintf("%s became %s", kindName(before), kindName(after)))
	case before.Mode != after.Mode:
		lines = append(lines, fmt.Sprintf("old mode %04o", before.Mode), fmt.Sprintf("new mode %04o", after.Mode))
	case e.What == workspace.Touched:
		lines = append(lines, fmt.Sprintf("time %s became %s", before.ModTime.Format("2006-01-02T15:04:05.999999999Z07:00"), after.ModTime.Format("2006-01-02T15:04:05.999999999Z07:00")))
	}
	if before != nil && before.Kind == workspace.KindSymlink {
		lines = append(lines, fmt.Sprintf("-link to %q", before.Target))
	}
	if after != nil && after.Kind == workspace.KindSymlink {
		lines = append(lines, fmt.Sprintf("+link to %q", after.Target))
	}
	return lines
}

func kindName(n *workspace.Node) string {
	switch n.Kind {
	case workspace.KindDir:
		return "directory"
	case workspace.KindSymlink:
		return "link"
	}
	return "file"
}

// sizes is the line for contents that are not compared; "" when none changed.
func sizes(e workspace.Effect) string {
	if !isFile(e.Before) && !isFile(e.After) || isFile(e.Before) && isFile(e.After) && e.Before.SHA256 == e.After.SHA256 {
		return ""
	}
	side := func(n *workspace.Node) string {
		if !isFile(n) {
			return "none"
		}
		return fmt.Sprintf("%d bytes, sha256 %.6x", n.Size, n.SHA256)
	}
	return fmt.Sprintf("contents differ: %s; %s", side(e.Before), side(e.After))
}

// texts reads both sides of a change when they are text of which a diff says
// something; ok is false for all else.
func (d differ) texts(e workspace.Effect) (before, after string, ok bool, err error) {
	if isFile(e.Before) && isFile(e.After) && e.Before.SHA256 == e.After.SHA256 || !isFile(e.Before) && !isFile(e.After) {
		return "", "", false, nil
	}
	var sides [2]string
	for i, n := range []*workspace.Node{e.Before, e.After} {
		if !isFile(n) {
			continue
		}
		text, isText, err := d.text(e.Path, n)
		if err != nil || !isText {
			return "", "", false, err
		}
		sides[i] = text
	}
	return sides[0], sides[1], true, nil
}

// text reads a content if it is text that is not too long.
func (d differ) text(p workspace.Path, n *workspace.Node) (string, bool, error) {
	if n.Size > maxDiff {
		return "", false, nil
	}
	f, err := d.im.OpenNode(p, *n)
	if err != nil {
		return "", false, err
	}
	data, err := io.ReadAll(f.Reader())
	if err != nil || !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return "", false, err
	}
	return string(data), true, nil
}

// stat prints one line a path and the sums.
func (d differ) stat(effects []workspace.Effect) error {
	plus, minus := 0, 0
	for _, e := range effects {
		before, after, text, err := d.texts(e)
		if err != nil {
			return err
		}
		if !text {
			d.b.printf("%-12s %s  %s\n", e.What, e.Path, sizes(e))
			continue
		}
		p, m := countLines(before, after)
		plus, minus = plus+p, minus+m
		d.b.printf("%-12s %s  +%d -%d\n", e.What, e.Path, p, m)
	}
	d.b.printf("%s; %d lines added, %d removed\n", plainCount(len(effects), "path"), plus, minus)
	return nil
}

func plainCount(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// countLines counts the lines that a diff adds and removes.
func countLines(before, after string) (plus, minus int) {
	for _, e := range udiff.Lines(before, after) {
		plus, minus = plus+linesIn(e.New), minus+linesIn(before[e.Start:e.End])
	}
	return plus, minus
}

// linesIn counts lines, also a last one without its newline.
func linesIn(s string) int {
	n := strings.Count(s, "\n")
	if s != "" && !strings.HasSuffix(s, "\n") {
		n++
	}
	return n
}
