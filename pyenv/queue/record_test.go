package queue

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// full is a request with everything that it can have.
func full() Request {
	return Request{
		ID: "01KB79M2Y8Q5T3S6V7W8X9Y0Z1", Workspace: wsA, Specs: []string{"bar[x]<3,>=2", "foo"},
		Wheel:  &Upload{File: "foo-1-py3-none-any.whl", SHA256: strings.Repeat("0f", 32), Path: "in/foo.whl"},
		Reason: "a \"chart\" <&>  \x00 \u202e", Session: "s", Client: "c", Call: "k",
		State: Failed, Attempt: 2, Auto: true, Lock: lock1, Layer: iso1, Iso: true,
		Findings: []Finding{{Rule: "not_listed", Package: "foo", Sentence: "foo is not listed", Tier: "ask"}},
		Decision: &Decision{Approve: true, By: "operator uid 1000 at /dev/pts/3", How: "cli", Note: "for Ann", At: start, Lock: lock1},
		Failure:  &Failure{Code: "probe", Sentence: "foo cannot be imported", Hint: "ask for another", Blocking: &Blocking{Name: "foo", Version: "1", PinnedBy: base1, NeededBy: "bar 2", Wanted: "foo>=1"}},
		Created:  start, Updated: start.Add(time.Millisecond), Expires: start.Add(PendingFor),
	}
}

func TestRecordsAreReadAsTheyWereWritten(t *testing.T) {
	b, err := encode(full())
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode[Request](b)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "request", got, full())
}

