package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/bundle"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// backRestoreState fills the directory that the front has made for a state, and says so.
func backRestoreState(ctx context.Context, b *back) error {
	q := fromBackupArgs{}
	if err := b.args(&q); err != nil {
		return err
	}
	about := b.operator(audit.Facts{"from": q.From})
	if q.Why != "" {
		about["why"] = q.Why
	}
	old := &predecessor{}
	if q.Old {
		var err error
		if old, err = b.openPredecessor(ctx, q, about); err != nil {
			return err
		}
	}
	defer old.close()
	u := &restoring{b: b, q: q, dir: b.req.State, about: about}
	if err := u.run(ctx); err != nil {
		return u.failure(err)
	}
	if err := old.leaves(ctx, u); err != nil {
		return err
	}
	told, err := json.Marshal(u.told)
	if err != nil {
		return err
	}
	b.printf("%s\n", told)
	return old.wait(ctx)
}

// restoring is the making of a state directory from a backup.
type restoring struct {
	b     *back
	q     fromBackupArgs
	dir   string
	about audit.Facts // of who asks, and why
	facts bundle.Facts
	told  fromBackupFacts
}

// failure gives an error of the backup its exit code.
func (u *restoring) failure(err error) error {
	switch {
	case errors.Is(err, bundle.ErrNotBackup):
		return exit.Because(err, exit.Refused, "mcp-vdisk backup makes one", "%s: %s", safe(u.q.From), err)
	case errors.Is(err, bundle.ErrVersion):
		return exit.Because(err, exit.Refused, "restore it with that version, or a later one", "%s: %s", safe(u.q.From), err)
	case errors.Is(err, bundle.ErrDamaged), errors.Is(err, audit.ErrDump):
		return exit.Because(err, exit.Verify, "nothing was restored; take another backup", "%s: %s", safe(u.q.From), harmless(err.Error()))
	case hostos.IsNoSpace(err):
		return exit.Because(err, exit.State, "nothing was restored; make room", "restore: no space left on the disk")
	}
	return err
}

