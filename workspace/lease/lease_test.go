package lease_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/mcp-vdisk/mcp-vdisk/conformance"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

func TestBadRequests(t *testing.T) {
	s := newStore(t, lease.Options{})
	good := s.acquire(t, "held", "owner")
	long := strings.Repeat("x", 256)
	for name, change := range map[string]func(*lease.Request){
		"no tenant":       func(r *lease.Request) { r.Key.Scope.Tenant = "" },
		"blank workspace": func(r *lease.Request) { r.Key.Scope.Workspace = " \n" },
		"no backend":      func(r *lease.Request) { r.Key.Backend = "" },
		"no handle":       func(r *lease.Request) { r.Key.Handle = "" },
		"no owner":        func(r *lease.Request) { r.Owner = "" },
		"long handle":     func(r *lease.Request) { r.Key.Handle = long },
		"binary handle":   func(r *lease.Request) { r.Key.Handle = "\xff\xfe" },
		"long owner":      func(r *lease.Request) { r.Owner = long },
		"long client":     func(r *lease.Request) { r.Client = long },
		"binary client":   func(r *lease.Request) { r.Client = "\xff" },
		"no TTL":          func(r *lease.Request) { r.TTL = 0 },
		"endless":         func(r *lease.Request) { r.TTL = lease.MaxTTL + 1 },
	} {
		t.Run(name, func(t *testing.T) {
			r := request("k", "owner")
			change(&r)
			_, err := s.Acquire(t.Context(), r)
			wantIs(t, err, lease.ErrInvalid)
		})
	}
	for _, g := range []lease.Grant{{}, {Key: key(long), Owner: "owner", Token: 1}, {Key: key("k"), Token: 1}} {
		_, err := s.Renew(t.Context(), g, time.Second)
		wantIs(t, err, lease.ErrInvalid)
		wantIs(t, s.Release(t.Context(), g), lease.ErrInvalid)
		wantIs(t, s.Guard(t.Context(), g, func(lease.Txn) error { return nil }), lease.ErrInvalid)
	}
	if _, err := s.Break(t.Context(), lease.Key{}); !errors.Is(err, lease.ErrInvalid) {
		t.Error(err)
	}
	if !s.alive(t, good) {
		t.Error("the good one is gone")
	}
	if n := s.Slots(); n != 1 {
		t.Errorf("%d keys in memory for one lease", n)
	}
}

// TestConflictNamesHolder: who, which client, since when, for how long.
func TestConflictNamesHolder(t *testing.T) {
	s := newStore(t, lease.Options{})
	g := s.acquire(t, "k", "one")
	s.clock.Advance(10 * time.Second)
	_, err := s.Acquire(t.Context(), request("k", "two"))
	var c *lease.Conflict
	if !errors.As(err, &c) || c.Holder.Owner != "one" || c.Holder.Client != "one's client" || c.Holder.Token != g.Token ||
		c.Holder.Remaining != 20*time.Second || !c.Holder.ExpiresAt.Equal(g.ExpiresAt) {
		t.Errorf("%+v", c)
	}
	want := "the lease is held by one's client (one) since 2030-01-01T00:00:00Z and expires in 20s unless it is renewed"
	if err == nil || err.Error() != want {
		t.Errorf("%v\n%s", err, want)
	}
	g.Owner = "two"
	if err := s.Release(t.Context(), g); err == nil || err.Error() != want {
		t.Error(err)
	}
	s.clock.Advance(time.Minute)
	if err := s.Release(t.Context(), g); err == nil || err.Error() != "the lease is over" {
		t.Error(err)
	}
}

