package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
)

type fromBackupArgs struct {
	From   string // last element of the file's path, "-" for a stream; for the log
	Dir    string // where it is going to be
	Old    bool   // there is a state directory, which makes room
	Damage bool   // what is found damaged is put in place all the same
	Why    string
	Proof  proof
}

// fromBackupFacts is what `restore --json` tells.
type fromBackupFacts struct {
	State    string    `json:"state"`
	Backup   string    `json:"backup"` // id of it
	Taken    time.Time `json:"taken"`
	Program  string    `json:"program"`
	Was      string    `json:"install_before"`
	Install  string    `json:"install"`
	Keys     bool      `json:"keys"`
	Disks    []string  `json:"disks"`
	Streams  int       `json:"streams"`
	Bytes    int64     `json:"bytes"`
	Damage   []string  `json:"damage,omitempty"`
	Notes    []string  `json:"notes,omitempty"`
	Replaced string    `json:"replaced,omitempty"` // where the state directory before is now
}

func (a *app) restoreCmd() *cobra.Command {
	var q fromBackupArgs
	var rollback bool
	cmd := &cobra.Command{
		Use:   "restore FILE|-",
		Short: "Make a state directory of a backup",
		Long: `restore makes the state directory (--state DIR) of a backup. DIR must be missing or
empty. Everything is read and checked first, every disk and the whole log, and then put
in place in one step, or nothing is.

The restored state is told from the original: it has a name of its own in leases, and
its log goes on with a restore record, in the stream of each disk too. Both can be at
work; the first change of each disk records that it was taken on.

With --accept-rollback the backup takes the place of a state directory that is there,
which is kept beside it as DIR.before-restore-TIME. What happened since the backup is
then no longer in the log, so a person has to confirm it and say why.`,
		Example: "  mcp-vdisk --state /srv/vdisk restore ~/vdisk.backup\n  mcp-vdisk restore ~/vdisk.backup --accept-rollback --why \"the disk crashed on Tuesday\"",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if q.Why != "" || rollback {
				if err := (whyArgs{Why: q.Why}).check(); err != nil {
					return err
				}
			}
			return a.restore(cmd.Context(), q, args[0], rollback)
		},
	}
	a.jsonFlag(cmd.Flags())
	cmd.Flags().BoolVar(&rollback, "accept-rollback", false, "take the place of the state directory that is there")
	cmd.Flags().StringVar(&q.Why, "why", "", "the `REASON`, for the log")
	cmd.Flags().BoolVar(&q.Damage, "accept-damage", false, "put disks and logs in place in which damage is found; it is told")
	a.tokenFlag(cmd)
	return cmd
}

func (a *app) restore(ctx context.Context, q fromBackupArgs, name string, rollback bool) error {
	in, size, err := a.openBackup(name)
	if err != nil {
		return err
	}
	defer in.Close()
	q.From = filepath.Base(name)
	r, err := a.NewRequest("state.restore", nil)
	if err != nil {
		return err
	}
	q.Dir = r.State
	if q.Old, err = mayRestore(r.State, rollback); err != nil {
		return err
	}
	if q.Old {
		what := fmt.Sprintf("This puts an older state in the place of %s; the log forgets what happened since.", harmless(r.State))
		if q.Proof, err = a.prove("restore", what); err != nil {
			return err
		}
	}
	if r.Args, err = json.Marshal(q); err != nil {
		return err
	}
	facts, err := a.restoreInto(ctx, r, q, in, size)
	if err != nil {
		return err
	}
	if a.json {
		return printJSON(a.Stdout, facts)
	}
	facts.print(a.Stdout)
	return nil
}

