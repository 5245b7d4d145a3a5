package audit

import (
	"encoding/json"
	"fmt"
	"time"
)

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
		l.giveUp()
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

// giveUp drops the queue of a closed log whose disk is full since it was
// numbered: writing it would end the process with SIGBUS. The waiters get an
// error, and the notes stay in the tail for the next New.
func (l *Log) giveUp() {
	if !l.closed || len(l.queue) == 0 {
		return
	}
	if err := checkRoom(l.o.Free()); err != nil {
		l.die(err)
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
