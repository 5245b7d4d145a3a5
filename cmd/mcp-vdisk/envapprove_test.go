package main_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/indextest"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/wheeltest"
)

// What an operator does with a request that an agent made, through the program and an
// index of the test.

var updateGolden = flag.Bool("update", false, "write the golden files")

// golden compares with a file of testdata.
func golden(t testing.TB, name, have string) {
	t.Helper()
	name = filepath.Join("testdata", "golden", name)
	if *updateGolden {
		if err := os.WriteFile(name, []byte(have), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if have != string(want) {
		t.Errorf("%s differs; look at it, and write it with -update\n%s", name, have)
	}
}

// extra is a wheel that the catalog does not know: one module, "VERSION" in it.
func extra(name, version string, requires ...string) wheeltest.Wheel {
	return wheeltest.Wheel{Name: name, Version: version, Requires: requires, Files: []wheeltest.File{{Name: name + ".py", Body: fmt.Sprintf("version = %q\n", version)}}}
}

// operated is a state directory with a base layer, disks "work" and "other", a package
// that nobody has decided about, and the token of an operator.
func operated(t *testing.T) (e *envTest, token string) {
	t.Helper()
	e = newEnvs(t, true, indextest.Options{User: "reader", Password: unique()})
	e.add(extra("tablekit", "1.0", "tablecore"))
	e.add(extra("tablecore", "2.0"))
	e.must("env", "ensure")
	e.must("image", "create", "work")
	e.must("image", "create", "other")
	return e, operatorToken(t, e.state)
}

// ask makes a request as an agent does, and returns it once it waits for a person or is
// closed.
func (e *envTest) ask(disk, packages string) (f requestFacts) {
	e.t.Helper()
	out := e.run("call", "python_env", `{"action":"request","packages":`+packages+`,"reason":"The report has tables."}`, "--image", disk)
	within(e.t, patience, "the request waits or is closed", func() bool {
		list := e.requests("--all", "--image", disk)
		if len(list) == 0 {
			return false
		}
		f = list[len(list)-1]
		return slices.Contains([]string{"pending_approval", "ready", "rejected", "failed"}, f.State)
	})
	if f.ID == "" {
		e.t.Fatalf("nobody asked: exit %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	return f
}

func (e *envTest) one(id string) (f requestFacts) {
	e.t.Helper()
	if err := json.Unmarshal([]byte(e.must("env", "requests", id, "--json").stdout), &f); err != nil {
		e.t.Fatal(err)
	}
	return f
}

func (e *envTest) importsOn(disk, module string) output {
	e.t.Helper()
	return e.run("call", "run_script", `{"language":"python","source":"import `+module+`; print(`+module+`.version)"}`, "--image", disk)
}

// TestEnvApprove: the card, the confirmation, the wait, and what is in the log.
func TestEnvApprove(t *testing.T) {
	t.Parallel()
	e, token := operated(t)
	asked := e.ask("work", `["tablekit"]`)
	short := asked.ID[:20]
	e.must("env", "requests").says(t, "pending_approval", "work: tablekit")
	e.must("env", "status", "--image", "work").says(t, "request   "+asked.ID+"  pending_approval  tablekit")

	e.fails(4, "env", "approve", short).says(t, "Asks for   tablekit", "standard input is no terminal")
	e.fails(4, "env", "approve", short, "--lock", "0123456789abcdef", "--operator-token", token).says(t, "has changed", "look again")
	out := e.must("env", "approve", short, "--lock", asked.Lock, "--operator-token", token, "--note", "fine")
	out.says(t, "Python packages for a workspace", "tablecore 2.0", "An approval is for lock "+asked.Lock, "ready     disk work has x-", "from its next script on")
	if strings.Contains(out.stdout+out.stderr, "\x1b") {
		t.Errorf("draws on what is no terminal: %q", out.stderr)
	}
	if out := e.importsOn("work", "tablekit"); !strings.Contains(out.stdout, "stdout:\n1.0\n") {
		t.Errorf("%s", out.stdout)
	}
	if out := e.importsOn("other", "tablekit"); !strings.Contains(out.stdout, "ModuleNotFoundError") {
		t.Errorf("another disk has it, too: %s", out.stdout)
	}
	f := e.one(asked.ID)
	if f.State != "ready" || f.Decision == nil || !f.Decision.Approve || f.Decision.Lock != asked.Lock || f.Decision.How != "token" || f.Decision.Note != "fine" ||
		!regexp.MustCompile(`^operator uid \d+`).MatchString(f.Decision.By) {
		t.Errorf("%+v", f)
	}
	e.fails(4, "env", "approve", short, "--operator-token", token).says(t, "was approved already, by operator uid")
	e.fails(4, "env", "deny", short, "--operator-token", token)
	e.must("env", "status", "--image", "work").says(t, f.Layer, "locks     "+asked.Lock, "bound     revision 1")
	if _, password, _ := strings.Cut(e.index.URLWith(), "reader:"); password != "" {
		password, _, _ = strings.Cut(password, "@")
		stopDaemon(t, e.state)
		nowhere(t, password, e.state, e.root)
	}
}

// TestEnvApproveCard is the card as the program shows it, on 72 columns.
func TestEnvApproveCard(t *testing.T) {
	t.Parallel()
	e, _ := operated(t)
	asked := e.ask("work", `["tablekit"]`)
	card := e.fails(4, "env", "approve", asked.ID).stdout
	for line := range strings.Lines(card) {
		if n := policy.Columns(strings.TrimSuffix(line, "\n")); n > 72 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	tame(t, card)
	// What an old pip of this host cannot do is of this host.
	if start, end := strings.Index(card, "To know\n"), strings.Index(card, "What happens\n"); start >= 0 && strings.Contains(card[start:end], "pip ") {
		card = card[:start] + card[end:]
	}
	for _, x := range [][2]string{
		{regexp.QuoteMeta(asked.ID), "01KB8Z6Q4N3T5V7W9X1Y2Z3A4B"}, {regexp.QuoteMeta(asked.Workspace), strangeWS}, {regexp.QuoteMeta(asked.Lock), seededLock},
		{`\d{4}-\d\d-\d\d \d\d:\d\d UTC(, \d+ minutes? ago)?`, "2026-11-29 20:04 UTC"}, {`base-[0-9a-f]{16}`, "base-0123456789abcdef"},
		{`127\.0\.0\.1(:\d+)?`, "index.example"}, {`session\s+call-\d+`, "session call-1"}, {`"mcp-vdisk [^",]+"`, `"mcp-vdisk 1.0.0"`},
		{` +(\d+ (h|d|mo|y)|age \?) +(\d+ kB|size \?)\n`, "  AGE  SIZE\n"},
	} {
		card = regexp.MustCompile(x[0]).ReplaceAllString(card, x[1])
	}
	golden(t, "approve-card.txt", card)
}

// TestEnvDeny: who asked is told why.
func TestEnvDeny(t *testing.T) {
	t.Parallel()
	e, token := operated(t)
	asked := e.ask("work", `["tablekit"]`)
	e.fails(4, "env", "deny", asked.ID).says(t, "standard input is no terminal")
	out := e.must("env", "deny", asked.ID, "--note", "pdfplumber does that", "--operator-token", token)
	out.says(t, asked.ID+"  work: tablekit", "denied    "+asked.ID)
	if f := e.one(asked.ID); f.State != "denied" || f.Decision.Approve || f.Decision.Note != "pdfplumber does that" {
		t.Errorf("%+v", f)
	}
	e.must("env", "requests").says(t, "no request for packages is open")
	e.must("env", "requests", asked.ID).says(t, "Decided    denied by operator uid", `Note       "pdfplumber does that"`, "There is nothing to decide.")
	e.fails(4, "env", "approve", asked.ID, "--operator-token", token).says(t, "was denied already")
}

// TestEnvApproveTyped: on a terminal a word is typed, and another one is no approval.
func TestEnvApproveTyped(t *testing.T) {
	t.Parallel()
	e, _ := operated(t)
	asked := e.ask("work", `["tablekit"]`)
	for word, code := range map[string]int{"yes": 4, "Approve": 4, "\x04": 4} {
		cmd := e.command("env", "approve", asked.ID)
		var text strings.Builder
		cmd.Stdout, cmd.Stderr = &text, &text
		typing(cmd, word)
		if have := cmd.ProcessState.ExitCode(); have != code || !strings.Contains(text.String(), "not confirmed") {
			t.Errorf("%q: exit %d\n%s", word, have, &text)
		}
	}
	cmd := e.command("env", "approve", asked.ID, "--json")
	var facts, text strings.Builder
	cmd.Stdout, cmd.Stderr = &facts, &text
	if err := typing(cmd, "approve"); err != nil {
		t.Fatalf("%v\n%s%s", err, &facts, &text)
	}
	var f requestFacts
	if err := json.Unmarshal([]byte(facts.String()), &f); err != nil || f.State != "ready" || f.Decision.How != "terminal" || !strings.Contains(f.Decision.By, " at /dev/pts/") {
		t.Errorf("%v %s", err, &facts)
	}
	if !strings.Contains(text.String(), "Asks for   tablekit") {
		t.Errorf("no card was shown: %s", &text)
	}
}

// TestEnvApproveAlways: what the request needs is in the catalog afterwards, and the next
// disk gets it without asking.
func TestEnvApproveAlways(t *testing.T) {
	t.Parallel()
	e, token := operated(t)
	asked := e.ask("work", `["tablekit"]`)
	if f := e.one(asked.ID); !slices.Equal(f.NotListed, []string{"tablecore", "tablekit"}) {
		t.Errorf("%q", f.NotListed)
	}
	e.must("env", "approve", asked.ID, "--always", "--operator-token", token).says(t, "catalog   allowed tablecore", "catalog   allowed tablekit", "ready     ")
	e.must("env", "catalog").says(t, "Revision   3", "tablekit")
	log := e.must("audit", "query", "--all", "-o", "ndjson", "ev=catalog.set").stdout
	for _, want := range []string{`"change-000":"allowed tablecore"`, `"policy_rev":3`, `"policy_rev_before":1`, `"op_proof":"token `, asked.ID} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not have %s:\n%s", want, log)
		}
	}
}

// TestEnvApproveInterrupted: ^C ends the waiting and not the work.
func TestEnvApproveInterrupted(t *testing.T) {
	t.Parallel()
	e, token := operated(t)
	asked := e.ask("work", `["tablekit"]`)
	w := extra("tablekit", "1.0", "tablecore")
	e.index.Add(indextest.File{Name: w.FileName(), Body: w.Bytes(), Slow: true})
	cmd := e.command("env", "approve", asked.ID, "--operator-token", token)
	cmd.Env = append(cmd.Env, "PIP_DEFAULT_TIMEOUT=60")
	var text strings.Builder
	cmd.Stdout, cmd.Stderr = &text, &text
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	within(t, patience, "the wheels are fetched", func() bool { return e.requests()[0].State == "fetching" })
	syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(text.String(), "goes on in the daemon") {
		t.Errorf("exit %d\n%s", code, &text)
	}
	if open := e.requests(); len(open) != 1 || open[0].Decision == nil || !open[0].Decision.Approve {
		t.Errorf("%+v", open)
	}
}

// TestEnvApproveFails: what cannot be had is a failure of the command, with the reason.
func TestEnvApproveFails(t *testing.T) {
	t.Parallel()
	e, token := operated(t)
	asked := e.ask("work", `["tablekit"]`)
	w := extra("tablekit", "1.0", "tablecore")
	e.index.Add(indextest.File{Name: w.FileName(), Body: w.Bytes(), Sent: []byte("something else")})
	out := e.fails(1, "env", "approve", asked.ID, "--operator-token", token)
	out.says(t, "hint: ", "approved")
	if f := e.one(asked.ID); f.Failure == nil || !strings.Contains(out.stderr, f.Failure.Code+": ") {
		t.Errorf("%+v\n%s", f, out.stderr)
	}
}

// TestEnvCatalog: each change is confirmed, told and recorded, and no other is lost.
func TestEnvCatalog(t *testing.T) {
	modes(t, func(t *testing.T, daemon bool) {
		e := newEnvs(t, daemon, indextest.Options{})
		e.must("env", "status")
		token := operatorToken(t, e.state)
		by := func(args ...string) []string {
			return append(append([]string{"env", "catalog"}, args...), "--operator-token", token)
		}
		e.must("env", "catalog").says(t, "Revision   1", "pandas", "Denied     none")
		first := e.must("env", "catalog", "--json").stdout
		if c, err := policy.Parse([]byte(first)); err != nil || c.Rev != 1 {
			t.Errorf("%v\n%s", err, first)
		}
		e.fails(4, "env", "catalog", "allow", "tablekit").says(t, "standard input is no terminal")
		e.must(by("allow", "Table_Kit>=1,<2", "tablecore")...).says(t, "allowed table-kit<2,>=1", "allowed tablecore", "revision 3")
		e.must(by("allow", "table.kit<2,>=1")...).says(t, "nothing changed")
		e.must(by("deny", "Leftpad", "--reason", "use str.rjust")...).says(t, "denied leftpad use str.rjust", "revision 4")
		e.fails(4, by("allow", "leftpad")...).says(t, "denied_name", "hint: mcp-vdisk env catalog remove NAME")
		e.must(by("deny", "tablecore")...).says(t, "no longer allowed tablecore", "denied tablecore")
		e.must(by("remove", "tablecore")...).says(t, "no longer denied tablecore")
		e.fails(3, by("remove", "tablecore")...)

		file := filepath.Join(filepath.Dir(e.state), "catalog.json")
		now := e.must("env", "catalog", "--json").stdout
		put := func(text string) string {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return file
		}
		e.must(by("set", put(strings.Replace(now, `"cooldown_days": 7`, `"cooldown_days": 0`, 1)))...).says(t, "cooldown_days 7 -> 0", "revision 7")
		e.fails(4, by("set", put(now))...).says(t, "another revision", "policy_rev 6, and the catalog 7")
		e.fails(2, by("set", put(now[:40]))...).says(t, "bad_catalog", "hint: mcp-vdisk env catalog --json")
		e.must(by("set", put(e.must("env", "catalog", "--defaults", "--json").stdout))...).says(t, "no longer denied leftpad", "revision 8")
		log := e.must("audit", "query", "--all", "-o", "ndjson", "ev=catalog.set").stdout
		for _, want := range []string{`"change":"allow"`, `"change-000":"allowed table-kit<2,>=1"`, `"policy_rev_before":1`, `"policy_rev":3`, `"op_proof":"token `, `"change-000":"cooldown_days 7 -> 0"`} {
			if !strings.Contains(log, want) {
				t.Errorf("the log does not have %s:\n%s", want, log)
			}
		}
	})
}

// TestEnvCatalogRefuses: what is wrong is told before anybody is asked for a word.
func TestEnvCatalogRefuses(t *testing.T) {
	t.Parallel()
	e := newEnvs(t, false, indextest.Options{})
	dir := filepath.Dir(e.state)
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{2, "names extras", []string{"allow", "foo[bar]"}},
		{2, "is not the name of a package", []string{"allow", "https://x/y.whl"}},
		{2, "is not the name of a package", []string{"allow", "foo=1"}},
		{2, "is not the name of a package", []string{"deny", "foo>=1"}},
		{2, "is not the name of a package", []string{"deny", "\x1b[2J"}},
		{2, "one line of printable text", []string{"deny", "foo", "--reason", "a\nb"}},
		{2, "500", []string{"deny", "foo", "--reason", strings.Repeat("x", 501)}},
		{2, "201 packages", append([]string{"remove"}, slices.Repeat([]string{"foo"}, 201)...)},
		{2, "", []string{"allow"}},
		{2, "", []string{"nothing"}},
		{2, "is empty", []string{"set", ""}},
		{3, "not_found", []string{"set", filepath.Join(dir, "none.json")}},
		{1, "is not a regular file", []string{"set", dir}},
		{4, "standard input is no terminal", []string{"allow", "foo"}},
		{4, "standard input is no terminal", []string{"remove", "foo"}},
	} {
		e.fails(c.code, append([]string{"env", "catalog"}, c.args...)...).says(t, c.says)
	}
	if _, err := os.Stat(e.state); err == nil {
		t.Error("the state directory was opened")
	}
}

// TestEnvRebase: a newer base, and what was asked for on it.
func TestEnvRebase(t *testing.T) {
	t.Parallel()
	e, token := operated(t)
	e.must("env", "rebase", "work").says(t, "nothing to change")
	asked := e.ask("work", `["tablekit"]`)
	e.must("env", "approve", asked.ID, "--operator-token", token)
	before := e.status().Base
	e.add(wheeltest.Wheel{Name: "pypdf", Version: "9.1", Files: []wheeltest.File{{Name: "pypdf/__init__.py"}}})
	e.must("env", "ensure", "--relock")
	now := e.status().Base
	if now == before {
		t.Fatal("--relock changed nothing")
	}
	// What is newer than what was approved is asked about again.
	e.add(extra("tablekit", "1.1", "tablecore"))
	out := e.fails(4, "env", "rebase", "work")
	out.says(t, "nothing was changed", "tablekit 1.1", "To approve:", "mcp-vdisk env rebase work --approve ")
	lock := regexp.MustCompile(`--approve ([0-9a-f]{16})`).FindStringSubmatch(out.stderr)
	if lock == nil {
		t.Fatal(out.stderr)
	}
	e.fails(4, "env", "rebase", "work", "--approve", lock[1]).says(t, "standard input is no terminal")
	e.must("env", "rebase", "work", "--approve", lock[1], "--operator-token", token).says(t, "Before", before, "After", now)
	if out := e.importsOn("work", "tablekit"); !strings.Contains(out.stdout, "stdout:\n1.1\n") {
		t.Errorf("%s", out.stdout)
	}
	log := e.must("audit", "query", "--all", "-o", "ndjson", "ev=env.rebase").stdout
	for _, want := range []string{`"base_before":"` + before, `"base":"` + now, `"asks_about":"` + lock[1], `"op_proof":"token `, `"from":"index 127.0.0.1`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not have %s:\n%s", want, log)
		}
	}
}
