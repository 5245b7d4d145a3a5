package audit

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

// Commits gives what tells of commits, newest first, down to the beginning of a
// call, and nothing else.
func TestCommits(t *testing.T) {
	f := newFixture(t, Options{})
	record := func(ev Event, call, before, after string, out *Out) {
		f.append(disk, Entry{Record: Record{Ev: ev, Call: call, Hb: before, Ha: after, Out: out}})
	}
	id := func(n int) string { return strings.Repeat(name(n), 2) }
	done := &Out{OK: true}
	record(EvImageCreate, "", "", "", nil)
	record(EvCallIntent, "call-a", "", "", nil)
	record(EvCallIntent, "call-b", "", "", nil)
	record(EvCallRead, "call-r", "", "", done)
	record(EvCallOutcome, "call-b", id(2), id(3), done) // was second, and is told first
	record(EvCallOutcome, "call-a", id(1), id(2), done)
	record(EvFsck, "", id(9), id(9), done)
	record(EvImagePut, "call-p", "", "", nil)
	record(EvImagePut, "call-p", id(3), id(4), done)
	record(EvLeaseAdopt, "", id(7), id(7), nil)
	record(EvCallIntent, "call-c", "", "", nil)
	record(EvCallOutcome, "call-c", id(7), id(7), done) // changed nothing
	record(EvCallIntent, "call-d", "", "", nil)
	f.append("other", Entry{Record: Record{Ev: EvCallOutcome, Call: "call-x", Hb: id(1), Ha: id(5), Out: done}})

	seen := func(call string, most int) (list []string) {
		t.Helper()
		err := f.log.Commits(context.Background(), disk, call, func(r Record) bool {
			if r.Stream != disk {
				t.Errorf("a record of %s", r.Stream)
			}
			list = append(list, string(r.Ev)+" "+r.Ha)
			return len(list) < most && r.Ha != ""
		})
		if err != nil {
			t.Error(err)
		}
		return list
	}
	all := []string{"lease.adopt " + id(7), "image.put " + id(4), "call.outcome " + id(2), "call.outcome " + id(3)}
	for _, c := range []struct {
		call string
		most int
		want []string
	}{
		{"", 99, all},
		{"", 2, all[:2]},
		{"nobody", 99, all},
		{"call-d", 99, []string{"call.intent "}},
		{"call-p", 99, slices.Concat(all[:2], []string{"image.put "})},
		{"call-a", 99, slices.Concat(all, []string{"call.intent "})}, // past the intent of call-b
		{"call-b", 99, slices.Concat(all, []string{"call.intent "})},
	} {
		if got := seen(c.call, c.most); !slices.Equal(got, c.want) {
			t.Errorf("down to %q: %q, want %q", c.call, got, c.want)
		}
	}
	if err := f.log.Commits(context.Background(), "unknown", "", func(Record) bool { t.Error("a record"); return true }); err != nil {
		t.Error(err)
	}
	if err := f.log.Commits(context.Background(), "a/b", "", nil); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a bad name: %v", err)
	}
}
