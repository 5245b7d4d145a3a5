package tools

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// turns lets scripts in, in the order in which they came: so many at once, and
// so many that what they may take of memory together fits. One that alone may
// take more than that runs alone.
type turns struct {
	count  *semaphore.Weighted
	memory *semaphore.Weighted
	most   int64 // bytes
}

func newTurns(scripts int, memory int64) *turns {
	return &turns{count: semaphore.NewWeighted(int64(scripts)), memory: semaphore.NewWeighted(memory), most: memory}
}

// take waits for the turn of a script that may take so much memory. What it
// returns ends the turn and must be called once.
func (q *turns) take(ctx context.Context, memory int64) (func(), error) {
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
