package queue

import "testing"

func TestInherit(t *testing.T) {
	f := newFixture(t)
	if err := f.Inherit(t.Context(), wsA, 0, wsB); err != nil {
		t.Fatal(err)
	}
	if b, err := f.Binding(wsB); err != nil || b.Rev != 0 {
		t.Fatal("nothing was inherited, and there is a binding:", b, err)
	}
	id := f.submit(wsA, "foo").ID
	b := Binding{Python: "python-1", Base: base1, Layers: []string{layer2, layer1}, Locks: []string{lock2}, Requests: []string{id}, Startup: []string{layer1}}
	for rev := range 2 {
		if err := f.Bind(t.Context(), wsA, rev, b); err != nil {
			t.Fatal(err)
		}
	}
	wantIs(t, f.Inherit(t.Context(), wsA, 1, wsB), ErrConflict)
	wantIs(t, f.Inherit(t.Context(), wsA, 2, "no/uuid"), ErrInvalid)
	wantIs(t, f.Inherit(t.Context(), "", 2, wsB), ErrInvalid)
	if err := f.Inherit(t.Context(), wsA, 2, wsB); err != nil {
		t.Fatal(err)
	}
	wantIs(t, f.Inherit(t.Context(), wsA, 2, wsB), ErrConflict)
	f.reopen()
	got, err := f.Binding(wsB)
	if err != nil {
		t.Fatal(err)
	}
	b.Workspace, b.Rev, b.Requests = wsB, 1, nil
	want(t, "heir", got, b)
	if old, err := f.Binding(wsA); err != nil || old.Rev != 2 || len(old.Requests) != 1 {
		t.Error("the other has changed:", old, err)
	}
	if _, err := f.Forget(t.Context(), wsB); err != nil {
		t.Fatal(err)
	}
	if old, err := f.Binding(wsA); err != nil || old.Rev != 2 {
		t.Error("the other went with its heir:", old, err)
	}
}
