package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// shelf is a log with two streams whose records alternate in time.
func shelf(t *testing.T) (*fixture, time.Time) {
	clock := newFakeClock()
	f := newFixture(t, clock.options())
	start := clock.now()
	add := func(stream string, e Entry) {
		f.note(stream, e)
		clock.pass(time.Second)
	}
	for i := range 4 {
		add(disk, Entry{Record: Record{Ev: EvCallOutcome, Call: name(i), Tool: "write_file", Act: "alice", Dec: "allow",
			Args: Facts{"path": fmt.Sprintf("/workspace/src/f%d.py", i), "bytes": i, "recursive": i == 2},
			Out:  &Out{OK: true, Bytes: int64(i)}}})
		add(StreamSystem, Entry{Record: Record{Ev: EvConfigSet, Act: "root \"quoted\"", Args: Facts{"key": "x"}}})
	}
	add(disk, Entry{Record: Record{Ev: EvCallRefused, Call: "r", Tool: "delete_file", Act: "bob", Dec: "deny", Err: "PATH_ESCAPE",
		Reason: "alice said write_file", Args: Facts{"path": "../x"}}})
	add(disk, Entry{
		Record:  Record{Ev: EvCallOutcome, Call: "s", Tool: "run_script", Act: "bob", Dec: "allow", Args: Facts{"language": "bash"}, Out: &Out{Code: "X"}},
		Changes: []ChangeFact{{Path: "/workspace/out/a.csv", Kind: "created"}, {Path: "/workspace/b.csv", Kind: "deleted"}},
	})
	return f, start
}

func TestQuery(t *testing.T) {
	f, start := shelf(t)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	match := func(pairs ...string) map[string][]string {
		m := map[string][]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = append(m[pairs[i]], pairs[i+1])
		}
		return m
	}
	cases := map[string]struct {
		q    Query
		want string
	}{
		"one stream":                 {Query{Stream: disk}, "d1 d2 d3 d4 d5 d6"},
		"all streams by time":        {Query{}, "d1 s1 d2 s2 d3 s3 d4 s4 d5 d6"},
		"newest first":               {Query{Reverse: true}, "d6 d5 s4 d4 s3 d3 s2 d2 s1 d1"},
		"limit gives the oldest":     {Query{Limit: 3}, "d1 s1 d2"},
		"limit, newest first":        {Query{Limit: 3, Reverse: true}, "d6 d5 s4"},
		"limit to the newest":        {Query{Limit: 3, Newest: true}, "s4 d5 d6"},
		"limit above what is there":  {Query{Limit: 100, Newest: true, Stream: disk}, "d1 d2 d3 d4 d5 d6"},
		"from and to are inclusive":  {Query{Stream: disk, From: 2, To: 4}, "d2 d3 d4"},
		"to, newest first":           {Query{Stream: disk, From: 2, To: 4, Reverse: true}, "d4 d3 d2"},
		"from beyond the end":        {Query{Stream: disk, From: 99}, ""},
		"since is inclusive":         {Query{Since: at(6)}, "d4 s4 d5 d6"},
		"until is inclusive":         {Query{Until: at(2)}, "d1 s1 d2"},
		"since and until":            {Query{Since: at(2), Until: at(3), Reverse: true}, "s2 d2"},
		"a field":                    {Query{Match: match("tool", "delete_file")}, "d5"},
		"a field is not a substring": {Query{Match: match("tool", "delete")}, ""},
		"a value elsewhere":          {Query{Match: match("act", "alice")}, "d1 d2 d3 d4"},
		"same field is or":           {Query{Match: match("tool", "delete_file", "tool", "run_script")}, "d5 d6"},
		"different fields are and":   {Query{Match: match("act", "bob", "dec", "deny")}, "d5"},
		"no such value":              {Query{Match: match("act", "carol")}, ""},
		"an escaped value":           {Query{Match: match("act", `root "quoted"`), Limit: 1}, "s1"},
		"a number":                   {Query{Match: match("n", "3")}, "d3 s3"},
		"a fact":                     {Query{Match: match("args.path", "/workspace/src/f1.py")}, "d2"},
		"a number among the facts":   {Query{Match: match("args.bytes", "3")}, "d4"},
		"a boolean among the facts":  {Query{Match: match("args.recursive", "true")}, "d3"},
		"the outcome":                {Query{Match: match("out.ok", "false")}, "d6"},
		"the code of the outcome":    {Query{Match: match("out.code", "X")}, "d6"},
		"behind the changes":         {Query{Match: match("out.changed", "2")}, "d6"},
		"a digest behind them":       {Query{Match: match("out.changes_digest", "none")}, ""},
		"glob of a path":             {Query{PathGlob: "/workspace/src/*.py"}, "d1 d2 d3 d4"},
		"glob from the root":         {Query{PathGlob: "src/f[12].py"}, "d2 d3"},
		"glob at any depth":          {Query{PathGlob: "*.csv"}, "d6"},
		"glob of a change":           {Query{PathGlob: "/workspace/b.*"}, "d6"},
		"glob of a refused path":     {Query{PathGlob: "**/x"}, "d5"},
		"glob of nothing":            {Query{PathGlob: "nothing/**"}, ""},
		"a stream that is not there": {Query{Stream: "nobody"}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f.T = t
			var got []string
			for _, r := range f.query(c.q) {
				got = append(got, fmt.Sprintf("%c%d", map[string]rune{disk: 'd', StreamSystem: 's'}[r.Stream], r.N))
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %v, want %s", got, c.want)
			}
		})
	}
	f.T = t
}

