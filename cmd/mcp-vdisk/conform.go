package main

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/conformance"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

// conformArgs are those of the verb.
type conformArgs struct {
	Suites   []string
	Rule     string // glob; "" = all
	JSON     bool
	Progress bool // a line on standard error while it runs
}

func (a *app) conformCmd() *cobra.Command {
	var q conformArgs
	cmd := &cobra.Command{
		Use:   "conform",
		Short: "Prove on this host that a script cannot do what it must not, and that leases hold",
		Long: `conform tries it. A prober, which is this program, runs in the sandbox of a
script and makes the system calls themselves; from outside is looked at what a run
leaves behind. The same prober also runs in a sandbox that is made naively, where
it must find ten things wrong, so that a prober that always says yes is caught.
Leases are tried on a store of their own, in processes that are killed.
docs/conformance.md lists every rule and what passing it means.

It opens no disk, works beside a running server, and takes less than a minute. Exit
code 10 when a rule failed or broke, or one that is required was skipped. What is
"weak" holds as far as this host lets it.`,
		Example: "  mcp-vdisk conform\n  mcp-vdisk conform --suite host --rule 'host.net.*' --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q.JSON, q.Progress = a.json, isTerminal(a.Stderr)
			return a.simple(cmd, "conform", q, front.NoImage)
		},
	}
	cmd.Flags().StringSliceVar(&q.Suites, "suite", nil, "run only the suite `NAME`: "+strings.Join(suiteNames(), ", ")+" (default: all)")
	cmd.Flags().StringVar(&q.Rule, "rule", "", "run only the rules whose id matches the `GLOB`")
	a.jsonFlag(cmd.Flags())
	return cmd
}

// suite is one of conform.
type suite struct {
	name    string
	scripts bool // it needs that scripts can run
	run     func(*conformRun, context.Context) (conformance.Report, error)
}

// conformSuites are those there are, in the order of the report. A new suite is
// a line here; its rules are in conformance.Rules under the same name.
func conformSuites() []suite {
	return []suite{
		{conformance.SuiteSandbox, true, (*conformRun).backend},
		{conformance.SuiteLease, false, (*conformRun).lease},
		{conformance.SuiteHost, true, (*conformRun).host},
	}
}

func suiteNames() []string {
	var names []string
	for _, s := range conformSuites() {
		names = append(names, s.name)
	}
	return names
}

// conformRun is one run of the command.
type conformRun struct {
	*back
	conformArgs
	box         *sandboxrun.Runner
	hindered    bool // a suite that needs scripts is not OK
	done, total int
}

// conformReport is the answer for machines.
type conformReport struct {
	OK     bool                 `json:"ok"`
	Facts  map[string]string    `json:"facts"`
	Suites []conformance.Report `json:"suites"`
}

func backConform(ctx context.Context, b *back) error {
	c := &conformRun{back: b}
	if err := b.args(&c.conformArgs); err != nil {
		return err
	}
	chosen, err := c.choose()
	if err != nil {
		return err
	}
	box, drop, err := b.trialBox(ctx)
	if err != nil {
		return err
	}
	defer drop()
	defer box.Close()
	c.box = box
	rep := conformReport{OK: true, Facts: conformance.Facts(ctx, c.box)}
	for _, s := range chosen {
		r, err := s.run(c, ctx)
		c.wipe()
		if err != nil {
			return err
		}
		rep.OK = rep.OK && r.OK()
		rep.Suites = append(rep.Suites, r)
		c.hindered = c.hindered || s.scripts && !r.OK()
	}
	if c.JSON {
		err = b.printJSON(rep)
	} else {
		err = c.print(rep)
	}
	if err == nil && !rep.OK {
		err = c.verdict(ctx)
	}
	return err
}

// verdict says why a run is not OK where that is the same for all that is about
// scripts: none can run here. Otherwise the report has said it.
func (c *conformRun) verdict(ctx context.Context) error {
	if rep := c.box.Probe(ctx); c.hindered && !rep.OK {
		return exit.Fail(exit.Verify, rep.Remedy, "scripts cannot run here: %s", rep.Cause)
	}
	return &exit.Failure{Code: exit.Verify}
}

// choose returns the suites asked for that have a rule asked for.
func (c *conformRun) choose() ([]suite, error) {
	for _, name := range c.Suites {
		if !slices.Contains(suiteNames(), name) {
			return nil, exit.Fail(exit.Usage, "the suites are: "+strings.Join(suiteNames(), ", "), "there is no suite %q", name)
		}
	}
	if _, err := path.Match(c.Rule, ""); err != nil {
		return nil, exit.Fail(exit.Usage, "* stands for any characters, ? for one, [a-z] for a range", "--rule %q: %s", c.Rule, err)
	}
	var chosen []suite
	for _, s := range conformSuites() {
		if len(c.Suites) > 0 && !slices.Contains(c.Suites, s.name) {
			continue
		}
		if n := c.count(s.name); n > 0 {
			c.total += n
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		return nil, exit.Fail(exit.Usage, "docs/conformance.md lists the rules", "no rule matches %q", c.Rule)
	}
	return chosen, nil
}

// only says whether a rule was asked for.
func (c *conformRun) only(id string) bool {
	ok, _ := path.Match(c.Rule, id)
	return ok || c.Rule == ""
}

func (c *conformRun) count(suite string) int {
	n := 0
	for _, r := range conformance.Rules() {
		if r.Suite == suite && c.only(r.ID) {
			n++
		}
	}
	return n
}

func (c *conformRun) backend(ctx context.Context) (conformance.Report, error) {
	b, err := sandboxrun.NewBackend(c.box)
	if err != nil {
		return conformance.Report{}, err
	}
	return conformance.RunBackend(ctx, b, sandboxrun.Spec{}, conformance.Case{Only: c.only, Progress: c.progress}), nil
}

func (c *conformRun) host(ctx context.Context) (conformance.Report, error) {
	return conformance.RunHost(ctx, conformance.HostCase{Runner: c.box, UnixSockets: c.set.unixSockets, Only: c.only, Progress: c.progress})
}

// progress shows how far the run is, on one line.
func (c *conformRun) progress(f conformance.Finding) {
	c.done++
	if c.Progress {
		fmt.Fprintf(c.stderr, "\r\x1b[K%d of %d  %s", c.done, max(c.done, c.total), f.Rule)
	}
}

func (c *conformRun) wipe() {
	if c.Progress {
		fmt.Fprint(c.stderr, "\r\x1b[K")
	}
}

// print writes the report for people: what is known of the host, and a table for
// each suite.
func (c *conformRun) print(rep conformReport) error {
	for _, name := range conformance.FactNames() {
		c.printf("%-12s %s\n", name, orNone(rep.Facts[name]))
	}
	for _, r := range rep.Suites {
		c.printf("\n")
		if err := r.WriteTable(c.stdout); err != nil {
			return err
		}
	}
	return nil
}
