package audit

import (
	"context"
	"encoding/json"
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

// Append adds a record and returns when it is on disk, safe from a crash of the
// process and of the host: for intents, refusals, decisions, and whatever must be
// on record before an effect.
//
// Every error wraps [ErrUnavailable] and the effect must not happen. When ctx
// ended while the record was being written, it may still appear in the log.
func (l *Log) Append(ctx context.Context, stream string, e Entry) (Receipt, error) {
	b, r, err := l.number(ctx, stream, e, false)
	if err != nil {
		return Receipt{}, err
	}
	if err := b.wait(ctx); err != nil {
		return Receipt{}, fmt.Errorf("record %d of stream %s: %w", r.N, stream, err)
	}
	return r, nil
}

// Note adds a record and returns when it is safe from a crash of the process; it
// is safe from a crash of the host at most 10 ms later: for outcomes and reads.
//
// It is numbered at once and written to the tail together with whatever was
// numbered before and is not on disk yet. Every error wraps [ErrUnavailable]; the
// record is then not in the log. ctx ends only the wait for a place in the queue;
// an outcome that must be told even after its caller hung up needs
// context.WithoutCancel.
func (l *Log) Note(ctx context.Context, stream string, e Entry) (Receipt, error) {
	_, r, err := l.number(ctx, stream, e, true)
	return r, err
}

// number gives e its place.
func (l *Log) number(ctx context.Context, name string, e Entry, note bool) (*batch, Receipt, error) {
	p, err := l.prepare(name, e)
	if err != nil {
		return nil, Receipt{}, err
	}
	if err := l.room(); err != nil {
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
	ev   Event
	call string
}

// prepare does what needs no lock: trimming, digests, most of the encoding.
func (l *Log) prepare(name string, e Entry) (prepared, error) {
	if err := checkStream(name); err != nil {
		return prepared{}, err
	}
	r := e.trimmed()
	r.Boot, r.Run = l.o.Boot, l.o.Run
	p := prepared{ev: r.Ev, call: r.Call}
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
		l.push(s, l.stepItem(s, now, facts), now, EvClockStep, "")
	}
	it := makeItem(s, now, p)
	it.slot = true
	if note {
		if err := l.spill(it); err != nil {
			return nil, Receipt{}, err
		}
	}
	b := l.push(s, it, now, p.ev, p.call)
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
func (l *Log) push(s *stream, it *item, now moment, ev Event, call string) *batch {
	l.ordinal++
	it.ordinal = l.ordinal
	s.n, s.leaf, s.last = it.n, it.leaf, now
	s.open.see(ev, call, it.n)
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
	l.tail.buf = frames
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

// run is the sequencer's goroutine: it writes group after group.
func (l *Log) run() {
	defer close(l.stopped)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if wait := l.flush(); wait > 0 {
			timer.Reset(wait)
		}
		select {
		case <-l.wake:
		case <-timer.C:
		case <-l.stop:
			l.flush()
			return
		}
	}
}

// flush writes every group that is due and says when the next one will be.
func (l *Log) flush() time.Duration {
	for {
		l.lock()
		b, wait := l.next()
		if b == nil {
			l.unlock()
			return wait
		}
		if l.tail.size > maxTail {
			l.drain(b)
			l.unlock()
			continue
		}
		l.unlock()
		err := l.save(b)
		l.lock()
		l.settle(b, err)
		l.unlock()
	}
}

// drain writes the whole queue while nobody can add to it, so that the tail can
// be emptied: under steady notes it would otherwise grow for ever.
func (l *Log) drain(b *batch) {
	for b != nil {
		l.settle(b, l.save(b))
		b = nil
		if len(l.queue) > 0 {
			b = l.pop()
		}
	}
}

// next takes the first group off the queue when it is time for it.
func (l *Log) next() (*batch, time.Duration) {
	if len(l.queue) == 0 {
		return nil, 0
	}
	b := l.queue[0]
	if wait := time.Until(b.due); wait > 0 && !b.urgent && !l.closed && len(l.queue) == 1 {
		return nil, wait
	}
	return l.pop(), 0
}

func (l *Log) pop() *batch {
	l.inflight = l.queue[0]
	l.queue = l.queue[1:]
	return l.inflight
}

// commit makes a group durable.
func (l *Log) commit(b *batch) error {
	txn := l.db.NewTransaction(true)
	defer txn.Discard()
	heads := map[*stream]*item{}
	for _, it := range b.items {
		if err := txn.Set(recordKey(it.stream.name, it.n), it.line); err != nil {
			return err
		}
		if it.body != nil {
			if err := txn.Set(bodyKey(it.stream.name, it.n), it.body); err != nil {
				return err
			}
		}
		heads[it.stream] = it
	}
	for s, it := range heads {
		h, err := json.Marshal(head{N: it.n, Leaf: it.leaf.String(), Settled: it.settled})
		if err == nil {
			err = txn.Set(headKey(s.name), h)
		}
		if err != nil {
			return err
		}
	}
	return txn.Commit()
}

// settle tells the waiters of a group how it went. An error is ambiguous, the
// group may be on disk or not, so it stops the log: what is numbered cannot be
// taken back.
func (l *Log) settle(b *batch, err error) {
	l.inflight = nil
	for _, it := range b.items {
		if it.slot {
			<-l.slots
		}
	}
	if err != nil {
		text, _ := cutString(err.Error(), MaxFact) // Badger dumps values into some errors
		b.err = fmt.Errorf("%w: stopped until it is opened again: %s", ErrUnavailable, text)
		close(b.done)
		l.die(b.err)
		return
	}
	l.durable = b.items[len(b.items)-1].ordinal
	l.forget()
	if l.tail.size > 0 && l.spilled <= l.durable {
		if err := l.tail.empty(); err != nil {
			l.die(fmt.Errorf("%w: tail: %w", ErrUnavailable, err))
		}
	}
	close(b.done)
}

// forget drops what is durable from the list of what is not in the tail.
func (l *Log) forget() {
	i := 0
	for i < len(l.unspilt) && l.unspilt[i].ordinal <= l.durable {
		i++
	}
	rest := copy(l.unspilt, l.unspilt[i:])
	clear(l.unspilt[rest:])
	l.unspilt = l.unspilt[:rest]
}

// die stops the log for good. The tail stays as it is, for the next New.
func (l *Log) die(err error) {
	if l.dead == nil {
		l.dead = err
		l.o.Logger.Error("audit log stopped", "cause", err)
	}
	l.leave()
	for _, b := range l.queue {
		for _, it := range b.items {
			if it.slot {
				<-l.slots
			}
		}
		b.err = l.dead
		close(b.done)
	}
	l.queue = nil
}

// leave tells those who wait for a slot that none will be given.
func (l *Log) leave() {
	if !l.left {
		l.left = true
		close(l.gone)
	}
}