func (u *restoring) run(ctx context.Context) error {
	digest, err := u.unpack(ctx)
	if err != nil {
		return err
	}
	if err := u.checkDisks(ctx); err != nil {
		return err
	}
	if err := u.goOn(ctx, digest); err != nil {
		return err
	}
	// The mark of a whole state directory comes last.
	if err := u.file(bundle.Version, strings.NewReader(stateFormat+"\n")); err != nil {
		return err
	}
	root, err := os.OpenRoot(u.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return hostos.SyncTree(root)
}

// unpack writes everything below the directory. Nothing of it counts until it returns
// nil: by then the manifest has agreed.
func (u *restoring) unpack(ctx context.Context) (digest string, err error) {
	r, err := bundle.NewReader(untilDone{ctx, u.b.stdin})
	if err != nil {
		return "", err
	}
	defer r.Close()
	u.facts = r.Facts()
	if err := u.room(u.facts.Total()); err != nil {
		return "", err
	}
	for {
		e, body, err := r.Next()
		if err == io.EOF {
			u.tell()
			return r.Digest(), nil
		}
		if err == nil {
			err = u.entry(e, body)
		}
		if err != nil {
			return "", err
		}
	}
}

// room refuses what would fill the disk: a log that has no room takes no record.
func (u *restoring) room(need int64) error {
	free, _, err := hostos.Free(u.dir)
	if err != nil {
		return err
	}
	if want := uint64(need) + uint64(u.b.set.minFree); free < want {
		return exit.Fail(exit.State, "nothing was restored; make room, or name a --state on another disk",
			"the backup needs %s and %s have to stay free, and %s are free on the disk of %s", showBytes(need), showBytes(u.b.set.minFree), showBytes(int64(free)), u.q.Dir)
	}
	return nil
}

// entry stores one. Its name is out of a table; see bundle.Known.
func (u *restoring) entry(e bundle.Entry, body io.Reader) error {
	switch e.Name {
	case bundle.Log:
		return audit.LoadDB(filepath.Join(u.dir, "db"), body, func() error { return u.room(0) }, u.b.log)
	case bundle.Version:
		text, err := io.ReadAll(body)
		if v := strings.TrimSpace(string(text)); err == nil && v != stateFormat {
			err = fmt.Errorf("%w: its state has format %.20q, and this program reads %s", bundle.ErrVersion, v, stateFormat)
		}
		return err
	case bundle.Config:
		text, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		if err := u.settings(string(text)); err != nil {
			return err
		}
		return u.file(e.Name, strings.NewReader(string(text)))
	}
	return u.file(e.Name, body)
}

// settings looks whether they can be read here, and says what they do by themselves.
func (u *restoring) settings(text string) error {
	set, _, err := parseSettings(text, "its "+bundle.Config)
	if err != nil {
		return fmt.Errorf("%w: %w", bundle.ErrVersion, err)
	}
	if len(set.env.notify) > 0 {
		u.told.Notes = append(u.told.Notes, fmt.Sprintf("its settings run a program by themselves: env.notify = %q", strings.Join(set.env.notify, " ")))
	}
	if set.env.root != "" {
		u.told.Notes = append(u.told.Notes, fmt.Sprintf("its settings have the Python environments in %s, which is not in the backup", set.env.root))
	}
	if u.b.peer.UID == 0 && text != "" {
		u.told.Notes = append(u.told.Notes, "its settings are config.toml in the state directory; for root those of "+front.RootConfig+" hold")
	}
	return nil
}

// file makes a file that is not there.
func (u *restoring) file(name string, from io.Reader) error {
	path := filepath.Join(u.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	mode := os.FileMode(0o600)
	if strings.HasPrefix(name, "envs/locks/") || strings.HasPrefix(name, "envs/wheelhouse/") {
		mode = 0o400
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// tell notes what the backup says of itself.
func (u *restoring) tell() {
	f := u.facts
	u.told.State, u.told.Backup, u.told.Taken, u.told.Program = u.q.Dir, f.ID, f.Time, f.Program
	u.told.Was, u.told.Keys, u.told.Bytes, u.told.Disks = f.Install, f.Keys, f.Total(), []string{}
	for _, d := range f.Disks {
		u.told.Disks = append(u.told.Disks, d.Name)
	}
	if !f.Keys {
		u.told.Notes = append(u.told.Notes, "operator tokens of the original are good for nothing here; mcp-vdisk operator token makes one")
	}
	u.told.Notes = append(u.told.Notes, "the Python packages of scripts are not in a backup; mcp-vdisk env ensure --repair builds them again")
	for _, s := range f.LeftOut {
		u.told.Notes = append(u.told.Notes, "not in the backup: "+s)
	}
}

// damaged takes note of damage, or refuses it.
func (u *restoring) damaged(format string, a ...any) error {
	text := fmt.Sprintf(format, a...)
	if u.q.Damage {
		u.told.Damage = append(u.told.Damage, text)
		return nil
	}
	return exit.Fail(exit.Verify, "nothing was restored; take another backup, or pass --accept-damage to have the rest", "%s", harmless(text))
}

// checkDisks reads all of every disk as fsck does.
func (u *restoring) checkDisks(ctx context.Context) error {
	for _, d := range u.facts.Disks {
		path := filepath.Join(u.dir, "images", d.Name+imageSuffix)
		rep, err := workspace.Check(ctx, path, workspace.CheckOptions{})
		switch {
		case ctx.Err() != nil:
			return err
		case err != nil:
			err = u.damaged("disk %s cannot be opened: %s", d.Name, err)
		case rep.Left() > 0:
			err = u.damaged("disk %s has %s, the first: %s", d.Name, plainCount(int(rep.Left()), "finding"), rep.Findings[0].String())
		case rep.UUID != d.UUID || rep.Commit != d.Commit:
			err = fmt.Errorf("%w: disk %s is another one than it says", bundle.ErrDamaged, d.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// goOn opens the log, gives the state a name of its own, and records the restore as the
// next record of every stream.
func (u *restoring) goOn(ctx context.Context, digest string) (err error) {
	st := &state{dir: u.dir, slog: u.b.log, run: newRun()}
	defer func() { err = errors.Join(err, st.Close()) }()
	if err := st.openLog(u.b.set); err != nil {
		if errors.Is(err, audit.ErrUnavailable) {
			return exit.Because(err, exit.State, "nothing was restored; make room", "open the log of the backup: %s", err)
		}
		return fmt.Errorf("%w: its log: %w", bundle.ErrDamaged, err)
	}
	if err := u.verify(ctx, st.log); err != nil {
		return err
	}
	p, err := lease.New(st.db, lease.Options{Room: st.log.Room})
	if err != nil {
		return fmt.Errorf("%w: its leases: %w", bundle.ErrDamaged, err)
	}
	was, now, err := p.Rename(ctx)
	if err != nil {
		return err
	}
	if said := hex.EncodeToString(was[:]); said != u.facts.Install {
		return fmt.Errorf("%w: its leases are of another state than it says", bundle.ErrDamaged)
	}
	u.told.Install = hex.EncodeToString(now[:])
	return u.record(ctx, st, digest)
}

// verify reads the whole log.
func (u *restoring) verify(ctx context.Context, log *audit.Log) error {
	streams, err := log.Streams()
	if err != nil {
		return fmt.Errorf("%w: its log: %w", bundle.ErrDamaged, err)
	}
	for _, s := range streams {
		rep, err := log.Verify(ctx, s)
		switch {
		case ctx.Err() != nil:
			return err
		case err != nil:
			return fmt.Errorf("%w: its log: %w", bundle.ErrDamaged, err)
		case !rep.OK:
			if err := u.damaged("the log of %s is not intact: record %d (%s)", s, rep.BadN, rep.Reason); err != nil {
				return err
			}
		}
	}
	return nil
}

// record writes the record in which the log of the restored state parts from that of
// the original. Its prev is the newest record of the backup.
func (u *restoring) record(ctx context.Context, st *state, digest string) error {
	streams, err := st.log.Streams()
	if err != nil {
		return err
	}
	u.told.Streams = len(streams)
	about := audit.Facts{"backup": u.facts.ID, "taken": u.facts.Time.UTC().Format(time.RFC3339Nano), "install_before": u.told.Was, "install": u.told.Install,
		"program": u.facts.Program, "manifest": digest, "rollback": u.q.Old}
	for k, v := range u.about {
		about[k] = v
	}
	heads := map[string]bundle.Disk{}
	for _, d := range u.facts.Disks {
		heads[d.UUID] = d
	}
	sys := audit.Facts{"disks": int64(len(u.facts.Disks)), "streams": int64(len(streams)), "keys": u.facts.Keys, "damage": int64(len(u.told.Damage))}
	for k, v := range about {
		sys[k] = v
	}
	if err := st.record(ctx, audit.StreamSystem, audit.Record{Ev: audit.EvRestore, Args: sys}); err != nil {
		return err
	}
	for _, s := range streams {
		if s == audit.StreamSystem {
			continue
		}
		d := heads[s]
		err := st.record(ctx, s, audit.Record{Ev: audit.EvRestore, Img: s, Args: about, Hb: d.Commit, Ha: d.Commit})
		if err != nil {
			return err
		}
	}
	return nil
}

// predecessor is the state directory that makes room; the zero value is none.
type predecessor struct {
	st  *state
	log bool // it can be written
}

// openPredecessor keeps others from opening it, and asks it about the proof. One that
// is too damaged to be opened has to be replaced all the same.
func (b *back) openPredecessor(ctx context.Context, q fromBackupArgs, about audit.Facts) (*predecessor, error) {
	p := &predecessor{st: &state{dir: q.Dir, slog: b.log, run: newRun()}}
	err := p.st.lockOnly(ctx, lockWait)
	if err == nil {
		if err = p.st.openLog(b.set); err == nil {
			p.log = true
		} else if p.st.db != nil {
			err = errors.Join(err, p.st.db.Close())
			p.st.db = nil
		}
		if !p.log {
			b.log.Warn("the log of the state directory that is replaced cannot be opened, so it will not tell of this", "error", err)
			err = nil
		}
	}
	if err == nil {
		err = b.provenTo(p, q, about)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// provenTo checks the proof with the state that is replaced.
func (b *back) provenTo(p *predecessor, q fromBackupArgs, about audit.Facts) error {
	if err := (whyArgs{Why: q.Why}).check(); err != nil {
		return err
	}
	if q.Proof.Token != "" && !p.log {
		return exit.Fail(exit.Refused, "run it on a terminal", "whether the operator token is good cannot be told: the log of %s cannot be opened", q.Dir)
	}
	b.st = p.st
	defer func() { b.st = nil }()
	proven, err := b.proven(q.Proof, audit.Facts{})
	for k, v := range proven {
		about[k] = v
	}
	return err
}

// leaves records in the old log that it ends here, and closes that. The lock stays.
func (p *predecessor) leaves(ctx context.Context, u *restoring) error {
	if p.st == nil || !p.log {
		return nil
	}
	about := audit.Facts{"backup": u.facts.ID, "taken": u.facts.Time.UTC().Format(time.RFC3339Nano), "replaced": true, "install": u.told.Install}
	for k, v := range u.about {
		about[k] = v
	}
	err := p.st.record(ctx, audit.StreamSystem, audit.Record{Ev: audit.EvRestore, Args: about})
	if err != nil {
		return err
	}
	err = errors.Join(p.st.log.Close(), audit.CloseDB(p.st.db, p.st.path("db")))
	p.st.log, p.st.db = nil, nil
	return err
}

// placePatience is how long a front has to put the new state in place.
const placePatience = 30 * time.Second

// wait keeps others out until the front has put the new one in place.
func (p *predecessor) wait(ctx context.Context) error {
	if p.st == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, placePatience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for p.st.inPlace() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

func (p *predecessor) close() {
	if p.st != nil {
		p.st.Close()
	}
}