// TestBreak: the holder is evicted and the number above it recorded before the
// key is free.
func TestBreak(t *testing.T) {
	var did []string
	s := newStore(t, lease.Options{
		Evict: func(_ context.Context, l lease.Lease) error {
			did = append(did, fmt.Sprint("evict ", l.Token))
			return nil
		},
		Record: func(_ context.Context, g lease.Grant) error {
			did = append(did, fmt.Sprint("record ", g.Token))
			return nil
		},
	})
	_, err := s.Break(t.Context(), key("k"))
	wantIs(t, err, lease.ErrNotHeld)
	_, err = s.Holder(key("k"))
	wantIs(t, err, lease.ErrNotHeld)
	_, err = s.Holder(lease.Key{})
	wantIs(t, err, lease.ErrInvalid)
	g := s.acquire(t, "k", "one")
	if h, err := s.Holder(key("k")); err != nil || h.Owner != "one" || h.Token != g.Token || h.Remaining != 30*time.Second {
		t.Errorf("the holder is %+v, %v", h, err)
	}
	was, err := s.Break(t.Context(), key("k"))
	if err != nil || was.Owner != "one" || was.Token != g.Token || was.Remaining != 30*time.Second {
		t.Errorf("%+v, %v", was, err)
	}
	if s.alive(t, g) {
		t.Error("it is still alive")
	}
	next := s.acquire(t, "k", "two")
	if got, want := strings.Join(did, ", "), "record 1, evict 1, record 2, record 3"; got != want || next.Token != 3 {
		t.Errorf("%s; token %d", got, next.Token)
	}
	if _, err := s.Break(t.Context(), key("k")); err != nil {
		t.Error(err)
	}
	_, err = s.Break(t.Context(), key("k"))
	wantIs(t, err, lease.ErrNotHeld)
}

// TestBreakThatCannotKill: the lease is over at once, also for a restart, and the
// next one evicts.
func TestBreakThatCannotKill(t *testing.T) {
	var alive bool
	var evictions int
	s := newStore(t, lease.Options{Evict: func(context.Context, lease.Lease) error {
		evictions++
		if alive {
			return errors.New("it does not die")
		}
		return nil
	}})
	alive = true
	r := request("k", "one")
	r.Resumable = true
	g, err := s.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Break(t.Context(), key("k"))
	wantIs(t, err, lease.ErrUnavailable)
	if err := s.reopen(); err != nil {
		t.Fatal(err)
	}
	if s.alive(t, g) {
		t.Error("a restart has brought it back")
	}
	if list, err := s.List(t.Context()); err != nil || len(list) != 1 || list[0].Remaining != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	_, err = s.Acquire(t.Context(), request("k", "two"))
	wantIs(t, err, lease.ErrUnavailable)
	alive = false
	if next := s.acquire(t, "k", "two"); next.Token <= g.Token+1 {
		t.Errorf("token %d; %d was to be recorded by the break", next.Token, g.Token+1)
	}
	if evictions != 3 {
		t.Errorf("%d evictions", evictions)
	}
}

// TestTakeoverOrder: the sandbox of the old holder is dead, then the image knows
// the token, then the grant is there; a result from before is refused.
func TestTakeoverOrder(t *testing.T) {
	d, err := newDisk(t)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var s *store
	fence := func(g lease.Grant) workspace.Fence {
		return workspace.Fence{Install: s.Info().Install, Token: g.Token}
	}
	var evicted lease.Lease
	s = newStore(t, lease.Options{
		Evict: func(_ context.Context, l lease.Lease) error {
			if f, _ := d.im.Fence(); f.Token != l.Token {
				t.Errorf("at the eviction the image has %d, the holder %d", f.Token, l.Token)
			}
			evicted = l
			return nil
		},
		Record: func(_ context.Context, g lease.Grant) error { return d.im.RaiseFence(fence(g)) },
	})
	one := s.acquire(t, "k", "one")
	if err := d.Write(t.Context(), lease.Mark(fence(one)), "one"); err != nil {
		t.Fatal(err)
	}
	s.clock.Advance(31 * time.Second)
	two := s.acquire(t, "k", "two")
	if evicted.Token != one.Token || evicted.Owner != "one" || evicted.Client != "one's client" {
		t.Errorf("evicted %+v", evicted)
	}
	wantIs(t, d.Write(t.Context(), lease.Mark(fence(one)), "late"), workspace.ErrFenced)
	if err := d.Write(t.Context(), lease.Mark(fence(two)), "two"); err != nil {
		t.Error(err)
	}
	if v, err := d.Value(t.Context()); err != nil || v != "two" {
		t.Errorf("%q, %v", v, err)
	}
}

