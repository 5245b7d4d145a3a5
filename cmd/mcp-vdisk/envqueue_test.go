package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// Without its queue a state serves scripts, takes no requests, and says why.
func TestAQueueThatCannotBeOpened(t *testing.T) {
	h := newHub(t)
	h.asked.Do(func() { h.queueErr = queue.ErrUnavailable })
	_, env, err := h.sandbox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h.resume(t.Context(), env)
	h.pickUp(t.Context())
	if list := h.queueProblems(); len(list) != 1 || !strings.Contains(list[0], queue.ErrUnavailable.Error()) {
		t.Errorf("problems: %q", list)
	}
	if list, err := h.bindings(env); err != nil || len(list) != 0 {
		t.Error(list, err)
	}
	if _, err := env.Status(t.Context(), ""); err != nil {
		t.Error(err)
	}
}

// Only the environment of the hub has the queue.
func TestOneEnvironmentHasTheQueue(t *testing.T) {
	h := newHub(t)
	if o := h.envOptions(nil); o.Queue != nil || o.Record != nil || o.Waiting != nil {
		t.Errorf("another environment has it: %+v", o)
	}
	first := h.requests()
	if first == nil || h.requests() != first || len(h.queueProblems()) != 0 {
		t.Error(h.queueErr)
	}
}

// `audit query` finds deeds by the disk and by what they are.
func TestDeedsAreFound(t *testing.T) {
	h := newHub(t)
	uuids := map[string]string{}
	for _, name := range []string{"one", "two"} {
		d, err := h.open(t.Context(), want{ref: front.ImageRef{Name: name}, create: true, set: h.set})
		if err != nil {
			t.Fatal(err)
		}
		uuids[name] = d.info.UUID
		for _, kind := range []pyenv.DeedKind{pyenv.DeedRequest, pyenv.DeedDecide, pyenv.DeedBuild, pyenv.DeedBind} {
			deed := deedOf(kind)
			deed.Request.Workspace = d.info.UUID
			if err := h.recordDeed(t.Context(), deed); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.release(); err != nil {
			t.Fatal(err)
		}
	}
	query := func(disk string, match map[string][]string) (lines []string) {
		t.Helper()
		args, err := json.Marshal(queryArgs{Match: match, Output: "ndjson", All: disk == ""})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		b := &back{hub: h, st: h.st, set: h.set, log: h.log, stdout: &out, req: front.Request{Verb: "audit.query", Image: front.ImageRef{Name: disk}, Args: args}}
		if err := backQuery(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(out.String()), "\n")
	}
	for ev, says := range map[string]string{"env.request": `"reason":`, "env.decide": `"verdict":"approve"`, "env.build": `"layer":`, "env.bind": `"rev":3`} {
		got := query("one", map[string][]string{"ev": {ev}})
		if len(got) != 1 || !strings.Contains(got[0], says) || !strings.Contains(got[0], uuids["one"]) {
			t.Errorf("%s of one disk: %q", ev, got)
		}
		if got := query("", map[string][]string{"ev": {ev}}); len(got) != 2 {
			t.Errorf("%s of all: %q", ev, got)
		}
	}
	if got := query("two", map[string][]string{"call": {deedOf(pyenv.DeedBind).Request.Call}}); len(got) != 4 {
		t.Errorf("of the call: %q", got)
	}
}

// What was recorded of an error of the queue has a code.
func TestQueueCodes(t *testing.T) {
	for _, err := range []error{queue.ErrConflict, queue.ErrFull, queue.ErrNotFound, queue.ErrUnreadable, queue.ErrInvalid, queue.ErrUnavailable} {
		if codeOf(errors.Join(errors.New("x"), err)) == "" {
			t.Error(err)
		}
	}
}
