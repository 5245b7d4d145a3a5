package lease

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/dgraph-io/badger/v4"
)

// record is the value of L|KEY. It is there from the grant to the release; a
// lease that ended in another way leaves it until its holder has been evicted.
type record struct {
	Key       Key           `json:"key"`
	Owner     string        `json:"owner"`
	Client    string        `json:"client,omitempty"`
	Token     uint64        `json:"token"`
	TTL       time.Duration `json:"ttl_ns"`
	Resumable bool          `json:"resumable,omitempty"`
	Since     time.Time     `json:"since"`
	// Over means that a restart must not bring it back to life.
	Over bool `json:"over,omitempty"`
}

func (r *record) lease() Lease {
	return Lease{
		Key: r.Key, Owner: r.Owner, Client: r.Client, Token: r.Token,
		TTL: r.TTL, Resumable: r.Resumable, Since: r.Since,
	}
}

var (
	keyToken   = []byte("T")
	keyEpoch   = []byte("E")
	keyInstall = []byte("I")

	keyKept   = []byte("N")
	keyBefore = []byte("M")

	leasePrefix = []byte("L|")
	lastPrefix  = "K|"
	guardPrefix = "G|"
)

// appendKey writes every part with its length in front, so that no two keys
// have the same bytes, and none is the beginning of another.
func appendKey[T string | []byte](prefix T, k Key) []byte {
	b := []byte(prefix)
	for _, part := range []string{k.Scope.Tenant, k.Scope.Workspace, k.Backend, k.Handle} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	return b
}

func leaseKey(k Key) []byte { return appendKey(leasePrefix, k) }
func lastKey(k Key) []byte  { return appendKey(lastPrefix, k) }

// readRecord returns the record of a key, nil if there is none.
func readRecord(txn *badger.Txn, k Key) (*record, error) {
	value, err := readValue(txn, leaseKey(k))
	if value == nil || err != nil {
		return nil, err
	}
	return decodeRecord(value)
}

func decodeRecord(value []byte) (*record, error) {
	r := new(record)
	if err := json.Unmarshal(value, r); err != nil {
		return nil, fmt.Errorf("%w: a record is damaged: %w", ErrUnavailable, err)
	}
	if r.Token == 0 || checkIdentity(r.Key, r.Owner) != nil || checkTTL(r.TTL) != nil {
		return nil, fmt.Errorf("%w: a record is damaged", ErrUnavailable)
	}
	return r, nil
}

func writeRecord(txn *badger.Txn, r *record) error {
	value, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return stored(txn.Set(leaseKey(r.Key), value))
}

// readCounter returns a number, 0 if it was never written.
func readCounter(txn *badger.Txn, key []byte) (uint64, error) {
	value, err := readValue(txn, key)
	switch {
	case err != nil || value == nil:
		return 0, err
	case len(value) != 8:
		return 0, fmt.Errorf("%w: counter %s is damaged", ErrUnavailable, key)
	}
	return binary.BigEndian.Uint64(value), nil
}

func writeCounter(txn *badger.Txn, key []byte, n uint64) error {
	return stored(txn.Set(key, binary.BigEndian.AppendUint64(nil, n)))
}

// nextToken takes a token off the counter, which is the last one of a key then.
func nextToken(txn *badger.Txn, k Key) (uint64, error) {
	last, err := readCounter(txn, keyToken)
	if err != nil {
		return 0, err
	}
	own, err := readCounter(txn, lastKey(k))
	if err != nil {
		return 0, err
	}
	last = max(last, own)
	if last >= MaxToken {
		return 0, fmt.Errorf("%w: all tokens have been given out", ErrUnavailable)
	}
	return last + 1, writeToken(txn, k, last+1)
}

// writeToken makes a token the last one of all, and of a key.
func writeToken(txn *badger.Txn, k Key, token uint64) error {
	return errors.Join(writeCounter(txn, keyToken, token), writeCounter(txn, keyKept, token), writeCounter(txn, lastKey(k), token))
}

// readValue returns a copy of a value, nil if there is none. The transaction
// remembers the read in both cases.
func readValue(txn *badger.Txn, key []byte) ([]byte, error) {
	item, err := txn.Get(key)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, stored(err)
	}
	value, err := item.ValueCopy([]byte{})
	return value, stored(err)
}

// stored is an error of the store as one of ours.
func stored(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
