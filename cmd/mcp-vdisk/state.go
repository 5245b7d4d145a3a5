package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/oklog/ulid/v2"
	"golang.org/x/term"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/live"
)

// stateFormat is the content of VERSION.
const stateFormat = "1"

// state is an open state directory. One process at a time has it open.
type state struct {
	dir  string
	lock *os.File
	db   *badger.DB
	log  *audit.Log
	run  string // of this opening, in every record
	slog *slog.Logger
}

// lockWait is how long a command waits for another process.
const lockWait = 2 * time.Second

// openState opens the state directory, makes it if it is missing, and settles
// what a killed process left behind. The caller's umask does not matter: what
// is made here is for its user alone.
func openState(ctx context.Context, dir string, set settings, wait time.Duration, log *slog.Logger) (*state, error) {
	st := &state{dir: dir, slog: log, run: newRun()}
	if err := st.prepare(ctx, wait); err != nil {
		st.Close()
		return nil, err
	}
	st.makeRoom(set)
	if err := st.openLog(set); err != nil {
		st.Close()
		if errors.Is(err, audit.ErrUnavailable) {
			return nil, exit.Fail(exit.State, "make room on the disk that holds the state directory", "open the log of %s: %s", dir, err)
		}
		return nil, exit.Because(err, exit.State, "", "open the log of %s: %s", dir, err)
	}
	if err := st.settle(ctx); err != nil {
		st.Close()
		return nil, err
	}
	if err := workspace.SweepTemp(st.path("images")); err != nil {
		log.Warn("what a killed command left of a disk could not be removed", "error", err)
	}
	// A cache that cannot be removed is no reason to refuse the disk.
	if _, err := live.Sweep(st.path("live"), time.Now().Add(-liveIdle)); err != nil {
		log.Warn("directories of scripts that nobody used for long could not be removed", "error", err)
	}
	return st, nil
}

// newRun names an opening.
func newRun() string { return ulid.Make().String() }

// liveIdle is how long the directory that a disk's scripts see is kept after its
// last use.
const liveIdle = 7 * 24 * time.Hour

// makeRoom gives up the directories of scripts, which are caches, when the disk
// is so full that nothing would be let in.
func (st *state) makeRoom(set settings) {
	free, _, err := hostos.Free(st.dir)
	if err != nil || free >= uint64(set.minFree) {
		return
	}
	n, err := live.Sweep(st.path("live"), time.Now().Add(liveIdle))
	if n > 0 || err != nil {
		st.slog.Warn("the disk is nearly full: directories that scripts see were removed, and are made again when there is room", "removed", n, "error", err)
	}
}

func (st *state) openLog(set settings) (err error) {
	if st.db, err = audit.OpenDB(st.path("db"), st.slog); err != nil {
		return err
	}
	st.log, err = audit.New(st.db, st.path("db", "tail"), audit.Options{
		Run: st.run, Boot: bootID(), Logger: st.slog, MinFree: uint64(set.minFree),
		Free: func() (uint64, error) {
			n, _, err := hostos.Free(st.dir)
			return n, err
		},
	})
	return err
}

func (st *state) path(elem ...string) string {
	return filepath.Join(append([]string{st.dir}, elem...)...)
}

// prepare makes the directory, takes its lock and checks its format.
func (st *state) prepare(ctx context.Context, wait time.Duration) error {
	if err := os.MkdirAll(st.dir, 0o700); err != nil {
		return st.broken(err)
	}
	if err := st.lockOnly(ctx, wait); err != nil {
		return err
	}
	if err := st.checkFormat(); err != nil {
		return err
	}
	// What a restore was cut off in, after the directory had got its place.
	if err := os.Remove(st.path(front.Restoring)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return st.broken(err)
	}
	for _, sub := range []string{"db", "images", "live", "scratch"} {
		if err := os.MkdirAll(st.path(sub), 0o700); err != nil {
			return st.broken(err)
		}
	}
	return nil
}

func (st *state) broken(err error) error {
	return exit.Fail(exit.State, "choose another --state, or mend its rights", "state directory %s: %s", st.dir, front.ErrText(err))
}

