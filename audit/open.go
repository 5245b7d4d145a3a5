package audit

import (
	"fmt"

	"github.com/dgraph-io/badger/v4"
)

// load finds the ends of the chains in the database.
func (l *Log) load() error {
	l.streams = map[string]*stream{}
	return l.view(func(txn *badger.Txn) error {
		names, err := streamNames(txn)
		if err != nil {
			return err
		}
		for _, name := range names {
			s, err := loadStream(txn, name)
			if err != nil {
				return err
			}
			l.streams[name] = s
		}
		return nil
	})
}

// loadStream reads the head of a stream, when its last record was written, and
// the intents that are open.
func loadStream(txn *badger.Txn, name string) (*stream, error) {
	h, err := readHead(txn, name)
	if err != nil {
		return nil, err
	}
	s := &stream{name: name, n: h.N}
	if s.leaf, err = h.hash(); err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	var v view
	err = eachRecord(txn, name, min(h.Settled+1, h.N), h.N, func(n uint64, line []byte) error {
		if err := v.scan(line); err != nil {
			return nil // for Verify to tell; a start must be possible to run it
		}
		s.open.see(v.move(), v.text(colCall), n)
		s.last = moment{v.time(), v.int(colMono), v.text(colBoot)}
		return nil
	})
	return s, err
}

// replay brings the records of the tail that are not in the database into it.
func (l *Log) replay() error {
	frames, err := l.tail.read()
	if err != nil {
		return fmt.Errorf("%w: tail: %w", ErrUnreadable, err)
	}
	var groups []*batch
	for _, f := range frames {
		it, err := l.resume(f)
		if err != nil {
			return err
		}
		if it == nil {
			continue
		}
		size := len(it.line) + len(it.body) + itemCost
		if n := len(groups); n == 0 || groups[n-1].size+size > maxGroup {
			groups = append(groups, &batch{})
		}
		b := groups[len(groups)-1]
		b.items, b.size = append(b.items, it), b.size+size
	}
	for _, b := range groups {
		if err := l.room(false); err != nil {
			return err
		}
		if err := l.save(b); err != nil {
			return fmt.Errorf("%w: replay of the tail: %w", ErrUnavailable, err)
		}
	}
	if l.tail.size == 0 {
		return nil
	}
	if err := l.tail.empty(); err != nil {
		return fmt.Errorf("%w: tail: %w", ErrUnavailable, err)
	}
	return nil
}

// resume puts a record of the tail at the end of its chain, or gives nil when
// it is in the database already.
func (l *Log) resume(f frame) (*item, error) {
	s := l.stream(f.stream)
	if f.n <= s.n {
		return nil, nil
	}
	var v view
	if err := v.scan(f.line); err != nil || uint64(v.int(colN)) != f.n || f.n != s.n+1 || string(v.bare(colPrev)) != s.leaf.String() {
		return nil, fmt.Errorf("%w: record %d in the tail does not follow record %d of stream %s; "+
			"the database is older than its tail, restore both or move the tail away", ErrUnreadable, f.n, s.n, f.stream)
	}
	it := &item{stream: s, n: f.n, line: f.line, leaf: leafOf(f.line)}
	if len(f.body) > 0 {
		it.body = f.body
	}
	s.n, s.leaf = it.n, it.leaf
	s.last = moment{v.time(), v.int(colMono), v.text(colBoot)}
	s.open.see(v.move(), v.text(colCall), it.n)
	it.settled = s.open.settled(it.n)
	return it, nil
}

// view reads in one transaction. A panic, which Badger has for some damaged
// files, becomes an error.
func (l *Log) view(fn func(*badger.Txn) error) (err error) {
	defer recovered(&err)
	return l.db.View(fn)
}

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: %v", ErrUnreadable, p)
	}
}

func streamNames(txn *badger.Txn) (names []string, err error) {
	o := badger.DefaultIteratorOptions
	o.Prefix = []byte(headPrefix)
	o.PrefetchValues = false
	it := txn.NewIterator(o)
	defer it.Close()
	for it.Rewind(); it.Valid(); it.Next() {
		names = append(names, string(it.Item().Key()[len(headPrefix):]))
	}
	return names, nil
}

// eachRecord gives the stored lines from..to, ascending. A line is valid during
// its call only. Missing records are left out.
func eachRecord(txn *badger.Txn, stream string, from, to uint64, fn func(n uint64, line []byte) error) error {
	o := badger.DefaultIteratorOptions
	o.Prefix = streamPrefix(recordPrefix, stream)
	o.PrefetchValues = false // they lie beside the keys; prefetching costs a goroutine each
	it := txn.NewIterator(o)
	defer it.Close()
	for it.Seek(recordKey(stream, from)); it.Valid(); it.Next() {
		n, ok := numberOf(it.Item().Key(), o.Prefix)
		if !ok || n > to {
			return nil
		}
		if err := it.Item().Value(func(line []byte) error { return fn(n, line) }); err != nil {
			return err
		}
	}
	return nil
}
