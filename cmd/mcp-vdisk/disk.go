package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/live"
)

// disk is an open image with what all its sessions share.
type disk struct {
	hub      *hub
	name     string // as the first who opened it called it
	path     string
	file     os.FileInfo // hub.mu; nil while it is made
	readOnly bool
	checked  bool // nothing is open: the file is being looked at
	settled  bool // see settle; hub.mu
	image    *workspace.Image
	info     workspace.Info // of when it was opened
	right    *right

	preparing sync.Mutex // held while view and jobs are made
	trims     trimmer

	// Guarded by hub.mu.
	users  int
	moving chan struct{} // while it is being opened or closed, and closed afterwards
	view   *live.View    // nil until scripts may run
	jobs   *tools.Jobs   // with view
}

// idle says that nobody would miss the disk. hub.mu is held.
func (d *disk) idle() bool {
	return d.users == 0 && (d.jobs == nil || len(d.jobs.List()) == 0)
}

// release ends the use of the disk by one who opened it.
func (d *disk) release() error { return d.hub.release(d) }

// close stops its scripts, gives up its lease and closes the image. Nobody uses
// the disk.
func (d *disk) close() error {
	if d.image == nil {
		return nil
	}
	if d.jobs != nil {
		d.jobs.Close()
	}
	d.trims.stop()
	errs := []error{d.right.close()}
	if d.view != nil {
		errs = append(errs, d.view.Close())
	}
	return errors.Join(append(errs, d.image.Close())...)
}

// openDisk opens the file of a disk. hub.mu is held, and let go meanwhile.
func (h *hub) openDisk(ctx context.Context, w want, d *disk) error {
	h.mu.Unlock()
	im, readOnly, err := h.openImage(ctx, w)
	if err != nil {
		h.mu.Lock()
		return err
	}
	d.image, d.readOnly, d.right = im, readOnly, &right{d: d}
	info, err := im.Info()
	if err == nil {
		err = d.only(info)
	}
	if err == nil {
		err = d.settle(ctx, w)
	}
	var file os.FileInfo
	if err == nil {
		file, err = im.Stat()
	}
	if err != nil {
		im.Close()
	} else if !readOnly {
		d.trims.start(d)
	}
	h.mu.Lock()
	d.file = file
	return err
}

// only refuses a copy of a disk that is open, or being opened or closed: both would
// have one log, one lease, and one directory for scripts.
func (d *disk) only(info workspace.Info) error {
	d.hub.mu.Lock()
	defer d.hub.mu.Unlock()
	d.info = info
	for _, o := range d.hub.disks {
		if o == d || o.info.UUID != info.UUID {
			continue
		}
		if o.image != nil && o.image.Gone() {
			return exit.Fail(exit.Busy, "end that session, which mcp-vdisk daemon status shows", "the file of disk %s was replaced while a session has the former one open", o.name)
		}
		return exit.Fail(exit.Busy, "use one of the two at a time", "disk %s is a copy of disk %s, which is open", d.name, o.name)
	}
	return nil
}

// settle completes the calls that a killed process left open on the disk, once.
// Those of this process are not among them: nobody had it open before.
func (d *disk) settle(ctx context.Context, w want) error {
	if d.settled {
		return nil
	}
	err := d.hub.st.settleImage(ctx, d.info.UUID, d.image)
	if d.settled = err == nil; err != nil && w.unsettled {
		d.hub.log.Warn("calls that were cut off are not settled", "error", err) // what was asked for tells why
		return nil
	}
	return err
}

