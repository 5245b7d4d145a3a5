package queue

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4"
)

var allStates = []State{Received, Resolving, Rejected, PendingApproval, AutoApproved, Approved, Fetching, Building, Probing, Ready, Failed, Denied, Expired, Cancelled}

// The whole table, as a person reads it.
func TestStates(t *testing.T) {
	var b strings.Builder
	for _, s := range allStates {
		b.WriteString(string(s) + ":")
		for _, n := range s.Next() {
			b.WriteString(" " + string(n))
		}
		switch {
		case s.Closed():
			b.WriteString(" (closed)")
		case s.AtWork():
			b.WriteString(" (at work)")
		}
		b.WriteString("\n")
	}
	path := filepath.Join("testdata", "states.golden")
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(golden) {
		t.Errorf("got\n%s\nwant\n%s", b.String(), golden)
	}
	if s := State("made up"); s.Closed() || s.AtWork() || s.Next() != nil {
		t.Error("a state that is none is something")
	}
	Received.Next()[0] = "spoiled"
	if slices.Contains(Received.Next(), "spoiled") {
		t.Error("the table can be changed from outside")
	}
}

// path leads to each state.
var path = map[State][]State{
	Received: {}, Resolving: {Resolving}, Rejected: {Rejected}, PendingApproval: {PendingApproval},
	AutoApproved: {AutoApproved}, Approved: {PendingApproval, Approved},
	Fetching: {PendingApproval, Approved, Fetching}, Building: {AutoApproved, Building}, Probing: {AutoApproved, Probing},
	Ready: {AutoApproved, Ready}, Failed: {Failed}, Denied: {PendingApproval, Denied}, Expired: {PendingApproval, Expired}, Cancelled: {Cancelled},
}

// Every move of the table can be made, and no other.
func TestMoveByTheTable(t *testing.T) {
	f := newFixture(t)
	for _, from := range allStates {
		for _, to := range allStates {
			r := f.to(f.submit(wsA, "foo"), path[from]...)
			allowed := slices.Contains(from.Next(), to)
			if (to == AutoApproved || to == Approved) && from.decided() && to != r.Point() {
				allowed = false // it goes back to the approval that it had
			}
			moved, err := f.Move(t.Context(), r.ID, from, furnish(to))
			switch {
			case allowed && (err != nil || moved.State != to):
				t.Errorf("%s to %s: %v", from, to, err)
			case !allowed && !errors.Is(err, ErrInvalid):
				t.Errorf("%s to %s: %v", from, to, err)
			}
			got, err := f.Get(wsA, r.ID)
			if err != nil {
				t.Fatal(err)
			}
			if allowed {
				want(t, "as returned", got, moved)
			} else {
				want(t, "unchanged", got, r)
			}
			if !got.State.Closed() {
				f.to(got, Cancelled)
			}
		}
	}
	consistent(t, f.Queue)
}

func TestMoveIsCompareAndSwap(t *testing.T) {
	f := newFixture(t)
	r := f.submit(wsA, "foo")
	f.to(r, Resolving)
	now, err := f.Move(t.Context(), r.ID, Received, func(*Request) error {
		t.Error("change was asked")
		return nil
	})
	wantIs(t, err, ErrConflict)
	want(t, "what it is now", now.State, Resolving)
	for _, id := range []string{"", "x", strings.ToLower(r.ID), "01ARZ3NDEKTSV4RRFFQ69G5FAV", r.ID + "/"} {
		if _, err := f.Move(t.Context(), id, Received, furnish(Resolving)); err != ErrNotFound {
			t.Errorf("%q: %v", id, err)
		}
	}
	own := errors.New("own")
	if _, err := f.Move(t.Context(), r.ID, Resolving, func(r *Request) error { r.State = Failed; return own }); err != own {
		t.Error(err)
	}
	want(t, "after an error of change", f.submit(wsA, "foo"), now)
}

