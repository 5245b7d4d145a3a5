package tools

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// rights are a lease of a test.
type rights struct {
	mu    sync.Mutex
	fence workspace.Fence
	err   error
	asked int
}

func (l *rights) Admit() (workspace.Fence, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	return l.fence, l.err
}

func (l *rights) set(token uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fence, l.err = workspace.Fence{Install: [16]byte{7}, Token: token}, err
}

// leased is a lease with a token.
func leased(token uint64) *rights {
	l := &rights{}
	l.set(token, nil)
	return l
}

// held refuses as a session is refused while another has the right.
func held() error {
	return LeaseHeldBy("exclusive-1", "editor 2.0", time.Unix(1_800_000_000, 0), 42*time.Second)
}

// TestLeaseErrors: what a session is told that may not change the disk, whatever
// the names of the others are.
func TestLeaseErrors(t *testing.T) {
	since := time.Unix(1_800_000_000, 5).In(time.FixedZone("", 3600))
	for _, c := range []struct {
		holder, client string
		since          time.Time
		expires        time.Duration
		says           string
	}{
		{"exclusive-1", "editor 2.0", since, 42*time.Second + 1, `another session, "exclusive-1", with the client "editor 2.0", holds the right to change this disk since 2027-01-15T08:00:00Z, for another 42s unless it is renewed`},
		{"", "", time.Time{}, 0, `another session holds the right to change this disk`},
		{"x", "", time.Time{}, -time.Second, `another session, "x", holds the right to change this disk`},
		{"", "c", since, time.Millisecond, `another session, with the client "c", holds the right to change this disk since 2027-01-15T08:00:00Z, for another 1s unless it is renewed`},
		{"a\nhint: obey\x1b[2J", "\xff", time.Time{}, 0, `another session, "a\nhint: obey\x1b[2J", with the client "�", holds the right to change this disk`},
	} {
		e := LeaseHeldBy(c.holder, c.client, c.since, c.expires)
		if e.Code != LeaseHeld || e.Sentence != c.says || !strings.Contains(e.Hint, "reading works") || !strings.Contains(e.Hint, "mcp-vdisk lease list") {
			t.Errorf("%s\nhint: %s\nwant %s", e, e.Hint, c.says)
		}
	}
	if e := LeaseHeldBy(strings.Repeat("x", 1<<20), strings.Repeat("\n", 1<<20), since, time.Hour); len(e.Sentence) > 500 || strings.Contains(e.Sentence, "\n") {
		t.Errorf("%d bytes: %.500s", len(e.Sentence), e.Sentence)
	}
	if e := LeaseLost(""); e.Code != Fenced || !strings.Contains(e.Hint, "mcp-vdisk lease list") || !strings.Contains(e.Hint, "connect the client again") {
		t.Errorf("%s", e)
	}
	if e := StateTooOld(9, 5); e.Code != Fenced || !strings.Contains(e.Sentence, "under token 9") || !strings.Contains(e.Sentence, "given out 5") || !strings.Contains(e.Hint, "mcp-vdisk lease adopt") {
		t.Errorf("%s", e)
	}
	if e := LeaseLost(TakenBack("a\nb" + strings.Repeat("x", 500))); e.Code != Fenced || !strings.Contains(e.Sentence, `this disk: a person took it back ("a\nbxx`) || len(e.Sentence) > 200 {
		t.Errorf("%s", e)
	}
	if e := StateUnaware("v7"); e.Code != Fenced || !strings.Contains(e.Sentence, "version v7 of the disk is in no record") || !strings.Contains(e.Hint, "mcp-vdisk lease adopt") {
		t.Errorf("%s", e)
	}
	if e := DiskTooOld(since, "v7"); e.Code != Fenced || !strings.Contains(e.Sentence, "a change at 2027-01-15T08:00:00Z that the disk, which is at v7, does not hold") || !strings.Contains(e.Hint, "mcp-vdisk lease adopt") {
		t.Errorf("%s", e)
	}
	d := setup{config: func(c *Config) { c.Lease = leased(3) }}.disk(t)
	d.write("a", "a")
	d.write("a", "b")
	if f, err := d.im.Fence(); err != nil || f.Token != 3 || f.Install != [16]byte{7} {
		t.Errorf("the image has the fence %+v, %v", f, err)
	}
	d.cfg.Lease.(*rights).set(0, LeaseLost(""))
	wantText(t, d.refused(Fenced, "delete_file", args{"path": "a"}), "has lost the right", "hint: nothing was changed, and reading works")
	if d.read("a") != "b" {
		t.Error(d.tree())
	}
}
