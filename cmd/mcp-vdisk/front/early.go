package front

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
)

// init is where `mcp-vdisk serve` runs when it only passes messages to the
// daemon. Packages are initialized in the order of their imports and then of
// their paths, and this one imports nothing but the standard library and ours: a
// client has its answer before schema compilers and the like, which a front does
// not need, have cost it most of its start and of its memory.
func init() {
	if len(os.Args) == 2 && os.Args[1] == BackArg {
		// A collection while packages are initialized and the state is opened
		// would cost a tenth of the start. main bounds the memory, and backMain
		// ends this.
		debug.SetGCPercent(-1)
	}
	early(os.Args[1:])
}

// early runs the command line if it is a plain `serve`, and then never returns.
// Anything else, mistakes included, is left to the commands, which say more.
func early(args []string) {
	a := &Caller{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Image: DefaultImage}
	s, ok := a.ParseServe(args)
	if !ok || a.Alone() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), StopSignals()...)
	code := a.Report(ctx, a.Serve(ctx, s))
	stop()
	os.Exit(code)
}

// ParseServe reads the command line of a plain `serve`; false when it is another
// command, when there is something to be said about it, or when the commands might
// read it in another way. A test compares the two.
func (a *Caller) ParseServe(args []string) (s SessionFlags, ok bool) {
	// The standard library takes one dash for two, the commands do not, and what
	// two dashes alone end is not the same.
	odd := func(arg string) bool {
		return arg == "--" || strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "--")
	}
	if slices.ContainsFunc(args, odd) {
		return s, false
	}
	general := flag.NewFlagSet("mcp-vdisk", flag.ContinueOnError)
	general.SetOutput(io.Discard)
	a.generalFlags(general)
	if general.Parse(args) != nil || general.Arg(0) != "serve" {
		return s, false
	}
	all := flag.NewFlagSet("serve", flag.ContinueOnError)
	all.SetOutput(io.Discard)
	a.generalFlags(all)
	a.serveFlags(all, &s)
	if all.Parse(general.Args()[1:]) != nil || all.NArg() > 0 {
		return s, false
	}
	ok = true
	given := func(g *flag.Flag) { ok = ok && CheckGiven(g.Name, g.Value.String()) == nil }
	general.Visit(given)
	all.Visit(given)
	return s, ok
}

func (a *Caller) generalFlags(f *flag.FlagSet) {
	f.StringVar(&a.State, "state", a.State, "")
	f.StringVar(&a.RunAs, "run-as", a.RunAs, "")
	f.BoolVar(&a.NoDaemon, "no-daemon", a.NoDaemon, "")
}

func (a *Caller) serveFlags(f *flag.FlagSet, s *SessionFlags) {
	f.StringVar(&a.Image, "image", a.Image, "")
	f.BoolVar(&s.ReadOnly, "read-only", false, "")
	f.BoolVar(&s.NoDelete, "no-delete", false, "")
	f.BoolVar(&s.Exclusive, "exclusive", false, "")
	f.Var((*list)(&s.Tools), "tools", "")
}

// list is a flag whose values are separated by commas.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

func (l *list) Set(v string) error {
	if v == "" || strings.ContainsAny(v, "\"\r\n") {
		return errors.New("the commands read it as CSV")
	}
	*l = append(*l, strings.Split(v, ",")...)
	return nil
}
