package workspace

import (
	"context"
	"fmt"
	"sync"
)

// Trim drops the oldest commits when the history may take more than its budget, see
// OpenOptions, until it takes nine tenths of that or checkpoints need the rest. It is
// cheap to call after every commit: whether there is anything to do it mostly tells
// from what was added since it last looked. admit is as GCOptions.Admit, nil is none.
//
// When checkpoints alone hold more than the budget, commits that bring contents which
// the image does not have are refused with ErrQuota from then on, until a checkpoint is
// dropped. What stores none goes on: removing, renaming, restoring, other modes.
//
// Errors: as for GC.
func (im *Image) Trim(ctx context.Context, admit func(GCResult) error) (GCResult, error) {
	if im.readOnly || im.damage != "" || !im.TrimDue() {
		return GCResult{}, nil
	}
	budget := im.historyBudget()
	return im.GC(ctx, GCOptions{Budget: max(budget-budget/10, 1), Admit: admit})
}

// TrimDue says whether Trim would look.
func (im *Image) TrimDue() bool {
	st, err := im.file.Stat()
	return err == nil && im.upkeep.due(im.historyBudget(), st.Size())
}

// upkeep is what is known of the size of the history without looking.
type upkeep struct {
	mu    sync.Mutex
	known bool
	size  int64  // when it was last looked at
	added int64  // since, at most
	full  *Error // checkpoints hold more than the budget
	moved bool   // something was committed since that was found
}

// grew notes what a commit adds to the history: its record, and at most the contents
// that it replaced.
func (u *upkeep) grew(r *record) {
	n := r.stored
	for i := range r.changes {
		if e := &r.changes[i]; e.Before != nil && (e.What == Modified || e.What == Deleted) {
			n += e.Before.Size
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.added += n
	u.moved = true
}

// begin is called when a GC takes the state that it looks at.
func (u *upkeep) begin() {
	u.mu.Lock()
	defer u.mu.Unlock()
	// What was known counts until it is known anew, should that fail.
	u.size, u.added = u.size+u.added, 0
	u.moved = false
}

// collected takes in what a GC left.
func (u *upkeep) collected(s Sizes, budget int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.known, u.size, u.full = true, s.History, nil
	if s.History > budget && s.Pinned > budget {
		u.full = imageError("commit", ErrQuota, fmt.Sprintf(
			"checkpoints hold %d bytes of its history, which may take %d, so nothing new can be stored; the person makes room by dropping a checkpoint",
			s.Pinned, budget))
	}
}

// dropped is called when a checkpoint was: what it held may go.
func (u *upkeep) dropped() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.full, u.known = nil, false
}

// isFull is the error of what brings new contents; nil when they are welcome.
func (u *upkeep) isFull() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.full == nil {
		return nil
	}
	return u.full
}

// due says whether the history of a file of this size may be over its budget. It is not
// looked at anew for less than a sixty-fourth of that.
func (u *upkeep) due(budget, file int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.full != nil:
		return u.moved
	case file <= budget:
		return false
	case !u.known:
		return true
	}
	return u.size+u.added > budget && u.added > budget/64
}
