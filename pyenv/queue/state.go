package queue

import (
	"maps"
	"slices"
)

// State is where a request is.
type State string

// The states.
const (
	Received        State = "received"
	Resolving       State = "resolving"
	Rejected        State = "rejected"
	PendingApproval State = "pending_approval"
	AutoApproved    State = "auto_approved"
	Approved        State = "approved"
	Fetching        State = "fetching"
	Building        State = "building"
	Probing         State = "probing"
	Ready           State = "ready"
	Failed          State = "failed"
	Denied          State = "denied"
	Expired         State = "expired"
	Cancelled       State = "cancelled"
)

// Next are the states that may follow, sorted; none for a closed one. A state that is
// not closed may follow itself: findings are added, say.
func (s State) Next() []State { return slices.Clone(next[s]) }

// Closed says that a request stays as it is.
func (s State) Closed() bool { return s.known() && len(next[s]) == 0 }

// AtWork says that somebody works on the request, or will as soon as there is a turn: it
// is neither closed nor does it wait for a person.
func (s State) AtWork() bool { return s.known() && !s.Closed() && s != PendingApproval }

// decided says that the request is on its way because of an approval.
func (s State) decided() bool { return slices.Contains(after, s) }

func (s State) known() bool {
	_, ok := next[s]
	return ok
}

// after is what follows on an approval, in order; the first two are durable points.
var after = []State{AutoApproved, Approved, Fetching, Building, Probing}

var next = table(map[State][]State{
	Received:        {Resolving, Rejected, PendingApproval, AutoApproved, Ready},
	Resolving:       {Received, Rejected, PendingApproval, AutoApproved, Ready},
	PendingApproval: {Received, Resolving, Approved, Denied, Expired, Rejected},
	AutoApproved:    {Received, PendingApproval, Fetching, Building, Probing, Ready, Rejected},
	Approved:        {Received, PendingApproval, Fetching, Building, Probing, Ready, Rejected},
	Fetching:        {Received, PendingApproval, AutoApproved, Approved, Building, Probing, Ready, Rejected},
	Building:        {Received, PendingApproval, AutoApproved, Approved, Probing, Ready, Rejected},
	Probing:         {Received, PendingApproval, AutoApproved, Approved, Ready, Rejected},
	Ready:           nil, Rejected: nil, Failed: nil, Denied: nil, Expired: nil, Cancelled: nil,
})

// table adds what may follow on every open state.
func table(t map[State][]State) map[State][]State {
	for s := range maps.Keys(t) {
		if len(t[s]) > 0 {
			t[s] = append(t[s], s, Failed, Cancelled)
			slices.Sort(t[s])
		}
	}
	return t
}
