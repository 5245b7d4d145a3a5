package main

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// lineage compares the commits of the disk with those that the log tells of. A
// token cannot tell what a copy of this state did under the very token that it was
// copied with, nor that an older copy of the disk was put in its place. It returns
// why nothing may be changed, nil when the disk holds what the log tells of and
// nothing after it. Nothing is being changed meanwhile.
func (r *right) lineage(ctx context.Context, p lease.Provider, seen workspace.Fence) (*tools.Error, error) {
	im, stream := r.d.image, r.d.info.UUID
	info, err := im.Info()
	if err != nil {
		return nil, err
	}
	head := workspace.Commit{Seq: info.Seq, ID: info.Commit}
	if info.Seq > 1 { // the first one is no call's, and of every new disk
		if head, err = lastCommit(im, info.Seq); err != nil {
			return nil, r.unknowable(err)
		}
	}
	known, told := info.Seq <= 1, false
	var lost *audit.Record
	var failed error
	err = r.d.hub.st.log.Commits(ctx, stream, head.Call, func(rec audit.Record) bool {
		if rec.Ha == "" || rec.Ha == head.ID {
			known = true
			told = told || rec.Ha != ""
			return rec.Ha != "" && rec.Ev != audit.EvLeaseAdopt // what came after the commit may be recorded before it
		}
		told = true
		there, err := holds(im, rec)
		if failed = err; !there {
			lost = &rec
		}
		return there && err == nil
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, r.unknowable(err)
	}
	switch {
	case lost != nil:
		return tools.DiskTooOld(lost.T, versionText(info.Seq)), nil
	case known:
		return nil, nil
	case told:
		return tools.StateUnaware(versionText(info.Seq)), nil
	case seen == workspace.Fence{}: // made by an old release, or elsewhere, and never leased
		return nil, nil
	}
	// The log tells of no commit at all. It may be that nothing was committed under
	// the leases of it.
	own, err := p.Last(ctx, leaseKey(stream))
	if own == 0 && err == nil {
		return tools.StateUnaware(versionText(info.Seq)), nil
	}
	return nil, err
}

// lastCommit is the newest commit of a disk.
func lastCommit(im *workspace.Image, seq uint64) (c workspace.Commit, err error) {
	log, err := im.Log(seq-1, 1)
	if err == nil && len(log) == 1 {
		c = log[0]
	}
	return c, err
}

// holds says whether the disk has the commit that a record tells of.
func holds(im *workspace.Image, r audit.Record) (bool, error) {
	if r.Ev != audit.EvLeaseAdopt {
		c, found, err := im.FindCommit(r.Call)
		return found && c.ID == r.Ha, err
	}
	text, _ := r.Args["version"].(string)
	seq, err := strconv.ParseUint(strings.TrimPrefix(text, "v"), 10, 64)
	if err != nil || seq == 0 {
		return true, nil // it does not say
	}
	c, err := lastCommit(im, seq)
	return c.ID == r.Ha, err
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
