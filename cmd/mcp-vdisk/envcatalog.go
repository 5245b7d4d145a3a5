package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/policy"
)

type catalogArgs struct {
	Defaults bool
	JSON     bool
}

func (a *app) envCatalogCmd() *cobra.Command {
	var q catalogArgs
	cmd := &cobra.Command{
		Use:   "catalog",
		Short: "Show and change which packages are installed without asking, and which never",
		Long: `catalog shows what is decided in advance for all who share the environment root: the
packages that are installed without asking, those that never are, and the limits from
which on a person is asked. With --json it is the file that catalog set takes.`,
		Example: "  mcp-vdisk env catalog\n  mcp-vdisk env catalog --json > catalog.json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q.JSON = a.json
			return a.askLong(cmd.Context(), "env.catalog", q, nil, a.Stdout)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().BoolVar(&q.Defaults, "defaults", false, "as it is where nobody has changed it")
	cmd.AddCommand(a.catalogAllowCmd(), a.catalogDenyCmd(), a.catalogRemoveCmd(), a.catalogSetCmd())
	return cmd
}

func backEnvCatalog(ctx context.Context, b *back) error {
	var q catalogArgs
	if err := b.args(&q); err != nil {
		return err
	}
	env, drop, err := b.environment(ctx, nil)
	if err != nil {
		return err
	}
	defer drop()
	c, err := env.Catalog()
	if err != nil {
		return b.envFailure(ctx, err)
	}
	if q.Defaults {
		rev := c.Rev // so that catalog set takes it
		c = policy.Default()
		c.Rev = rev
	}
	if q.JSON {
		text, err := c.Encode()
		if err == nil {
			_, err = b.stdout.Write(text)
		}
		return err
	}
	b.printCatalog(c)
	return nil
}

func (b *back) printCatalog(c policy.Catalog) {
	var allowed, denied []string
	for _, e := range c.Allow {
		allowed = append(allowed, e.Name+e.Spec)
	}
	for _, d := range c.Deny {
		if d.Reason != "" {
			d.Name += " " + policy.Quote(d.Reason, 500)
		}
		denied = append(denied, d.Name)
	}
	cooldown := "none"
	if c.CooldownDays > 0 {
		cooldown = "a person is asked about files younger than " + plainCount(c.CooldownDays, "day")
	}
	hosts := "any"
	if len(c.IndexHosts) > 0 {
		hosts = strings.Join(c.IndexHosts, ", ")
	}
	startup := "a person is asked about code that would run at every start"
	if c.StartupCode == policy.StartupReject {
		startup = "code that would run at every start is never installed"
	}
	for _, f := range [][2]string{
		{"Revision", fmt.Sprint(c.Rev)},
		{"Allowed", orNone(strings.Join(allowed, ", "))},
		{"Denied", orNone(strings.Join(denied, ", "))},
		{"Limits", fmt.Sprintf("a wheel of %g MB, %g MB for one request, %d files", float64(c.Caps.WheelBytes)/1e6, float64(c.Caps.ClosureBytes)/1e6, c.Caps.Files)},
		{"Cooldown", cooldown}, {"Hosts", hosts}, {"Startup", startup},
	} {
		b.field(f[0], f[1], 0)
	}
}

// catalogChange is a change of the catalog. Of opSet, a file of Size bytes follows.
type catalogChange struct {
	Op     string
	Names  []string // with versions of opAllow
	Reason string   // of opDeny
	Size   int64
	Proof  proof
}

// The changes.
const (
	opAllow  = "allow"
	opDeny   = "deny"
	opRemove = "remove"
	opSet    = "set"
)

// maxCatalog is how large a file is that is taken for a catalog, in bytes, and maxNames
// how many packages one command names.
const (
	maxCatalog = 1 << 20
	maxNames   = 200
)

func (a *app) catalogAllowCmd() *cobra.Command {
	return a.catalogNames(opAllow, cobra.Command{
		Use:   "allow NAME[SPEC]…",
		Short: "Install packages without asking, in all versions or those that SPEC tells",
		Long: `allow puts packages on the list of what is installed without asking. A package that is
denied has to be taken off that list first, by catalog remove. What a package needs has
to be on the list, too.`,
		Example: "  mcp-vdisk env catalog allow textract 'lxml-html-clean>=0.4'",
	}, "Every disk gets these without asking from now on.", nil)
}

func (a *app) catalogDenyCmd() *cobra.Command {
	var reason string
	cmd := a.catalogNames(opDeny, cobra.Command{
		Use:     "deny NAME…",
		Short:   "Never install packages, whoever asks or needs them",
		Long:    `deny puts packages on the list of what is never installed. What disks have already stays.`,
		Example: "  mcp-vdisk env catalog deny leftpad --reason \"use str.rjust\"",
	}, "No disk gets these from now on.", &reason)
	cmd.Flags().StringVar(&reason, "reason", "", "a `TEXT` for who asks")
	return cmd
}

func (a *app) catalogRemoveCmd() *cobra.Command {
	return a.catalogNames(opRemove, cobra.Command{
		Use:     "remove NAME…",
		Short:   "Ask a person about packages again: take them off both lists",
		Example: "  mcp-vdisk env catalog remove textract",
	}, "A person is asked about these from now on.", nil)
}

// catalogNames is a command that changes what the catalog says of some packages. Its word
// is what a person types.
func (a *app) catalogNames(op string, cmd cobra.Command, what string, reason *string) *cobra.Command {
	cmd.Args = cobra.MinimumNArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q := catalogChange{Op: op, Names: args}
		if reason != nil {
			q.Reason = *reason
		}
		if err := q.check(); err != nil {
			return err
		}
		var err error
		if q.Proof, err = a.prove(op, what); err != nil {
			return err
		}
		return a.askLong(cmd.Context(), "env.catalog.set", q, nil, a.Stdout)
	}
	a.tokenFlag(&cmd)
	return &cmd
}

