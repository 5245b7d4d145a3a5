package main

import (
	"cmp"
	"context"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

func (a *app) leaseCmd() *cobra.Command {
	cmd := group(cobra.Command{
		Use:   "lease",
		Short: "Show who may change a disk, and take that right back",
	})
	cmd.AddCommand(a.leaseListCmd(), a.leaseBreakCmd(), a.leaseAdoptCmd())
	return cmd
}

// leaseFacts is a lease as `lease list` tells it.
type leaseFacts struct {
	Disk      string    `json:"disk"` // its name if that is known, else its uuid
	UUID      string    `json:"uuid"`
	Owner     string    `json:"owner"`
	Client    string    `json:"client"`
	Token     uint64    `json:"token"`
	Exclusive bool      `json:"exclusive"`
	Since     time.Time `json:"since"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	Over      bool      `json:"over,omitempty"`
}

func (a *app) leaseListCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the leases that are held",
		Long: `A disk is under one lease while it is changed: that of all sessions together, or that of
one session that was started with --exclusive. Its token is in every commit, and the
disk refuses a lower one.`,
		Example: "  mcp-vdisk lease list",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.simple(cmd, "lease.list", jsonArgs{a.json}, front.NoImage)
		},
	}
	a.jsonFlag(cmd.Flags())
	return cmd
}

func backLeases(ctx context.Context, b *back) error {
	var q jsonArgs
	if err := b.args(&q); err != nil {
		return err
	}
	p, err := b.hub.provider()
	if err != nil {
		return err
	}
	all, err := p.List(ctx)
	if err != nil {
		return err
	}
	list := make([]leaseFacts, 0, len(all))
	for _, l := range all {
		list = append(list, b.hub.leaseFacts(ctx, l))
	}
	if q.JSON {
		return b.printJSON(list)
	}
	if len(list) == 0 {
		b.printf("no lease is held; the first change of a disk takes one\n")
	}
	for _, f := range list {
		kind, until := "shared", "until "+f.ExpiresAt.Local().Format(time.DateTime)+" unless renewed"
		if f.Exclusive {
			kind = "exclusive"
		}
		if f.Over {
			until = "over: its process was killed, or it was not renewed in time; the next change of the disk ends what is left of it"
		}
		b.printf("%-16s  %-9s  token %-6d  %s  since %s, %s\n", safe(f.Disk), kind, f.Token, safe(f.Client), f.Since.Local().Format(time.DateTime), until)
	}
	return nil
}

func (h *hub) leaseFacts(ctx context.Context, l lease.Lease) leaseFacts {
	f := leaseFacts{Disk: l.Key.Handle, UUID: l.Key.Handle, Owner: l.Owner, Client: l.Client, Token: l.Token,
		Exclusive: l.Client != together, Since: l.Since, ExpiresAt: l.ExpiresAt, Over: l.Remaining == 0}
	d := h.named(l.Key.Handle)
	if d == nil {
		f.Disk = cmp.Or(h.nameOf(ctx, f.UUID), f.UUID)
		return f
	}
	f.Disk = d.name
	if x, client := d.right.soleHolder(); x != nil && x.held.Grant().Owner == l.Owner {
		f.Client, f.Exclusive = client, true
	}
	return f
}

// nameOf finds the name of a disk that is not open among those of the state
// directory; "" when it is none of them.
func (h *hub) nameOf(ctx context.Context, uuid string) string {
	names, err := h.st.imageNames()
	if err != nil {
		return ""
	}
	for _, name := range names {
		d, err := h.open(ctx, want{ref: front.ImageRef{Name: name}, readOnly: true, unsettled: true})
		if err != nil {
			continue
		}
		found := d.info.UUID == uuid
		d.release()
		if found {
			return name
		}
	}
	return ""
}

type whyArgs struct {
	Why   string
	Proof proof
}

// check holds the reason to what the log keeps whole. It is asked on both sides.
func (q whyArgs) check() error {
	const most = 400 // bytes; see audit.MaxFact
	switch {
	case strings.TrimSpace(q.Why) == "":
		return exit.Fail(exit.Usage, "", "--why is missing: say in a few words why, for the log")
	case !utf8.ValidString(q.Why):
		return exit.Fail(exit.Usage, "", "--why is not valid UTF-8")
	case len(q.Why) > most:
		return exit.Fail(exit.Usage, "say it in fewer words", "--why has %d bytes, and the log keeps %d", len(q.Why), most)
	case strings.ContainsFunc(q.Why, unicode.IsControl):
		return exit.Fail(exit.Usage, "write it on one line", "--why holds a control character")
	}
	return nil
}

func (a *app) leaseBreakCmd() *cobra.Command {
	return a.leaseChange("break [NAME|PATH]", "lease.break", "End the lease of a disk; scripts that run under it are killed first",
		`break ends the lease of a disk, whoever holds it. What runs under it is killed, and when
that is gone the disk gets a new token, so that nothing that still arrives from before
counts. An exclusive session that lost its lease can read and not change anything; its
client has to connect again.`,
		"  mcp-vdisk lease break project --why \"the laptop is in the repair shop\"", "break")
}

func (a *app) leaseAdoptCmd() *cobra.Command {
	return a.leaseChange("adopt [NAME|PATH]", "lease.adopt", "Go on with a disk that is newer or older than the state directory",
		`A state directory that was put back from a backup does not know of the changes that its
disks have seen since, and refuses to change them: another copy of it may be at work
elsewhere. So it does with a disk that lacks changes which it knows of, because an older
copy was put in its place. adopt says that the disk and the state directory, as they
are, go on together.`,
		"  mcp-vdisk lease adopt project --why \"restored after the disk crash\"", "adopt")
}

// leaseChange is a command that changes who may change a disk, for which a person
// has to answer.
func (a *app) leaseChange(use, verb, short, long, example, word string) *cobra.Command {
	var q whyArgs
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example, Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.Image == "" {
				a.Image = front.DefaultImage
			}
			if err := a.imageArg(args); err != nil {
				return err
			}
			if err := q.check(); err != nil {
				return err
			}
			var err error
			if q.Proof, err = a.prove(word, "This changes who may change the disk "+a.Image+"."); err != nil {
				return err
			}
			return a.simple(cmd, verb, q, front.OpenWrite)
		},
	}
	cmd.Flags().StringVar(&q.Why, "why", "", "the `REASON`, for the log")
	a.tokenFlag(cmd)
	return cmd
}

// leaseChange opens the disk of a change to its lease, once it is known that a
// person wants it. about is for the log.
func (b *back) leaseChange(ctx context.Context) (d *disk, q whyArgs, about audit.Facts, err error) {
	if err = b.args(&q); err != nil {
		return nil, q, nil, err
	}
	if err = q.check(); err != nil {
		return nil, q, nil, err
	}
	if about, err = b.proven(q.Proof, audit.Facts{}); err != nil {
		return nil, q, nil, err
	}
	d, err = b.open(ctx, want{})
	return d, q, about, err
}

func backLeaseBreak(ctx context.Context, b *back) error {
	d, q, about, err := b.leaseChange(ctx)
	if err != nil {
		return err
	}
	defer d.release()
	about["why"] = q.Why
	was, err := d.right.broken(ctx, about)
	if err != nil {
		return err
	}
	b.printf("ended the lease of %s: token %d, %s, since %s\n", d.name, was.Token, safe(was.Client), was.Since.Local().Format(time.DateTime))
	return nil
}

func backLeaseAdopt(ctx context.Context, b *back) error {
	d, q, about, err := b.leaseChange(ctx)
	if err != nil {
		return err
	}
	defer d.release()
	seen, err := d.right.adopt(ctx, about, q.Why)
	if err != nil {
		return err
	}
	b.printf("adopted %s: leases go on above token %d\n", d.name, seen.Token)
	return nil
}
