package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// pathArg refuses a path inside the disk that would not reach the back as it is.
func pathArg(path string) error {
	if !utf8.ValidString(path) {
		return exit.Fail(exit.Usage, "such a name is reached in the quoted form, as mcp-vdisk image tree shows it",
			"the path %q is not valid UTF-8, and requests travel as JSON", path)
	}
	return nil
}

type catArgs struct{ Path, At string }

func (a *app) imageCatCmd() *cobra.Command {
	var q catArgs
	cmd := &cobra.Command{
		Use:     "cat PATH",
		Short:   "Print a file of the disk, byte for byte",
		Example: "  mcp-vdisk image cat /workspace/notes.md\n  mcp-vdisk image cat /workspace/notes.md --at before-cleanup",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Path = args[0]
			if err := pathArg(q.Path); err != nil {
				return err
			}
			return a.simple(cmd, "image.cat", q, front.OpenRead)
		},
	}
	atFlag(cmd, &q.At)
	return cmd
}

// openAt opens the disk for a command that reads a path as it was at a version.
func (b *back) openAt(ctx context.Context, path, at string) (d *disk, p workspace.Path, seq uint64, err error) {
	if p, err = workspace.Clean(path); err != nil {
		return nil, p, 0, err
	}
	if d, err = b.open(ctx, want{readOnly: true}); err != nil {
		return nil, p, 0, err
	}
	if seq, err = versionAt(d.image, at); err != nil {
		d.release()
		return nil, p, 0, err
	}
	return d, p, seq, nil
}

func backCat(ctx context.Context, b *back) error {
	var q catArgs
	if err := b.args(&q); err != nil {
		return err
	}
	d, p, seq, err := b.openAt(ctx, q.Path, q.At)
	if err != nil {
		return err
	}
	defer d.release()
	f, err := d.image.OpenAt(p, seq)
	if err := b.recordGet(ctx, d.image, "cat", q.Path, q.At, err); err != nil {
		return err
	}
	_, err = io.Copy(whileWanted{ctx, b.stdout}, f.Reader())
	return err
}

type treeArgs struct {
	Path, At string
	Depth    int // 0 is all
	JSON     bool
}

func (a *app) imageTreeCmd() *cobra.Command {
	q := treeArgs{Path: workspace.Mount}
	cmd := &cobra.Command{
		Use:     "tree [PATH]",
		Short:   "Show a directory of the disk with everything in it",
		Example: "  mcp-vdisk image tree\n  mcp-vdisk image tree /workspace/src -L 1\n  mcp-vdisk image tree --at v12 --json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if q.JSON = a.json; len(args) == 1 {
				q.Path = args[0]
			}
			if cmd.Flags().Changed("depth") && q.Depth < 1 {
				return exit.Fail(exit.Usage, "", "--depth: must be at least 1, is %d", q.Depth)
			}
			if err := pathArg(q.Path); err != nil {
				return err
			}
			return a.simple(cmd, "image.tree", q, front.OpenRead)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().IntVarP(&q.Depth, "depth", "L", 0, "show so many `LEVELS` and no more")
	atFlag(cmd, &q.At)
	return cmd
}

func backTree(ctx context.Context, b *back) error {
	var q treeArgs
	if err := b.args(&q); err != nil {
		return err
	}
	d, p, seq, err := b.openAt(ctx, q.Path, q.At)
	if err != nil {
		return err
	}
	defer d.release()
	top := workspace.Entry{}
	if top.Path, top.Node, err = d.image.ResolveAt(p, seq); err != nil {
		return err
	}
	t := treeShown{b: b, top: top.Path, json: q.JSON}
	t.show(top)
	if top.Node.Kind == workspace.KindDir {
		err = d.image.WalkAt(ctx, top.Path, seq, func(e workspace.Entry) error {
			t.show(e)
			if q.Depth > 0 && e.Node.Kind == workspace.KindDir && t.depth(e) >= q.Depth {
				return fs.SkipDir
			}
			return nil
		})
	}
	if err != nil {
		return err
	}
	t.end()
	return nil
}

// treeShown prints a tree entry by entry.
type treeShown struct {
	b    *back
	top  workspace.Path
	json bool

	shown              int
	dirs, files, links int // below top
	bytes              int64
}

// nodeFacts is what `image tree --json` tells of an entry.
type nodeFacts struct {
	Path    string    `json:"path"`
	Kind    string    `json:"kind"` // "file", "directory", "link"
	Bytes   int64     `json:"bytes"`
	Mode    string    `json:"mode"` // octal
	ModTime time.Time `json:"mtime"`
	Version string    `json:"version,omitempty"` // that last changed it
	SHA256  string    `json:"sha256,omitempty"`
	Target  string    `json:"target,omitempty"` // quoted as Go does when it is no text
}

func (t *treeShown) depth(e workspace.Entry) int { return e.Path.Depth() - t.top.Depth() }