// openImage opens the image for writing where that is possible and others may
// come who write, else as it is asked for.
func (h *hub) openImage(ctx context.Context, w want) (im *workspace.Image, readOnly bool, err error) {
	if w.create && (w.fresh || w.ref.New) {
		im, err = h.createImage(ctx, w)
		return im, false, err
	}
	o := workspace.OpenOptions{ReadOnly: w.readOnly && !(h.shared && w.file == nil), File: w.file, Reserve: h.reserve(w.ref)}
	im, err = workspace.Open(h.pathOf(w.ref), o)
	if errors.Is(err, workspace.ErrReadOnly) && w.readOnly && !o.ReadOnly {
		o.ReadOnly = true
		im, err = workspace.Open(h.pathOf(w.ref), o)
	}
	var e *workspace.Error
	switch {
	case errors.Is(err, workspace.ErrNotFound) && w.create:
		im, err = h.createImage(ctx, w)
	case errors.Is(err, workspace.ErrNotFound):
		err = exit.Fail(exit.NotFound, "mcp-vdisk image create "+w.ref.String()+" makes one", "there is no disk %s", w.ref)
	case errors.As(err, &e) && !e.HasPath():
		f := asFailure(ctx, err)
		f.Text = strings.TrimSuffix(fmt.Sprintf("disk %s %s: %s", w.ref, e.Kind, e.Detail), ": ")
		err = f
	}
	return im, o.ReadOnly, err
}

// reserve is what the disk leaves free on the file system of the log, so that a
// change which was made can also be recorded.
func (h *hub) reserve(r front.ImageRef) uint64 {
	if r.Path != "" { // it may lie on another one
		return 0
	}
	return uint64(h.set.minFree)
}

// createImage makes the disk. What is about to be made is a record of the system
// stream first, for the disk has no stream before it has a uuid; the disk's own
// first record then says what was made.
func (h *hub) createImage(ctx context.Context, w want) (*workspace.Image, error) {
	path := h.pathOf(w.ref)
	if w.file == nil {
		if _, err := os.Lstat(path); err == nil {
			return nil, exit.Fail(exit.Refused, "choose another name; an existing disk is never overwritten", "there is a disk %s already", w.ref)
		}
	}
	about := audit.Facts{"image": w.ref.String(), "label": w.label, "bytes": w.set.imageBytes, "entries": w.set.imageEntries}
	if err := h.st.record(ctx, audit.StreamSystem, audit.Record{Ev: audit.EvImageCreate, Args: about}); err != nil {
		return nil, err
	}
	im, err := workspace.Create(path, workspace.CreateOptions{
		File: w.file, Label: w.label, QuotaBytes: w.set.imageBytes, QuotaEntries: w.set.imageEntries, Reserve: h.reserve(w.ref),
	})
	if err != nil {
		return nil, err
	}
	info, err := im.Info()
	if err == nil {
		err = h.st.record(ctx, info.UUID, audit.Record{Ev: audit.EvImageCreate, Img: info.UUID, Args: about})
	}
	if err != nil {
		im.Close()
		return nil, err
	}
	return im, nil
}

// label names the disk, and says what is odd about it.
func (d *disk) label() string {
	d.hub.mu.Lock()
	defer d.hub.mu.Unlock()
	if d.moving == nil && d.image != nil && d.image.Gone() {
		return d.name + " (its file was removed or replaced)"
	}
	return d.name
}

// prepare opens what scripts need. Whatever keeps them from running here is told
// by run_script; the file tools work all the same.
func (d *disk) prepare(limits tools.Limits) error {
	d.preparing.Lock()
	defer d.preparing.Unlock()
	if d.scripts() != nil {
		return nil
	}
	view, err := live.Open(d.hub.st.path("live"), d.image)
	if err != nil {
		return err
	}
	view.KeepFree(uint64(d.hub.set.minFree))
	jobs := tools.NewJobs(tools.JobsConfig{Limits: limits, Turns: d.hub.turns, Logger: d.hub.log})
	d.hub.mu.Lock()
	defer d.hub.mu.Unlock()
	d.view, d.jobs = view, jobs
	return nil
}

// scripts are the jobs of the disk, nil when there were none.
func (d *disk) scripts() *tools.Jobs {
	d.hub.mu.Lock()
	defer d.hub.mu.Unlock()
	return d.jobs
}
