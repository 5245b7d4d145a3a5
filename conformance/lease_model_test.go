package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/mcp-vdisk/mcp-vdisk/workspace/lease"
)

// model is a provider in memory, written as plainly as possible, that can be
// made to break any one rule: flaw is the id of it, or empty. Its lines on flaws
// are the mutants of TestLeaseMutants.
type model struct {
	clock *ManualClock
	hooks *LeaseHooks
	flaw  string

	mu        sync.Mutex
	last      uint64
	lasts     map[lease.Key]uint64
	leases    map[lease.Key]*modelLease
	data      map[lease.Key]map[string]string
	interrupt *bool

	released map[grantID]bool // of this run, for flaws
	overrun  map[grantID]bool // expired and taken over
	cycles   int
	meetings map[lease.Key]chan struct{}
	drift    time.Duration
	asleep   time.Duration
}

// modelLease stays after it has expired, until it is released or replaced.
type modelLease struct {
	lease.Request
	token    uint64
	deadline time.Duration
	expires  time.Time
	over     bool
	used     bool
	renewals int
}

type grantID struct {
	key   lease.Key
	owner string
	token uint64
}

func idOf(g lease.Grant) grantID  { return grantID{g.Key, g.Owner, g.Token} }
func (l *modelLease) id() grantID { return grantID{l.Key, l.Owner, l.token} }
func (l *modelLease) seen() lease.Lease {
	return lease.Lease{Key: l.Key, Owner: l.Owner, Token: l.token}
}

func newModel(flaw string) *model {
	return &model{
		clock: new(ManualClock), hooks: new(LeaseHooks), flaw: flaw,
		leases: map[lease.Key]*modelLease{}, lasts: map[lease.Key]uint64{}, data: map[lease.Key]map[string]string{},
		released: map[grantID]bool{}, overrun: map[grantID]bool{}, meetings: map[lease.Key]chan struct{}{},
	}
}

func (m *model) Info() lease.Info { return lease.Info{Name: "model", Reach: lease.SingleHost} }

// is says whether the model has this flaw and the circumstances are right.
func (m *model) is(flaw string, when bool) bool { return m.flaw == flaw && when }

func (m *model) lock() {
	m.mu.Lock()
	m.watchWall()
}

// watchWall is for the flaws of the wall clock.
func (m *model) watchWall() {
	m.clock.mu.Lock()
	asleep, drift := m.clock.asleep, m.clock.wall-m.clock.asleep-m.clock.now
	m.clock.mu.Unlock()
	for _, l := range m.leases {
		switch {
		case m.is("lease.clock_forward", drift > m.drift), m.is("lease.suspend", asleep > m.asleep):
			l.deadline = 0
		case m.is("lease.clock_backward", drift < m.drift):
			l.deadline += m.drift - drift
		}
	}
	m.asleep, m.drift = asleep, drift
}

func (m *model) alive(l *modelLease) bool {
	if l == nil || l.over {
		return false
	}
	now := m.clock.Elapsed()
	return now < l.deadline || m.is("lease.expiry_boundary", now == l.deadline)
}

func (m *model) valid(k lease.Key, ttl time.Duration) error {
	blank := strings.TrimSpace(k.Scope.Workspace) == "" && m.flaw != "lease.blank_scope_refused"
	if strings.TrimSpace(k.Scope.Tenant) == "" || blank || ttl <= 0 || ttl == math.MaxInt64 {
		return lease.ErrInvalid
	}
	return nil
}

func (m *model) Acquire(ctx context.Context, r lease.Request) (lease.Grant, error) {
	if err := m.valid(r.Key, r.TTL); err != nil {
		return lease.Grant{}, err
	}
	if ctx.Err() != nil && m.flaw != "lease.ctx_cancel" {
		return lease.Grant{}, ctx.Err()
	}
	m.lock()
	defer m.mu.Unlock()
	old := m.leases[r.Key]
	if g, err := m.occupied(r); err != nil || g.Token != 0 {
		return g, err
	}
	if err := m.evict(old); err != nil {
		return lease.Grant{}, err
	}
	l := &modelLease{Request: r, token: m.token(r, old)}
	m.lasts[r.Key] = l.token
	if stored := m.interrupt; stored != nil {
		m.interrupt = nil
		l.over = m.flaw != "lease.ambiguous_commit"
		if *stored {
			m.leases[r.Key] = l
			m.start(l, r.TTL)
		}
		return lease.Grant{}, errors.New("the outcome is unknown")
	}
	recorded := lease.Grant{Key: r.Key, Token: l.token}
	if m.is("fence.token_recorded_first", true) {
		recorded.Token--
	}
	if err := m.hooks.Record(ctx, recorded); err != nil && m.flaw != "fence.unrecorded_not_granted" {
		return lease.Grant{}, fmt.Errorf("record: %w", err)
	}
	m.leases[r.Key] = l
	m.start(l, r.TTL)
	if ctx.Err() != nil {
		return lease.Grant{}, ctx.Err()
	}
	g := l.grant()
	if m.is("lease.acquire", true) {
		g.ExpiresAt = time.Time{}
	}
	return g, nil
}

