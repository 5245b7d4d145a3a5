package pyenv

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/queue"
	"github.com/mcp-vdisk/mcp-vdisk/pyenv/resolve"
)

// desk is where requests are worked on: at most two at once, and one of a workspace, in
// the order in which they came.
type desk struct {
	mu     sync.Mutex
	open   bool                      // pump may begin
	going  bool                      // the goroutine of pump is there
	wake   chan struct{}             // has one element when there may be something to do
	busy   map[string]bool           // workspaces that are worked for
	asking map[string]int            // workspaces with requests that are not in the log yet
	rests  map[string]time.Time      // until when a request is left alone, after a fault of the host
	pips   map[string]resolve.Config // by workspace
	last   resolve.Config
}

const (
	maxWorkers = 2
	// restTime is how long a request is left alone that could not be worked on.
	restTime = 30 * time.Second
	// lookTime is how often is looked for what has expired.
	lookTime = 10 * time.Minute
)

func newDesk() desk {
	return desk{wake: make(chan struct{}, 1), busy: map[string]bool{}, asking: map[string]int{}, rests: map[string]time.Time{}, pips: map[string]resolve.Config{}}
}

// pip notes where packages come from for a workspace.
func (d *desk) pip(ws string, c *resolve.Config) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c != nil {
		d.pips[ws], d.last = *c, *c
	}
	d.open = true
}

// config is where packages come from for a workspace.
func (d *desk) config(ws string) resolve.Config {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c, ok := d.pips[ws]; ok {
		return c
	}
	return d.last
}

// take marks a workspace as worked for, if nobody works for it. What is heavy waits for
// its turn.
func (d *desk) take(ws string, heavy bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy[ws] || heavy && (len(d.busy) >= maxWorkers || d.asking[ws] > 0) {
		return false
	}
	d.busy[ws] = true
	return true
}

func (d *desk) leave(ws string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.busy, ws)
}

// holdOff keeps work for a workspace from beginning until done is called.
func (d *desk) holdOff(ws string) (done func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asking[ws]++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.asking[ws]--; d.asking[ws] == 0 {
			delete(d.asking, ws)
		}
	}
}

// rest leaves a request alone for a while.
func (d *desk) rest(id string, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rests[id] = now.Add(restTime)
}

// due says that a request may be worked on now.
func (d *desk) due(id string, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	until, rests := d.rests[id]
	if rests && (now.After(until) || until.Sub(now) > restTime) { // also after the clock was set back
		delete(d.rests, id)
		rests = false
	}
	return !rests
}

// Resume goes on with what another process left, and with what waits for a resolver or a
// build; to be called once by who owns the queue, before the first Request. Work that
// may need an index begins when one is told: by UsePip, Request or Decide. It returns
// the requests that it changed.
//
// Errors: those of queue.Recover and queue.Expire, with all that was changed; those of the
// root.
func (e *Env) Resume(ctx context.Context) ([]queue.Request, error) {
	if e.o.Queue == nil {
		return nil, nil
	}
	changed, err := e.o.Queue.Recover(ctx)
	expired, xerr := e.expire(ctx)
	return append(changed, expired...), errors.Join(err, xerr, e.repin())
}

// UsePip tells where packages come from for requests that bring no configuration of
// their own: what was asked by a session that has ended, say.
func (e *Env) UsePip(c resolve.Config) {
	if e.o.Queue == nil {
		return
	}
	e.desk.mu.Lock()
	e.desk.last, e.desk.open = c, true
	e.desk.mu.Unlock()
	e.pump()
}

// expire closes what nobody has decided about for a week.
func (e *Env) expire(ctx context.Context) ([]queue.Request, error) {
	closed, err := e.o.Queue.Expire(ctx, e.now())
	for _, r := range closed {
		err = errors.Join(err, e.record(ctx, Deed{Kind: DeedDecide, Request: r, LockID: r.Lock}, func() error { return nil }))
	}
	return closed, err
}

// pump has what waits worked on, in the background.
func (e *Env) pump() {
	e.desk.mu.Lock()
	open, going := e.desk.open, e.desk.going
	e.desk.going = e.desk.going || open
	e.desk.mu.Unlock()
	select {
	case e.desk.wake <- struct{}{}:
	default:
	}
	if !open || going {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed && e.o.Queue != nil {
		e.work.Go(e.pumping)
	}
}

// pumping is the life of the goroutine that hands out work.
func (e *Env) pumping() {
	for {
		e.handOut()
		timer := time.NewTimer(e.nextLook())
		select {
		case <-e.desk.wake:
		case <-timer.C:
			if _, err := e.expire(e.life); err != nil && e.life.Err() == nil {
				e.o.Logger.Warn("requests for packages could not be closed", "error", err)
			}
		case <-e.life.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// nextLook is until when nothing is to be done unless somebody says so.
func (e *Env) nextLook() time.Duration {
	e.desk.mu.Lock()
	defer e.desk.mu.Unlock()
	if len(e.desk.rests) > 0 {
		return restTime
	}
	return lookTime
}

// handOut begins with as much as may be worked on at once.
func (e *Env) handOut() {
	list, err := e.o.Queue.Open()
	if err != nil {
		e.o.Logger.Warn("requests for packages could not be read", "error", err)
	}
	earlier := map[string]bool{} // workspaces with one that came before
	for _, r := range list {
		if !r.State.AtWork() || earlier[r.Workspace] {
			continue
		}
		earlier[r.Workspace] = true
		if !e.desk.due(r.ID, e.now()) || !e.desk.take(r.Workspace, true) {
			continue
		}
		e.work.Go(func() {
			defer e.pump()
			defer e.desk.leave(r.Workspace)
			e.serve(r)
		})
	}
}

// Busy says that a request is worked on here, or will be as soon as it has a turn. What
// waits for a person is not, nor what waits for somebody to tell where packages are.
func (e *Env) Busy() bool {
	e.desk.mu.Lock()
	open, busy := e.desk.open, len(e.desk.busy) > 0
	e.desk.mu.Unlock()
	if busy || !open || e.o.Queue == nil {
		return busy
	}
	list, _ := e.o.Queue.Open() // what cannot be read is not worked on
	return slices.ContainsFunc(list, func(r queue.Request) bool { return r.State.AtWork() })
}
