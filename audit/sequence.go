package audit

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// noteDelay is how long a note may wait for the group that makes it durable.
	noteDelay = 10 * time.Millisecond
	// maxGroup bounds a group, in bytes of keys and values, to what one
	// transaction takes (15 % of the memtable).
	maxGroup = 480 << 10
	// itemCost is what a record costs a transaction besides its line and body.
	itemCost = 3*(maxStream+16) + 160
	// maxFront bounds the part of the line that the sequencer writes.
	maxFront = 256
)

// sequence is the state of the sequencer, guarded by Log.turn.
//
// Every record gets its number, its hash and its place in the queue in one
// critical section, so the order of the queue is the order of the numbers in
// each stream and over all streams. A group is a prefix of the queue. Hence what
// is durable is at every moment a prefix too, and no crash leaves a gap.
type sequence struct {
	streams  map[string]*stream
	queue    []*batch // numbered, not yet being written; only the last one grows
	inflight *batch   // being written
	ordinal  uint64   // of the newest record, over all streams
	durable  uint64   // up to this ordinal everything is on disk
	spilled  uint64   // ordinal of the newest record in the tail
	unspilt  []*item  // not in the tail; those up to durable are of no interest
	tail     *tail
	closed   bool
	left     bool  // gone was closed
	dead     error // why the log stopped
}

// stream is the end of a chain.
type stream struct {
	name string
	n    uint64
	leaf leaf
	last moment
	open opens
}

// item is a numbered record.
type item struct {
	stream  *stream
	n       uint64
	line    []byte
	body    []byte
	leaf    leaf
	settled uint64 // see head
	ordinal uint64
	slot    bool // holds one of Log.slots
}

// batch is a group of records that becomes durable in one transaction.
type batch struct {
	items  []*item
	size   int
	urgent bool      // somebody waits for it
	due    time.Time // when it is written even if nobody does
	done   chan struct{}
	err    error // read after done was closed
}

func (b *batch) wait(ctx context.Context) error {
	select {
	case <-b.done:
		return b.err
	default:
	}
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return fmt.Errorf("%w: not waited for: %w", ErrUnavailable, context.Cause(ctx))
	}
}

// number gives e its place.
func (l *Log) number(ctx context.Context, name string, e Entry, note bool) (*batch, Receipt, error) {
	p, err := l.prepare(name, e)
	if err != nil {
		return nil, Receipt{}, err
	}
	if err := l.room(note); err != nil {
		return nil, Receipt{}, err
	}
	if err := l.enter(ctx); err != nil {
		return nil, Receipt{}, err
	}
	b, r, err := l.place(ctx, name, p, note)
	if err != nil {
		<-l.slots
	}
	return b, r, err
}

// enter waits for room in the queue.
func (l *Log) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
	}
	select {
	case l.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %d records wait already: %w", ErrUnavailable, maxQueue, context.Cause(ctx))
	case <-l.gone:
		return l.refusal()
	}
}

func (l *Log) refusal() error {
	l.lock()
	defer l.unlock()
	return l.refuses()
}

// refuses says why no record is taken any more. The lock is held.
func (l *Log) refuses() error {
	switch {
	case l.dead != nil:
		return l.dead
	case l.closed:
		return fmt.Errorf("%w: it was closed", ErrUnavailable)
	}
	return nil
}

// prepared is a record but for its place.
type prepared struct {
	rest []byte // the line from boot on
	body []byte
	move move
	call string
}

// prepare does what needs no lock: trimming, digests, most of the encoding.
func (l *Log) prepare(name string, e Entry) (prepared, error) {
	if err := checkStream(name); err != nil {
		return prepared{}, err
	}
	r := e.trimmed()
	r.Boot, r.Run = l.o.Boot, l.o.Run
	p := prepared{move: moveOf(r.Ev, r.Out != nil), call: r.Call}
	if e.RawArgs != nil {
		p.body = seal(&r, e.RawArgs)
	}
	p.rest = r.appendRest(make([]byte, 0, 640))
	if all := e.allChanges(); len(all) > 0 {
		o := *r.Out
		o.Changed = max(o.Changed, int64(len(all)))
		left := MaxRecord - maxFront - len(p.rest) - len(`,"changed":,"changes_digest":""`) - 100
		o.Changes, o.ChangesDigest = trimChanges(all, min(MaxChanges, left))
		r.Out = &o
		p.rest = r.appendRest(p.rest[:0])
	}
	p.rest = append(p.rest, '}')
	if len(p.rest)+maxFront > MaxRecord {
		return prepared{}, fmt.Errorf("%w: %w", ErrUnavailable, ErrTooBig)
	}
	return p, nil
}