// occupied is a conflict while the key is held.
func (m *model) occupied(r lease.Request) (lease.Grant, error) {
	for k, l := range m.leases {
		if k != r.Key && m.alive(l) && m.confused(k, r) && (l.Owner != r.Owner || m.flaw == "lease.key_encoding") {
			return lease.Grant{}, lease.ErrConflict
		}
	}
	if m.meet(r) {
		return lease.Grant{}, nil
	}
	old := m.leases[r.Key]
	if !m.alive(old) {
		return lease.Grant{}, nil
	}
	other := old.Owner != r.Owner
	switch {
	case m.is("lease.exclusive_acquire", other && !old.used && r.Client == ""),
		m.is("lease.acquire_renew_race", other && old.renewals >= 20):
		return lease.Grant{}, nil
	case m.is("lease.reacquire_same_owner", !other):
		return old.grant(), nil
	}
	if m.is("fence.running_exec_revoked", true) {
		_ = m.hooks.Evict(context.Background(), old.seen())
	}
	return lease.Grant{}, lease.ErrConflict
}

// confused says whether a flaw takes two keys for one.
func (m *model) confused(k lease.Key, r lease.Request) bool {
	a, b := k, r.Key
	join := func(k lease.Key) string {
		return strings.Join([]string{k.Scope.Tenant, k.Scope.Workspace, k.Backend, k.Handle}, "/")
	}
	switch m.flaw {
	case "lease.scope_isolation":
		a.Scope.Tenant = b.Scope.Tenant
	case "lease.scope_isolation.workspace":
		a.Scope.Workspace = b.Scope.Workspace
	case "lease.scope_isolation.backend":
		a.Backend = b.Backend
	case "lease.scope_isolation.handle":
		if strings.HasPrefix(b.Handle, a.Handle) { // only the beginning is compared
			a.Handle = b.Handle
		}
	case "lease.key_encoding":
		return join(a) == join(b)
	}
	return a == b
}

// meet lets two that race decide on what they saw before the other one came.
func (m *model) meet(r lease.Request) bool {
	if !m.is("lease.concurrent_acquire", r.Client == "racer") && !m.is("lease.concurrent_clients", r.Client == "process") {
		return false
	}
	c := m.meetings[r.Key]
	switch {
	case c == nil:
		c = make(chan struct{})
		m.meetings[r.Key] = c
		m.mu.Unlock()
		<-c
		m.mu.Lock()
		return true
	default:
		select {
		case <-c:
			return false
		default:
			close(c)
			return true
		}
	}
}

func (m *model) evict(old *modelLease) error {
	if old == nil || m.alive(old) || m.is("fence.running_exec_revoked", old.used) {
		return nil
	}
	old.over = true
	err := m.hooks.Evict(context.Background(), old.seen())
	if err != nil && m.flaw != "fence.unconfirmed_kill_not_granted" {
		return fmt.Errorf("evict: %w", err)
	}
	m.overrun[old.id()] = true
	return nil
}

func (m *model) token(r lease.Request, old *modelLease) uint64 {
	if m.is("lease.expiry_takeover", old != nil && old.Owner != r.Owner) {
		return old.token
	}
	for id := range m.released {
		if m.is("lease.monotonic_takeover", id.key == r.Key && id.owner != r.Owner && r.Client == "") {
			return id.token
		}
	}
	m.last++
	return m.last
}