func TestMoveKeepsWhatWasAsked(t *testing.T) {
	f := newFixture(t)
	r, _, err := f.Submit(t.Context(), Request{Workspace: wsA, Specs: []string{"foo"}, Wheel: &Upload{File: "a.whl", Path: "a.whl", SHA256: strings.Repeat("0", 64)}})
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Request){
		"id":        func(r *Request) { r.ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV" },
		"workspace": func(r *Request) { r.Workspace = wsB },
		"specs":     func(r *Request) { r.Specs[0] = "bar" },
		"wheel":     func(r *Request) { r.Wheel.SHA256 = strings.Repeat("1", 64) },
		"no wheel":  func(r *Request) { r.Wheel = nil },
		"reason":    func(r *Request) { r.Reason = "the operator said so" },
		"session":   func(r *Request) { r.Session = "other" },
		"client":    func(r *Request) { r.Client = "other" },
		"call":      func(r *Request) { r.Call = "other" },
		"created":   func(r *Request) { r.Created = start.AddDate(1, 0, 0) },
		"state":     func(r *Request) { r.State = "made up" },
		"lock":      func(r *Request) { r.Lock = "../x" },
		"layer":     func(r *Request) { r.Layer = "/etc" },
		"findings":  func(r *Request) { r.Findings = make([]Finding, 1) },
		"too many":  func(r *Request) { r.Findings = slices.Repeat([]Finding{{Rule: "a", Tier: "ask"}}, maxFindings+1) },
		"too large": func(r *Request) {
			r.Findings = slices.Repeat([]Finding{{Rule: "a", Tier: "ask", Sentence: strings.Repeat("a", maxText)}}, 70)
		},
		"not UTF-8": func(r *Request) { r.Findings = []Finding{{Rule: "a", Tier: "ask", Sentence: "\xff"}} },
	} {
		if _, err := f.Move(t.Context(), r.ID, Received, func(r *Request) error { change(r); return nil }); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	got, err := f.Move(t.Context(), r.ID, Received, func(r *Request) error {
		r.Attempt, r.Auto, r.Expires, r.Updated = 3, true, start.AddDate(9, 0, 0), start.AddDate(9, 0, 0)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "what the queue keeps by itself", got, r)
}

// Case 50: the approval is for the lock that was shown, and what is built has that lock.
func TestCase50ApprovalIsForALock(t *testing.T) {
	f := newFixture(t)
	pending := f.to(f.submit(wsA, "foo"), Resolving, PendingApproval)
	want(t, "lock", pending.Lock, lock1)
	approve := func(lockID string) func(*Request) error {
		return func(r *Request) error {
			r.State = Approved
			r.Decision = &Decision{Approve: true, By: "operator uid 1000", Lock: lockID}
			return nil
		}
	}

	// The index changed: a new solution came while the card was read.
	r, err := f.Move(t.Context(), pending.ID, PendingApproval, func(r *Request) error { r.Lock = lock2; return nil })
	if err != nil {
		t.Fatal(err)
	}
	r, err = f.Move(t.Context(), r.ID, PendingApproval, approve(lock1))
	wantIs(t, err, ErrConflict)
	want(t, "state", r.State, PendingApproval)
	_, err = f.Move(t.Context(), r.ID, PendingApproval, approve(""))
	wantIs(t, err, ErrConflict)
	_, err = f.Move(t.Context(), r.ID, PendingApproval, func(r *Request) error { r.Lock = lock1; return approve(lock1)(r) })
	wantIs(t, err, ErrInvalid)
	_, err = f.Move(t.Context(), r.ID, PendingApproval, func(r *Request) error { r.State = Approved; return nil })
	wantIs(t, err, ErrInvalid)
	if r, err = f.Move(t.Context(), r.ID, PendingApproval, approve(lock2)); err != nil {
		t.Fatal(err)
	}

	// From here on the lock stays, over a restart too.
	r = f.to(r, Fetching)
	f.reopen()
	if _, err := f.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	r = f.to(f.submit(wsA, "foo"), Building)
	for name, change := range map[string]func(*Request){
		"another lock":     func(r *Request) { r.State, r.Lock = Probing, lock1 },
		"both":             func(r *Request) { r.State, r.Lock, r.Decision.Lock = Probing, lock1, lock1 },
		"another decision": func(r *Request) { r.Decision.By = "catalog rev 3" },
		"no decision":      func(r *Request) { r.State, r.Decision = Probing, nil },
		"isolated":         func(r *Request) { r.Iso = true },
		"no layer":         func(r *Request) { r.State = Ready },
		"ready with other": func(r *Request) { r.State, r.Layer, r.Lock = Ready, layer1, lock1 },
	} {
		if _, err := f.Move(t.Context(), r.ID, Building, func(r *Request) error { change(r); return nil }); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}

	// Back before the decision, it is gone, and the next solution is asked about.
	r, err = f.Move(t.Context(), r.ID, Building, func(r *Request) error { r.State, r.Lock = PendingApproval, lock1; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if r.Decision != nil || r.Expires.IsZero() {
		t.Errorf("an old decision holds: %+v", r)
	}

	// Isolated, it is another lock, which the decision names.
	isolated := func(r *Request) error { r.Iso, r.Lock = true, lock2; return approve(lock2)(r) }
	if r, err = f.Move(t.Context(), r.ID, PendingApproval, isolated); err != nil || !r.Iso || r.Decision.Lock != lock2 {
		t.Errorf("%+v: %v", r, err)
	}
}

// No way leads to a layer that nobody approved.
func TestNothingIsReadyUnapproved(t *testing.T) {
	f := newFixture(t)
	for _, from := range []State{Received, Resolving, PendingApproval} {
		r := f.to(f.submit(wsA, "foo"), path[from]...)
		for _, s := range []State{AutoApproved, Approved, Fetching, Building, Probing, Ready} {
			for _, d := range []*Decision{nil, {By: "agent", Lock: lock1}, {By: "agent", Approve: true}, {By: "agent", Approve: true, Lock: lock2}} {
				_, err := f.Move(t.Context(), r.ID, from, func(r *Request) error {
					r.State, r.Lock, r.Layer, r.Decision = s, lock1, layer1, d
					return nil
				})
				if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrConflict) {
					t.Errorf("%s to %s with %+v: %v", from, s, d, err)
				}
			}
		}
		f.to(r, Cancelled)
	}
	r := f.to(f.submit(wsA, "docx"), Resolving, Ready) // all of it is in the base
	want(t, "nothing was added", r.Lock+r.Layer, "")
}

// A commit that reports an error was done or not; a move that is tried again says which.
func TestCommitFails(t *testing.T) {
	interrupted := errors.New("interrupted")
	for _, done := range []bool{false, true} {
		f := newFixture(t)
		r := f.submit(wsA, "foo")
		f.Queue.o.Commit = func(txn *badger.Txn) error {
			f.Queue.o.Commit = (*badger.Txn).Commit
			if done {
				if err := txn.Commit(); err != nil {
					return err
				}
			}
			return interrupted
		}
		_, err := f.Move(t.Context(), r.ID, Received, furnish(Resolving))
		wantIs(t, err, ErrUnavailable)
		now, err := f.Move(t.Context(), r.ID, Received, furnish(Resolving))
		if wantErr := map[bool]error{true: ErrConflict}[done]; !errors.Is(err, wantErr) {
			t.Errorf("done %v: %v", done, err)
		}
		want(t, "state", now.State, Resolving)
		consistent(t, f.Queue)
	}
}

func TestNoRoom(t *testing.T) {
	f := newFixture(t)
	r := f.submit(wsA, "foo")
	full := errors.New("too little free space")
	f.Queue.o.Room = func() error { return full }
	_, err := f.Move(t.Context(), r.ID, Received, furnish(Resolving))
	wantIs(t, err, ErrUnavailable)
	wantIs(t, err, full)
	_, _, err = f.Submit(t.Context(), Request{Workspace: wsA, Specs: []string{"bar"}})
	wantIs(t, err, ErrUnavailable)
	wantIs(t, f.Bind(t.Context(), wsA, 0, Binding{}), ErrUnavailable)
	want(t, "it can be read", f.submit(wsA, "foo"), r)
}

func TestClosedDatabase(t *testing.T) {
	f := newFixture(t)
	r := f.submit(wsA, "foo")
	if err := f.db.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := f.Get(wsA, r.ID)
	wantIs(t, err, ErrUnavailable)
	_, err = f.Move(t.Context(), r.ID, Received, furnish(Resolving))
	wantIs(t, err, ErrUnavailable)
	_, err = f.Bindings()
	wantIs(t, err, ErrUnavailable)
	_, err = f.List(Filter{})
	wantIs(t, err, ErrUnavailable)
}
