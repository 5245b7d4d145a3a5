package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
)

// trialNotifier runs a shell script, whose first argument is a directory of the test.
type trialNotifier struct {
	notifier
	t   testing.TB
	dir string

	said   sync.Mutex
	errors []string
}

func newTrialNotifier(t testing.TB, script string) *trialNotifier {
	t.Helper()
	n := &trialNotifier{t: t, dir: t.TempDir()}
	program := filepath.Join(n.dir, "tell")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	n.command = []string{program, n.dir, "$HOME; echo *"}
	n.failed = func(err error) {
		n.said.Lock()
		defer n.said.Unlock()
		n.errors = append(n.errors, err.Error())
	}
	t.Cleanup(n.close)
	return n
}

func (n *trialNotifier) complaints() []string {
	n.said.Lock()
	defer n.said.Unlock()
	return append([]string{}, n.errors...)
}

func (n *trialNotifier) tellText(text string) {
	n.tell(func(context.Context) ([]byte, error) { return []byte(text), nil })
}

// ends waits until nothing runs any more.
func (n *trialNotifier) ends() {
	n.t.Helper()
	soon(n.t, "the program ends", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return !n.running
	})
}

// read is what the script wrote to a file, "" before it did.
func (n *trialNotifier) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(n.dir, name))
	return string(text)
}

