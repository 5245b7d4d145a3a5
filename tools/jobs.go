package tools

import (
	"context"
	"slices"
	"sync"
	"time"
)

// jobs are the runs of scripts: those that go on and those that have ended and
// can still be asked for. A lock of it is never held while anything is waited
// for or written.
type jobs struct {
	t     *Tools
	turns *turns
	room  int64 // bytes that kept changes may have together

	mu     sync.Mutex
	all    map[string]*job
	ended  []*job   // oldest first
	kept   []keeper // whose changes are kept, oldest first
	closed bool
	work   sync.WaitGroup // of everything that is started here
}

// keeper is a job whose changes are kept, and what they count.
type keeper struct {
	j    *job
	cost int64
}

// How much is remembered of runs that have ended. A change counts as keptEntry
// bytes besides its content, for what it takes in memory.
const (
	maxEnded  = 64
	maxKept   = 8
	keptBytes = 1 << 30
	keptEntry = 4 << 10
)

func newJobs(t *Tools) *jobs {
	l := t.cfg.Limits
	return &jobs{t: t, turns: newTurns(l.Scripts, l.ScriptMemory), room: keptBytes, all: map[string]*job{}}
}

// start runs a script on a goroutine of its own. It returns nil when the tools
// are closed.
func (js *jobs) start(ctx context.Context, c *call) *job {
	j := newJob(js.t, c)
	// The job outlives the request, and the session's end stops it.
	ctx, j.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	js.expire()
	js.mu.Lock()
	defer js.mu.Unlock()
	if js.closed {
		j.stop(nil)
		return nil
	}
	js.all[j.id] = j
	js.work.Go(func() { j.run(ctx, c) })
	return j
}

// find returns a job that runs or is remembered, else nil.
func (js *jobs) find(id string) *job {
	js.expire()
	js.mu.Lock()
	defer js.mu.Unlock()
	return js.all[id]
}

// settle remembers a job that has ended, or forgets it.
func (js *jobs) settle(j *job, remember bool) {
	js.mu.Lock()
	defer js.mu.Unlock()
	switch {
	case !remember:
		delete(js.all, j.id)
		return
	case js.closed:
		return // close sees to it
	}
	js.ended = append(js.ended, j)
	// It is also forgotten when nobody calls any more.
	j.timer = time.AfterFunc(js.t.cfg.Limits.KeepJobs+time.Millisecond, js.inTime)
}

// inTime is expire on a timer's goroutine.
func (js *jobs) inTime() {
	js.mu.Lock()
	closed := js.closed
	if !closed {
		js.work.Add(1)
	}
	js.mu.Unlock()
	if !closed {
		defer js.work.Done()
		js.expire()
	}
}

// expire forgets what is too old or too many. Of too many those go first whose
// changes nobody can save any more.
func (js *jobs) expire() {
	js.mu.Lock()
	var gone []*job
	before := js.t.now().Add(-js.t.cfg.Limits.KeepJobs)
	for len(js.ended) > 0 && js.ended[0].ended.Before(before) {
		gone = append(gone, js.forget(0))
	}
	for len(js.ended) > maxEnded {
		i := slices.IndexFunc(js.ended, func(j *job) bool { return !js.keeps(j) })
		gone = append(gone, js.forget(max(i, 0)))
	}
	js.mu.Unlock()
	for _, j := range gone {
		j.discard()
		j.out.close()
	}
}

// forget takes a job out of the tables.
func (js *jobs) forget(i int) *job {
	j := js.ended[i]
	js.ended = slices.Delete(js.ended, i, i+1)
	js.release(j)
	delete(js.all, j.id)
	j.timer.Stop()
	return j
}

func (js *jobs) release(j *job) {
	js.kept = slices.DeleteFunc(js.kept, func(k keeper) bool { return k.j == j })
}

func (js *jobs) keeps(j *job) bool {
	return slices.ContainsFunc(js.kept, func(k keeper) bool { return k.j == j })
}

// unkeep notes that the changes of a job are saved or gone.
func (js *jobs) unkeep(j *job) {
	js.mu.Lock()
	defer js.mu.Unlock()
	js.release(j)
}

// keep makes room for the changes of a job, at the cost of older ones. It tells
// whether they may be kept at all.
func (js *jobs) keep(j *job, cost int64) bool {
	js.mu.Lock()
	if js.closed || cost > js.room {
		js.mu.Unlock()
		return false
	}
	js.kept = append(js.kept, keeper{j, cost})
	var sum int64
	for _, k := range js.kept {
		sum += k.cost
	}
	var gone []*job
	for len(js.kept) > maxKept || sum > js.room {
		sum -= js.kept[0].cost
		gone = append(gone, js.kept[0].j)
		js.kept = js.kept[1:]
	}
	js.mu.Unlock()
	for _, o := range gone {
		o.discard()
	}
	return true
}

// close ends all jobs, waits for them and forgets everything.
func (js *jobs) close() {
	js.mu.Lock()
	js.closed = true
	for _, j := range js.all {
		j.stop(errSessionEnds)
		if j.timer != nil {
			j.timer.Stop()
		}
	}
	all := js.all
	js.mu.Unlock()
	js.work.Wait()
	for _, j := range all {
		j.discard()
		j.out.close()
	}
	js.mu.Lock()
	js.all, js.ended, js.kept = map[string]*job{}, nil, nil
	js.mu.Unlock()
}
