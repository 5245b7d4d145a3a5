package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
)

func (a *app) jobsCmd() *cobra.Command {
	cmd := group(cobra.Command{
		Use:   "jobs",
		Short: "List, show and cancel scripts that run or whose results are kept",
	})
	cmd.AddCommand(a.jobsListCmd(), a.jobsShowCmd(), a.jobsCancelCmd())
	return cmd
}

type jobArgs struct {
	ID   string
	JSON bool
}

// jobFacts is a job as `jobs list` tells it.
type jobFacts struct {
	Disk string `json:"disk"`
	tools.JobInfo
}

func (a *app) jobsListCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the scripts of all disks, the oldest first",
		Example: "  mcp-vdisk jobs list",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.simple(cmd, "jobs.list", jobArgs{JSON: a.json}, front.NoImage)
		},
	}
	a.jsonFlag(cmd.Flags())
	return cmd
}

func backJobs(_ context.Context, b *back) error {
	var q jobArgs
	if err := b.args(&q); err != nil {
		return err
	}
	list := b.jobs()
	if q.JSON {
		return b.printJSON(list)
	}
	if len(list) == 0 {
		b.printf("no script runs, and no result is kept\n")
	}
	for _, j := range list {
		b.printf("%s  %-8s  %-7s  %-9s  %9s  %s%s\n", j.ID, safe(j.Disk), j.Language, j.State, lasted(j.JobInfo), safe(j.Client), jobNote(j.JobInfo))
	}
	return nil
}

// jobs are those of all disks.
func (b *back) jobs() []jobFacts {
	list := []jobFacts{}
	for _, d := range b.hub.all() {
		for _, j := range d.jobList() {
			list = append(list, jobFacts{d.name, j})
		}
	}
	return list
}

// jobList are the scripts of the disk that run or whose results are kept.
func (d *disk) jobList() []tools.JobInfo {
	if jobs := d.scripts(); jobs != nil {
		return jobs.List()
	}
	return nil
}

// lasted is how long a job ran, or has been running.
func lasted(j tools.JobInfo) string {
	end := j.Ended
	if end.IsZero() {
		end = time.Now()
	}
	return end.Sub(j.Began).Round(100 * time.Millisecond).String()
}

func jobNote(j tools.JobInfo) string {
	note := ""
	if j.Outcome != "" {
		note += "  " + j.Outcome
	}
	if j.Exit != nil {
		note += fmt.Sprintf(" %d", *j.Exit)
	}
	if j.Saved {
		note += ", saved"
	}
	if j.Kept > 0 {
		note += fmt.Sprintf(", %s can still be saved", plainCount(j.Kept, "change"))
	}
	return note
}

func (a *app) jobsShowCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show JOB",
		Short:   "Show what a script printed and changed",
		Example: "  mcp-vdisk jobs show 01K5ZC3V6Q8M2N4P7R9S1T3V5X",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.onJob(cmd, "jobs.show", args[0]) },
	}
	a.jsonFlag(cmd.Flags())
	return cmd
}

func (a *app) jobsCancelCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "cancel JOB",
		Short:   "Stop a script and wait for its end; nothing of it is saved",
		Example: "  mcp-vdisk jobs cancel 01K5ZC3V6Q8M2N4P7R9S1T3V5X",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.onJob(cmd, "jobs.cancel", args[0]) },
	}
}

func (a *app) onJob(cmd *cobra.Command, verb, id string) error {
	if err := pathArg(id); err != nil {
		return err
	}
	return a.simple(cmd, verb, jobArgs{ID: id, JSON: a.json}, front.NoImage)
}

// job finds a job and its disk.
func (b *back) job(q *jobArgs) (*disk, tools.JobInfo, error) {
	if err := b.args(q); err != nil {
		return nil, tools.JobInfo{}, err
	}
	for _, d := range b.hub.all() {
		for _, j := range d.jobList() {
			if j.ID == q.ID {
				return d, j, nil
			}
		}
	}
	return nil, tools.JobInfo{}, exit.Fail(exit.NotFound, "mcp-vdisk jobs list shows those that run or are kept; mcp-vdisk audit query --call "+safe(q.ID)+" what the log has of it",
		"there is no job %q", q.ID)
}

func backJobShow(_ context.Context, b *back) error {
	var q jobArgs
	d, _, err := b.job(&q)
	if err != nil {
		return err
	}
	res, err := d.scripts().Show(q.ID, 0)
	if err != nil {
		return err
	}
	return b.printResult(res, q.JSON)
}

func backJobCancel(ctx context.Context, b *back) error {
	var q jobArgs
	d, j, err := b.job(&q)
	if err != nil {
		return err
	}
	if !j.Ended.IsZero() {
		fmt.Fprintf(b.stderr, "%s had ended already: %s%s\n", q.ID, j.State, jobNote(j))
		return nil
	}
	rec := audit.Record{Ev: audit.EvJobCancel, Img: d.info.UUID, Args: b.operator(audit.Facts{"job": q.ID})}
	if err := b.st.record(ctx, d.info.UUID, rec); err != nil {
		return err
	}
	if err := d.scripts().Cancel(ctx, q.ID, nil); err != nil {
		return err
	}
	fmt.Fprintf(b.stderr, "cancelled %s\n", q.ID)
	return nil
}
