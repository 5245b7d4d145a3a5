package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front"
	"github.com/mcp-vdisk/mcp-vdisk/conformance"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
)

// trialHub is a hub as the daemon has it, whose leases go by a clock that stands.
type trialHub struct {
	*hub
	t     testing.TB
	clock *conformance.ManualClock
}

func newTrialHub(t testing.TB) *trialHub {
	t.Helper()
	set, _, err := parseSettings("", "config.toml")
	if err != nil {
		t.Fatal(err)
	}
	h, err := openHub(t.Context(), front.Request{State: filepath.Join(t.TempDir(), "state")}, set, time.Second, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	h.shared = true
	clock := new(conformance.ManualClock)
	h.clock = clock
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return &trialHub{h, t, clock}
}

// use opens a disk as a session does.
func (h *trialHub) use(name string) *disk {
	h.t.Helper()
	d, err := h.open(context.Background(), want{ref: front.ImageRef{Name: name}, create: true, set: h.set})
	if err == nil {
		err = d.prepare(h.set.limits)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return d
}

func (h *trialHub) claim(d *disk) (x *exclusive) {
	h.t.Helper()
	h.keeping(func() (err error) {
		x, err = d.right.claim(context.Background(), "a trial", 0, audit.Facts{})
		return err
	})
	return x
}

// keeping waits until the lease that fn acquires is kept: before that its clock
// does not matter.
func (h *trialHub) keeping(fn func() error) {
	h.t.Helper()
	before := h.clock.Waiting()
	if err := fn(); err != nil {
		h.t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); h.clock.Waiting() <= before; runtime.Gosched() {
		if time.Now().After(deadline) {
			h.t.Fatal("nobody keeps the lease")
		}
	}
}

// renewal lets time pass until the one lease that is kept has been renewed: two
// timers wait then, for the next renewal, and for this one to take too long.
func (h *trialHub) renewal() {
	h.t.Helper()
	h.clock.Advance(exclusiveTTL / 3)
	for deadline := time.Now().Add(10 * time.Second); h.clock.Waiting() < 2; runtime.Gosched() {
		if time.Now().After(deadline) {
			h.t.Fatal("nobody renews")
		}
	}
}

func admit(d *disk, x *exclusive) (uint64, error) {
	f, err := holder{r: d.right, x: x}.Admit()
	return f.Token, err
}

func wantCode(t testing.TB, err error, code tools.Code) {
	t.Helper()
	var e *tools.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("got %v, want %s", err, code)
	}
}

// events are the records of leases, in their order.
func (h *trialHub) events() (list []audit.Event) {
	h.t.Helper()
	err := h.st.log.Query(context.Background(), audit.Query{}, func(_ []byte, r audit.Record) error {
		if slices.Contains([]audit.Event{audit.EvLeaseAcquire, audit.EvLeaseBreak, audit.EvLeaseExpire, audit.EvLeaseRelease}, r.Ev) {
			list = append(list, r.Ev)
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return list
}

// An exclusive session keeps its disk for as long as it lives, whatever the wall
// clock says.
func TestRightIsRenewed(t *testing.T) {
	h := newTrialHub(t)
	d := h.use("d")
	x := h.claim(d)
	first, err := admit(d, x)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		h.renewal()
		h.clock.StepWall([]time.Duration{-time.Hour, 2 * time.Hour, 0}[i%3])
		if token, err := admit(d, x); err != nil || token != first {
			t.Fatalf("after %d renewals: token %d, %v", i+1, token, err)
		}
		_, err := admit(d, nil)
		wantCode(t, err, tools.LeaseHeld)
	}
	if err := d.right.yield(t.Context(), x); err != nil {
		t.Fatal(err)
	}
	if token, err := admit(d, nil); err != nil || token <= first {
		t.Errorf("afterwards: token %d, %v", token, err)
	}
	if err := d.release(); err != nil {
		t.Error(err)
	}
	if got := h.events(); !slices.Equal(got, []audit.Event{audit.EvLeaseAcquire, audit.EvLeaseRelease}) {
		t.Error(got)
	}
}

// A session that could not renew its lease stops before others get in, and has
// lost it for good.
func TestRightExpires(t *testing.T) {
	h := newTrialHub(t)
	d := h.use("d")
	x := h.claim(d)
	first, _ := admit(d, x)
	h.clock.Advance(exclusiveTTL * 3 / 4) // at once, as for a process that was stopped
	<-x.held.Lost()
	_, err := admit(d, x)
	wantCode(t, err, tools.Fenced)
	_, err = admit(d, nil)
	wantCode(t, err, tools.LeaseHeld)
	_, err = d.right.claim(t.Context(), "another", 0, nil)
	var f *exit.Failure
	if !errors.As(err, &f) || f.Code != exit.Busy {
		t.Errorf("a claim before the end got %v", err)
	}
	h.clock.Advance(exclusiveTTL / 4)
	next, err := admit(d, nil)
	if err != nil || next <= first {
		t.Errorf("after the end: token %d, %v", next, err)
	}
	_, err = admit(d, x)
	wantCode(t, err, tools.Fenced)
	y := h.claim(d)
	if token, err := admit(d, y); err != nil || token <= next {
		t.Errorf("another exclusive one: token %d, %v", token, err)
	}
	if err := errors.Join(d.right.yield(t.Context(), x), d.right.yield(t.Context(), y)); err != nil {
		t.Error(err)
	}
	if got := h.events(); !slices.Equal(got, []audit.Event{audit.EvLeaseAcquire, audit.EvLeaseExpire, audit.EvLeaseAcquire, audit.EvLeaseRelease}) {
		t.Error(got)
	}
	// That of all sessions is taken anew.
	var before uint64
	h.keeping(func() (err error) { before, err = admit(d, nil); return err })
	shared := d.right.shared
	h.clock.Advance(sharedTTL)
	<-shared.Lost()
	if after, err := admit(d, nil); err != nil || after <= before {
		t.Errorf("token %d follows %d, %v", after, before, err)
	}
	// One that expires is over when its session ends.
	z := h.claim(d)
	h.clock.Advance(exclusiveTTL)
	<-z.held.Lost()
	if err := d.right.yield(t.Context(), z); err != nil {
		t.Error(err)
	}
	if got := h.events(); got[len(got)-1] != audit.EvLeaseExpire {
		t.Error(got)
	}
	if err := d.release(); err != nil {
		t.Error(err)
	}
}

// A session of a daemon that is gone has the disk again if its token is the last one,
// and else learns why not.
func TestRightIsNotGivenBack(t *testing.T) {
	h := newTrialHub(t)
	d := h.use("d")
	again := func(token uint64, says string) {
		t.Helper()
		x, err := d.right.claim(t.Context(), "a trial", token, audit.Facts{})
		var taken *errTaken
		switch {
		case says == "" && err == nil:
			if err := d.right.yield(t.Context(), x); err != nil {
				t.Error(err)
			}
		case says == "" || !errors.As(err, &taken) || taken.why != says:
			t.Errorf("token %d: %v, want %q", token, err, says)
		}
	}
	x := h.claim(d)
	first, _ := admit(d, x)
	if err := d.right.yield(t.Context(), x); err != nil { // as when the daemon makes room
		t.Fatal(err)
	}
	again(first, "")
	const meanwhile = "somebody else had the disk meanwhile"
	again(first, meanwhile)
	again(first+40, meanwhile)

	x = h.claim(d)
	expired, _ := admit(d, x)
	h.clock.Advance(exclusiveTTL)
	<-x.held.Lost()
	if _, err := admit(d, nil); err != nil {
		t.Fatal(err)
	}
	again(expired, meanwhile)
	y := h.claim(d)
	broken, _ := admit(d, y)
	if _, err := d.right.broken(t.Context(), audit.Facts{"why": "a reason"}); err != nil {
		t.Fatal(err)
	}
	<-y.gone
	again(broken, `a person took it back ("a reason")`)
	_, err := admit(d, y)
	wantCode(t, err, tools.Fenced)
	if err := errors.Join(d.right.yield(t.Context(), x), d.right.yield(t.Context(), y), d.release()); err != nil {
		t.Error(err)
	}
}

// What an exclusive session left whose lease expired is not listed when the session
// has ended.
func TestRightThatExpiredIsForgotten(t *testing.T) {
	h := newTrialHub(t)
	d := h.use("d")
	x := h.claim(d)
	h.clock.Advance(exclusiveTTL)
	<-x.held.Lost()
	listed := func() int {
		t.Helper()
		p, err := h.provider()
		if err != nil {
			t.Fatal(err)
		}
		all, err := p.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if n := listed(); n != 1 {
		t.Errorf("%d leases", n)
	}
	if err := d.right.yield(t.Context(), x); err != nil {
		t.Error(err)
	}
	if n := listed(); n != 0 {
		t.Errorf("%d leases after its end", n)
	}
	if err := d.release(); err != nil {
		t.Error(err)
	}
}

// After a break that did not come to its end the holder has lost the lease, and
// the next one gets it.
func TestRightAfterAFailedBreak(t *testing.T) {
	h := newTrialHub(t)
	d := h.use("d")
	x := h.claim(d)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.right.broken(ctx, audit.Facts{}); err == nil {
		t.Error("a cancelled break succeeded")
	}
	if _, err := admit(d, x); err != nil { // nothing was recorded, and nothing done
		t.Errorf("after a break that did not begin: %v", err)
	}
	h.lazy.Lock()
	leases := h.leases
	h.lazy.Unlock()
	if _, err := leases.Break(t.Context(), leaseKey(d.info.UUID)); err != nil { // behind the back of the right
		t.Fatal(err)
	}
	if _, err := d.right.broken(t.Context(), audit.Facts{}); !isExit(err, exit.NotFound) {
		t.Errorf("a break of what is broken got %v", err)
	}
	h.clock.Advance(exclusiveTTL / 3)
	<-x.held.Lost()
	if _, err := admit(d, nil); err != nil {
		t.Error(err)
	}
	if err := errors.Join(d.right.yield(t.Context(), x), d.release()); err != nil {
		t.Error(err)
	}
}

func isExit(err error, code int) bool {
	var f *exit.Failure
	return errors.As(err, &f) && f.Code == code
}

// Whatever sessions, operators and the daemon do to disks at the same time: nobody
// waits for ever, one session at a time has a disk for itself, and commits are in
// the order of their tokens.
func TestRightOfMany(t *testing.T) {
	const people, deeds = 8, 60
	h := newTrialHub(t)
	names := []string{"a", "b"}
	made := map[string]*commits{"a": {}, "b": {}}
	var all sync.WaitGroup
	for p := range people {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(p), 7))
			for i := range deeds {
				name := names[r.IntN(len(names))]
				h.deed(r, name, made[name], fmt.Sprintf("p%d-%d", p, i))
			}
		})
	}
	ended := make(chan bool)
	go func() { all.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		t.Fatal("somebody waits for ever")
	}
	for _, name := range names {
		d := h.use(name)
		made[name].check(t, d)
		if err := d.release(); err != nil {
			t.Error(err)
		}
	}
	if n := h.sweep(); n != 0 {
		t.Errorf("%d disks are open", n)
	}
}

