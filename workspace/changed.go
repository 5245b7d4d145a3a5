package workspace

import "sync"

// Changed returns a channel that is closed by the next commit of this process, after it
// is durable. Whoever follows a disk asks for the channel first, then looks at the head,
// then waits: so no commit is missed.
func (im *Image) Changed() <-chan struct{} { return im.changed.next() }

// announcement tells any number of listeners that something happened.
type announcement struct {
	mu sync.Mutex
	ch chan struct{} // nil while nobody listens
}

func (a *announcement) next() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ch == nil {
		a.ch = make(chan struct{})
	}
	return a.ch
}

func (a *announcement) announce() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ch != nil {
		close(a.ch)
		a.ch = nil
	}
}
