package audit

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/hostos"
)

// DefaultMinFree is the room that must be left on the file system of the log.
// Badger maps its files: a full disk would end the process with SIGBUS.
const DefaultMinFree = 64 << 20

// maxQueue is how many records may be numbered and not yet durable.
const maxQueue = 1024

// Options of a log. The zero value is the default.
type Options struct {
	// Clock is the wall clock, time.Now by default. When it goes back, or parts
	// from Mono by more than 2 s, the next record of the stream is preceded by a
	// clock.step record; the order of a stream is N alone.
	Clock func() time.Time
	// Mono gives nanoseconds since boot and goes on from process to process of
	// one boot. Kept in microseconds.
	Mono func() int64

	Boot string // id of this boot; the kernel's by default
	Run  string // id of this run; random by default

	Logger *slog.Logger // nil: silent

	MinFree uint64                 // bytes; 0 = DefaultMinFree; notes need an eighth less
	Free    func() (uint64, error) // free bytes; by default of the folder of the tail
}

// Log is an open log. All methods may be called at the same time.
type Log struct {
	db   *badger.DB
	o    Options
	save func(*batch) error // how a group becomes durable

	slots   chan struct{} // one is held by each record that is not yet durable
	wake    chan struct{} // tells the sequencer that there is something to do
	stop    chan struct{} // closed by Close
	stopped chan struct{} // closed when the sequencer is done
	gone    chan struct{} // closed when no more records are taken

	turn chan struct{} // the lock of everything below, with a context
	sequence
}

// New opens the log that lives in db. It first brings the records that a killed
// process left in the file tail into the database, then is ready.
//
// The error wraps [ErrUnreadable] when the database gives nonsense or the tail
// does not go on where the database ends; nothing was changed then.
func New(db *badger.DB, tail string, o Options) (*Log, error) {
	l := &Log{
		db: db, o: o.withDefaults(tail),
		slots:   make(chan struct{}, maxQueue),
		wake:    make(chan struct{}, 1),
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
		gone:    make(chan struct{}),
		turn:    make(chan struct{}, 1),
	}
	l.save = l.commit
	if err := l.load(); err != nil {
		return nil, err
	}
	t, err := openTail(tail)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	l.tail = t
	if err := l.replay(); err != nil {
		t.close()
		return nil, err
	}
	go l.run()
	return l, nil
}

func (o Options) withDefaults(tail string) Options {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Mono == nil {
		o.Mono = sinceBoot()
	}
	if o.Run == "" {
		var id [16]byte
		rand.Read(id[:])
		o.Run = hex.EncodeToString(id[:])
	}
	if o.Boot == "" {
		o.Boot = cmp.Or(bootID(), o.Run)
	}
	o.Boot, _ = cutString(o.Boot, maxName)
	o.Run, _ = cutString(o.Run, maxName)
	if o.MinFree == 0 {
		o.MinFree = DefaultMinFree
	}
	if o.Free == nil {
		dir := filepath.Dir(tail)
		o.Free = func() (uint64, error) {
			free, _, err := hostos.Free(dir)
			return free, err
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Close makes durable what was taken, then stops. With less than [MinOpenFree] on
// the disk it writes nothing, and what waited in Append fails; notes are in the
// tail. Later calls of Append and Note
// fail with [ErrUnavailable]. It may be called more than once, and gives the
// error that stopped the log before, if one did.
func (l *Log) Close() error {
	l.lock()
	first := !l.closed
	if first {
		l.closed = true
		l.leave()
		close(l.stop)
	}
	l.unlock()
	<-l.stopped
	l.lock()
	defer l.unlock()
	if first {
		return errors.Join(l.dead, l.tail.close())
	}
	return l.dead
}

// Sync waits until everything that was numbered before is durable.
func (l *Log) Sync(ctx context.Context) error {
	if err := l.lockFor(ctx); err != nil {
		return err
	}
	b := l.inflight
	if n := len(l.queue); n > 0 {
		b = l.queue[n-1]
		b.urgent = true
		l.nudge()
	}
	dead := l.dead
	l.unlock()
	switch {
	case dead != nil:
		return dead
	case b == nil:
		return nil
	}
	return b.wait(ctx)
}

// room refuses when the disk is nearly full, before anything is numbered. A note
// needs less than an intent, so that an effect which took a little room does not
// keep its own outcome out of the log.
func (l *Log) room(note bool) error {
	free, err := l.o.Free()
	if err != nil {
		return fmt.Errorf("%w: free space is not known: %w", ErrUnavailable, err)
	}
	need := l.o.MinFree
	if note {
		need -= need / 8
	}
	if free < need {
		return fmt.Errorf("%w: %d bytes are free on the disk of the log and %d are needed", ErrUnavailable, free, need)
	}
	return nil
}

// Room says whether a durable record would be let in now. Others who write to the
// same database ask it first.
//
// Errors: ErrUnavailable.
func (l *Log) Room() error { return l.room(false) }

func (l *Log) lock()   { l.turn <- struct{}{} }
func (l *Log) unlock() { <-l.turn }

func (l *Log) lockFor(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
	}
}
