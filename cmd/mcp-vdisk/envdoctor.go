package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
)

type envDoctorArgs struct {
	HostPath []string // of the caller
	Strict   bool
	JSON     bool
}

func (a *app) envDoctorCmd() *cobra.Command {
	var q envDoctorArgs
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what is wrong with the Python of scripts",
		Long: `doctor tells which interpreters there are, which one scripts get, and why not the others,
those on your PATH included; with what packages would be looked for; and reads every
file of that Python and of the base layer, to compare it with what was made. Exit code 10
when a file was changed, 1 when something else is wrong.`,
		Example: "  mcp-vdisk env doctor",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q.JSON, q.HostPath = a.json, callersPath()
			return a.askLong(cmd.Context(), "env.doctor", q, nil, a.Stdout)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().BoolVar(&q.Strict, "strict", false, "read every layer, not only the current one")
	return cmd
}

// callersPath is the part of PATH that has a python3, as far as a request can hold it.
// The caller looks, who may see what the user that scripts run as does not.
func callersPath() []string {
	const most = 100
	var list []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) && hasPython(dir) && utf8.ValidString(dir) && len(dir) < 1024 && len(list) < most {
			list = append(list, dir)
		}
	}
	return list
}

func hasPython(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "python3"))
	return err == nil
}

func backEnvDoctor(ctx context.Context, b *back) error {
	var q envDoctorArgs
	if err := b.args(&q); err != nil {
		return err
	}
	env, drop, err := b.environment(ctx, func(o *pyenv.Options) {
		o.HostPath = q.HostPath
		o.Queue = b.hub.requests() // to look at: nobody asks this one for packages
	})
	if err != nil {
		return err
	}
	defer drop()
	r, err := env.Doctor(ctx, q.Strict)
	if err != nil {
		return b.envFailure(ctx, err)
	}
	r.Problems = append(r.Problems, b.hub.queueProblems()...)
	if q.JSON {
		err = b.printJSON(r)
	} else {
		b.printEnvDoctor(r)
	}
	if err != nil {
		return err
	}
	return verdict(r)
}

// verdict is how a diagnosis ends: a layer or an interpreter that is not what was made is
// a matter of its own.
func verdict(r pyenv.DoctorReport) error {
	for _, l := range slices.Concat(r.Pythons, r.Layers) {
		if len(l.Faults) > 0 {
			return &exit.Failure{Code: exit.Verify}
		}
	}
	if len(r.Problems) > 0 {
		return &exit.Failure{Code: exit.Failed}
	}
	return nil
}

func (b *back) printEnvDoctor(r pyenv.DoctorReport) {
	b.printf("root      %s\n", harmless(r.Root))
	for _, c := range r.Candidates {
		mark := "not used"
		if c.Chosen {
			mark = "used"
		}
		b.printf("python    %-8s  %s: %s\n", mark, harmless(c.Path), harmless(c.Why))
	}
	st := r.Status
	b.printf("scripts   %s %s, %s\n", orNone(safe(st.Python)), st.Version, orNone(st.Kind))
	for _, p := range r.Pythons {
		b.printCompared("python", p)
	}
	for _, l := range r.Layers {
		b.printCompared("layer", l)
	}
	b.printf("resolver  %s\ncjk font  %s\n", orNone(safe(r.Resolver)), orNone(harmless(r.CJKFont)))
	for _, p := range r.Problems {
		b.printf("PROBLEM   %s\n", harmless(p))
	}
	for _, n := range r.Notes {
		b.printf("note      %s\n", harmless(n))
	}
	if len(r.Problems) == 0 {
		b.printf("all is well\n")
	}
}

// printCompared tells what reading all of an interpreter or a layer found.
func (b *back) printCompared(what string, r pyenv.LayerReport) {
	mark := "ok"
	if len(r.Faults) > 0 {
		mark = "CHANGED"
	}
	b.printf("%-8s  %-8s  %s, %s, %s\n", what, mark, harmless(r.ID), plainCount(r.Files, "file"), showBytes(r.Bytes))
	for _, f := range r.Faults {
		b.printf("          %-10s  %s\n", f.Kind, harmless(f.Path))
	}
}
