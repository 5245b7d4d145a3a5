package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/store"
)

func (a *app) envCmd() *cobra.Command {
	cmd := group(cobra.Command{
		Use:   "env",
		Short: "Make, look at and tidy up the Python that scripts get",
		Long: `Scripts get an interpreter of their own and the packages of a base layer, both of which
lie in an environment root (the setting env.root) and are shown to them read-only. An
agent cannot install anything: pip has no network in the sandbox. It can ask, and
what the catalog does not allow a person decides.`,
	})
	cmd.AddCommand(a.envEnsureCmd(), a.envStatusCmd(), a.envLockCmd(), a.envImportCmd(), a.envRemoveCmd(), a.envPythonCmd(), a.envDoctorCmd(), a.envGCCmd(),
		a.envRequestsCmd(), a.envApproveCmd(), a.envDenyCmd(), a.envRebaseCmd(), a.envCatalogCmd())
	return cmd
}

func (a *app) envStatusCmd() *cobra.Command {
	var image string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the interpreter, its packages and the scripts that run now",
		Long: `status shows what a script gets: the interpreter and what it was made from, the base
layer and its packages, what is being built, and which scripts run now; with --image also
the layers of that disk and what is asked for on it. It starts and waits for nothing.`,
		Example: "  mcp-vdisk env status --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if image == "" { // that was checked, if it was given
				return a.simple(cmd, "env.status", jsonArgs{a.json}, front.NoImage)
			}
			a.Image = image
			return a.simple(cmd, "env.status", jsonArgs{a.json}, front.OpenRead)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().StringVar(&image, "image", "", "`NAME` of a disk: what its scripts get")
	return cmd
}

// envFacts is what `env status --json` tells.
type envFacts struct {
	Disk      string `json:"disk,omitempty"`
	Workspace string `json:"workspace,omitempty"` // uuid of the disk
	Root      string `json:"root"`
	pyenv.Status
	Running []jobFacts `json:"running"`
}

func backEnvStatus(ctx context.Context, b *back) error {
	var q jsonArgs
	if err := b.args(&q); err != nil {
		return err
	}
	f := envFacts{Root: b.envs(), Running: b.running()}
	if b.req.Image != (front.ImageRef{}) {
		d, err := b.open(ctx, want{readOnly: true})
		if err != nil {
			return err
		}
		f.Disk, f.Workspace = d.name, d.info.UUID
		if err := d.release(); err != nil {
			return err
		}
	}
	_, python, err := b.hub.sandbox(ctx)
	if err != nil {
		return err
	}
	if f.Status, err = python.Status(ctx, f.Workspace); err != nil {
		return err
	}
	if q.JSON {
		return b.printJSON(f)
	}
	b.printEnv(f)
	return nil
}

func (b *back) printEnv(f envFacts) {
	if f.Disk != "" {
		b.printf("disk      %s\n", harmless(f.Disk))
	}
	b.printf("python    %s\n", strings.TrimSpace(fmt.Sprintf("%s %s  %s", orNone(safe(f.Python)), f.Version, f.Kind)))
	if f.Degraded != "" {
		b.printf("          degraded: %s\n", harmless(f.Degraded))
	}
	if f.BaseReady {
		b.printf("base      %s\nlock      %s\n", f.Base, orNone(f.Lock))
	} else {
		b.printf("base      none\n")
	}
	if f.Reason != "" {
		b.printf("          %s\n", harmless(f.Reason))
	}
	if !f.BaseReady && f.Building == "" {
		b.printf("          mcp-vdisk env ensure makes it\n")
	}
	if f.Building != "" {
		b.printf("builds    %s\n", harmless(f.Building))
	}
	var names []string
	for _, p := range f.Packages {
		names = append(names, p.Name+" "+p.Version)
	}
	b.printf("packages  %s\nlayers    %s\nroot      %s\n", orNone(harmless(strings.Join(names, ", "))), orNone(strings.Join(f.Layers, ", ")), harmless(f.Root))
	b.printBound(f)
	for _, j := range f.Running {
		b.printf("running   %s  %s  %s  %s  %s\n", j.ID, safe(j.Disk), j.Language, lasted(j.JobInfo), safe(j.Client))
	}
}

// printBound tells what a disk has of its own, and what is asked for on it.
func (b *back) printBound(f envFacts) {
	if f.Rev > 0 {
		b.printf("bound     revision %d\n", f.Rev)
	}
	if f.Iso != "" {
		b.printf("isolated  %s, in the place of the base\n", f.Iso)
	}
	if len(f.Locks) > 0 {
		b.printf("locks     %s\n", strings.Join(f.Locks, ", "))
	}
	for _, r := range f.Requests {
		b.printf("request   %s  %s  %s\n", r.ID, r.State, fewer(specsOf(r), 50))
	}
}

// running are the scripts of all disks that have not ended.
func (b *back) running() []jobFacts {
	list := []jobFacts{}
	for _, j := range b.jobs() {
		if j.Ended.IsZero() {
			list = append(list, j)
		}
	}
	return list
}

type envGCArgs struct {
	Older  time.Duration
	Forget string // uuid of a disk
	DryRun bool
	JSON   bool
}

