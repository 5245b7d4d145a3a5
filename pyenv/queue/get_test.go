package queue

import (
	"errors"
	"strings"
	"testing"
)

// Case 51: a forged id tells nothing.
func TestCase51ForgedID(t *testing.T) {
	f := newFixture(t)
	theirs := f.submit(wsB, "foo")
	mine := f.submit(wsA, "foo")
	if got, err := f.Get(wsA, mine.ID); err != nil || got.ID != mine.ID {
		t.Fatal(err)
	}
	forged := []string{
		theirs.ID, "01ARZ3NDEKTSV4RRFFQ69G5FAV", "", "x", strings.ToLower(mine.ID), mine.ID[:10], mine.ID + "/", "../req/" + mine.ID,
		wsA + "/" + mine.ID, "ZZZZZZZZZZZZZZZZZZZZZZZZZZ", strings.Repeat("0", 1<<20), "\x00", "\xff", "Ω",
	}
	for _, id := range forged {
		r, err := f.Get(wsA, id)
		if err != ErrNotFound { // the very same, not one that wraps it
			t.Errorf("%.40q: %v", id, err)
		}
		want(t, "nothing", r, Request{})
		if r, err := f.Wait(t.Context(), wsA, id, false); err != ErrNotFound || r.ID != "" {
			t.Errorf("wait for %.40q: %v", id, err)
		}
	}
	for _, ws := range []string{"", "x", wsA + "/", "../" + wsA} {
		if _, err := f.Get(ws, mine.ID); err != ErrNotFound {
			t.Errorf("workspace %q: %v", ws, err)
		}
	}
	// Not even that a record of theirs cannot be read.
	f.put(requestKey(theirs.ID), []byte("{"))
	if _, err := f.Get(wsA, theirs.ID); err != ErrNotFound {
		t.Error(err)
	}
}

func TestAny(t *testing.T) {
	f := newFixture(t)
	a := f.submit(wsA, "foo")
	b := f.submit(wsB, "foo")
	for _, id := range []string{a.ID, strings.ToLower(a.ID), a.ID[:25]} {
		got, err := f.Any(id)
		if id == a.ID[:25] && strings.HasPrefix(b.ID, id) {
			continue // the two are neighbours
		}
		if err != nil || got.ID != a.ID {
			t.Errorf("%q: %s, %v", id, got.ID, err)
		}
	}
	var both *Ambiguous
	_, err := f.Any(a.ID[:6])
	wantIs(t, err, ErrAmbiguous)
	if !errors.As(err, &both) {
		t.Fatal(err)
	}
	want(t, "matches", idsOf(both.Matches), []string{a.ID, b.ID})
	want(t, "text", err.Error(), "2 requests begin with "+a.ID[:6])
	for _, p := range []string{"", "7ZZ", "01/", "*", "0I", "\xff", a.ID + "0", strings.Repeat("0", 1<<20)} {
		if _, err := f.Any(p); err != ErrNotFound {
			t.Errorf("%.20q: %v", p, err)
		}
	}
	for n := range 30 {
		f.to(f.submit(wsA, specN(n)), Cancelled)
	}
	if _, err = f.Any("0"); !errors.As(err, &both) || len(both.Matches) != maxMatches || !strings.HasPrefix(err.Error(), "20 or more ") {
		t.Error(err)
	}
}

func TestList(t *testing.T) {
	f := newFixture(t)
	a1, b1, a2, a3 := f.submit(wsA, "a1"), f.submit(wsB, "b1"), f.submit(wsA, "a2"), f.submit(wsA, "a3")
	f.to(a2, Cancelled)
	f.to(a3, Resolving)
	for _, c := range []struct {
		Filter
		want []string
	}{
		{Filter{}, []string{a1.ID, b1.ID, a2.ID, a3.ID}},
		{Filter{Workspace: wsA}, []string{a1.ID, a2.ID, a3.ID}},
		{Filter{Workspace: wsA, Last: 2}, []string{a2.ID, a3.ID}},
		{Filter{Workspace: wsA, Last: 2, States: []State{Received, Resolving}}, []string{a1.ID, a3.ID}},
		{Filter{States: []State{Received}}, []string{a1.ID, b1.ID}},
		{Filter{Workspace: "nobody"}, nil},
		{Filter{Workspace: "../" + wsA}, nil},
	} {
		list, err := f.List(c.Filter)
		if err != nil {
			t.Error(err)
		}
		want(t, "list", idsOf(list), c.want)
	}
	list, err := f.Queue.Open()
	if err != nil {
		t.Error(err)
	}
	want(t, "open", idsOf(list), []string{a1.ID, b1.ID, a3.ID})
}
