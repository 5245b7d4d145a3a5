package audit

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/dgraph-io/badger/v4"
)

// Dump is the database at one moment, for whoever copies it: the log with all else that
// shares the database. Changes go on meanwhile; those that come later are not in it.
// Its methods are for one goroutine at a time.
//
// Badger's own Backup is not used: it reads each range of keys in a transaction of its
// own (badger v4.9.6 stream.go, produceKVs), so that what was written meanwhile is in
// one half of it and not in the other.
type Dump struct {
	txn  *badger.Txn
	keep func(key []byte) bool
}

// BeginDump begins a dump of the keys that keep lets in; nil lets all. What Append
// returned for is in it, and what Note returned for when [Log.Sync] came after. The
// caller closes it before the database.
func BeginDump(db *badger.DB, keep func(key []byte) bool) *Dump {
	if keep == nil {
		keep = func([]byte) bool { return true }
	}
	return &Dump{db.NewTransaction(false), keep}
}

// Close ends it.
func (d *Dump) Close() { d.txn.Discard() }

// dumpMagic begins a dump. An entry follows for each key, rising:
//
//	KEYLEN VALUELEN KEY VALUE
//
// with lengths as unsigned varints, and an entry of two zeros at the end.
const dumpMagic = "mcp-vdisk/db/1\n"

// Limits of an entry, in bytes. Nothing that is stored comes near them. A transaction
// takes 15 % of a memtable, which loadGroup stays below.
const (
	maxDumpKey   = 4 << 10
	maxDumpValue = 256 << 10
)

// Size is how many bytes WriteTo writes. It reads all of it.
func (d *Dump) Size() (int64, error) { return d.WriteTo(io.Discard) }

// WriteTo writes the dump. It may be called more than once.
//
// Errors: those of w; others wrap [ErrUnreadable].
func (d *Dump) WriteTo(w io.Writer) (n int64, err error) {
	defer recovered(&err)
	c := &counter{w: w}
	b := bufio.NewWriterSize(c, 64<<10)
	b.WriteString(dumpMagic)
	it := d.txn.NewIterator(badger.IteratorOptions{PrefetchValues: false})
	defer it.Close()
	for it.Rewind(); it.Valid(); it.Next() {
		item := it.Item()
		if !d.keep(item.Key()) {
			continue
		}
		err := item.Value(func(value []byte) error { return writeEntry(b, item.Key(), value) })
		if c.err != nil {
			return c.n, c.err
		}
		if err != nil {
			return c.n, fmt.Errorf("%w: %w", ErrUnreadable, err)
		}
	}
	b.Write([]byte{0, 0})
	err = b.Flush()
	return c.n, err
}

// counter counts what goes by, and keeps the first error.
type counter struct {
	w   io.Writer
	n   int64
	err error
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	if c.err == nil {
		c.err = err
	}
	return n, err
}

func writeEntry(b *bufio.Writer, key, value []byte) error {
	if len(key) == 0 || len(key) > maxDumpKey || len(value) > maxDumpValue {
		return fmt.Errorf("a key of %d and its value of %d bytes", len(key), len(value))
	}
	head := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(len(key))), uint64(len(value)))
	for _, p := range [][]byte{head, key, value} {
		if _, err := b.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// ErrDump: what was to be loaded is no dump, or not a whole one.
var ErrDump = errors.New("not a whole dump of a database")

// LoadDB makes a database in dir, which must be empty or missing, of what WriteTo
// wrote. It is durable when LoadDB returns nil, and is then opened by [OpenDB]. Nothing
// in r is trusted but to be stored. room is asked before every write, for a full disk
// ends the process. A failure leaves files behind in dir.
//
// Errors: ErrDump, those of r and room, and those of OpenDB.
func LoadDB(dir string, r io.Reader, room func() error, logger *slog.Logger) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	if err := room(); err != nil {
		return err
	}
	db, err := badger.Open(tuned(dir, logger).WithSyncWrites(false)) // it is synced once, at the end
	if err != nil {
		return fmt.Errorf("%w: open %s: %w", ErrUnreadable, dir, err)
	}
	err = load(db, r, room)
	if err == nil {
		err = db.Sync()
	}
	return errors.Join(err, db.Close())
}

// load writes in transactions of some hundred kilobytes.
func load(db *badger.DB, r io.Reader, room func() error) error {
	in := bufio.NewReaderSize(r, 64<<10)
	magic := make([]byte, len(dumpMagic))
	if _, err := io.ReadFull(in, magic); err != nil {
		return brokenDump(err)
	}
	if string(magic) != dumpMagic {
		return fmt.Errorf("%w: it does not begin as one", ErrDump)
	}
	var last []byte
	for more := true; more; {
		if err := room(); err != nil {
			return err
		}
		err := db.Update(func(txn *badger.Txn) (err error) {
			last, more, err = loadGroup(txn, in, last)
			return err
		})
		if err != nil {
			return err
		}
	}
	switch _, err := in.ReadByte(); err {
	case io.EOF:
		return nil
	case nil:
		return fmt.Errorf("%w: something follows its end", ErrDump)
	default:
		return err
	}
}

// loadGroup stores the next entries, which come after the key last, up to maxGroup.
func loadGroup(txn *badger.Txn, in *bufio.Reader, last []byte) (key []byte, more bool, err error) {
	for size := 0; size < maxGroup-maxDumpValue/2; {
		key, value, err := readEntry(in)
		if err != nil {
			return nil, false, err
		}
		if key == nil {
			return last, false, nil
		}
		if bytes.Compare(key, last) <= 0 {
			return nil, false, fmt.Errorf("%w: its keys are not in order", ErrDump)
		}
		if err := txn.Set(key, value); err != nil {
			return nil, false, fmt.Errorf("%w: %w", ErrDump, err)
		}
		last = key
		size += len(key) + len(value) + itemCost
	}
	return last, true, nil
}

// readEntry gives a nil key at the end.
func readEntry(in *bufio.Reader) (key, value []byte, err error) {
	klen, err := binary.ReadUvarint(in)
	if err != nil {
		return nil, nil, brokenDump(err)
	}
	vlen, err := binary.ReadUvarint(in)
	switch {
	case err != nil:
		return nil, nil, brokenDump(err)
	case klen == 0 && vlen == 0:
		return nil, nil, nil
	case klen == 0 || klen > maxDumpKey || vlen > maxDumpValue:
		return nil, nil, fmt.Errorf("%w: a key of %d and a value of %d bytes", ErrDump, klen, vlen)
	}
	b := make([]byte, klen+vlen)
	if _, err := io.ReadFull(in, b); err != nil {
		return nil, nil, brokenDump(err)
	}
	return b[:klen:klen], b[klen:], nil
}

func brokenDump(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: it is cut off", ErrDump)
	}
	return err
}
