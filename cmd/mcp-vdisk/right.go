package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/audit"
	"github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/exit"
	"github.com/mcp-vdisk/mcp-vdisk/tools"
	"github.com/mcp-vdisk/mcp-vdisk/workspace"
	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// right is the right to change a disk. It is held for all sessions together,
// from the first change on, or by one session for itself.
type right struct {
	d *disk

	mu      sync.Mutex
	shared  *lease.Held
	sole    *exclusive // nil unless one session holds it for itself
	foreign bool       // the disk was last changed under leases of another state
	looked  bool       // at the disk's mark and its newest commit
	old     error      // why nothing may be changed: this state and the disk do not belong together

	left    *lease.Grant // of an exclusive session that is over and did not release it
	takenBy string       // the reason of the person who takes the disk back just now
}

// How long a lease lives that nobody renews. That of all sessions together ends
// with this process whatever its time is; a session's is for a person to read.
const (
	sharedTTL    = 10 * time.Minute
	exclusiveTTL = time.Minute
)

// together is the client of the lease of all sessions.
const together = "all sessions"

// admitTime bounds how long a change waits for its right. It is waited for only
// where a lease has expired, and what ran under it has to go first.
const admitTime = 20 * time.Second

// exclusive is a session that holds a disk for itself.
type exclusive struct {
	held  *lease.Held
	since time.Time
	who   audit.Facts // is behind the session

	// Guarded by right.mu.
	client string
	lost   bool // for good: the session can only read
	why    string

	gone chan struct{} // closed with lost
}

// lose ends it for good. mu is held.
func (x *exclusive) lose(why string) {
	if !x.lost {
		x.lost, x.why = true, why
		close(x.gone)
	}
}

// notRenewed is why a session loses its lease that nobody took.
const notRenewed = "it was not renewed in time"

// holder is the right as one session has it; a nil exclusive is any other.
type holder struct {
	r   *right
	x   *exclusive
	who audit.Facts // asks
}

var _ tools.Lease = holder{}

// Admit returns the fence for a change that is made now.
func (s holder) Admit() (workspace.Fence, error) {
	ctx, cancel := context.WithTimeout(context.Background(), admitTime)
	defer cancel()
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	switch {
	case s.x != nil && (s.x.lost || over(s.x.held)):
		return workspace.Fence{}, tools.LeaseLost(s.x.reason())
	case s.x != nil:
		return s.r.fence(s.x.held), nil
	case s.r.d.readOnly:
		return workspace.Fence{}, nil // the image refuses
	}
	if err := s.r.share(ctx, s.who); err != nil {
		return workspace.Fence{}, err
	}
	return s.r.fence(s.r.shared), nil
}

// reason is why the session lost its lease. mu is held.
func (x *exclusive) reason() string {
	if x.lost {
		return x.why
	}
	return notRenewed
}

// whyLost is for others.
func (r *right) whyLost(x *exclusive) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return x.reason()
}

// over says that a lease could not be kept.
func over(h *lease.Held) bool {
	select {
	case <-h.Lost():
		return true
	default:
		return false
	}
}

func (r *right) fence(h *lease.Held) workspace.Fence {
	return workspace.Fence{Install: r.d.hub.leases.Info().Install, Token: h.Grant().Token}
}

// share acquires the lease for all sessions, unless it is held. mu is held.
func (r *right) share(ctx context.Context, who audit.Facts) error {
	if r.sole != nil && !over(r.sole.held) {
		return r.sole.inTheWay()
	}
	if r.shared != nil && !over(r.shared) {
		return nil
	}
	h, err := r.acquire(ctx, together, sharedTTL, who)
	if err != nil {
		return err
	}
	r.shared = h
	return nil
}

