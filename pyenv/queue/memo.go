package queue

import (
	"context"
	"slices"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/lock"
)

// MemoTTL is how long a solution is good at most: then the index is asked again.
const MemoTTL = 7 * 24 * time.Hour

// MemoKey names a question to the resolver: the packages, over which base, from which
// indexes, under which policy. The order of packages and hosts does not matter. Who asks
// over a base and layers names them all in base.
func MemoKey(specs []string, base string, hosts []string, policyRev int) string {
	return hash([]any{"memo", 1, set(specs), base, set(hosts), policyRev})
}

// set is a sorted copy without doubles, never nil.
func set(list []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(append([]string{}, list...))))
}

// memo is an answer of the resolver.
type memo struct {
	Lock    string    `json:"lock"`
	Expires time.Time `json:"expires"`
}

func (m *memo) check() error {
	if !lock.ValidID(m.Lock) || m.Expires.IsZero() {
		return invalid("a memo has a lock and a time")
	}
	return nil
}

// goodAt says whether the memo may be used. One that is good for longer than any is
// given was made under a clock that went ahead.
func (m *memo) goodAt(now time.Time) bool {
	return now.Before(m.Expires) && !m.Expires.After(now.Add(MemoTTL))
}

// Memo returns the lock that was the answer to the question. There is none when it is too
// old, and when it cannot be read: the resolver can be asked.
func (q *Queue) Memo(key string) (lockID string, ok bool) {
	err := q.view(func(txn *badger.Txn) error {
		m, err := readMemo(txn, key)
		if err == nil && m.goodAt(q.now()) {
			lockID, ok = m.Lock, true
		}
		return err
	})
	return lockID, ok && err == nil
}

// SetMemo keeps an answer for ttl, MemoTTL at most.
// Errors: ErrInvalid, ErrUnavailable; the cause of ctx, wrapped.
func (q *Queue) SetMemo(ctx context.Context, key, lockID string, ttl time.Duration) error {
	if !validHash(key) || ttl <= 0 {
		return invalid("a memo has a key and is good for some time")
	}
	value, err := encode(memo{lockID, recorded(q.now().Add(min(ttl, MemoTTL)))})
	if err != nil {
		return err
	}
	return q.update(ctx, func(txn *badger.Txn) error { return stored(txn.Set([]byte(memoKey(key)), value)) })
}

func readMemo(txn *badger.Txn, key string) (memo, error) {
	value, err := read(txn, memoKey(key))
	if err != nil {
		return memo{}, err
	}
	return decode[memo](value)
}

// dropMemos removes those that are no longer good, the readable ones.
func (q *Queue) dropMemos(ctx context.Context, now time.Time) error {
	stale := func(txn *badger.Txn) (keys []string) {
		const most = 1000 // that one transaction takes
		for _, key := range keysBelow(txn, memoPrefix, 0) {
			if m, err := readMemo(txn, key); err == nil && !m.goodAt(now) && len(keys) < most {
				keys = append(keys, key)
			}
		}
		return keys
	}
	var any bool
	err := q.view(func(txn *badger.Txn) error {
		any = len(stale(txn)) > 0
		return nil
	})
	if err != nil || !any {
		return err
	}
	return q.update(ctx, func(txn *badger.Txn) error {
		for _, key := range stale(txn) {
			if err := txn.Delete([]byte(memoKey(key))); err != nil {
				return stored(err)
			}
		}
		return nil
	})
}
