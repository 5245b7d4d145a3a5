package tools

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// job is one run of a script, from the receipt of its call until it is
// forgotten. Its id is that of the call.
//
// Until it was handed over it belongs to the request: a client that goes away
// takes it along. Afterwards it goes on by itself, until its end or that of all
// jobs.
type job struct {
	js    *Jobs
	t     *Tools // of the session that started it, which may have ended
	id    string
	began time.Time
	fence workspace.Fence
	out   *transcript
	stop  context.CancelCauseFunc
	done  chan struct{} // closed when it has ended and its outcome is in the log

	mu     sync.Mutex
	info   JobInfo
	handed bool // the call was answered before the end

	// Set before done is closed.
	ended    time.Time
	result   Result // as the call itself is answered, output included
	told     ending
	recorded bool // its outcome is in the log
	timer    *time.Timer

	saving sync.Mutex
	kept   *kept  // changes that can still be saved
	saved  uint64 // the commit that they became
}

// ending is what is told of a job that has ended, besides its output.
type ending struct {
	head   []string         // how it ended
	remedy []string         // what to do while its changes are kept
	last   []string         // the ends of the streams, when not all of them is kept
	tail   []string         // what it changed
	made   []workspace.Path // what a person would take out of that
	err    *Error
	facts  map[string]any
}

// Causes of the end of a job.
var (
	errJobCancelled = &Error{Code: Cancelled, Sentence: "the script was stopped on request; nothing was saved", Hint: "run it again if it is still wanted", cause: context.Canceled}
	errServerEnds   = &Error{Code: Cancelled, Sentence: "the script was stopped because its server stops; nothing was saved", Hint: "run it again if it is still wanted", cause: context.Canceled}
	errEvicted      = &Error{Code: Fenced, Sentence: "the script was stopped because another session took this disk over; nothing was saved", Hint: fencedHint,
		late: "another session has taken this disk over", cause: workspace.ErrFenced}
	errSessionEnds = &Error{Code: Cancelled, Sentence: "the script was stopped because its session ends; nothing was saved", cause: context.Canceled}
)

func newJob(js *Jobs, t *Tools, c *call) *job {
	return &job{
		js: js, t: t, id: c.id, began: c.started, fence: c.fence, out: newTranscript(t.cfg.Scratch), done: make(chan struct{}),
		info: JobInfo{
			ID: c.id, Tool: c.tool, Language: c.script.args.Language, Actor: c.caller.Actor, Client: c.caller.Client,
			State: jobWaits, Began: c.started, Token: c.fence.Token,
		},
	}
}

// logger is who is told of faults that it meets.
func (j *job) logger() *slog.Logger { return cmp.Or(j.js.logger, j.t.cfg.Logger) }

// run runs the script and writes the outcome of its call.
func (j *job) run(ctx context.Context, c *call) {
	s := c.script
	s.job = j
	c.work = s.run
	r := j.t.handle(ctx, c)
	j.stop(nil)
	j.out.end()
	r = j.t.conclude(c, r)
	j.t.mark(MarkConcluded)
	r.Tool, r.Call = c.tool, c.id
	tell(ctx, j.logger(), r)
	j.recorded = r.Receipt.N > 0
	j.conclude(r, c.out, s.ran)
}

// conclude makes the end known.
func (j *job) conclude(r Result, out audit.Out, ran bool) {
	told := r.told
	if told == nil { // an error that says it all
		told = &ending{head: strings.Split(r.String(), "\n"), tail: []string{j.line()}}
		r.Blocks = []Block{{Text: r.String() + "\n" + j.line()}}
	}
	facts := map[string]any{"job": j.id}
	maps.Copy(facts, r.Facts)
	r.Facts, told.facts, told.err = facts, maps.Clone(facts), r.Err
	j.told, j.ended = *told, j.js.now()
	j.mu.Lock()
	j.info.State, j.info.Ended, j.info.Outcome, j.info.Exit = jobEnded, j.ended, out.Outcome, out.Exit
	if r.Err != nil {
		j.info.Code = r.Err.Code
	}
	if !j.handed {
		j.result = r
	}
	remember := j.handed || ran
	j.mu.Unlock()
	j.js.settle(j, remember)
	close(j.done)
}

// line names the job at the end of a result.
func (j *job) line() string { return "job " + j.id }

// enter says what the job is doing.
func (j *job) enter(state string) { j.note(func(i *JobInfo) { i.State = state }) }

// note changes what is known of the job.
func (j *job) note(change func(*JobInfo)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change(&j.info)
}

// answer is the answer to the call: the result, or how to go on when that takes
// longer than a call may.
func (j *job) answer(ctx context.Context, receipt audit.Receipt) Result {
	late, stop := j.t.due(j.began)
	defer stop()
	select {
	case <-j.done:
	case <-ctx.Done():
		j.stop(context.Cause(ctx))
		<-j.done
	case <-late:
		if r, ok := j.handOver(receipt); ok {
			return r
		}
		<-j.done
	}
	r := j.result
	j.result = Result{} // a poll makes its own
	return r
}