// lockOnly takes the lock of the directory, which has to be there.
func (st *state) lockOnly(ctx context.Context, wait time.Duration) (err error) {
	if st.lock, err = os.OpenFile(st.path("daemon.lock"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return st.broken(err)
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if err := hostos.Lock(waiting, st.lock, true); err != nil {
		if errors.Is(err, hostos.ErrLocked) && ctx.Err() == nil {
			return st.busy()
		}
		return st.broken(err)
	}
	if !st.inPlace() { // a restore put another one there while this was waited for
		return exit.Fail(exit.Busy, "try again", "state directory %s was just replaced", st.dir)
	}
	return nil
}

// inPlace says whether the path of the directory still leads to it.
func (st *state) inPlace() bool {
	ours, err := st.lock.Stat()
	if err != nil {
		return true
	}
	there, err := os.Stat(st.path("daemon.lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	return err != nil || os.SameFile(ours, there)
}

func (st *state) busy() error {
	who := "another process"
	if pid, command, ok := hostos.LockHolder(st.lock); ok {
		who = fmt.Sprintf("process %d", pid)
		if command = strings.TrimSpace(command); command != "" { // else it is just ending
			who += " (" + command + ")"
		}
	}
	return exit.Fail(exit.Busy, "stop it first, or use another --state", "state directory %s is in use by %s", st.dir, who)
}

// checkFormat reads VERSION, or writes it into a new directory.
func (st *state) checkFormat() error {
	data, err := os.ReadFile(st.path("VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return st.writeVersion()
	}
	if err != nil {
		return exit.Fail(exit.State, "", "state directory %s: %s", st.dir, front.ErrText(err))
	}
	if v := strings.TrimSpace(string(data)); v != stateFormat {
		return exit.Fail(exit.State, "use the mcp-vdisk that wrote it", "state directory %s has format %q, and this program reads %s", st.dir, v, stateFormat)
	}
	return nil
}

func (st *state) writeVersion() error {
	tmp := st.path("VERSION.new")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = io.WriteString(f, stateFormat+"\n")
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err == nil {
		err = os.Rename(tmp, st.path("VERSION"))
	}
	if err == nil {
		err = hostos.SyncDir(st.dir)
	}
	if err != nil {
		return exit.Fail(exit.State, "", "write VERSION of %s: %s", st.dir, front.ErrText(err))
	}
	return nil
}

// Close closes whatever is open. The lock goes last, with the process when the
// disk is too full for closing the database: another process has to wait for the
// end of this one then.
func (st *state) Close() error {
	var errs []error
	if st.log != nil {
		errs = append(errs, st.log.Close())
	}
	if st.db != nil {
		errs = append(errs, audit.CloseDB(st.db, st.path("db")))
	}
	if st.lock != nil && (st.db == nil || st.db.IsClosed()) {
		st.lock.Close()
	}
	return errors.Join(errs...)
}

// record writes a durable record that is not a tool's.
func (st *state) record(ctx context.Context, stream string, r audit.Record) error {
	r.Act, r.Dec = "operator", "allow"
	_, err := st.log.Append(ctx, stream, audit.Entry{Record: r})
	return err
}

// settle completes the calls that a killed process left without an outcome, in
// agreement with the disk: the commit of a call names it.
func (st *state) settle(ctx context.Context) error {
	streams, err := st.log.Streams()
	if err != nil {
		return err
	}
	for _, name := range streams {
		dangling, err := st.log.Dangling(name)
		if err != nil {
			// That disk is not opened before its log is mended; the others are,
			// and `audit verify` tells what is wrong.
			st.slog.Warn("the log of a disk cannot be read", "stream", name, "error", err)
			continue
		}
		if len(dangling) == 0 {
			continue
		}
		im, err := st.imageByUUID(name)
		if err != nil {
			continue // a disk that lies elsewhere is settled when it is opened
		}
		err = st.settleImage(ctx, name, im)
		if err = errors.Join(err, im.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (st *state) settleImage(ctx context.Context, stream string, im *workspace.Image) error {
	dangling, err := st.log.Dangling(stream)
	if err != nil || len(dangling) == 0 {
		return err
	}
	cut, err := st.lastCut(ctx, stream)
	if err != nil {
		return err
	}
	for _, r := range dangling {
		c, found, err := im.FindCommit(r.Call)
		if errors.Is(err, workspace.ErrCorrupt) {
			// What is undamaged can be used all the same; fsck tells the rest.
			st.slog.Warn("a call cannot be settled: the history of its disk is damaged", "stream", stream, "call", r.Call, "error", err)
			continue
		}
		if err != nil {
			return err
		}
		rec := audit.Record{Ev: audit.EvRecover, Call: r.Call, Tool: r.Tool, Img: stream, Reason: "aborted", Fence: r.Fence}
		switch {
		case found:
			rec.Reason, rec.Hb, rec.Ha = "committed", c.Parent, c.ID
		case cut > r.N:
			rec.Reason = "unknown"
		}
		rec.Out = &audit.Out{OK: found, Code: rec.Reason}
		if err := st.record(ctx, stream, rec); err != nil {
			return err
		}
	}
	return nil
}

// lastCut is the record of the last gc of a disk, 0 for none: a call that had begun by
// then may have made a commit that was dropped.
func (st *state) lastCut(ctx context.Context, stream string) (n uint64, err error) {
	q := audit.Query{Stream: stream, Limit: 1, Reverse: true, Match: map[string][]string{"ev": {string(audit.EvImageGC)}}}
	err = st.log.Query(ctx, q, func(_ []byte, r audit.Record) error {
		n = r.N
		return nil
	})
	return n, err
}

// imageByUUID finds the disk of a stream among those of the state directory.
func (st *state) imageByUUID(uuid string) (*workspace.Image, error) {
	names, err := st.imageNames()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		im, err := workspace.Open(st.imagePath(name), workspace.OpenOptions{ReadOnly: true})
		if err != nil {
			continue
		}
		if info, err := im.Info(); err == nil && info.UUID == uuid {
			return im, nil
		}
		im.Close()
	}
	return nil, workspace.ErrNotFound
}

const imageSuffix = ".vdisk"

func (st *state) imagePath(name string) string { return st.path("images", name+imageSuffix) }

// imageNames lists the disks of the state directory, sorted.
func (st *state) imageNames() ([]string, error) {
	entries, err := os.ReadDir(st.path("images"))
	if err != nil {
		return nil, exit.Fail(exit.State, "", "list disks: %s", front.ErrText(err))
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), imageSuffix); ok && e.Type().IsRegular() {
			names = append(names, name)
		}
	}
	return names, nil
}

// newLogger writes words for people on a terminal and JSON otherwise. File
// contents are never logged.
func newLogger(w io.Writer, least slog.Level) *slog.Logger {
	o := &slog.HandlerOptions{Level: least}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return slog.New(slog.NewTextHandler(w, o))
	}
	return slog.New(slog.NewJSONHandler(w, o))
}

// bootID names this start of the host, so that the log's monotonic times can be
// compared within it.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
