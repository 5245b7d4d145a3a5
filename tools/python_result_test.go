package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	someID = "01KB7V9Q4M0000000000000000"
	aBase  = "base-0011223344556677"
	aLayer = "x-8899aabbccddeeff"
)

// someRequest is one for two packages; change makes it what a test needs.
func someRequest(s queue.State, change func(*queue.Request)) queue.Request {
	at := time.Date(2026, 11, 29, 9, 0, 0, 0, time.UTC)
	r := queue.Request{
		ID: someID, Workspace: "6f9619ff-8b86-4d01-b42d-00cf4fc964ff", Specs: []string{"beautifulsoup4", "foo>=1"}, Reason: "to read pages",
		Session: "s", Client: "c 1", Call: "k", State: s, Attempt: 1, Created: at, Updated: at,
	}
	if change != nil {
		change(&r)
	}
	return r
}

// someStatus is that of a workspace which has what someRequest asks for.
func someStatus() pyenv.Status {
	return pyenv.Status{
		Python: "/opt/mcp/python/bin/python3", Version: "3.11.2", BaseReady: true, Base: aBase, Layers: []string{aBase, aLayer},
		Packages: []pyenv.Package{
			{Name: "bar", Version: "1.0", Layer: aBase, Modules: []string{"bar"}},
			{Name: "beautifulsoup4", Version: "4.13.0", Layer: aLayer, Modules: []string{"bs4"}},
			{Name: "foo", Version: "1.2", Layer: aLayer, Modules: []string{"foo"}},
			{Name: "a-soupsieve", Version: "2.7", Layer: aLayer, Modules: []string{"soupsieve"}},
		},
	}
}

func finding(rule, pkg, sentence string) queue.Finding {
	return queue.Finding{Rule: rule, Package: pkg, Sentence: sentence, Tier: "ask"}
}