// Nothing but what this version writes is read.
func TestStrangeRecords(t *testing.T) {
	good, err := encode(full())
	if err != nil {
		t.Fatal(err)
	}
	swap := func(old, new string) []byte {
		if bytes.Count(good, []byte(old)) == 0 {
			t.Fatalf("no %s in %s", old, good)
		}
		return bytes.Replace(good, []byte(old), []byte(new), 1)
	}
	for name, b := range map[string][]byte{
		"empty":           {},
		"half":            good[:len(good)/2],
		"zeros":           make([]byte, 100),
		"null":            []byte("null"),
		"list":            []byte("[]"),
		"no schema":       []byte(`{"value":{}}`),
		"newer":           swap(`"schema":1`, `"schema":2`),
		"older":           swap(`"schema":1`, `"schema":0`),
		"schema is text":  swap(`"schema":1`, `"schema":"1"`),
		"more":            append(slices.Clone(good), " {}"...),
		"newline":         append(slices.Clone(good), '\n'),
		"unknown key":     swap(`"attempt":2`, `"attempt":2,"osv":1`),
		"double key":      swap(`"attempt":2`, `"attempt":1,"attempt":2`),
		"other case":      swap(`"attempt"`, `"Attempt"`),
		"unknown state":   swap(`"failed"`, `"paused"`),
		"attempt":         swap(`"attempt":2`, `"attempt":4`),
		"lock":            swap(lock1, "latest"),
		"id":              swap("01KB", "01kb"),
		"no time":         swap("2026-11-29", "yesterday"),
		"too large":       []byte(`{"schema":1,"value":"` + strings.Repeat("a", MaxRecord) + `"}`),
		"deep":            bytes.Repeat([]byte("["), 100_000),
		"unsorted":        swap(`"foo"]`, `"aaa"]`),
		"not UTF-8":       swap("chart", "ch\xffrt"),
		"number overflow": swap(`"attempt":2`, `"attempt":1e400`),
	} {
		if r, err := decode[Request](b); !errors.Is(err, ErrUnreadable) || r.ID != "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A record of another version stays as it is, and the rest goes on.
func TestAnotherVersionIsRefusedWithoutLoss(t *testing.T) {
	f := newFixture(t)
	r := f.to(f.submit(wsA, "foo"), PendingApproval)
	ok := f.to(f.submit(wsA, "bar"), Resolving)
	if err := f.Bind(t.Context(), wsA, 0, Binding{Base: base1}); err != nil {
		t.Fatal(err)
	}
	if err := f.Bind(t.Context(), wsB, 0, Binding{Base: base1}); err != nil {
		t.Fatal(err)
	}
	newer := map[string][]byte{}
	for _, key := range []string{requestKey(r.ID), bindKey(wsA)} {
		newer[key] = bytes.Replace(f.value(key), []byte(`"schema":1`), []byte(`"schema":2,"new":true`), 1)
		f.put(key, newer[key])
	}
	f.reopen()
	f.clock.add(100 * PendingFor)

	_, err := f.Get(wsA, r.ID)
	wantIs(t, err, ErrUnreadable)
	if text := err.Error(); !strings.Contains(text, r.ID) || !strings.Contains(text, "form 2") {
		t.Error("which one is it?", text)
	}
	_, err = f.Any(r.ID)
	wantIs(t, err, ErrUnreadable)
	_, err = f.Move(t.Context(), r.ID, PendingApproval, furnish(Approved))
	wantIs(t, err, ErrUnreadable)
	_, _, err = f.Submit(t.Context(), Request{Workspace: wsA, Specs: []string{"foo"}})
	wantIs(t, err, ErrUnreadable)
	_, err = f.Wait(t.Context(), wsA, r.ID, false)
	wantIs(t, err, ErrUnreadable)
	_, err = f.Expire(t.Context(), f.clock.now())
	wantIs(t, err, ErrUnreadable)
	changed, err := f.Recover(t.Context())
	wantIs(t, err, ErrUnreadable)
	want(t, "the other one is recovered", idsOf(changed), []string{ok.ID})
	list, err := f.List(Filter{Workspace: wsA})
	wantIs(t, err, ErrUnreadable)
	want(t, "what can be read", idsOf(list), []string{ok.ID})
	list, err = f.Queue.Open()
	wantIs(t, err, ErrUnreadable)
	want(t, "what can be read", idsOf(list), []string{ok.ID})

	_, err = f.Binding(wsA)
	wantIs(t, err, ErrUnreadable)
	wantIs(t, f.Bind(t.Context(), wsA, 1, Binding{}), ErrUnreadable)
	all, err := f.Bindings()
	wantIs(t, err, ErrUnreadable)
	want(t, "all or nothing", all, nil)
	if _, err := f.Binding(wsB); err != nil {
		t.Error("another workspace:", err)
	}

	for n := range KeepClosed + MaxOpen + 5 { // nor is it pruned
		f.to(f.submit(wsA, specN(n)), Cancelled)
	}
	for key, value := range newer {
		if !bytes.Equal(f.value(key), value) {
			t.Errorf("%s was changed", key)
		}
	}
}

// A key that leads to the wrong record is no reason to act on that.
func TestMixedUpKeys(t *testing.T) {
	f := newFixture(t)
	r := f.submit(wsA, "foo")
	other := f.to(f.submit(wsB, "foo"), Cancelled)
	f.put(openKey(r), []byte(other.ID))
	_, _, err := f.Submit(t.Context(), Request{Workspace: wsA, Specs: []string{"foo"}})
	wantIs(t, err, ErrUnreadable)
	f.put(openKey(r), []byte("nonsense"))
	_, err = f.Queue.Open()
	wantIs(t, err, ErrUnreadable)
	f.put(requestKey(r.ID), f.value(requestKey(other.ID)))
	_, err = f.Get(wsA, r.ID)
	wantIs(t, err, ErrUnreadable)
	if err := f.Bind(t.Context(), wsA, 0, Binding{}); err != nil {
		t.Fatal(err)
	}
	f.put(bindKey(wsB), f.value(bindKey(wsA)))
	_, err = f.Binding(wsB)
	wantIs(t, err, ErrUnreadable)
	f.put(lastKey, []byte("x"))
	_, _, err = f.Submit(t.Context(), Request{Workspace: wsA, Specs: []string{"bar"}})
	wantIs(t, err, ErrUnreadable)
}

// What is read is what would be written, whatever the bytes.
func FuzzRecord(f *testing.F) {
	request, err := encode(full())
	if err != nil {
		f.Fatal(err)
	}
	binding, err := encode(Binding{Workspace: wsA, Rev: 3, Python: "p", Base: base1, Iso: iso1, Layers: []string{layer1}, Locks: []string{lock1}, Requests: []string{full().ID}})
	if err != nil {
		f.Fatal(err)
	}
	answer, err := encode(memo{lock1, start})
	if err != nil {
		f.Fatal(err)
	}
	for _, b := range [][]byte{request, binding, answer, {}, []byte(`{"schema":2,"value":{}}`), []byte(`{"schema":1,"value":null}`)} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		again[Request](t, b)
		again[Binding](t, b)
		again[memo](t, b)
	})
}

func again[T any, P checked[T]](t *testing.T, b []byte) {
	v, err := decode[T, P](b)
	if err != nil {
		if !errors.Is(err, ErrUnreadable) {
			t.Errorf("%q: %v", b, err)
		}
		return
	}
	if written, err := encode[T, P](v); err != nil || !bytes.Equal(written, b) {
		t.Errorf("%q was read, and is written as %q: %v", b, written, err)
	}
}
