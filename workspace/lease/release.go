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

// Clear forgets a lease that has ended without a release, for somebody who knows
// that its holder is gone; that is evicted first all the same. It is no error when
// there is nothing of it any more.
//
// Errors: ErrConflict while g is alive, ErrInvalid, ErrUnavailable.
func (b *Badger) Clear(ctx context.Context, g Grant) error {
	s, leave, err := b.enterAs(ctx, g)
	if err != nil {
		return err
	}
	defer leave()
	b.mu.Lock()
	if h := s.live; h != nil && h.Token == g.Token {
		now := b.o.Clock.Elapsed()
		if h.alive(now) {
			defer b.mu.Unlock()
			return &Conflict{Holder: h.seen(now)}
		}
		s.live = nil
	}
	b.mu.Unlock()
	rec, err := b.recordOf(g.Key)
	if err != nil || rec == nil || rec.Token != g.Token {
		return err
	}
	if err := b.evict(ctx, rec); err != nil {
		return err
	}
	return b.forget(ctx, rec)
}
