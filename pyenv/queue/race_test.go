package queue

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

// Of many who do the same at once one does it. Two queues on one database are two
// processes that cannot be: nothing in memory keeps them apart.
func TestRaces(t *testing.T) {
	f := newFixture(t)
	second, err := Open(f.db, f.o)
	if err != nil {
		t.Fatal(err)
	}
	queues := []*Queue{f.Queue, second}
	const racers, rounds = 6, 15
	for round := range rounds {
		var fresh, moved, bound atomic.Int32
		var ids sync.Map
		race(racers, func(n int) {
			r, isFresh, err := queues[n%2].Submit(t.Context(), Request{Workspace: wsA, Specs: []string{"foo"}})
			if err != nil {
				t.Error(err)
			}
			if isFresh {
				fresh.Add(1)
			}
			ids.Store(r.ID, true)
		})
		want(t, "fresh", fresh.Load(), 1)
		r := f.submit(wsA, "foo")
		ids.Range(func(id, _ any) bool { want(t, "id", id, any(r.ID)); return true })

		// Approval, denial and expiry at the same moment.
		r = f.to(r, PendingApproval)
		var winner sync.Map
		race(racers, func(n int) {
			to := []State{Approved, Denied, Expired}[n%3]
			switch _, err := queues[n%2].Move(t.Context(), r.ID, PendingApproval, furnish(to)); {
			case err == nil:
				moved.Add(1)
				winner.Store("state", to)
			case !errors.Is(err, ErrConflict):
				t.Error(err)
			}
		})
		want(t, "moved", moved.Load(), 1)
		got, err := f.Get(wsA, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		if to, _ := winner.Load("state"); to != got.State {
			t.Errorf("%s won, and it is %s", to, got.State)
		}
		if !got.State.Closed() {
			f.to(got, Cancelled)
		}

		race(racers, func(n int) {
			switch err := queues[n%2].Bind(t.Context(), wsA, round, Binding{Python: fmt.Sprint(n)}); {
			case err == nil:
				bound.Add(1)
			case !errors.Is(err, ErrConflict):
				t.Error(err)
			}
		})
		want(t, "bound", bound.Load(), 1)
	}
	consistent(t, f.Queue)
}

// The limits hold when everybody comes at once.
func TestRaceForTheLastPlace(t *testing.T) {
	f := newFixture(t)
	for n := range MaxOpen - 2 {
		f.submit(wsA, specN(n))
	}
	var taken atomic.Int32
	race(8, func(n int) {
		switch _, _, err := f.Submit(t.Context(), Request{Workspace: wsA, Specs: []string{specN(100 + n)}}); {
		case err == nil:
			taken.Add(1)
		case !errors.Is(err, ErrFull):
			t.Error(err)
		}
	})
	want(t, "places", taken.Load(), 2)
	want(t, "requests", len(consistent(t, f.Queue)), MaxOpen)
}

// Two requests of one workspace that end at once both get in: the one that loses looks
// again (case 40).
func TestCase40BothAreBound(t *testing.T) {
	f := newFixture(t)
	var requests []Request
	for n := range 4 {
		requests = append(requests, f.to(f.submit(wsA, specN(n)), AutoApproved, Probing))
	}
	race(len(requests), func(n int) {
		layer := fmt.Sprintf("x-%016x", n)
		for {
			b, err := f.Binding(wsA)
			if err != nil {
				t.Error(err)
				return
			}
			b.Layers = append(b.Layers, layer)
			r, err := f.Finish(t.Context(), requests[n].ID, Probing, b.Rev, b, func(r *Request) error { r.Layer = layer; return nil })
			if !errors.Is(err, ErrConflict) || r.State != Probing {
				if err != nil {
					t.Error(err)
				}
				return
			}
		}
	})
	b, err := f.Binding(wsA)
	if err != nil || b.Rev != len(requests) || len(b.Layers) != len(requests) {
		t.Errorf("%+v: %v", b, err)
	}
}

func race(n int, run func(n int)) {
	var group sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		group.Go(func() {
			<-begin
			run(i)
		})
	}
	close(begin)
	group.Wait()
}
