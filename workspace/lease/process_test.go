package lease_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/conformance"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// TestConformanceOfProcesses: the rules hold across processes, and a kill -9 of
// the one that has the database.
func TestConformanceOfProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP -short: it starts processes")
	}
	s := startServer(t)
	c := s.Case()
	c.Cycles = 20
	c.Resource = func(context.Context) (conformance.Resource, error) { return newDisk(t) }
	report(t, conformance.RunLease(t.Context(), s, c))
}

// TestKilledWhileGranting: whatever tokens a process that was killed at any
// moment has given out, none of them is given out again.
func TestKilledWhileGranting(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP -short: it starts processes")
	}
	const kills = 5
	s := startServer(t)
	var highest uint64
	for kill := range kills {
		granted := make(chan lease.Grant)
		done := make(chan error, 1)
		go func() {
			for n := 0; ; n++ {
				r := request(fmt.Sprint(kill, "-", n), "owner")
				r.Resumable = true
				g, err := s.Acquire(t.Context(), r)
				if err != nil {
					done <- err
					return
				}
				granted <- g
			}
		}()
		var last lease.Grant
		for range 3 + 7*kill {
			last = <-granted
			if last.Token <= highest {
				t.Fatalf("kill %d: token %d follows %d", kill, last.Token, highest)
			}
			highest = last.Token
		}
		s.Kill()
		for ended := false; !ended; {
			select {
			case last = <-granted: // it was answered before the end
				if last.Token <= highest {
					t.Errorf("token %d follows %d", last.Token, highest)
				}
				highest = last.Token
			case <-done:
				ended = true
			}
		}
		if err := s.Crash(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Renew(t.Context(), last, time.Minute); err != nil {
			t.Errorf("kill %d: the resumable owner of the last grant has lost it: %v", kill, err)
		}
		if _, err := s.Acquire(t.Context(), lease.Request{Key: last.Key, Owner: "other", TTL: time.Second}); !errors.Is(err, lease.ErrConflict) {
			t.Errorf("kill %d: another one got the key of the last grant: %v", kill, err)
		}
	}
	t.Logf("%d tokens over %d kills", highest, kills)
}
