package tools

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// Turns let scripts in, in the order in which they came: so many at once on this
// host, and so many that what they may take of memory together fits. One that
// alone may take more than that runs alone. All disks of a process share one.
type Turns struct {
	count  *semaphore.Weighted
	memory *semaphore.Weighted
	most   int64 // bytes
}

// NewTurns returns the turns of so many scripts at once with so many bytes of
// memory together. A number that is not above 0 takes the default of
// [Limits].Scripts or [Limits].ScriptMemory.
func NewTurns(scripts int, memory int64) *Turns {
	l := Limits{Scripts: max(scripts, 0), ScriptMemory: max(memory, 0)}.withDefaults()
	return &Turns{
		count:  semaphore.NewWeighted(int64(l.Scripts)),
		memory: semaphore.NewWeighted(l.ScriptMemory), most: l.ScriptMemory,
	}
}

// take waits for the turn of a script that may take so much memory. What it
// returns ends the turn and must be called once.
func (q *Turns) take(ctx context.Context, memory int64) (func(), error) {
	if err := q.count.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	// Who comes later waits behind this one for memory too, although there may
	// be enough for him: else a large script would never get its turn.
	memory = min(max(memory, 0), q.most)
	if err := q.memory.Acquire(ctx, memory); err != nil {
		q.count.Release(1)
		return nil, err
	}
	return func() { q.memory.Release(memory); q.count.Release(1) }, nil
}
