package workspace

import (
	"fmt"
	"testing"
	"time"
)

// A clock that is set back, or that is absurd, changes nothing but the times
// that are written down: the order of the history is that of the numbers.
func TestClockSetBack(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	times := []time.Time{
		start, start.Add(time.Hour), start.Add(-48 * time.Hour), start.Add(-48 * time.Hour), time.Unix(0, 0).UTC(),
		time.Unix(-1, 1).UTC(), start.Add(300 * 24 * time.Hour).In(time.FixedZone("", 3600)), start,
	}
	now := times[0]
	clock := func() time.Time { return now }
	im, path := newImage(t, CreateOptions{Clock: clock})
	for i, at := range times {
		now = at
		im.Close()
		var err error
		if im, err = Open(path, OpenOptions{Clock: clock}); err != nil {
			t.Fatal(err)
		}
		c, err := do(t, im, Txn{Call: fmt.Sprint("call-", i)}, put("same", fmt.Sprint(i)), put(fmt.Sprint("f", i), "x"))
		if err != nil || c.Seq != uint64(i+2) || !c.Time.Equal(at) {
			t.Fatalf("commit at %v: %d at %v, %v", at, c.Seq, c.Time, err)
		}
		if n := must(im.Lstat(mustPath(t, "same"))); !n.ModTime.Equal(at) || n.Version != c.Seq {
			t.Errorf("the file is v%d of %v, want v%d of %v", n.Version, n.ModTime, c.Seq, at)
		}
	}
	defer im.Close()
	log, err := im.Log(1, 100)
	if err != nil || len(log) != len(times) {
		t.Fatalf("%d commits, %v", len(log), err)
	}
	for i, c := range log {
		if c.Seq != uint64(i+2) || !c.Time.Equal(times[i]) || c.Call != fmt.Sprint("call-", i) {
			t.Errorf("commit %d is %d of %v", i, c.Seq, c.Time)
		}
	}
	if c, ok, err := im.FindCommit("call-2"); !ok || err != nil || c.Seq != 4 {
		t.Errorf("call 2 is commit %d, %v, %v", c.Seq, ok, err)
	}
	// A diff that was computed before is checked against numbers, not times.
	_, err = do(t, im, Txn{Base: 2}, put("same", "other"))
	wantKind(t, err, ErrVersionConflict)
	verify(t, im)
	verifyChain(t, im)
}
