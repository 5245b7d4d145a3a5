package audit

import (
	"bytes"
	"context"
	"fmt"

	"github.com/dgraph-io/badger/v4"
)

// Commits calls fn for the records of a stream that tell of a commit of its image,
// newest first, until it returns false: those of which Ha is another than Hb, and
// every lease.adopt, which takes on the commit that it names in both. It also gives
// the record by which call began, which has no Ha: whatever was committed after
// that call began is told by a record that comes after it, for a commit and its
// record are not one step, and those of two calls may be in another order than
// their commits. An empty call began nowhere.
//
// It costs a look at every record that came after, some 300,000 per second.
// What removes records has to leave the newest one that tells of a commit.
func (l *Log) Commits(ctx context.Context, stream, call string, fn func(Record) (more bool)) error {
	if err := checkStream(stream); err != nil {
		return err
	}
	if err := l.catchUp(ctx); err != nil {
		return err
	}
	return l.view(func(txn *badger.Txn) error {
		o := badger.DefaultIteratorOptions
		o.Prefix = streamPrefix(recordPrefix, stream)
		o.PrefetchValues = false // they lie beside the keys; prefetching costs a goroutine each
		o.Reverse = true
		it := txn.NewIterator(o)
		defer it.Close()
		seen, more := 0, true
		for it.Seek(recordKey(stream, MaxInt)); it.Valid() && more; it.Next() {
			n, ok := numberOf(it.Item().Key(), o.Prefix)
			if !ok {
				continue
			}
			if seen++; seen%1024 == 0 && ctx.Err() != nil {
				return context.Cause(ctx)
			}
			err := it.Item().Value(func(line []byte) (err error) {
				more, err = tellsCommit(stream, line, call, fn)
				return err
			})
			if err != nil {
				return fmt.Errorf("record %d of stream %s: %w", n, stream, err)
			}
		}
		return nil
	})
}

// tellsCommit gives a record to fn if it is one of a commit, or the one by which
// call began.
func tellsCommit(stream string, line []byte, call string, fn func(Record) bool) (more bool, err error) {
	commits := bytes.Contains(line, []byte(`"ha":"`))
	if !commits && (call == "" || !bytes.Contains(line, []byte(call))) {
		return true, nil
	}
	var v view
	if err := v.scan(line); err != nil {
		return false, err
	}
	switch {
	case len(v[colHa]) > 0 && (!bytes.Equal(v[colHa], v[colHb]) || Event(v.bare(colEv)) == EvLeaseAdopt):
		return fn(v.recordOf(stream)), nil
	case call != "" && v.move() == begins && v.text(colCall) == call && len(v[colHa]) == 0:
		return fn(v.recordOf(stream)), nil
	}
	return true, nil
}
