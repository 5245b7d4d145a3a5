package queue

import (
	"testing"
	"time"
)

func TestRecover(t *testing.T) {
	after := map[State]State{
		Resolving: Received, Fetching: Approved, Building: AutoApproved, Probing: AutoApproved, // see path
	}
	f := newFixture(t)
	before := map[State]Request{}
	for n, s := range allStates {
		before[s] = f.to(f.submit(wsA, specN(n)), path[s]...)
	}
	f.reopen()
	f.clock.add(time.Minute)
	changed, err := f.Recover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want(t, "changed", len(changed), len(after))
	for s, r := range before {
		got, err := f.Get(wsA, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		if to, ok := after[s]; ok {
			r.State, r.Attempt, r.Updated = to, 2, f.clock.now()
		}
		want(t, string(s), got, r)
	}
	if changed, err = f.Recover(t.Context()); err != nil || len(changed) != 0 {
		t.Error("it changes what rests:", changed, err)
	}
	consistent(t, f.Queue)
}

// What kills the server is tried three times, and then fails.
func TestRecoverGivesUp(t *testing.T) {
	f := newFixture(t)
	r := f.to(f.submit(wsA, "foo"), Resolving, AutoApproved)
	for attempt := 1; attempt <= MaxAttempts; attempt++ {
		want(t, "attempt", r.Attempt, attempt)
		f.to(r, Fetching)
		f.reopen()
		changed, err := f.Recover(t.Context())
		if err != nil || len(changed) != 1 {
			t.Fatal(changed, err)
		}
		r = changed[0]
	}
	want(t, "state", r.State, Failed)
	want(t, "code", r.Failure.Code, "interrupted")
	want(t, "sentence", r.Failure.Sentence, "the server ended 3 times while it worked on this request")
	if again := f.submit(wsA, "foo"); again.ID == r.ID || again.Attempt != 1 {
		t.Error("it cannot be asked again")
	}
	consistent(t, f.Queue)
}

// An approval begins to count anew; a worker that puts its request back does not.
func TestAttemptsCountFromADurablePoint(t *testing.T) {
	f := newFixture(t)
	r := f.to(f.submit(wsA, "foo"), Resolving)
	if _, err := f.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	r = f.to(f.submit(wsA, "foo"), Resolving)
	want(t, "resolving again", r.Attempt, 2)
	r = f.to(r, Received, Resolving)
	want(t, "put back", r.Attempt, 2)
	r = f.to(r, PendingApproval, Approved, Fetching)
	want(t, "approved", r.Attempt, 1)
	r = f.to(r, Approved, Building)
	want(t, "put back", r.Attempt, 1)
	want(t, "auto", r.Auto, false)
}

func TestExpire(t *testing.T) {
	f := newFixture(t)
	first := f.to(f.submit(wsA, "foo"), PendingApproval)
	want(t, "expires", first.Expires, start.Add(PendingFor))
	f.clock.add(24 * time.Hour)
	second := f.to(f.submit(wsA, "bar"), PendingApproval)
	working := f.to(f.submit(wsA, "baz"), Resolving)

	f.clock.add(PendingFor - 24*time.Hour - time.Millisecond)
	for _, c := range []struct {
		step time.Duration
		want []string
	}{{0, nil}, {time.Millisecond, []string{first.ID}}, {0, nil}, {24 * time.Hour, []string{second.ID}}, {1000 * time.Hour, nil}} {
		f.clock.add(c.step)
		closed, err := f.Expire(t.Context(), f.clock.now())
		if err != nil {
			t.Fatal(err)
		}
		want(t, "expired", idsOf(closed), c.want)
		for _, r := range closed {
			want(t, "state", r.State, Expired)
			_, err := f.Move(t.Context(), r.ID, PendingApproval, furnish(Approved))
			wantIs(t, err, ErrConflict)
		}
	}
	if r, err := f.Get(wsA, working.ID); err != nil || r.State != Resolving {
		t.Error("what is at work expired:", err)
	}
	if again := f.submit(wsA, "foo"); again.ID == first.ID {
		t.Error("an expired request cannot be asked again")
	}
	consistent(t, f.Queue)
}

// A request that came under a clock that went years ahead has a week from now on.
func TestExpireAfterTheClockWasSetBack(t *testing.T) {
	f := newFixture(t)
	f.clock.add(10 * 365 * 24 * time.Hour)
	r := f.to(f.submit(wsA, "foo"), PendingApproval)
	f.clock.add(-10 * 365 * 24 * time.Hour)
	if closed, err := f.Expire(t.Context(), f.clock.now()); err != nil || len(closed) != 0 {
		t.Fatal(closed, err)
	}
	got, err := f.Get(wsA, r.ID)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "expires", got.Expires, start.Add(PendingFor))
	f.clock.add(PendingFor)
	closed, err := f.Expire(t.Context(), f.clock.now())
	if err != nil {
		t.Fatal(err)
	}
	want(t, "expired", idsOf(closed), []string{r.ID})
}