func (a *app) envGCCmd() *cobra.Command {
	q := envGCArgs{Older: 24 * time.Hour}
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove layers, wheels and locks that nobody needs any more",
		Long: `gc removes from the environment root what is not current, not used by a running script,
not bound to a disk of this state directory or asked for by one, and older than --older:
layers, the locks and wheels of no layer that stays, and what killed processes left. It lists the disks with layers of their own. One whose file is no
longer here may only be elsewhere, so its layers stay until --forget names it.`,
		Example: "  mcp-vdisk env gc --dry-run\n  mcp-vdisk env gc --older 168h",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if q.Older < 0 {
				return exit.Fail(exit.Usage, "", "--older: must not be negative, is %s", q.Older)
			}
			if cmd.Flags().Changed("forget") {
				if err := front.CheckGiven("forget", q.Forget); err != nil {
					return err
				}
				if q.DryRun {
					return exit.Fail(exit.Usage, "", "--forget does something, and does not go with --dry-run")
				}
			}
			q.JSON = a.json
			return a.askLong(cmd.Context(), "env.gc", q, nil, a.Stdout)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().DurationVar(&q.Older, "older", q.Older, "keep what was made or used within `DURATION`")
	cmd.Flags().BoolVar(&q.DryRun, "dry-run", false, "only tell what would be removed")
	cmd.Flags().StringVar(&q.Forget, "forget", "", "`UUID` of a disk that is gone for good: drop what it is bound to and has asked for, first")
	return cmd
}

// gcFacts is what `env gc --json` tells.
type gcFacts struct {
	DryRun  bool        `json:"dry_run"`
	Removed []itemFacts `json:"removed"`
	Kept    []itemFacts `json:"kept"`
	Bytes   int64       `json:"bytes"`

	Bound []boundFacts `json:"bound"`
}

type itemFacts struct {
	Kind  string `json:"kind"`
	ID    string `json:"id"`
	Why   string `json:"why,omitempty"`
	Bytes int64  `json:"bytes"`
}

func itemsOf(list []store.Item) []itemFacts {
	facts := make([]itemFacts, 0, len(list))
	for _, i := range list {
		facts = append(facts, itemFacts{i.Kind, i.ID, i.Why, i.Bytes})
	}
	return facts
}

func backEnvGC(ctx context.Context, b *back) error {
	var q envGCArgs
	if err := b.args(&q); err != nil {
		return err
	}
	if q.Older < 0 {
		return exit.Fail(exit.Usage, "", "the age must not be negative")
	}
	env, drop, err := b.environment(ctx, nil)
	if err != nil {
		return err
	}
	defer drop()
	if q.Forget != "" {
		if err := b.forgetWorkspace(ctx, env, q.Forget); err != nil {
			return err
		}
	}
	var done store.Report
	collect := func() ([]audit.Facts, error) {
		var err error
		done, err = env.GC(ctx, q.Older, q.DryRun)
		return []audit.Facts{gcRecord(done)}, err
	}
	if q.DryRun {
		_, err = collect()
	} else {
		err = b.recorded(ctx, audit.EvEnvGC, audit.Facts{"older": q.Older.String()}, collect)
	}
	if err != nil {
		return b.envFailure(ctx, err)
	}
	f := gcFacts{q.DryRun, itemsOf(done.Removed), itemsOf(done.Kept), done.Bytes, nil}
	if f.Bound, err = b.hub.bindings(env); err != nil {
		return err
	}
	if q.JSON {
		return b.printJSON(f)
	}
	b.printGC(f)
	return nil
}

func (b *back) printGC(f gcFacts) {
	what, verb := "removed", "removed"
	if f.DryRun {
		what, verb = "would go", "would be removed"
	}
	for _, i := range f.Removed {
		b.printf("%-8s  %-6s  %s  %s\n", what, i.Kind, safe(i.ID), showBytes(i.Bytes))
	}
	for _, i := range f.Kept {
		if i.Kind == "layer" || i.Kind == "python" { // the rest belongs to these, and is much
			b.printf("%-8s  %-6s  %s  %s\n", "kept", i.Kind, safe(i.ID), safe(i.Why))
		}
	}
	for _, w := range f.Bound {
		disk := "its disk is not here"
		switch {
		case w.Disk != "":
			disk = "disk " + harmless(w.Disk)
		case w.Elsewhere:
			disk = "of another state directory"
		}
		b.printf("bound     %s  %s: %s\n", safe(w.Workspace), disk, orNone(strings.Join(w.Layers, ", ")))
	}
	b.printf("%s %s, %s; %d kept\n", plainCount(len(f.Removed), "item"), verb, showBytes(f.Bytes), len(f.Kept))
}

// gcRecord is a collection in the log: how much of what, and which layers.
func gcRecord(r store.Report) audit.Facts {
	f := audit.Facts{"removed": len(r.Removed), "bytes": r.Bytes}
	layers := []string{}
	for _, i := range r.Removed {
		if i.Kind == "layer" {
			layers = append(layers, i.ID)
		}
	}
	f["layers"] = layers
	return f
}