// requestCases are all states, with what belongs to them.
var requestCases = map[string]func() Result{
	"ready": func() Result {
		return requestResult(someRequest(queue.Ready, func(r *queue.Request) { r.Layer = aLayer }), someStatus(), "")
	},
	"ready-iso": func() Result {
		st := someStatus()
		st.Iso, st.Layers = "iso-0123456789abcdef", []string{"iso-0123456789abcdef"}
		for i := range st.Packages {
			st.Packages[i].Layer = st.Iso
		}
		return requestResult(someRequest(queue.Ready, func(r *queue.Request) { r.Layer, r.Iso = st.Iso, true }), st, "")
	},
	"ready-there": func() Result {
		return requestResult(someRequest(queue.Ready, func(r *queue.Request) { r.Specs = []string{"bar"} }), someStatus(), "")
	},
	"ready-without-status": func() Result {
		return requestResult(someRequest(queue.Ready, func(r *queue.Request) { r.Layer = aLayer }), pyenv.Status{}, "")
	},
	"pending": func() Result {
		return requestResult(someRequest(queue.PendingApproval, func(r *queue.Request) {
			r.Expires = r.Created.Add(queue.PendingFor)
			r.Findings = []queue.Finding{finding("not_listed", "foo", "foo 1.2 is not on the list of what is installed without asking")}
		}), someStatus(), "")
	},
	"pending-iso": func() Result {
		return requestResult(someRequest(queue.PendingApproval, func(r *queue.Request) {
			r.Iso, r.Specs = true, []string{"foo"}
			r.Findings = []queue.Finding{finding("override", "bar", "bar 1.0 of the base becomes 2.0, so the workspace needs a layer of its own in the place of the base; foo 1.2 needs it")}
		}), someStatus(), "--state /srv/state ")
	},
	"pending-many": func() Result {
		return requestResult(someRequest(queue.PendingApproval, func(r *queue.Request) {
			r.Wheel = &queue.Upload{File: "my_pkg-1.0-py3-none-any.whl", Path: "/workspace/dist/my_pkg-1.0-py3-none-any.whl"}
			for i := range 12 {
				r.Findings = append(r.Findings, finding("not_listed", "foo", fmt.Sprintf("package%d 1.0 is not on the list of what is installed without asking", i)))
			}
		}), someStatus(), "")
	},
	"rejected": func() Result {
		return requestResult(someRequest(queue.Rejected, func(r *queue.Request) {
			r.Failure = &queue.Failure{Code: "sdist_only", Sentence: "baz 1.0 comes as source only, and building it would run it", Hint: "ask for foo<1, which does not need it", Blocking: &queue.Blocking{Name: "baz", Version: "1.0", NeededBy: "foo 1.2", Wanted: "baz>=1"}}
		}), someStatus(), "")
	},
	"rejected-findings": func() Result {
		return requestResult(someRequest(queue.Rejected, func(r *queue.Request) {
			r.Findings = []queue.Finding{
				{Rule: "denied_name", Package: "foo", Sentence: `foo 1.2 is never installed here, the operator's catalog says: "it phones home"`, Tier: "reject"},
				finding("not_listed", "baz", "baz 1.0 is not on the list of what is installed without asking"),
			}
		}), someStatus(), "")
	},
	"rejected-conflict": func() Result {
		return requestResult(someRequest(queue.Rejected, func(r *queue.Request) {
			r.Failure = &queue.Failure{Code: "no_solution", Sentence: "no versions fulfil all conditions", Blocking: &queue.Blocking{Name: "bar", Version: "1.0", PinnedBy: aBase, NeededBy: "foo 1.2", Wanted: "bar>=2"}}
		}), someStatus(), "")
	},
	"rejected-not-found": func() Result {
		return requestResult(someRequest(queue.Rejected, func(r *queue.Request) {
			r.Failure = &queue.Failure{Code: "not_found", Sentence: "the index has no project foo", Blocking: &queue.Blocking{Name: "foo"}}
		}), someStatus(), "")
	},
	"denied": func() Result {
		return requestResult(someRequest(queue.Denied, func(r *queue.Request) {
			r.Decision = &queue.Decision{By: "operator uid 1000 at /dev/pts/3", Note: "use \"markdown\"\n\x1b[31mand\u202e nothing else"}
		}), someStatus(), "")
	},
	"denied-without-words": func() Result {
		return requestResult(someRequest(queue.Denied, func(r *queue.Request) { r.Decision = &queue.Decision{By: "operator uid 0"} }), someStatus(), "")
	},
	"failed": func() Result {
		return requestResult(someRequest(queue.Failed, func(r *queue.Request) {
			r.Failure = &queue.Failure{Code: "index_unreachable", Sentence: "the index did not answer", Hint: "look at the network of the host"}
		}), someStatus(), "")
	},
	"failed-probe": func() Result {
		return requestResult(someRequest(queue.Failed, func(r *queue.Request) {
			r.Failure = &queue.Failure{Code: "probe", Sentence: "foo cannot be imported: libnothere.so.1 is missing", Blocking: &queue.Blocking{Name: "foo", Version: "1.2"}}
		}), someStatus(), "")
	},
	"failed-disk-full": func() Result {
		return requestResult(someRequest(queue.Failed, func(r *queue.Request) {
			r.Failure = &queue.Failure{Code: "disk_full", Sentence: "the disk with the Python environments is full"}
		}), someStatus(), "")
	},
	"failed-no-code": func() Result {
		return requestResult(someRequest(queue.Failed, func(r *queue.Request) { r.Failure = &queue.Failure{Code: "Über: code\n", Sentence: "x"} }), someStatus(), "")
	},
	"expired":   func() Result { return requestResult(someRequest(queue.Expired, nil), someStatus(), "") },
	"cancelled": func() Result { return requestResult(someRequest(queue.Cancelled, nil), someStatus(), "") },
	"error-module-name": func() Result {
		return environmentResult(&pyenv.Error{Code: pyenv.ErrModule, Sentence: "docx is the name of a module; its package is python-docx, which is there already", Hint: "import docx"})
	},
	"error-no-base":  func() Result { return environmentResult(&pyenv.Error{Code: pyenv.ErrNoBase, Sentence: "s"}) },
	"error-no-queue": func() Result { return environmentResult(&pyenv.Error{Code: pyenv.ErrNoQueue, Sentence: "s"}) },
	"error-wheel": func() Result {
		return environmentResult(&pyenv.Error{Code: "record_mismatch", Sentence: "the wheel breaks a rule: \"a.py\": its hash is not that of RECORD", Hint: "get the wheel anew"})
	},
	"error-suggestions": func() Result {
		return environmentResult(&pyenv.Error{Code: "import_collision", Sentence: "docx: both bring docx/__init__.py", Blocking: resolve.Blocking{Name: "docx"}, Suggestions: []string{"python-docx is in base"}})
	},
	"error-host": func() Result {
		return environmentResult(&pyenv.Error{Code: pyenv.ErrCatalog, Sentence: "catalog.json cannot be read", Hint: "correct it", Detail: "/root/envs/catalog.json: line 3"})
	},
	"error-disk-full": func() Result {
		return environmentResult(&pyenv.Error{Code: pyenv.ErrDiskFull, Sentence: "the disk with the Python environments is full"})
	},
}