// openBackup opens the file of the caller.
func (a *app) openBackup(name string) (io.ReadCloser, int64, error) {
	if err := front.CheckGiven("FILE", name); err != nil {
		return nil, 0, exit.Fail(exit.Usage, "", "the name of the backup is empty")
	}
	if name == "-" {
		return io.NopCloser(a.Stdin), 0, nil
	}
	f, err := os.Open(name)
	if err != nil {
		code := exit.Failed
		if errors.Is(err, os.ErrNotExist) {
			code = exit.NotFound
		}
		return nil, 0, exit.Fail(code, "", "open %s: %s", name, front.ErrText(err))
	}
	info, err := f.Stat()
	if err != nil || info.IsDir() {
		f.Close()
		return nil, 0, exit.Fail(exit.Failed, "", "%s is not a file", name)
	}
	return f, info.Size(), nil
}

// mayRestore says whether there is a state directory that has to make room.
func mayRestore(dir string, rollback bool) (old bool, err error) {
	occupied, state, err := front.Occupied(dir)
	switch {
	case err != nil:
		return false, err
	case occupied && !state:
		return false, exit.Fail(exit.Refused, "name another --state", "%s holds other things, and is no state directory", dir)
	case occupied && !rollback:
		return false, exit.Fail(exit.Refused, "name another --state; or, to put it back to an older state, pass --accept-rollback --why REASON", "%s holds a state already", dir)
	case !occupied && rollback:
		return false, exit.Fail(exit.Usage, "leave --accept-rollback out", "there is no state in %s that could be put back", dir)
	}
	return occupied, nil
}

// restoreInto has the state made beside its place, and puts it there as soon as it is
// whole: the back says so, and keeps the one that is there closed to others meanwhile.
func (a *app) restoreInto(ctx context.Context, r front.Request, q fromBackupArgs, in io.Reader, size int64) (*fromBackupFacts, error) {
	beside, err := a.MakeSibling(r.State)
	if err != nil {
		return nil, err
	}
	defer beside.Drop()
	r.State, r.NoState, r.Image = beside.Dir, true, front.ImageRef{}
	m := newMeter(a.Stderr, "restore", size)
	defer m.end()
	p := &placing{place: func(f *fromBackupFacts) (err error) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if q.Old {
			f.Replaced, err = beside.Replace(time.Now())
			return err
		}
		return beside.Place()
	}}
	err = a.Ask(ctx, r, front.NoImage, io.TeeReader(in, m), p)
	switch {
	case p.facts != nil: // it is in place, whatever came then
		return p.facts, nil
	case ctx.Err() != nil: // which may look like a backup that is cut off
		return nil, exit.Fail(exit.Interrupted, "nothing was restored", "interrupted")
	case p.err != nil:
		return nil, p.err
	case err == nil:
		err = errors.New("the back did not say what it made")
	}
	return nil, err
}

// placing puts a state in place as soon as the back has told all about it.
type placing struct {
	place func(*fromBackupFacts) error
	told  bytes.Buffer
	facts *fromBackupFacts // once it is in place
	err   error
}

func (p *placing) Write(b []byte) (int, error) {
	p.told.Write(b)
	if p.facts != nil || p.err != nil || !bytes.HasSuffix(p.told.Bytes(), []byte("\n")) {
		return len(b), p.err
	}
	var f fromBackupFacts
	if p.err = json.Unmarshal(p.told.Bytes(), &f); p.err == nil {
		p.err = p.place(&f)
	}
	if p.err != nil {
		return 0, p.err
	}
	p.facts = &f
	return len(b), nil
}

func (f *fromBackupFacts) print(w io.Writer) {
	fmt.Fprintf(w, "restored %s and their log (%s), as of %s, into %s\n", plainCount(len(f.Disks), "disk"), showBytes(f.Bytes), f.Taken.Local().Format(time.DateTime), harmless(f.State))
	for _, d := range f.Damage {
		fmt.Fprintf(w, "DAMAGED  %s\n", harmless(d))
	}
	for _, n := range f.Notes {
		fmt.Fprintf(w, "note: %s\n", harmless(n))
	}
	if f.Replaced != "" {
		fmt.Fprintf(w, "the state directory before is %s\n", harmless(f.Replaced))
	}
}
