package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"pgregory.net/rapid"
)

// TestModel does anything in any order, and asks for what a few lines over a list say.
func TestModel(t *testing.T) {
	// In memory: what is on disk is the business of the tests that kill.
	rapid.Check(t, func(rt *rapid.T) {
		db, err := badger.Open(badger.DefaultOptions("").WithInMemory(true).WithValueThreshold(256 << 10).WithLogger(nil))
		if err != nil {
			rt.Fatal(err)
		}
		defer db.Close()
		m := &model{clock: &clock{t: start}, db: db, bound: map[string]Binding{}, memos: map[string]modelMemo{}}
		m.restart(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"submit": m.submit, "move": m.move, "finish": m.finish, "bind": m.bind, "memo": m.memo,
			"expire": m.expire, "forget": m.forget, "restart": m.restart, "clock": m.jump, "": m.look,
		})
	})
}

type model struct {
	q     *Queue
	db    *badger.DB
	clock *clock
	all   []*known // in order of arrival
	bound map[string]Binding
	memos map[string]modelMemo
}

// known is what the model knows of a request.
type known struct {
	id, ws, spec string
	state        State
	attempt      int
	lock         string
	auto         bool
	expires      time.Time
}

type modelMemo struct {
	lock  string
	until time.Time
}

func (k *known) decided() bool {
	return slices.Contains([]State{AutoApproved, Approved, Fetching, Building, Probing}, k.state)
}

func (m *model) draw(rt *rapid.T) *known {
	if len(m.all) == 0 {
		rt.Skip("there is no request")
	}
	return rapid.SampledFrom(m.all).Draw(rt, "request")
}

func (m *model) submit(rt *rapid.T) {
	ws := rapid.SampledFrom([]string{wsA, wsB}).Draw(rt, "workspace")
	s := rapid.SampledFrom([]string{"foo", "Foo", "foo>=2", "bar"}).Draw(rt, "spec")
	normal := map[string]string{"Foo": "foo"}[s]
	if normal == "" {
		normal = s
	}
	r, fresh, err := m.q.Submit(context.Background(), Request{Workspace: ws, Specs: []string{s}})
	if err != nil {
		rt.Fatal(err)
	}
	for _, k := range m.all {
		if k.ws == ws && k.spec == normal && !k.state.Closed() {
			if fresh || r.ID != k.id {
				rt.Fatalf("%s is open, and %s was made", k.id, r.ID)
			}
			return
		}
	}
	if !fresh || len(m.all) > 0 && r.ID <= m.all[len(m.all)-1].id {
		rt.Fatalf("%s is not new", r.ID)
	}
	m.all = append(m.all, &known{id: r.ID, ws: ws, spec: normal, state: Received, attempt: 1})
}

func (m *model) move(rt *rapid.T) {
	k := m.draw(rt)
	from := k.state
	if rapid.IntRange(0, 9).Draw(rt, "stale") == 0 {
		from = rapid.SampledFrom(allStates).Draw(rt, "from")
	}
	to := rapid.SampledFrom(allStates).Draw(rt, "to")
	back := k.decided() && (to == Approved || to == AutoApproved) && (to == AutoApproved) != k.auto
	_, err := m.q.Move(context.Background(), k.id, from, furnish(to))
	switch {
	case from != k.state:
		m.kind(rt, err, ErrConflict)
	case !slices.Contains(from.Next(), to) || back:
		m.kind(rt, err, ErrInvalid)
	case err != nil:
		rt.Fatalf("%s to %s: %v", from, to, err)
	default:
		m.moved(k, to)
	}
}

func (m *model) moved(k *known, to State) {
	before := *k
	k.state = to
	switch group := func(k *known) int {
		switch {
		case k.state == Received || k.state == Resolving:
			return 1
		case k.decided():
			return 2
		}
		return 3
	}; {
	case to.Closed():
	case group(k) != group(&before):
		k.attempt = 1
	}
	switch to {
	case Received, Resolving, PendingApproval:
		k.auto = false
	case AutoApproved:
		k.auto = true
	}
	switch {
	case before.decided() || to == Received || to == Resolving:
	case to == Ready:
		k.lock = ""
	default:
		k.lock = lock1
	}
	switch {
	case to != PendingApproval:
		k.expires = time.Time{}
	case before.state != PendingApproval:
		k.expires = m.clock.now().Add(PendingFor)
	}
}

func (m *model) finish(rt *rapid.T) {
	k := m.draw(rt)
	rev := m.bound[k.ws].Rev - rapid.IntRange(0, 1).Draw(rt, "late")
	b := Binding{Base: base1, Layers: []string{layer1}, Requests: []string{k.id}}
	_, err := m.q.Finish(context.Background(), k.id, k.state, rev, b, func(r *Request) error { r.Layer = layer1; return nil })
	switch {
	case rev != m.bound[k.ws].Rev:
		m.kind(rt, err, ErrConflict)
	case !k.decided():
		m.kind(rt, err, ErrInvalid)
	case err != nil:
		rt.Fatal(err)
	default:
		m.moved(k, Ready)
		b.Workspace, b.Rev = k.ws, rev+1
		m.bound[k.ws] = b
	}
}