func (l *Log) place(ctx context.Context, name string, p prepared, note bool) (*batch, Receipt, error) {
	if err := l.lockFor(ctx); err != nil {
		return nil, Receipt{}, err
	}
	defer l.unlock()
	if err := l.refuses(); err != nil {
		return nil, Receipt{}, err
	}
	s := l.stream(name)
	now := moment{l.o.Clock(), l.o.Mono() / 1000, l.o.Boot}
	if facts, stepped := s.last.step(now); stepped {
		l.push(s, l.stepItem(s, now, facts), now, passes, "")
	}
	it := makeItem(s, now, p)
	it.slot = true
	if note {
		if err := l.spill(it); err != nil {
			return nil, Receipt{}, err
		}
	}
	b := l.push(s, it, now, p.move, p.call)
	if !note && !b.urgent {
		b.urgent = true
		l.nudge()
	}
	return b, Receipt{Stream: name, N: it.n, Leaf: it.leaf.String()}, nil
}

func (l *Log) stepItem(s *stream, now moment, facts Facts) *item {
	r := Record{Boot: l.o.Boot, Run: l.o.Run, Ev: EvClockStep, Args: facts}
	return makeItem(s, now, prepared{rest: append(r.appendRest(nil), '}')})
}

// makeItem writes the line of the next record of s and hashes it. s is unchanged.
func makeItem(s *stream, now moment, p prepared) *item {
	b := make([]byte, 1, 1+maxFront+len(p.rest))
	b = appendPlace(b, Version, s.n+1, s.leaf.String(), now.wall, now.mono)
	b = append(b, p.rest...)
	return &item{stream: s, n: s.n + 1, line: b[1:], body: p.body, leaf: prefixedLeaf(b)}
}

// push makes it the newest record of s and of the queue.
func (l *Log) push(s *stream, it *item, now moment, m move, call string) *batch {
	l.ordinal++
	it.ordinal = l.ordinal
	s.n, s.leaf, s.last = it.n, it.leaf, now
	s.open.see(m, call, it.n)
	it.settled = s.open.settled(it.n)
	if l.spilled < it.ordinal {
		l.unspilt = append(l.unspilt, it)
	}

	size := len(it.line) + len(it.body) + itemCost
	if n := len(l.queue); n == 0 || l.queue[n-1].size+size > maxGroup {
		l.queue = append(l.queue, &batch{done: make(chan struct{}), due: time.Now().Add(noteDelay)})
		l.nudge()
	}
	b := l.queue[len(l.queue)-1]
	b.items = append(b.items, it)
	b.size += size
	return b
}

// spill writes it, and before it whatever else is not on disk, to the tail.
func (l *Log) spill(it *item) error {
	frames := l.tail.buf[:0]
	for _, u := range l.unspilt {
		if u.ordinal > l.durable {
			frames = appendFrame(frames, u)
		}
	}
	frames = appendFrame(frames, it)
	if cap(frames) <= maxGroup { // a full queue once must not cost memory for ever
		l.tail.buf = frames
	}
	if err := l.tail.write(frames); err != nil {
		err = fmt.Errorf("%w: tail: %w", ErrUnavailable, err)
		if errors.Is(err, errTorn) {
			l.die(err)
		}
		return err
	}
	l.unspilt = l.unspilt[:0]
	l.spilled = l.ordinal + 1
	return nil
}

// stream finds or begins a chain.
func (l *Log) stream(name string) *stream {
	s := l.streams[name]
	if s == nil {
		s = newStream(name)
		l.streams[name] = s
	}
	return s
}

func newStream(name string) *stream { return &stream{name: name, leaf: genesis(name)} }

func (l *Log) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
