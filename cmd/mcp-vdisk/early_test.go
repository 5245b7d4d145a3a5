package main

import (
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
)

// parsed is what a command line of serve means.
type parsed struct {
	state, runAs, image string
	noDaemon            bool
	session             front.SessionFlags
}

// parseEarly is how the front reads it before anything else is initialized.
func parseEarly(args []string) (parsed, bool) {
	a := &front.Caller{Image: front.DefaultImage}
	s, ok := a.ParseServe(args)
	if len(s.Tools) == 0 {
		s.Tools = nil
	}
	return parsed{a.State, a.RunAs, a.Image, a.NoDaemon, s}, ok
}

// parseFully is how the commands read it.
func parseFully(t testing.TB, args []string) (p parsed, ok bool) {
	t.Helper()
	a := newApp(strings.NewReader(""), io.Discard, io.Discard)
	root := a.command()
	root.SetArgs(args)
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	serve := serveOf(t, root)
	serve.RunE = func(cmd *cobra.Command, _ []string) error {
		ok = true
		f := cmd.Flags()
		var s front.SessionFlags
		s.ReadOnly, _ = f.GetBool("read-only")
		s.NoDelete, _ = f.GetBool("no-delete")
		s.Exclusive, _ = f.GetBool("exclusive")
		s.Tools, _ = f.GetStringSlice("tools")
		if len(s.Tools) == 0 {
			s.Tools = nil
		}
		p = parsed{a.State, a.RunAs, a.Image, a.NoDaemon, s}
		return nil
	}
	for _, c := range root.Commands() {
		if c != serve {
			c.RunE = func(*cobra.Command, []string) error { return nil }
		}
	}
	return p, root.Execute() == nil && ok
}

func serveOf(t testing.TB, root *cobra.Command) *cobra.Command {
	t.Helper()
	serve, _, err := root.Find([]string{"serve"})
	if err != nil || serve.Name() != "serve" {
		t.Fatalf("no serve command: %v", err)
	}
	return serve
}

// Every flag that the command has is understood early, so that no client pays for
// another start; but for those of the folders that go with a session, which take more
// than passing messages.
func TestEveryFlagOfServeIsReadEarly(t *testing.T) {
	root := newApp(nil, io.Discard, io.Discard).command()
	serve := serveOf(t, root)
	serve.InitDefaultHelpFlag()
	seen := 0
	check := func(f *pflag.Flag) {
		if f.Name == "help" {
			return
		}
		seen++
		for _, line := range [][]string{{"serve", "--" + f.Name + "=" + valueOf(f)}, {"serve", "--" + f.Name, valueOf(f)}} {
			if f.Value.Type() == "bool" {
				line = []string{"serve", "--" + f.Name}
			}
			early, ok := parseEarly(line)
			if f.Name == "outbox" || f.Name == "inbox" {
				if ok {
					t.Errorf("%q is read early, and the folder is not kept", line)
				}
				continue
			}
			full, fine := parseFully(t, line)
			if !ok || !fine || !reflect.DeepEqual(early, full) || reflect.DeepEqual(early, parsed{image: front.DefaultImage}) {
				t.Errorf("%q: early %+v %v, as a command %+v %v", line, early, ok, full, fine)
			}
		}
	}
	serve.LocalFlags().VisitAll(check)
	serve.InheritedFlags().VisitAll(check)
	if want := reflect.TypeFor[front.SessionFlags]().NumField() + 4; seen != want {
		t.Errorf("%d flags; a session has %d facts", seen, want)
	}
}

func valueOf(f *pflag.Flag) string {
	if f.Value.Type() == "bool" {
		return "true"
	}
	return "read_file"
}

var spellings = []struct {
	line  string
	early bool // it is not worth a slow start
}{
	{"serve", true},
	{"--state a serve", true},
	{"--state=a serve --state=b", true},
	{"--no-daemon serve", true},
	{"--no-daemon=false serve", true},
	{"serve --image=x", true},
	{"serve --image x --image y", true},
	{"serve --tools a --tools b,c", true},
	{"serve --tools a,,b", true},
	{"serve --tools=a --read-only --no-delete --exclusive", true},
	{"serve --read-only=false", true},
	{"serve --read-only=T", true},
	{"serve --run-as 60701", true},
	{"serve --read-only=maybe", false},
	{"serve --read-only false", false},
	{"--image x serve", false},
	{"--read-only serve", false},
	{"serve --tools=", false},
	{"serve --image=", false},
	{"serve --image", false},
	{`serve --tools "a"`, false},
	{`serve --tools "a,b",c`, false},
	{"serve -h", false},
	{"serve --help", false},
	{"serve --json", false},
	{"serve -image x", false},
	{"serve --image -x", false},
	{"serve --", false},
	{"-- serve", false},
	{"--state -- serve", false},
	{"serve -- x", false},
	{"serve x", false},
	{"serve serve", false},
	{"serve - x", false},
	{"serve ---image x", false},
	{"serve --=x", false},
	{"serv", false},
	{"help serve", false},
	{"version", false},
	{"", false},
}

func TestOddSpellingsOfServe(t *testing.T) {
	for _, c := range spellings {
		args := strings.Fields(c.line)
		early, ok := parseEarly(args)
		if ok != c.early {
			t.Errorf("%q: read early: %v", c.line, ok)
		}
		if full, fine := parseFully(t, args); ok && (!fine || !reflect.DeepEqual(early, full)) {
			t.Errorf("%q: early %+v, as a command %+v %v", c.line, early, full, fine)
		}
	}
}

// Whatever is read early the commands read in the same way.
func FuzzServeFlags(f *testing.F) {
	for _, c := range spellings {
		f.Add(strings.ReplaceAll(c.line, " ", "\x00"))
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, "\x00")
		early, ok := parseEarly(args)
		if !ok {
			return
		}
		if full, fine := parseFully(t, args); !fine || !reflect.DeepEqual(early, full) {
			t.Errorf("%q: early %+v, as a command %+v %v", args, early, full, fine)
		}
	})
}