func (a *app) catalogSetCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set FILE",
		Short: "Put a file in the place of the catalog, limits included",
		Long: `set takes a file as catalog --json prints it, changed by whoever decides. Its policy_rev
has to be that of the catalog as it is, so that no change between is lost; it is raised
by one.`,
		Example: "  mcp-vdisk env catalog --json > catalog.json\n  mcp-vdisk env catalog set catalog.json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "" {
				return exit.Fail(exit.Usage, "", "the name of the file is empty")
			}
			f, u, err := openUpload(args[0], maxCatalog)
			if err != nil {
				return err
			}
			defer f.Close()
			text, err := io.ReadAll(u.send(f))
			if err != nil {
				return exit.Fail(exit.Failed, "", "read %s: %s", args[0], front.ErrText(err))
			}
			if _, err := policy.Parse(text); err != nil {
				return badCatalog(err)
			}
			q := catalogChange{Op: opSet, Size: u.Size}
			if q.Proof, err = a.prove(opSet, "This replaces what is decided in advance for every disk."); err != nil {
				return err
			}
			return a.askLong(cmd.Context(), "env.catalog.set", q, bytes.NewReader(text), a.Stdout)
		},
	}
	a.tokenFlag(cmd)
	return cmd
}

// badCatalog is a refusal of what a person wrote.
func badCatalog(err error) error {
	return exit.Because(err, exit.Usage, "mcp-vdisk env catalog --json shows the form", "%s", err)
}

// check is asked on both sides. It tries the change on the catalog that nobody has
// changed, which finds names and versions that are none.
func (q catalogChange) check() error {
	switch {
	case q.Op == opSet:
		return nil
	case q.Op != opAllow && q.Op != opDeny && q.Op != opRemove:
		return exit.Fail(exit.Usage, "", "%q is no change of the catalog", q.Op)
	case len(q.Names) == 0 || len(q.Names) > maxNames:
		return exit.Fail(exit.Usage, "", "%d packages are named, and 1 to %d are taken", len(q.Names), maxNames)
	}
	if _, err := q.apply(policy.Default()); errors.Is(err, policy.ErrInvalid) {
		return exit.Because(err, exit.Usage, "", "%s", err)
	}
	return nil
}

// apply is the catalog after a change that names packages.
func (q catalogChange) apply(c policy.Catalog) (policy.Catalog, error) {
	for _, name := range q.Names {
		var err error
		switch q.Op {
		case opAllow:
			var e policy.Entry
			if e, err = policy.ParseEntry(name); err == nil {
				c, err = c.AllowName(e.Name, e.Spec)
			}
		case opDeny:
			c, err = c.DenyName(name, q.Reason)
		default:
			c, err = c.RemoveName(name)
		}
		if err != nil {
			return policy.Catalog{}, err
		}
	}
	return c, nil
}

// errOldFile is a file that was made from a catalog which has been changed since.
var errOldFile = errors.New("the file was made from another revision of the catalog")

// replaceBy makes a change of a file.
func replaceBy(file policy.Catalog) func(policy.Catalog) (policy.Catalog, error) {
	return func(c policy.Catalog) (policy.Catalog, error) {
		if file.Rev != c.Rev {
			return policy.Catalog{}, fmt.Errorf("%w: it has policy_rev %d, and the catalog %d", errOldFile, file.Rev, c.Rev)
		}
		if len(catalogChanges(c, file)) > 0 {
			file.Rev++
		}
		return file, nil
	}
}

