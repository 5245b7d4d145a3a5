package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"
)

// Badger is the Provider on one Badger database, for one host: the database
// admits one process. All methods may be called at the same time.
type Badger struct {
	db      *badger.DB
	o       Options
	commit  func(*badger.Txn) error
	epoch   uint64
	install [16]byte

	mu    sync.Mutex // never held during a transaction or a hook
	slots map[string]*slot
}

var _ Provider = (*Badger)(nil)

// Options of a Badger. The zero value is the default.
type Options struct {
	Clock Clock // SystemClock by default

	// Evict stops admitting what comes from an old holder, kills what it left
	// running, and returns when that is gone. It is called before a key that
	// was not released is granted to somebody else or broken, also when the
	// holder died with an earlier process; it may be called again for the same
	// lease, and for one that never did anything. If it fails, nothing is granted.
	Evict func(context.Context, Lease) error

	// Record stores the token of a new grant, and Info().Install, in what the key
	// leads to, durably, before anybody gets the grant. If it fails, nothing is
	// granted. Of the grant that a Break records, only Key and Token are set.
	Record func(context.Context, Grant) error

	// Room is asked before every write; its error refuses it. A full disk ends a
	// process that writes to Badger.
	Room func() error

	// Commit takes the place of (*badger.Txn).Commit, for suites that try what
	// follows when it fails.
	Commit func(*badger.Txn) error
}

// New returns the provider whose records are in db, which DetectConflicts. It
// writes, synced: whatever was given out by a provider on this database before is
// older from now on, and that provider can write nothing more. The caller closes
// db when no call is running; there is nothing else to close.
//
// Errors: ErrUnavailable.
func New(db *badger.DB, o Options) (*Badger, error) {
	if !db.Opts().DetectConflicts {
		return nil, fmt.Errorf("%w: the database does not detect conflicts", ErrUnavailable)
	}
	if o.Clock == nil {
		o.Clock = SystemClock()
	}
	b := &Badger{db: db, o: o, commit: o.Commit, slots: map[string]*slot{}}
	if b.commit == nil {
		b.commit = (*badger.Txn).Commit
	}
	var records []*record
	err := b.transact(func(txn *badger.Txn) (err error) {
		records, err = b.begin(txn)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		if r.Resumable && !r.Over {
			s := b.slot(r.Key)
			s.live = b.start(r)
		}
	}
	return b, nil
}

// begin starts an epoch and returns what was held in the one before.
func (b *Badger) begin(txn *badger.Txn) ([]*record, error) {
	records, err := allRecords(txn)
	if err != nil {
		return nil, err
	}
	last, err := readCounter(txn, keyToken)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		if r.Token > last { // the counter was lost; what can be known of it is here
			last = r.Token
			err = writeCounter(txn, keyToken, last)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := b.identify(txn); err != nil {
		return nil, err
	}
	if err := keepLast(txn, records, last); err != nil {
		return nil, err
	}
	if b.epoch, err = readCounter(txn, keyEpoch); err != nil {
		return nil, err
	}
	b.epoch++
	return records, writeCounter(txn, keyEpoch, b.epoch)
}

// keepLast begins to keep the last token of each key, in a store whose last one was
// given out by a release that does not.
func keepLast(txn *badger.Txn, records []*record, last uint64) error {
	value, err := readValue(txn, keyKept)
	if err != nil {
		return err
	}
	kept, err := readCounter(txn, keyKept)
	if err != nil || value != nil && kept >= last {
		return err
	}
	for _, r := range records {
		own, err := readCounter(txn, lastKey(r.Key))
		if err == nil && own < r.Token {
			err = writeCounter(txn, lastKey(r.Key), r.Token)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(writeCounter(txn, keyKept, last), writeCounter(txn, keyBefore, last))
}

// identify reads the name of this install, or makes it.
func (b *Badger) identify(txn *badger.Txn) error {
	value, err := readValue(txn, keyInstall)
	switch {
	case err != nil:
		return err
	case len(value) == len(b.install):
		b.install = [16]byte(value)
		return nil
	case value != nil:
		return fmt.Errorf("%w: the name of this install is damaged", ErrUnavailable)
	}
	b.install = newInstall()
	return stored(txn.Set(keyInstall, b.install[:]))
}

func newInstall() (id [16]byte) {
	rand.Read(id[:])
	id[6] = id[6]&0x0f | 0x40 // version 4, RFC 9562 §5.4
	id[8] = id[8]&0x3f | 0x80
	return id
}

func allRecords(txn *badger.Txn) (all []*record, err error) {
	o := badger.DefaultIteratorOptions
	o.Prefix, o.PrefetchValues = leasePrefix, false
	it := txn.NewIterator(o)
	defer it.Close()
	for it.Rewind(); it.Valid(); it.Next() {
		var r *record
		value, err := it.Item().ValueCopy(nil)
		if err != nil {
			return nil, stored(err)
		}
		if r, err = decodeRecord(value); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// Info says what this provider is good for.
func (b *Badger) Info() Info {
	i := Info{Name: "badger", Install: b.install, Durability: PowerLoss, Reach: SingleHost}
	if b.db.Opts().InMemory {
		i.Durability = Volatile
	}
	return i
}

// update runs fn in a transaction of this epoch, again for as long as others
// get in between. Each time somebody else got through, so this ends; the limit is
// for a store that misbehaves.
func (b *Badger) update(ctx context.Context, fn func(*badger.Txn) error) error {
	const tries = 200
	for n := range tries {
		err := b.transact(func(txn *badger.Txn) error {
			epoch, err := readCounter(txn, keyEpoch)
			switch {
			case err != nil:
				return err
			case epoch != b.epoch:
				return fmt.Errorf("%w: another provider was opened on the database", ErrUnavailable)
			}
			return fn(txn)
		})
		if !errors.Is(err, badger.ErrConflict) {
			return err
		}
		if err := pause(ctx, n); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: the store is too busy", ErrUnavailable)
}

// transact is one try: durable when it returns nil.
func (b *Badger) transact(fn func(*badger.Txn) error) (err error) {
	if b.o.Room != nil {
		if err := b.o.Room(); err != nil {
			return stored(err)
		}
	}
	if b.db.IsClosed() {
		return stored(badger.ErrDBClosed)
	}
	txn := b.db.NewTransaction(true)
	defer txn.Discard()
	if err := fn(txn); err != nil {
		return err
	}
	if err := stored(b.commit(txn)); err != nil || b.db.Opts().SyncWrites {
		return err
	}
	return stored(b.db.Sync())
}

// pause waits for a short random time, longer with every try.
func pause(ctx context.Context, try int) error {
	var r [1]byte
	rand.Read(r[:])
	most := min(50*time.Microsecond<<min(try, 16), 20*time.Millisecond)
	t := time.NewTimer(most * time.Duration(1+int(r[0])) / 256)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
