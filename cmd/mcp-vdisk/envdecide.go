package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
)

// A decision is made about what a person has seen: the command shows the card, and the
// decision names the lock that was on it. What is no longer so is refused.

// decideArgs are a decision. Of an approval, the pip configuration of Pip bytes follows.
type decideArgs struct {
	ID       string
	Approve  bool
	Isolated bool
	Always   bool
	Lock     string // that was shown
	Note     string
	NoWait   bool
	Proof    proof
	Pip      int64
	Columns  int // of the terminal that progress is shown on, 0 for none
	JSON     bool
}

// check is asked on both sides.
func (q decideArgs) check() error {
	const most = 400 // bytes; see audit.MaxFact
	switch {
	case checkRequestID(q.ID) != nil:
		return checkRequestID(q.ID)
	case q.Lock != "" && !lock.ValidID(q.Lock):
		return exit.Fail(exit.Usage, "the card shows it: 16 hexadecimal digits", "--lock: %q is not the id of a lock", q.Lock)
	case !utf8.ValidString(q.Note) || strings.ContainsFunc(q.Note, unicode.IsControl):
		return exit.Fail(exit.Usage, "write it on one line", "--note is not valid UTF-8, or holds a control character")
	case len(q.Note) > most:
		return exit.Fail(exit.Usage, "say it in fewer words", "--note has %d bytes, and at most %d are kept", len(q.Note), most)
	}
	return nil
}

func (a *app) envApproveCmd() *cobra.Command {
	q := decideArgs{Approve: true}
	cmd := &cobra.Command{
		Use:   "approve ID",
		Short: "Let a workspace have what was asked for, and wait until it has it",
		Long: `approve shows a request, asks for a confirmation, and waits until the packages are there.
The approval is for the very files that were shown; with --lock it is refused when they
are not those of an earlier look. Packages are fetched from where pip of this user would
get them. ^C ends the waiting, not the work. Exit code 1 when nothing came of it.`,
		Example: "  mcp-vdisk env approve 01KB8Z6Q\n  mcp-vdisk env approve 01KB8Z6Q --lock 68d325cf03b5e175 --operator-token ~/.vdisk-operator",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.ID = args[0]
			if cmd.Flags().Changed("lock") && q.Lock == "" {
				return exit.Fail(exit.Usage, "leave the flag out to decide about what is shown", "--lock is empty")
			}
			return a.decide(cmd.Context(), q)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().BoolVar(&q.Isolated, "isolated", false, "as a layer of its own in the place of the base")
	cmd.Flags().StringVar(&q.Lock, "lock", "", "only if it is about the lock `ID`")
	cmd.Flags().BoolVar(&q.Always, "always", false, "and install from now on, without asking, the packages that are not in the catalog yet")
	cmd.Flags().BoolVar(&q.NoWait, "no-wait", false, "do not wait until the packages are there")
	noteFlag(cmd, &q)
	a.tokenFlag(cmd)
	return cmd
}

func (a *app) envDenyCmd() *cobra.Command {
	q := decideArgs{NoWait: true}
	cmd := &cobra.Command{
		Use:     "deny ID",
		Short:   "Refuse what was asked for",
		Long:    `deny closes a request. Who asked is told so, with the note.`,
		Example: "  mcp-vdisk env deny 01KB8Z6Q --note \"pypdf is in the base and does that\"",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.ID = args[0]
			return a.decide(cmd.Context(), q)
		},
	}
	a.jsonFlag(cmd.Flags())
	noteFlag(cmd, &q)
	a.tokenFlag(cmd)
	return cmd
}

func noteFlag(cmd *cobra.Command, q *decideArgs) {
	cmd.Flags().StringVar(&q.Note, "note", "", "a `TEXT` for who asked")
}

// decide shows a request, has a person confirm what is to become of it, and tells the
// back.
func (a *app) decide(ctx context.Context, q decideArgs) error {
	if err := q.check(); err != nil {
		return err
	}
	var config []byte
	var err error
	if q.Approve {
		if config, err = a.pipConfig(); err != nil {
			return err
		}
	}
	f, err := a.request(ctx, requestsArgs{ID: q.ID, Brief: !q.Approve, Waiting: true, Columns: columnsOf(a.Stdout)})
	if err != nil {
		return err
	}
	if err := f.decidable(q); err != nil {
		return err
	}
	seen := a.Stdout
	if a.json {
		seen = a.Stderr
	}
	if q.Approve {
		fmt.Fprintf(seen, "%s\n", f.Card)
		q.Lock = f.Lock
	} else {
		fmt.Fprintf(seen, "%s  %s: %s\n", f.ID, harmless(f.Disk), harmless(wanted(f.Request)))
	}
	q.ID, q.JSON, q.Columns, q.Pip = f.ID, a.json, columnsOf(a.Stderr), int64(len(config))
	if q.Proof, err = a.prove(f.question(q)); err != nil {
		return err
	}
	return a.askLong(ctx, "env.decide", q, bytes.NewReader(config), a.Stdout)
}