func (m *model) start(l *modelLease, ttl time.Duration) {
	if m.is("lease.not_early", true) {
		ttl = ttl.Truncate(time.Second)
	}
	now := m.clock.Elapsed()
	deadline := max(now+ttl, l.deadline+1)
	expires := m.clock.Wall().Add(deadline - now)
	if !expires.After(l.expires) {
		expires = l.expires.Add(1)
	}
	if m.is("lease.renew", ttl > l.TTL) {
		expires = l.expires
	}
	if m.is("lease.renew_shorter", true) {
		deadline = now + ttl
	}
	l.deadline, l.expires, l.TTL = deadline, expires, ttl
}

func (l *modelLease) grant() lease.Grant {
	return lease.Grant{Key: l.Key, Owner: l.Owner, Token: l.token, TTL: l.TTL, ExpiresAt: l.expires}
}

// owned is the lease that g is.
func (m *model) owned(g lease.Grant) (*modelLease, error) {
	l := m.leases[g.Key]
	if !m.alive(l) || l.Owner != g.Owner || l.token != g.Token {
		return nil, lease.ErrConflict
	}
	return l, nil
}

func (m *model) Renew(_ context.Context, g lease.Grant, ttl time.Duration) (lease.Grant, error) {
	if m.is("lease.invalid_ttl", ttl <= 0) {
		return g, nil
	}
	if err := m.valid(g.Key, ttl); err != nil {
		return lease.Grant{}, err
	}
	m.lock()
	defer m.mu.Unlock()
	l, err := m.owned(g)
	if l == nil {
		l = m.flawedRenew(g)
	}
	if l == nil || m.is("lease.expires_at_ignored_in_identity", g.ExpiresAt.IsZero()) {
		if l := m.leases[g.Key]; l != nil && l.id() == idOf(g) && m.flaw != "lease.restart_expired" {
			l.over = true
		}
		return lease.Grant{}, cmp.Or(err, lease.ErrConflict)
	}
	l.used = true
	l.renewals++
	m.start(l, ttl)
	return l.grant(), nil
}

// flawedRenew is a lease that a flaw lets g renew.
func (m *model) flawedRenew(g lease.Grant) *modelLease {
	l := m.leases[g.Key]
	held := m.alive(l)
	same := l != nil && l.Owner == g.Owner
	switch {
	case m.is("lease.wrong_owner_rejected", held && l.token == g.Token),
		m.is("lease.wrong_token", held && same && 0 < g.Token && g.Token < l.token),
		m.is("lease.future_token", held && same && g.Token > l.token),
		m.is("lease.zero_token", held && same && g.Token == 0),
		m.is("lease.stale_grant_rejected", held && !same && m.released[idOf(g)]),
		m.is("lease.expire_renew_race", held && m.overrun[idOf(g)]),
		m.is("lease.renew_after_expiry_rejected", l != nil && l.id() == idOf(g) && !l.over):
		return l
	}
	for k, l := range m.leases {
		if m.is("lease.wrong_scope", k.Handle == g.Key.Handle && l.Owner == g.Owner && l.token == g.Token && m.alive(l)) {
			return l
		}
	}
	return nil
}

func (m *model) Release(_ context.Context, g lease.Grant) error {
	m.lock()
	defer m.mu.Unlock()
	l, err := m.owned(g)
	if now := m.leases[g.Key]; err != nil {
		switch {
		case m.is("lease.wrong_owner_release", m.alive(now) && now.token == g.Token),
			m.is("lease.release_after_takeover_rejected", now != nil && m.overrun[idOf(g)]):
			l = now
		case m.is("lease.double_release", now == nil && m.released[idOf(g)]):
			return nil
		default:
			return err
		}
	}
	if m.is("lease.release", l.renewals > 0) {
		return nil
	}
	m.released[l.id()] = true
	delete(m.leases, l.Key)
	for k := range m.leases {
		if m.is("lease.scope_isolation.release", k.Handle == l.Key.Handle) {
			delete(m.leases, k)
		}
	}
	if m.cycles++; m.is("lease.token_survives_release_gc", m.cycles == 80) {
		m.last = 0
	}
	return nil
}