// TestRestoredState: a state directory that is older than the image does not get
// at it before somebody has said so.
func TestRestoredState(t *testing.T) {
	s := newStore(t, lease.Options{})
	here := s.Info().Install
	one := s.acquire(t, "k", "one")
	for _, c := range []struct {
		name string
		mark lease.Mark
		kind error
	}{
		{"never leased", lease.Mark{}, nil},
		{"the last one", lease.Mark{Install: here, Token: one.Token}, nil},
		{"a later one", lease.Mark{Install: here, Token: one.Token + 40}, lease.ErrRestored},
		{"of elsewhere", lease.Mark{Install: [16]byte{9}, Token: 1}, lease.ErrForeign},
		{"of nobody", lease.Mark{Token: 1}, lease.ErrForeign},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := s.Check(key("k"), c.mark); !errors.Is(err, c.kind) {
				t.Errorf("%v", err)
			} else if err != nil {
				t.Log(err)
			}
		})
	}
	var old *lease.Restored
	if err := s.Check(key("k"), lease.Mark{Install: here, Token: 41}); !errors.As(err, &old) || old.Seen != 41 || old.Last != 1 {
		t.Errorf("%v", err)
	}
	ahead := lease.Mark{Install: here, Token: 41}
	if err := s.Adopt(t.Context(), key("k"), ahead); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(key("k"), ahead); err != nil {
		t.Error(err)
	}
	if two := s.acquire(t, "k2", "two"); two.Token != 42 {
		t.Errorf("the next token is %d", two.Token)
	}
	if err := s.Adopt(t.Context(), key("k"), lease.Mark{Install: here, Token: 7}); err != nil {
		t.Error(err)
	}
	if three := s.acquire(t, "k3", "three"); three.Token != 43 {
		t.Errorf("adopting a lower one has set the counter back: %d", three.Token)
	}
	wantIs(t, s.Adopt(t.Context(), key("k"), lease.Mark{Install: [16]byte{9}, Token: 99}), lease.ErrForeign)
	wantIs(t, s.Adopt(t.Context(), key("k"), lease.Mark{Install: here, Token: 1 << 63}), lease.ErrInvalid)
}

// TestInstall: it stays, and differs from that of another state.
func TestInstall(t *testing.T) {
	s, other := newStore(t, lease.Options{}), newStore(t, lease.Options{})
	before := s.Info()
	if err := s.reopen(); err != nil {
		t.Fatal(err)
	}
	if before != s.Info() || before.Install == [16]byte{} || before.Install == other.Info().Install {
		t.Errorf("%v, %v, %v", before, s.Info(), other.Info())
	}
	if before.Durability != lease.PowerLoss || before.Reach != lease.SingleHost {
		t.Errorf("%+v", before)
	}
}

// TestSuperseded: a provider over which another was opened writes nothing more.
func TestSuperseded(t *testing.T) {
	s := newStore(t, lease.Options{})
	old := s.Badger
	g := s.acquire(t, "k", "one")
	now, err := lease.New(s.db, s.o)
	if err != nil {
		t.Fatal(err)
	}
	_, err = old.Acquire(t.Context(), request("k2", "two"))
	wantIs(t, err, lease.ErrUnavailable)
	wantIs(t, old.Guard(t.Context(), g, func(tx lease.Txn) error { return tx.Set("v", []byte("late")) }), lease.ErrUnavailable)
	next, err := now.Acquire(t.Context(), request("k", "two"))
	if err != nil || next.Token <= g.Token {
		t.Errorf("%v, %v", next, err)
	}
}