// soon waits for something that the script does.
func soon(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// The program gets the news on its standard input, its arguments as they are, and of
// this process only PATH and HOME.
func TestNotifier(t *testing.T) {
	t.Setenv("MCP_VDISK_CANARY", "hunter2")
	n := newTrialNotifier(t, `cat > "$1/in"; pwd > "$1/pwd"; env | sort > "$1/env"; ps -o pgid= -p $$ > "$1/pgid"; printf %s "$2" > "$1/arg"`)
	n.tellText("two\nlines\x00")
	n.ends()
	for name, want := range map[string]string{"in": "two\nlines\x00", "pwd": "/\n", "arg": "$HOME; echo *"} {
		if have := n.read(name); have != want {
			t.Errorf("%s: %q, want %q", name, have, want)
		}
	}
	for line := range strings.Lines(n.read("env")) {
		switch key, _, _ := strings.Cut(line, "="); key {
		case "PATH", "HOME", "PWD", "OLDPWD", "SHLVL", "_": // the others are the shell's
		default:
			t.Errorf("it has %s", line)
		}
	}
	if own := fmt.Sprint(syscall.Getpgrp()); strings.TrimSpace(n.read("pgid")) == own {
		t.Error("it is in the process group of this process")
	}
	if bad := n.complaints(); len(bad) > 0 {
		t.Errorf("%q", bad)
	}
}

// One at a time, in order; what is too much is dropped, and said to be.
func TestNotifierBacklog(t *testing.T) {
	n := newTrialNotifier(t, `mkdir "$1/lock" || echo overlap >> "$1/out"
		while [ ! -e "$1/gate" ]; do sleep 0.01; done
		cat >> "$1/out"; rmdir "$1/lock"`)
	want := ""
	for i := range notifyBacklog + 3 {
		n.tellText(fmt.Sprintln(i))
		if i == 0 {
			soon(t, "the first runs", func() bool { _, err := os.Stat(filepath.Join(n.dir, "lock")); return err == nil })
		}
		if i <= notifyBacklog {
			want += fmt.Sprintln(i)
		}
	}
	if bad := n.complaints(); len(bad) != 2 || !strings.Contains(bad[0], "16 are waiting for it already") {
		t.Errorf("%q", bad)
	}
	if err := os.WriteFile(filepath.Join(n.dir, "gate"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	soon(t, "all of them ran", func() bool { return n.read("out") == want })
	// It goes on after it had nothing to do.
	n.tellText("later\n")
	soon(t, "the next runs", func() bool { return n.read("out") == want+"later\n" })
}

// A program that does not end is killed, with its children.
func TestNotifierLimit(t *testing.T) {
	n := newTrialNotifier(t, `sleep 1000 & echo $! > "$1/child.new"; mv "$1/child.new" "$1/child"; wait`)
	n.limit = 300 * time.Millisecond
	n.tellText("x")
	soon(t, "it is killed", func() bool { return len(n.complaints()) == 1 })
	if bad := n.complaints(); !strings.Contains(bad[0], "was killed") {
		t.Errorf("%q", bad)
	}
	gone(t, n.read("child"))
}

func gone(t testing.TB, text string) {
	t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	soon(t, "the child is gone", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// Closing ends what runs and forgets what waits.
func TestNotifierClose(t *testing.T) {
	n := newTrialNotifier(t, `echo $$ > "$1/child.new"; mv "$1/child.new" "$1/child"; exec sleep 1000`)
	n.tellText("x")
	n.tellText("y")
	soon(t, "it runs", func() bool { return n.read("child") != "" })
	began := time.Now()
	n.close()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	gone(t, n.read("child"))
	first := n.read("child")
	n.tellText("z")
	n.close()
	if n.read("child") != first {
		t.Error("it was run after the end")
	}
	if bad := n.complaints(); len(bad) != 1 || !strings.Contains(bad[0], "the daemon ends") {
		t.Errorf("%q", bad)
	}
}

func TestNotifierFails(t *testing.T) {
	for name, c := range map[string]struct {
		script, want string
		change       func(n *trialNotifier)
	}{
		"its exit code":  {`echo nobody is there >&2; exit 3`, "exit status 3: nobody is there", nil},
		"much output":    {`yes | head -c 1000000; exit 1`, "exit status 1: y", nil},
		"not UTF-8":      {`printf 'a\377b'; exit 1`, "exit status 1: a?b", nil},
		"reads nothing":  {`exit 0`, "", nil},
		"missing":        {``, "no such file", func(n *trialNotifier) { n.command[0] += "x" }},
		"not executable": {``, "permission denied", func(n *trialNotifier) { n.command[0] = n.dir }},
		"closed streams": {`exec <&- >&- 2>&-; exit 5`, "exit status 5", nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTrialNotifier(t, c.script)
			if c.change != nil {
				c.change(n)
			}
			ran := make(chan bool)
			n.tell(func(context.Context) ([]byte, error) { close(ran); return make([]byte, 1<<20), nil })
			<-ran
			n.ends()
			have := strings.Join(n.complaints(), "|")
			if c.want == "" && have != "" && !strings.Contains(have, "broken pipe") || !strings.Contains(have, c.want) || len(have) > notifyOutput+100 {
				t.Errorf("%q, want %q", have, c.want)
			}
		})
	}
	n := newTrialNotifier(t, `: > "$1/ran"`)
	n.tell(func(context.Context) ([]byte, error) { return nil, errors.New("no news") })
	soon(t, "it is said", func() bool { return len(n.complaints()) == 1 })
	if n.complaints()[0] != "no news" {
		t.Errorf("%q", n.complaints())
	}
	silent := notifier{}
	silent.tellNobody(t)
}

// tellNobody is a notifier without a program.
func (n *notifier) tellNobody(t testing.TB) {
	t.Helper()
	n.tell(func(context.Context) ([]byte, error) { t.Error("it was asked for"); return nil, nil })
	n.close()
}

// A request that begins to wait is told with the name of its disk.
func TestRequestWaits(t *testing.T) {
	h := newTrialHub(t)
	work := h.use("work")
	ws := work.info.UUID
	if err := work.release(); err != nil {
		t.Fatal(err)
	}
	n := newTrialNotifier(t, `cat >> "$1/out"; echo >> "$1/out"`)
	h.notices.command = n.command
	r := queue.Request{ID: "01KB8Z6Q4N3T5V7W9X1Y2Z3A4B", Workspace: ws, Specs: []string{"pandas>=2"}, Expires: time.Date(2026, 12, 6, 0, 0, 0, 0, time.UTC)}
	h.requestWaits(r)
	r.Workspace, r.Wheel, r.Specs = "3f2c9a1e-6a5b-4c7d-8e9f-0a1b2c3d4e5f", &queue.Upload{File: "a\"\x1b.whl"}, nil
	h.requestWaits(r)
	soon(t, "both were told", func() bool { return strings.Count(n.read("out"), "\n") == 2 })
	var told []waitingNews
	for line := range strings.Lines(n.read("out")) {
		var w waitingNews
		if err := json.Unmarshal([]byte(line), &w); err != nil {
			t.Fatal(err)
		}
		told = append(told, w)
	}
	if a, b := told[0], told[1]; a.Disk != "work" || a.Workspace != ws || fmt.Sprint(a.Packages) != "[pandas>=2]" || a.Request != r.ID || !a.Expires.Equal(r.Expires) ||
		b.Disk != r.Workspace || b.Wheel != r.Wheel.File || len(b.Packages) != 0 {
		t.Errorf("%+v", told)
	}
}

func TestCommandSetting(t *testing.T) {
	d, err := find("env.notify")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                        "[]",
		"exec:/usr/bin/tell":      "[/usr/bin/tell]",
		"exec:/bin/tell  -a 'b c": "[/bin/tell -a 'b c]",
		"exec: /bin/tell":         "[/bin/tell]",
	} {
		var s settings
		v, shown, err := d.parse(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if d.put(&s, v, shown); fmt.Sprint(s.env.notify) != want {
			t.Errorf("%q: %q", text, s.env.notify)
		}
	}
	for _, bad := range []any{"exec:", "exec:tell", "exec:./tell", "exec:/", "exec:/a/../b", "/usr/bin/tell", "mail:me", "exec:/a\nb", "exec:/a \x1b", "exec:/a \xff", "exec:/" + strings.Repeat("a", 1025), "exec:/a " + strings.Repeat("b", maxCommand), int64(3), true} {
		if _, _, err := d.parse(bad); err == nil {
			t.Errorf("%v is taken", bad)
		}
	}
}
