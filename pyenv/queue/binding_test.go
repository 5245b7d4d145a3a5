package queue

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestBind(t *testing.T) {
	f := newFixture(t)
	if b, err := f.Binding(wsA); err != nil || b.Rev != 0 || b.Workspace != wsA {
		t.Fatal(b, err)
	}
	wantIs(t, f.Bind(t.Context(), wsA, 1, Binding{}), ErrConflict)
	id := f.submit(wsA, "foo").ID
	b := Binding{Workspace: "not looked at", Rev: 9, Python: "python-1", Base: base1, Layers: []string{layer2, layer1}, Locks: []string{lock2, lock1}, Requests: []string{id}}
	if err := f.Bind(t.Context(), wsA, 0, b); err != nil {
		t.Fatal(err)
	}
	wantIs(t, f.Bind(t.Context(), wsA, 0, b), ErrConflict)
	f.reopen()
	got, err := f.Binding(wsA)
	if err != nil {
		t.Fatal(err)
	}
	b.Workspace, b.Rev = wsA, 1
	want(t, "binding", got, b)
	if err := f.Bind(t.Context(), wsA, 1, Binding{Iso: iso1}); err != nil {
		t.Fatal(err)
	}
	if err := f.Bind(t.Context(), wsB, 0, Binding{Base: base1}); err != nil {
		t.Fatal(err)
	}
	all, err := f.Bindings()
	if err != nil {
		t.Fatal(err)
	}
	want(t, "all", all, []Binding{{Workspace: wsB, Rev: 1, Base: base1}, {Workspace: wsA, Rev: 2, Iso: iso1}})
	for name, b := range map[string]Binding{
		"base":         {Base: layer1},
		"iso":          {Iso: base1},
		"layer":        {Layers: []string{iso1}},
		"path":         {Layers: []string{"../x-0011223344556677"}},
		"twice":        {Layers: []string{layer1, layer1}},
		"lock":         {Locks: []string{"latest"}},
		"request":      {Requests: []string{strings.ToLower(id)}},
		"python":       {Python: strings.Repeat("p", maxName+1)},
		"not UTF-8":    {Python: "\xff"},
		"far too many": {Locks: slices.Repeat([]string{lock1}, maxBound+1)},
	} {
		if err := f.Bind(t.Context(), wsA, 2, b); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, ws := range []string{"", "a/b", "ä"} {
		wantIs(t, f.Bind(t.Context(), ws, 0, Binding{}), ErrInvalid)
		_, err := f.Binding(ws)
		wantIs(t, err, ErrInvalid)
	}
}

func TestFinish(t *testing.T) {
	f := newFixture(t)
	r := f.to(f.submit(wsA, "foo"), AutoApproved, Fetching)
	b := Binding{Base: base1, Layers: []string{layer1}, Locks: []string{lock1}, Requests: []string{r.ID}}
	layer := func(r *Request) error { r.Layer = layer1; return nil }

	_, err := f.Finish(t.Context(), r.ID, Fetching, 0, b, nil) // it has no layer
	wantIs(t, err, ErrInvalid)
	_, err = f.Finish(t.Context(), r.ID, Fetching, 0, Binding{Base: base1, Layers: []string{layer2}}, layer)
	wantIs(t, err, ErrInvalid)
	now, err := f.Finish(t.Context(), r.ID, Fetching, 7, b, layer)
	wantIs(t, err, ErrConflict)
	want(t, "it was the binding", now.State, Fetching)
	now, err = f.Finish(t.Context(), r.ID, Probing, 0, b, layer)
	wantIs(t, err, ErrConflict)
	want(t, "it was the state", now.State, Fetching)
	if got, err := f.Binding(wsA); err != nil || got.Rev != 0 {
		t.Fatal("half was done:", got, err)
	}
	if now, err = f.Finish(t.Context(), r.ID, Fetching, 0, b, layer); err != nil || now.State != Ready || now.Layer != layer1 {
		t.Fatal(now, err)
	}
	got, err := f.Binding(wsA)
	if err != nil {
		t.Fatal(err)
	}
	b.Workspace, b.Rev = wsA, 1
	want(t, "binding", got, b)
	consistent(t, f.Queue)

	// At once, when solution and layer are known.
	now, err = f.Finish(t.Context(), f.submit(wsB, "foo").ID, Received, 0, b, solved)
	if err != nil || now.State != Ready || !now.Auto || now.Decision.By != "catalog rev 3" {
		t.Error(now, err)
	}
}

func TestMemo(t *testing.T) {
	f := newFixture(t)
	key := MemoKey([]string{"foo", "bar"}, base1, []string{"b.example", "a.example"}, 3)
	if key != MemoKey([]string{"bar", "foo", "bar"}, base1, []string{"a.example", "b.example"}, 3) {
		t.Error("the order matters")
	}
	others := map[string]bool{key: true}
	for _, k := range []string{
		MemoKey([]string{"foo"}, base1, []string{"a.example", "b.example"}, 3),
		MemoKey([]string{"foo,bar"}, base1, []string{"a.example", "b.example"}, 3),
		MemoKey([]string{"foo", "bar"}, base1+"0", []string{"a.example", "b.example"}, 3),
		MemoKey([]string{"foo", "bar"}, base1, []string{"a.example"}, 3),
		MemoKey([]string{"foo", "bar"}, base1, nil, 3),
		MemoKey([]string{"foo", "bar"}, base1, []string{"a.example", "b.example"}, 4),
	} {
		if others[k] {
			t.Error("two questions have one key")
		}
		others[k] = true
	}
	memo := func(wantLock string) {
		t.Helper()
		if got, ok := f.Memo(key); got != wantLock || ok != (wantLock != "") {
			t.Errorf("memo %q, %v, want %q", got, ok, wantLock)
		}
	}
	set := func(lockID string, ttl time.Duration) {
		t.Helper()
		if err := f.SetMemo(t.Context(), key, lockID, ttl); err != nil {
			t.Fatal(err)
		}
	}
	memo("")
	set(lock1, MemoTTL)
	f.reopen()
	memo(lock1)
	f.clock.add(MemoTTL - time.Millisecond)
	memo(lock1)
	f.clock.add(time.Millisecond)
	memo("")
	set(lock2, 1000*MemoTTL) // no longer than MemoTTL
	memo(lock2)
	f.clock.add(-time.Hour) // the clock went ahead when it was kept
	memo("")
	if _, err := f.Expire(t.Context(), f.clock.now()); err != nil {
		t.Fatal(err)
	}
	want(t, "dropped", f.value(memoKey(key)), nil)
	for i, err := range []error{
		f.SetMemo(t.Context(), "x", lock1, MemoTTL), f.SetMemo(t.Context(), key, "x", MemoTTL),
		f.SetMemo(t.Context(), key, lock1, 0), f.SetMemo(t.Context(), key, lock1, -1),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Error(i, err)
		}
	}
	f.put(memoKey(key), fmt.Appendf(nil, `{"schema":2,"value":{}}`))
	memo("")
	set(lock1, time.Hour)
	memo(lock1)
}