// handOver lets the job go on without its call; ok is false when it has ended.
func (j *job) handOver(receipt audit.Receipt) (r Result, ok bool) {
	j.mu.Lock()
	ok = j.info.State != jobEnded
	j.handed = ok
	j.mu.Unlock()
	if !ok {
		return r, false
	}
	if r = j.running(0); r.OK() {
		r.Receipt = receipt
	}
	return r, true
}

// due is a channel that gets something when a call that began then has to be
// answered; it never does when there is no such limit.
func (t *Tools) due(began time.Time) (<-chan time.Time, func() bool) {
	if t.cfg.Limits.Answer < 0 {
		return nil, func() bool { return true }
	}
	timer := time.NewTimer(t.cfg.Limits.Answer - t.now().Sub(began))
	return timer.C, timer.Stop
}

// pageRoom is how much of the output one answer shows; the rest of MaxText is for
// what is said around it.
const pageRoom = MaxText - 2500

// running tells of a job that goes on.
func (j *job) running(from int64) Result {
	e, err := j.out.page(from, pageRoom)
	if err != nil {
		return errorResult(asError(err))
	}
	j.mu.Lock()
	doing := inState[j.info.State]
	j.mu.Unlock()
	until := "The script goes on as a job of this disk, also when the session ends."
	if j.js.own {
		until = "The script goes on as a job; it ends when this session ends."
	}
	lines := []string{
		fmt.Sprintf("RUNNING for %s%s. %s", j.js.now().Sub(j.began).Round(100*time.Millisecond), doing, until),
		fmt.Sprintf(`hint: run_script {"job":%q,"output_offset":%d} waits for its end and shows what is new; {"job":%q,"cancel":true} stops it`, j.id, e.next, j.id),
	}
	lines = append(lines, e.lines(j.id, true)...)
	facts := e.facts(j.id)
	facts["outcome"], facts["saved"] = "running", false
	return textResult(facts, lines...)
}

// show tells of a job for a session, with its output from an offset on; nil is
// nobody's session.
func (j *job) show(t *Tools, from int64) Result {
	if from = max(min(from, maxOutput), 0); j.isOver() {
		return j.report(t, from)
	}
	return j.running(from)
}

// report tells of a job that has ended.
func (j *job) report(t *Tools, from int64) Result {
	room := pageRoom
	tail := j.told.lastLines(t)
	for _, l := range slices.Concat(j.told.head, j.told.remedy, j.told.last, tail) {
		room -= len(l) + 1
	}
	e, err := j.out.page(from, max(room, MaxText/4))
	if err != nil {
		return errorResult(asError(err))
	}
	last := j.told.last
	if e.more() {
		last = nil
	}
	lines := slices.Concat(j.told.head, j.changes(), e.lines(j.id, false), last, tail)
	facts := e.facts(j.id)
	maps.Copy(facts, j.told.facts)
	r := textResult(facts, lines...)
	r.Err = j.told.err
	return r
}

// lastLines are what the job changed, and how the person of a session gets that.
func (e *ending) lastLines(t *Tools) []string {
	if t == nil || len(e.made) == 0 {
		return e.tail
	}
	return append(slices.Clip(e.tail), t.getLine(e.made...))
}

// streamNames are the headings of a script's streams, by sandboxrun.Stream.
var streamNames = [...]string{sandboxrun.Stdout: "stdout", sandboxrun.Stderr: "stderr"}

// lines show a passage. Each stream's text stands as it is; when it ends within
// a line that goes on, that is said.
func (e passage) lines(job string, running bool) []string {
	var lines []string
	for s, name := range streamNames {
		text := e.text[s]
		if text == "" {
			continue
		}
		lines = append(lines, name+":", strings.TrimSuffix(text, "\n"))
		if !strings.HasSuffix(text, "\n") && (running || e.more()) {
			lines = append(lines, "["+name+" goes on in this line]")
		}
	}
	if len(lines) == 0 {
		lines = append(lines, e.nothing(running))
	}
	switch {
	case e.more():
		lines = append(lines, fmt.Sprintf(`[output up to byte %d of %d; the next page: {"job":%q,"output_offset":%d}]`, e.next, e.size, job, e.next))
	case e.lost > 0 && e.broken:
		lines = append(lines, fmt.Sprintf("[%s of output behind this could not be kept: the host has no room for it]", size(e.lost)))
	case e.lost > 0:
		lines = append(lines, fmt.Sprintf("[%s of output behind this were not kept: at most %s are]", size(e.lost), size(maxOutput)))
	}
	return lines
}

func (e passage) nothing(running bool) string {
	switch {
	case e.from == 0 && running:
		return "(no output so far)"
	case e.from == 0:
		return "(no output)"
	}
	return "(no new output)"
}

func (e passage) facts(job string) map[string]any {
	return map[string]any{"job": job, "output_offset": e.next, "output_bytes": e.size, "output_lost": e.lost, "more": e.more()}
}
