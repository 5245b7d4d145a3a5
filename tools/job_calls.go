package tools

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// awaitJob waits for a job's end, for a page of output that is full, or for the
// time at which a call is answered, and shows the output from an offset on.
func (t *Tools) awaitJob(ctx context.Context, c *call, id string, from int64) (Result, error) {
	j := t.jobs.find(id)
	if j == nil {
		return Result{}, t.forgotten(ctx, id)
	}
	late, stop := t.due(c.started)
	defer stop()
	full, leave := j.out.reach(min(from, maxOutput) + pageRoom)
	defer leave()
	select {
	case <-j.done:
	case <-full:
	case <-late:
	case <-ctx.Done():
		return Result{}, context.Cause(ctx)
	}
	return j.show(t, from), nil
}

func (j *job) isOver() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

// cancelWait is how long the stop of a job is waited for: together with the
// records of the call less than 2 s.
const cancelWait = 1500 * time.Millisecond

// cancelJob stops a job. Stopping one that has ended changes nothing.
func (t *Tools) cancelJob(ctx context.Context, c *call, id string) (Result, error) {
	j := t.jobs.find(id)
	if j == nil {
		return Result{}, t.forgotten(ctx, id)
	}
	before := j.isOver()
	j.stop(errJobCancelled)
	timer := time.NewTimer(cancelWait)
	defer timer.Stop()
	select {
	case <-j.done:
	case <-timer.C:
	case <-ctx.Done():
	}
	facts := map[string]any{"job": id}
	show := fmt.Sprintf(`hint: {"job":%q} shows what it printed`, id)
	if !j.isOver() {
		return textResult(facts, fmt.Sprintf("job %s is being stopped; nothing of it will be saved", id), show), nil
	}
	c.out.Outcome, _ = j.told.facts["outcome"].(string)
	facts["outcome"] = j.told.facts["outcome"]
	if !before && j.told.err != nil && j.told.err.Code == Cancelled {
		return textResult(facts, fmt.Sprintf("stopped job %s after %s; nothing was saved", id, j.ended.Sub(j.began).Round(100*time.Millisecond)), show), nil
	}
	return textResult(facts, fmt.Sprintf("job %s had ended already: %s", id, j.told.head[0]), show), nil
}

// saveJob saves the changes that a job left and that were not saved.
func (t *Tools) saveJob(ctx context.Context, c *call, id string) (Result, error) {
	j := t.jobs.find(id)
	switch {
	case j == nil:
		return Result{}, t.forgotten(ctx, id)
	case !j.isOver():
		return Result{}, refuse(Busy, fmt.Sprintf(`wait for it with {"job":%q}; then save what it left`, id), "job %s has not ended yet", id)
	}
	j.saving.Lock()
	defer j.saving.Unlock()
	k := j.kept
	if k == nil {
		return j.nothingKept()
	}
	c.source = k.digest
	ch, err := k.commit(ctx, t, c, false)
	if err != nil {
		return t.notSaved(j, k, err)
	}
	j.saved, j.kept = ch.seq, nil
	j.note(func(i *JobInfo) { i.Saved, i.Kept = true, 0 })
	t.jobs.unkeep(j)
	c.out.Changed, c.changes = int64(len(ch.effects)), ChangeFacts(ch.effects)
	facts := map[string]any{"job": id, "saved": true, "changed": ch.changed()}
	if ch.changed() == 0 {
		return textResult(facts, fmt.Sprintf("job %s: nothing is left to save, the disk holds it already", id)), nil
	}
	facts["version"] = version(ch.seq)
	lines := append([]string{fmt.Sprintf("SAVED as %s (job %s, %s): %s", version(ch.seq), id, k.ending, ch.counts())}, ch.lines()...)
	if made := ch.worthGetting(); len(made) > 0 {
		lines = append(lines, t.getLine(made...))
	}
	return textResult(facts, lines...), nil
}

// notSaved is the answer when the changes could not be saved; they are still
// kept.
func (t *Tools) notSaved(j *job, k *kept, err error) (Result, error) {
	var clash *conflict
	if !errors.As(err, &clash) {
		return Result{}, err
	}
	e, list := t.clashed(j, clash, k.ending)
	r := errorResult(e, list...)
	r.Facts = map[string]any{"job": j.id, "saved": false}
	return r, nil
}

// clashed makes a conflict an error with its list.
func (t *Tools) clashed(j *job, clash *conflict, ending string) (*Error, []string) {
	words, list := clash.words()
	return &Error{
		Code: VersionConflict, Sentence: fmt.Sprintf("nothing was saved (%s): %s", ending, words),
		Hint:  fmt.Sprintf(`look at them; run_script {"job":%q,"commit":"always"} then saves over them, within %s`, j.id, inWords(t.jobs.limits.KeepJobs)),
		cause: clash,
	}, slices.Clip(list)
}

// nothingKept says why there is nothing to save.
func (j *job) nothingKept() (Result, error) {
	switch {
	case j.saved > 0:
		return textResult(map[string]any{"job": j.id, "saved": true, "version": version(j.saved)},
			fmt.Sprintf("job %s was saved already, as %s", j.id, version(j.saved))), nil
	case j.told.err == nil && j.told.facts["changed"] == int64(0):
		return textResult(map[string]any{"job": j.id, "saved": false}, fmt.Sprintf("job %s changed nothing on the disk; there is nothing to save", j.id)), nil
	}
	return Result{}, refuse(NotFound, `run the script again, with commit:"always" to save whatever it leaves`, "the changes of job %s are not kept: %s", j.id, j.told.head[0])
}

// inWords is a duration for people.
func inWords(d time.Duration) string {
	if d >= time.Minute && d%time.Minute == 0 {
		return plural(int64(d/time.Minute), "minute")
	}
	return d.String()
}