// decidable says why a decision cannot be made about a request as it was shown.
func (f requestFacts) decidable(q decideArgs) error {
	again := "mcp-vdisk env requests " + f.ID + " shows it"
	switch d := f.Decision; {
	case f.State == queue.PendingApproval:
	case d != nil:
		verdict := "denied"
		if d.Approve {
			verdict = "approved"
		}
		return exit.Fail(exit.Refused, again, "request %s was %s already, by %s, and is %s", f.ID, verdict, safe(d.By), f.State)
	case f.State.Closed():
		return exit.Fail(exit.Refused, again, "request %s is closed already: %s", f.ID, f.State)
	default:
		return exit.Fail(exit.Busy, again+"; it can be decided when it is pending_approval", "request %s does not wait for a person yet: %s", f.ID, f.State)
	}
	switch {
	case !q.Approve:
		return nil
	case q.Lock != "" && q.Lock != f.Lock:
		return exit.Fail(exit.Refused, again+": look again", "request %s has changed: it is about lock %s now, and not about %s", f.ID, f.Lock, q.Lock)
	case q.Isolated && !slices.Contains(f.Choices, policy.Isolated):
		return exit.Fail(exit.Refused, "approve it without --isolated", "request %s cannot be approved as a layer in the place of the base", f.ID)
	case !q.Isolated && !slices.Contains(f.Choices, policy.Approve):
		return exit.Fail(exit.Refused, "mcp-vdisk env approve "+f.ID+" --isolated", "request %s can only be approved as a layer in the place of the base, which has other versions", f.ID)
	}
	return nil
}

// question is the word that a person types, and what it is for.
func (f requestFacts) question(q decideArgs) (word, what string) {
	if !q.Approve {
		return "deny", "This closes the request."
	}
	what = "This gives the disk \"" + safe(f.Disk) + "\" what is shown above."
	if q.Isolated {
		what = "This gives the disk \"" + safe(f.Disk) + "\" what is shown above, isolated."
	}
	if q.Always && len(f.NotListed) > 0 {
		what += " From now on every disk gets " + strings.Join(f.NotListed, ", ") + " without asking."
	}
	return "approve", what
}

func backEnvDecide(ctx context.Context, b *back) error {
	var q decideArgs
	if err := b.args(&q); err != nil {
		return err
	}
	if err := q.check(); err != nil {
		return err
	}
	about, err := b.proven(q.Proof, audit.Facts{"request": q.ID})
	if err != nil {
		return err
	}
	var pip *resolve.Config
	if q.Approve {
		c, err := b.receivePip(q.Pip)
		if err != nil {
			return err
		}
		pip = &c
	}
	env, kept, err := b.requests(ctx)
	if err != nil {
		return err
	}
	var always []string
	if q.Always {
		if always, err = b.unlisted(ctx, env, kept, q.ID); err != nil {
			return err
		}
	}
	r, err := env.Decide(ctx, q.ID, pyenv.Ruling{
		Approve: q.Approve, Isolated: q.Isolated, Lock: q.Lock, Note: q.Note, Pip: pip, By: b.byWhom(), How: q.Proof.how(),
	})
	if err != nil {
		return b.queueFailure(ctx, q.ID, err)
	}
	// The approval holds, whatever becomes of the catalog.
	unlisted := b.allowAlways(ctx, env, about, always, q.JSON)
	err = b.decided(ctx, env, r, q)
	return cmp.Or(err, unlisted)
}

// byWhom names who asks, for a decision.
func (b *back) byWhom() string {
	by := fmt.Sprintf("operator uid %d", b.peer.UID)
	if b.peer.TTY != "" {
		by += " at " + safe(b.peer.TTY)
	}
	return by
}

// how a decision was confirmed.
func (p proof) how() string {
	if p.Token != "" {
		return "token"
	}
	return "terminal"
}

// unlisted are the packages of a request that waits which the catalog does not allow.
func (b *back) unlisted(ctx context.Context, env *pyenv.Env, kept *queue.Queue, id string) ([]string, error) {
	r, err := kept.Any(id)
	if err != nil || r.State != queue.PendingApproval {
		return nil, b.queueFailure(ctx, id, err) // Decide tells the rest
	}
	c, err := env.Card(ctx, r)
	if err != nil {
		return nil, b.envFailure(ctx, err)
	}
	return notListed(c), nil
}

