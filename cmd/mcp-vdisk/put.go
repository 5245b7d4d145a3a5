package main

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/hostcopy"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

type putArgs struct {
	Dest  string
	Names []string // top-level names in the stream, as they are shown
	Into  bool     // Dest is a directory to put them into
	Force bool
	Plain bool // the stream is the content of one file, Dest
}

// stdio is the source or destination that is standard input or output.
const stdio = "-"

func (a *app) imagePutCmd() *cobra.Command {
	var q putArgs
	cmd := &cobra.Command{
		Use:   "put SOURCE… DEST",
		Short: "Copy files and folders of this computer into the disk",
		Long: `put copies into the disk as one commit, all or nothing. Of "." and ".." what is in them is
copied, as cp -R does. A source that is a link is followed; links inside a folder are
stored as links. Pipes, sockets and devices inside are left out, and counted. "-" is
standard input, for one file.`,
		Example: "  mcp-vdisk image put report.csv /workspace/\n  mcp-vdisk image put ./data /workspace/data\n  pg_dump db | mcp-vdisk image put - /workspace/db.sql",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			sources := args[:len(args)-1]
			q.Dest = args[len(args)-1]
			if err := pathArg(q.Dest); err != nil {
				return err
			}
			if slices.Contains(sources, stdio) {
				return a.putStdin(cmd.Context(), q, sources)
			}
			q.Into = len(sources) > 1 || strings.HasSuffix(q.Dest, "/")
			names, err := sourceNames(sources)
			if err != nil {
				return err
			}
			for _, n := range names {
				q.Names = append(q.Names, hostcopy.Shown(n))
			}
			return a.put(cmd.Context(), q, sources, names)
		},
	}
	cmd.Flags().BoolVar(&q.Force, "force", false, "overwrite files that are there")
	return cmd
}

// sourceNames looks at sources and gives their names in the stream.
func sourceNames(sources []string) (names []string, err error) {
	for _, s := range sources {
		info, err := os.Stat(s)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, exit.Fail(exit.NotFound, "", "%s: %s", hostcopy.Shown(s), front.ErrText(err))
		case err != nil:
			return nil, exit.Fail(exit.Failed, "", "%s: %s", hostcopy.Shown(s), front.ErrText(err))
		case !info.IsDir() && !info.Mode().IsRegular():
			return nil, hostcopy.NotRegular(s)
		}
		name := hostcopy.SourceName(s)
		if slices.Contains(names, name) {
			return nil, exit.Fail(exit.Usage, "copy them one after the other, to different names", "two of the sources are called %s", hostcopy.Shown(name))
		}
		names = append(names, name)
	}
	return names, nil
}

func (a *app) put(ctx context.Context, q putArgs, sources, names []string) error {
	r, err := a.NewRequest("image.put", q)
	if err != nil {
		return err
	}
	m := newMeter(a.Stderr, "put", 0)
	if m.columns > 0 {
		m.expect(hostcopy.Measure(sources))
	}
	pr, pw := io.Pipe()
	defer pr.Close()
	go func() {
		p := &hostcopy.Packer{Warn: m.words(), Entry: m.entry, Bytes: m, Dest: q.Dest}
		err := p.Run(pw, sources, names)
		m.end()
		pw.CloseWithError(err)
	}()
	return interrupted(ctx, a.Ask(ctx, r, front.OpenCreate, pr, a.Stdout), m)
}

// putStdin copies standard input to one file.
func (a *app) putStdin(ctx context.Context, q putArgs, sources []string) error {
	if len(sources) > 1 || strings.HasSuffix(q.Dest, "/") {
		return exit.Fail(exit.Usage, "mcp-vdisk image put - /workspace/NAME; a file of that name is ./-", `"-" is standard input, and is copied alone, to the name of a file`)
	}
	q.Plain, q.Names = true, []string{"standard input"}
	r, err := a.NewRequest("image.put", q)
	if err != nil {
		return err
	}
	if why, ok := hostcopy.AutoRun(q.Dest); ok {
		fmt.Fprintf(a.Stderr, "mcp-vdisk: note: %s: %s\n", hostcopy.Shown(q.Dest), why)
	}
	m := newMeter(a.Stderr, "put", 0)
	return interrupted(ctx, a.Ask(ctx, r, front.OpenCreate, &metered{a.Stdin, m}, a.Stdout), m)
}

// interrupted ends a copy's meter. What fails once a person has interrupted it fails for
// that.
func interrupted(ctx context.Context, err error, m *meter) error {
	m.end()
	var said *exit.Failure
	switch {
	case err == nil || ctx.Err() == nil:
		return err
	case errors.As(err, &said) && said.Code != exit.Failed:
		return err
	case said != nil || errors.Is(err, io.ErrClosedPipe):
		return exit.Fail(exit.Interrupted, "", "interrupted")
	}
	return exit.Fail(exit.Interrupted, "", "interrupted: %s", err)
}

