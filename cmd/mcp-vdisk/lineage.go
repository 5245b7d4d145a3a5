package main

import (
	"context"
	"errors"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// lineage compares the commits of the disk with those that the log tells of. A
// token cannot tell what a copy of this state did under the very token that it was
// copied with, nor that an older copy of the disk was put in its place. It returns
// why nothing may be changed, nil when the disk holds what the log tells of and
// nothing else. Nothing is being changed meanwhile.
//
// The log is read from its end to where the call began that made the newest
// commit, and on to the record of the newest commit that none of these told of:
// what is older was looked at before that call was let in.
func (r *right) lineage(ctx context.Context, p lease.Provider, seen workspace.Fence) (*tools.Error, error) {
	im, stream := r.d.image, r.d.info.UUID
	w := &walk{history: history{im: im, at: map[string]int{}}, told: map[int]bool{}}
	head, there, err := w.link(0)
	if err == nil && there {
		err = r.d.hub.st.log.Commits(ctx, stream, head.Call, w.record)
	}
	if err = errors.Join(err, w.err); err != nil {
		return nil, r.unknowable(err)
	}
	untold, there, err := w.link(w.next)
	if err != nil {
		return nil, r.unknowable(err)
	}
	switch {
	case w.lost != nil:
		return tools.DiskTooOld(w.lost.T, versionText(head.Seq)), nil
	case w.whole || !there || untold.Seq == 1: // the first one is no call's, and of every new disk
		return nil, nil
	case len(w.told) > 0 && (w.next == 0 || w.oldest > w.next):
		return tools.StateUnaware(versionText(untold.Seq)), nil
	case len(w.told) > 0, w.begun, seen == workspace.Fence{}: // it was made by an old release, or elsewhere
		return nil, nil
	}
	// The log tells of no commit at all. It may be that nothing was committed under
	// the leases of it.
	own, err := p.Last(ctx, leaseKey(stream))
	if own == 0 && err == nil {
		return tools.StateUnaware(versionText(head.Seq)), nil
	}
	return nil, err
}

// walk is a walk through the log, from its end, beside the commits of a disk.
type walk struct {
	history
	told   map[int]bool // places in the history whose records were read
	next   int          // the newest place that is not told
	oldest int          // the oldest that is
	begun  bool         // the record was read by which the newest commit's call began
	until  int          // when it has begun: the place whose record is the last to be read
	whole  bool         // the log tells of every commit
	lost   *audit.Record
	err    error
}

// record takes in one record, and says whether to go on.
func (w *walk) record(rec audit.Record) (more bool) {
	if rec.Ha == "" {
		w.tells(0)
		w.begun, w.until = true, w.next
		last, there, err := w.link(w.until)
		w.err = err
		w.whole = err == nil && (!there || last.Seq == 1)
		return err == nil && !w.whole
	}
	place, there, err := w.find(rec.Ha)
	if err != nil || !there {
		w.lost, w.err = &rec, err
		return false
	}
	w.tells(place)
	if rec.Ev == audit.EvLeaseAdopt { // of what is older it was decided that it counts
		w.whole = w.next > place
	} else {
		w.whole = w.begun && w.next > w.until
	}
	return !w.whole
}

// tells notes that the log tells of the commit at a place.
func (w *walk) tells(place int) {
	w.told[place] = true
	w.oldest = max(w.oldest, place)
	for w.told[w.next] {
		w.next++
	}
}

// history is that of a disk, newest commit first, read as far as it is asked for.
type history struct {
	im   *workspace.Image
	list []workspace.Link
	at   map[string]int // ids to their places
	end  bool
}

// read reads more of the history.
func (h *history) read() error {
	var last workspace.Link
	if n := len(h.list); n > 0 {
		last = h.list[n-1]
	}
	const batch = 4096
	more, err := h.im.Ancestry(last, batch)
	for _, l := range more {
		h.at[l.ID] = len(h.list)
		h.list = append(h.list, l)
	}
	h.end = len(more) < batch
	return err
}

// link is the commit at a place; false when the history is shorter.
func (h *history) link(place int) (workspace.Link, bool, error) {
	for place >= len(h.list) {
		if h.end {
			return workspace.Link{}, false, nil
		}
		if err := h.read(); err != nil {
			return workspace.Link{}, false, err
		}
	}
	return h.list[place], true, nil
}

// find is the place of a commit; false when the disk does not have it.
func (h *history) find(id string) (int, bool, error) {
	for {
		place, there := h.at[id]
		if there || h.end {
			return place, there, nil
		}
		if err := h.read(); err != nil {
			return 0, false, err
		}
	}
}

// unknowable lets a disk be changed whose history is damaged: what is undamaged can
// be used, and fsck tells the rest.
func (r *right) unknowable(err error) error {
	if !errors.Is(err, workspace.ErrCorrupt) {
		return err
	}
	r.d.hub.log.Warn("whether the log knows of all changes of a disk cannot be told: its history is damaged", "disk", r.d.name, "error", err)
	return nil
}
