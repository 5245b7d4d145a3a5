package lease

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Grant is a lease as its holder knows it. Its identity is Key, Owner and Token:
// the other fields may be stale, or lost, and it is the same grant.
type Grant struct {
	Key   Key
	Owner string
	// Token rises from grant to grant, whatever the key. It is never 0.
	Token uint64
	// TTL is how long the grant lives from when it was acquired or renewed. A
	// holder that counts itself counts from before it asked.
	TTL time.Duration
	// ExpiresAt is when that is over by the wall clock, for people. Nothing is
	// decided by it.
	ExpiresAt time.Time
}

// Key is what a lease is for. All its parts are non-blank UTF-8 of at most 255
// bytes; two keys are the same when all parts are.
type Key struct {
	Scope   Scope
	Backend string // the kind of thing: "image"
	Handle  string // which one: the uuid of the image
}

// Scope keeps tenants and their workspaces apart.
type Scope struct {
	Tenant, Workspace string
}

// Request is what Acquire is asked for.
type Request struct {
	Key Key
	// Owner is one incarnation of somebody who may hold a lease, as NewOwner
	// makes it: whoever is started again is another owner.
	Owner string
	TTL   time.Duration // above 0, at most MaxTTL
	// Client tells people who the owner is: "claude-desktop 1.2". At most 255 bytes.
	Client string
	// Resumable owners outlive the process of the provider, and find their lease
	// again after its restart.
	Resumable bool
}

// Lease is a lease as others see it.
type Lease struct {
	Key       Key
	Owner     string
	Client    string
	Token     uint64
	TTL       time.Duration
	Resumable bool
	Since     time.Time // wall clock
	ExpiresAt time.Time // wall clock, informational; zero when it is over
	// Remaining is how long it lives if nobody renews it. One with 0 is over,
	// and waits for its holder to be evicted.
	Remaining time.Duration
}

const (
	// MaxTTL is the longest time a grant may live without being renewed.
	MaxTTL = 24 * time.Hour
	// MaxToken is the highest token: the log keeps it as a number of JSON.
	MaxToken = 1<<53 - 1

	maxPart = 255
)

// NewOwner returns an owner that nobody else is.
func NewOwner() string { return uuid.NewString() }

func (r Request) check() error {
	if err := checkIdentity(r.Key, r.Owner); err != nil {
		return err
	}
	if len(r.Client) > maxPart || !utf8.ValidString(r.Client) {
		return fmt.Errorf("%w: the client is longer than %d bytes or not UTF-8", ErrInvalid, maxPart)
	}
	return checkTTL(r.TTL)
}

func checkIdentity(k Key, owner string) error {
	for _, p := range []struct{ name, value string }{
		{"tenant", k.Scope.Tenant}, {"workspace", k.Scope.Workspace},
		{"backend", k.Backend}, {"handle", k.Handle}, {"owner", owner},
	} {
		switch {
		case strings.TrimSpace(p.value) == "":
			return fmt.Errorf("%w: the %s is blank", ErrInvalid, p.name)
		case len(p.value) > maxPart:
			return fmt.Errorf("%w: the %s is longer than %d bytes", ErrInvalid, p.name, maxPart)
		case !utf8.ValidString(p.value):
			return fmt.Errorf("%w: the %s is not UTF-8", ErrInvalid, p.name)
		}
	}
	return nil
}

func checkTTL(ttl time.Duration) error {
	if ttl <= 0 || ttl > MaxTTL {
		return fmt.Errorf("%w: a TTL of %v is not above 0 and at most %v", ErrInvalid, ttl, MaxTTL)
	}
	return nil
}