// acquire acquires the lease for somebody; that of an exclusive session which did
// not keep it is over then. mu is held.
func (r *right) acquire(ctx context.Context, client string, ttl time.Duration, who audit.Facts) (*lease.Held, error) {
	p, err := r.d.hub.provider()
	if err != nil {
		return nil, err
	}
	if err := r.look(ctx, p); err != nil {
		return nil, err
	}
	if r.foreign {
		if err := r.recordAdopt(ctx, who, "the disk came from another state directory"); err != nil {
			return nil, err
		}
	}
	q := lease.Request{Key: leaseKey(r.d.info.UUID), Owner: lease.NewOwner(), TTL: ttl, Client: client}
	h, err := lease.Hold(ctx, p, q, r.d.hub.clock)
	if err != nil {
		return nil, r.inTheWay(err)
	}
	r.foreign = false
	if err := errors.Join(r.drop(ctx, audit.EvLeaseExpire), r.unshare()); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// drop ends the lease of the exclusive session, if there is one, which has lost it.
// mu is held.
func (r *right) drop(ctx context.Context, ev audit.Event) error {
	x := r.sole
	if x == nil {
		return nil
	}
	r.sole = nil
	x.lose(notRenewed)
	err := r.record(ctx, ev, x.token(), x.facts())
	if cerr := x.held.Close(); !errors.Is(cerr, lease.ErrConflict) {
		err = errors.Join(err, cerr)
	}
	return err
}

// unshare ends the lease of all sessions, if they hold it. mu is held.
func (r *right) unshare() error {
	if r.shared == nil {
		return nil
	}
	err := r.shared.Close()
	r.shared = nil
	if errors.Is(err, lease.ErrConflict) {
		return nil // it was lost before, and is as much over
	}
	return err
}

// look compares what the disk has seen, of leases and of changes, with what this
// state knows, once for as long as the disk is open: nobody else can open it
// meanwhile. mu is held.
func (r *right) look(ctx context.Context, p *lease.Badger) error {
	if r.looked {
		return r.old
	}
	seen, err := r.d.image.Fence()
	if err != nil {
		return err
	}
	var old *lease.Restored
	switch err := p.Check(leaseKey(r.d.info.UUID), lease.Mark(seen)); {
	case errors.Is(err, lease.ErrForeign):
		r.foreign = true
	case errors.As(err, &old):
		r.old = tools.StateTooOld(old.Seen, old.Last)
	case err != nil:
		return err
	default:
		// However long the log is: a disk with a long one is not to be refused.
		why, err := r.lineage(context.WithoutCancel(ctx), p, seen)
		if err != nil {
			return err
		}
		if why != nil {
			r.old = why
		}
	}
	r.looked = true
	return r.old
}

// adopt takes the disk on as it is, and raises what this state knows to what the
// disk has seen, which it returns.
func (r *right) adopt(ctx context.Context, who audit.Facts, why string) (workspace.Fence, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, err := r.d.hub.provider()
	if err != nil {
		return workspace.Fence{}, err
	}
	seen, err := r.d.image.Fence()
	if err != nil {
		return seen, err
	}
	switch err := r.look(ctx, p); {
	case r.foreign:
		return seen, exit.Fail(exit.Refused, "go on as usual: its first change here takes it on", "there is nothing to decide: disk %s came from another state directory", r.d.name)
	case err == nil:
		return seen, exit.Fail(exit.Refused, "", "there is nothing to adopt: this state directory knows of every change of disk %s", r.d.name)
	case r.old == nil:
		return seen, err
	}
	who["found"] = r.old.Error()
	if err := r.recordAdopt(ctx, who, why); err != nil {
		return seen, err
	}
	if seen != (workspace.Fence{}) {
		if err := p.Adopt(ctx, leaseKey(r.d.info.UUID), lease.Mark(seen)); err != nil {
			return seen, err
		}
	}
	r.looked, r.old = false, nil
	return seen, nil
}

// recordAdopt notes that the disk is taken on as it is: what it was changed up to
// now may be in no record of this log.
func (r *right) recordAdopt(ctx context.Context, who audit.Facts, why string) error {
	seen, err := r.d.image.Fence()
	if err != nil {
		return err
	}
	info, err := r.d.image.Info()
	if err != nil {
		return err
	}
	about := audit.Facts{"install": hex.EncodeToString(seen.Install[:]), "token": int64(seen.Token), "why": why, "version": versionText(info.Seq)}
	maps.Copy(about, who)
	return r.d.hub.st.record(ctx, info.UUID, audit.Record{Ev: audit.EvLeaseAdopt, Img: info.UUID, Args: about, Fence: seen.Token, Hb: info.Commit, Ha: info.Commit})
}

// errTaken is why a session does not get back the lease that it had under a daemon
// that is gone: it was lost meanwhile.
type errTaken struct{ why string }

func (e *errTaken) Error() string { return e.why }

// claim gives the right to one session for itself. It is refused while another
// has it, and while a script of somebody else runs. had is the token under which
// the session had it before, 0 for none: it is an *errTaken when that was not the
// last one.
func (r *right) claim(ctx context.Context, client string, had uint64, who audit.Facts) (*exclusive, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if had != 0 {
		if err := r.stillLast(ctx, had); err != nil {
			return nil, err
		}
	}
	jobs := r.d.scripts()
	switch {
	case r.sole != nil && !over(r.sole.held):
		return nil, r.d.refusal(r.sole.inTheWay())
	case r.d.readOnly:
		return nil, exit.Fail(exit.Refused, "a session that only reads needs no lease", "disk %s can only be read", r.d.name)
	case r.sole == nil && jobs.Running() > 0:
		return nil, exit.Fail(exit.Busy, "mcp-vdisk jobs list shows it; wait for its end, or cancel it", "a script of another session runs on disk %s", r.d.name)
	}
	if r.shared != nil {
		last := r.shared.Grant().Token
		if err := r.unshare(); err != nil {
			return nil, r.d.refusal(err)
		}
		// What was admitted and has not begun does not begin any more.
		if err := jobs.Evict(ctx, last); err != nil {
			return nil, err
		}
	}
	h, err := r.acquire(ctx, client, exclusiveTTL, who)
	if err != nil {
		return nil, r.d.refusal(err)
	}
	x := &exclusive{held: h, client: client, since: time.Now(), who: who, gone: make(chan struct{})}
	if err := r.record(ctx, audit.EvLeaseAcquire, x.token(), x.facts()); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	r.sole = x
	return x, nil
}

// stillLast says whether nobody got the disk after the lease with this token. mu is
// held.
func (r *right) stillLast(ctx context.Context, token uint64) error {
	p, err := r.d.hub.provider()
	if err != nil {
		return err
	}
	last, err := p.Last(ctx, leaseKey(r.d.info.UUID))
	if err != nil {
		return err
	}
	seen, err := r.d.image.Fence()
	if err != nil {
		return err
	}
	if last == token && seen == (workspace.Fence{Install: p.Info().Install, Token: token}) {
		return nil
	}
	taken := &errTaken{why: "somebody else had the disk meanwhile"}
	q := audit.Query{Stream: r.d.info.UUID, Limit: 1, Reverse: true, Match: map[string][]string{
		"ev": {string(audit.EvLeaseBreak)}, "fence": {strconv.FormatUint(token, 10)},
	}}
	err = r.d.hub.st.log.Query(ctx, q, func(_ []byte, rec audit.Record) error {
		why, _ := rec.Args["why"].(string)
		taken.why = tools.TakenBack(why)
		return nil
	})
	return errors.Join(taken, err)
}

// yield ends what claim gave. A script that the session handed over goes on, and
// its result is FENCED if somebody has changed the disk under a later lease by then.
func (r *right) yield(ctx context.Context, x *exclusive) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x.lost {
		return nil // the end of it is in the log
	}
	if !over(x.held) {
		return r.drop(ctx, audit.EvLeaseRelease)
	}
	g := x.held.Grant()
	r.left = &g
	return errors.Join(r.drop(ctx, audit.EvLeaseExpire), r.clear(ctx))
}

