package main

import (
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// A daemon counts what waits for a person, and does not stay for it.
func TestWaiting(t *testing.T) {
	h := newTrialHub(t)
	want := func(waiting int) {
		t.Helper()
		n, err := h.waiting()
		if err != nil || n != waiting || h.atWork(t.Context()) {
			t.Errorf("%d wait, %v; at work: %t", n, err, h.atWork(t.Context()))
		}
	}
	want(0)
	q, err := queue.Open(h.st.db, queue.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r, _, err := q.Submit(t.Context(), queue.Request{Workspace: "3f2c9a1e-6a5b-4c7d-8e9f-0a1b2c3d4e5f", Specs: []string{"pandas"}})
	if err != nil {
		t.Fatal(err)
	}
	want(0) // nobody has told where packages are
	_, err = q.Move(t.Context(), r.ID, queue.Received, func(r *queue.Request) error {
		r.State, r.Lock = queue.PendingApproval, "68d325cf03b5e175"
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want(1)
	d := &daemon{hub: h.hub, idle: 1}
	if !d.unneeded(t.Context(), 0) {
		t.Error("the daemon stays for a request that waits for a person")
	}
}
