package tools

import (
	"fmt"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// Lease is the right of a session to change its disk. It is asked at the start of
// every call that can change it: after the policy, and before the intent, so that
// a refusal is a record and has no effect.
//
// The fence goes with the call, and with the script that it starts: everything
// that they change is committed under it, whatever happened since, and the image
// refuses it when the disk was taken over meanwhile. Saving later what a script
// left is a call of its own, under the right of the session that asks.
type Lease interface {
	// Admit returns the fence under which the session may change the disk now,
	// or why it may not: an *Error such as those of [LeaseHeldBy], [LeaseLost],
	// [StateTooOld], [StateUnaware] and [DiskTooOld].
	// It is called by many goroutines at once and must not take long.
	Admit() (workspace.Fence, error)
}

// LeaseHeldBy is the refusal of a change while somebody else has the right to
// make them: who that is, with which client, since when, and how long its lease
// lives if it is not renewed. What is empty or zero is left out. The names may
// come from clients: they are shown quoted, and cut.
func LeaseHeldBy(holder, client string, since time.Time, expires time.Duration) *Error {
	who := "another session"
	if holder != "" {
		who += fmt.Sprintf(", %q", short(holder))
	}
	if client != "" {
		who += fmt.Sprintf(", with the client %q", short(client))
	}
	if holder != "" || client != "" {
		who += ","
	}
	when := ""
	if !since.IsZero() {
		when += " since " + since.UTC().Format(time.RFC3339)
	}
	if expires > 0 {
		when += fmt.Sprintf(", for another %s unless it is renewed", max(expires.Round(time.Second), time.Second))
	}
	return refuse(LeaseHeld, "nothing was changed, and reading works; wait until that session is over, or ask the person, whom `mcp-vdisk lease list` shows who holds it",
		"%s holds the right to change this disk%s", who, when)
}

// LeaseLost is the refusal of a change by a session that had the right to make
// them and has it no longer; why goes on from there, as a part of a sentence. The
// empty why leaves open what it was.
func LeaseLost(why string) *Error {
	if why == "" {
		why = "its lease expired, or was taken back by a person"
	}
	return refuse(Fenced, "nothing was changed, and reading works; only a new session can change the disk: ask the person to connect the client again, to whom `mcp-vdisk lease list` shows who holds the disk now",
		"this session has lost the right to change this disk: %s", why)
}

// TakenBack is the why of [LeaseLost] when a person took the disk back and gave
// this reason, which is shown quoted, and cut.
func TakenBack(reason string) string {
	return fmt.Sprintf("a person took it back (%q)", short(reason))
}

// StateTooOld is the refusal of a change to a disk that has seen a higher token
// than this server gave out: its state directory was put back from a backup, or
// another copy of it is at work on the disk.
func StateTooOld(seen, last uint64) *Error {
	return refuse(Fenced, adoptHint, "the disk was changed under token %d, and this server's state directory has given out %d for it at the most: "+oldState, seen, last)
}

// StateUnaware is the refusal of a change to a disk whose newest version, such as
// v12, is in no record of this server, with the same causes.
func StateUnaware(newest string) *Error {
	return refuse(Fenced, adoptHint, "version %s of the disk is in no record of this server's state directory: "+oldState, newest)
}

// DiskTooOld is the refusal of a change to a disk that does not hold a change which
// this server has a record of: when that was, and the disk's newest version.
func DiskTooOld(recorded time.Time, newest string) *Error {
	return refuse(Fenced, "nothing was changed, and reading works; tell the person, who puts the newer disk back, or decides with `mcp-vdisk lease adopt` that this one goes on",
		"this server has a record of a change at %s that the disk, which is at %s, does not hold: an older copy of the disk was put in its place", recorded.UTC().Format(time.RFC3339), newest)
}

const (
	oldState  = "an older copy of the state directory was put back, or another one is at work on the disk"
	adoptHint = "nothing was changed, and reading works; tell the person, who decides with `mcp-vdisk lease adopt` whether this state directory goes on"
)

const fencedHint = "nothing was changed, and reading works; begin again on what the disk holds now, once this session may change it again; `mcp-vdisk lease list` shows the person who holds it"

// admit asks for the right to change the disk.
func (t *Tools) admit(c *call) (err error) {
	if t.cfg.Lease != nil {
		c.fence, err = t.cfg.Lease.Admit()
	}
	return err
}