func TestQueryRefusesWhatRecordsDoNotHave(t *testing.T) {
	f := newFixture(t, Options{})
	for name, q := range map[string]Query{
		"unknown field":     {Match: map[string][]string{"user": {"x"}}},
		"object as a field": {Match: map[string][]string{"args": {"x"}}},
		"below a string":    {Match: map[string][]string{"tool.name": {"x"}}},
		"empty name below":  {Match: map[string][]string{"args.": {"x"}}},
		"bad glob":          {PathGlob: "[a"},
		"bad stream":        {Stream: "a/b"},
	} {
		t.Run(name, func(t *testing.T) {
			err := f.log.Query(context.Background(), q, func([]byte, Record) error { return nil })
			if !errors.Is(err, ErrQuery) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestQueryEndsWithTheErrorOfItsFunction(t *testing.T) {
	f, _ := shelf(t)
	enough := errors.New("enough")
	for _, q := range []Query{{}, {Newest: true, Limit: 3}} {
		calls := 0
		err := f.log.Query(context.Background(), q, func([]byte, Record) error { calls++; return enough })
		if err != enough || calls != 1 {
			t.Errorf("%v after %d calls", err, calls)
		}
	}
}

func TestQuerySeesWhatWasNotedBefore(t *testing.T) {
	f := newFixture(t, Options{})
	for i := range 50 {
		r := f.note(disk, outcomeOf(name(i)))
		if list := f.query(Query{Stream: disk, Limit: 1, Reverse: true}); list[0].N != r.N {
			t.Fatalf("newest is %d, noted %d", list[0].N, r.N)
		}
	}
}

// What the quick look at the bytes refuses is never what would match.
func TestPrefilterAgreesWithTheExactMatch(t *testing.T) {
	var lines [][]byte
	values := []string{"a", `a"b`, "17", "true", "\x01", "é", "", "write_file"}
	for _, r := range samples() {
		lines = append(lines, r.append(nil))
	}
	for _, v := range values {
		r := Record{V: 1, N: 17, Ev: EvCallRead, Tool: v, Args: Facts{"a": v, "n": 17, "b": true}}
		lines = append(lines, r.append(nil))
	}
	hits := 0
	for _, field := range []string{"tool", "n", "args.a", "args.n", "args.b", "act"} {
		for _, value := range append(values, "x-client") {
			m, err := Query{Match: map[string][]string{field: {value}}}.compile()
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range lines {
				var v view
				if err := v.scan(line); err != nil {
					t.Fatal(err)
				}
				if exact := m.match(&v); exact {
					hits++
					if !m.may(line) {
						t.Errorf("%s=%q is refused in %s", field, value, line)
					}
				}
			}
		}
	}
	if hits < 20 || !slices.Contains(values, "") {
		t.Errorf("%d hits", hits)
	}
}
