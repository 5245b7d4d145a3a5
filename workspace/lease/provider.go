package lease

import (
	"context"
	"time"
)

// Provider gives out leases. All methods may be called at the same time. An
// error wraps exactly one of the sentinels of this package, or is the cause of
// ctx, or that of the function that Guard calls.
type Provider interface {
	// Acquire grants a key that nobody holds, with a token higher than every
	// token before. ErrConflict if somebody holds it, the same owner included.
	// It may wait for the end of what an earlier holder left running. When it
	// fails, also because ctx has ended, nobody holds the key for it.
	//
	// Errors: ErrConflict, ErrInvalid, ErrUnavailable.
	Acquire(ctx context.Context, r Request) (Grant, error)

	// Renew lets g live for ttl from now; it never shortens. The grant that it
	// returns has the same identity and a later ExpiresAt. A grant that is dead
	// stays so. After ErrUnavailable g may have been renewed or not.
	//
	// Errors: ErrConflict, ErrInvalid, ErrUnavailable.
	Renew(ctx context.Context, g Grant, ttl time.Duration) (Grant, error)

	// Release ends g. The holder has stopped acting under it. After ErrUnavailable
	// g is over all the same.
	//
	// Errors: ErrConflict (g is not alive; a second release is one), ErrInvalid,
	// ErrUnavailable.
	Release(ctx context.Context, g Grant) error

	// Guard calls fn and makes what it wrote durable, all or nothing, only if g is
	// alive and nobody else has acquired the key when that happens. fn may be
	// called more than once, and must have no effects but on its Txn; its error
	// is returned as it is, and nothing was written. After ErrUnavailable it may
	// have been.
	//
	// Errors: ErrConflict, ErrInvalid, ErrUnavailable, that of fn.
	Guard(ctx context.Context, g Grant, fn func(Txn) error) error

	// Last returns the newest token that was given out for a key, whether that
	// lease is alive or over, and also after a restart; 0 if there was none. What
	// the key leads to has seen no other one: a higher one there was given out by
	// a later state of the provider, which was put back since.
	//
	// Errors: ErrInvalid, ErrUnavailable.
	Last(ctx context.Context, k Key) (uint64, error)

	Info() Info
}

// Txn is what a Guard may read and write: values that belong to the key of the
// lease and outlive it. It ends with the call of fn.
type Txn interface {
	// Get returns a copy of a value, nil if there is none.
	Get(name string) ([]byte, error)
	// Set stores a value of at most MaxValue bytes. A name has 1 to 255 bytes.
	Set(name string, value []byte) error
	Delete(name string) error
}

// MaxValue is the most bytes of one value of a Txn.
const MaxValue = 64 << 10

// Info says what a provider can be relied on for.
type Info struct {
	Name       string     // "badger"
	Install    [16]byte   // whose counter the tokens come from; see Mark
	Durability Durability // of a token that was given out
	Reach      Reach
}

// Durability is what a provider's memory survives.
type Durability string

const (
	Volatile     Durability = "none"
	ProcessCrash Durability = "process_crash"
	PowerLoss    Durability = "power_loss"
)

// Reach is how far apart owners may be.
type Reach string

const (
	SingleHost Reach = "single_host"
	MultiHost  Reach = "multi_host"
)