// clear forgets what an exclusive session left whose lease had expired, once nothing
// runs any more that may be its own: else it would be listed until somebody else
// changes the disk. mu is held.
func (r *right) clear(ctx context.Context) error {
	if jobs := r.d.scripts(); r.left == nil || jobs != nil && jobs.Running() > 0 {
		return nil
	}
	p, err := r.d.hub.provider()
	if err != nil {
		return err
	}
	g := *r.left
	r.left = nil
	return p.Clear(ctx, g)
}

// token is the fencing token of the session.
func (x *exclusive) token() uint64 { return x.held.Grant().Token }

// facts are those of a record about the session's lease.
func (x *exclusive) facts() audit.Facts {
	f := audit.Facts{"owner": x.held.Grant().Owner, "client": x.client, "exclusive": true}
	maps.Copy(f, x.who)
	return f
}

// inTheWay is what others are told.
func (x *exclusive) inTheWay() *tools.Error {
	g := x.held.Grant()
	return tools.LeaseHeldBy(g.Owner, x.client, x.since, time.Until(g.ExpiresAt))
}

// inTheWay is an error of leases as the tools tell it: an exclusive session that
// could not renew its lease has it until the end of its time. mu is held.
func (r *right) inTheWay(err error) error {
	var c *lease.Conflict
	if !errors.As(err, &c) || c.Holder.Token == 0 {
		return err
	}
	client := c.Holder.Client
	if r.sole != nil && r.sole.token() == c.Holder.Token {
		client = r.sole.client
	}
	return tools.LeaseHeldBy(c.Holder.Owner, client, c.Holder.Since, c.Holder.Remaining)
}

// soleHolder is the session that holds the disk for itself, and what its client
// calls itself; nil for none.
func (r *right) soleHolder() (*exclusive, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sole == nil {
		return nil, ""
	}
	return r.sole, r.sole.client
}

