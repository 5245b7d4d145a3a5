package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

func (a *app) doctorCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what works on this host, by trying it",
		Long: `doctor sets up the stage and the sandbox as a script would get them, apart and
together, and says what is missing and how to mend it, and what limits a script's
memory and processes. It opens no disk and works
beside a running server. Exit code 1 when scripts cannot run here.`,
		Example: "  mcp-vdisk doctor",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := a.simple(cmd, "doctor", jsonArgs{a.json}, front.NoImage)
			if !a.json {
				a.tellWaiting(cmd.Context())
			}
			return err
		},
	}
	a.jsonFlag(cmd.Flags())
	return cmd
}

// tellWaiting says whether somebody waits for a person's decision, as far as a daemon that
// runs can tell.
func (a *app) tellWaiting(ctx context.Context) {
	r, err := a.NewRequest("daemon.status", nil)
	if err != nil || a.Alone() {
		return
	}
	if f, err := a.askDaemon(ctx, r); err == nil && f.Waiting > 0 {
		fmt.Fprintf(a.Stdout, "\nrequests    %s\n", waitingText(f.Waiting))
	}
}

// doctorFacts is what doctor found.
type doctorFacts struct {
	Level      string            `json:"level"`
	UID        int               `json:"uid"` // that scripts and state belong to
	State      string            `json:"state"`
	FreeBytes  uint64            `json:"free_bytes"`
	Sandbox    sandboxrun.Report `json:"sandbox"`
	Python     pyenv.Status      `json:"python"`
	Primitives map[string]string `json:"primitives"`
	Limits     map[string]string `json:"limits"`
}

func backDoctor(ctx context.Context, b *back) error {
	var q jsonArgs
	if err := b.args(&q); err != nil {
		return err
	}
	box, drop, err := b.trialBox(ctx)
	if err != nil {
		return err
	}
	defer drop()
	defer box.Close()
	f := doctorFacts{UID: os.Getuid(), State: b.req.State, Sandbox: box.Probe(ctx), Primitives: hostos.Implementations()}
	maps.Copy(f.Primitives, f.Sandbox.Implementations())
	f.Level = f.Sandbox.Level
	f.FreeBytes, _, _ = hostos.Free(existing(b.req.State))
	if f.Python, err = b.trialPython(ctx, box); err != nil {
		return err
	}
	if _, f.Limits, err = parseSettings(b.req.Config, b.req.ConfigName); err != nil {
		return err
	}
	if q.JSON {
		err = b.printJSON(f)
	} else {
		b.printDoctor(f)
	}
	if err == nil && !f.Sandbox.OK {
		err = &exit.Failure{Code: exit.Failed}
	}
	return err
}

// trialPython is what scripts get, as far as it is there: doctor makes nothing.
func (b *back) trialPython(ctx context.Context, box *sandboxrun.Runner) (pyenv.Status, error) {
	o := pyenv.Options{Box: box, Logger: b.log}
	if root := b.envs(); existing(root) == root {
		o.Root = root
	}
	env, err := pyenv.Open(o)
	if err != nil {
		return pyenv.Status{Reason: asFailure(ctx, b.envFailure(ctx, err)).Text}, nil
	}
	defer env.Close()
	return env.Status(ctx, "")
}

// existing is the nearest directory above a path that is there.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}

func (b *back) printDoctor(f doctorFacts) {
	s := f.Sandbox
	if s.OK {
		b.printf("scripts and files work here\n\n")
	} else {
		b.printf("only files work here: %s\n", s.Cause)
		if s.Remedy != "" {
			b.printf("remedy: %s\n", s.Remedy)
		}
		if s.Steps != "" {
			b.printf("\nas root:\n\n%s", s.Steps)
		}
		b.printf("\n")
	}
	for _, c := range s.Checks {
		mark := "ok  "
		if !c.OK {
			mark = "FAIL"
		}
		b.printf("%s  %-11s %s\n", mark, c.Name, c.Detail)
	}
	b.printf("\nkernel      %s\nbubblewrap  %s %s\nchanges     kept in %s until saved\nruns as     uid %d\n", s.Kernel, orNone(s.Bwrap), s.Version, orNone(s.Upper), f.UID)
	for _, l := range s.Limits {
		name := map[string]string{"memory": "memory", "pids": "processes"}[l.Resource]
		b.printf("%-11s limited by %s\n", name, l.By)
		if l.Reason != "" {
			b.printf("            %s\n", l.Reason)
		}
	}
	b.printf("python      %s %s\n", orNone(f.Python.Python), f.Python.Version)
	if f.Python.Reason != "" {
		b.printf("            %s\n", f.Python.Reason)
	}
	b.printf("state       %s, %s free\n", f.State, showBytes(int64(min(f.FreeBytes, 1<<62))))
	b.printf("\nlimits of a script\n")
	for _, s := range table() {
		if name, ok := strings.CutPrefix(s.key, "script."); ok {
			b.printf("%-15s %s\n", name, f.Limits[s.key])
		}
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
