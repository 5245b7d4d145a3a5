package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/bundle"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/hostcopy"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

type backupArgs struct {
	Keys bool
	To   string // last element of the file's path, "-" for a stream; for the log
}

func (a *app) backupCmd() *cobra.Command {
	var q backupArgs
	var force bool
	cmd := &cobra.Command{
		Use:   "backup FILE|-",
		Short: "Copy the whole state directory into one file, while everything runs",
		Long: `backup writes the disks of the state directory, their log, the settings, and what Python
environments are made from into one file, all as of one moment. Sessions and scripts go
on: changes wait for some milliseconds, and only while that moment is chosen.

It holds everything that the disks hold, so keep it as you keep those. Operator tokens
are not in it: after a restore they are good for nothing, unless it was made with
--with-keys. Disks that are opened by their path lie elsewhere and are not in it either;
mcp-vdisk image export copies one.`,
		Example: "  mcp-vdisk backup ~/vdisk.backup\n  mcp-vdisk backup - | ssh box 'cat > vdisk.backup'",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := front.CheckGiven("FILE", args[0]); err != nil {
				return exit.Fail(exit.Usage, "", "the name of the backup is empty")
			}
			if err := a.somethingToBackUp(); err != nil {
				return err
			}
			if args[0] == "-" {
				return a.backupStream(cmd.Context(), q)
			}
			return a.backupFile(cmd.Context(), q, args[0], force)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().BoolVar(&q.Keys, "with-keys", false, "let operator tokens go on to work after a restore")
	cmd.Flags().BoolVar(&force, "force", false, "replace a file that is there")
	return cmd
}

// backupStream writes the backup to standard output, for whoever reads that.
func (a *app) backupStream(ctx context.Context, q backupArgs) error {
	if a.json {
		return exit.Fail(exit.Usage, "name a file", "with - the backup itself is what is printed, so there is no place for JSON")
	}
	if f, ok := a.Stdout.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return exit.Fail(exit.Usage, "name a file, or lead the output to a program", "a backup is not for a terminal")
	}
	q.To = "-"
	return a.backup(ctx, q, a.Stdout)
}

// backupFile writes the file whole or not at all.
func (a *app) backupFile(ctx context.Context, q backupArgs, name string, force bool) error {
	f, err := hostcopy.CreateWhole(name, force)
	if err != nil {
		return err
	}
	defer f.Drop()
	q.To = filepath.Base(name)
	if err := a.backup(ctx, q, f); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := f.Keep(); err != nil {
		return err
	}
	if !a.json {
		fmt.Fprintf(a.Stderr, "wrote %s\n", harmless(name))
		return nil
	}
	return a.printBackup(name)
}

// printBackup prints what a backup says of itself.
func (a *app) printBackup(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return exit.Fail(exit.Failed, "", "read %s: %s", name, front.ErrText(err))
	}
	defer f.Close()
	r, err := bundle.NewReader(f)
	if err != nil {
		return exit.Fail(exit.Failed, "", "%s: %s", name, err)
	}
	defer r.Close()
	return printJSON(a.Stdout, r.Facts())
}

func (a *app) backup(ctx context.Context, q backupArgs, to io.Writer) error {
	m := newMeter(a.Stderr, "backup", 0)
	defer m.end()
	return a.askLong(ctx, "backup", q, nil, io.MultiWriter(to, m))
}

// somethingToBackUp refuses a directory without a state, in which one would be made.
func (a *app) somethingToBackUp() error {
	dir, err := a.StateDir()
	if err != nil {
		return err
	}
	_, state, err := front.Occupied(dir)
	if err == nil && !state {
		err = exit.Fail(exit.NotFound, "--state names another", "there is no state directory %s", dir)
	}
	return err
}

// backBackup records the backup, chooses its moment, and streams what there was then.
func backBackup(ctx context.Context, b *back) error {
	var q backupArgs
	if err := b.args(&q); err != nil {
		return err
	}
	rec := audit.Record{Ev: audit.EvBackup, Call: ulid.Make().String(), Args: b.operator(audit.Facts{"to": q.To, "keys": q.Keys})}
	if err := b.st.record(ctx, audit.StreamSystem, rec); err != nil {
		return err
	}
	rec.Args = audit.Facts{}
	err := b.backup(ctx, q, rec.Call, rec.Args)
	rec.Out = &audit.Out{OK: err == nil}
	if err != nil {
		rec.Reason = err.Error()
	}
	logErr := b.st.record(context.WithoutCancel(ctx), audit.StreamSystem, rec)
	return cmp.Or(err, logErr)
}

