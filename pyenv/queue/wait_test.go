package queue

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
)

// Case 57, as far as it is the queue's: a wait ends with its context, or with the first
// state that is nobody's work, and no sooner.
func TestCase57Wait(t *testing.T) {
	f := newFixture(t)
	r := f.submit(wsA, "foo")

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	begun := time.Now()
	got, err := f.Wait(ctx, wsA, r.ID, false)
	wantIs(t, err, context.DeadlineExceeded)
	want(t, "as it is", got, r)
	if took := time.Since(begun); took < 30*time.Millisecond || took > time.Second {
		t.Errorf("a wait of 30 ms took %v", took)
	}

	wait := func(group *sync.WaitGroup, until State) {
		for range 8 {
			group.Go(func() {
				if got, err := f.Wait(deadline(t), wsA, r.ID, false); err != nil || got.State != until {
					t.Errorf("%s, not %s: %v", got.State, until, err)
				}
			})
		}
	}
	var first, second sync.WaitGroup
	wait(&first, PendingApproval)
	pending := f.to(r, Resolving, PendingApproval)
	first.Wait()
	approved := f.to(pending, Approved)
	wait(&second, Ready)
	f.to(approved, Fetching, Building, Probing, Ready)
	second.Wait()
	if got, err := f.Wait(deadline(t), wsA, r.ID, false); err != nil || got.State != Ready {
		t.Error("what is closed is waited for:", err)
	}
	want(t, "waiters left behind", len(f.waiters), 0)
}

// A move whose commit reports an error, and was done, wakes as well.
func TestWaitAfterAnErrorThatWasStored(t *testing.T) {
	f := newFixture(t)
	r := f.submit(wsA, "foo")
	commit := f.Queue.o.Commit
	f.Queue.o.Commit = func(txn *badger.Txn) error { return errors.Join(commit(txn), errors.New("interrupted")) }
	done := make(chan error, 1)
	go func() {
		got, err := f.Wait(deadline(t), wsA, r.ID, false)
		if err == nil && got.State != Cancelled {
			err = errors.New("it is " + string(got.State))
		}
		done <- err
	}()
	for waits := false; !waits; runtime.Gosched() {
		f.mu.Lock()
		waits = len(f.waiters) == 1
		f.mu.Unlock()
	}
	if _, err := f.Move(t.Context(), r.ID, Received, furnish(Cancelled)); !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Case 58, as far as it is the queue's: who looks waits for nobody who changes.
func TestCase58LookingWaitsForNobody(t *testing.T) {
	f := newFixture(t)
	r := f.to(f.submit(wsA, "foo"), AutoApproved, Fetching)
	if err := f.Bind(t.Context(), wsA, 0, Binding{Layers: []string{layer1}}); err != nil {
		t.Fatal(err)
	}
	inside, leave := make(chan struct{}), make(chan struct{})
	var moving sync.WaitGroup
	moving.Go(func() {
		_, err := f.Move(t.Context(), r.ID, Fetching, func(r *Request) error {
			close(inside) // the transaction is open
			<-leave
			return furnish(Building)(r)
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-inside
	took := make([]time.Duration, 1000)
	for i := range took {
		begun := time.Now()
		b, err := f.Binding(wsA)
		list, lerr := f.List(Filter{Workspace: wsA, Last: 20})
		took[i] = time.Since(begun)
		if err != nil || lerr != nil || b.Rev != 1 || len(list) != 1 || list[0].State != Fetching {
			t.Fatal(b, list, err, lerr)
		}
	}
	close(leave)
	moving.Wait()
	slices.Sort(took)
	t.Logf("1,000 looks during a move: median %v, p99 %v", took[500], took[990])
}

// deadline ends a wait that nobody wakes.
func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}
