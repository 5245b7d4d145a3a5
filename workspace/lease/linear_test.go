package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// event is what was called, and what came of it. The clock is one of those that
// are called: it moves in the middle of other calls.
type event struct {
	op    string // acquire renew release guard break advance
	owner string
	token uint64
	d     time.Duration // TTL, or how far the clock moves
}

type outcome struct {
	ok    bool
	token uint64
	value string // what guard has read
}

// contract is a provider with one key, as one who does one thing after another.
type contract struct {
	now, deadline time.Duration
	owner         string // empty when nobody has it
	token, last   uint64
	value         string // what guard wrote last
}

func (s contract) alive() bool { return s.owner != "" && s.now < s.deadline }

func (s contract) step(e event, o outcome) (bool, contract) {
	mine := s.alive() && s.owner == e.owner && s.token == e.token
	switch e.op {
	case "advance":
		s.now += e.d
		return true, s
	case "acquire":
		if s.alive() || !o.ok {
			return s.alive() && !o.ok, s
		}
		ok := o.token > s.last
		s.owner, s.token, s.last, s.deadline = e.owner, o.token, o.token, s.now+e.d
		return ok, s
	case "renew":
		if mine && o.ok {
			s.deadline = max(s.now+e.d, s.deadline+1)
		}
	case "release":
		if mine && o.ok {
			s.owner = ""
		}
	case "guard":
		if mine && o.ok {
			ok := o.value == s.value
			s.value = e.owner + strconv.FormatUint(e.token, 10)
			return ok, s
		}
	case "break": // what was broken counts as used up
		if o.ok {
			s.owner = ""
			s.last++
		}
		return true, s
	}
	return mine == o.ok, s
}

var model = porcupine.Model{
	Init: func() any { return contract{} },
	Step: func(state, input, output any) (bool, any) {
		return state.(contract).step(input.(event), output.(outcome))
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprint(input, output) },
}

// history records calls of several clients.
type history struct {
	tick atomic.Int64
	mu   sync.Mutex
	ops  []porcupine.Operation
}

func (h *history) call(client int, e event, do func() outcome) outcome {
	start := h.tick.Add(1)
	o := do()
	end := h.tick.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: e, Call: start, Output: o, Return: end})
	return o
}

// client works at random, with its own grant and now and then a stale one.
func (h *history) client(s *store, id int, rnd *rand.Rand, fail func(error)) {
	const calls = 14
	owner := fmt.Sprint("owner-", id)
	g := lease.Grant{Key: key("k"), Owner: owner}
	ttl := 10 * time.Second
	ctx := context.Background()
	for range calls {
		e := event{owner: owner, token: g.Token, d: ttl}
		var do func() (string, error)
		switch n := rnd.IntN(10); {
		case n < 3 || g.Token == 0:
			e.op, e.token = "acquire", 0
			r := request("k", owner)
			r.TTL = ttl
			do = func() (string, error) {
				got, err := s.Acquire(ctx, r)
				if err == nil {
					g = got
				}
				return "", err
			}
		case n < 5:
			e.op = "renew"
			do = func() (string, error) { _, err := s.Renew(ctx, g, ttl); return "", err }
		case n < 6:
			e.op = "release"
			do = func() (string, error) { return "", s.Release(ctx, g) }
		case n < 9:
			e.op = "guard"
			do = func() (string, error) { return swap(ctx, s, g) }
		default:
			e.op = "break"
			do = func() (string, error) { _, err := s.Break(ctx, key("k")); return "", err }
		}
		h.call(id, e, func() outcome {
			value, err := do()
			if err != nil && !errors.Is(err, lease.ErrConflict) && !errors.Is(err, lease.ErrNotHeld) {
				fail(err)
			}
			o := outcome{ok: err == nil, value: value}
			if e.op == "acquire" && err == nil {
				o.token = g.Token
			}
			return o
		})
	}
}

// swap writes who writes, and returns what was there.
func swap(ctx context.Context, s *store, g lease.Grant) (before string, err error) {
	err = s.Guard(ctx, g, func(tx lease.Txn) error {
		b, err := tx.Get("v")
		if err != nil {
			return err
		}
		before = string(b)
		return tx.Set("v", []byte(g.Owner+strconv.FormatUint(g.Token, 10)))
	})
	return before, err
}

