package tools

import (
	"fmt"
	"io"
	"time"
)

// outbox are the messages that a client has not taken yet. Its fields are guarded by
// the loop's mutex.
type outbox struct {
	out     io.Writer
	list    []outgoing // the oldest first
	unsent  int64      // what they are counted as, with the one that is being written
	sent    int64      // how many were written
	writing bool       // somebody is at it
	outErr  error      // the first failed write; nothing is written after it
}

// outgoing is one message, as a line.
type outgoing struct {
	of   *inFlight
	data []byte
}

func (o outgoing) size() int64 { return int64(cap(o.data)) + perMessage }

// send hands the answer to a request over to be written; the request is over then.
// Whoever finds nobody writing writes what there is: a message that changes
// goroutines on its way takes longer.
func (l *loop) send(r *inFlight, answer any) {
	o := l.outgoing(r, answer)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave(r)
	l.add(o)
	l.resume()
	if !l.writing {
		l.write()
	}
}

// put hands a message over that is not the answer. It is left out where the client
// is behind, and written with the next one or by flush.
func (l *loop) put(r *inFlight, m any) {
	o := l.outgoing(r, m)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unsent < maxUnsent {
		l.add(o)
	}
}

func (l *loop) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.writing {
		l.write()
	}
}

// outgoing makes a message a line; one that is not to be sent has no data.
func (l *loop) outgoing(r *inFlight, m any) outgoing {
	if m == nil || r.silent.Load() {
		return outgoing{}
	}
	data, err := encode(m)
	if err != nil {
		l.t.cfg.Logger.Error("a message could not be encoded", "error", err)
	}
	return outgoing{r, data}
}

// add puts a message behind those that wait. mu is held.
func (l *loop) add(o outgoing) {
	if o.data != nil && l.outErr == nil {
		l.list = append(l.list, o)
		l.unsent += o.size()
	}
}

// write writes what there is. mu is held, and let go for as long as a client lets a
// write wait.
func (l *loop) write() {
	l.writing = true
	for len(l.list) > 0 {
		o := l.list[0]
		l.list[0] = outgoing{}
		l.list = l.list[1:]
		if !o.of.silent.Load() {
			l.mu.Unlock()
			_, err := l.out.Write(o.data)
			l.mu.Lock()
			if err != nil {
				l.broke(fmt.Errorf("write a message: %w", err))
			}
			l.sent++
		}
		l.unsent -= o.size()
		l.resume()
	}
	l.list = nil
	l.writing = false
	l.finish()
}

// broke ends the connection, since nothing can be answered any more. mu is held.
func (l *loop) broke(err error) {
	for _, o := range l.list {
		l.unsent -= o.size()
	}
	l.outErr, l.list = err, nil
	l.drop()
	l.hangUp(fmt.Errorf("%w: %w", errHungUp, err))
}

func (l *loop) writeErr() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outErr
}

// drainEvery is how often a connection whose input has ended is looked after.
const drainEvery = 50 * time.Millisecond

// drain waits for what is left once nothing is read any more: for the requests for as
// long as the grace lasts, then for their end after they were cancelled, then for the
// client to read what it is sent, as long as it does. What waits in the queue is
// answered too when answers are wanted: once the grace is over, that it never began.
func (l *loop) drain(wanted bool) {
	l.mu.Lock()
	if !wanted {
		l.drop()
	}
	l.finish()
	l.mu.Unlock()
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	d := departure{grace: eofGrace, unread: unreadGrace}
	for {
		select {
		case <-l.finished:
			return
		case <-tick.C:
		}
		if l.look(&d) {
			return
		}
	}
}

// departure is how far a client that hung up is waited for.
type departure struct {
	grace, unread time.Duration // what is left of either
	sent          int64         // at the last look
	cancelled     bool
}

// look is one step of drain. true says that nobody is waited for any more.
func (l *loop) look(d *departure) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deserted() {
		l.drop()
		l.finish()
	}
	if d.unread -= drainEvery; l.sent != d.sent {
		d.sent, d.unread = l.sent, unreadGrace
	}
	slow := l.waiting() > 0 && l.unsent > 0 && d.unread > 0 // they wait for the client
	if !slow {
		d.grace -= drainEvery
	}
	switch {
	case !d.cancelled && d.grace <= 0:
		d.cancelled, d.unread = true, unreadGrace
		l.hangUp(errHungUp)
	case d.cancelled && d.unread <= 0 && l.atWork() == 0:
		l.drop()
		return true
	}
	return false
}
