package tools

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"
)

// JobInfo is what is known of a script without its output.
type JobInfo struct {
	ID       string `json:"id"`
	Tool     string `json:"tool"`
	Language string `json:"language"`
	// Actor and Client are those of the call that started it.
	Actor  string `json:"actor"`
	Client string `json:"client,omitempty"`
	// State is waiting (for its turn), starting, running, looking (at what it
	// changed, to save or keep it) or ended.
	State string `json:"state"`
	// Outcome says how the script ended, as sandboxrun.Outcome has it; empty for
	// one that did not run. Code is the error that its call answered, if any.
	Outcome string    `json:"outcome,omitempty"`
	Code    Code      `json:"code,omitempty"`
	Exit    *int      `json:"exit,omitempty"` // exit code of one that exited
	Began   time.Time `json:"began"`
	Ended   time.Time `json:"ended,omitzero"`
	// Saved tells that all it changed is on the disk, Kept how many paths it
	// changed that can still be saved.
	Saved       bool   `json:"saved"`
	Kept        int    `json:"kept"`
	OutputBytes int64  `json:"output_bytes"` // printed so far, kept or not
	Token       uint64 `json:"token"`        // of the lease under which it was started; 0 is none
}

// The states of a job.
const (
	jobWaits  = "waiting"
	jobStarts = "starting"
	jobRuns   = "running"
	jobLooks  = "looking"
	jobEnded  = "ended"
)

// inState says in words what a job does that does not run.
var inState = map[string]string{
	jobWaits: "; it waits for its turn", jobStarts: "; it is being started", jobLooks: "; its changes are being looked at",
}

// ErrNoJob is the error for a job that neither runs nor is remembered.
var ErrNoJob = errors.New("no such job runs or is remembered")

// List tells of the jobs that go on and of those that have ended and can still be
// asked for, oldest first.
func (js *Jobs) List() []JobInfo {
	js.expire()
	js.mu.Lock()
	all := make([]*job, 0, len(js.all))
	for _, j := range js.all {
		all = append(all, j)
	}
	js.mu.Unlock()
	list := make([]JobInfo, len(all))
	for i, j := range all {
		kept, lost := j.out.length()
		j.note(func(info *JobInfo) { list[i] = *info })
		list[i].OutputBytes = kept + lost
	}
	slices.SortFunc(list, func(a, b JobInfo) int {
		return cmp.Or(a.Began.Compare(b.Began), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// Show tells of a job what run_script tells that asks for it, with its output
// from an offset on, and does not wait for anything. How to take files out is left
// out, for that depends on who asks. A job that failed is a Result with its Err.
//
// Errors: ErrNoJob.
func (js *Jobs) Show(id string, from int64) (Result, error) {
	j, err := js.named(id)
	if err != nil {
		return Result{}, err
	}
	r := j.show(nil, from)
	r.Tool, r.Call = j.info.Tool, j.id
	return r, nil
}

// named finds a job by its id as a person writes it.
func (js *Jobs) named(id string) (*job, error) {
	u, err := ulid.ParseStrict(id)
	if err != nil {
		return nil, ErrNoJob
	}
	if j := js.find(u.String()); j != nil {
		return j, nil
	}
	return nil, ErrNoJob
}
