package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
)

func TestForget(t *testing.T) {
	f := newFixture(t)
	closed := f.to(f.submit(wsA, "foo"), Cancelled)
	pending := f.to(f.submit(wsA, "bar"), PendingApproval)
	working := f.to(f.submit(wsA, "baz"), Resolving, AutoApproved, Fetching)
	other := f.submit(wsB, "bar")
	for _, ws := range []string{wsA, wsB} {
		if err := f.Bind(t.Context(), ws, 0, Binding{Base: base1, Layers: []string{layer1}}); err != nil {
			t.Fatal(err)
		}
	}
	f.clock.add(time.Minute)
	got, err := f.Forget(t.Context(), wsA)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "cancelled", idsOf(got), []string{pending.ID, working.ID})
	for _, r := range got {
		if r.State != Cancelled || !r.Updated.Equal(f.clock.now()) {
			t.Errorf("%s is %s at %v", r.ID, r.State, r.Updated)
		}
	}
	f.reopen()
	for _, r := range []Request{closed, pending, working} {
		_, err := f.Get(wsA, r.ID)
		wantIs(t, err, ErrNotFound)
		_, err = f.Move(t.Context(), r.ID, r.State, furnish(Failed))
		wantIs(t, err, ErrNotFound)
	}
	if b, err := f.Binding(wsA); err != nil || b.Rev != 0 {
		t.Error("it is bound:", b, err)
	}
	// A worker that was late does not bind what is forgotten.
	_, err = f.Finish(t.Context(), working.ID, Fetching, 1, Binding{Base: base1, Layers: []string{layer1}}, nil)
	wantIs(t, err, ErrNotFound)
	wantIs(t, f.Bind(t.Context(), wsA, 1, Binding{Base: base1}), ErrConflict)

	all, err := f.Bindings()
	if err != nil || len(all) != 1 || all[0].Workspace != wsB {
		t.Errorf("of others: %+v, %v", all, err)
	}
	if r, err := f.Get(wsB, other.ID); err != nil || r.State != Received {
		t.Error("of others:", r, err)
	}
	for range 2 { // twice is as good as once
		if got, err := f.Forget(t.Context(), wsA); err != nil || len(got) != 0 {
			t.Error(got, err)
		}
	}
	if again := f.submit(wsA, "bar"); again.ID <= other.ID {
		t.Error("an id was given out again")
	}
	consistent(t, f.Queue)
	for _, ws := range []string{"", "a/b", "ä"} {
		_, err := f.Forget(t.Context(), ws)
		wantIs(t, err, ErrInvalid)
	}
}

// What another version wrote is not lost by it.
func TestForgetRefusesWhatItCannotRead(t *testing.T) {
	f := newFixture(t)
	r := f.submit(wsA, "foo")
	if err := f.Bind(t.Context(), wsA, 0, Binding{Base: base1}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{requestKey(r.ID), bindKey(wsA)} {
		before := f.value(key)
		newer := []byte(strings.Replace(string(before), `"schema":1`, `"schema":2`, 1))
		f.put(key, newer)
		_, err := f.Forget(t.Context(), wsA)
		wantIs(t, err, ErrUnreadable)
		want(t, key, string(f.value(key)), string(newer))
		f.put(key, before)
	}
	if got, err := f.Forget(t.Context(), wsA); err != nil || len(got) != 1 {
		t.Error(got, err)
	}
}

// Nothing is removed when it cannot be stored.
func TestForgetFails(t *testing.T) {
	f := newFixture(t)
	r := f.submit(wsA, "foo")
	full := errors.New("the disk is full")
	for _, q := range []Options{
		{Room: func() error { return full }},
		{Commit: func(txn *badger.Txn) error { txn.Discard(); return full }},
	} {
		second, err := Open(f.db, q)
		if err != nil {
			t.Fatal(err)
		}
		_, err = second.Forget(t.Context(), wsA)
		wantIs(t, err, ErrUnavailable)
		wantIs(t, err, full)
		if _, err := f.Get(wsA, r.ID); err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := f.Forget(ctx, wsA)
	wantIs(t, err, context.Canceled)
	consistent(t, f.Queue)
}

func TestForgetEndsWaits(t *testing.T) {
	f := newFixture(t)
	r := f.submit(wsA, "foo")
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			_, err := f.Wait(deadline(t), wsA, r.ID, false)
			wantIs(t, err, ErrNotFound)
		})
	}
	if _, err := f.Forget(t.Context(), wsA); err != nil {
		t.Fatal(err)
	}
	group.Wait()
}