// TestLinearizable: random calls of four clients, operators' breaks and a
// moving clock come out as if each had happened at one moment.
func TestLinearizable(t *testing.T) {
	histories := 40
	if testing.Short() {
		histories = 5
	}
	var last []porcupine.Operation
	kinds := map[string]int{}
	for seed := range histories {
		s := newStore(t, lease.Options{})
		h := new(history)
		var wg sync.WaitGroup
		for id := range 4 {
			wg.Go(func() {
				h.client(s, id, rand.New(rand.NewPCG(uint64(seed), uint64(id))), func(err error) { t.Error(err) })
			})
		}
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(seed), 99))
			for range 12 {
				e := event{op: "advance", d: time.Duration(rnd.IntN(6)) * time.Second}
				h.call(4, e, func() outcome { s.clock.Advance(e.d); return outcome{ok: true} })
				for range rnd.IntN(3) { // so that it does not run ahead of the others
					_, _ = s.List(context.Background())
				}
			}
		})
		wg.Wait()
		s.db.Close()
		res, _ := porcupine.CheckOperationsVerbose(model, h.ops, time.Minute)
		if res != porcupine.Ok {
			t.Fatalf("seed %d: %s: %v", seed, res, h.ops)
		}
		for _, op := range h.ops {
			kinds[fmt.Sprint(op.Input.(event).op, " ", op.Output.(outcome).ok)]++
		}
		last = h.ops
	}
	t.Log(kinds)
	for _, want := range []string{"acquire true", "acquire false", "renew true", "renew false", "release true", "guard true", "guard false", "break true"} {
		if kinds[want] == 0 {
			t.Errorf("no history has %s", want)
		}
	}
	// Control: the checker finds what is wrong.
	for i, op := range last {
		if o := op.Output.(outcome); op.Input.(event).op == "acquire" && o.ok {
			o.token = 0
			bad := append([]porcupine.Operation{}, last...)
			bad[i].Output = o
			if porcupine.CheckOperations(model, bad) {
				t.Error("a history with a token that does not rise passes")
			}
			break
		}
	}
}

// TestContractTellsWrongHistories: what must not happen is told from what may.
func TestContractTellsWrongHistories(t *testing.T) {
	const ttl = 10 * time.Second
	acquire := func(owner string, token uint64) porcupine.Operation {
		return porcupine.Operation{Input: event{op: "acquire", owner: owner, d: ttl}, Output: outcome{ok: token > 0, token: token}}
	}
	do := func(op, owner string, token uint64, ok bool) porcupine.Operation {
		return porcupine.Operation{Input: event{op: op, owner: owner, token: token, d: ttl}, Output: outcome{ok: ok}}
	}
	for _, c := range []struct {
		name string
		ok   bool
		ops  []porcupine.Operation
	}{
		{"one after the other", true, []porcupine.Operation{acquire("a", 1), do("release", "a", 1, true), acquire("b", 2)}},
		{"two holders", false, []porcupine.Operation{acquire("a", 1), acquire("b", 2)}},
		{"a token again", false, []porcupine.Operation{acquire("a", 1), do("release", "a", 1, true), acquire("b", 1)}},
		{"refused though free", false, []porcupine.Operation{acquire("a", 0)}},
		{"renewed after the end", false, []porcupine.Operation{acquire("a", 1), do("advance", "", 0, true), do("renew", "a", 1, true)}},
		{"written after the end", false, []porcupine.Operation{acquire("a", 1), do("advance", "", 0, true), do("guard", "a", 1, true)}},
		{"over before the end", false, []porcupine.Operation{acquire("a", 1), do("renew", "a", 1, false)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for i := range c.ops {
				c.ops[i].Call, c.ops[i].Return = int64(2*i), int64(2*i+1)
			}
			if got := porcupine.CheckOperations(model, c.ops); got != c.ok {
				t.Errorf("it is %v", got)
			}
		})
	}
}