// allowAlways puts packages on the list of what is installed without asking, in every
// version.
func (b *back) allowAlways(ctx context.Context, env *pyenv.Env, about audit.Facts, names []string, quiet bool) error {
	if len(names) == 0 {
		return nil
	}
	changes, _, err := b.changeCatalog(ctx, env, about, func(c policy.Catalog) (policy.Catalog, error) {
		var err error
		for _, name := range names {
			if c, err = c.AllowName(name, ""); err != nil {
				return policy.Catalog{}, err
			}
		}
		return c, nil
	})
	if err != nil {
		fmt.Fprintf(b.stderr, "the catalog stays as it was: %s\n", harmless(err.Error()))
		return err
	}
	to := b.stdout
	if quiet {
		to = b.stderr
	}
	for _, c := range changes {
		fmt.Fprintf(to, "catalog   %s\n", c)
	}
	return nil
}

// decided tells what came of a decision, for which it waits unless it is told not to.
func (b *back) decided(ctx context.Context, env *pyenv.Env, r queue.Request, q decideArgs) error {
	var err error
	if !q.NoWait {
		if r, err = b.follow(ctx, env, r, q.Columns); err != nil {
			return err
		}
	}
	f := b.requestFacts(ctx, r)[0]
	switch {
	case q.JSON:
		err = b.printJSON(f)
	case !q.Approve:
		b.printf("denied    %s\n", r.ID)
	case q.NoWait && r.State.AtWork():
		b.printf("approved  %s, which goes on %s\n", r.ID, b.whereItGoesOn())
	case r.State == queue.Ready && r.Layer == "":
		b.printf("ready     disk %s has all of it\n", harmless(f.Disk))
	case r.State == queue.Ready:
		b.printf("ready     disk %s has %s from its next script on\n", harmless(f.Disk), r.Layer)
	}
	return cmp.Or(err, f.outcome(q))
}

// whereItGoesOn is who works on a request when this command has ended.
func (b *back) whereItGoesOn() string {
	if b.daemon != nil {
		return "in the daemon"
	}
	return "when mcp-vdisk uses this state directory again"
}

// outcome is the failure that a request ended with, nil if it has not.
func (f requestFacts) outcome(q decideArgs) error {
	again := "mcp-vdisk env requests " + f.ID + " shows it"
	switch {
	case !q.Approve && f.State == queue.Denied, f.State == queue.Ready, q.NoWait && f.State.AtWork():
		return nil
	case f.Failure != nil:
		return exit.Fail(exit.Failed, cmp.Or(harmless(f.Failure.Hint), again), "%s: %s", harmless(f.Failure.Code), harmless(f.Failure.Sentence))
	case len(f.Findings) > 0 && f.State == queue.Rejected:
		return exit.Fail(exit.Failed, again, "%s: %s", harmless(f.Findings[0].Rule), harmless(f.Findings[0].Sentence))
	case f.State == queue.PendingApproval:
		return exit.Fail(exit.Refused, "look at it again: mcp-vdisk env approve "+f.ID, "request %s has to be decided once more: its files are not what they were taken for", f.ID)
	}
	return exit.Fail(exit.Refused, again, "request %s is %s", f.ID, f.State)
}

// followEvery is how often it is looked how far a request is.
const followEvery = 250 * time.Millisecond

// follow shows how far a request is until nobody works on it any more. When ctx ends
// that goes on without it.
func (b *back) follow(ctx context.Context, env *pyenv.Env, r queue.Request, columns int) (queue.Request, error) {
	bar := &progress{w: b.stderr, columns: columns}
	defer bar.end()
	for r.State.AtWork() {
		bar.show(pyenv.Progress{Step: pyenv.Step(r.State), Text: stateTexts[r.State]})
		look, cancel := context.WithTimeout(ctx, followEvery)
		now, err := env.Wait(look, r.Workspace, r.ID, false)
		cancel()
		if ctx.Err() != nil {
			return r, exit.Fail(exit.Interrupted, "mcp-vdisk env requests "+r.ID+" shows how far it is", "interrupted; request %s goes on %s", r.ID, b.whereItGoesOn())
		}
		if err != nil {
			return r, b.queueFailure(ctx, r.ID, err)
		}
		r = now
	}
	return r, nil
}

// stateTexts say what is being done.
var stateTexts = map[queue.State]string{
	queue.Received:     "it waits for its turn",
	queue.Resolving:    "finds which versions go together",
	queue.AutoApproved: "it waits for its turn",
	queue.Approved:     "it waits for its turn",
	queue.Fetching:     "gets the wheels",
	queue.Building:     "builds the layer",
	queue.Probing:      "tries the imports, in the sandbox",
}