func (m *model) bind(rt *rapid.T) {
	ws := rapid.SampledFrom([]string{wsA, wsB}).Draw(rt, "workspace")
	rev := m.bound[ws].Rev - rapid.IntRange(0, 1).Draw(rt, "late")
	b := Binding{Iso: iso1, Locks: []string{lock2}}
	err := m.q.Bind(context.Background(), ws, rev, b)
	switch {
	case rev != m.bound[ws].Rev:
		m.kind(rt, err, ErrConflict)
	case err != nil:
		rt.Fatal(err)
	default:
		b.Workspace, b.Rev = ws, rev+1
		m.bound[ws] = b
	}
}

func (m *model) memo(rt *rapid.T) {
	key := MemoKey([]string{rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "spec")}, base1, nil, 1)
	ttl := time.Duration(rapid.IntRange(1, 10*24).Draw(rt, "hours")) * time.Hour
	lockID := rapid.SampledFrom([]string{lock1, lock2}).Draw(rt, "lock")
	if err := m.q.SetMemo(context.Background(), key, lockID, ttl); err != nil {
		rt.Fatal(err)
	}
	m.memos[key] = modelMemo{lockID, m.clock.now().Add(min(ttl, MemoTTL))}
}

func (m *model) expire(rt *rapid.T) {
	now := m.clock.now()
	var due []string
	for _, k := range m.all {
		switch {
		case k.state != PendingApproval:
		case !now.Before(k.expires):
			due = append(due, k.id)
			m.moved(k, Expired)
			k.lock = lock1
		default:
			k.expires = earlier(k.expires, now.Add(PendingFor))
		}
	}
	closed, err := m.q.Expire(context.Background(), now)
	if err != nil || !slices.Equal(idsOf(closed), due) {
		rt.Fatalf("%v expired, not %v: %v", idsOf(closed), due, err)
	}
	for key, memo := range m.memos {
		if !good(memo, now) {
			delete(m.memos, key)
		}
	}
}

func (m *model) forget(rt *rapid.T) {
	if rapid.IntRange(0, 3).Draw(rt, "seldom") > 0 {
		rt.Skip("else little comes together")
	}
	ws := rapid.SampledFrom([]string{wsA, wsB}).Draw(rt, "workspace")
	var open []string
	var rest []*known
	for _, k := range m.all {
		switch {
		case k.ws != ws:
			rest = append(rest, k)
		case !k.state.Closed():
			open = append(open, k.id)
		}
	}
	m.all = rest
	delete(m.bound, ws)
	cancelled, err := m.q.Forget(context.Background(), ws)
	if err != nil || !slices.Equal(idsOf(cancelled), open) {
		rt.Fatalf("%v were cancelled, not %v: %v", idsOf(cancelled), open, err)
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func good(m modelMemo, now time.Time) bool {
	return now.Before(m.until) && !m.until.After(now.Add(MemoTTL))
}

func (m *model) jump(rt *rapid.T) {
	m.clock.add(time.Duration(rapid.IntRange(-20*24, 20*24).Draw(rt, "hours")) * time.Hour)
}

// restart is a new queue on the same database.
func (m *model) restart(rt *rapid.T) {
	q, err := Open(m.db, Options{Now: m.clock.now})
	if err != nil {
		rt.Fatal(err)
	}
	m.q = q
	if _, err := q.Recover(context.Background()); err != nil {
		rt.Fatal(err)
	}
	for _, k := range m.all {
		point := k.state
		switch {
		case k.state == Resolving:
			point = Received
		case k.decided() && k.auto:
			point = AutoApproved
		case k.decided():
			point = Approved
		}
		switch {
		case point == k.state:
		case k.attempt == MaxAttempts:
			k.state = Failed
		default:
			k.state = point
			k.attempt++
		}
	}
}

// look compares everything that can be seen.
func (m *model) look(rt *rapid.T) {
	var all, open []string
	for _, k := range m.all {
		all = append(all, k.String())
		if !k.state.Closed() {
			open = append(open, k.String())
		}
		if r, err := m.q.Get(k.ws, k.id); err != nil || r.State != k.state {
			rt.Fatalf("%s: %v", k.id, err)
		}
	}
	list, err := m.q.List(Filter{})
	m.same(rt, list, err, all)
	list, err = m.q.Open()
	m.same(rt, list, err, open)
	for _, ws := range []string{wsA, wsB} {
		got, err := m.q.Binding(ws)
		expect := m.bound[ws]
		expect.Workspace = ws
		if err != nil || fmt.Sprint(got) != fmt.Sprint(expect) {
			rt.Fatalf("bound %+v, not %+v: %v", got, expect, err)
		}
	}
	for key, memo := range m.memos {
		lockID, ok := m.q.Memo(key)
		if ok != good(memo, m.clock.now()) || ok && lockID != memo.lock {
			rt.Fatalf("memo %s, %v, not %+v", lockID, ok, memo)
		}
	}
}

func (k *known) String() string {
	return fmt.Sprint(k.id, k.ws, k.spec, k.state, k.attempt, k.lock, k.auto, k.expires.UTC())
}

func (m *model) same(rt *rapid.T, list []Request, err error, expect []string) {
	var got []string
	for _, r := range list {
		k := known{r.ID, r.Workspace, r.Specs[0], r.State, r.Attempt, r.Lock, r.Auto, r.Expires}
		got = append(got, k.String())
	}
	if err != nil || !slices.Equal(got, expect) {
		rt.Fatalf("got\n%q\nwant\n%q\n%v", got, expect, err)
	}
}

func (m *model) kind(rt *rapid.T, err, kind error) {
	if !errors.Is(err, kind) {
		rt.Fatalf("got %v, not %v", err, kind)
	}
}
