package lease_test

import (
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// After Rename what was leased before is foreign, tokens go on, and the name stays.
func TestRename(t *testing.T) {
	s := newStore(t, lease.Options{})
	before := s.acquire(t, "a", "anna")
	if err := s.Release(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	old := s.Info().Install
	was, now, err := s.Rename(t.Context())
	if err != nil || was != old || now == old || s.Info().Install != now {
		t.Fatalf("%x became %x, %v", was, now, err)
	}
	if err := s.reopen(); err != nil {
		t.Fatal(err)
	}
	if s.Info().Install != now {
		t.Error("the name did not stay")
	}
	wantIs(t, s.Check(key("a"), lease.Mark{Install: old, Token: before.Token}), lease.ErrForeign)
	if g := s.acquire(t, "a", "bert"); g.Token <= before.Token {
		t.Errorf("token %d follows %d", g.Token, before.Token)
	}
}
