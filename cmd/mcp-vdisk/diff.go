package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"
	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
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
"/" is a path. The output is a diff as git writes it: git apply and GNU patch -p1 (2.7
or later) take it in a folder that image get made. They apply text files, empty files,
links and the executable bit. Lines that begin with "#" or "Binary files" are to be read
only: directories, times, other permission bits, and files that are no text or over
1 MiB. Two limits: patch cannot put a directory where a file was or the reverse, and git
apply refuses names that git reserves, such as .git.`,
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
			return a.simple(cmd, "image.diff", q, front.OpenRead)
		},
	}
	a.jsonFlag(cmd.Flags())
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
	for _, p := range rest {
		if !strings.Contains(p, "/") {
			return exit.Fail(exit.Usage, "write a path as /workspace/"+p, "%q is a third version, or a path without a \"/\"", p)
		}
	}
	if strings.Contains(q.From, "/") {
		return exit.Fail(exit.Usage, "mcp-vdisk image diff REF [REF] [PATH…]", "%q is a path; a version or checkpoint comes first", q.From)
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
	opened, err := b.open(ctx, want{readOnly: true})
	if err != nil {
		return err
	}
	defer opened.release()
	im := opened.image
	from, err := revisionOf(im, q.From)
	if err != nil {
		return err
	}
	to, err := revisionOf(im, q.To)
	if err != nil {
		return err
	}
	effects, err := im.Between(ctx, from, to, under)
	if err != nil {
		return err
	}
	if err := wereThere(im, under, from, to); err != nil {
		return err
	}
	if err := b.recordGet(ctx, im, "diff", cmp.Or(strings.Join(q.Paths, " "), workspace.Mount), "", nil); err != nil {
		return err
	}
	d := differ{b: b, im: im}
	switch {
	case q.JSON:
		return b.printJSON(factsOfEffects(effects))
	case q.Stat:
		return d.stat(effects)
	}
	return d.patch(effects)
}

// revisionOf is Image.Revision with a hint that fits.
func revisionOf(im *workspace.Image, text string) (uint64, error) {
	seq, err := im.Revision(text)
	if errors.Is(err, workspace.ErrNotFound) {
		err = exit.Fail(exit.NotFound, "mcp-vdisk image checkpoint and image log list what there is", "%s", err)
	}
	return seq, err
}

// wereThere fails for a path that was at neither version.
func wereThere(im *workspace.Image, paths []workspace.Path, from, to uint64) error {
	for _, p := range paths {
		found := false
		for _, seq := range []uint64{from, to} {
			_, err := im.NodeAt(p, seq)
			if err != nil && !errors.Is(err, workspace.ErrNotFound) && !errors.Is(err, workspace.ErrNotDirectory) {
				return err
			}
			found = found || err == nil
		}
		if !found {
			return exit.Fail(exit.NotFound, "mcp-vdisk image tree shows what is there", "%s was there neither at v%d nor at v%d", p, from, to)
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

func isFile(n *workspace.Node) bool { return n != nil && n.Kind == workspace.KindFile }

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