// Guard collects the writes of fn and makes them when neither the lease nor
// anything that fn has read has changed meanwhile.
func (m *model) Guard(_ context.Context, g lease.Grant, fn func(lease.Txn) error) error {
	for {
		m.lock()
		l, err := m.owned(g)
		if now := m.leases[g.Key]; l == nil {
			if m.is("fence.write_path_rejects_stale", m.overrun[idOf(g)]) ||
				m.is("fence.expired_write_rejected", now != nil && now.id() == idOf(g)) {
				l = now
			}
		}
		m.mu.Unlock()
		if l == nil {
			return err
		}
		tx := &modelTxn{m: m, key: g.Key, read: map[string]*string{}, write: map[string]*string{}}
		if err := fn(tx); err != nil {
			if m.is("fence.all_or_nothing", true) {
				tx.apply()
			}
			return err
		}
		m.lock()
		if now := m.leases[g.Key]; (now != l || !m.alive(l) && m.flaw != "fence.expired_write_rejected") && m.flaw != "fence.check_and_write_atomic" {
			m.mu.Unlock()
			return lease.ErrConflict
		}
		if !tx.unchanged() && m.flaw != "fence.queue_claim" {
			m.mu.Unlock()
			continue
		}
		l.used = true
		m.mu.Unlock()
		tx.apply()
		return nil
	}
}

type modelTxn struct {
	m           *model
	key         lease.Key
	read, write map[string]*string // nil is absent
}

func (t *modelTxn) stored(name string) *string {
	if v, ok := t.m.data[t.key][name]; ok {
		return &v
	}
	return nil
}

func (t *modelTxn) Get(name string) ([]byte, error) {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	v, ok := t.write[name]
	if !ok {
		v = t.stored(name)
		t.read[name] = v
	}
	if v == nil {
		return nil, nil
	}
	return []byte(*v), nil
}

func (t *modelTxn) Set(name string, value []byte) error {
	v := string(value)
	t.write[name] = &v
	return nil
}

func (t *modelTxn) Delete(name string) error {
	t.write[name] = nil
	return nil
}

func (t *modelTxn) unchanged() bool {
	for name, v := range t.read {
		now := t.stored(name)
		if (v == nil) != (now == nil) || v != nil && *v != *now {
			return false
		}
	}
	return true
}

func (t *modelTxn) apply() {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	if t.m.data[t.key] == nil {
		t.m.data[t.key] = map[string]string{}
	}
	for name, v := range t.write {
		if v == nil {
			delete(t.m.data[t.key], name)
		} else {
			t.m.data[t.key][name] = *v
		}
	}
}

func (m *model) Last(_ context.Context, k lease.Key) (uint64, error) {
	m.lock()
	defer m.mu.Unlock()
	if m.is("lease.last_token", m.lasts[k] > 0) {
		return m.last, nil
	}
	return m.lasts[k], nil
}

// reopen is what a restart does to the model.
func (m *model) reopen() {
	m.lock()
	defer m.mu.Unlock()
	for k := range m.lasts {
		if m.is("lease.restart_last_token", m.leases[k] == nil) {
			delete(m.lasts, k)
		}
	}
	for _, l := range m.leases {
		if !l.Resumable {
			l.over = m.flaw != "lease.restart_ends_sessions"
			continue
		}
		l.deadline = m.clock.Elapsed() + l.TTL
		if m.is("lease.restart_resumable", true) {
			l.deadline -= l.TTL / 2
		}
	}
}

func (m *model) crash() {
	if m.is("lease.crash_durability", true) {
		m.last--
	}
	m.reopen()
}

func (m *model) interruptNext(stored bool) {
	m.lock()
	defer m.mu.Unlock()
	m.interrupt = &stored
}

// modelResource is a resource with the flaws of resources.
type modelResource struct {
	flaw   string
	mark   lease.Mark
	opened lease.Mark // the mark when it was opened
	value  string
}

func (r *modelResource) Write(_ context.Context, m lease.Mark, value string) error {
	none, seen := lease.Mark{}, r.mark
	if r.flaw == "fence.resource_remembers_max" {
		seen = r.opened
	}
	switch {
	case r.mark == none:
	case m == none && r.flaw != "fence.missing_token_refused",
		m.Install != r.mark.Install && m != none && r.flaw != "fence.other_install_refused",
		m.Install == r.mark.Install && m.Token < seen.Token:
		return errors.New("fenced")
	}
	if m.Token > r.mark.Token {
		r.mark = m
	}
	r.value = value
	return nil
}

func (r *modelResource) Value(context.Context) (string, error) { return r.value, nil }
func (r *modelResource) Close() error                          { return nil }

func (r *modelResource) Reopen(context.Context) error {
	if r.flaw == "fence.resource_reopened" {
		r.mark = lease.Mark{}
	}
	r.opened = r.mark
	return nil
}
