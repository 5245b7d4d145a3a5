package audit

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"github.com/dgraph-io/badger/v4"
)

// Reasons of a [Report].
const (
	ReasonMissing = "missing" // the record is not there
	ReasonContent = "content" // it is not a canonical record
	ReasonNumber  = "number"  // it says another number than the one it is stored under
	ReasonHash    = "hash"    // the next record, or the head, follows another one in its place
	ReasonHead    = "head"    // the head cannot be read, or says what the records do not
	ReasonExtra   = "extra"   // the head does not know of it
	ReasonBody    = "body"    // its body is not the one it commits to
)

// Report is what [Log.Verify] found.
type Report struct {
	Stream  string `json:"stream"`
	Records uint64 `json:"records"` // records read
	First   uint64 `json:"first"`   // 0 = none
	Last    uint64 `json:"last"`    // as the head says
	OK      bool   `json:"ok"`

	// The first record that cannot be relied on: the one that is damaged itself,
	// or whose hash is not the one that its successor follows. Zero when OK.
	BadN   uint64 `json:"bad_n,omitempty"`
	Reason string `json:"reason,omitempty"` // one of the Reason constants
	Want   string `json:"want,omitempty"`   // what should be there, a hash where there is one
	Got    string `json:"got,omitempty"`

	Dangling   []string `json:"dangling,omitempty"` // calls with an intent and no outcome, in order
	Bodies     uint64   `json:"bodies"`             // bodies that are there and match
	NotChecked []string `json:"not_checked"`        // in plain words, never empty
}

// Verify reads a whole stream and checks the numbers, the chain, that every
// record is canonical, that the head is the hash of the last one, the bodies
// that are still there, and which intents have no outcome. It says what it
// cannot check. It uses every core; the stream may grow meanwhile.
//
// A tampered stream is a Report, not an error. The error is that of ctx, or wraps
// [ErrUnreadable] when the store failed.
func (l *Log) Verify(ctx context.Context, stream string) (Report, error) {
	if err := checkStream(stream); err != nil {
		return Report{}, fmt.Errorf("%w: %w", ErrQuery, err)
	}
	if err := l.catchUp(ctx); err != nil {
		return Report{}, err
	}
	c := check{log: l, Report: Report{Stream: stream}, prev: genesis(stream)}
	if err := c.run(ctx); err != nil {
		return Report{}, err
	}
	return c.report(), nil
}

// fault is a first bad record, with what a Report says of it.
type fault struct {
	n                 uint64
	reason, want, got string
}

// check is a verification under way. What it holds is about everything up to the
// segment that was joined last.
type check struct {
	Report
	log  *Log
	head head
	prev leaf // of the newest record joined
	open opens
	gone uint64 // bodies that are no longer there
	bad  *fault
}

func (c *check) run(ctx context.Context) error {
	err := c.log.view(func(txn *badger.Txn) (err error) {
		if c.head, err = readHead(txn, c.Stream); err != nil {
			c.bad = &fault{1, ReasonHead, "a readable head", err.Error()}
			return nil
		}
		c.Last = c.head.N
		return nil
	})
	if err != nil || c.bad != nil {
		return err
	}
	if err := c.segments(ctx); err != nil || c.bad != nil {
		return err
	}
	c.checkHead()
	if c.bad != nil {
		return nil
	}
	return c.log.view(c.checkExtra)
}

// segments reads the stream in pieces, several at a time, and joins them in order.
func (c *check) segments(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	workers := runtime.GOMAXPROCS(0)
	results := make(chan chan *segment, workers)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() {
		defer close(results)
		for from := uint64(1); from <= c.head.N; from += segmentSize {
			s := &segment{stream: c.Stream, from: from, to: min(from+segmentSize-1, c.head.N)}
			done := make(chan *segment, 1)
			select {
			case results <- done:
			case <-ctx.Done():
				return
			}
			group.Go(func() {
				s.err = c.log.view(func(txn *badger.Txn) error { return s.read(ctx, txn) })
				done <- s
			})
		}
	})
	for done := range results {
		if err := c.join(<-done); err != nil || c.bad != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// join appends a segment to what was checked.
func (c *check) join(s *segment) error {
	if s.err != nil {
		return s.err
	}
	c.Records += s.records
	c.Bodies += s.bodies
	c.gone += s.gone
	if s.records > 0 && s.first != c.prev {
		c.bad = seam(s.from, c.prev, s.first)
		return nil
	}
	c.bad, c.prev = s.bad, s.last
	for _, e := range s.calls {
		c.open.see(e.move, e.call, e.n)
	}
	return nil
}

// seam is the fault of a record n that does not follow the one before it. The
// one before is named: its successor does not vouch for it.
func seam(n uint64, before, said leaf) *fault {
	if n == 1 {
		return &fault{1, ReasonHash, before.String(), said.String()}
	}
	return &fault{n - 1, ReasonHash, said.String(), before.String()}
}

func (c *check) checkHead() {
	if c.head.N == 0 {
		return
	}
	if said, err := c.head.hash(); err != nil {
		c.bad = &fault{c.head.N, ReasonHead, c.prev.String(), c.head.Leaf}
	} else if said != c.prev {
		c.bad = &fault{c.head.N, ReasonHash, said.String(), c.prev.String()}
	}
	for _, i := range c.open.order {
		if c.bad == nil && c.open.isOpen(i) && i.n <= c.head.Settled {
			c.bad = &fault{i.n, ReasonHead, "an outcome of call " + i.call, "a head that says it is settled"}
		}
	}
}

// checkExtra looks for records outside of 1..head.
func (c *check) checkExtra(txn *badger.Txn) error {
	now, err := readHead(txn, c.Stream) // it may have moved on since
	if err != nil {
		return err
	}
	o := badger.DefaultIteratorOptions
	o.Prefix = streamPrefix(recordPrefix, c.Stream)
	o.PrefetchValues = false
	it := txn.NewIterator(o)
	defer it.Close()
	it.Rewind()
	if n, ok := numberOf(key(it), o.Prefix); it.Valid() && (!ok || n == 0) {
		c.bad = &fault{n, ReasonExtra, "no record here", fmt.Sprintf("%q", key(it))}
		return nil
	}
	it.Seek(recordKey(c.Stream, max(now.N, c.head.N)+1))
	if it.Valid() {
		n, _ := numberOf(key(it), o.Prefix)
		c.bad = &fault{n, ReasonExtra, fmt.Sprintf("no record after %d", now.N), fmt.Sprintf("%q", key(it))}
	}
	return nil
}

func key(it *badger.Iterator) []byte {
	if !it.Valid() {
		return nil
	}
	return it.Item().Key()
}

func (c *check) report() Report {
	if c.Records > 0 {
		c.First = 1
	}
	if c.bad != nil {
		c.BadN, c.Reason, c.Want, c.Got = c.bad.n, c.bad.reason, c.bad.want, c.bad.got
	}
	c.OK = c.bad == nil
	for _, i := range c.open.order {
		if c.open.isOpen(i) {
			c.Dangling = append(c.Dangling, i.call)
		}
	}
	c.NotChecked = []string{
		"authorship: the records are chained but not signed, who can write the database can write a new chain",
		"completeness: without a receipt or an anchor from outside a log cannot show that its newest records are gone",
		"truth: whether the image is as the outcomes say",
	}
	if c.gone > 0 {
		c.NotChecked = append(c.NotChecked, fmt.Sprintf("%d bodies that are no longer there", c.gone))
	}
	if !c.OK {
		c.NotChecked = append(c.NotChecked, fmt.Sprintf("records after %d", c.BadN))
	}
	return c.Report
}
