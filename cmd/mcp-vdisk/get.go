package main

import (
	"archive/tar"
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/hostcopy"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

type getArgs struct {
	Paths []string
	At    string // version, "" for the newest
	Plain bool   // the stream is the content of one file
}

func (a *app) imageGetCmd() *cobra.Command {
	var q getArgs
	var force bool
	cmd := &cobra.Command{
		Use:   "get PATH… [DEST]",
		Short: "Copy files and folders of the disk to this computer",
		Long: `get copies out of the disk, all of it from one version: the newest, or the one that --at
names. It looks first whether anything is in the way, and overwrites only with --force; a
folder that is there is filled and stays. It follows no link of this computer but DEST
itself, and makes none that leads out of what is copied. DEST is the present folder unless
it is given; with several paths it must be. "-" is standard output, for one file.`,
		Example: "  mcp-vdisk image get /workspace/chart.svg .\n  mcp-vdisk image get /workspace/out ./results\n  mcp-vdisk image get /workspace/notes.md old.md --at before-cleanup",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dest := "."
			if q.Paths = args; len(args) > 1 {
				q.Paths, dest = args[:len(args)-1], args[len(args)-1]
			}
			if err := pathArgsOf(q.Paths); err != nil {
				return err
			}
			switch {
			case dest == "":
				return exit.Fail(exit.Usage, "leave it out for the present folder", "the destination is empty")
			case dest == stdio:
				return a.getStdout(cmd.Context(), q)
			}
			if info, err := os.Stat(dest); len(q.Paths) > 1 && (err != nil || !info.IsDir()) {
				return exit.Fail(exit.NotFound, "several paths are copied into a folder that is there", "%s is not a folder", hostcopy.Shown(dest))
			}
			return a.get(cmd.Context(), q, dest, force)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "overwrite files that are there")
	atFlag(cmd, &q.At)
	return cmd
}

func atFlag(cmd *cobra.Command, at *string) {
	cmd.Args = allOf(cmd.Args, func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("at") {
			return front.CheckGiven("at", *at)
		}
		return nil
	})
	cmd.Flags().StringVar(at, "at", "", "as it was at `VERSION`: a checkpoint, or v12 of mcp-vdisk image log")
}

// allOf checks arguments in several ways.
func allOf(checks ...cobra.PositionalArgs) cobra.PositionalArgs { return cobra.MatchAll(checks...) }

// get unpacks what the back sends: the plan, then the files.
func (a *app) get(ctx context.Context, q getArgs, dest string, force bool) error {
	r, err := a.NewRequest("image.get", q)
	if err != nil {
		return err
	}
	pr, pw := io.Pipe()
	stop := context.AfterFunc(ctx, func() { pr.Close() }) // what is half written goes, at once
	defer stop()
	m := newMeter(a.Stderr, "get", 0)
	u := &hostcopy.Unpacker{Dest: dest, Force: force, Warn: m.words(), Entry: m.entry, Bytes: m}
	done := make(chan error, 1)
	go func() {
		br := bufio.NewReaderSize(pr, 256<<10)
		err := u.Plan(br)
		if err == nil {
			m.expect(u.Total)
			err = u.Run(br)
		}
		pr.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
		done <- err
	}()
	err = a.Ask(ctx, r, front.OpenRead, nil, pw)
	pw.CloseWithError(cmp.Or(err, io.EOF))
	if unpackErr := <-done; unpackErr != nil && (err == nil || errors.Is(err, unpackErr)) {
		err = unpackErr
	}
	if err = interrupted(ctx, err, m); err != nil {
		if u.Count > 0 {
			fmt.Fprintf(a.Stderr, "mcp-vdisk: written before that: %s of %s\n", entries(u.Count), hostcopy.Shown(u.Shown))
		}
		return err
	}
	shown := hostcopy.Shown(u.Shown)
	if len(q.Paths) > 1 {
		shown = fmt.Sprintf("%d paths into %s", len(q.Paths), hostcopy.Shown(dest))
	}
	fmt.Fprintf(a.Stderr, "got %s (%s)\n", shown, entries(u.Count))
	return nil
}

// getStdout copies one file to standard output.
func (a *app) getStdout(ctx context.Context, q getArgs) error {
	if len(q.Paths) > 1 {
		return exit.Fail(exit.Usage, "copy them one after the other", `"-" is standard output, and takes one file`)
	}
	q.Plain = true
	r, err := a.NewRequest("image.get", q)
	if err != nil {
		return err
	}
	return a.Ask(ctx, r, front.OpenRead, nil, a.Stdout)
}

func entries(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}

func backGet(ctx context.Context, b *back) error {
	var q getArgs
	d, err := b.begin(ctx, &q, true)
	if err != nil {
		return err
	}
	defer d.release()
	g := getting{ctx: ctx, im: d.image}
	if g.seq, err = versionAt(d.image, q.At); err != nil {
		return err
	}
	found := make([]error, len(q.Paths))
	for i, path := range q.Paths {
		found[i] = g.find(path)
	}
	for i, path := range q.Paths {
		if err := b.recordGet(ctx, d.image, "get", path, q.At, found[i]); err != nil {
			return err
		}
	}
	if q.Plain {
		return g.content(b.stdout, g.tops[0].Entry)
	}
	w := bufio.NewWriterSize(b.stdout, 64<<10)
	if err := g.send(w); err != nil {
		return err
	}
	return w.Flush()
}

