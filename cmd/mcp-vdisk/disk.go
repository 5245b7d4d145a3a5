package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/live"
)

// openDisk opens the image that the request names; create makes a missing one.
// Calls that a killed process left open on it are settled.
func (b *back) openDisk(ctx context.Context, readOnly, create bool) (*workspace.Image, workspace.Info, error) {
	im, err := b.openImage(ctx, readOnly, create)
	if err != nil {
		return nil, workspace.Info{}, err
	}
	info, err := im.Info()
	if err == nil {
		err = b.st.settleImage(ctx, info.UUID, im)
	}
	if err != nil {
		im.Close()
		return nil, info, err
	}
	return im, info, nil
}

func (b *back) openImage(ctx context.Context, readOnly, create bool) (*workspace.Image, error) {
	ref := b.req.Image
	if create && ref.New {
		return b.createImage(ctx, "")
	}
	im, err := workspace.Open(b.diskPath(), workspace.OpenOptions{ReadOnly: readOnly, File: b.image, Reserve: b.reserve()})
	var w *workspace.Error
	switch {
	case errors.Is(err, workspace.ErrNotFound) && create:
		return b.createImage(ctx, "")
	case errors.Is(err, workspace.ErrNotFound):
		return nil, fail(exitNotFound, "mcp-vdisk image create "+ref.String()+" makes one", "there is no disk %s", ref)
	case errors.As(err, &w) && !w.HasPath():
		f := asFailure(ctx, err)
		f.Text = strings.TrimSuffix(fmt.Sprintf("disk %s %s: %s", ref, w.Kind, w.Detail), ": ")
		return nil, f
	}
	return im, err
}

func (b *back) diskPath() string {
	if b.req.Image.Path != "" {
		return b.req.Image.Path
	}
	return b.st.imagePath(b.req.Image.Name)
}

// reserve is what the disk leaves free on the file system of the log, so that a
// change which was made can also be recorded.
func (b *back) reserve() uint64 {
	if b.req.Image.Path != "" { // it may lie on another one
		return 0
	}
	return uint64(b.set.minFree)
}

// createImage makes the disk. What is about to be made is a record of the system
// stream first, for the disk has no stream before it has a uuid; the disk's own
// first record then says what was made.
func (b *back) createImage(ctx context.Context, label string) (*workspace.Image, error) {
	if b.image == nil {
		if _, err := os.Lstat(b.diskPath()); err == nil {
			return nil, fail(exitRefused, "choose another name; an existing disk is never overwritten", "there is a disk %s already", b.req.Image)
		}
	}
	about := audit.Facts{"image": b.req.Image.String(), "label": label, "bytes": b.set.imageBytes, "entries": b.set.imageEntries}
	if err := b.st.record(ctx, audit.StreamSystem, audit.Record{Ev: audit.EvImageCreate, Args: about}); err != nil {
		return nil, err
	}
	im, err := workspace.Create(b.diskPath(), workspace.CreateOptions{
		File: b.image, Label: label, QuotaBytes: b.set.imageBytes, QuotaEntries: b.set.imageEntries, Reserve: b.reserve(),
	})
	if err != nil {
		return nil, err
	}
	info, err := im.Info()
	if err == nil {
		err = b.st.record(ctx, info.UUID, audit.Record{Ev: audit.EvImageCreate, Img: info.UUID, Args: about})
	}
	if err != nil {
		im.Close()
		return nil, err
	}
	return im, nil
}

// disk is an open image with everything that its tools need.
type disk struct {
	image *workspace.Image
	info  workspace.Info
	view  *live.View
	box   *sandboxrun.Runner
	tools *tools.Tools
}

// openTools opens the disk of a session. Whatever keeps scripts from running
// here is told by run_script; the file tools work all the same.
func (b *back) openTools(ctx context.Context) (*disk, error) {
	flags := b.req.Session
	im, info, err := b.openDisk(ctx, flags.ReadOnly, !flags.ReadOnly)
	if err != nil {
		return nil, err
	}
	d := &disk{image: im, info: info}
	if d.box, err = sandboxrun.New(ctx, b.boxConfig()); err != nil {
		d.Close()
		return nil, err
	}
	if d.view, err = live.Open(b.st.path("live"), im); err != nil {
		d.Close()
		return nil, err
	}
	d.view.KeepFree(uint64(b.set.minFree))
	d.tools, err = tools.New(tools.Config{
		Image: im, Live: d.view, Box: d.box, Python: pyenv.New(pyenv.Find(), d.box),
		Log: b.st.log, Limits: b.set.limits, Scratch: b.st.path("scratch"), GetArgs: flags.GetArgs, Logger: b.log, Version: version,
		Policy: tools.Policy{ReadOnly: flags.ReadOnly, NoDelete: flags.NoDelete, Tools: flags.Tools},
	})
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func (b *back) boxConfig() sandboxrun.Config {
	return sandboxrun.Config{Scratch: filepath.Join(b.req.State, "scratch"), Disk: b.set.scratch == "disk", AllowUnixSockets: b.set.unixSockets}
}

// trialBox is the sandbox that scripts get, for verbs that try it without opening
// the state. It keeps on disk what it cannot keep in memory where a script's
// changes would be: in the state directory, if that is there and ours, else in a
// temporary one. drop removes what it made.
func (b *back) trialBox(ctx context.Context) (box *sandboxrun.Runner, drop func(), err error) {
	cfg, drop := b.boxConfig(), func() {}
	if !canMakeRuns(cfg.Scratch) {
		dir, remove, err := sandboxrun.TempDir("", "mcp-vdisk-trial-")
		if err != nil {
			return nil, nil, fmt.Errorf("a directory to try scripts in: %w", err)
		}
		cfg.Scratch, drop = dir, func() { _ = remove() }
	}
	if box, err = sandboxrun.New(ctx, cfg); err != nil {
		drop()
		return nil, nil, err
	}
	return box, drop, nil
}

// canMakeRuns tells whether a scratch directory is there and can be used. What
// it makes has the name of what a Runner makes and removes.
func canMakeRuns(scratch string) bool {
	dir, err := os.MkdirTemp(scratch, "run-")
	return err == nil && os.Remove(dir) == nil
}

// Close stops the scripts that still run and closes the disk; its last call must
// have returned.
func (d *disk) Close() error {
	if d.tools != nil {
		d.tools.Close()
	}
	if d.box != nil {
		d.box.Close()
	}
	var err error
	if d.view != nil {
		err = d.view.Close()
	}
	return errors.Join(err, d.image.Close())
}
