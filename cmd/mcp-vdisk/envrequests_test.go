package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// seedQueue puts requests into a state directory that nobody has open.
func seedQueue(t testing.TB, state string, put func(q *queue.Queue)) {
	t.Helper()
	dir := filepath.Join(state, "db")
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	db, err := audit.OpenDB(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	q, err := queue.Open(db, queue.Options{})
	if err != nil {
		t.Fatal(err)
	}
	put(q)
	err = db.Close()
	if isRoot() { // or its user could not open what we made
		uid, gid := ownerOf(info), int(info.Sys().(*syscall.Stat_t).Gid)
		err = errors.Join(err, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, uid, gid))
		}))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// asked is a request that waits for a person, or goes on from there to another state.
func asked(t testing.TB, q *queue.Queue, r queue.Request, to queue.State, change func(*queue.Request)) queue.Request {
	t.Helper()
	ctx := context.Background()
	r, _, err := q.Submit(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	move := func(from, to queue.State, change func(*queue.Request)) {
		t.Helper()
		r, err = q.Move(ctx, r.ID, from, func(r *queue.Request) error {
			r.State = to
			change(r)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if to == queue.Rejected {
		move(queue.Received, to, change)
		return r
	}
	move(queue.Received, queue.PendingApproval, func(r *queue.Request) { r.Lock = seededLock })
	if to != queue.PendingApproval {
		move(queue.PendingApproval, to, change)
	}
	return r
}

const (
	seededLock = "68d325cf03b5e175"
	strangeWS  = "3f2c9a1e-6a5b-4c7d-8e9f-0a1b2c3d4e5f"
)

// uuidOf is that of a disk.
func (e *envTest) uuidOf(disk string) string {
	e.t.Helper()
	var f struct{ UUID string }
	if err := json.Unmarshal([]byte(e.must("image", "show", disk, "--json").stdout), &f); err != nil || f.UUID == "" {
		e.t.Fatalf("%q, %v", f.UUID, err)
	}
	return f.UUID
}

// seeded is a state directory with a disk "work" and four requests: of work one that waits
// and one that was rejected, of a disk that nobody knows one that waits and one that was
// denied.
func seeded(t *testing.T, daemon bool) (e *envTest, list []queue.Request) {
	t.Helper()
	e = newEnvs(t, daemon, indextest.Options{})
	e.must("image", "create", "work")
	ws := e.uuidOf("work")
	stopDaemon(t, e.state)
	seedQueue(t, e.state, func(q *queue.Queue) {
		list = append(list,
			asked(t, q, queue.Request{Workspace: ws, Specs: []string{"textract>=1"}, Client: "claude-code", Reason: "tables"}, queue.PendingApproval, nil),
			asked(t, q, queue.Request{Workspace: ws, Specs: []string{"pandas==1.5", "seaborn"}, Client: "claude-code", Reason: "a chart\x1b[2J"}, queue.Rejected, func(r *queue.Request) {
				r.Failure = &queue.Failure{Code: "conflict_with_base", Sentence: "pandas 1.5 needs numpy<2, and the base has 9.0", Hint: "ask for pandas>=2",
					Blocking: &queue.Blocking{Name: "numpy", Version: "9.0", PinnedBy: "base", NeededBy: "pandas 1.5", Wanted: "<2"}}
			}),
			asked(t, q, queue.Request{Workspace: strangeWS, Specs: many(18), Client: "\x1b]0;evil\x07 \u202eclient " + strings.Repeat("漢字", 30),
				Wheel: &queue.Upload{File: "a\nb.whl", SHA256: strings.Repeat("0", 64), Path: "/workspace/a\nb.whl"}}, queue.PendingApproval, nil),
			asked(t, q, queue.Request{Workspace: strangeWS, Specs: []string{"leftpad"}}, queue.Denied, func(r *queue.Request) {
				r.Decision = &queue.Decision{By: "operator uid 1000 at /dev/pts/3", How: "terminal", Note: "use str.rjust", Lock: seededLock}
			}),
		)
	})
	return e, list
}

func many(n int) (list []string) {
	for i := range n {
		list = append(list, "package-"+string(rune('a'+i)))
	}
	return list
}

type requestFacts struct {
	ID, Disk, Workspace, State, Lock, Layer, Card string
	Specs, Choices                                []string
	NotListed                                     []string `json:"not_listed"`
	Decision                                      *queue.Decision
	Failure                                       *queue.Failure
}

func (e *envTest) requests(flags ...string) (list []requestFacts) {
	e.t.Helper()
	out := e.must(append([]string{"env", "requests", "--json"}, flags...)...)
	if err := json.Unmarshal([]byte(out.stdout), &list); err != nil {
		e.t.Fatalf("%v\n%s", err, out.stdout)
	}
	return list
}

// The list has what is open, newest last, in few columns and without a character that a
// terminal would take for its own.
func TestEnvRequests(t *testing.T) {
	modes(t, func(t *testing.T, daemon bool) {
		e, want := seeded(t, daemon)
		open := e.requests()
		if len(open) != 2 || open[0].ID != want[0].ID || open[0].Disk != "work" || open[0].State != "pending_approval" || open[1].ID != want[2].ID || open[1].Disk != strangeWS {
			t.Errorf("%+v", open)
		}
		if all := e.requests("--all"); len(all) != 4 || all[1].Failure.Blocking.Name != "numpy" || all[3].Decision.Note != "use str.rjust" {
			t.Errorf("%+v", all)
		}
		if own := e.requests("--all", "--image", "work"); len(own) != 2 || own[0].ID != want[0].ID || own[1].ID != want[1].ID {
			t.Errorf("%+v", own)
		}
		if daemon {
			e.must("daemon", "status").says(t, "requests 2 wait for a person; mcp-vdisk env requests shows them")
			e.must("daemon", "status", "--json").says(t, `"requests_waiting": 2`)
			e.run("doctor").says(t, "requests    2 wait for a person")
		}
		out := e.must("env", "requests", "--all")
		out.says(t, "work: textract>=1\n", "pending_approval", `"claude-code"`, "6 d", strangeWS+": ", "and 1", "work: pandas==1.5, seaborn\n", "denied")
		tame(t, out.stdout)
		for line := range strings.Lines(out.stdout) {
			if n := policy.Columns(strings.TrimSuffix(line, "\n")); n > 80 || n > 72 && !strings.HasPrefix(line, want[0].ID[:8]) {
				t.Errorf("%d columns: %q", n, line)
			}
		}
		if lines := strings.Split(strings.TrimSpace(out.stdout), "\n"); len(lines) != 9 || !strings.HasPrefix(lines[0], "ID ") {
			t.Errorf("%q", lines)
		}
	})
}

// tame fails for what a terminal would act on.
func tame(t testing.TB, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("%U is shown", r)
		}
	}
}

func TestEnvRequestsEmpty(t *testing.T) {
	modes(t, func(t *testing.T, daemon bool) {
		e := newEnvs(t, daemon, indextest.Options{})
		if out := e.must("env", "requests"); out.stdout != "no request for packages is open; --all shows those that are closed\n" {
			t.Errorf("%q", out.stdout)
		}
		e.must("image", "create", "work")
		if out := e.must("env", "requests", "--all", "--image", "work"); out.stdout != "nobody has asked for packages on work yet\n" {
			t.Errorf("%q", out.stdout)
		}
		if list := e.requests(); list == nil || len(list) != 0 {
			t.Errorf("%v", list)
		}
	})
}

// One that is closed shows what was asked, and what became of it.
func TestEnvRequestShown(t *testing.T) {
	e, list := seeded(t, false)
	out := e.must("env", "requests", strings.ToLower(list[1].ID))
	out.says(t, "Request    "+list[1].ID, `"work"`, "Asks for   pandas==1.5, seaborn", "> a chart[2J", "There is nothing to decide.",
		"State      rejected since 20", "Failure    conflict_with_base: pandas 1.5 needs numpy<2, and the base", "Hint       ask for pandas>=2",
		"Blocking   numpy 9.0, pinned by base, needed by pandas 1.5, wanted <2")
	tame(t, out.stdout)
	for line := range strings.Lines(out.stdout) {
		if n := policy.Columns(strings.TrimSuffix(line, "\n")); n > 72 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	out = e.must("env", "requests", list[1].ID, "--json")
	var f requestFacts
	if err := json.Unmarshal([]byte(out.stdout), &f); err != nil || f.State != "rejected" || f.Disk != "work" || len(f.Choices) > 0 || !strings.Contains(f.Card, "pandas==1.5") {
		t.Errorf("%v %+v", err, f)
	}
}

// What cannot be decided is refused before anybody is asked for a word.
func TestEnvDecideRefuses(t *testing.T) {
	modes(t, func(t *testing.T, daemon bool) {
		e, list := seeded(t, daemon)
		together := regexp.MustCompile(`^(0.)`).FindString(list[0].ID) // all begin so
		for _, verb := range []string{"approve", "deny"} {
			e.fails(4, "env", verb, list[1].ID).says(t, "request "+list[1].ID+" is closed already: rejected", "hint: mcp-vdisk env requests "+list[1].ID)
			e.fails(4, "env", verb, list[3].ID).says(t, "was denied already, by operator uid 1000 at /dev/pts/3")
			e.fails(3, "env", verb, "7ZZZZZZZZZ").says(t, "no request begins with 7ZZZZZZZZZ")
			e.fails(2, "env", verb, together).says(t, "4 requests begin with "+together, "work: textract>=1", "hint: say more of the id")
			for _, bad := range []string{"", "x y", "../x", "01KBU", "\x1b[2J", strings.Repeat("0", 27), "é"} {
				e.fails(2, "env", verb, bad).says(t, "is not the id of a request")
			}
			e.fails(2, "env", verb, "01", "--note", "two\nlines").says(t, "--note")
			e.fails(2, "env", verb, "01", "--note", strings.Repeat("x", 401)).says(t, "--note has 401 bytes")
			e.fails(2, "env", verb, "01", "--note", "\xff").says(t, "--note")
			e.fails(2, "env", verb, "01", "--operator-token", "")
		}
		e.fails(4, "env", "deny", list[0].ID).says(t, list[0].ID+"  work: textract>=1", "standard input is no terminal")
		e.fails(2, "env", "approve", "01", "--lock", "beef").says(t, "--lock")
		e.fails(2, "env", "approve", "01", "--lock", "")
		e.fails(2, "env", "requests", "01", "--all")
		e.fails(2, "env", "requests", "01", "--image", "work")
		e.fails(2, "env", "requests", "--image", "")
		e.fails(3, "env", "requests", "--image", "nothing")
		e.fails(2, "env", "rebase", "work", "--approve", "beef").says(t, "--approve")
		e.fails(2, "env", "rebase", "work", "--approve", "")
		e.fails(2, "env", "rebase", "")
		e.fails(3, "env", "rebase", "nothing").says(t, "there is no disk nothing")
		e.fails(4, "env", "rebase", "work", "--approve", seededLock).says(t, "standard input is no terminal")
		if open := e.requests(); len(open) != 2 {
			t.Errorf("%+v", open)
		}
	})
}