// versionAt is the version that --at names, the newest without.
func versionAt(im *workspace.Image, at string) (uint64, error) {
	return revisionOf(im, cmp.Or(at, "head"))
}

// getting is a get on its way out of the disk, all of it as of one version.
type getting struct {
	ctx  context.Context
	im   *workspace.Image
	seq  uint64
	tops []topEntry
}

// topEntry is what a person asked for, and its name in the stream: that of the path, also
// where that is a link to something else.
type topEntry struct {
	workspace.Entry
	name string
}

func (g *getting) find(path string) error {
	asked, err := workspace.Clean(path)
	if err != nil {
		return err
	}
	e := topEntry{name: cmp.Or(asked.Base(), strings.TrimPrefix(workspace.Mount, "/"))}
	if e.Path, e.Node, err = g.im.ResolveAt(asked, g.seq); err != nil {
		return err
	}
	if slices.ContainsFunc(g.tops, func(o topEntry) bool { return o.name == e.name }) {
		return exit.Fail(exit.Usage, "copy them one after the other, to different names", "two of the paths are called %s", hostcopy.Shown(e.name))
	}
	g.tops = append(g.tops, e)
	return nil
}

// send writes the plan and then the files.
func (g *getting) send(w io.Writer) error {
	err := g.each(func(e workspace.Entry, name string) error {
		return hostcopy.WritePlanned(w, planned(e.Node, name))
	})
	if err == nil {
		err = hostcopy.WritePlanned(w, hostcopy.Planned{})
	}
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	err = g.each(func(e workspace.Entry, name string) error {
		if err := t.WriteHeader(headerOf(e.Node, name)); err != nil || e.Node.Kind != workspace.KindFile {
			return err
		}
		return g.content(t, e)
	})
	return cmp.Or(err, t.Close())
}

// each visits all entries with their names in the stream.
func (g *getting) each(visit func(e workspace.Entry, name string) error) error {
	for _, top := range g.tops {
		if err := visit(top.Entry, top.name); err != nil {
			return err
		}
		if top.Node.Kind != workspace.KindDir {
			continue
		}
		above := len(top.Path.Rel())
		err := g.im.WalkAt(g.ctx, top.Path, g.seq, func(e workspace.Entry) error {
			return visit(e, top.name+"/"+strings.TrimPrefix(e.Path.Rel()[above:], "/"))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// content writes a file, until the context ends.
func (g *getting) content(w io.Writer, e workspace.Entry) error {
	if e.Node.Kind == workspace.KindDir {
		return exit.Fail(exit.Failed, "mcp-vdisk image export - writes a whole disk to standard output", "%s is a directory, and standard output takes one file", e.Path)
	}
	f, err := g.im.OpenNode(e.Path, e.Node)
	if err != nil {
		return err
	}
	_, err = io.Copy(whileWanted{g.ctx, w}, f.Reader())
	return err
}

func planned(n workspace.Node, name string) hostcopy.Planned {
	switch n.Kind {
	case workspace.KindDir:
		return hostcopy.Planned{Kind: hostcopy.PlannedDir, Name: name}
	case workspace.KindSymlink:
		return hostcopy.Planned{Kind: hostcopy.PlannedLink, Name: name}
	}
	return hostcopy.Planned{Kind: hostcopy.PlannedFile, Size: n.Size, Name: name}
}

func headerOf(n workspace.Node, name string) *tar.Header {
	h := &tar.Header{Name: name, Mode: int64(n.Mode), ModTime: n.ModTime, Typeflag: tar.TypeReg, Size: n.Size}
	switch n.Kind {
	case workspace.KindDir:
		h.Typeflag, h.Size, h.Name = tar.TypeDir, 0, name+"/"
	case workspace.KindSymlink:
		h.Typeflag, h.Size, h.Linkname = tar.TypeSymlink, 0, n.Target
	}
	return hostcopy.Header(h)
}

// recordGet records that a command is about to take something out of the disk, or why
// it does not, which it returns.
func (b *back) recordGet(ctx context.Context, im *workspace.Image, command, path, at string, why error) error {
	info, err := im.Info()
	if err != nil {
		return cmp.Or(why, err)
	}
	about := audit.Facts{"command": command, "path": path}
	if at != "" {
		about["at"] = at
	}
	rec := audit.Record{Ev: audit.EvImageGet, Img: info.UUID, Args: about, Hb: info.Commit, Ha: info.Commit, Act: "operator", Dec: "allow"}
	if why != nil {
		rec.Reason, rec.Out = why.Error(), &audit.Out{}
	}
	if isRefusal(ctx, why) {
		rec.Dec, rec.Err = "deny", refusedErr
	}
	_, err = b.st.log.Append(ctx, info.UUID, audit.Entry{Record: rec})
	return cmp.Or(why, err)
}
