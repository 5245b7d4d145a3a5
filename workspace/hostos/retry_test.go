package hostos

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"
)

// Only an error that may pass is waited for; each other is returned at once,
// as it is.
func TestRetry(t *testing.T) {
	passing := []error{syscall.EAGAIN, syscall.EWOULDBLOCK, syscall.EINTR}
	for n := syscall.Errno(1); n < 134; n++ {
		attempts := 0
		err := retry(context.Background(), "f", func() error {
			if attempts++; attempts < 3 {
				return n
			}
			return nil
		})
		if slices.Contains(passing, error(n)) {
			if err != nil || attempts != 3 {
				t.Errorf("%v: %v after %d attempts, want success at the third", n, err, attempts)
			}
		} else if !errors.Is(err, n) || errors.Is(err, ErrLocked) || attempts != 1 {
			t.Errorf("%v: %v after %d attempts, want it at once", n, err, attempts)
		}
	}
}

// What passes is waited for as long as the context says.
func TestRetryEndsWithItsContext(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EAGAIN, syscall.EWOULDBLOCK, syscall.EINTR} {
		ctx, cancel := context.WithTimeout(context.Background(), 5*lockPoll)
		start, attempts := time.Now(), 0
		err := retry(ctx, "f", func() error { attempts++; return errno })
		cancel()
		if !errors.Is(err, ErrLocked) || !errors.Is(err, context.DeadlineExceeded) || attempts < 2 || time.Since(start) < 5*lockPoll {
			t.Errorf("%v: %v after %d attempts", errno, err, attempts)
		}
	}
}
