package hostos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// ErrLocked is wrapped by [Lock] when another process kept the lock until the
// context ended.
var ErrLocked = errors.New("locked by another process")

// lockPoll is how long Lock waits between two attempts. flock(2) has no
// timeout, and a blocked call could not be cancelled.
const lockPoll = 10 * time.Millisecond

// Lock takes the advisory lock of an open file, shared or exclusive, and waits
// for it until ctx ends. The lock belongs to the open file description: it is
// dropped by [Unlock], by closing f, and by the kernel when the process dies,
// so a lock never outlives its holder.
//
// Only EAGAIN, EWOULDBLOCK and EINTR are retried; any other error is returned
// at once, because waiting would not mend it. When ctx ends first the error
// wraps both [ErrLocked] and the cause of ctx.
func Lock(ctx context.Context, f *os.File, exclusive bool) error {
	return retry(ctx, f.Name(), func() error { return tryLock(f, exclusive) })
}

// TryLock is one attempt at what [Lock] waits for: false means that somebody else
// has the lock.
func TryLock(f *os.File, exclusive bool) (bool, error) {
	for {
		switch err := tryLock(f, exclusive); {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EINTR):
		case retryable(err):
			return false, nil
		default:
			return false, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}

// retry makes attempts at the lock of a file until one is decided.
func retry(ctx context.Context, name string, attempt func() error) error {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := attempt()
		if err == nil {
			return nil
		}
		if !retryable(err) {
			return fmt.Errorf("lock %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lock %s: %w (%w)", name, ErrLocked, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// retryable says whether the same attempt may succeed later.
func retryable(err error) bool {
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR)
}

// Unlock drops the lock that [Lock] took on f.
func Unlock(f *os.File) error {
	if err := unlock(f); err != nil {
		return fmt.Errorf("unlock %s: %w", f.Name(), err)
	}
	return nil
}