// renamed notes what the client of an exclusive session calls itself.
func (r *right) renamed(x *exclusive, client string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x.client = client
}

// broken ends the lease for an operator, and returns what it was. When it
// returns nothing runs any more that was started under it.
func (r *right) broken(ctx context.Context, about audit.Facts) (was lease.Lease, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, err := r.d.hub.provider()
	if err != nil {
		return was, err
	}
	if err := r.look(ctx, p); err != nil {
		return was, r.d.refusal(err)
	}
	was, err = p.Holder(leaseKey(r.d.info.UUID))
	if errors.Is(err, lease.ErrNotHeld) || err == nil && r.foreign {
		return was, exit.Fail(exit.NotFound, "mcp-vdisk lease list shows those that are held", "nobody holds the lease of disk %s", r.d.name)
	}
	if err != nil {
		return was, err
	}
	alone := was.Client != together
	if r.sole != nil {
		was.Client, alone = r.sole.client, true
	}
	maps.Copy(about, audit.Facts{"owner": was.Owner, "client": was.Client, "exclusive": alone})
	if err := r.record(ctx, audit.EvLeaseBreak, was.Token, about); err != nil {
		return was, err
	}
	r.takenBy, _ = about["why"].(string)
	_, err = p.Break(ctx, leaseKey(r.d.info.UUID))
	// Whatever came of it, the lease is over; the next one who acquires it sees to
	// what is left of the holder.
	if x := r.sole; x != nil {
		r.sole = nil
		x.lose(tools.TakenBack(r.takenBy))
		x.held.Close()
	}
	r.takenBy = ""
	if uerr := r.unshare(); err == nil {
		err = uerr
	}
	return was, err
}

// close gives the right up. Nobody uses the disk.
func (r *right) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.unshare(), r.clear(context.Background()))
}

func (r *right) record(ctx context.Context, ev audit.Event, token uint64, about audit.Facts) error {
	return r.d.hub.st.record(ctx, r.d.info.UUID, audit.Record{Ev: ev, Img: r.d.info.UUID, Args: about, Fence: token})
}

// refusal gives a refusal of leases its exit code, and says what a person can do.
func (d *disk) refusal(err error) error {
	var e *tools.Error
	switch {
	case !errors.As(err, &e):
		return err
	case e.Code == tools.LeaseHeld:
		return exit.Because(err, exit.Busy, fmt.Sprintf("wait for it, or take the disk back: mcp-vdisk lease break %s --why REASON", tools.ShellQuote(d.name)), "%s", e)
	case e.Code == tools.Fenced:
		return exit.Because(err, exit.Refused, fmt.Sprintf("mcp-vdisk lease adopt %s --why REASON goes on with the disk and the state directory as they are", tools.ShellQuote(d.name)), "%s", e)
	}
	return err
}

// leaseKey is what the lease of a disk is for.
func leaseKey(uuid string) lease.Key {
	return lease.Key{Scope: lease.Scope{Tenant: "local", Workspace: uuid}, Backend: "image", Handle: uuid}
}

// provider gives out the leases of this state directory.
func (h *hub) provider() (*lease.Badger, error) {
	h.lazy.Lock()
	defer h.lazy.Unlock()
	if h.leases != nil {
		return h.leases, nil
	}
	p, err := lease.New(h.st.db, lease.Options{Clock: h.clock, Evict: h.evict, Record: h.raise, Room: h.st.log.Room})
	if err != nil {
		return nil, err
	}
	h.leases = p
	return p, nil
}

// evict ends what runs under a lease. What was left by another process died with
// it.
func (h *hub) evict(ctx context.Context, l lease.Lease) error {
	d := h.named(l.Key.Handle)
	if d == nil {
		return nil
	}
	jobs := d.scripts()
	switch {
	case jobs == nil:
		return nil
	case d.right.takenBy != "": // the lease is broken by one who has the right's lock
		return jobs.TakeBack(ctx, l.Token, d.right.takenBy)
	}
	return jobs.Evict(ctx, l.Token)
}

// raise stores the token of a new lease in the disk.
func (h *hub) raise(_ context.Context, g lease.Grant) error {
	d := h.named(g.Key.Handle)
	if d == nil {
		return fmt.Errorf("disk %s is not open", g.Key.Handle)
	}
	f := workspace.Fence{Install: h.leases.Info().Install, Token: g.Token}
	if d.right.foreign {
		return d.image.AdoptFence(f)
	}
	return d.image.RaiseFence(f)
}