func (t *treeShown) show(e workspace.Entry) {
	n := e.Node
	if e.Path != t.top {
		t.count(n)
	}
	if t.json {
		t.fact(e)
		return
	}
	name := t.top.String()
	if e.Path != t.top {
		name = strings.Repeat("  ", t.depth(e)) + shownName(e.Path)
	}
	switch {
	case e.Path == t.top:
		t.b.printf("%s\n", name)
	case n.Kind == workspace.KindDir:
		t.b.printf("%s/\n", name)
	case n.Kind == workspace.KindSymlink:
		t.b.printf("%s -> %q\n", name, n.Target)
	default:
		t.b.printf("%s  %s\n", name, showBytes(n.Size))
	}
}

func (t *treeShown) count(n workspace.Node) {
	switch n.Kind {
	case workspace.KindDir:
		t.dirs++
	case workspace.KindSymlink:
		t.links++
	default:
		t.files++
		t.bytes += n.Size
	}
}

// fact prints an entry as an element of a list, which end closes.
func (t *treeShown) fact(e workspace.Entry) {
	n := e.Node
	f := nodeFacts{Path: e.Path.String(), Kind: "file", Bytes: n.Size, Mode: fmt.Sprintf("%04o", n.Mode), ModTime: n.ModTime}
	if n.Version > 0 {
		f.Version = versionText(n.Version)
	}
	switch n.Kind {
	case workspace.KindDir:
		f.Kind = "directory"
	case workspace.KindSymlink:
		if f.Kind, f.Target = "link", n.Target; !utf8.ValidString(n.Target) {
			f.Target = fmt.Sprintf("%q", n.Target)
		}
	default:
		f.SHA256 = fmt.Sprintf("%x", n.SHA256)
	}
	line, _ := json.Marshal(f) // of strings and numbers
	t.b.printf("%s\n  %s", map[bool]string{true: "[", false: ","}[t.shown == 0], line)
	t.shown++
}

func (t *treeShown) end() {
	if t.json {
		t.b.printf("\n]\n")
		return
	}
	if t.dirs+t.files+t.links > 0 {
		t.b.printf("\n%s, %s, %s, %s\n", counted(t.dirs, "directory", "directories"), counted(t.files, "file", "files"), counted(t.links, "link", "links"), showBytes(t.bytes))
	}
}

func counted(n int, one, many string) string {
	if n == 1 {
		many = one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// shownName is a name that is safe to print: odd ones are quoted.
func shownName(p workspace.Path) string {
	if s := p.String(); s[0] != '"' {
		return p.Base()
	}
	return fmt.Sprintf("%q", p.Base())
}

type rmArgs struct {
	Paths     []string
	Recursive bool
}

func (a *app) imageRmCmd() *cobra.Command {
	var q rmArgs
	cmd := &cobra.Command{
		Use:     "rm PATH…",
		Short:   "Remove files, links and, with -r, directories from the disk, all or nothing",
		Example: "  mcp-vdisk image rm /workspace/a.txt /workspace/b.txt\n  mcp-vdisk image rm -r /workspace/old",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Paths = args
			if err := pathArgsOf(args); err != nil {
				return err
			}
			return a.simple(cmd, "image.rm", q, front.OpenWrite)
		},
	}
	cmd.Flags().BoolVarP(&q.Recursive, "recursive", "r", false, "remove a directory with everything in it")
	return cmd
}

func backRemove(ctx context.Context, b *back) error {
	var q rmArgs
	if err := b.args(&q); err != nil {
		return err
	}
	paths, refused := cleanPaths(q.Paths)
	d, err := b.open(ctx, want{})
	if err != nil {
		return cmp.Or(refused, err)
	}
	defer d.release()
	about := audit.Facts{"path": q.Paths[0], "recursive": q.Recursive}
	if len(q.Paths) > 1 {
		about = audit.Facts{"paths": q.Paths, "recursive": q.Recursive}
	}
	done, err := b.change(ctx, d, audit.EvImageRm, about, func() (txn workspace.Txn, err error) {
		if refused != nil {
			return txn, refused
		}
		changes, err := removals(d.image, paths, q.Recursive)
		return workspace.Txn{Message: "image rm", Changes: changes}, err
	})
	if err != nil {
		return err
	}
	what := paths[0].String()
	if len(paths) > 1 {
		what = fmt.Sprintf("%d paths", len(paths))
	}
	fmt.Fprintf(b.stderr, "removed %s (%d)\n", what, len(done.Effects))
	return nil
}

// removals are the steps that remove paths; one that is named twice goes once, and with
// what is above it.
func removals(im *workspace.Image, paths []workspace.Path, recursive bool) ([]workspace.Change, error) {
	var changes []workspace.Change
	for i, p := range paths {
		var err error
		if paths[i], err = im.ResolveParent(p); err != nil {
			return nil, err
		}
		gone := slices.ContainsFunc(paths[:i], func(o workspace.Path) bool {
			return o == paths[i] || recursive && strings.HasPrefix(paths[i].Rel(), o.Rel()+"/")
		})
		if !gone {
			changes = append(changes, workspace.Change{Op: workspace.OpRemove, Path: paths[i], Recursive: recursive})
		}
	}
	return changes, nil
}
