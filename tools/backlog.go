package tools

import (
	"slices"
	"sync"

	"github.com/mark3labs/mcp-go/mcp"
)

// How much of one connection is at work and waits. A request at work counts as its
// line and an answer of the expected length, an answer as its length and perMessage.
const (
	mostQuick   = 16
	mostReads   = 16      // they compute, and their answers are large
	mostChanges = 64      // they wait for the disk, many at once
	mostScripts = 64      // they wait for their turn
	maxUnsent   = 8 << 20 // bytes of answers, from which on nothing is begun
	maxWaiting  = 1024    // requests
	maxHeld     = 8 << 20 // bytes of their lines, from which on nothing is read
	expected    = 64 << 10
	perMessage  = 4 << 10
)

// backlog are the requests of a connection that are not answered yet. Its fields are
// guarded by the loop's mutex.
type backlog struct {
	room   *sync.Cond // less waits than before, or nothing is read any more
	lanes  [laneCount]lane
	held   int64           // bytes of what waits
	closed bool            // nothing waits any more
	left   <-chan struct{} // closed when nobody wants any of it
}

// The lanes. What is in one does not wait for what is in another: a file is read while
// scripts wait for their turn, and a ping is answered behind calls.
const (
	quickLane  = iota // such as a ping, and lines that are no request
	readLane          // read_file, list_files
	changeLane        // other tools
	scriptLane        // run_script
	laneCount
)

// lane are requests of one kind, in the order in which they came.
type lane struct {
	queue  []*inFlight
	most   int // may be at work
	atWork int
	cost   int64 // of those at work
}

func (b *backlog) lane(r *inFlight) *lane { return &b.lanes[r.lane] }

// laneOf says where a request belongs.
func laneOf(r request) int {
	switch {
	case r.Method != string(mcp.MethodToolsCall):
		return quickLane
	case string(r.Params.Name) == `"run_script"`:
		return scriptLane
	case string(r.Params.Name) == `"read_file"`, string(r.Params.Name) == `"list_files"`:
		return readLane
	}
	return changeLane
}

func (b *backlog) waiting() (n int) {
	for i := range b.lanes {
		n += len(b.lanes[i].queue)
	}
	return n
}

func (b *backlog) atWork() (n int) {
	for i := range b.lanes {
		n += b.lanes[i].atWork
	}
	return n
}

// admits says whether one more may begin beside so many bytes of answers that are
// not taken.
func (q *lane) admits(unsent int64) bool {
	return q.atWork < q.most && q.cost+unsent < maxUnsent
}

func (q *lane) begin(r *inFlight) {
	q.atWork++
	q.cost += expected + r.size
}

// admit says that a request may begin now. Else it waits, and when there is no room
// for another one, so does whoever reads.
func (l *loop) admit(r *inFlight) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deserted() {
		l.forget(r)
		return false
	}
	q := l.lane(r)
	if len(q.queue) == 0 && q.admits(l.unsent) {
		q.begin(r)
		return true
	}
	q.queue = append(q.queue, r)
	l.held += r.size
	if r.lane != quickLane {
		l.t.active.Add(1)
	}
	for !l.over && (l.waiting() >= maxWaiting || l.held >= maxHeld) {
		l.room.Wait()
	}
	return false
}

func (b *backlog) deserted() bool {
	select {
	case <-b.left:
		return true
	default:
		return b.closed
	}
}

// resume begins what waited and may. mu is held.
func (l *loop) resume() {
	if l.waiting() == 0 || l.deserted() {
		return
	}
	for i := range l.lanes {
		q := &l.lanes[i]
		for len(q.queue) > 0 && q.admits(l.unsent) {
			r := q.queue[0]
			l.remove(r)
			q.begin(r)
			l.handling++
			go func() {
				l.run(r)
				l.handled()
			}()
		}
	}
}

// remove takes a request out of the queue; false says that it was not in it. mu is
// held.
func (l *loop) remove(r *inFlight) bool {
	q := l.lane(r)
	i := slices.Index(q.queue, r)
	if i < 0 {
		return false
	}
	q.queue = slices.Delete(q.queue, i, i+1)
	l.held -= r.size
	if r.lane != quickLane {
		l.t.active.Add(-1)
	}
	l.room.Broadcast()
	return true
}

// leave counts a request as at work no more. mu is held.
func (l *loop) leave(r *inFlight) {
	q := l.lane(r)
	q.atWork--
	q.cost -= expected + r.size
	l.forget(r)
}

// forget frees what a request has. mu is held.
func (l *loop) forget(r *inFlight) {
	r.cancel(nil)
	if l.open[r.key] == r {
		delete(l.open, r.key)
	}
}

// drop forgets what waits: nobody listens any more. Nothing of it is in the log,
// for nothing of it began. mu is held.
func (l *loop) drop() {
	l.closed = true
	for i := range l.lanes {
		q := &l.lanes[i]
		for len(q.queue) > 0 {
			r := q.queue[len(q.queue)-1]
			l.remove(r)
			l.forget(r)
		}
	}
}
