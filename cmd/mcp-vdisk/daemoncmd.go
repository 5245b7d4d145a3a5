package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/spf13/cobra"
)

func (a *app) daemonCmd() *cobra.Command {
	cmd := group(cobra.Command{
		Use:   "daemon",
		Short: "Look at, stop or run the process that owns the state directory",
		Long: `One daemon per state directory owns its disks and its log. mcp-vdisk serve starts it
when there is none, and every other command asks it while it runs. It ends by itself
some time after the last client and script.`,
	})
	cmd.AddCommand(a.daemonStatusCmd(), a.daemonStopCmd(), a.daemonRestartCmd(), a.daemonRunCmd())
	return cmd
}

func (a *app) daemonStatusCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show the daemon, who is connected and what runs; exit code 3 when there is none",
		Example: "  mcp-vdisk daemon status --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := a.NewRequest("daemon.status", jsonArgs{a.json})
			if err != nil {
				return err
			}
			f, err := a.askDaemon(cmd.Context(), r)
			if err != nil {
				return err
			}
			if a.json {
				err = printJSON(a.Stdout, f)
			} else {
				a.printDaemon(f)
			}
			if err == nil && !f.Running {
				err = &exit.Failure{Code: exit.NotFound}
			}
			return err
		},
	}
	a.jsonFlag(cmd.Flags())
	return cmd
}

// askDaemon asks the daemon, if there is one, for something that ends with its
// facts.
func (a *app) askDaemon(ctx context.Context, r front.Request) (daemonFacts, error) {
	none := daemonFacts{State: r.State, Clients: []about{}, Disks: []string{}}
	conn, _, err := a.Dial(r)
	if conn == nil || err != nil {
		return none, err
	}
	defer conn.Close()
	if err := conn.SendRequest(r, nil); err != nil {
		return none, fmt.Errorf("ask the daemon: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var out bytes.Buffer
	if err := a.Receive(conn, &out); err != nil {
		return none, err
	}
	var f daemonFacts
	return f, json.Unmarshal(out.Bytes(), &f)
}

func (a *app) printDaemon(f daemonFacts) {
	if !f.Running {
		fmt.Fprintf(a.Stdout, "no daemon runs for %s; mcp-vdisk serve starts one\n", f.State)
		return
	}
	idle := "never ends by itself"
	if f.Idle != "" {
		idle = "ends " + f.Idle + " after it was last needed"
	}
	fmt.Fprintf(a.Stdout, "daemon   process %d, uid %d, mcp-vdisk %s, since %s; %s\nstate    %s\nsocket   %s\nlog      %s\n",
		f.PID, f.UID, f.Version, f.Since.Local().Format(time.DateTime), idle, f.State, f.Socket, f.Log)
	if f.OldConf {
		fmt.Fprintf(a.Stdout, "settings were changed since it started: mcp-vdisk daemon restart takes them up\n")
	}
	fmt.Fprintf(a.Stdout, "scripts  %d running, results of %d kept\n", f.Scripts, f.Kept)
	if f.Waiting > 0 {
		fmt.Fprintf(a.Stdout, "requests %s\n", waitingText(f.Waiting))
	}
	for _, d := range f.Disks {
		fmt.Fprintf(a.Stdout, "disk     %s\n", harmless(d))
	}
	for _, c := range f.Clients {
		note := ""
		if c.Exclusive {
			note += ", exclusive"
		}
		if c.ReadOnly {
			note += ", read-only"
		}
		fmt.Fprintf(a.Stdout, "client   process %d (%s), uid %d: %s %s%s, since %s\n", c.PID, orNone(safe(cmp.Or(c.Client, c.Parent))), c.UID, c.Verb, safe(c.Image), note, c.Since.Local().Format(time.DateTime))
	}
}

func (a *app) daemonStopCmd() *cobra.Command {
	var q front.StopArgs
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "End the daemon, and with it the sessions of all who are connected",
		Long: `stop ends the daemon. It is refused while a script runs, a call is at work, or results
of scripts can still be asked for; --force ends it all the same, and scripts with it.`,
		Example: "  mcp-vdisk daemon stop",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := a.stopDaemon(cmd.Context(), q)
			if err == nil && !f.Running {
				fmt.Fprintf(a.Stderr, "no daemon runs for %s\n", f.State)
			} else if err == nil {
				fmt.Fprintf(a.Stderr, "stopped process %d; %s connected\n", f.PID, plainCount(len(f.Clients), "client"))
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&q.Force, "force", false, "also when scripts run or their results are kept")
	return cmd
}

// stopDaemon ends the daemon, if there is one, and waits for its end.
func (a *app) stopDaemon(ctx context.Context, q front.StopArgs) (daemonFacts, error) {
	r, err := a.NewRequest("daemon.stop", q)
	if err != nil {
		return daemonFacts{}, err
	}
	f, err := a.askDaemon(ctx, r)
	if err != nil || !f.Running {
		return f, err
	}
	return f, a.Gone(r, f.PID)
}

func (a *app) daemonRestartCmd() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "restart",
		Short: "Start the daemon anew, with the settings as they are now; clients stay connected",
		Long: `restart ends the daemon and starts the next one. Sessions go on: their clients notice
nothing. Like stop it is refused while something would be lost.`,
		Example: "  mcp-vdisk daemon restart",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := a.NewRequest("daemon.status", nil)
			if err != nil {
				return err
			}
			if err := a.Restart(cmd.Context(), r, force); err != nil {
				return err
			}
			f, err := a.askDaemon(cmd.Context(), r)
			if err == nil {
				fmt.Fprintf(a.Stderr, "the daemon is process %d now\n", f.PID)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also when scripts run or their results are kept")
	return cmd
}

func (a *app) daemonRunCmd() *cobra.Command {
	q := front.DaemonArgs{Foreground: true}
	cmd := &cobra.Command{
		Use:     "run",
		Short:   "Be the daemon, in the foreground, until it is stopped: for systemd and containers",
		Example: "  mcp-vdisk daemon run\n  mcp-vdisk --state /srv/vdisk daemon run --idle 1h",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := a.NewRequest("daemon.run", q)
			if err != nil {
				return err
			}
			r.Image = front.ImageRef{}
			return a.Become(cmd.Context(), r, nil)
		},
	}
	cmd.Flags().DurationVar(&q.Idle, "idle", 0, "end `DURATION` after it was last needed (default: never)")
	return cmd
}
