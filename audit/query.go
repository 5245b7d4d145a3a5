package audit

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dgraph-io/badger/v4"
)

// Query selects records. The zero value selects all.
type Query struct {
	Stream string // "" = every stream, merged by time; each stream keeps its own order

	Since, Until time.Time // wall clock, both inclusive; zero = open
	From, To     uint64    // N, both inclusive; 0 = open

	// Match has the wanted values by field: several values of a field are
	// alternatives, different fields must all match. A field is a key of the
	// record or one level below args, cap, env and out ("out.code",
	// "args.path"). Values compare as text: "true", "17", "write_file".
	Match map[string][]string

	// PathGlob selects records about a path, in args or among the changes that
	// are listed, with doublestar patterns. "/workspace/a/**" is taken as it is,
	// "a/*.py" from /workspace, and a pattern without "/" at any depth.
	PathGlob string

	Limit   int  // at most so many records, the first of them in the order asked for; 0 = all
	Reverse bool // newest first
	Newest  bool // with Limit: the newest ones, oldest of them first
}

// Query calls fn for every record that matches, in order. raw is the stored line,
// valid during the call; it is the bytes that were hashed. An error of fn ends the
// query and is returned as it is.
//
// It sees one moment of the log: everything numbered before the call. Nothing is
// verified here. The error wraps [ErrQuery] for a field that records do not have.
func (l *Log) Query(ctx context.Context, q Query, fn func(raw []byte, r Record) error) error {
	m, err := q.compile()
	if err != nil {
		return err
	}
	if err := l.catchUp(ctx); err != nil {
		return err
	}
	if q.Newest && !q.Reverse && q.Limit > 0 {
		return l.newest(ctx, q, m, fn)
	}
	return l.each(ctx, q, m, func(raw []byte, v *view, stream string) error {
		return fn(raw, v.recordOf(stream))
	})
}

// newest collects the last records and gives them in ascending order.
func (l *Log) newest(ctx context.Context, q Query, m *matcher, fn func([]byte, Record) error) error {
	type row struct {
		raw []byte
		r   Record
	}
	var rows []row
	q.Reverse = true
	err := l.each(ctx, q, m, func(raw []byte, v *view, stream string) error {
		rows = append(rows, row{bytes.Clone(raw), v.recordOf(stream)})
		return nil
	})
	if err != nil {
		return err
	}
	for _, row := range slices.Backward(rows) {
		if err := fn(row.raw, row.r); err != nil {
			return err
		}
	}
	return nil
}

// each merges the streams.
func (l *Log) each(ctx context.Context, q Query, m *matcher, fn func([]byte, *view, string) error) error {
	return l.view(func(txn *badger.Txn) error {
		names := []string{q.Stream}
		if q.Stream == "" {
			var err error
			if names, err = streamNames(txn); err != nil {
				return err
			}
		} else if err := checkStream(q.Stream); err != nil {
			return fmt.Errorf("%w: %w", ErrQuery, err)
		}
		var open []*cursor
		defer func() {
			for _, c := range open {
				c.it.Close()
			}
		}()
		for _, name := range names {
			c := newCursor(ctx, txn, name, q, m)
			open = append(open, c)
			if err := c.next(); err != nil {
				return err
			}
		}
		for given := 0; q.Limit <= 0 || given < q.Limit; given++ {
			c := pick(open, q.Reverse)
			if c == nil {
				return nil
			}
			if err := fn(c.line, &c.view, c.stream); err != nil {
				return err
			}
			if err := c.next(); err != nil {
				return err
			}
		}
		return nil
	})
}

// pick is the cursor whose record comes next in time.
func pick(open []*cursor, reverse bool) (best *cursor) {
	for _, c := range open {
		if c.line == nil {
			continue
		}
		if best == nil || (bytes.Compare(c.view[colT], best.view[colT]) < 0) != reverse && !bytes.Equal(c.view[colT], best.view[colT]) {
			best = c
		}
	}
	return best
}

// cursor walks over the matching records of a stream.
type cursor struct {
	ctx     context.Context
	stream  string
	prefix  []byte
	it      *badger.Iterator
	q       Query
	m       *matcher
	started bool
	seen    int

	line []byte // the record it stands on; nil at the end
	view view
}

func newCursor(ctx context.Context, txn *badger.Txn, stream string, q Query, m *matcher) *cursor {
	c := &cursor{ctx: ctx, stream: stream, q: q, m: m, prefix: streamPrefix(recordPrefix, stream)}
	o := badger.DefaultIteratorOptions
	o.Prefix = c.prefix
	o.Reverse = q.Reverse
	o.PrefetchValues = false // they lie beside the keys; prefetching costs a goroutine each
	c.it = txn.NewIterator(o)
	return c
}

// next goes to the next match. The line stays valid until the call after.
func (c *cursor) next() error {
	c.line = nil
	for c.advance(); c.it.Valid(); c.advance() {
		if c.seen++; c.seen%1024 == 0 && c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		n, ok := numberOf(c.it.Item().Key(), c.prefix)
		if !ok {
			continue
		}
		if c.beyond(n) {
			return nil
		}
		err := c.it.Item().Value(func(line []byte) error {
			if !c.m.may(line) {
				return nil
			}
			if err := c.view.scan(line); err != nil {
				return fmt.Errorf("record %d of stream %s: %w", n, c.stream, err)
			}
			if c.m.match(&c.view) {
				c.line = line
			}
			return nil
		})
		if err != nil || c.line != nil {
			return err
		}
	}
	return nil
}

func (c *cursor) advance() {
	if c.started {
		c.it.Next()
		return
	}
	c.started = true
	switch {
	case !c.q.Reverse:
		c.it.Seek(recordKey(c.stream, c.q.From))
	case c.q.To > 0:
		c.it.Seek(recordKey(c.stream, c.q.To))
	default:
		c.it.Seek(recordKey(c.stream, MaxInt))
	}
}

func (c *cursor) beyond(n uint64) bool {
	if c.q.Reverse {
		return n < c.q.From
	}
	return c.q.To > 0 && n > c.q.To
}
