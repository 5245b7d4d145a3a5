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
	case w.lost() != nil:
		return tools.DiskTooOld(w.lost().T, versionText(head.Seq)), nil
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
	gone   []audit.Record
	before map[string]string // commits of gone to those before them
	err    error
}

// lost is the newest record of a commit that the disk does not have and that is none of
// those which were dropped from the beginning of its history: the oldest one that is
// left has the id of the one before it, and that one's record the id of the one before
// that.
func (w *walk) lost() *audit.Record {
	if len(w.gone) == 0 {
		return nil
	}
	dropped := map[string]bool{}
	if n := len(w.list); w.end && n > 0 {
		for id := w.list[n-1].Parent; id != "" && !dropped[id]; id = w.before[id] {
			dropped[id] = true
		}
	}
	for i := range w.gone {
		if !dropped[w.gone[i].Ha] {
			return &w.gone[i]
		}
	}
	return nil
}

// record takes in one record, and says whether to go on.
func (w *walk) record(rec audit.Record) (more bool) {
	if rec.Ha == "" {
		w.tells(0)
		w.begun, w.until = true, w.next
		last, there, err := w.link(w.until)
		w.err = err
		w.whole = err == nil && (!there || last.Seq == 1)
		return err == nil && w.goesOn()
	}
	place, there, err := w.find(rec.Ha)
	if err != nil {
		w.err = err
		return false
	}
	if !there {
		return w.misses(rec)
	}
	w.tells(place)
	if rec.Ev == audit.EvLeaseAdopt { // of what is older it was decided that it counts
		w.whole = w.next > place
		return !w.whole
	}
	w.whole = w.begun && w.next > w.until
	return w.goesOn()
}

// goesOn says whether more has to be read: also to see whether a commit that is gone was
// dropped.
func (w *walk) goesOn() bool { return !w.whole || w.lost() != nil }

// misses notes a commit that the disk does not have. One that was dropped is mostly told
// of by a record older than any that has to be read; a call that was slow to tell may
// be late, and then the records of those between are read, too.
func (w *walk) misses(rec audit.Record) (more bool) {
	w.gone = append(w.gone, rec)
	if w.before == nil {
		w.before = map[string]string{}
	}
	if rec.Ha != rec.Hb {
		w.before[rec.Ha] = rec.Hb
	}
	n := len(w.list)
	return n > 0 && w.list[n-1].Seq > 1 // else nothing was dropped
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
