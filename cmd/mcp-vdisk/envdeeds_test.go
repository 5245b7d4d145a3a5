package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

var updateDeeds = flag.Bool("update-deeds", false, "write the golden files of deeds")

// Ids of a disk and of what happens to it.
const (
	deedDisk    = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"
	deedRequest = "01KBA4T3M0000000000000000A"
	deedLock    = "00112233445566aa"
	deedLayer   = "x-00112233445566cc"
	deedBase    = "base-00112233445566ff"
)

// newHub opens a new state directory.
func newHub(t testing.TB) *hub {
	t.Helper()
	set, _, err := parseSettings("", "")
	if err != nil {
		t.Fatal(err)
	}
	h, err := openHub(t.Context(), front.Request{State: filepath.Join(t.TempDir(), "state")}, set, time.Second, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func deedOf(kind pyenv.DeedKind) pyenv.Deed {
	d := pyenv.Deed{Kind: kind, Request: queue.Request{
		ID: deedRequest, Workspace: deedDisk, Specs: []string{"foo==1.0", "own-house"},
		Wheel:  &queue.Upload{File: "own_house-1-py3-none-any.whl", SHA256: strings.Repeat("ab", 32), Path: "/workspace/own_house-1-py3-none-any.whl"},
		Reason: "a \x1b[2Jchart\u202e of \"sales\"", Session: "s-1", Client: "client/1.0", Call: "01KBA4T3M0000000000000000B",
	}}
	if kind == pyenv.DeedRequest {
		return d
	}
	d.Request.Lock, d.LockID = deedLock, deedLock
	d.Request.Findings = []queue.Finding{
		{Rule: policy.Upload, Package: "own-house", Sentence: "it is no package of an index", Tier: "ask"},
		{Rule: "not_listed", Package: "foo", Sentence: "nobody has looked at it", Tier: "ask"},
		{Rule: "not_listed", Package: "bar", Sentence: "nobody has looked at it", Tier: "ask"},
	}
	d.Lock = &lock.Lock{Kind: lock.X, Base: deedBase, Python: lock.Python{Full: "3.11.2"}, Packages: []lock.Package{
		{Name: "bar", Version: "2.0", SHA256: strings.Repeat("b2", 32)}, {Name: "foo", Version: "1.0", SHA256: strings.Repeat("f1", 32)},
		{Name: "own-house", Version: "1", SHA256: strings.Repeat("ab", 32)},
	}}
	by := &queue.Decision{Approve: true, By: "operator uid 1000 at /dev/pts/3", How: "terminal", Note: "once", Lock: deedLock}
	switch kind {
	case pyenv.DeedDecide:
		d.Decision = by
	case pyenv.DeedBuild:
		d.Request.Layer = deedLayer
	case pyenv.DeedBind:
		d.Request.Layer, d.Decision = deedLayer, by
		d.Binding = &queue.Binding{Workspace: deedDisk, Rev: 3, Python: "system-0011223344556677", Base: deedBase, Layers: []string{"x-0000000000000001", deedLayer}, Locks: []string{deedLock}, Requests: []string{deedRequest}}
	}
	return d
}

// place is what the log adds to a record.
var place = regexp.MustCompile(`^\{"v":1,"n":\d+,"prev":"[0-9a-f]+","t":"[^"]+","mono":\d+,"boot":"[^"]*","run":"[^"]+",`)

// linesOf are the records of a stream, without their places.
func linesOf(t testing.TB, h *hub, stream string) (lines []string) {
	t.Helper()
	err := h.st.log.Query(t.Context(), audit.Query{Stream: stream}, func(raw []byte, _ audit.Record) error {
		lines = append(lines, "{"+place.ReplaceAllString(string(raw), ""))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// The records of each kind of deed, as they are in the log.
func TestDeedsInTheLog(t *testing.T) {
	denied := deedOf(pyenv.DeedDecide)
	denied.Decision = &queue.Decision{By: "client (asserted)", How: "elicitation", Note: "not on this disk"}
	rejected := deedOf(pyenv.DeedDecide)
	rejected.Decision, rejected.Lock, rejected.LockID, rejected.Request.Lock = nil, nil, "", ""
	rejected.Request.Findings = []queue.Finding{{Rule: "denied_name", Package: "foo", Sentence: "foo is denied", Tier: "reject"}, {Rule: "not_listed", Tier: "ask", Sentence: "x"}}
	rejected.Request.Failure = &queue.Failure{Code: "denied", Sentence: "foo is denied here", Blocking: &queue.Blocking{Name: "foo", Version: "1.0"}}
	failed := deedOf(pyenv.DeedBuild)
	failed.Err = &pyenv.Error{Code: pyenv.ErrDiskFull, Sentence: "the disk with the Python environments is full", Detail: "/srv/secret"}
	late := deedOf(pyenv.DeedBind)
	late.Err = fmt.Errorf("%w: the binding has revision 4, not 2", queue.ErrConflict)
	rebased := deedOf(pyenv.DeedBind)
	rebased.Request = queue.Request{}
	for name, d := range map[string]pyenv.Deed{
		"request": deedOf(pyenv.DeedRequest), "approve": deedOf(pyenv.DeedDecide), "deny": denied, "reject": rejected,
		"build": deedOf(pyenv.DeedBuild), "build-failed": failed, "bind": deedOf(pyenv.DeedBind), "bind-failed": late, "bind-rebased": rebased,
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t)
			if err := h.recordDeed(t.Context(), d); err != nil {
				t.Fatal(err)
			}
			got := strings.Join(linesOf(t, h, deedDisk), "\n") + "\n"
			golden := filepath.Join("testdata", "deeds", name+".ndjson")
			if *updateDeeds {
				if err := errors.Join(os.MkdirAll(filepath.Dir(golden), 0o755), os.WriteFile(golden, []byte(got), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || got != string(want) {
				t.Errorf("%v\ngot\n%swant\n%s", err, got, want)
			}
			if n := len(linesOf(t, h, audit.StreamSystem)); n != 0 {
				t.Errorf("%d records are in the log of the system", n)
			}
		})
	}
}

// Whatever a deed holds, all of it that counts is in the log: nothing is left out of a
// record but the ends of long texts, and of these there is a digest.
func TestLargeDeedsInTheLog(t *testing.T) {
	h := newHub(t)
	d := deedOf(pyenv.DeedBind)
	d.Request.Reason, d.Decision.Note = strings.Repeat("\x00ü\"", 1000), strings.Repeat("n", 4096)
	d.Request.Session, d.Request.Client = strings.Repeat("s", 1024), strings.Repeat("\x1b", 1024)
	d.Lock.Packages = nil
	for i := range 300 {
		name := fmt.Sprintf("package-%03d", i)
		if i%50 == 0 {
			name = strings.Repeat(name, 80) // longer than any there is
		}
		d.Lock.Packages = append(d.Lock.Packages, lock.Package{Name: name, Version: "1.0.0", SHA256: fmt.Sprintf("%064x", i)})
	}
	d.Binding.Layers, d.Binding.Locks = nil, nil
	for i := range 1000 {
		d.Binding.Layers = append(d.Binding.Layers, fmt.Sprintf("x-%016x", i))
		d.Binding.Locks = append(d.Binding.Locks, fmt.Sprintf("%016x", i))
	}
	for range 4000 {
		d.Request.Findings = append(d.Request.Findings, queue.Finding{Rule: "not_listed", Package: strings.Repeat("p", 60), Sentence: strings.Repeat("s", 4000), Tier: "ask"})
	}
	decide := d
	decide.Kind = pyenv.DeedDecide
	request := d
	request.Kind = pyenv.DeedRequest
	for i := range 64 {
		request.Request.Specs = append(request.Request.Specs, fmt.Sprintf("a-package-with-a-long-name-%d[extra]==1.%d", i, i))
	}
	for _, d := range []pyenv.Deed{d, decide, request} {
		if err := h.recordDeed(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	text := strings.Join(linesOf(t, h, deedDisk), "\n")
	if i := strings.Index(text, ".left_out"); i >= 0 {
		t.Errorf("something was left out: %s", text[max(0, i-500):i+50])
	}
	for i := range 300 {
		if sum := fmt.Sprintf("%064x", i); i%50 != 0 && strings.Count(text, fmt.Sprintf("package-%03d 1.0.0 %s", i, sum)) < 2 {
			t.Errorf("the wheel %d is not in the log", i)
		}
	}
	for _, id := range append(d.Binding.Layers, d.Binding.Locks...) {
		if !strings.Contains(text, `"`+id+`"`) {
			t.Errorf("%s is not in the log", id)
		}
	}
	for _, s := range request.Request.Specs {
		if !strings.Contains(text, `"`+s+`"`) {
			t.Errorf("%s is not in the log", s)
		}
	}
	if !strings.Contains(text, `"reason.sha256":"`) || strings.Contains(text, strings.Repeat("n", 600)) {
		t.Error("long texts are not cut")
	}
	if err := h.st.log.Query(t.Context(), audit.Query{Match: map[string][]string{"ev": {"env.bind"}}}, func(raw []byte, r audit.Record) error {
		if len(raw) > audit.MaxRecord || !strings.Contains(string(raw), `"parts":`) {
			t.Errorf("a record of %d bytes", len(raw))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A deed that cannot be recorded, or that nobody could find in the log, is refused.
func TestDeedsThatAreNotRecorded(t *testing.T) {
	h := newHub(t)
	nobody := deedOf(pyenv.DeedRequest)
	nobody.Request.Workspace = ""
	unknown := deedOf("dream")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		deed pyenv.Deed
	}{"no workspace": {t.Context(), nobody}, "no kind": {t.Context(), unknown}, "no context": {ended, deedOf(pyenv.DeedRequest)}, "no name": {t.Context(), func() pyenv.Deed {
		d := deedOf(pyenv.DeedRequest)
		d.Request.Workspace = "a/../b\x00"
		return d
	}()}} {
		if err := h.recordDeed(c.ctx, c.deed); !errors.Is(err, audit.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What could not be done is told also when the server ends.
	failed := deedOf(pyenv.DeedBuild)
	failed.Err = context.Canceled
	if err := h.recordDeed(ended, failed); err != nil {
		t.Error(err)
	}
	if err := h.st.log.Close(); err != nil {
		t.Fatal(err)
	}
	if err := h.recordDeed(t.Context(), deedOf(pyenv.DeedRequest)); !errors.Is(err, audit.ErrUnavailable) {
		t.Errorf("a log that is closed: %v", err)
	}
}

// The lock of a base layer, too, is in the log with every wheel.
func TestLockFactsFit(t *testing.T) {
	var wheels []pyenv.Package
	for i := range 100 {
		wheels = append(wheels, pyenv.Package{Name: fmt.Sprintf("a-package-%02d", i), Version: "2026.11.29", SHA256: fmt.Sprintf("%064x", i)})
	}
	h := newHub(t)
	list := lockFacts(deedLock, deedBase, wheels, audit.Facts{"built": true, "fetched": 100})
	for _, facts := range list {
		if err := h.st.record(t.Context(), audit.StreamSystem, audit.Record{Ev: audit.EvEnvBuild, Args: facts}); err != nil {
			t.Fatal(err)
		}
	}
	text := strings.Join(linesOf(t, h, audit.StreamSystem), "\n")
	for _, p := range wheels {
		if !strings.Contains(text, p.Name+" "+p.Version+" "+p.SHA256) {
			t.Errorf("%s is not in the log", p.Name)
		}
	}
	if strings.Contains(text, ".left_out") || len(list) > 6 || !strings.Contains(text, `"built":true`) {
		t.Errorf("%d records", len(list))
	}
}

func TestTexts(t *testing.T) {
	if got := texts("a", nil); len(got) != 0 {
		t.Error(got)
	}
	long := []string{"x", strings.Repeat("y", 2*audit.MaxFact), "z"}
	var back []string
	for i, f := range texts("a", long) {
		if i > 0 && f.name != fmt.Sprintf("a-%d", i+1) {
			t.Error(f.name)
		}
		back = append(back, f.value.([]string)...)
	}
	if strings.Join(back, ",") != strings.Join(long, ",") {
		t.Errorf("%q", back)
	}
}
