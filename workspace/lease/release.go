package lease

import "context"

// Release implements Provider.
func (b *Badger) Release(ctx context.Context, g Grant) error {
	s, leave, err := b.enterAs(ctx, g)
	if err != nil {
		return err
	}
	defer leave()
	b.mu.Lock()
	h, over, err := s.owner(g, b.o.Clock.Elapsed())
	if err == nil {
		s.live = nil
	}
	b.mu.Unlock()
	if err != nil {
		return b.refused(ctx, g, over, err)
	}
	return b.forget(ctx, h.record)
}