// TestStoreOverlap: the store itself keeps out a write whose lease is taken over
// after its last check, and starts it again.
func TestStoreOverlap(t *testing.T) {
	s := newStore(t, lease.Options{})
	one := s.acquire(t, "k", "one")
	var two lease.Grant
	calls := 0
	s.BeforeCommit(func(txn *badger.Txn) error {
		s.clock.Advance(time.Minute)
		two = s.acquire(t, "k", "two")
		return txn.Commit()
	})
	err := s.Guard(t.Context(), one, func(tx lease.Txn) error { calls++; return tx.Set("v", []byte("late")) })
	wantIs(t, err, lease.ErrConflict)
	if calls != 1 {
		t.Errorf("%d calls", calls)
	}
	err = s.Guard(t.Context(), two, func(tx lease.Txn) error {
		if v, err := tx.Get("v"); v != nil || err != nil {
			t.Errorf("%q, %v", v, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestExpiresWhileWriting: it counts whether the lease lives at the end.
func TestExpiresWhileWriting(t *testing.T) {
	s := newStore(t, lease.Options{})
	one := s.acquire(t, "k", "one")
	err := s.Guard(t.Context(), one, func(tx lease.Txn) error {
		s.clock.Advance(one.TTL)
		return tx.Set("v", []byte("late"))
	})
	wantIs(t, err, lease.ErrConflict)
	err = s.Guard(t.Context(), s.acquire(t, "k", "two"), func(tx lease.Txn) error {
		v, err := tx.Get("v")
		if v != nil {
			t.Errorf("%q was written", v)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestRestartAfterFailedTakeover: what a takeover found expired stays so, even if
// the takeover got no further.
func TestRestartAfterFailedTakeover(t *testing.T) {
	s := newStore(t, lease.Options{Evict: func(context.Context, lease.Lease) error { return errors.New("it does not die") }})
	r := request("k", "one")
	r.Resumable = true
	one, err := s.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	s.clock.Advance(one.TTL)
	_, err = s.Acquire(t.Context(), request("k", "two"))
	wantIs(t, err, lease.ErrUnavailable)
	if err := s.reopen(); err != nil {
		t.Fatal(err)
	}
	if s.alive(t, one) {
		t.Error("it came back to life")
	}
}

// TestTwoTokensAtOnce: the counter is read by both, and one starts again.
func TestTwoTokensAtOnce(t *testing.T) {
	s := newStore(t, lease.Options{})
	var other lease.Grant
	s.BeforeCommit(func(txn *badger.Txn) error {
		other = s.acquire(t, "other", "two")
		return txn.Commit()
	})
	g := s.acquire(t, "k", "one")
	if other.Token != 1 || g.Token != 2 {
		t.Errorf("tokens %d and %d", other.Token, g.Token)
	}
}

// TestManyKeysAtOnce: grants of different keys get different tokens.
func TestManyKeysAtOnce(t *testing.T) {
	s := newStore(t, lease.Options{})
	const n = 24
	grants := make([]lease.Grant, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { grants[i] = s.acquire(t, fmt.Sprint(i), "owner") })
	}
	wg.Wait()
	seen := map[uint64]bool{}
	for _, g := range grants {
		if g.Token < 1 || g.Token > n || seen[g.Token] {
			t.Errorf("token %d", g.Token)
		}
		seen[g.Token] = true
		if err := s.Release(t.Context(), g); err != nil {
			t.Error(err)
		}
	}
	if list, err := s.List(t.Context()); err != nil || len(list) != 0 || s.Slots() != 0 {
		t.Errorf("%v, %v, %d keys in memory", list, err, s.Slots())
	}
}

// TestAdmit: a transaction of somebody else's on the database.
func TestAdmit(t *testing.T) {
	s := newStore(t, lease.Options{})
	g := s.acquire(t, "k", "one")
	set := func(before func()) error {
		txn := s.db.NewTransaction(true)
		defer txn.Discard()
		if err := txn.Set([]byte("Q|1"), []byte("mine")); err != nil {
			return err
		}
		if err := s.Admit(t.Context(), txn, g); err != nil {
			return err
		}
		before()
		return txn.Commit()
	}
	if err := set(func() {}); err != nil {
		t.Error(err)
	}
	wantIs(t, set(func() {
		s.clock.Advance(time.Minute)
		s.acquire(t, "k", "two")
	}), badger.ErrConflict)
	wantIs(t, set(func() {}), lease.ErrConflict)
}

func TestGuardLimits(t *testing.T) {
	s := newStore(t, lease.Options{})
	g := s.acquire(t, "k", "one")
	other := s.acquire(t, "other", "one")
	for name, do := range map[string]func(lease.Txn) error{
		"no name":   func(tx lease.Txn) error { return tx.Set("", nil) },
		"long name": func(tx lease.Txn) error { _, err := tx.Get(strings.Repeat("n", 256)); return err },
		"too large": func(tx lease.Txn) error { return tx.Set("v", make([]byte, lease.MaxValue+1)) },
	} {
		t.Run(name, func(t *testing.T) { wantIs(t, s.Guard(t.Context(), g, do), lease.ErrInvalid) })
	}
	err := s.Guard(t.Context(), g, func(tx lease.Txn) error {
		value := []byte("\x00\xff")
		err := errors.Join(tx.Set("empty", nil), tx.Set("v", value), tx.Set("gone", value), tx.Delete("gone"), tx.Set("large", make([]byte, lease.MaxValue)))
		value[0] = 'x'
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = s.Guard(t.Context(), g, func(tx lease.Txn) error {
		for name, want := range map[string]string{"empty": "", "v": "\x00\xff", "large": string(make([]byte, lease.MaxValue))} {
			if v, err := tx.Get(name); err != nil || v == nil || string(v) != want {
				t.Errorf("%s: %d bytes, %v", name, len(v), err)
			}
		}
		if v, err := tx.Get("gone"); v != nil || err != nil {
			t.Errorf("gone: %q, %v", v, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	err = s.Guard(t.Context(), other, func(tx lease.Txn) error {
		if v, err := tx.Get("v"); v != nil || err != nil {
			t.Errorf("another key has %q, %v", v, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = s.Guard(ctx, g, func(tx lease.Txn) error { cancel(); return tx.Set("v", []byte("late")) })
	wantIs(t, err, context.Canceled)
}

// TestFullDisk: nothing is granted or renewed anew without room, what is held
// stays, and what is released is over.
func TestFullDisk(t *testing.T) {
	var full bool
	errFull := errors.New("the disk is full")
	s := newStore(t, lease.Options{Room: func() error {
		if full {
			return errFull
		}
		return nil
	}})
	g := s.acquire(t, "k", "one")
	full = true
	_, err := s.Acquire(t.Context(), request("k2", "two"))
	wantIs(t, err, lease.ErrUnavailable)
	wantIs(t, err, errFull)
	if _, err := s.Renew(t.Context(), g, g.TTL); err != nil {
		t.Errorf("a renewal for the same time writes nothing: %v", err)
	}
	wantIs(t, s.Guard(t.Context(), g, func(lease.Txn) error { return nil }), lease.ErrUnavailable)
	wantIs(t, s.Release(t.Context(), g), lease.ErrUnavailable)
	full = false
	if s.alive(t, g) {
		t.Error("it was released")
	}
	s.acquire(t, "k", "two")
}

// TestStoreErrors: whatever a commit reports, no token is used twice and the
// next try works.
func TestStoreErrors(t *testing.T) {
	for _, stored := range []bool{false, true} {
		t.Run(fmt.Sprint("stored ", stored), func(t *testing.T) {
			s := newStore(t, lease.Options{})
			one := s.acquire(t, "k", "one")
			s.Interrupt(stored)
			wantIs(t, s.Release(t.Context(), one), lease.ErrUnavailable)
			wantIs(t, s.Release(t.Context(), one), lease.ErrConflict)
			two := s.acquire(t, "k", "two")
			s.Interrupt(stored)
			_, err := s.Renew(t.Context(), two, time.Hour)
			wantIs(t, err, lease.ErrUnavailable)
			if _, err := s.Renew(t.Context(), two, time.Hour); err != nil {
				t.Error(err)
			}
			s.Interrupt(stored)
			_, err = s.Break(t.Context(), key("k"))
			wantIs(t, err, lease.ErrUnavailable)
			if s.alive(t, two) {
				t.Error("a break that failed has left it alive")
			}
			if _, err := s.Break(t.Context(), key("k")); err != nil {
				t.Error(err)
			}
			if three := s.acquire(t, "k", "three"); three.Token <= two.Token {
				t.Errorf("token %d follows %d", three.Token, two.Token)
			}
		})
	}
}

func TestClosedStore(t *testing.T) {
	s := newStore(t, lease.Options{})
	g := s.acquire(t, "k", "one")
	if err := s.db.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := s.Acquire(t.Context(), request("k2", "one"))
	wantIs(t, err, lease.ErrUnavailable)
	wantIs(t, s.Guard(t.Context(), g, func(lease.Txn) error { return nil }), lease.ErrUnavailable)
	_, err = s.List(t.Context())
	wantIs(t, err, lease.ErrUnavailable)
	wantIs(t, s.Check(key("k"), lease.Mark{Install: s.Info().Install, Token: 9}), lease.ErrUnavailable)
}

// TestDamage: what cannot be read is an error, not a free key; a counter that
// is gone is taken from the leases that are there.
func TestDamage(t *testing.T) {
	put := func(t *testing.T, s *store, key, value string) {
		t.Helper()
		err := s.db.Update(func(txn *badger.Txn) error {
			if value == "" {
				return txn.Delete([]byte(key))
			}
			return txn.Set([]byte(key), []byte(value))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct{ key, value string }{
		"record":  {lease.EncodeKey(key("k")), "{"},
		"counter": {"T", "short"},
		"epoch":   {"E", "short"},
		"install": {"I", "short"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, lease.Options{})
			s.acquire(t, "k", "one")
			put(t, s, c.key, c.value)
			_, err := lease.New(s.db, s.o)
			wantIs(t, err, lease.ErrUnavailable)
		})
	}
	t.Run("no counter", func(t *testing.T) {
		s := newStore(t, lease.Options{})
		s.acquire(t, "k", "one")
		g := s.acquire(t, "k2", "one")
		put(t, s, "T", "")
		if err := s.reopen(); err != nil {
			t.Fatal(err)
		}
		if next := s.acquire(t, "k3", "one"); next.Token <= g.Token {
			t.Errorf("token %d follows %d", next.Token, g.Token)
		}
	})
	t.Run("counter used up", func(t *testing.T) {
		s := newStore(t, lease.Options{})
		put(t, s, "T", string(binary.BigEndian.AppendUint64(nil, lease.MaxToken)))
		_, err := s.Acquire(t.Context(), request("k", "one"))
		wantIs(t, err, lease.ErrUnavailable)
	})
	t.Run("no detection of conflicts", func(t *testing.T) {
		db, err := badger.Open(badger.DefaultOptions("").WithInMemory(true).WithDetectConflicts(false).WithLogger(nil))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		_, err = lease.New(db, lease.Options{})
		wantIs(t, err, lease.ErrUnavailable)
	})
}

// TestRestartKeepsLongerTTL: a renewal for a shorter time does not shorten what a
// restart gives back.
func TestRestartKeepsLongerTTL(t *testing.T) {
	s := newStore(t, lease.Options{})
	r := request("k", "one")
	r.Resumable, r.TTL = true, time.Hour
	g, err := s.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	short, err := s.Renew(t.Context(), g, time.Second)
	if err != nil || short.TTL != time.Second {
		t.Errorf("%v, %v", short, err)
	}
	if err := s.reopen(); err != nil {
		t.Fatal(err)
	}
	s.clock.Advance(time.Hour - 1)
	if !s.alive(t, g) {
		t.Error("it ended early")
	}
	s.clock.Advance(1)
	if s.alive(t, g) {
		t.Error("it did not end")
	}
}

// TestWaitsForTurn: a takeover that is slow to kill lets others wait, and their
// contexts end that.
func TestWaitsForTurn(t *testing.T) {
	entered, die := make(chan struct{}), make(chan struct{})
	s := newStore(t, lease.Options{Evict: func(context.Context, lease.Lease) error {
		close(entered)
		<-die
		return nil
	}})
	one := s.acquire(t, "k", "one")
	s.clock.Advance(time.Minute)
	two := make(chan error)
	go func() {
		_, err := s.Acquire(t.Context(), request("k", "two"))
		two <- err
	}()
	<-entered
	s.acquire(t, "elsewhere", "one") // other keys go on
	if s.alive(t, one) {
		t.Error("the old holder writes while it is being killed")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the client has hung up")
	three := make(chan error)
	go func() {
		_, err := s.Acquire(ctx, request("k", "three"))
		three <- err
	}()
	cancel(gone)
	wantIs(t, <-three, gone)
	close(die)
	if err := <-two; err != nil {
		t.Error(err)
	}
}

// TestCancelledWhileRecording leaves nobody behind.
func TestCancelledWhileRecording(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := newStore(t, lease.Options{Record: func(context.Context, lease.Grant) error { cancel(); return nil }})
	r := request("k", "one")
	r.Resumable = true
	_, err := s.Acquire(ctx, r)
	wantIs(t, err, context.Canceled)
	if list, err := s.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	if err := s.reopen(); err != nil {
		t.Fatal(err)
	}
	if next := s.acquire(t, "k", "two"); next.Token != 2 {
		t.Errorf("token %d", next.Token)
	}
}

func TestSystemClock(t *testing.T) {
	c := lease.SystemClock()
	before := c.Elapsed()
	<-c.After(time.Millisecond)
	if d := c.Elapsed() - before; d < time.Millisecond {
		t.Errorf("after a millisecond %v have passed", d)
	}
	if d := time.Since(c.Wall()); d < -time.Minute || d > time.Minute {
		t.Errorf("the wall clock is off by %v", d)
	}
	if one, two := lease.NewOwner(), lease.NewOwner(); one == two {
		t.Error("two owners are one")
	}
}

func FuzzKeys(f *testing.F) {
	f.Add("a/b", "c", "d", "e", "a", "b/c", "d", "e")
	f.Add("a", "", "bc", "d", "a", "b", "c", "d")
	f.Fuzz(func(t *testing.T, a, b, c, d, e, g, h, i string) {
		x := lease.Key{Scope: lease.Scope{Tenant: a, Workspace: b}, Backend: c, Handle: d}
		y := lease.Key{Scope: lease.Scope{Tenant: e, Workspace: g}, Backend: h, Handle: i}
		if xs, ys := lease.EncodeKey(x), lease.EncodeKey(y); (xs == ys) != (x == y) || x != y && strings.HasPrefix(xs, ys) {
			t.Errorf("%q and %q are %q and %q", x, y, xs, ys)
		}
	})
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte(`{"key":{"Scope":{"Tenant":"t","Workspace":"w"},"Backend":"b","Handle":"h"},"owner":"o","token":1,"ttl_ns":1}`))
	f.Add([]byte(`{"token":-1}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, value []byte) {
		if err := lease.DecodeRecord(value); err != nil && !errors.Is(err, lease.ErrUnavailable) {
			t.Error(err)
		}
	})
}

func BenchmarkAcquireRelease(b *testing.B) {
	s := newStore(b, lease.Options{})
	for b.Loop() {
		g := s.acquire(b, "k", "one")
		if err := s.Release(b.Context(), g); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRenew(b *testing.B) {
	s := newStore(b, lease.Options{})
	g := s.acquire(b, "k", "one")
	for b.Loop() {
		if _, err := s.Renew(b.Context(), g, g.TTL); err != nil {
			b.Fatal(err)
		}
	}
}

var _ lease.Clock = (*conformance.ManualClock)(nil)

// TestLastTokens: an image is held to the last token of its own key, whatever
// other keys were given.
func TestLastTokens(t *testing.T) {
	s := newStore(t, lease.Options{})
	here := s.Info().Install
	mark := func(token uint64) lease.Mark { return lease.Mark{Install: here, Token: token} }
	one := s.acquire(t, "k", "one")
	if err := s.Release(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	var other lease.Grant
	for range 5 {
		other = s.acquire(t, "other", "two")
		if err := s.Release(t.Context(), other); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // also after a restart
		if err := s.Check(key("k"), mark(one.Token)); err != nil {
			t.Error(err)
		}
		var old *lease.Restored
		if err := s.Check(key("k"), mark(other.Token)); !errors.As(err, &old) || old.Last != one.Token {
			t.Errorf("a token of another key: %v", err)
		}
		wantIs(t, s.Check(key("new"), mark(1)), lease.ErrRestored)
		if err := s.reopen(); err != nil {
			t.Fatal(err)
		}
	}
	wantIs(t, s.Check(lease.Key{}, mark(1)), lease.ErrInvalid)
	wantIs(t, s.Adopt(t.Context(), lease.Key{}, mark(1)), lease.ErrInvalid)
	_, err := s.Last(t.Context(), lease.Key{})
	wantIs(t, err, lease.ErrInvalid)

	// What is adopted is the last one of its key; a break counts as a grant.
	if err := s.Adopt(t.Context(), key("k"), mark(other.Token+7)); err != nil {
		t.Fatal(err)
	}
	three := s.acquire(t, "k", "three")
	if _, err := s.Break(t.Context(), key("k")); err != nil {
		t.Fatal(err)
	}
	if last, err := s.Last(t.Context(), key("k")); err != nil || last != three.Token+1 || three.Token != other.Token+8 {
		t.Errorf("last %d, token %d, %v", last, three.Token, err)
	}
}

// TestStoreWithoutLastTokens: a store of a release that did not keep the last token
// of each key knows that of the leases which it has, and a bound for the others.
func TestStoreWithoutLastTokens(t *testing.T) {
	s := newStore(t, lease.Options{})
	mark := func(token uint64) lease.Mark { return lease.Mark{Install: s.Info().Install, Token: token} }
	released := s.acquire(t, "released", "one")
	if err := s.Release(t.Context(), released); err != nil {
		t.Fatal(err)
	}
	held := s.acquire(t, "held", "one")
	highest := s.acquire(t, "highest", "one")
	last := func(handle string) string { return "K" + lease.EncodeKey(key(handle))[1:] }
	err := s.db.Update(func(txn *badger.Txn) error {
		var failed error
		for _, k := range []string{"M", "N", last("released"), last("held"), last("highest")} {
			if _, err := txn.Get([]byte(k)); err != nil {
				t.Errorf("%q: %v", k, err)
			}
			failed = errors.Join(failed, txn.Delete([]byte(k)))
		}
		return failed
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.reopen(); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			handle      string
			token, last uint64
			kind        error
		}{
			{"held", held.Token, held.Token, nil},
			{"held", highest.Token, held.Token, nil}, // no number tells
			{"held", highest.Token + 1, held.Token, lease.ErrRestored},
			{"released", highest.Token, 0, nil},
			{"released", highest.Token + 1, 0, lease.ErrRestored},
			{"new", highest.Token + 1, 0, lease.ErrRestored},
		} {
			if err := s.Check(key(c.handle), mark(c.token)); !errors.Is(err, c.kind) {
				t.Errorf("%s with token %d: %v", c.handle, c.token, err)
			}
			if got, err := s.Last(t.Context(), key(c.handle)); err != nil || got != c.last {
				t.Errorf("the last of %s is %d, %v", c.handle, got, err)
			}
		}
	}
	again := s.acquire(t, "released", "one")
	wantIs(t, s.Check(key("released"), mark(again.Token+1)), lease.ErrRestored)

	// The old release comes once more, and gives out a token.
	later := again.Token + 1
	err = s.db.Update(func(txn *badger.Txn) error {
		return txn.Set([]byte("T"), binary.BigEndian.AppendUint64(nil, later))
	})
	if err := errors.Join(err, s.reopen()); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(key("released"), mark(later)); err != nil {
		t.Error(err)
	}
	wantIs(t, s.Check(key("released"), mark(later+1)), lease.ErrRestored)
}

// TestClear: what ended without a release is forgotten, once its holder is evicted;
// what is alive, or somebody else's, is not touched.
func TestClear(t *testing.T) {
	var evicted []uint64
	fail := errors.New("it does not die")
	var failing bool
	s := newStore(t, lease.Options{Evict: func(_ context.Context, l lease.Lease) error {
		if failing {
			return fail
		}
		evicted = append(evicted, l.Token)
		return nil
	}})
	left := func() int {
		t.Helper()
		all, err := s.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	one := s.acquire(t, "k", "one")
	wantIs(t, s.Clear(t.Context(), one), lease.ErrConflict)
	s.clock.Advance(time.Minute)
	failing = true
	wantIs(t, s.Clear(t.Context(), one), fail)
	failing = false
	if n := left(); n != 1 || s.alive(t, one) {
		t.Errorf("%d are listed", n)
	}
	for range 2 {
		if err := s.Clear(t.Context(), one); err != nil {
			t.Error(err)
		}
	}
	if n := left(); n != 0 || len(evicted) != 1 || evicted[0] != one.Token || s.Slots() != 0 {
		t.Errorf("%d are listed, %v evicted, %d slots", n, evicted, s.Slots())
	}
	two := s.acquire(t, "k", "two")
	if err := s.Clear(t.Context(), one); err != nil || !s.alive(t, two) {
		t.Errorf("%v, and the next one is alive: %v", err, s.alive(t, two))
	}
	// One that a killed process left.
	if err := s.reopen(); err != nil {
		t.Fatal(err)
	}
	if err := s.Clear(t.Context(), two); err != nil || left() != 0 {
		t.Errorf("%v, %d are listed", err, left())
	}
}