// TestRequestResults: what is said of each state, as a model and a program get it.
func TestRequestResults(t *testing.T) {
	cases := map[string]func() Result{}
	for name, f := range requestCases {
		cases[name] = f
	}
	for s := range doing {
		cases["at-work-"+string(s)] = func() Result { return requestResult(someRequest(s, nil), someStatus(), "") }
	}
	for name, build := range cases {
		t.Run(name, func(t *testing.T) {
			r := build()
			checkAnswer(t, r)
			facts, err := json.MarshalIndent(r.Facts, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("%s\n-- facts\n%s\n", r, unescaped(facts))
			file := filepath.Join("testdata", "python_env", name+".txt")
			if *update {
				if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(got), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			if want := string(mustRead(t, file)); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// unescaped is JSON as it reads: the encoder of Go writes <, > and & in another way.
func unescaped(b []byte) []byte {
	for from, to := range map[string]string{`\u003c`: "<", `\u003e`: ">", `\u0026`: "&"} {
		b = bytes.ReplaceAll(b, []byte(from), []byte(to))
	}
	return b
}

// TestEveryStateIsTold: each state of the queue has an answer, an error when nothing
// comes of the request, and none otherwise.
func TestEveryStateIsTold(t *testing.T) {
	seen, todo := map[queue.State]bool{}, []queue.State{queue.Received}
	for len(todo) > 0 {
		s := todo[0]
		if todo = todo[1:]; seen[s] {
			continue
		}
		seen[s] = true
		todo = append(todo, s.Next()...)
		r := requestResult(someRequest(s, nil), pyenv.Status{}, "")
		fails := s.Closed() && s != queue.Ready
		if r.OK() == fails || fails && !strings.HasPrefix(r.Err.Rule, "env.") {
			t.Errorf("%s: %s", s, r)
		}
		if s.AtWork() && doing[s] == "" {
			t.Errorf("%s: it is not said what is done", s)
		}
		if r.Facts["state"] != string(s) || r.Facts["request_id"] != someID || r.Facts["next"] == "" {
			t.Errorf("%s: %v", s, r.Facts)
		}
		if fails && strings.Contains(r.String(), `"action":"wait"`) {
			t.Errorf("%s: what has ended invites to wait: %s", s, r)
		}
	}
	if len(seen) != 14 {
		t.Errorf("%d states", len(seen))
	}
}

// checkAnswer checks what holds for every answer about packages, whatever is in it.
func checkAnswer(t interface{ Errorf(string, ...any) }, r Result) {
	facts, err := json.Marshal(r.Facts)
	text := r.String()
	if n := len(text) + len(facts); err != nil || n > 4000 {
		t.Errorf("%d bytes, %v: %s\n%s", n, err, text, facts)
	}
	odd := func(c rune) bool { return c != '\n' && (!unicode.IsPrint(c) || unicode.Is(unicode.Bidi_Control, c)) }
	if !utf8.ValidString(text) || strings.ContainsFunc(text, odd) || strings.ContainsFunc(strings.ReplaceAll(string(facts), `\n`, "\n"), odd) {
		t.Errorf("something in it does not show: %q %s", text, facts)
	}
	if strings.Contains(text, "/dev/pts") || strings.Contains(text, "/root") {
		t.Errorf("it tells of the host: %s", text)
	}
}

// hostile are texts as strangers would like to have them shown.
var hostile = rapid.Custom(func(t *rapid.T) string {
	piece := rapid.SampledFrom([]string{
		"foo", "bar>=2", "\x00", "\x1b[2J", "\r\n", "\u202e", "\u2066", "\u200b", "\ufeff", "\xff", "日本語", "é", "𝒳", `"`, `\`, "<&>", "\n\nnext: ",
		"run `mcp-vdisk env approve X`", strings.Repeat("x", 300), strings.Repeat("<", 300), strings.Repeat("\"", 300), strings.Repeat("𝒳", 200), " ",
	})
	return strings.Join(rapid.SliceOfN(piece, 0, 12).Draw(t, "pieces"), "")
})

// TestHostileRequests: whatever strangers put into a request and its findings, the answer
// is short, one line for each thing that is said, and shows nothing but itself.
func TestHostileRequests(t *testing.T) {
	var states []queue.State
	for s := range doing {
		states = append(states, s)
	}
	states = append(states, queue.Ready, queue.PendingApproval, queue.Rejected, queue.Denied, queue.Failed, queue.Expired, queue.Cancelled)
	slices.Sort(states)
	rapid.Check(t, func(t *rapid.T) {
		text := func(name string) string { return hostile.Draw(t, name) }
		texts := func(name string, most int) []string { return rapid.SliceOfN(hostile, 0, most).Draw(t, name) }
		r := someRequest(rapid.SampledFrom(states).Draw(t, "state"), nil)
		r.Specs, r.Layer, r.Iso = texts("specs", 20), text("layer"), rapid.Bool().Draw(t, "iso")
		if rapid.Bool().Draw(t, "upload") {
			r.Wheel = &queue.Upload{File: text("file"), Path: text("path")}
		}
		for range rapid.IntRange(0, 40).Draw(t, "findings") {
			r.Findings = append(r.Findings, finding(text("rule"), text("package"), text("sentence")))
		}
		if rapid.Bool().Draw(t, "failure") {
			r.Failure = &queue.Failure{Code: text("code"), Sentence: text("failure"), Hint: text("hint"), Blocking: &queue.Blocking{Name: text("name"), Version: text("version"), PinnedBy: text("pinned"), NeededBy: text("needed"), Wanted: text("wanted")}}
		}
		if rapid.Bool().Draw(t, "decision") {
			r.Decision = &queue.Decision{By: text("by"), Note: text("note")}
		}
		st := pyenv.Status{Layers: texts("layers", 9), Version: "3.11.2", Python: "p", BaseReady: true}
		for range rapid.IntRange(0, 60).Draw(t, "packages") {
			st.Packages = append(st.Packages, pyenv.Package{Name: text("p"), Version: text("v"), Layer: r.Layer, Modules: texts("modules", 2)})
		}
		res := requestResult(r, st, "")
		checkAnswer(t, res)
		if !strings.Contains(res.String(), someID) && r.State != queue.Ready {
			t.Errorf("the id is not told: %s", res)
		}
		if n := strings.Count(res.String(), "\n"); n > 12 {
			t.Errorf("%d lines: %s", n, res)
		}
		checkAnswer(t, environmentResult(&pyenv.Error{
			Code: pyenv.Code(text("code")), Sentence: text("sentence"), Hint: text("hint"), Suggestions: texts("suggestions", 9),
			Blocking: resolve.Blocking{Name: text("name"), Wanted: text("wanted")}, Detail: "/root/secret",
		}))
	})
}

// TestStatusOfRequests: a status tells the layers and the open requests, in 4 kB
// whatever they are.
func TestStatusOfRequests(t *testing.T) {
	st := someStatus()
	st.Iso, st.Rev = "iso-0123456789abcdef", 3
	st.Requests = []queue.Request{someRequest(queue.PendingApproval, nil), someRequest(queue.Building, func(r *queue.Request) { r.Specs = []string{"pandas"} })}
	text := strings.Join(statusLines(st), "\n")
	wantText(t, text, "note: iso-0123456789abcdef is this workspace's own, in the place of the base", "layers: "+aBase+", "+aLayer,
		"open request "+someID+": pending_approval: beautifulsoup4, foo>=1", "open request "+someID+": building: pandas", "foo 1.2")
	requests := statusFacts(st)["requests"].([]map[string]any)
	if len(requests) != 2 || requests[1]["state"] != "building" || fmt.Sprint(requests[1]["asked"]) != "[pandas]" || statusFacts(st)["iso"] != st.Iso {
		t.Errorf("%v", statusFacts(st))
	}
	for range queue.MaxOpen - 2 {
		st.Requests = append(st.Requests, someRequest(queue.PendingApproval, func(r *queue.Request) {
			r.Specs = slices.Repeat([]string{strings.Repeat("a", 128) + ">=1"}, 20)
			r.Wheel = &queue.Upload{Path: "/workspace/" + strings.Repeat("\u202ex", 2000)}
		}))
	}
	for range 300 {
		st.Packages = append(st.Packages, pyenv.Package{Name: strings.Repeat("n", 128), Version: "1"})
	}
	st.Layers = slices.Repeat([]string{aLayer}, 9)
	st.Degraded, st.Reason, st.Building = strings.Repeat("d", 80), strings.Repeat("r", 200), strings.Repeat("b", 80)
	long := strings.Join(statusLines(st), "\n")
	if len(long) > 4000 || strings.Count(long, "open request ") != queue.MaxOpen || !strings.Contains(long, " more\n") || strings.Contains(long, "\u202e") {
		t.Errorf("%d bytes: %s", len(long), long)
	}
}

// TestAskHint: a script that lacks a package is told of the request for it, if there is
// one.
func TestAskHint(t *testing.T) {
	open := []queue.Request{someRequest(queue.PendingApproval, func(r *queue.Request) {
		r.Specs = []string{"beautifulsoup4>=4", "zope-interface[x]"}
		r.Wheel = &queue.Upload{File: "My_Pkg-1.0-py3-none-any.whl", Path: "/workspace/x.whl"}
	})}
	for module, name := range map[string]string{"bs4": "beautifulsoup4", "zope_interface": "zope_interface", "my_pkg": "my_pkg"} {
		if got := askHint(module, open, true); got != fmt.Sprintf(`hint: %s was asked for already, and the request is pending_approval: python_env {"action":"wait","request_id":"%s"} waits for it`, name, someID) {
			t.Errorf("%s: %s", module, got)
		}
	}
	for _, module := range []string{"yaml", "zope", "x"} {
		if got := askHint(module, open, true); !strings.Contains(got, `"action":"request"`) {
			t.Errorf("%s: %s", module, got)
		}
	}
	if got := askHint("yaml", open, false); strings.Contains(got, "python_env") || !strings.Contains(got, "pyyaml") {
		t.Errorf("in a session without python_env: %s", got)
	}
}

// TestEnvRefusals: what each error of a request becomes.
func TestEnvRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string // CODE: rule
	}{
		"not found":       {queue.ErrNotFound, "NOT_FOUND: env.not_found: "},
		"full":            {fmt.Errorf("%w: 20 of this workspace", queue.ErrFull), "BUSY: env.full: "},
		"unavailable":     {fmt.Errorf("%w: /var/db is broken", queue.ErrUnavailable), "INTERNAL: env.queue_unavailable: "},
		"unreadable":      {fmt.Errorf("env/req/X: %w", queue.ErrUnreadable), "INTERNAL: env.queue_unavailable: "},
		"no room for log": {fmt.Errorf("%w: %w", queue.ErrUnavailable, audit.ErrUnavailable), "AUDIT_UNAVAILABLE: "},
		"denied":          {&pyenv.Error{Code: "denied_name", Sentence: "s"}, "NOT_ALLOWED: env.denied_name: s"},
		"no fit":          {&pyenv.Error{Code: pyenv.ErrNoFit, Sentence: "s"}, "INVALID_ARGUMENT: env.no_compatible_wheel: s"},
		"size":            {&pyenv.Error{Code: pyenv.ErrSize, Sentence: "s"}, "TOO_LARGE: env.size: s"},
		"sandbox":         {&pyenv.Error{Code: pyenv.ErrNoSandbox, Sentence: "s"}, "SANDBOX_UNAVAILABLE: env.sandbox_unavailable: s"},
		"no python":       {fmt.Errorf("so: %w", &pyenv.Error{Code: pyenv.ErrNoPython, Sentence: "s"}), "NOT_READY: env.no_python: s"},
		"other":           {errors.New("/secret"), "INTERNAL: "},
	} {
		r, err := envRefusal(c.err)
		if err != nil {
			r = errorResult(asError(err))
		}
		if text := r.String(); r.OK() || !strings.HasPrefix(text, c.want) || !strings.Contains(text, "\nhint: ") || strings.Contains(text, "/secret") || strings.Contains(text, "/var") {
			t.Errorf("%s: %s", name, text)
		}
	}
}
