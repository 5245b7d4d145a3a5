package queue

import (
	"context"
	"fmt"
)

// Wait returns a request of a workspace as soon as it is closed or, unless closed is set,
// waits for a person; at once when it is so already. It is told of moves that this Queue
// makes. When ctx ends first it returns the request as it is, with the cause.
//
// Errors: those of Get; the cause of ctx, wrapped.
func (q *Queue) Wait(ctx context.Context, ws, id string, closed bool) (Request, error) {
	for {
		w := q.watch(id) // before the look, so that no move falls in between
		r, err := q.Get(ws, id)
		if err != nil || r.State.Closed() || !closed && !r.State.AtWork() {
			q.leave(id, w)
			return r, err
		}
		select {
		case <-w.moved:
		case <-ctx.Done():
			q.leave(id, w)
			return r, fmt.Errorf("queue: %w", context.Cause(ctx))
		}
	}
}

// waiter is shared by all who wait for the next move of one request.
type waiter struct {
	moved chan struct{} // closed by the move
	n     int
}

func (q *Queue) watch(id string) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.waiters[id]
	if w == nil {
		w = &waiter{moved: make(chan struct{})}
		q.waiters[id] = w
	}
	w.n++
	return w
}

func (q *Queue) leave(id string, w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.n--; w.n == 0 && q.waiters[id] == w {
		delete(q.waiters, id)
	}
}

// wake tells those who wait that a request was moved.
func (q *Queue) wake(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w := q.waiters[id]; w != nil {
		close(w.moved)
		delete(q.waiters, id)
	}
}
