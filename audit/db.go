package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// OpenDB opens the Badger database in dir, which it makes (0700) when it is
// missing. Leases and queues share it with the log.
//
// One process at a time: the error wraps [ErrInUse] while another has it open. It
// wraps [ErrUnavailable] when less than [MinOpenFree] is free on the disk. Any
// other error wraps [ErrUnreadable]; for a damaged table it names the file. The
// caller closes the database after the log, with [CloseDB].
//
// Every table is read once and checked.
func OpenDB(dir string, logger *slog.Logger) (*badger.DB, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	if err := checkRoom(free(dir)); err != nil {
		return nil, err
	}
	if err := errors.Join(removeUnborn(dir), checkTables(dir)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	db, err := openBadger(dir, logger)
	switch {
	case err == nil:
		return db, nil
	case strings.Contains(err.Error(), "Another process is using"): // Badger has no sentinel for it
		return nil, fmt.Errorf("%w: %s", ErrInUse, dir)
	}
	return nil, fmt.Errorf("%w: open %s: %w", ErrUnreadable, dir, err)
}

// openBadger turns a panic, which Badger has for some damaged files, into an error.
func openBadger(dir string, logger *slog.Logger) (db *badger.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("damaged: %v", p)
		}
	}()
	return badger.Open(tuned(dir, logger))
}

// tuned are the options of the store, small in memory and on disk.
func tuned(dir string, logger *slog.Logger) badger.Options {
	o := badger.DefaultOptions(dir)
	// A commit is on disk when it returns. The sequencer groups the commits.
	o.SyncWrites = true
	// Leases and queues rely on the detection of conflicts.
	o.DetectConflicts = true
	o.MemTableSize = 4 << 20
	o.NumMemtables = 2
	o.NumLevelZeroTables = 4
	o.NumLevelZeroTablesStall = 8
	o.NumCompactors = 2
	o.NumGoroutines = 1
	// Every value stays in the LSM tree: errors of syncing its log are returned,
	// those of the value log are only printed (badger v4.9.6 value.go), and only
	// from the tree can a dropped prefix be erased.
	o.ValueThreshold = 256 << 10
	o.ValueLogFileSize = 16 << 20
	o.Compression = options.Snappy
	// checkTables was here just before; Badger's own check of a table that is
	// damaged since panics (table.go, VerifyChecksum).
	o.ChecksumVerificationMode = options.NoVerification
	o.BlockCacheSize = 4 << 20
	o.IndexCacheSize = 2 << 20
	o.MetricsEnabled = false
	o.Logger = slogger{logger}
	return o
}

// slogger passes Badger's own messages on. What it calls info is for debugging it.
type slogger struct{ *slog.Logger }

func (l slogger) Errorf(f string, a ...any)   { l.print(slog.LevelError, f, a) }
func (l slogger) Warningf(f string, a ...any) { l.print(slog.LevelWarn, f, a) }
func (l slogger) Infof(f string, a ...any)    { l.print(slog.LevelDebug, f, a) }
func (l slogger) Debugf(f string, a ...any)   { l.print(slog.LevelDebug, f, a) }

func (l slogger) print(level slog.Level, format string, args []any) {
	ctx := context.Background()
	if l.Logger == nil || !l.Enabled(ctx, level) {
		return
	}
	text := strings.TrimSpace(fmt.Sprintf(format, args...))
	text, _ = cutString(text, MaxFact) // some of them dump whole values in hex
	l.Log(ctx, level, "badger: "+text)
}