func backPut(ctx context.Context, b *back) error {
	var q putArgs
	if err := b.args(&q); err != nil {
		return err
	}
	dest, refused := workspace.Clean(q.Dest)
	// A refusal goes into the disk's log, but no disk is made for it.
	d, err := b.open(ctx, want{create: refused == nil})
	if err != nil {
		return cmp.Or(refused, err)
	}
	defer d.release()
	p := putting{im: d.image, stage: d.image.Stage(ctx), q: q}
	defer p.stage.Discard()
	about := audit.Facts{"path": q.Dest, "names": q.Names, "force": q.Force}
	done, err := b.change(ctx, d, audit.EvImagePut, about, func() (txn workspace.Txn, err error) {
		if refused != nil {
			return txn, refused
		}
		if err := p.resolve(dest); err != nil {
			return txn, err
		}
		err = p.read(b.stdin)
		if errors.Is(err, io.ErrUnexpectedEOF) { // who sends it is gone, or was interrupted
			err = exit.Fail(exit.Interrupted, "", "the copy broke off; nothing was copied")
		}
		return workspace.Txn{Message: "image put", Stage: p.stage, Changes: p.changes, Admit: q.admit}, err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(b.stderr, "put %s into %s (%d changed)\n", safe(strings.Join(q.Names, ", ")), p.dest, len(done.Effects))
	return nil
}

// putting is a put on its way into the disk.
type putting struct {
	im      *workspace.Image
	stage   *workspace.Stage
	q       putArgs
	dest    workspace.Path
	changes []workspace.Change
}

// resolve follows links to the destination and, as cp does, takes one that
// is a directory as the place to put things into.
func (p *putting) resolve(dest workspace.Path) (err error) {
	var n workspace.Node
	p.dest, n, err = p.im.Resolve(dest)
	switch {
	case err == nil && n.Kind == workspace.KindDir:
		if p.q.Plain {
			return &workspace.Error{Op: "put", Path: p.dest, Kind: workspace.ErrIsDirectory}
		}
		p.q.Into = true
	case err == nil && p.q.Into:
		return &workspace.Error{Op: "put", Path: p.dest, Kind: workspace.ErrNotDirectory}
	case errors.Is(err, workspace.ErrNotFound):
		p.dest, err = p.im.ResolveParent(dest)
	}
	return err
}

// admit refuses to overwrite files unless the person said so.
func (q putArgs) admit(effects []workspace.Effect) error {
	var first *workspace.Effect
	others := 0
	for i, e := range effects {
		switch {
		case q.Force || e.Before == nil || e.Before.Kind == workspace.KindDir || e.What != workspace.Modified && e.What != workspace.Deleted:
		case first == nil:
			first = &effects[i]
		default:
			others++
		}
	}
	switch {
	case first == nil:
		return nil
	case others > 0:
		return exit.Fail(exit.Refused, "pass --force to overwrite", "%s and %d more are there already and differ; nothing was copied", first.Path, others)
	}
	return exit.Fail(exit.Refused, "pass --force to overwrite", "%s is there already and differs; nothing was copied", first.Path)
}

// read takes the stream into the stage and makes changes of it.
func (p *putting) read(r io.Reader) error {
	if p.q.Plain {
		c := workspace.Change{Op: workspace.OpPut, Path: p.dest, ModTime: time.Now(), Parents: true}
		var err error
		c.Content, err = p.stage.Add(r)
		p.changes = append(p.changes, c)
		return err
	}
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := p.entry(t, h); err != nil {
			return err
		}
	}
}

func (p *putting) entry(t *tar.Reader, h *tar.Header) error {
	at, err := p.place(h.Name)
	if err != nil || at.IsRoot() {
		return err
	}
	old, err := p.im.Lstat(at)
	there := err == nil
	c := workspace.Change{Path: at, Mode: uint32(h.Mode)&0o777 | workspace.ModeSet, ModTime: h.ModTime, Parents: true}
	switch h.Typeflag {
	case tar.TypeDir:
		if c.Op = workspace.OpMkdir; there { // it keeps its mode, as with cp
			c.Mode = 0
		}
	case tar.TypeSymlink:
		c.Op, c.Target = workspace.OpSymlink, h.Linkname
		c.Replace = p.q.Force && there && old.Kind != workspace.KindDir
	case tar.TypeReg:
		c.Op = workspace.OpPut
		if c.Content, err = p.stage.Add(t); err != nil {
			return err
		}
	default:
		return fmt.Errorf("unexpected type %q in the stream", h.Typeflag)
	}
	p.changes = append(p.changes, c)
	return nil
}

// place is where an entry of the stream goes: below dest under its own name, or
// in place of it. What is in "." goes into dest itself.
func (p *putting) place(name string) (workspace.Path, error) {
	name = strings.TrimSuffix(name, "/")
	if top, rest, _ := strings.Cut(name, "/"); !p.q.Into || top == "." {
		name = rest
	}
	full := strings.TrimPrefix(p.dest.Rel()+"/"+name, "/")
	return workspace.FromBytes([]byte(strings.TrimSuffix(full, "/")))
}
