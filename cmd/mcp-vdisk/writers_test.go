package main_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Many who change the same file at once: no change is lost without its author
// being told.

// client makes one call after the other: it is given the result of its last one,
// nil at first, and returns the next, no tool at its end.
type client func(last *result) (tool string, args object)

// together runs clients side by side over one connection, until all have ended. It
// returns how long each call took.
func (s *server) together(list ...client) (took []time.Duration) {
	s.t.Helper()
	asked := map[string]int{}
	began := map[string]time.Time{}
	next := func(i int, last *result) {
		if tool, args := list[i](last); tool != "" {
			now := time.Now()
			id := s.askCall(tool, args)
			asked[id], began[id] = i, now
		}
	}
	for i := range list {
		next(i, nil)
	}
	for len(asked) > 0 {
		m, ok := s.await(patience, func(m message) bool { _, ours := asked[string(m.ID)]; return ours && m.Method == "" })
		if !ok {
			s.t.Fatalf("%d calls were not answered; stderr: %s", len(asked), s.words())
		}
		id, r := string(m.ID), m.result(s.t)
		i := asked[id]
		took = append(took, m.at.Sub(began[id]))
		delete(asked, id)
		next(i, &r)
	}
	return took
}

// current is the version that a conflict names.
func (r result) current(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile(`^VERSION_CONFLICT: \S+ is at (v[0-9]+), not v[0-9]+\n`).FindStringSubmatch(r.Text)
	if m == nil {
		t.Fatalf("not a conflict that names the version: %s", r.Text)
	}
	return m[1]
}

// Twenty clients each add a line to one file: by reading it and writing it with
// if_version, again when another was first; by mode append; by mode replace.
func TestNoEditOfOneFileIsLost(t *testing.T) {
	t.Parallel()
	const editors = 20
	lineOf := func(i int) string { return fmt.Sprintf("line of %d\n", i) }
	for name, editor := range map[string]func(i int, conflicts *int) client{
		"read and if_version": func(i int, conflicts *int) client {
			return func(last *result) (string, object) {
				switch {
				case last == nil || last.IsError:
					if last != nil {
						*conflicts++
					}
					return "read_file", object{"path": "f"}
				case last.Facts["more"] == nil: // it is a write's
					return "", nil
				}
				text, _, _ := strings.Cut(last.Text, "end\n")
				return "write_file", object{"path": "f", "content": text + lineOf(i) + "end\n", "if_version": last.Facts["version"]}
			}
		},
		"append": func(i int, _ *int) client {
			return func(last *result) (string, object) {
				if last != nil {
					return "", nil
				}
				return "write_file", object{"path": "f", "content": lineOf(i), "mode": "append"}
			}
		},
		"replace": func(i int, _ *int) client {
			return func(last *result) (string, object) {
				if last != nil {
					return "", nil
				}
				return "write_file", object{"path": "f", "old_text": "end\n", "content": lineOf(i) + "end\n", "mode": "replace"}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			state := newState(t)
			s := serve(t, state)
			s.hello()
			s.ok("write_file", object{"path": "f", "content": "end\n"})
			list, conflicts := make([]client, editors), 0
			for i := range list {
				edit := editor(i, &conflicts)
				list[i] = func(last *result) (string, object) {
					if last != nil && last.IsError && !strings.HasPrefix(last.Text, "VERSION_CONFLICT: ") {
						t.Fatalf("client %d: %s", i, last.Text)
					}
					return edit(last)
				}
			}
			s.together(list...)
			s.end()
			got := slices.Sorted(strings.Lines(string(contents(t, state)["f"].data)))
			want := []string{"end\n"}
			for i := range editors {
				want = append(want, lineOf(i))
			}
			if slices.Sort(want); !slices.Equal(got, want) {
				t.Errorf("the file holds %q", got)
			}
			if n := len(look(t, state).commits); n != editors+2 {
				t.Errorf("%d commits", n)
			}
			t.Logf("%d edits, %d conflicts", editors, conflicts)
		})
	}
}