// backup adds to about what is known in the end.
func (b *back) backup(ctx context.Context, q backupArgs, id string, about audit.Facts) error {
	m, err := b.hub.freeze(ctx, q.Keys)
	if err != nil {
		return err
	}
	defer m.close()
	about["disks"], about["held_us"] = int64(len(m.disks)), m.held.Microseconds()
	f := bundle.Facts{ID: id, Program: version, Time: m.at.UTC(), Keys: q.Keys, Held: m.held.Microseconds(), LeftOut: m.left}
	f.Install = hex.EncodeToString(m.install[:])
	parts, err := m.parts(b.config())
	if err != nil {
		return err
	}
	for _, d := range m.disks {
		f.Disks = append(f.Disks, d.facts())
	}
	for _, p := range parts {
		f.Entries = append(f.Entries, bundle.Entry{Name: p.name, Size: p.size})
	}
	about["bytes"] = f.Total()
	digest, err := write(ctx, b.stdout, f, parts)
	if err != nil {
		return err
	}
	about["manifest"] = digest
	m.tell(b.stderr, f)
	return nil
}

// config is the text of the settings in force.
func (b *back) config() string {
	if b.daemon != nil {
		return b.daemon.config
	}
	return b.req.Config
}

// write writes the parts in order.
func write(ctx context.Context, to io.Writer, f bundle.Facts, parts []part) (digest string, err error) {
	w, err := bundle.NewWriter(whileWanted{ctx, to}, f)
	if err != nil {
		return "", err
	}
	for _, p := range parts {
		if err := w.Add(p.write); err != nil {
			w.Abandon()
			return "", err
		}
	}
	return w.Close()
}

// tell says for a person what was written.
func (m *moment) tell(w io.Writer, f bundle.Facts) {
	keys := "operator tokens are not in it"
	if f.Keys {
		keys = "operator tokens go on to work after a restore"
	}
	fmt.Fprintf(w, "backed up %s and their log, %s in all, as of %s; changes waited for %s; %s\n", plainCount(len(f.Disks), "disk"), showBytes(f.Total()),
		f.Time.Local().Format(time.DateTime), m.held.Round(10*time.Microsecond), keys)
	for _, d := range f.Disks {
		if d.Damage != "" {
			fmt.Fprintf(w, "mcp-vdisk: disk %s is damaged, and so is its copy: %s\nhint: mcp-vdisk image fsck %s tells more\n", d.Name, harmless(d.Damage), d.Name)
		}
	}
	for _, s := range f.LeftOut {
		fmt.Fprintf(w, "not in it: %s\n", harmless(s))
	}
}

// part is one entry of a backup.
type part struct {
	name  string
	size  int64
	write func(io.Writer) error
}

// small is a part that is in memory.
func small(name string, text []byte) part {
	return part{name, int64(len(text)), func(w io.Writer) error {
		_, err := io.Copy(w, bytes.NewReader(text))
		return err
	}}
}

// parts are the entries of the backup: what cannot be made again from the rest.
func (m *moment) parts(config string) ([]part, error) {
	size, err := m.dump.Size()
	if err != nil {
		return nil, err
	}
	list := []part{small(bundle.Version, []byte(stateFormat+"\n"))}
	if config != "" {
		list = append(list, small(bundle.Config, []byte(config)))
	}
	list = append(list, part{bundle.Log, size, func(w io.Writer) error {
		_, err := m.dump.WriteTo(w)
		return err
	}})
	for _, d := range m.disks {
		list = append(list, part{"images/" + d.name + imageSuffix, d.snap.Info().FileSize, func(w io.Writer) error {
			_, err := d.snap.WriteTo(w)
			return err
		}})
	}
	envs, err := m.hub.envParts()
	return append(list, envs...), err
}

// moment is a state directory as it is at one moment, for as long as it is open.
type moment struct {
	hub     *hub
	at      time.Time
	held    time.Duration // for how long changes were held up
	install [16]byte
	disks   []*frozen
	dump    *audit.Dump
	left    []string // sentences about what is not in it
}

// frozen is a disk at that moment.
type frozen struct {
	name  string
	image *workspace.Image
	snap  *workspace.Snapshot
	done  func() error // with the image
}

func (f *frozen) facts() bundle.Disk {
	i := f.snap.Info()
	d := bundle.Disk{Name: f.name, UUID: i.UUID, Seq: i.Seq, Commit: i.Commit, Bytes: i.Bytes}
	if err := f.image.Damage(); err != nil {
		d.Damage = err.Error()
	}
	return d
}

func (m *moment) close() {
	if m.dump != nil {
		m.dump.Close()
	}
	m.thaw()
}

// thaw gives the disks up.
func (m *moment) thaw() {
	for _, d := range m.disks {
		if d.snap != nil {
			d.snap.Close()
		}
		if err := d.done(); err != nil {
			m.hub.log.Warn("a disk could not be closed after its backup", "disk", d.name, "error", err)
		}
	}
	m.disks = nil
}

