package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
)

// rebaseArgs are a rebase; the pip configuration of Pip bytes follows.
type rebaseArgs struct {
	Approve string // id of a lock, "" for none
	Proof   proof  // with Approve
	Pip     int64
	Columns int // of the terminal that progress is shown on, 0 for none
	Card    int // columns of the card
	JSON    bool
}

// check is asked on both sides.
func (q rebaseArgs) check() error {
	if q.Approve != "" && !lock.ValidID(q.Approve) {
		return exit.Fail(exit.Usage, "the card shows it: 16 hexadecimal digits", "--approve: %q is not the id of a lock", q.Approve)
	}
	return nil
}

func (a *app) envRebaseCmd() *cobra.Command {
	var q rebaseArgs
	cmd := &cobra.Command{
		Use:   "rebase DISK",
		Short: "Put what a disk has asked for on the base layer that is current",
		Long: `rebase finds anew which versions go together of all that was asked for on a disk, over the
base layer as it is now, and binds the disk to it. Where a person has to decide, it shows
what about, and changes nothing: the same command with --approve does it then. Scripts
that run keep what they have.`,
		Example: "  mcp-vdisk env rebase project\n  mcp-vdisk env rebase project --approve 68d325cf03b5e175",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.imageArg(args); err != nil {
				return err
			}
			if cmd.Flags().Changed("approve") && q.Approve == "" {
				return exit.Fail(exit.Usage, "leave the flag out to see what there is to approve", "--approve is empty")
			}
			if err := q.check(); err != nil {
				return err
			}
			config, err := a.pipConfig()
			if err != nil {
				return err
			}
			if q.Approve != "" {
				if q.Proof, err = a.prove("approve", "This gives the disk \""+harmless(a.Image)+"\" the packages of lock "+q.Approve+"."); err != nil {
					return err
				}
			}
			q.Pip, q.JSON, q.Columns, q.Card = int64(len(config)), a.json, columnsOf(a.Stderr), columnsOf(a.Stdout)
			return a.askLongAbout(cmd.Context(), "env.rebase", q, bytes.NewReader(config), a.Stdout)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().StringVar(&q.Approve, "approve", "", "approve the lock `ID` that was shown")
	a.tokenFlag(cmd)
	return cmd
}

// rebaseFacts is what `env rebase --json` tells.
type rebaseFacts struct {
	Disk string `json:"disk"`
	pyenv.RebaseReport
	Lock string `json:"approve,omitempty"` // what a person has to approve first
	Card string `json:"card,omitempty"`
}

func backEnvRebase(ctx context.Context, b *back) error {
	var q rebaseArgs
	if err := b.args(&q); err != nil {
		return err
	}
	if err := q.check(); err != nil {
		return err
	}
	about, how, err := audit.Facts{"approve": q.Approve}, "", error(nil)
	if q.Approve != "" {
		how = q.Proof.how()
		if about, err = b.proven(q.Proof, about); err != nil {
			return err
		}
	}
	pip, err := b.receivePip(q.Pip)
	if err != nil {
		return err
	}
	disk, ws, err := b.workspace(ctx)
	if err != nil {
		return err
	}
	env, _, err := b.requests(ctx)
	if err != nil {
		return err
	}
	about["workspace"], about["disk"], about["from"] = ws, disk, pip.String()
	bar := &progress{w: b.stderr, columns: q.Columns}
	defer bar.end()
	f := rebaseFacts{Disk: disk}
	err = b.recorded(ctx, audit.EvEnvRebase, about, func() ([]audit.Facts, error) {
		var err error
		f.RebaseReport, err = env.Rebase(ctx, pyenv.RebaseRequest{Workspace: ws, Approve: q.Approve, By: b.byWhom(), How: how, Pip: &pip, Progress: bar.show})
		return []audit.Facts{f.record()}, err
	})
	bar.end()
	if err != nil {
		return b.queueFailure(ctx, "", err)
	}
	return b.rebased(f, q)
}

// record is what came of a rebase, for the log.
func (f rebaseFacts) record() audit.Facts {
	facts := audit.Facts{"changed": f.Changed, "rev_before": f.Before.Rev, "rev": f.After.Rev, "base_before": f.Before.Base, "base": f.After.Base,
		"iso": f.After.Iso, "layers": append([]string{}, f.After.Layers...), "locks": append([]string{}, f.After.Locks...)}
	if c := f.RebaseReport.Card; c != nil {
		facts["asks_about"] = c.Lock
	}
	return facts
}

func (b *back) rebased(f rebaseFacts, q rebaseArgs) error {
	var more error
	if c := f.RebaseReport.Card; c != nil {
		c.Name = f.Disk
		c.Approval = "mcp-vdisk env rebase " + tools.ShellQuote(f.Disk) + " --approve " + c.Lock
		f.Card, f.Lock = c.Text(q.Card), c.Lock
		more = exit.Fail(exit.Refused, "look at it, and if it is right: "+c.Approval, "nothing was changed: a person has to approve lock %s first", c.Lock)
	}
	if q.JSON {
		return cmp.Or(b.printJSON(f), more)
	}
	if more != nil {
		b.printf("%s", f.Card)
		return more
	}
	if f.Changed {
		b.field("Before", boundText(f.Before), 0)
		b.field("After", boundText(f.After), 0)
		b.printf("the next script of %s gets it\n", harmless(f.Disk))
		return nil
	}
	b.field("Bound", boundText(f.Before), 0)
	b.printf("nothing to change\n")
	return nil
}

// boundText is what a disk has, in words.
func boundText(x queue.Binding) string {
	if x.Rev == 0 {
		return "nothing of its own: the base that is current"
	}
	text := cmp.Or(x.Iso, x.Base, "no base")
	if len(x.Layers) > 0 {
		text += " with " + strings.Join(x.Layers, ", ")
	}
	return fmt.Sprintf("%s (revision %d)", text, x.Rev)
}
