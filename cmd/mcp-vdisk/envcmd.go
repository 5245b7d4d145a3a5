package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
)

func (a *app) envCmd() *cobra.Command {
	cmd := group(cobra.Command{
		Use:   "env",
		Short: "Look at the Python that scripts get",
	})
	cmd.AddCommand(a.envStatusCmd())
	return cmd
}

func (a *app) envStatusCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the interpreter, its packages and the scripts that run now",
		Long: `status shows what a script gets: the interpreter, found out by running it in the
sandbox, and its packages; and which scripts run now. It waits for no script.`,
		Example: "  mcp-vdisk env status --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.simple(cmd, "env.status", jsonArgs{a.json}, front.NoImage)
		},
	}
	a.jsonFlag(cmd.Flags())
	return cmd
}

// envFacts is what `env status --json` tells.
type envFacts struct {
	Python   string     `json:"python"`
	Version  string     `json:"version"`
	Prefix   string     `json:"prefix"`
	Packages []string   `json:"packages"`
	Reason   string     `json:"reason,omitempty"` // why there is no interpreter, or why it was not asked
	Running  []jobFacts `json:"running"`
}

func backEnvStatus(ctx context.Context, b *back) error {
	var q jsonArgs
	if err := b.args(&q); err != nil {
		return err
	}
	_, python, err := b.hub.sandbox(ctx)
	if err != nil {
		return err
	}
	st, err := python.Status(ctx)
	if err != nil {
		return err
	}
	f := envFacts{Python: st.Path, Version: st.Version, Prefix: st.Prefix, Packages: append([]string{}, st.Packages...), Reason: st.Reason, Running: b.running()}
	if q.JSON {
		return b.printJSON(f)
	}
	b.printf("python    %s %s\n", orNone(f.Python), f.Version)
	if f.Reason != "" {
		b.printf("          %s\n", safe(f.Reason))
	}
	b.printf("packages  %s\n", orNone(harmless(strings.Join(f.Packages, ", "))))
	b.printf("layers    none\n")
	for _, j := range f.Running {
		b.printf("running   %s  %s  %s  %s  %s\n", j.ID, safe(j.Disk), j.Language, lasted(j.JobInfo), safe(j.Client))
	}
	return nil
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
