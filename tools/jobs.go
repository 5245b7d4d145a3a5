package tools

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Jobs are the scripts of one disk, whichever session started them: those that
// go on, and those that have ended and can still be asked for. A job is under the
// policy and the fence of its session until its end; whoever asks for it later
// is answered by his own. All methods may be called by many goroutines at once.
type Jobs struct {
	limits Limits
	logger *slog.Logger // nil: that of the session which started a job
	turns  *Turns
	own    bool  // they are those of one session
	room   int64 // bytes that kept changes may have together
	now    func() time.Time

	mu      sync.Mutex // never held while anything is waited for or written
	all     map[string]*job
	ended   []*job   // oldest first
	kept    []keeper // whose changes are kept, oldest first
	evicted *uint64  // nothing is started under a token up to this
	why     *Error   // nothing is
	closed  bool
	work    sync.WaitGroup // of everything that is started here
}

// JobsConfig says what is remembered and how many run.
type JobsConfig struct {
	// Limits: KeepJobs is that of all jobs, whatever the limits of a session say.
	Limits Limits
	// Turns let the scripts in. Nil: turns of their own, by Limits.Scripts and
	// Limits.ScriptMemory.
	Turns *Turns
	// Logger is told of faults of the host that a job meets. Nil: the logger of
	// the session that started the job.
	Logger *slog.Logger
}

// NewJobs returns the jobs of a disk. It starts nothing.
func NewJobs(c JobsConfig) *Jobs {
	l := c.Limits.withDefaults()
	if c.Turns == nil {
		c.Turns = NewTurns(l.Scripts, l.ScriptMemory)
	}
	return &Jobs{limits: l, logger: c.Logger, turns: c.Turns, room: keptBytes, now: time.Now, all: map[string]*job{}}
}

// Running counts the jobs that have not ended, those that wait for their turn
// included.
func (js *Jobs) Running() int {
	js.mu.Lock()
	defer js.mu.Unlock()
	n := 0
	for _, j := range js.all {
		if !j.isOver() {
			n++
		}
	}
	return n
}

// Close stops the scripts that still run, waits for them, writes their outcomes,
// and gives up what was kept of those that have ended. A script that is started
// afterwards is CANCELLED; everything else works as before. The log, the view and
// the image must still be open. Closing twice is no error.
func (js *Jobs) Close() {
	js.mu.Lock()
	js.closed = true
	for _, j := range js.all {
		j.stop(js.ending())
		if j.timer != nil {
			j.timer.Stop()
		}
	}
	js.mu.Unlock()
	js.work.Wait()
	js.mu.Lock()
	all := js.all
	js.all, js.ended, js.kept = map[string]*job{}, nil, nil
	js.mu.Unlock()
	for _, j := range all {
		j.discard()
		j.out.close()
	}
}

// ending is why Close ends a job.
func (js *Jobs) ending() *Error {
	if js.own {
		return errSessionEnds
	}
	return errServerEnds
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

// start runs a script of a session on a goroutine of its own, unless the jobs are
// closed or what the session was allowed has ended.
func (js *Jobs) start(ctx context.Context, t *Tools, c *call) (*job, error) {
	j := newJob(js, t, c)
	// The job outlives the request.
	ctx, j.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	js.expire()
	js.mu.Lock()
	defer js.mu.Unlock()
	var err error
	switch {
	case js.closed:
		err = js.ending()
	case js.evicted != nil && c.fence.Token <= *js.evicted:
		err = js.why
	}
	if err != nil {
		j.stop(nil)
		return nil, err
	}
	js.all[j.id] = j
	js.work.Go(func() { j.run(ctx, c) })
	return j, nil
}

// find returns a job that runs or is remembered, else nil.
func (js *Jobs) find(id string) *job {
	js.expire()
	js.mu.Lock()
	defer js.mu.Unlock()
	return js.all[id]
}

// settle remembers a job that has ended, or forgets it.
func (js *Jobs) settle(j *job, remember bool) {
	js.mu.Lock()
	defer js.mu.Unlock()
	switch {
	case !remember:
		delete(js.all, j.id)
		return
	case js.closed:
		return // Close sees to it
	}
	js.ended = append(js.ended, j)
	// It is also forgotten when nobody calls any more.
	j.timer = time.AfterFunc(js.limits.KeepJobs+time.Millisecond, js.inTime)
}

// inTime is expire on a timer's goroutine.
func (js *Jobs) inTime() {
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
func (js *Jobs) expire() {
	js.mu.Lock()
	var gone []*job
	before := js.now().Add(-js.limits.KeepJobs)
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
func (js *Jobs) forget(i int) *job {
	j := js.ended[i]
	js.ended = slices.Delete(js.ended, i, i+1)
	js.release(j)
	delete(js.all, j.id)
	j.timer.Stop()
	return j
}

func (js *Jobs) release(j *job) {
	js.kept = slices.DeleteFunc(js.kept, func(k keeper) bool { return k.j == j })
}

func (js *Jobs) keeps(j *job) bool {
	return slices.ContainsFunc(js.kept, func(k keeper) bool { return k.j == j })
}

// unkeep notes that the changes of a job are saved or gone.
func (js *Jobs) unkeep(j *job) {
	js.mu.Lock()
	defer js.mu.Unlock()
	js.release(j)
}

// keep makes room for the changes of a job, at the cost of older ones. It tells
// whether they may be kept at all.
func (js *Jobs) keep(j *job, cost int64) bool {
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