// Beside those who ask, decide and bind at the same moment it is whole or not at all.
func TestForgetRaces(t *testing.T) {
	f := newFixture(t)
	for round := range 15 {
		r := f.to(f.submit(wsA, specN(round)), PendingApproval)
		race(4, func(n int) {
			var err error
			switch n {
			case 0:
				_, err = f.Forget(t.Context(), wsA)
			case 1:
				_, err = f.Move(t.Context(), r.ID, PendingApproval, furnish(Approved))
			case 2:
				_, _, err = f.Submit(t.Context(), Request{Workspace: wsA, Specs: []string{"bar"}})
			case 3:
				err = f.Bind(t.Context(), wsA, 0, Binding{Base: base1})
			}
			if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrConflict) {
				t.Error(n, err)
			}
		})
		if _, err := f.Get(wsA, r.ID); !errors.Is(err, ErrNotFound) {
			t.Errorf("round %d: %s is there: %v", round, r.ID, err)
		}
		consistent(t, f.Queue)
		if _, err := f.Forget(t.Context(), wsA); err != nil {
			t.Fatal(err)
		}
	}
}

// forgetter is a victim that fills a workspace and forgets it, without end. It prints
// what was done.
func forgetter(ctx context.Context, q *Queue) int {
	for n := 0; ; n++ {
		b, err := q.Binding(wsA)
		if err != nil {
			panic(err)
		}
		for i := range 5 {
			if _, _, err := q.Submit(ctx, Request{Workspace: wsA, Specs: []string{specN(i)}}); err != nil {
				panic(err)
			}
		}
		if err := q.Bind(ctx, wsA, b.Rev, Binding{Base: base1, Layers: []string{layer1}}); err != nil {
			panic(err)
		}
		fmt.Printf("%d bound\n", n)
		if _, err := q.Forget(ctx, wsA); err != nil {
			panic(err)
		}
		fmt.Printf("%d forgotten\n", n)
	}
}

// kill -9 while it forgets: all of the workspace is there, or nothing.
func TestForgetKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP -short: it starts processes")
	}
	rounds := 6
	if soak() {
		rounds = 100
	}
	dir := t.TempDir() // the same over all rounds
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	for round := range rounds {
		v := startVictim(t, dir, "forget")
		last := ""
		for n, lines := 0, 1+rnd.IntN(20); ; n++ {
			number, did := v.line(t)
			if number == "" {
				break
			}
			last = did
			if n == lines {
				time.AfterFunc(time.Duration(rnd.IntN(3_000))*time.Microsecond, func() { v.cmd.Process.Kill() })
			}
		}
		v.kill()
		if text := v.stderr.String(); text != "" {
			t.Fatalf("round %d, seed %d: the victim ended by itself: %s", round, seed, text)
		}
		f := &fixture{t: t, dir: dir, clock: &clock{t: start}}
		f.open()
		all := consistent(t, f.Queue)
		b, err := f.Binding(wsA)
		if err != nil {
			t.Fatal(err)
		}
		// Once it was bound, the next step is to forget all of it; once that was done,
		// requests come one by one, and the binding last.
		switch {
		case b.Rev > 0 && len(all) != 5:
			t.Errorf("it is bound, and %d requests of 5 are there", len(all))
		case b.Rev == 0 && last == "bound" && len(all) != 0:
			t.Errorf("the binding is gone, and %d requests are there", len(all))
		case last == "":
			t.Error("nothing was done")
		}
		if _, err := f.Forget(t.Context(), wsA); err != nil {
			t.Fatal(err)
		}
		if n := len(consistent(t, f.Queue)); n != 0 {
			t.Errorf("%d are left", n)
		}
		if err := f.db.Close(); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			t.Fatalf("in round %d, seed %d", round, seed)
		}
	}
}