// freeze opens every disk of the state directory, and chooses a moment.
func (h *hub) freeze(ctx context.Context, keys bool) (*moment, error) {
	p, err := h.provider()
	if err != nil {
		return nil, err
	}
	m := &moment{hub: h, install: p.Info().Install}
	// A disk may be made or removed while the others are opened.
	const tries = 5
	for range tries {
		names, err := h.st.imageNames()
		if err != nil {
			return nil, err
		}
		if err := m.open(ctx, names); err != nil {
			m.close()
			return nil, err
		}
		again, err := m.choose(ctx, names, keys)
		if err != nil {
			m.close()
			return nil, err
		}
		if !again {
			m.left = append(m.left, h.elsewhere()...)
			return m, nil
		}
		m.thaw()
	}
	m.close()
	return nil, exit.Fail(exit.Busy, "try again when that is done", "disks are being made and removed all the time")
}

// open opens the disks by their names.
func (m *moment) open(ctx context.Context, names []string) error {
	m.left = nil
	for _, name := range names {
		if !bundle.Known("images/"+name+imageSuffix, 0) {
			m.left = append(m.left, fmt.Sprintf("the file %q among the disks, which has no name of a disk", name+imageSuffix))
			continue
		}
		f, err := m.hub.openFrozen(ctx, name)
		if errors.Is(err, workspace.ErrNotFound) { // removed meanwhile
			continue
		}
		if err != nil {
			hint := "mcp-vdisk image fsck " + name + " --repair mends what can be mended; else move its file out of images/"
			var x *exit.Failure
			if errors.As(err, &x) && x.Code == exit.Busy {
				hint = x.Hint
			}
			return exit.Because(err, asFailure(ctx, err).Code, hint, "disk %s cannot be backed up: %s", name, err)
		}
		m.disks = append(m.disks, f)
	}
	return nil
}

// openFrozen opens a disk as anybody would. One that is a copy of another is opened
// beside the hub, which does not open both at once.
func (h *hub) openFrozen(ctx context.Context, name string) (*frozen, error) {
	d, err := h.open(ctx, want{ref: front.ImageRef{Name: name}, readOnly: true, unsettled: true})
	if err == nil {
		return &frozen{name: name, image: d.image, done: d.release}, nil
	}
	im, ierr := workspace.Open(h.st.imagePath(name), workspace.OpenOptions{ReadOnly: true})
	if errors.Is(ierr, workspace.ErrNotFound) {
		return nil, ierr
	}
	if ierr != nil {
		return nil, err
	}
	return &frozen{name: name, image: im, done: im.Close}, nil
}

// choose chooses the moment: while no disk is changed, a transaction of reading begins
// on each, and then one on the database. So each commit that the log tells of is on its
// disk. And each commit of a disk is told of by the log, or at least that its call began, for that was durable before
// the commit: whoever opens the restored state settles it, as after a crash.
//
// again says that there are other disks by now.
func (m *moment) choose(ctx context.Context, names []string, keys bool) (again bool, err error) {
	// What was acknowledged up to here is in the database afterwards.
	if err := m.hub.st.log.Sync(ctx); err != nil {
		return false, err
	}
	m.hub.choosing.Lock()
	defer m.hub.choosing.Unlock()
	began := time.Now()
	release := m.hold()
	defer func() {
		release()
		m.held = time.Since(began)
	}()
	for _, d := range m.disks {
		if d.snap, err = d.image.BeginSnapshot(); err != nil {
			return false, err
		}
	}
	m.dump = audit.BeginDump(m.hub.st.db, func(key []byte) bool { return keys || !isTokenKey(key) })
	m.at = time.Now()
	now, err := m.hub.st.imageNames()
	if again = err == nil && !slices.Equal(now, names); again {
		m.dump.Close()
		m.dump = nil
	}
	return again, err
}

// hold keeps changes of all disks waiting. They are asked at the same time, so that what
// has to be waited for is the longest change that is being made, and not one after the
// other. Nobody else holds several: choosing is held.
func (m *moment) hold() (release func()) {
	list := make([]func(), len(m.disks))
	var all sync.WaitGroup
	for i, d := range m.disks {
		all.Go(func() { list[i] = d.image.Pause() })
	}
	all.Wait()
	return func() {
		for _, r := range list {
			r()
		}
	}
}

// elsewhere says what is used now and lies outside of the state directory.
func (h *hub) elsewhere() (list []string) {
	inside := h.st.path("images") + string(os.PathSeparator)
	for _, d := range h.all() {
		if !strings.HasPrefix(d.path, inside) && d.path != "" {
			list = append(list, fmt.Sprintf("the disk %s, which lies elsewhere; mcp-vdisk image export copies it", d.path))
		}
	}
	slices.Sort(list)
	if h.envs != h.st.path("envs") {
		list = append(list, fmt.Sprintf("the Python environments, which lie elsewhere: %s", h.envs))
	}
	return list
}