func backEnvCatalogSet(ctx context.Context, b *back) error {
	var q catalogChange
	if err := b.args(&q); err != nil {
		return err
	}
	if err := q.check(); err != nil {
		return err
	}
	about, err := b.proven(q.Proof, audit.Facts{})
	if err != nil {
		return err
	}
	about["change"] = q.Op
	change := q.apply
	if q.Op == opSet {
		from, err := b.receive(upload{Name: "catalog.json", Size: q.Size}, maxCatalog)
		if err != nil {
			return err
		}
		text, err := io.ReadAll(from)
		if err != nil {
			return fmt.Errorf("read the catalog: %w", err)
		}
		file, err := policy.Parse(text)
		if err != nil {
			return badCatalog(err)
		}
		change = replaceBy(file)
	}
	env, drop, err := b.environment(ctx, nil)
	if err != nil {
		return err
	}
	defer drop()
	changes, rev, err := b.changeCatalog(ctx, env, about, change)
	switch {
	case err != nil:
		return err
	case len(changes) == 0 && q.Op == opRemove:
		return exit.Fail(exit.NotFound, "mcp-vdisk env catalog shows both", "nothing of this is on a list of the catalog")
	case len(changes) == 0:
		b.printf("nothing changed: the catalog says so already, in revision %d\n", rev)
		return nil
	}
	for _, c := range changes {
		b.printf("%s\n", c)
	}
	b.printf("revision %d of the catalog; what waits for a person already is not decided by it\n", rev)
	return nil
}

// changeCatalog changes the catalog, and records it: the wish before, and afterwards each
// change. It returns these, and the revision.
func (b *back) changeCatalog(ctx context.Context, env *pyenv.Env, about audit.Facts, change func(policy.Catalog) (policy.Catalog, error)) (changes []string, rev int, err error) {
	err = b.recorded(ctx, audit.EvCatalogSet, about, func() ([]audit.Facts, error) {
		var before policy.Catalog
		after, err := env.SetCatalog(ctx, func(c policy.Catalog) (policy.Catalog, error) {
			before = c
			return change(c)
		})
		if err != nil {
			return nil, err
		}
		changes, rev = catalogChanges(before, after), after.Rev
		return changeFacts(changes, before.Rev, after.Rev), nil
	})
	switch {
	case err == nil:
		return changes, rev, nil
	case errors.Is(err, policy.ErrDenied):
		err = exit.Because(err, exit.Refused, "mcp-vdisk env catalog remove NAME takes it off that list", "%s", err)
	case errors.Is(err, policy.ErrInvalid):
		err = badCatalog(err)
	case errors.Is(err, errOldFile):
		err = exit.Because(err, exit.Refused, "mcp-vdisk env catalog --json shows it as it is: change that", "%s", err)
	default:
		err = b.envFailure(ctx, err)
	}
	return nil, 0, err
}

// changesAtOnce is how many changes one record tells: each may have 512 bytes, and a
// record has 16 KiB.
const changesAtOnce = 20

// changeFacts are the changes for the log.
func changeFacts(changes []string, before, after int) (list []audit.Facts) {
	for part := range slices.Chunk(changes, changesAtOnce) {
		f := audit.Facts{}
		for _, c := range part {
			f[fmt.Sprintf("change-%03d", len(list)*changesAtOnce+len(f))] = c
		}
		list = append(list, f)
	}
	if len(list) == 0 {
		list = append(list, audit.Facts{})
	}
	for _, f := range list {
		f["policy_rev_before"], f["policy_rev"], f["changes"] = before, after, len(changes)
	}
	return list
}

// catalogChanges tells what is not the same in two catalogs, revision apart: "allow
// pandas<4", "no longer denied evil", "cooldown_days 7 -> 0".
func catalogChanges(before, after policy.Catalog) (list []string) {
	rules := func(c policy.Catalog) map[string]string {
		m := map[string]string{}
		for _, e := range c.Allow {
			m["allowed "+e.Name] = e.Name + e.Spec
		}
		for _, d := range c.Deny {
			m["denied "+d.Name] = strings.TrimSpace(d.Name + " " + d.Reason)
		}
		for _, h := range c.IndexHosts {
			m["host "+h] = h
		}
		return m
	}
	old, now := rules(before), rules(after)
	for _, key := range slices.Sorted(maps.Keys(old)) {
		kind, _, _ := strings.Cut(key, " ")
		if _, ok := now[key]; !ok {
			list = append(list, "no longer "+kind+" "+old[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(now)) {
		kind, _, _ := strings.Cut(key, " ")
		if was, ok := old[key]; !ok || was != now[key] {
			list = append(list, kind+" "+now[key])
		}
	}
	for _, n := range []struct {
		key      string
		old, now any
	}{
		{"caps.wheel_bytes", before.Caps.WheelBytes, after.Caps.WheelBytes}, {"caps.closure_bytes", before.Caps.ClosureBytes, after.Caps.ClosureBytes},
		{"caps.files", before.Caps.Files, after.Caps.Files}, {"cooldown_days", before.CooldownDays, after.CooldownDays}, {"startup_code", before.StartupCode, after.StartupCode},
	} {
		if n.old != n.now {
			list = append(list, fmt.Sprintf("%s %v -> %v", n.key, n.old, n.now))
		}
	}
	return list
}
