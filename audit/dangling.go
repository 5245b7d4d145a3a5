package audit

import (
	"context"
	"slices"

	"github.com/dgraph-io/badger/v4"
)

// Streams names every stream that has a record, sorted.
func (l *Log) Streams() (names []string, err error) {
	if err := l.catchUp(context.Background()); err != nil {
		return nil, err
	}
	err = l.view(func(txn *badger.Txn) error {
		names, err = streamNames(txn)
		return err
	})
	return names, err
}

// Dangling gives the intents of a stream that have no outcome, in their order:
// after a start those that a crash cut off, while serving also those that are
// being worked on. A call.outcome, call.refused or recover record of the same
// call settles an intent. What a person does to an image has two records of one
// event: the first is an intent, the second, with an outcome, settles it.
//
// It reads only what came after the newest record below which no intent was
// open, as the head says; [Log.Verify] reads everything and checks that.
func (l *Log) Dangling(stream string) (list []Record, err error) {
	if err := checkStream(stream); err != nil {
		return nil, err
	}
	if err := l.catchUp(context.Background()); err != nil {
		return nil, err
	}
	err = l.view(func(txn *badger.Txn) error {
		h, err := readHead(txn, stream)
		if err != nil {
			return err
		}
		open := map[string]Record{}
		var v view
		err = eachRecord(txn, stream, h.Settled+1, h.N, func(n uint64, line []byte) error {
			if err := v.scan(line); err != nil {
				return err
			}
			call := v.text(colCall)
			switch v.move() {
			case begins:
				open[call] = v.recordOf(stream)
			case ends:
				delete(open, call)
			}
			return nil
		})
		for _, r := range open {
			list = append(list, r)
		}
		return err
	})
	slices.SortFunc(list, func(a, b Record) int { return int(int64(a.N) - int64(b.N)) })
	return list, err
}

// catchUp makes what was noted before visible to a reader. A log that stopped can
// still be read as far as it goes.
func (l *Log) catchUp(ctx context.Context) error {
	err := l.Sync(ctx)
	if ctx.Err() != nil {
		return err
	}
	return nil
}