// commits are those that were acknowledged on a disk.
type commits struct {
	mu   sync.Mutex
	done []commit
}

type commit struct {
	seq, token uint64
	path       workspace.Path
}

func (c *commits) check(t *testing.T, d *disk) {
	slices.SortFunc(c.done, func(a, b commit) int { return cmp.Compare(a.seq, b.seq) })
	for i, k := range c.done {
		if i > 0 && k.token < c.done[i-1].token {
			t.Errorf("%s: commit %d under token %d follows %d under %d", d.name, k.seq, k.token, c.done[i-1].seq, c.done[i-1].token)
		}
		if _, err := d.image.Lstat(k.path); err != nil {
			t.Errorf("%s: %s was acknowledged: %v", d.name, k.path, err)
		}
	}
	t.Logf("%s: %d commits, tokens up to %d", d.name, len(c.done), c.done[len(c.done)-1].token)
}

// deed is one thing that somebody does.
func (h *trialHub) deed(r *rand.Rand, name string, made *commits, path string) {
	ctx := context.Background()
	d := h.use(name)
	defer func() {
		if err := d.release(); err != nil {
			h.t.Error(err)
		}
	}()
	var x *exclusive
	switch r.IntN(8) {
	case 0:
		if _, err := d.right.broken(ctx, audit.Facts{"why": "a trial"}); err != nil && !isExit(err, exit.NotFound) {
			h.t.Errorf("break: %v", err)
		}
		return
	case 1:
		h.sweep()
		p, err := h.provider()
		if err != nil {
			h.t.Error(err)
			return
		}
		list, err := p.List(ctx)
		if err != nil {
			h.t.Error(err)
		}
		for _, l := range list {
			h.leaseFacts(ctx, l)
		}
		return
	case 2, 3:
		var err error
		if x, err = d.right.claim(ctx, "a trial", 0, audit.Facts{}); err != nil {
			if !isExit(err, exit.Busy) {
				h.t.Errorf("claim: %v", err)
			}
			return
		}
		d.right.renamed(x, "renamed")
		defer func() {
			if err := d.right.yield(ctx, x); err != nil {
				h.t.Errorf("yield: %v", err)
			}
		}()
	}
	for i := range 3 {
		h.commit(d, x, made, fmt.Sprint(path, "-", i))
	}
}

// commit changes the disk if it may.
func (h *trialHub) commit(d *disk, x *exclusive, made *commits, path string) {
	f, err := holder{r: d.right, x: x}.Admit()
	if err != nil {
		var e *tools.Error
		if !errors.As(err, &e) || e.Code != tools.LeaseHeld && e.Code != tools.Fenced {
			h.t.Errorf("admit: %v", err)
		}
		return
	}
	p, err := workspace.Clean(path)
	if err != nil {
		h.t.Error(err)
		return
	}
	done, err := d.image.Commit(context.Background(), workspace.Txn{Fence: f, Changes: []workspace.Change{{Op: workspace.OpMkdir, Path: p}}})
	switch {
	case errors.Is(err, workspace.ErrFenced):
	case err != nil:
		h.t.Error(err)
	default:
		made.mu.Lock()
		made.done = append(made.done, commit{done.Seq, f.Token, p})
		made.mu.Unlock()
	}
}