// Twenty writes are sent at once, each with the version that the one before it
// would make. Whichever land, each landed on the version that it named; the
// others are conflicts.
func TestAChainOfPipelinedWrites(t *testing.T) {
	t.Parallel()
	state := newState(t)
	s := serve(t, state)
	s.hello()
	n, landed, conflicts := 5*rounds(40), 0, 0
	seq := 2
	s.ok("write_file", object{"path": "f", "content": "first"})
	for round := range n {
		var ids []string
		for i := range 20 {
			ids = append(ids, s.askCall("write_file", object{"path": "f", "content": fmt.Sprintf("%d.%d", round, i), "if_version": fmt.Sprintf("v%d", seq+i)}))
		}
		versions := map[int]int{} // that were made, and by which write
		for i, id := range ids {
			r := s.answer(id).result(t)
			if r.IsError {
				conflicts++
				r.current(t)
				continue
			}
			v, _ := strconv.Atoi(strings.TrimPrefix(r.Facts["version"].(string), "v"))
			if v != seq+i+1 {
				t.Errorf("write %d of round %d, on v%d, made v%d", i, round, seq+i, v)
			}
			versions[v] = i
		}
		// The first is on the version that there is, and without a gap from there on.
		if len(versions) == 0 || len(versions) != slices.Max(slices.Collect(maps.Keys(versions)))-seq {
			t.Fatalf("round %d began at v%d and made %v", round, seq, versions)
		}
		landed += len(versions)
		seq += len(versions)
		want := fmt.Sprintf("%d.%d", round, versions[seq])
		if r := s.ok("read_file", object{"path": "f"}); !strings.HasPrefix(r.Text, want) || r.Facts["version"] != fmt.Sprintf("v%d", seq) {
			t.Fatalf("round %d: want %s at v%d, the file is %s", round, want, seq, r.Text)
		}
	}
	s.end()
	if d := look(t, state); len(d.commits) != landed+2 {
		t.Errorf("%d commits, and %d writes landed", len(d.commits), landed)
	}
	t.Logf("%d rounds of 20 writes: %d landed, %d conflicts", n, landed, conflicts)
}

// Eight clients count in one file, each by reading it and writing the next number
// with if_version.
func TestACounterOfEightWriters(t *testing.T) {
	t.Parallel()
	state := newState(t)
	s := serve(t, state)
	s.hello()
	s.ok("write_file", object{"path": "counter", "content": "0\n"})
	each, counted, conflicts, told := max(rounds(500), 10), 0, 0, 0
	var list []client
	for range 8 {
		left := each
		// From a conflict the client takes version and content that it tells.
		try := func(n int, version any) (string, object) {
			return "write_file", object{"path": "counter", "content": fmt.Sprintf("%d\n", n+1), "if_version": version}
		}
		list = append(list, func(last *result) (string, object) {
			switch {
			case last == nil:
			case last.IsError:
				conflicts++
				v := last.current(t)
				if m := regexp.MustCompile(`(?m)^(\d+)$`).FindStringSubmatch(last.Text); m != nil {
					told++
					n, _ := strconv.Atoi(m[1])
					if want := fmt.Sprintf("v%d", n+2); v != want { // the disk's other commits are its making and the 0
						t.Errorf("a conflict tells %s, and %d, which was %s", v, n, want)
					}
					return try(n, v)
				}
			case last.Facts["more"] != nil: // read
				n, err := strconv.Atoi(strings.SplitN(last.Text, "\n", 2)[0])
				if err != nil {
					t.Fatalf("the counter holds %s", last.Text)
				}
				return try(n, last.Facts["version"])
			default: // written
				counted++
				if left--; left == 0 {
					return "", nil
				}
			}
			return "read_file", object{"path": "counter"}
		})
	}
	s.together(list...)
	s.end()
	if got := string(contents(t, state)["counter"].data); counted != 8*each || got != fmt.Sprintf("%d\n", counted) {
		t.Errorf("%d increments were acknowledged, the counter is %s", counted, got)
	}
	must(t, state, "audit", "verify")
	t.Logf("8 writers: %d increments, %d conflicts, after %d of which the writer went on from what it told", counted, conflicts, told)
}
